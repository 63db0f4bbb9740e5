"""Words in context: WiC's files, cosines in every layer, the best threshold, and the command."""

from __future__ import annotations

import json
import logging
import lzma
import math
import re
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from elmo.cli import similarity as command
from elmo.cli.console import Console
from elmo.embed.elmo import Elmo
from elmo.embed.encoding import similarity
from elmo.errors import DataError, ElmoError, OutputError
from elmo.formats import native
from elmo.lexicon.word_pairs import (
    LabeledPairs,
    best_threshold,
    compare_pairs,
    find_wic_files,
    read_pairs,
    wilson_interval,
)
from elmo.text.tokenizers import load_tokenizer
from tests.formats.tiny import tiny_model

DATA = (
    "bank\tN\t1-3\tthe bank lent\tI sat by bank\nriver\tN\t0-0\triver\triver\n河岸\tN\t1-2\t坐在 河岸 上\t那 条 河岸\n"
)
GOLD = "F\nT\nT\n"


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


@pytest.fixture
def wic(tmp_path: Path) -> Path:
    """A WiC folder with a compressed dev set, next to a model."""
    folder = tmp_path / "wic"
    folder.mkdir()
    (folder / "train.data.txt").write_text(DATA, encoding="utf-8")
    (folder / "train.gold.txt").write_text(GOLD)
    (folder / "dev.data.txt.xz").write_bytes(lzma.compress(DATA.encode()))
    (folder / "dev.gold.txt.xz").write_bytes(lzma.compress(GOLD.encode()))
    native.write(tiny_model(), tmp_path / "model")
    return folder


def test_each_pair_has_the_cosine_of_its_two_words(elmo: Elmo, wic: Path) -> None:
    pairs = read_pairs(wic / "train.data.txt")
    assert [(pair.word, pair.first.word, pair.second.word) for pair in pairs.pairs][2] == ("河岸", "河岸", "河岸")
    found = compare_pairs(elmo, pairs, layers="all")
    assert list(found.cosines) == ["0", "1", "2", "average"]
    for layer, cosines in found.cosines.items():
        choice = int(layer) if layer.isdigit() else "average"
        a, b = elmo.encode([["the", "bank", "lent"], ["I", "sat", "by", "bank"]], layers=choice)
        assert math.isclose(cosines[0], similarity(a.vectors[1], b.vectors[3]), rel_tol=1e-6)
        assert math.isclose(cosines[1], 1.0)  # the same word in the same sentence
        alone = compare_pairs(elmo, pairs, layers=choice).cosines
        assert list(alone) == [layer]
        np.testing.assert_allclose(alone[layer], cosines, rtol=1e-6)
    assert np.allclose(found.cosines["0"], 1.0)  # the token layer sees no sentence
    assert found.cosines["2"][0] < 0.9999


def test_progress_counts_pairs(elmo: Elmo, wic: Path) -> None:
    progress: list[int] = []
    pairs = LabeledPairs(read_pairs(wic / "train.data.txt").pairs * 100)
    found = compare_pairs(elmo, pairs, on_progress=progress.append)
    assert progress == [256, 300]
    assert len(found.cosines["sense"]) == 300


@given(st.lists(st.tuples(st.sampled_from([-0.5, 0.0, 0.25, 0.5, 0.9]), st.booleans()), min_size=1, max_size=30))
def test_the_threshold_is_the_lowest_with_the_best_accuracy(rows: list[tuple[float, bool]]) -> None:
    cosines, is_same = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    steps = [*np.unique(cosines), np.nextafter(cosines.max(), np.inf)]  # the last: all differ
    slow = max(steps, key=lambda step: float(((cosines >= step) == is_same).mean()))
    assert best_threshold(cosines, is_same) == slow


def test_the_best_threshold_can_reject_all_pairs() -> None:
    threshold = best_threshold(np.array([0.2, 0.9]), np.array([False, False]))
    assert threshold > 0.9


def test_the_interval_is_that_of_wilson() -> None:
    low, high = wilson_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)  # as scipy's binomtest(8, 10)
    assert wilson_interval(0, 5)[0] == pytest.approx(0.0, abs=1e-12)
    assert wilson_interval(5, 5)[1] == pytest.approx(1.0, abs=1e-12)


