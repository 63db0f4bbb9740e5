"""Every example in the README and the guides runs, so that none of them can grow old."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from elmo.formats import native
from tests.formats.tiny import tiny_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def without_code(page: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def repeats_its_english_twin(page: Path, docs: Path) -> bool:
    """Whether a Chinese page has exactly the python and console blocks of the English page of the same name."""
    if docs / "zh" not in page.parents:
        return False
    english = docs / page.relative_to(docs / "zh")
    if not english.exists():
        return False
    own, other = (_BLOCK.findall(path.read_text(encoding="utf-8")) for path in (page, english))
    return own == other


RUN = [page for page in PAGES if not repeats_its_english_twin(page, ROOT / "docs")]  # all code, each page once


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples name: a model and some text."""
    native.write(tiny_model("chars", softmax=True), tmp_path / "path/to/model")
    lines = ["I sat by the bank of the river .", "She took the money to the bank .", "", "苹果发布了新手机。"]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("One more line .\n", encoding="utf-8")
    rows = "She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n\n"
    for name in ("train.conll", "dev.conll"):
        (tmp_path / name).write_text(rows * 4, encoding="utf-8")
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.en").write_text("Two men walk.\nA man walks.\nTwo dogs run.\nA dog runs.\n" * 4)
        (tmp_path / f"{name}.de").write_text(
            "Zwei Männer gehen.\nEin Mann geht.\nZwei Hunde rennen.\nEin Hund rennt.\n" * 4, encoding="utf-8"
        )
    (tmp_path / "other.de").write_text("Zwei Männer.\n" * 16, encoding="utf-8")
    (tmp_path / "reviews.csv").write_text('id,text\n1,"A good film, really."\n2,Not for me .\n', encoding="utf-8")
    monkeypatch.setenv("ELMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # examples read like a person's, open() and all
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras
@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")  # Keras
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, workplace: Path) -> None:
    code = blocks(page, "python")
    if "jieba" in page.read_text(encoding="utf-8") and page.name == "README.zh.md":
        pytest.importorskip("jieba")
    names: dict[str, object] = {}
    for number, block in enumerate(code):
        exec(compile(block, f"{page.name}, example {number + 1}", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_elmo_commands_of_a_page_run(page: Path, workplace: Path) -> None:
    commands = [
        line.split("     #")[0] for block in blocks(page, "console") for line in block.replace("\\\n", " ").splitlines()
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8"}
    elmo = f"{shlex.quote(sys.executable)} -m elmo"
    for command in commands:
        if not re.match(r"(?:\S+ .*\| )?elmo ", command):
            assert re.match(r"pip install |make |python benchmarks/|\(cd mine ", command), f"untested: {command}"
            continue
        real = re.sub(r"(^|\| )elmo ", rf"\1{elmo} ", command)
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {real}"], capture_output=True, env=environment, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr.decode()}"


def test_only_a_chinese_page_with_the_code_of_its_english_twin_is_not_run_again(tmp_path: Path) -> None:
    code = ["```python\n1 + 1\n```\n", "```console\nelmo info\n```\n"]
    (tmp_path / "zh").mkdir()
    (tmp_path / "page.md").write_text("# Page\n" + "\nThen:\n".join(code), encoding="utf-8")
    pages = {
        "same code": ("page.md", code, True),
        "changed code": ("page.md", [code[0].replace("1 + 1", "1 + 2"), code[1]], False),
        "other order": ("page.md", code[::-1], False),
        "less code": ("page.md", code[:1], False),
        "more code": ("page.md", [*code, code[0]], False),
        "no English page": ("own.md", code, False),
    }
    for case, (name, parts, expected) in pages.items():
        page = tmp_path / "zh" / name
        page.write_text("# 页面\n" + "\n然后：\n".join(parts), encoding="utf-8")
        assert repeats_its_english_twin(page, tmp_path) == expected, case
    assert not repeats_its_english_twin(tmp_path / "page.md", tmp_path)


def test_a_chinese_page_with_the_code_of_its_english_twin_has_the_same_figures_in_its_tables() -> None:
    number = re.compile(r"(?<![A-Za-z\d.,_])(\d+(?:,\d{3})*(?:\.\d+)?)( million| 万)?")
    scale = {"": 1, " million": 1e6, " 万": 1e4}

    def count_figures(page: Path) -> Counter[float]:
        rows = "\n".join(re.findall(r"^\|.*", without_code(page), re.MULTILINE))
        return Counter(float(value.replace(",", "")) * scale[unit] for value, unit in number.findall(rows))

    for page in set(PAGES) - set(RUN):
        english, chinese = count_figures(ROOT / "docs" / page.relative_to(ROOT / "docs/zh")), count_figures(page)
        assert english == chinese, f"{page}: only English {english - chinese}, only Chinese {chinese - english}"


def test_every_output_of_a_page_is_recorded() -> None:
    for page in PAGES:
        assert "```text\n```" not in page.read_text(encoding="utf-8"), f"{page.name}: run make guide"


def test_both_readmes_have_the_same_sections_links_and_commands() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    chinese = chinese.replace("docs/zh/", "docs/").replace("-zh.png", ".png")  # Chinese pages and pictures
    for pattern in (r"^#+ ", r"^- \*\*", r"\]\((docs/[^)]*)\)", r"^make \w+", r"^elmo \w+"):
        found = [re.findall(pattern, text, re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)[)#]", without_code(page)):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
