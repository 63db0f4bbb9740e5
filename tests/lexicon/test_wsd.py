"""Training and predicting senses, with a tiny model, a tiny WordNet and sentences about banks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import load_file, save_file

from elmo.cli import wsd as cli
from elmo.cli.console import Console
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, FormatError, OutputError
from elmo.formats import native
from elmo.lexicon.sense_corpora import SenseSentence, read_sense_corpus
from elmo.lexicon.wordnet import WordNet
from elmo.lexicon.wsd import SenseCentroids, WsdOptions, disambiguate, disambiguate_text, rank_senses, train_senses
from tests.embed.sentences import tiny_elmo
from tests.formats.tiny import tiny_model
from tests.lexicon.test_wordnet import write_wordnet

RIVER, MONEY, TIP = "bank%1:17:01::", "bank%1:14:00::", "bank%2:38:00::"
SENTENCES = (
    ("I sat by the bank of the river .", RIVER),
    ("The bank of a river is wet .", RIVER),
    ("The bank lent me money .", MONEY),
    ("My bank failed .", MONEY),
    ("Her bank closed early .", MONEY),
)
ABOUT: dict[str, Any] = {"model": "m", "layers": "top"}


def write_corpus(path: Path) -> Path:
    """Write the sentences as JSON lines of SemCor."""
    lines = []
    for number, (text, key) in enumerate(SENTENCES):
        marked = {"w": "bank", "pos": "NN", "lemma": "bank", "sk": [key]}
        words = [marked if word == "bank" else {"w": word} for word in text.split()]
        lines.append(json.dumps({"doc": "d", "s": str(number), "toks": words}) + "\n")
    path.write_text("".join(lines))
    return path


def write_evaluation(folder: Path) -> None:
    """Write ``dev.xml`` and ``dev.txt``: a trained word, an untrained one, and one that WordNet lacks."""
    instances = (("bank", "NOUN", RIVER), ("river", "NOUN", "river%1:17:00::"), ("elf", "NOUN", "elf%1:18:00::"))
    words = [f'<instance id="t{k}" lemma="{w}" pos="{p}">{w}</instance>' for k, (w, p, _) in enumerate(instances)]
    text = "\n".join(["<corpus><text><sentence>", *words, "</sentence></text></corpus>"])
    (folder / "dev.xml").write_text(text)
    (folder / "dev.txt").write_text("".join(f"t{k} {key}\n" for k, (_, _, key) in enumerate(instances)))


@pytest.fixture
def wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WordNet:
    folder = write_wordnet(tmp_path / "dict")
    monkeypatch.setenv("WNSEARCHDIR", str(folder))
    return WordNet()


@pytest.fixture
def sentences(tmp_path: Path) -> list[SenseSentence]:
    return list(read_sense_corpus(write_corpus(tmp_path / "semcor.jsonl")))


@pytest.fixture
def senses(elmo: Elmo, sentences: list[SenseSentence]) -> SenseCentroids:
    return train_senses(elmo, sentences)


@pytest.mark.slow
def test_a_centroid_is_the_mean_of_its_usages(
    elmo: Elmo, sentences: list[SenseSentence], senses: SenseCentroids
) -> None:
    assert senses.keys == (MONEY, RIVER)
    assert senses.counts.tolist() == [3, 2]
    uses = [elmo.encode(sentence.tokens, layers="top").word("bank") for sentence in sentences]
    expected = np.stack([np.mean(np.stack(uses[2:]), axis=0), np.mean(np.stack(uses[:2]), axis=0)])
    np.testing.assert_allclose(senses.centroids, expected, atol=1e-3)  # vectors are stored in float16
    assert (senses.count(RIVER), senses.count(TIP)) == (2, 0)


def test_a_usage_with_two_senses_counts_for_both() -> None:
    found = SenseCentroids.from_usages([("a%1:01:00::", "b%1:01:00::"), ("b%1:01:00::",)], np.eye(2), **ABOUT)
    assert found.counts.tolist() == [1, 2]
    assert found.centroids.tolist() == [[1, 0], [0.5, 0.5]]
    with pytest.raises(DataError, match="expected words with sense keys, found none"):
        SenseCentroids.from_usages([], np.eye(2), **ABOUT)


def test_the_nearest_centroid_wins_regardless_of_frequency() -> None:
    """Two usages of one sense are at (1, 0), one of another is at (0, 1), and a third sense has none."""
    a, b, c = (f"x%1:0{k}:00::" for k in range(3))
    found = SenseCentroids.from_usages([(a,), (a,), (b,)], np.array([[1, 0], [1, 0], [0, 2.0]]), **ABOUT)
    ranked = rank_senses(found, np.array([1, 1.1]), (c, a, b), method="centroid")
    assert [sense.key for sense in ranked] == [b, a, c]
    assert ranked[0].score == pytest.approx(1.1 / np.hypot(1, 1.1))
    assert ranked[2].score is None
    assert [sense.n_usages for sense in ranked] == [1, 2, 0]


def test_frequency_decides_between_equally_near_senses() -> None:
    a, b = "x%1:01:00::", "x%1:02:00::"
    found = SenseCentroids.from_usages([(a,)] * 9 + [(b,)], np.array([[1, 0]] * 9 + [[0, 1.0]]), **ABOUT)
    for method in ("prior", "knn"):
        near, far = (
            rank_senses(found, np.array(v), (b, a), method=method, options=WsdOptions(rank_votes=0.5))
            for v in ([1, 1.1], [0, 1])
        )
        assert near[0].key == a, method
        assert far[0].key == b, method


def test_only_the_nearest_usages_vote() -> None:
    a, b = "x%1:01:00::", "x%1:02:00::"
    found = SenseCentroids.from_usages([(a,)] * 9 + [(b,)], np.array([[1, 1.0]] * 9 + [[0, 1.0]]), **ABOUT)
    vectors = np.array([[0, 1.0]])
    one = found.scores(vectors, (a, b), options=WsdOptions(n_neighbors=1, rank_votes=0))
    assert one.tolist() == [[0, 1]]
    wide = found.scores(vectors, (a, b), options=WsdOptions(temperature=100, rank_votes=0))
    np.testing.assert_allclose(wide, [[0.9, 0.1]], atol=0.01)
    ranked = found.scores(vectors, (a, b), options=WsdOptions(n_neighbors=1, rank_votes=2))
    np.testing.assert_allclose(ranked, [[2 / 4, 2 / 4]])  # 2 votes for the first, 1 + 1 for the second


def test_a_word_without_usages_gets_the_first_sense(elmo: Elmo, wordnet: WordNet, senses: SenseCentroids) -> None:
    write_evaluation(wordnet.folder)
    data = read_sense_corpus(wordnet.folder / "dev.xml", gold=wordnet.folder / "dev.txt")
    bank, river, elf = disambiguate(elmo, data, senses, wordnet=wordnet)
    assert {sense.key for sense in bank.senses} == {RIVER, MONEY}  # no verb
    assert not bank.is_back_off
    assert (river.key, river.is_back_off) == ("river%1:17:00::", True)
    assert (elf.key, elf.senses) == (None, ())


def test_marked_words_of_a_text_are_ranked(elmo: Elmo, wordnet: WordNet, senses: SenseCentroids) -> None:
    text = "I sat by the [[bank]] of the river ."
    (seen,) = disambiguate_text(elmo, text, senses, wordnet=wordnet, method="centroid")
    assert [sense.key for sense in seen.senses][:1] == [RIVER]  # its centroid has this sentence
    assert {sense.key for sense in seen.senses} == {RIVER, MONEY, TIP}
    (verb,) = disambiguate_text(elmo, "It [[banked]] .", senses, wordnet=wordnet, pos="verb")
    assert (verb.key, verb.usage.word) == (TIP, "banked")
    first, second = disambiguate_text(elmo, "[[geese]] [[took place]]", senses, wordnet=wordnet)
    assert (first.key, second.key) == ("goose%1:05:00::", "take_place%2:30:00::")
    with pytest.raises(DataError, match="WordNet has no verb 'river'; mark another word"):
        disambiguate_text(elmo, "the [[river]]", senses, wordnet=wordnet, pos="verb")


def test_saved_senses_are_loaded_unchanged(tmp_path: Path, senses: SenseCentroids) -> None:
    senses.save(tmp_path / "s.safetensors")
    found = SenseCentroids.load(tmp_path / "s.safetensors")
    assert (found.keys, found.model, found.layers, found.start) == (senses.keys, senses.model, "top", "zero")
    assert found.counts.tolist() == [3, 2]
    np.testing.assert_allclose(found.centroids, senses.centroids, atol=1e-3)
    assert found.uses is not None
    np.testing.assert_array_equal(found.uses, senses.uses)
    assert [path.name for path in tmp_path.glob("*safetensors*")] == ["s.safetensors"]


def test_equal_senses_give_equal_files(tmp_path: Path, senses: SenseCentroids) -> None:
    files = set()
    for _ in range(5):
        senses.save(tmp_path / "s.safetensors")
        files.add((tmp_path / "s.safetensors").read_bytes())
    assert len(files) == 1


def test_a_compact_file_has_no_vectors_of_usages(tmp_path: Path, senses: SenseCentroids) -> None:
    senses.compact().save(tmp_path / "s.safetensors")
    found = SenseCentroids.load(tmp_path / "s.safetensors")
    assert found.uses is None
    assert found.scores(senses.centroids, [RIVER], method="prior").shape == (2, 1)
    with pytest.raises(ConfigError, match=r"cannot use knn: these senses are compact"):
        found.scores(senses.centroids, [RIVER])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("counts", np.array([3, 0], np.int32), r"uses: expected \(3, 8\), found \(5, 8\)"),
        ("counts", np.array([4, 1], np.int64), "counts: expected int32, found int64"),
        ("counts", np.array([5], np.int32), r"counts: expected \(2,\), found \(1,\)"),
        ("keys", np.frombuffer(b"b\na", np.uint8), "keys: expected sorted sense keys"),
        ("centroids", np.full((2, 8), np.nan, np.float16), "counts must be at least 1 and vectors must be finite"),
        ("centroids", np.zeros((), np.float16), "centroids: expected"),
        ("centroids", None, "centroids is missing"),
    ],
)
def test_a_file_with_inconsistent_tensors_is_rejected(
    tmp_path: Path, senses: SenseCentroids, name: str, value: Any, problem: str
) -> None:
    path = tmp_path / "s.safetensors"
    senses.save(path)
    tensors = load_file(path)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    save_file(tensors, path, metadata={"format": "elmo-senses", "version": "1", "layers": "top"})
    with pytest.raises(FormatError, match=rf"s\.safetensors: .*{problem}"):
        SenseCentroids.load(path)


def test_other_files_are_rejected(tmp_path: Path, senses: SenseCentroids) -> None:
    path = tmp_path / "s.safetensors"
    save_file({"a": np.zeros(1)}, path)
    with pytest.raises(FormatError, match="expected senses from elmo wsd --train, found"):
        SenseCentroids.load(path)
    senses.save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FormatError, match=r"s\.safetensors as a file of senses: "):
        SenseCentroids.load(path)
    with pytest.raises(FormatError, match=r"cannot open .*none\.safetensors"):
        SenseCentroids.load(tmp_path / "none.safetensors")


def test_another_model_is_rejected(wordnet: WordNet, senses: SenseCentroids) -> None:
    other = tiny_elmo(seed=5)
    with pytest.raises(ConfigError, match=r"trained with the model .* but this model is"):
        disambiguate_text(other, "a [[bank]]", senses, wordnet=wordnet)


def test_another_warm_state_is_rejected_only_if_it_is_used(elmo: Elmo, sentences: list[SenseSentence]) -> None:
    cold, warm = train_senses(elmo, sentences), train_senses(elmo, sentences, start="warm", layers=1)
    assert not np.allclose(cold.centroids, warm.centroids)
    without = tiny_elmo()
    cold.check_model(without)
    with pytest.raises(ConfigError, match="trained with the model"):
        warm.check_model(without)
    assert (warm.layers, warm.layer_choice) == ("1", 1)


def test_progress_counts_sentences_and_tokens(elmo: Elmo, sentences: list[SenseSentence]) -> None:
    progress: list[tuple[int, int]] = []
    train_senses(elmo, sentences, on_progress=lambda *done: progress.append(done))
    assert progress == [(5, sum(len(sentence.tokens) for sentence in sentences))]


def test_a_corpus_is_read_once_for_all_layers(elmo: Elmo, sentences: list[SenseSentence]) -> None:
    every = train_senses(elmo, iter(sentences), layers="all")
    for layers in (0, 1, 2, "top", "average", "concat"):
        alone = train_senses(elmo, sentences, layers=layers)  # pyright: ignore[reportArgumentType]
        chosen = every.select(layers, n_layers=elmo.n_layers)  # pyright: ignore[reportArgumentType]
        assert (chosen.layers, chosen.keys, chosen.model) == (str(layers), alone.keys, alone.model)
        np.testing.assert_allclose(chosen.centroids, alone.centroids, atol=1e-3)
        assert alone.uses is not None
        assert chosen.uses is not None
        np.testing.assert_allclose(chosen.uses, alone.uses, atol=1e-3)
    assert every.compact().select(1, n_layers=elmo.n_layers).uses is None
    for layers in ("sense", 3):
        with pytest.raises(ConfigError, match=r"layers of senses must be average, top, concat or 0\.\.2"):
            every.select(layers, n_layers=elmo.n_layers)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="were trained with layers='1', not 'all'"):
        every.select(1, n_layers=elmo.n_layers).select(1, n_layers=elmo.n_layers)
    with pytest.raises(ConfigError, match="into 5 layers"):
        every.select(1, n_layers=5)


def test_a_layer_must_be_chosen_before_senses_are_used(
    elmo: Elmo, wordnet: WordNet, sentences: list[SenseSentence]
) -> None:
    every = train_senses(elmo, sentences, layers="all")
    with pytest.raises(ConfigError, match="these senses have all layers; choose one"):
        disambiguate_text(elmo, "a [[bank]]", every, wordnet=wordnet)


# --- The command ------------------------------------------------------------------------------------


@pytest.fixture
def here(wordnet: WordNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    write_corpus(tmp_path / "semcor.jsonl")
    write_evaluation(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> None:
    """Run the command; errors are raised."""
    app = typer.Typer()
    app.command()(cli.command)
    app(list(arguments), standalone_mode=False, obj=Console())


def test_scores_and_predictions_are_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--train", "semcor.jsonl", "--model", "model", "--out", "s.safetensors", "--compact", "--layers", "1")
    options = ("--senses", "s.safetensors", "--model", "model", "--method", "first")
    run("--evaluate", "dev.xml", "--gold", "dev.txt", *options, "--json", "--out", "answers.txt")
    scores = json.loads(capsys.readouterr().out)
    assert (scores["all"]["precision"], scores["all"]["recall"]) == (1.0, pytest.approx(2 / 3))
    assert (here / "answers.txt").read_text() == f"t0 {RIVER}\nt1 river%1:17:00::\n"
    run("by the [[bank]]", *options, "--json")
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["senses"][0] == {
        "key": RIVER,
        "score": pytest.approx(6 / 11),
        "uses": 2,
        "gloss": "sloping land beside water",
    }
    assert (answer["span"], answer["is_back_off"]) == ([2, 3], False)


def test_tables_show_senses_and_scores(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--train", "semcor.jsonl", "--model", "model", "--out", "s.safetensors")
    options = ("--senses", "s.safetensors", "--model", "model")
    run("the [[bank]] lent money", *options)
    run("--evaluate", "dev.xml", "--gold", "dev.txt", *options)
    out = capsys.readouterr().out
    assert "the [bank] lent money" in out
    assert "sloping land beside water" in out
    assert "all            3         2" in out


def test_all_layers_are_trained_once_and_evaluated_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--train", "semcor.jsonl", "--model", "model", "--out", "s.safetensors", "--layers", "all")
    options = ("--senses", "s.safetensors", "--model", "model", "--method", "centroid")
    evaluate = ("--evaluate", "dev.xml", "--gold", "dev.txt", *options)
    run(*evaluate, "--layers", "all", "--json")
    scores = json.loads(capsys.readouterr().out)
    assert list(scores) == ["0", "1", "2", "average", "concat"]
    run(*evaluate, "--layers", "1", "--json")
    assert json.loads(capsys.readouterr().out) == scores["1"]
    run("the [[bank]] lent money", *options)  # the top layer
    run(*evaluate, "--layers", "all")
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "concat"
    with pytest.raises(typer.BadParameter, match="--out requires one layer"):
        run(*evaluate, "--layers", "all", "--out", "answers.txt")
    run("--train", "semcor.jsonl", "--model", "model", "--out", "one.safetensors", "--layers", "0")
    with pytest.raises(ConfigError, match="these senses were trained with --layers 0; train others with --layers all"):
        run("the [[bank]]", "--senses", "one.safetensors", "--model", "model", "--layers", "1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "expected one of TEXT, --train and --evaluate, found none"),
        (("a [[b]]", "--train", "semcor.jsonl"), "found --train and TEXT"),
        (("--train", "semcor.jsonl"), "--train requires --out"),
        (("a [[b]]",), "--senses FILE is required"),
        (("a [[b]]", "--senses", "s", "--gold", "g"), "--gold and --out require --train or --evaluate"),
        (("--train", "semcor.jsonl", "--out", "s", "--layers", "none"), "expected sense, average"),
    ],
)
def test_conflicting_options_are_rejected(here: Path, arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Exception, match=problem) as caught:
        run(*arguments)
    assert isinstance(caught.value, typer.BadParameter)


def test_missing_files_are_reported_before_a_model_is_loaded(here: Path) -> None:
    with pytest.raises(DataError, match=r"semcor\.json: no such file"):
        run("--train", "semcor.json", "--model", "no model", "--out", "s.safetensors")
    with pytest.raises(OutputError, match=r"cannot write .*semcor\.jsonl/s: .*semcor\.jsonl is a file"):
        run("--train", "semcor.jsonl", "--model", "no model", "--out", "semcor.jsonl/s")