def test_layers_are_judged_by_a_threshold_tuned_on_other_pairs(elmo: Elmo, wic: Path) -> None:
    pairs = read_pairs(wic / "train.data.txt", wic / "train.gold.txt")
    assert pairs.is_same is not None
    found = compare_pairs(elmo, pairs, tune=pairs, layers="all")
    (token, *_, average) = found.judgments.values()
    assert (
        average.accuracy
        == average.tuned
        == float(((found.cosines["average"] >= average.threshold) == pairs.is_same).mean())
    )
    assert average.accuracy is not None
    assert average.interval == wilson_interval(round(average.accuracy * 3), 3)
    assert token.layer == "0"
    unlabeled = compare_pairs(elmo, LabeledPairs(pairs.pairs), tune=pairs, layers="all").judgments
    assert unlabeled["0"].accuracy is unlabeled["0"].interval is None
    assert list(unlabeled["average"].is_same) == list(average.is_same)


def test_a_folder_has_pairs_to_tune_on_and_to_judge(wic: Path, tmp_path: Path) -> None:
    files = find_wic_files(wic)
    assert files.tune is not None
    assert files.gold is not None
    assert [path.name for path in (*files.tune, files.data, files.gold)] == [
        "train.data.txt", "train.gold.txt", "dev.data.txt.xz", "dev.gold.txt.xz",
    ]  # fmt: skip
    (wic / "train.gold.txt").unlink()
    assert find_wic_files(wic).tune is None
    with pytest.raises(DataError, match=r"expected dev\.data\.txt or test\.data\.txt or .* found none"):
        find_wic_files(tmp_path)


def test_the_part_of_a_folder_can_be_chosen(wic: Path) -> None:
    for name in ("test.data.txt", "test.gold.txt"):
        (wic / name).write_text(DATA if "data" in name else GOLD, encoding="utf-8")
    assert find_wic_files(wic).data.name == "dev.data.txt.xz"
    files = find_wic_files(wic, part="test")
    assert (files.data, files.gold) == (wic / "test.data.txt", wic / "test.gold.txt")
    train = find_wic_files(wic, part="train")
    assert (train.data.name, train.gold, train.tune) == ("train.data.txt", None, None)
    (wic / "test.data.txt").unlink()
    with pytest.raises(DataError, match=r"expected test\.data\.txt, found none"):
        find_wic_files(wic, part="test")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bank\tN\t1-1\tthe bank", "x.txt:1: expected 5 columns .* found 4"),
        ("bank\tN\t1,1\tthe bank\tthe bank", "x.txt:1: expected positions such as 2-5 .* found '1,1'"),
        ("bank\tN\t1-2\tthe bank\tthe bank", "x.txt:1: expected a position below 2.* in sentence 2, found 2"),
        ("bank\tN\t1-1:1\tthe bank\tthe bank", "x.txt:1: expected a position below 2.* in sentence 2, found 1:1"),
        ("bank\tN\t0\t4\t4\t9\tbank\tthe bank", "x.txt:1: expected a range of characters within 0:8, found 4:9"),
        ("the [[bank]]\tthe bank", r"x.txt:1: expected a word marked like \[\[this\]\], found none in 'the bank'"),
        ("the [[bank]]\t[[a]] [[b]]", "x.txt:1: only one word may be marked"),
        ('{"sentence1": "the bank"', "x.txt:1: expected JSON, found"),
        ('[{"sentence1": "[[a]]", "sentence2": 3}]', "entry 1: expected an object with sentence1 and sentence2"),
        (
            '{"sentence1": "a", "start1": 0, "end1": "x"}',
            "x.txt:1: expected a range of characters within 0:1, found 0:x",
        ),
        ("[[a]]\t[[b]]\t3\n[[a]]\t[[b]]", "x.txt: expected 2 labels, one per pair, found 1"),
        ("[[a]]\t[[b]]\t3\n[[a]]\t[[b]]\tT", "x.txt:2: expected a number for each pair, found 'T'"),
        ("", "x.txt: expected pairs of sentences, found none"),
    ],
)
def test_an_error_in_a_pair_names_its_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / "x.txt")


