"""``elmo substitutes``, ``senses``, ``change`` and ``similarity``: output, files and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails
from tests.lexicon.test_word_pairs import DATA, GOLD

MODEL = ("--model", "model")
BANKS = ("the bank lent us money {}", "money is in the bank {}", "we sat on the river bank {}")


@pytest.fixture
def periods(here: Path) -> Path:
    """``old.txt`` and ``new.txt`` with a dozen uses of bank each, and Chinese ones of 河岸."""
    for name in ("old", "new"):
        lines = [text.format(f"{name}{k}") for k in range(4) for text in BANKS]
        (here / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        lines = [f"{place}的河岸很美。" for place in ("那里", "城里", "村里", "这里")]
        (here / f"{name}.zh.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (here / "empty.txt").write_text("\n\n")
    return here


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a .tsv by the names of its columns."""
    head, *rows = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


# --- substitutes ------------------------------------------------------------------------------------


def test_substitutes_agree_in_table_json_and_file(run: Run, here: Path) -> None:
    asked = ("substitutes", "by the [[bank]] there", "a river", "--word", "river", "-n", "3", *MODEL)
    values = json.loads(run(*asked, "--json").out)
    assert [(one["before"], one["word"], one["after"]) for one in values] == [
        ("by the ", "bank", " there"), ("a ", "river", ""),
    ]  # fmt: skip
    blocks = run(*asked).out.rstrip("\n").split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["by the [bank] there", "a [river]"]
    for block, value in zip(blocks, values, strict=True):
        shown = [line.split() for line in block.splitlines()[1:]]
        wanted = [[f"{one['probability']:.2%}", one["word"]] for one in value["substitutes"]]
        assert shown == wanted
        assert value["word"] not in [one["word"] for one in value["substitutes"]]
    outcome = run(*asked, "--out", "s.tsv")
    assert (outcome.code, outcome.err) == (0, "elmo: wrote s.tsv\n")
    found = [(one["sentence"], one["rank"], one["substitute"]) for one in table(here / "s.tsv")]
    assert found == [
        (str(n), str(rank), one["word"])
        for n, value in enumerate(values, start=1)
        for rank, one in enumerate(value["substitutes"], start=1)
    ]
    assert run(*asked, "--out", "s.json").code == 0
    assert json.loads((here / "s.json").read_text("utf-8")) == values


def test_candidates_are_ranked_and_unknown_ones_come_last(run: Run, here: Path) -> None:
    asked = ("substitutes", "a [[bank]]", "--candidates", "zzxq,river,café", *MODEL)
    outcome = run(*asked)
    assert outcome.out.splitlines()[-1].split() == ["unknown", "zzxq"]
    assert "sentence 1: ranking these candidates last, because they are not in the vocabulary: 'zzxq'" in outcome.err
    assert run("-q", *asked).err == ""
    values = json.loads(run("-q", *asked, "--json").out)[0]["substitutes"]
    assert {one["candidate"]: one["is_known"] for one in values} == {
        "river": True, "café": True, "zzxq": False,
    }  # fmt: skip
    assert sum(one["probability"] for one in values) == pytest.approx(1)


def test_substitutes_of_a_chinese_word(run: Run) -> None:
    pytest.importorskip("jieba")
    outcome = run("substitutes", "我坐在[[河岸]]上。", "--tokenizer", "zh", *MODEL)
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == "我坐在[河岸]上。"
    assert "河岸" not in "".join(outcome.out.splitlines()[1:])


# --- senses -----------------------------------------------------------------------------------------


def test_senses_agree_in_lines_json_and_file(run: Run, periods: Path) -> None:
    pytest.importorskip("sklearn")
    asked = ("senses", "bank", "old.txt", "--clusters", "2", "--examples", "1", *MODEL)
    values = json.loads(run(*asked, "--json").out)
    assert (values["word"], values["usages"], len(values["senses"])) == ("bank", 12, 2)
    lines = run(*asked).out.splitlines()
    assert lines[0] == "bank: 2 senses in 12 usages (agglomerative)"
    shown = [line for line in lines if "%" in line]
    assert shown == [f"{one['share']:5.0%}  {one['sense']}: {', '.join(one['name'])}" for one in values["senses"]]
    assert sum("[bank]" in line for line in lines) == 2
    assert run(*asked, "--out", "b.tsv").code == 0
    rows = table(periods / "b.tsv")
    assert [row["place"] for row in rows] == [f"old.txt:{n}" for n in range(1, 13)]
    assert [sum(row["sense"] == n for row in rows) for n in "12"] == [one["usages"] for one in values["senses"]]
    assert {row["before"] + row["word"] + row["after"] for row in rows} == set(
        (periods / "old.txt").read_text().splitlines()
    )


