"""Linear probes, their baselines, files with labels, and the command with its figure."""

from __future__ import annotations

import json
import logging
import lzma
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from elmo.cli import probe as command
from elmo.cli.console import Console
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, ElmoError, EncodingError, OutputError
from elmo.formats import native
from elmo.lexicon import probe as probes
from elmo.lexicon.probe import LabeledSentence, LabeledSentences, MeanScore, ProbeResults, probe_layers, read_labels
from tests.formats.tiny import tiny_model

WORDS = ("the", "river", "bank", "café", "河岸", "xyz", "aa", "b")


def text_of(rows: list[list[tuple[str, str | None]]]) -> LabeledSentences:
    return LabeledSentences.collect(
        LabeledSentence(tuple(word for word, _ in row), tuple(label for _, label in row), f"x:{k}")
        for k, row in enumerate(rows)
    )


def by_neighbor(n: int, *, seed: int) -> LabeledSentences:
    """Label only the word ``bank``, depending on the word after it."""
    chance = random.Random(seed)
    rows = []
    for _ in range(n):
        after = chance.choice(["river", "café"])
        label = "WATER" if after == "river" else "MONEY"
        rows.append([(chance.choice(WORDS), None), ("bank", label), (after, None)])
    return text_of(rows)


def by_word(n: int, *, seed: int, words: tuple[str, ...] = WORDS) -> LabeledSentences:
    """Label each word depending on the word itself."""
    chance = random.Random(seed)
    rows = [[chance.choice(words) for _ in range(5)] for _ in range(n)]
    return text_of([[(word, "LONG" if len(word) > 2 else "短") for word in row] for row in rows])


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    """Train with few steps, which are enough for these tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "MIN_STEPS", 100)
        yield


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(cell_width=16, state_width=12))


@pytest.fixture(scope="module")
def found(elmo: Elmo) -> ProbeResults:
    return probe_layers(elmo, by_neighbor(150, seed=1), by_neighbor(60, seed=2))


@pytest.mark.slow
def test_labels_that_depend_on_context_need_the_upper_layers(found: ProbeResults) -> None:
    token, first, second, mix = found.layers
    assert [layer.layer for layer in found.layers] == ["0", "1", "2", "mix"]
    assert token.accuracy.mean == found.majority.accuracy == found.per_word.accuracy < 0.7
    assert min(first.accuracy.mean, second.accuracy.mean, mix.accuracy.mean) > 0.95
    assert (found.n_train, found.n_dev, found.n_unseen) == (150, 60, 0)


def test_the_mix_learns_to_ignore_the_token_layer(found: ProbeResults) -> None:
    *single, mix = found.layers
    assert len(mix.shares) == 3
    assert sum(mix.shares) == pytest.approx(1.0)
    assert mix.shares[0] == min(mix.shares)
    assert mix.gamma is not None
    assert all(layer.shares == () and layer.gamma is None for layer in single)


def test_selectivity_is_accuracy_minus_control(found: ProbeResults) -> None:
    for layer in found.layers:
        assert layer.selectivity.mean == pytest.approx(layer.accuracy.mean - layer.control.mean)
        assert layer.control.mean == 1.0  # the random label of a single word is memorized


@pytest.mark.slow
def test_the_same_seed_gives_the_same_scores(elmo: Elmo, found: ProbeResults) -> None:
    again = probe_layers(elmo, by_neighbor(150, seed=1), by_neighbor(60, seed=2))
    assert again == found


@pytest.mark.slow
def test_several_seeds_give_mean_and_spread(elmo: Elmo) -> None:
    train, dev = by_word(10, seed=1), by_word(20, seed=2)
    both = probe_layers(elmo, train, dev, n_seeds=2, seed=5)
    alone = [probe_layers(elmo, train, dev, seed=seed) for seed in (5, 6)]
    assert both.n_seeds == 2
    controls = [results.layers[1].control.mean for results in alone]
    assert len(set(controls)) > 1
    assert both.layers[1].control == MeanScore.from_seeds(controls)
    assert MeanScore.from_seeds([0.5, 0.7]).spread == pytest.approx(0.1 * 2**0.5)
    assert MeanScore.from_seeds([0.5]) == MeanScore(0.5, 0.0)


@pytest.mark.slow
def test_labels_that_are_not_in_train_are_errors_and_reported(elmo: Elmo) -> None:
    dev = text_of([[("the", "LONG"), ("aa", "短"), ("river", "NEW")], [("bank", "NEW")]])
    found = probe_layers(elmo, by_word(40, seed=1), dev)
    assert found.unknown_labels == {"NEW": 2}
    assert found.labels == {"NEW": 2, "LONG": 1, "短": 1}
    for layer in found.layers:
        assert layer.accuracy.mean <= 0.5
        assert layer.f1["NEW"].mean == 0.0
    assert found.per_word.accuracy == 0.5


@pytest.mark.slow
def test_words_that_are_not_in_train_are_counted_separately(elmo: Elmo) -> None:
    train = by_word(60, seed=1, words=("the", "river", "aa", "b"))
    dev = by_word(20, seed=2, words=("the", "aa", "bb"))
    found = probe_layers(elmo, train, dev)
    n = Counter(dev.words)["bb"]
    assert found.n_unseen == n
    assert found.per_word.accuracy == pytest.approx(1.0 if found.majority.unseen else 1 - n / len(dev.words))
    assert found.per_word.unseen == found.majority.unseen
    top = found.layers[0]
    assert top.unseen is not None
    n_right = top.accuracy.mean * 100 - top.unseen.mean * n
    assert n_right == pytest.approx(100 - n)  # all known words are right


def test_the_control_task_has_one_label_per_word_from_the_same_distribution() -> None:
    rows = [[(f"w{k}", "A" if k % 4 else "B")] for k in range(4000)]
    task = probes._ProbeTask(text_of(rows), text_of([[("w3", "A"), ("new", "B"), ("w3", "A")]]))
    train, dev = task.control_labels(0)
    assert dev[0] == dev[2] == train[3]
    assert abs(float((train == task.id_of_label["A"]).mean()) - 0.75) < 0.03
    assert not np.array_equal(train, task.control_labels(1)[0])
    assert np.array_equal(train, task.control_labels(0)[0])


def test_f1_combines_precision_and_recall() -> None:
    labels = ["A", "A", "B", "C", "A"]
    task = probes._ProbeTask(text_of([[("w", x) for x in labels]]), text_of([[("w", x) for x in labels]]))
    predicted = np.array([task.id_of_label[x] for x in "ABBAA"])
    # A: precision 2/3, recall 2/3; B: precision 1/2, recall 1; C: never predicted
    assert task.f1(predicted) == {"A": pytest.approx(2 / 3), "B": pytest.approx(2 / 3), "C": 0.0}


def test_classifiers_fitted_together_are_independent() -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, 6, generator=chance).half()
    y = (x[0, :, 0] + x[1, :, 0] > 0).long().numpy()
    settings: dict[str, Any] = {"n_labels": 2, "seed": 3}
    both = probes._fit(x, np.stack([y, 1 - y]), penalties=[1e-2, 0.0], **settings)
    for head, (labels, penalty) in enumerate([(y, 1e-2), (1 - y, 0.0)]):
        one = probes._fit(x, labels[None], penalties=[penalty], **settings)
        torch.testing.assert_close(both.weight[head], one.weight[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(both.mixes[head].shares, one.mixes[0].shares, rtol=1e-3, atol=1e-3)
    assert float(both.weight[0].detach().norm()) < float(both.weight[1].detach().norm())
    assert (both.predict(x)[1] == 1 - y).mean() > 0.85


def test_the_scale_of_the_vectors_does_not_matter(elmo: Elmo) -> None:
    small = tiny_model(cell_width=16, state_width=12)
    weights = {name: w * (1e-6 if "projection" in name else 1.0) for name, w in small.weights.items()}
    assert any("projection" in name for name in weights)
    from dataclasses import replace

    tiny = Elmo(replace(small, weights=weights))
    vectors, scale = probes._embed(tiny, by_word(5, seed=1), "zero")
    assert vectors.dtype == torch.float16
    assert bool((vectors.float().abs().amax(dim=(1, 2)) > 1.0).all())
    assert scale.shape == (3, 1, 1)


def test_rows_and_json_contain_every_score(found: ProbeResults) -> None:
    rows = list(found.rows())
    assert ("majority", "accuracy", "", 60, found.majority.accuracy, 0.0) in rows
    top = found.layers[2]
    assert ("2", "f1", "WATER", found.labels["WATER"], top.f1["WATER"].mean, 0.0) in rows
    assert not any(row[1] == "unseen" for row in rows)
    values = json.loads(json.dumps(found.to_json()))
    assert values["layers"][2]["accuracy"]["mean"] == top.accuracy.mean
    assert values["unknown_labels"] == {}


def test_invalid_data_and_options_are_rejected(elmo: Elmo) -> None:
    good, one = by_word(3, seed=1), text_of([[("a", "X"), ("b", "X")]])
    with pytest.raises(DataError, match="expected 2 to 1,000 different labels, found 1;"):
        probe_layers(elmo, one, good)
    many = text_of([[("a", f"label {k}")] for k in range(1001)])
    with pytest.raises(DataError, match="found 1,001; check the column"):
        probe_layers(elmo, many, good)
    with pytest.raises(DataError, match="dev: expected words with labels, found none"):
        probe_layers(elmo, good, text_of([]))
    with pytest.raises(ConfigError, match="n_seeds"):
        probe_layers(elmo, good, good, n_seeds=0)


# --- Files with labels ------------------------------------------------------------------------------

CONLLU = """\
# text = He doesn't .
1\tHe\the\tPRON\tPRP\tCase=Nom|Number=Sing\t3\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\tNumber=Sing|Tense=Pres\t0\troot\t_\t_
3\tn't\tnot\tPART\t_\t_\t2\tadvmod\t_\tSpaceAfter=No
3.1\tghost\t_\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\t河岸\t_\tNOUN\tNN\tNumber=Plur\t0\troot\t_\t_
"""


@pytest.fixture
def conllu(tmp_path: Path) -> Path:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    return path


def columns(tmp_path: Path, text: str, name: str = "a.tsv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def pairs(text: LabeledSentences) -> list[tuple[str, str]]:
    return list(zip(text.words, text.labels, strict=True))


def test_a_conllu_column_has_a_name_or_number_and_only_words_are_read(conllu: Path) -> None:
    found = read_labels(conllu, "upos")
    assert pairs(found) == [("He", "PRON"), ("does", "AUX"), ("n't", "PART"), (".", "PUNCT"), ("河岸", "NOUN")]
    assert [sentence.place for sentence in found.sentences] == [f"{conllu}:2", f"{conllu}:9"]
    assert read_labels(conllu, 4) == found == read_labels(conllu, "UPOS")
    assert read_labels(conllu, "deprel").labels[0] == "nsubj"


def test_words_without_the_feature_are_counted_and_kept_as_context(conllu: Path) -> None:
    found = read_labels(conllu, "feats:Number")
    assert pairs(found) == [("He", "Sing"), ("does", "Sing"), ("河岸", "Plur")]
    assert (found.n_labels, found.n_unlabeled) == (3, 2)
    assert found.sentences[0].tokens == ("He", "does", "n't", ".")
    assert found.sentences[0].labels == ("Sing", "Sing", None, None)
    only = read_labels(conllu, "feats:Tense")
    assert [sentence.tokens[0] for sentence in only.sentences] == ["He"]  # the other sentence has no label
    assert read_labels(conllu, "xpos").n_unlabeled == 1
    assert read_labels(conllu, "misc:SpaceAfter").labels == ["No"]


def test_conllu_is_detected_by_content_and_may_be_compressed(conllu: Path, tmp_path: Path) -> None:
    packed = tmp_path / "b.txt.xz"
    packed.write_bytes(lzma.compress(CONLLU.encode()))
    assert pairs(read_labels(packed, "upos")) == pairs(read_labels(conllu, "upos"))
    as_columns = read_labels(packed, "4", tokens_column=2, file_format="columns")
    assert ("doesn't", "_") in pairs(as_columns)


def test_columns_are_separated_by_tabs_or_spaces_and_blank_lines_end_sentences(tmp_path: Path) -> None:
    tabs = columns(tmp_path, "\n# a comment\nNew York\tB\n#\tO\n \t \n河岸\tB\n\n\n")
    found = read_labels(tabs, 2)
    assert [sentence.tokens for sentence in found.sentences] == [("New York", "#"), ("河岸",)]
    spaces = columns(tmp_path, "#begin document x\n-DOCSTART- -X- O\n\nEU  NNP B\n# NN O\n\nrejects VB O\r\n")
    assert pairs(read_labels(spaces, 3)) == [("EU", "B"), ("#", "O"), ("rejects", "O")]
    assert read_labels(spaces, 1, tokens_column=2).labels == ["EU", "#", "rejects"]


def test_the_number_of_columns_may_differ_only_between_sentences(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\n\nb\tY\t(V*)\nc\tZ\t*\n")
    assert read_labels(path, 2).labels == ["X", "Y", "Z"]
    columns(tmp_path, "a\tX\n\nb\tY\t(V*)\nc\tZ\n")
    with pytest.raises(DataError, match=r"a\.tsv:4: expected 3 columns separated by tabs, .* found 2"):
        read_labels(path, 2)


def test_a_header_names_the_columns(tmp_path: Path) -> None:
    path = columns(tmp_path, "id\tword\ttag\n1\tthe\tDET\n2\tbank\tNOUN\n")
    assert pairs(read_labels(path, "tag", tokens_column="word")) == [("the", "DET"), ("bank", "NOUN")]
    assert pairs(read_labels(path, 3, tokens_column=2, has_header=True)) == [("the", "DET"), ("bank", "NOUN")]
    with pytest.raises(DataError, match=r"a\.tsv:1: expected a header with 'pos', found id, word, tag"):
        read_labels(path, "pos")


def test_max_tokens_keeps_whole_sentences(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\nb\tY\n\n" * 5)
    found = read_labels(path, 2, max_tokens=5)
    assert (found.n_labels, len(found.sentences), found.is_truncated) == (4, 2, True)
    assert not read_labels(path, 2, max_tokens=10).is_truncated
    assert read_labels(path, 2, max_tokens=1).n_labels == 2  # one sentence at least


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    columns(tmp_path, "a\tX", "1.tsv")
    columns(tmp_path, "b\tY", "2.tsv")
    assert [len(s) for s in read_labels(tmp_path, 2).sentences] == [1, 1]


@pytest.mark.parametrize(
    ("text", "column", "error", "message"),
    [
        ("", 2, DataError, r"a\.tsv: expected labels in column 2, found no words"),
        ("\n \n", 2, DataError, "found no words"),
        ("\n \n", "upos", DataError, r"a\.tsv: expected labels in column upos, found no words"),
        ("a\tX\nb\n", 2, DataError, r"a\.tsv:2: expected 2 columns separated by tabs, .*, found 1"),
        ("a X\n\nb\n", 2, DataError, r"a\.tsv:3: expected 2 columns or more separated by spaces, found 1"),
        ("a\tX\nb\t\n", 2, DataError, r"a\.tsv:2: expected a label in column 2, found nothing"),
        ("\tX\n", 2, DataError, r"a\.tsv:1: expected a word in column 1, found nothing"),
        ("a\tX\n", 3, DataError, r"a\.tsv:1: expected 3 columns or more"),
        ("a\tX\n", 0, ConfigError, "at least 1; found 0"),
        ("a\tX\n", 1, ConfigError, "contains the words"),
        ("w\tt\na\tX\tY\n", "t", DataError, r"a\.tsv:2: expected 2 columns separated by tabs, found 3"),
    ],
)
def test_files_without_labels_are_rejected_with_their_place(
    tmp_path: Path, text: str, column: str | int, error: type[Exception], message: str
) -> None:
    path = columns(tmp_path, text)
    with pytest.raises(error, match=message) as caught:
        read_labels(path, column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("pos", ConfigError, "must be one of id, form, .* found 'pos'"),
        ("upos:Number", ConfigError, "only feats and misc have parts"),
        ("feats:Aspect", DataError, "expected labels in column feats:Aspect, found 5 words without a label"),
        ("11", ConfigError, r"1 to 10"),
    ],
)
def test_unknown_conllu_columns_are_rejected(conllu: Path, column: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_labels(conllu, column)


def test_invalid_conllu_is_rejected_with_its_place(tmp_path: Path) -> None:
    path = columns(tmp_path, "1\tHe\tPRON\n", "b.conllu")
    with pytest.raises(DataError, match=r"b\.conllu:1: expected 10 columns separated by tabs, found 3"):
        read_labels(path, "upos")
    columns(tmp_path, CONLLU.replace("\tPART\t", "\t\t"), "b.conllu")
    with pytest.raises(DataError, match=r"b\.conllu:5: expected a label or _ in column upos, found nothing"):
        read_labels(path, "upos")


def test_invalid_options_and_bytes_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "latin.tsv"
    path.write_bytes(b"caf\xe9\tX\nthe\tY\n")
    with pytest.raises(EncodingError, match=r"latin\.tsv:1"):
        read_labels(path, 2)
    assert read_labels(path, 2, errors="replace").words == ["caf\ufffd", "the"]
    with pytest.raises(ConfigError, match="max_tokens"):
        read_labels(path, 2, max_tokens=0)
    with pytest.raises(ConfigError, match="file_format"):
        read_labels(path, 2, file_format="xml")  # pyright: ignore[reportArgumentType]


def test_a_text_without_sentence_ends_is_rejected(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\n" * 100_001)
    with pytest.raises(DataError, match=r"a\.tsv:1: expected an empty line after at most 100,000 words"):
        read_labels(path, 2)


# --- The command and its figure ---------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder with ``model``, ``train.tsv`` and ``dev.tsv``, one word and label per line."""
    native.write(tiny_model(), tmp_path / "model")
    for name, seed in (("train", 1), ("dev", 2)):
        text = by_word(12, seed=seed)
        rows = ["".join(f"{w}\t{x}\n" for w, x in zip(s.tokens, s.labels, strict=True)) for s in text.sentences]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    """Run the command and return its output; errors are raised."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command.command)
    done = CliRunner().invoke(app, [*arguments, "--model", "model"], obj=Console())
    if isinstance(done.exception, ElmoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_prints_tables_and_writes_scores(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "dev.tsv").write_text("the\tNEW\naa\t短\n", encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        lines = run("train.tsv", "dev.tsv", "--column", "2", "--max-tokens", "30", "--out", "x.tsv").splitlines()
    assert lines[0] == "train     30 words"
    assert [line.split()[0] for line in lines[4:10]] == ["majority", "per", "0", "1", "2", "mix"]
    assert "weights of the mix: 0: " in lines[10]
    assert lines[-1].split()[:2] in (["短", "1"], ["NEW", "1"])
    assert "train.tsv: using only the first 30 labeled words; increase --max-tokens to use more" in caplog.text
    assert "count as errors: NEW 1" in caplog.text
    assert "mix: accuracy " in caplog.text
    rows = [line.split("\t") for line in (here / "x.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["layer", "measure", "label", "n", "mean", "spread"]
    assert ["mix", "f1", "NEW", "1", "0.0", "0.0"] in rows


@pytest.mark.slow
def test_the_command_prints_json_of_all_seeds(here: Path) -> None:
    values = json.loads(run("train.tsv", "dev.tsv", "-c", "2", "--seeds", "2", "--json"))
    assert (values["column"], values["n_seeds"], len(values["layers"])) == ("2", 2, 4)
    assert values["layers"][0]["control"]["spread"] >= 0


def test_the_command_reports_errors_before_the_work(here: Path) -> None:
    with pytest.raises(DataError, match=r"train\.tsv:1: expected 3 columns or more"):
        run("train.tsv", "dev.tsv", "--column", "3")
    with pytest.raises(OutputError, match="one of the inputs"):
        run("train.tsv", "dev.tsv", "--column", "2", "--out", "dev.tsv")
    with pytest.raises(OutputError, match=r"\.png"):
        run("train.tsv", "dev.tsv", "--column", "2", "--picture", "x.doc")


def test_the_figure_shows_labels_layers_and_scores(found: ProbeResults, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    from elmo.plots.words import draw_probing

    for name in "ab":
        with rc_context({"svg.fonttype": "none"}):
            draw_probing(found, tmp_path / f"{name}.svg", column="feats:$x$")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for part in ("feats:$x$: F1 of linear probes", ">layer 0", ">mix", ">1.00<", "WATER", "MONEY"):
        assert part in text, part


@pytest.mark.slow
def test_chinese_labels_are_drawn_or_reported(
    elmo: Elmo, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager

    from elmo.plots import figure
    from elmo.plots.words import draw_probing

    found = probe_layers(elmo, by_word(12, seed=1), by_word(5, seed=2))
    draw_probing(found, tmp_path / "a.png", column="词性")
    has_font = not figure.find_fonts("短词性")[1]
    assert ("numbers instead of these labels" in caplog.text) == (not has_font)
    caplog.clear()
    monkeypatch.setattr(figure, "CJK_FONTS", ())
    monkeypatch.setattr(figure, "_BUNDLED_FILE", font_manager.findfont(figure.LATIN_FONT))
    draw_probing(found, tmp_path / "b.png", column="词性")
    assert "numbers instead of these labels" in caplog.text
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_most_frequent_of_many_labels_are_drawn(found: ProbeResults, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    from matplotlib import rc_context

    from elmo.plots.words import MAX_LABELS, draw_probing

    labels = {f"L{k:03}": 500 - k for k in range(100)}
    layers = tuple(replace(layer, f1=dict.fromkeys(labels, MeanScore(0.5))) for layer in found.layers)
    with rc_context({"svg.fonttype": "none"}):
        draw_probing(replace(found, labels=labels, layers=layers), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert f"the {MAX_LABELS} most frequent labels" in text
    assert f"L{MAX_LABELS - 1:03}" in text
    assert f"L{MAX_LABELS:03}" not in text