def test_gold_has_a_line_for_each_pair(tmp_path: Path) -> None:
    data, gold = tmp_path / "data.txt", tmp_path / "x.txt"
    data.write_text("\n".join(DATA.splitlines()[:2]) + "\n", encoding="utf-8")
    gold.write_text("T\nF\n")
    labels = read_pairs(data, gold).is_same
    assert labels is not None
    assert labels.tolist() == [True, False]
    gold.write_text("T\nmaybe\nT\n")
    with pytest.raises(DataError, match=r"x\.txt:2: expected T or F for each pair, found 'maybe'"):
        read_pairs(data, gold)
    gold.write_text("T\nF\n")
    data.write_text(DATA, encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.txt: expected 3 lines, one per pair, found 2"):
        read_pairs(data, gold)


OBJECT = {"lemma": "look up", "pos": "V", "sentence1": "She looked it up.", "sentence2": "Look up!",
          "start1": 4, "end1": "16", "start2": "0", "end2": 7}  # fmt: skip
FORMATS = {
    "xl-wic": "look up\tV\t4\t16\t0\t7\tShe looked it up.\tLook up!\t1\n",
    "marks": "She [[looked it up]].\t[[Look up]]!\tT\n",
    "superglue": json.dumps(OBJECT | {"label": True}) + "\n",
    "mcl-wic": json.dumps([OBJECT | {"tag": "T"}], indent=1),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_phrases_are_found_by_characters_and_marks(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x").write_text(FORMATS[kind])
    data = read_pairs(tmp_path / "x")
    (pair,) = data.pairs
    assert [pair.first.parts(), pair.second.parts()] == [("She ", "looked it up", "."), ("", "Look up", "!")]
    assert data.is_same is not None
    assert data.is_same.tolist() == [True]
    assert pair.first.place.startswith(str(tmp_path / "x"))
    if kind != "marks":
        assert (pair.word, pair.pos) == ("look up", "V")


def test_phrases_are_found_by_ranges_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("look up\tV\t1:4-0:2\tShe looked it up .\tLook up !\n")
    (pair,) = read_pairs(tmp_path / "x").pairs
    assert (pair.first.word, pair.second.word) == ("looked it up", "Look up")


@pytest.mark.parametrize("start", ["[1] ", "[...] ", "[sic] "])
def test_a_sentence_that_begins_with_a_bracket_is_not_json(tmp_path: Path, start: str) -> None:
    (tmp_path / "x").write_text(f"a [[bank]]\tthe [[bank]]\tF\n{start}The [[bank]].\ta [[bank]]\tT\n")
    data = read_pairs(tmp_path / "x")
    assert [pair.first.parts()[0] for pair in data.pairs] == ["a ", f"{start}The "]
    assert data.is_same is not None
    assert data.is_same.tolist() == [False, True]


def test_gold_labels_may_be_json(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps([OBJECT, OBJECT]))
    (tmp_path / "gold").write_text(json.dumps([{"id": "1", "tag": "F"}, {"id": "2", "tag": "T"}]))
    labels = read_pairs(tmp_path / "x", tmp_path / "gold").is_same
    assert labels is not None
    assert labels.tolist() == [False, True]


def test_sentences_are_tokenized_by_the_tokenizer_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("the [[bank's]]\ta [[bank]]\n")
    first = [read_pairs(tmp_path / "x", tokenizer=load_tokenizer(name)).pairs[0].first for name in ("en", "whitespace")]
    assert [usage.end - usage.begin for usage in first] == [2, 1]


@pytest.mark.parametrize("labels", ["TF", ("True", "False"), "10", ("true", "FALSE")])
def test_labels_may_have_many_spellings_and_be_in_the_file_of_the_pairs(
    tmp_path: Path, labels: str | tuple[str, str]
) -> None:
    path = tmp_path / "x"
    path.write_text("".join(f"the [[bank]]\ta [[bank]]\t{label}\n" for label in labels))
    for gold in (None, path):
        is_same = read_pairs(path, gold).is_same
        assert is_same is not None
        assert is_same.tolist() == [True, False]


def test_graded_labels_are_compared_by_rank(elmo: Elmo, tmp_path: Path) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    rows = (("the [[bank]]", "a [[bank]] here", 4.0), ("[[river]] a", "[[bank]] .", 0.5), ("[[a]]", "[[a]]", 4.0),
            ("in the [[river]]", "a [[river]]", 2.5))  # fmt: skip
    (tmp_path / "x").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in rows))
    data = read_pairs(tmp_path / "x")
    assert data.is_same is None
    found = compare_pairs(elmo, data, layers="all")
    expected = {
        name: scipy_stats.spearmanr(cosines, [4, 0.5, 4, 2.5]).statistic for name, cosines in found.cosines.items()
    }
    assert found.correlations == pytest.approx(expected)
    with pytest.raises(DataError, match="pairs to tune a threshold need the labels T or F"):
        compare_pairs(elmo, data, tune=data)


def test_a_respelled_word_is_replaced_in_both_sentences(elmo: Elmo, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("bank\tN\t1-1\tthe Banks\tthe bank\n")
    data = read_pairs(tmp_path / "x")
    as_written, respelled = (compare_pairs(elmo, data, is_respelled=x).cosines["sense"][0] for x in (False, True))
    assert as_written < 0.9999
    assert respelled == pytest.approx(1)


def run(*arguments: str | Path) -> str:
    """Run the command and return its output; raise its errors."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command.command)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], obj=Console())
    if isinstance(done.exception, ElmoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_judges_a_folder_in_every_layer(wic: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, out = wic.parent / "model", wic.parent / "x.tsv"
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        lines = run(wic, "--model", model, "--layers", "all", "--out", out).splitlines()
    assert lines[0] == "3 pairs, thresholds tuned on 3 others"
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "average"]
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["pair", "word", "pos", "layer", "cosine", "judgement", "first", "second"]
    assert len(rows) == 1 + 3 * 4
    assert rows[-1][:4] == ["3", "河岸", "N", "average"]
    assert rows[-1][5] in "TF"
    assert rows[-1][6:] == ["坐在 [河岸] 上", "那 条 [河岸]"]
    assert re.search(r"wrote \S*x\.tsv", caplog.text)


def test_the_command_prints_similarities_without_gold(wic: Path) -> None:
    data, model = wic / "train.data.txt", wic.parent / "model"
    lines = run(data, "--model", model, "--layers", "1").splitlines()
    assert len(lines) == 4
    assert lines[2].split() == ["1.000", "[river]", "|", "[river]"]
    tune = ("--tune", data, wic / "train.gold.txt")
    assert run(data, "--model", model, *tune).splitlines()[2].split()[:2] == ["1.000", "T"]
    values = json.loads(run(data, wic / "train.gold.txt", "--model", model, *tune, "--json"))
    assert values["judged"][0]["accuracy"] == values["judged"][0]["tuned"]
    assert [row["judgement"] for row in values["pairs"]][1] == "T"
    (wic / "train.gold.txt").unlink()
    assert json.loads(run(wic, "--model", model, "--json"))["judged"] == []


def test_the_command_says_that_labels_are_not_used(wic: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, model = wic.parent / "x.tsv", wic.parent / "model"
    path.write_text("the [[bank]]\ta [[bank]]\tT\nthe [[river]]\ta [[bank]]\tF\n")
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        run(path, "--model", model)
        assert "the labels are not used; to compute the accuracy" in caplog.text
        caplog.clear()
        assert "thresholds tuned on 2 others" in run(path, "--model", model, "--tune", path, path)
    assert "the labels are not used" not in caplog.text


def test_the_command_shows_the_correlation_with_graded_labels(wic: Path) -> None:
    data, model, gold = wic / "train.data.txt", wic.parent / "model", wic / "graded.txt"
    gold.write_text("3.5\n1\n2\n")
    lines = run(data, gold, "--model", model, "--layers", "all", "--respell").splitlines()
    assert lines[0] == "3 pairs with graded labels"
    assert [line.split()[0] for line in lines[1:]] == ["layer", "0", "1", "2", "average"]
    values = json.loads(run(wic, "--part", "dev", "--model", model, "--json"))
    assert "spearman" not in values
    values = json.loads(run(data, gold, "--model", model, "--json"))
    assert -1 <= values["spearman"]["sense"] <= 1
    with pytest.raises(AssertionError, match="--part requires a folder"):
        run(data, "--part", "dev", "--model", model)


def test_the_command_rejects_invalid_arguments(wic: Path) -> None:
    data, gold, model = wic / "train.data.txt", wic / "train.gold.txt", wic.parent / "model"
    with pytest.raises(AssertionError, match="--tune"):
        run(data, gold, "--model", model)
    with pytest.raises(AssertionError, match="found 3"):
        run(data, gold, gold, "--model", model)
    with pytest.raises(OutputError, match=r"\.tsv or \.json"):
        run(data, "--model", model, "--out", wic / "x.doc")
    data.rename(wic / "x.tsv")
    with pytest.raises(OutputError, match="one of the inputs"):
        run(wic / "x.tsv", "--model", model, "--out", wic / "x.tsv")
