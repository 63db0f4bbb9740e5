"""The docstrings of all public names: they describe every parameter, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo import Elmo, MissingExtraError, tasks, train_bilm

SOURCE = Path(__file__).parents[2] / "src" / "elmo"
PACKAGES = sorted(
    (".".join(("elmo", *stub.parent.relative_to(SOURCE).parts)) for stub in SOURCE.rglob("__init__.pyi")),
    key=lambda name: (name.count("."), name),
)


def public_objects() -> dict[str, Any]:
    """Return every public object by the name of the first package that exports it."""
    objects: dict[int, tuple[str, Any]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            try:
                public = getattr(module, name)
            except MissingExtraError:  # Flair needs an environment of its own
                continue
            if inspect.isclass(public) or inspect.isfunction(public):
                objects.setdefault(id(public), (f"{package}.{name}", public))
    return dict(objects.values())


OBJECTS = public_objects()
EXAMPLES = {name: public for name, public in OBJECTS.items() if ">>>" in (inspect.getdoc(public) or "")}

SEMCOR = """{"doc": "a", "s": "1", "toks": [{"w": "The"}, {"w": "bank", "lemma": "bank", "sk": ["bank%1:17:01::"]}]}"""
WORDS = ("old", "new", "big", "small", "long", "short", "high", "low")
CORPUS = """\
They walked along the bank of the river .
We sat on the bank and watched the boats .
The village lies on the north bank of the stream .
The bank lent the company two million dollars .
Her bank gave her a loan to buy the house .
He put his money in the bank .
The old man feeds the birds every morning .
She closed the window because it was cold .
The train to Berlin leaves in ten minutes .
The children played in the snow until dark .
""".replace(" .", ".")


@pytest.fixture(scope="module")
def model() -> Elmo:
    return Elmo.from_pretrained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all examples run, with the files that they name."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ELMO_CACHE", str(folder / "cache"))
        patch.setenv("ELMO_DOWNLOADS", str(folder / "downloads/models"))
        patch.setenv("MPLBACKEND", "agg")
        Path("corpus.txt").write_text(CORPUS)
        Path("long.txt").write_text(
            "\n".join(f"The {a} bank of the {b} was far from here." for a in WORDS for b in WORDS)
        )
        Path("semcor.jsonl").write_text(SEMCOR)
        for name in ("train.conll", "dev.conll"):
            Path(name).write_text("She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n\n" * 4)
        Path("pairs.tsv").write_text(
            "The [[bank]] lent her money.\tHer [[bank]] gave her a loan.\tT\n"
            "The [[bank]] lent her money.\tWe sat on the [[bank]] of the river.\tF\n"
        )
        Path("agreement.tsv").write_text("sentence_good\tsentence_bad\nThe keys are here.\tThe keys is here.\n")
        Path("reviews.csv").write_text('id,text\n1,"A good film, really."\n2,Not for me .\n')
        tasks.train("tagging", ["train.conll"], dev=["dev.conll"], out="tagger.safetensors", epochs=1)
        train_bilm("corpus.txt", "run", preset="tiny", layers=1, cells=32, width=16, epochs=1)
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, model: Elmo, folder: Path) -> None:
    package, _, public = name.rpartition(".")
    names: dict[str, Any] = {}
    for source in ("elmo", package):
        module = importlib.import_module(source)
        names |= {item: getattr(module, item) for item in module.__all__ if item != "ElmoEmbeddings"}
    names |= {"np": importlib.import_module("numpy"), "torch": importlib.import_module("torch"), "Path": Path}
    names["elmo"] = model
    text = inspect.getdoc(OBJECTS[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, names, public, name, 0)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    runner.run(example, out=report.append)
    if any("MissingExtraError" in line for line in report):
        pytest.skip("needs a library that is not installed")
    assert not report, "".join(report)


def undocumented(public: Any) -> list[str]:
    """Return the parameters that neither a section of the docstring nor a ``name`` in its text describes."""
    texts = [inspect.getdoc(public) or ""]
    if inspect.isclass(public):
        parents = [parent for parent in public.__mro__ if parent.__module__.startswith("elmo.")]
        texts += [parent.__doc__ or "" for parent in parents]
        texts += [parent.__init__.__doc__ or "" for parent in parents if "__init__" in vars(parent)]
    text = "\n".join(map(inspect.cleandoc, texts))
    described = set(re.findall(r"^    \*{0,2}(\w+)(?: \([^)]*\))?: ", text, re.MULTILINE)) | set(
        re.findall(r"``(\w+)``", text)
    )
    if issubclass(public, dict) if inspect.isclass(public) else False:  # a TypedDict
        parameters = list(public.__annotations__)
    else:
        parameters = list(inspect.signature(public).parameters)
    return [name for name in parameters if name not in described and name not in ("self", "args", "kwargs")]