def test_senses_of_a_chinese_word_from_text_and_index(run: Run, periods: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("jieba")
    assert run("index", "old.zh.txt", "--tokenizer", "zh", "--out", "zh", *MODEL).code == 0
    told = [
        json.loads(run("senses", "河岸", *given, "--json").out)
        for given in (("zh",), ("old.zh.txt", "--tokenizer", "zh", *MODEL))
    ]
    assert [(one["word"], one["usages"]) for one in told] == [("河岸", 4)] * 2
    assert_fails(run("senses", "船", "zh"), "'船' does not occur")


def test_a_word_that_the_tokenizer_splits_is_reported(run: Run, periods: Path) -> None:
    hint = "the tokenizer en splits it into 河 | 岸; choose another with --tokenizer"
    refused = run("-q", "senses", "河岸", "old.zh.txt", *MODEL)
    assert_fails(refused, "'河岸' does not occur in the text; " + hint)
    outcome = run("change", "old.zh.txt", "new.zh.txt", "--words", "河岸", *MODEL)
    assert outcome.code == 1
    assert f"skipping 河岸: expected at least 10 usages in each period, found 0 in old, 0 in new; {hint}" in outcome.err


def test_options_without_effect_on_an_index_are_reported(run: Run, periods: Path) -> None:
    pytest.importorskip("sklearn")
    assert run("index", "old.txt", "--out", "usages", *MODEL).code == 0
    plain, asked = run("senses", "bank", "usages"), run("senses", "bank", "usages", "--by", "substitutes")
    assert plain.err == ""
    assert "usages: ignoring --by, because the index already has vectors" in asked.err
    assert asked.out == plain.out


def test_the_largest_number_of_senses_is_reported(run: Run, here: Path) -> None:
    pytest.importorskip("sklearn")
    lines = [f"{a} {a} {a} bank {a}" for a in "abcdefghijklmn" for _ in range(4)]
    (here / "many.txt").write_text("\n".join(lines) + "\n")
    found, asked = (
        run("senses", "bank", "many.txt", "--layers", "top", *MODEL, *more) for more in ((), ("--clusters", "12"))
    )
    assert found.out.startswith("bank: 10 senses in 56 usages")
    assert "10 is the largest number of senses that is tried; set a larger one with --clusters" in found.out
    assert asked.out.startswith("bank: 12 senses")
    assert "is the largest number" not in asked.out


# --- change -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_change_agrees_in_table_json_and_file(run: Run, periods: Path) -> None:
    pytest.importorskip("sklearn")
    asked = ("change", "old.txt", "new.txt", "--words", "bank,the,tree", "--permutations", "9", *MODEL)
    outcome = run(*asked, "--min-count", "4", "--json")
    values = json.loads(outcome.out)
    assert values["periods"] == ["old", "new"]
    assert {word["word"] for word in values["words"]} == {"bank", "the"}
    assert [one["word"] for one in values["left_out"]] == ["tree"]
    assert "skipping tree: expected at least 4 usages" in outcome.err
    assert run(*asked, "--min-count", "4", "--out", "c.tsv").code == 0
    rows = table(periods / "c.tsv")
    assert [row["word"] for row in rows] == [word["word"] for word in values["words"]]
    assert [row["rank"] for row in rows] == ["1", "2"]
    lines = run("-q", *asked, "--min-count", "4", "--examples", "0").out.splitlines()
    assert lines[0] == "old → new"
    assert [line.split()[:2] for line in lines[2:4]] == [[row["word"], f"{float(row['change']):.4f}"] for row in rows]
    assert all(float(row["low"]) <= float(row["change"]) <= float(row["high"]) for row in rows)


def test_change_in_chinese(run: Run, periods: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("jieba")
    outcome = run(
        "change", "old.zh.txt", "new.zh.txt", "--words", "河岸", "--tokenizer", "zh", "--min-count", "4",
        "--permutations", "9", *MODEL,
    )  # fmt: skip
    assert outcome.code == 0
    assert outcome.out.splitlines()[2].split()[0] == "河岸"


# --- similarity -------------------------------------------------------------------------------------


def test_similarity_agrees_in_lines_json_and_file(run: Run, here: Path) -> None:
    (here / "pairs.txt").write_text(DATA, encoding="utf-8")
    (here / "gold.txt").write_text(GOLD)
    asked = ("similarity", "pairs.txt", *MODEL)
    pairs = json.loads(run(*asked, "--json").out)["pairs"]
    lines = run(*asked).out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"{one['cosine']:.3f}" for one in pairs]
    assert lines[-1].endswith("坐在 [河岸] 上  |  那 条 [河岸]")
    assert run(*asked, "--out", "p.tsv").code == 0
    assert [row["word"] for row in table(here / "p.tsv")] == ["bank", "river", "河岸"]
    judged = run("similarity", "pairs.txt", "gold.txt", "--tune", "pairs.txt", "gold.txt", *MODEL).out
    assert judged.splitlines()[0] == "3 pairs, thresholds tuned on 3 others"


# --- all of them ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("substitutes", "the bank"), ("sentence 1: no word is marked", "[[this]]")),
        (("substitutes", "the bank", "--word", "tree"), ("sentence 1: 'tree' does not occur in 'the bank'",)),
        (("substitutes", "[[a]] [[b]]"), ("sentence 1: only one word may be marked", "found 2")),
        (("substitutes", "a [[ ]]"), ("sentence 1: a mark [[ ]] must contain a word", "found an empty mark")),
        (("substitutes", ""), ("no word is marked",)),
        (("substitutes", "a [[b]]", "--candidates", "no/such.txt"), ("no/such.txt: no such file",)),
        (("substitutes", "a [[b]]", "--candidates", "empty.txt"), ("expected words, found none",)),
        (("substitutes", "a [[b]]", "--start", "warm"), ("no warm state",)),
        (("substitutes", "a [[b]]", "--out", "x.csv"), ("x.csv", ".tsv or .json")),
        (("senses", "tree", "old.txt"), ("'tree' does not occur in the text",)),
        (("senses", " ", "old.txt"), ("expected a word, found only white space",)),
        (("senses", "bank", "empty.txt"), ("empty.txt: expected text, found no words",)),
        (("senses", "bank", "nowhere.txt"), ("nowhere.txt: no such file",)),
        (("senses", "bank", "old.txt", "--clusters", "13"), ("expected at least 13 usages", "found 12")),
        (("senses", "bank", "old.txt", "--picture", "x.doc"), ("x.doc",)),
        (("change", "old.txt", "nowhere.txt"), ("nowhere.txt: no such file",)),
        (("change", "old.txt", "empty.txt", "--words", "bank"), ("empty: expected text for this period",)),
        (("change", "old.txt", "new.txt", "--words", "tree"), ("no word has enough usages",)),
        (("change", "--uses", "nowhere"), ("nowhere: expected a folder with uses.csv files",)),
        (("similarity", "nowhere.txt"), ("cannot read nowhere.txt: No such file",)),
        (("similarity", "empty.txt"), ("empty.txt: expected pairs of sentences, found none",)),
        (("similarity", "old.txt"), ("old.txt:1: expected 5 columns",)),
    ],
)
def test_errors_are_one_line(run: Run, periods: Path, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    before = sorted(periods.rglob("*"))
    outcome = run("-q", *arguments, *MODEL)
    assert_fails(outcome, *parts)
    assert sorted(periods.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("index", "old.txt", "--out", "usages"),
        ("substitutes", "a [[bank]]"),
        ("senses", "bank", "old.txt"),
        ("change", "old.txt", "new.txt"),
        ("similarity", "pairs.txt"),
        ("score", "old.txt"),
    ],
)
def test_a_missing_model_is_one_line(run: Run, periods: Path, arguments: tuple[str, ...]) -> None:
    (periods / "pairs.txt").write_text(DATA, encoding="utf-8")
    before = sorted(periods.rglob("*"))
    assert_fails(run("-q", *arguments, "--model", "no/model/here"), "no/model/here")
    assert sorted(periods.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("substitutes",), "SENTENCE"),
        (("substitutes", "a [[b]]", "-n", "0"), "-n"),
        (("substitutes", "a [[b]]", "--combine", "sum"), "--combine"),
        (("senses", "bank"), "INPUT"),
        (("senses", "bank", "old.txt", "--method", "dbscan"), "--method"),
        (("senses", "bank", "old.txt", "--layers", "all"), "--layers"),
        (("change", "old.txt"), "expected two or more texts, one for each period"),
        (("change", "old.txt", "new.txt", "--measure", "cosine"), "--measure"),
        (("change", "old.txt", "-"), "stdin can be read only once"),
        (("similarity", "a", "b", "c"), "found 3 arguments; to compare a word in sentences, use elmo compare"),
        (("score", "The bank ."), "to score a sentence, use --text"),
    ],
)
def test_wrong_usage_names_the_option(run: Run, periods: Path, arguments: tuple[str, ...], part: str) -> None:
    assert_fails(run(*arguments), part, f"(see: elmo {arguments[0]} --help)", code=2)
