"""Every block of code in the README and the documentation is run, or checked without running it, for a reason.

| block | what happens |
|---|---|
| `python`, `console` | `tests/test_docs.py` runs them |
| `text` | the output of the block before, which `make guide` writes; has no commands |
| `bash` | needs data, a cluster, the network or hours: each command is checked against the options of its program |
| `py` | needs what `NOT_RUN` lists: its syntax and its imports from `elmo` are checked |
| `math`, `ini`, `js` | formulas (built with the site), configuration, and JavaScript |
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo import MissingExtraError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted(ROOT.glob("docs/**/*.md"))]
KINDS = {"python", "console", "text", "bash", "py", "math", "ini", "js"}
NOT_RUN = {
    "alignment.md": "two aligned models and a list of parallel sentences",
    "arrow.md": "Ray and Spark; tests/integrations/test_ray.py and test_spark.py run it with `make engines`",
    "explorer.md": "onnxruntime-web; tests/serve/test_export.py exports pages",
    "flair.md": "Flair; tests/integrations/test_flair.py runs it with `make integrations`",
    "formats.md": "a download of 375 MB",
    "hugging-face.md": "an account of the Hugging Face Hub; tests/integrations/test_hub_upload.py uploads to a folder",
    "serve.md": "a server; tests/serve/test_guide.py runs it",
    "sharpen.md": "text of 100,000 words; tests/lexicon/test_sharpen.py tests the functions",
    "spacy.md": "jieba, whose dictionary spaCy leaves open, which is a warning; it was run by hand",
    "vector-stores.md": "servers of Qdrant and PostgreSQL",
    "wsd.md": "WordNet; tests/lexicon/test_wsd.py tests the function",
}
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:[A-Z]+=\S+ )*(?:elmo|python|pip|make|curl|torchrun|apt|apt-get|npm|docker) ")


def find_blocks(page: Path, *kinds: str) -> Iterator[str]:
    """Yield the fenced blocks of these kinds."""
    yield from (code for _, kind, code in _FENCE.findall(page.read_text(encoding="utf-8")) if kind in kinds)


def split_commands(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block of shell code, without variables, comments and redirections."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in lexer:
            if re.fullmatch(r"[|&;()]+", word):
                if words:
                    yield words
                words = []
            elif re.fullmatch(r"[<>&]+", word):
                redirected = True
            elif redirected:
                redirected = False
            elif words or not re.match(r"[A-Z_]+=", word):
                words.append(word)
        if words:
            yield words


def parse_elmo(arguments: list[str]) -> None:
    """Parse the arguments of ``elmo`` as the command does, without running it."""
    import typer

    from elmo.cli.app import build_app, move_global_options
    from elmo.cli.console import Console

    command: Any = typer.main.get_command(build_app(arguments))
    name, rest, parent = "elmo", move_global_options(arguments), None
    while True:
        parent = command.make_context(name, rest, parent=parent, obj=Console())
        if not hasattr(command, "commands"):
            return
        name, command, rest = command.resolve_command(parent, [*parent._protected_args, *parent.args])


def check_command(words: list[str]) -> None:
    """Fail if a command names an option, a file or a target that does not exist."""
    program, *rest = words
    if program == "torchrun":
        at = rest.index("-m")
        program, rest = rest[at + 1], rest[at + 2 :]
    if program == "elmo":
        parse_elmo(rest)
    elif program == "python" and rest[:2] == ["-m", "spacy"]:
        assert all((ROOT / word).is_file() for word in rest if word.startswith("examples/"))
    elif program == "python":
        script = ROOT / rest[1].replace(".", "/") / "__main__.py" if rest[0] == "-m" else ROOT / rest[0]
        code = script.read_text(encoding="utf-8")
        assert [word for word in rest[1:] if word.startswith("--") and f'"{word}"' not in code] == []
    elif program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert rest[0] in targets
    elif program == "pip":
        assert rest[0] == "install"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for word in rest:
            if match := re.search(r"\[(.*)\]", word):
                assert set(match[1].split(",")) <= set(project["optional-dependencies"]), word
            assert not word.endswith((".txt", ".lock")) or (ROOT / word).is_file(), word
    elif program == "curl":  # tests/serve/test_guide.py sends these requests
        assert rest[0].startswith("http://127.0.0.1:8000/")
    else:
        assert program in {"apt", "cat", "cd", "sha256sum"}, f"unknown program {program}"


def find_mistakes(block: str) -> Iterator[str]:
    """Yield the commands of a block that cannot be right, with the error."""
    for words in split_commands(block):
        try:
            check_command(words)
        except MissingExtraError:  # an object store
            continue
        except Exception as error:
            yield f"{shlex.join(words)}: {error!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_names_its_kind(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {kind for _, kind, _ in _FENCE.findall(text)} <= KINDS
    indented = re.findall(r"(?<=\n\n)    .*", _FENCE.sub("", text))
    assert not indented, f"name the kind of these blocks with ```: {indented}"
    for block in find_blocks(page, "text"):
        assert not [line for line in block.splitlines() if _COMMAND.match(line)], page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_have_the_options_of_their_programs(page: Path) -> None:
    mistakes = [mistake for block in find_blocks(page, "bash", "console") for mistake in find_mistakes(block)]
    assert not mistakes


@pytest.mark.parametrize(
    "command",
    [
        "elmo embed corpus.txt --outt v.npz",
        "elmo task train tagging --width many",
        "cat corpus.txt | elmo embedd -",
        "torchrun --standalone -m elmo train corpus.txt --out model --presets tiny",
        "python benchmarks/missing.py",
        "python benchmarks/quality.py --sense X",
        "python -m fuzz --shorter",
        "make everything",
        "pip install 'pyelmo[everything]'",
        "pip install -r missing.txt",
        "rm -r corpus",
    ],
)
def test_a_command_with_a_wrong_option_is_found(command: str) -> None:
    assert len(list(find_mistakes(command))) == 1


def test_only_python_that_cannot_run_is_not_run() -> None:
    pages = {page.name for page in PAGES if list(find_blocks(page, "py"))}
    assert pages == set(NOT_RUN), "run these examples (```python), or state in NOT_RUN what they need"
    for page in PAGES:
        for code in find_blocks(page, "py"):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("elmo"):
                    module = importlib.import_module(str(node.module))
                    assert {name.name for name in node.names} <= set(module.__all__), page
