from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.errors import ConfigError
from elmo.formats import bilm_hdf5, native
from elmo.formats.pretrained import Pretrained, load
from elmo.predict.evaluate import perplexity as perplexity_of_model
from elmo.text.ids import Vocabulary
from elmo.train.corpus import Corpus
from elmo.train.evaluation import HeldoutPerplexity, evaluate
from elmo.train.initial_weights import has_tied_softmax, model_vocabulary, prepare_weights
from elmo.train.loop import StepReport, Trainer
from elmo.train.options import OptimizerOptions, TrainOptions
from elmo.train.run_folder import export_model
from tests.formats.tiny import assert_same_tensor, tiny_model
from tests.train.small_corpus import build

WORDS = ("the", "<UNK>", "river", "bank", "café", "<S>", "河岸", "has", "</S>", "money", "never-seen")
OPTIONS = TrainOptions(
    n_steps=12,
    batch_size=2,
    window=6,
    n_samples=None,
    log_every=4,
    evaluate_every=6,
    checkpoint_every=6,
    optimizer=OptimizerOptions("adamw", 0.01),
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    chance = random.Random(0)
    words = ["the", "river", "bank", "café", "河岸", "has", "money", *(f"new{i}" for i in range(12))]
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(60)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def make_corpus(text: Path, folder: Path, **options: Any) -> Corpus:
    return build(text, folder / "corpus", input_format="tokens", heldout=12, **options)


def at_step_0(model: Pretrained, corpus: Corpus, folder: Path, **changes: Any) -> tuple[Trainer, HeldoutPerplexity]:
    """A run that starts from the model, and how well it predicts the held-out text before it trains."""
    start = prepare_weights(model, corpus)
    options = replace(OPTIONS, n_vocab=start.n_vocab, **changes)
    trainer = Trainer(corpus, start.config, options, folder / "run", initial=start)
    return trainer, evaluate(trainer.objective, trainer.ids, corpus.heldout, batch_size=1)


def heldout_sentences(corpus: Corpus) -> list[list[str]]:
    words = corpus.types.spellings(corpus.heldout)
    ends = [i for i, word in enumerate(words) if word == "</S>"]
    return [words[a:b] for a, b in zip([0, *(i + 1 for i in ends)], ends, strict=False)]


@pytest.mark.parametrize("token", ["chars", "words"])
@pytest.mark.parametrize("form", [native, bilm_hdf5], ids=["native", "hdf5"])
def test_a_run_that_keeps_the_vocabulary_starts_with_the_perplexity_of_the_model(
    text: Path, tmp_path: Path, form: Any, token: Any
) -> None:
    """For any order of its vocabulary; measured by ``elmo.predict``."""
    form.write(tiny_model(token, softmax=True, words=WORDS), tmp_path / "model")
    model = load(tmp_path / "model")
    corpus = make_corpus(text, tmp_path, vocabulary=model_vocabulary(model))
    _, found = at_step_0(model, corpus, tmp_path)
    expected = perplexity_of_model(model, heldout_sentences(corpus), start="carry", batch_size=1)["carry"]
    assert found.forward == pytest.approx(expected.forward, rel=1e-5)
    assert found.backward == pytest.approx(expected.backward, rel=1e-5)
    assert corpus.n_given == len(WORDS)


def test_a_run_continues_from_a_model_that_is_stored_as_int8(text: Path, tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True, words=WORDS), tmp_path / "int8", dtype="int8")
    native.write(load(tmp_path / "int8"), tmp_path / "float32")
    corpus = make_corpus(text, tmp_path)
    starts = [prepare_weights(load(tmp_path / name), corpus).weights for name in ("int8", "float32")]
    assert starts[0].keys() == starts[1].keys()
    for name, weight in starts[0].items():
        assert_same_tensor(weight, starts[1][name])


@pytest.mark.slow
def test_a_run_starts_exactly_where_the_training_of_its_model_ended(text: Path, tmp_path: Path) -> None:
    corpus = make_corpus(text, tmp_path)
    config = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 8))), None, LstmConfig(2, 12, 8))
    first = Trainer(corpus, config, OPTIONS, tmp_path / "first")
    first.run()
    native.write(export_model(first, tokenizer="whitespace"), tmp_path / "model")
    kept = first.checkpoints.load(first.checkpoints.best() or 0).tensors["weights"]
    second, found = at_step_0(load(tmp_path / "model"), corpus, tmp_path)
    for name, weight in second.objective.state_dict().items():
        assert_same_tensor(weight, kept[name])
    first.objective.load_state_dict(dict(kept))
    assert found == evaluate(first.objective, first.ids, corpus.heldout, batch_size=1)


def test_with_a_new_vocabulary_known_words_keep_their_rows_to_the_bit(text: Path, tmp_path: Path) -> None:
    model = tiny_model("words", softmax=True, words=WORDS)
    corpus = make_corpus(text, tmp_path)
    start = prepare_weights(model, corpus)
    assert start.n_known == 7
    assert start.config.words is not None
    assert start.config.words.n_words == start.n_vocab == len(corpus.types)
    assert model.softmax is not None
    table = model.weights["token_layer.word_embed.weight"]
    new_table = start.weights["bilm.token_layer.word_embed.weight"]
    for i, word in enumerate(corpus.types):
        if word in WORDS:
            row = WORDS.index(word)
            assert_same_tensor(start.weights["softmax.weight"][i], model.softmax.weight[row])
            if word != "<UNK>":  # it shares what it had
                assert_same_tensor(start.weights["softmax.bias"][i], model.softmax.bias[row])
            assert_same_tensor(new_table[i + 1], table[row + 1])
        else:  # read as before: as the unknown word
            assert_same_tensor(new_table[i + 1], table[WORDS.index("<UNK>") + 1])
    assert not new_table[0].any()
    assert_same_tensor(start.weights["bilm.forward_stack.0.bias"], model.weights["forward_stack.0.bias"])


def with_bias_of_unknown(model: Pretrained, bias: float) -> Pretrained:
    """A model that has met unknown words often, or never."""
    assert model.softmax is not None
    assert model.vocab is not None
    model.softmax.bias[model.vocab.id("<UNK>")] = bias
    return model


def test_new_words_share_the_probability_of_the_unknown_word_and_take_none_from_others(
    text: Path, tmp_path: Path
) -> None:
    model = with_bias_of_unknown(tiny_model(softmax=True, words=WORDS), 2.0)
    assert model.softmax is not None
    corpus = make_corpus(text, tmp_path)
    start = prepare_weights(model, corpus)
    states = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    before = torch.log_softmax(states @ model.softmax.weight.T + model.softmax.bias, dim=1)
    after = torch.log_softmax(states @ start.weights["softmax.weight"].T + start.weights["softmax.bias"], dim=1)
    types = list(corpus.types)
    new = [i for i, word in enumerate(types) if word not in WORDS]
    # the model's one word that is not in the text is gone, and what it had is everybody's
    gone = before[:, WORDS.index("never-seen")].exp()
    for i, word in enumerate(types):
        if word in WORDS and word != "<UNK>":
            torch.testing.assert_close(after[:, i], before[:, WORDS.index(word)] - (1 - gone).log())
    unknown = before[:, WORDS.index("<UNK>")] - (1 - gone).log()
    torch.testing.assert_close(after[:, [*new, types.index("<UNK>")]].logsumexp(dim=1), unknown)
    first, second = new[0], new[-1]
    ratio = float(corpus.counts[first] / corpus.counts[second])
    assert float((after[0, first] - after[0, second]).exp()) == pytest.approx(ratio, rel=1e-4)


def test_where_unknown_words_were_never_met_new_ones_begin_like_those_that_are_as_frequent(tmp_path: Path) -> None:
    frequent, rare = ([f"{kind}{i}" for i in range(10)] for kind in "fr")
    text = tmp_path / "text.txt"
    lines = [*(" ".join([*frequent, "often"]) for _ in range(40)), " ".join([*rare, "once"]), "f1 f2"]
    text.write_text("".join(line + "\n" for line in lines))
    corpus = build(text, tmp_path / "corpus", input_format="tokens", heldout=0)
    words = ("<S>", "</S>", "<UNK>", *frequent, *rare)
    model = with_bias_of_unknown(tiny_model(softmax=True, words=words), -9.0)
    start = prepare_weights(model, corpus)
    assert model.softmax is not None
    for name, peers in (("often", frequent), ("once", rare)):
        rows = [words.index(word) for word in peers]
        place = list(corpus.types).index(name)
        torch.testing.assert_close(start.weights["softmax.weight"][place], model.softmax.weight[rows].mean(0))
        torch.testing.assert_close(start.weights["softmax.bias"][place], model.softmax.bias[rows].mean())


def test_a_model_without_a_softmax_starts_with_a_random_one_and_a_warning(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bilm_hdf5.write(tiny_model(), tmp_path / "model")
    model, corpus = load(tmp_path / "model"), make_corpus(text, tmp_path)
    trainer, _ = at_step_0(model, corpus, tmp_path)
    assert "the softmax starts from random weights: this bilm-tf HDF5 model has no softmax" in caplog.text
    fresh = Trainer(corpus, trainer.config, trainer.options, tmp_path / "other")
    for name, weight in trainer.objective.state_dict().items():
        is_fresh = name.startswith("softmax.")
        expected = fresh.objective.state_dict()[name] if is_fresh else model.weights[name.removeprefix("bilm.")]
        assert_same_tensor(weight, expected)
    with pytest.raises(ConfigError, match="has no vocabulary; set new_vocabulary"):
        model_vocabulary(model)


def test_an_adaptive_softmax_starts_at_random(text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = make_corpus(text, tmp_path)
    start = prepare_weights(tiny_model(softmax=True, words=WORDS), corpus, is_adaptive=True)
    assert "an adaptive softmax cannot use the weights of the model" in caplog.text
    options = replace(OPTIONS, n_vocab=start.n_vocab, cutoffs=(8,))
    Trainer(corpus, start.config, options, tmp_path / "run", initial=start)


def test_a_text_without_known_words_gives_a_warning(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(softmax=True, words=("<S>", "</S>", "<UNK>", "другое"))
    assert prepare_weights(model, make_corpus(text, tmp_path)).n_known == 0
    assert "the model does not know any word of this text" in caplog.text


def test_a_unicode_alphabet_is_refused(text: Path, tmp_path: Path) -> None:
    model = tiny_model(alphabet="unicode", name="ELMoForManyLangs")
    with pytest.raises(
        ConfigError, match="cannot train this ELMoForManyLangs model: it has its own character dictionary"
    ):
        prepare_weights(model, make_corpus(text, tmp_path))


@pytest.mark.slow
def test_a_direction_of_zeros_starts_at_random_so_that_it_can_learn(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(softmax=True, words=WORDS)
    for name, weight in model.weights.items():
        if name.startswith("backward_stack."):
            weight.zero_()
    trainer, before = at_step_0(model, make_corpus(text, tmp_path), tmp_path, n_steps=30, evaluate_every=30)
    assert "the model has no backward direction" in caplog.text
    trainer.run()
    after = evaluate(trainer.objective, trainer.ids, trainer.corpus.heldout, batch_size=1)
    assert before.backward is not None
    assert after.backward is not None
    assert after.backward < 0.8 * before.backward


def test_tied_words_stay_tied(text: Path, tmp_path: Path) -> None:
    model = tiny_model("words", softmax=True, words=WORDS)
    assert not has_tied_softmax(model)
    corpus = make_corpus(text, tmp_path)
    with pytest.raises(ConfigError, match="cannot be tied"):
        prepare_weights(model, corpus, is_tied=True)
    assert model.softmax is not None
    tied = replace(model, softmax=replace(model.softmax, weight=model.weights["token_layer.word_embed.weight"][1:]))
    assert has_tied_softmax(tied)
    start = prepare_weights(tied, corpus, is_tied=True)
    options = replace(OPTIONS, n_vocab=start.n_vocab, is_tied=True)
    trainer = Trainer(corpus, start.config, options, tmp_path / "run", initial=start)
    softmax: Any = trainer.objective.softmax
    for i, word in enumerate(corpus.types):
        if word in WORDS:
            assert_same_tensor(
                softmax.word_weights[i], model.weights["token_layer.word_embed.weight"][1:][WORDS.index(word)]
            )


def test_entries_that_no_text_can_hold_are_left_out_of_a_vocabulary(
    caplog: pytest.LogCaptureFixture, text: Path, tmp_path: Path
) -> None:
    words = ("<bos>", "the", "", "a\nb", "bank", "<S>", "the", "<eos>", "\ud800", "<oov>")
    model = tiny_model("words", softmax=True, words=words)
    model = replace(model, vocab=Vocabulary(words, bos="<bos>", eos="<eos>", unknown="<oov>"))
    found = model_vocabulary(model)
    assert found.words == ("<S>", "</S>", "<UNK>", "bank", "the")
    assert "ignoring 5 entries of the model's vocabulary" in caplog.text
    start = prepare_weights(model, make_corpus(text, tmp_path, vocabulary=found))
    assert model.softmax is not None
    rows = [words.index("<bos>"), words.index("<eos>"), words.index("<oov>"), words.index("bank"), 6]
    assert_same_tensor(start.weights["softmax.weight"], model.softmax.weight[rows])


@pytest.mark.slow
def test_a_run_resumes_with_the_same_bytes_and_only_from_its_own_model(text: Path, tmp_path: Path) -> None:
    model, corpus = tiny_model(softmax=True, words=WORDS), make_corpus(text, tmp_path)
    start = prepare_weights(model, corpus)
    options = replace(OPTIONS, n_vocab=start.n_vocab)

    class StoppedError(Exception):
        pass

    def stop(report: StepReport) -> None:
        if report.step >= 8:
            raise StoppedError

    runs = [Trainer(corpus, start.config, options, tmp_path / name, initial=start) for name in ("whole", "cut")]
    runs[0].run()
    with pytest.raises(StoppedError):
        runs[1].run(stop)
    resumed = Trainer(corpus, start.config, options, tmp_path / "cut", initial=start)
    resumed.run()
    for name, weight in runs[0].objective.state_dict().items():
        assert_same_tensor(resumed.objective.state_dict()[name], weight)
    assert runs[0].log.path.read_bytes() == resumed.log.path.read_bytes()

    assert model.softmax is not None
    other = replace(model, softmax=replace(model.softmax, bias=model.softmax.bias + 1))
    for another in (prepare_weights(other, corpus), None):
        with pytest.raises(ConfigError, match="init_from must be the same as before"):
            Trainer(corpus, start.config, options, tmp_path / "cut", initial=another).run()


def test_a_run_of_another_size_is_refused(text: Path, tmp_path: Path) -> None:
    model, corpus = tiny_model(softmax=True, words=WORDS), make_corpus(text, tmp_path)
    start = prepare_weights(model, corpus)
    with pytest.raises(ConfigError, match=r"the run must predict .* words; found 9"):
        Trainer(corpus, start.config, replace(OPTIONS, n_vocab=9), tmp_path / "run", initial=start)
    other = replace(start.config, encoder=replace(start.config.lstm, has_skip=False))
    with pytest.raises(ConfigError, match="the run must have the shape of the prepared weights; found another shape"):
        Trainer(corpus, other, replace(OPTIONS, n_vocab=start.n_vocab), tmp_path / "run", initial=start)


@pytest.mark.parametrize("token", ["chars", "words", "both"])
@pytest.mark.parametrize("widths", [(11, None), (None, 6), (11, 7)], ids=["cells", "width", "both"])
def test_a_grown_model_computes_what_the_model_computes(
    text: Path, tmp_path: Path, token: Any, widths: tuple[int | None, int | None]
) -> None:
    model = tiny_model(token, softmax=True, words=WORDS, cell_width=8)
    old = model.config.lstm
    corpus = make_corpus(text, tmp_path, vocabulary=model_vocabulary(model))
    _, before = at_step_0(model, corpus, tmp_path / "before")
    start = prepare_weights(model, corpus, cell_width=widths[0], state_width=widths[1])
    assert (start.config.lstm.cell_width, start.config.lstm.state_width) == (
        widths[0] or old.cell_width,
        widths[1] or old.state_width,
    )
    options = replace(OPTIONS, n_vocab=start.n_vocab, precision="float64", optimizer=OptimizerOptions("adamw", 0.003))
    trainer = Trainer(corpus, start.config, options, tmp_path / "run", initial=start)
    after = evaluate(trainer.objective, trainer.ids, corpus.heldout, batch_size=1)
    assert after.forward == pytest.approx(before.forward, rel=1e-5)
    assert after.backward == pytest.approx(before.backward, rel=1e-5)
    trainer.run()
    weights = trainer.objective.state_dict()
    for name in ("forward_stack.0.projection", "backward_stack.1.state_weight"):
        weight = weights[f"bilm.{name}"]
        if weight.shape != model.weights[name].shape:  # the new units learn, too
            assert weight[: old.state_width, -1].abs().min() > 0
    assert trainer.best < before.geometric_mean


def test_a_model_cannot_be_shrunk(text: Path, tmp_path: Path) -> None:
    model, corpus = tiny_model(softmax=True, words=WORDS), make_corpus(text, tmp_path)
    with pytest.raises(ConfigError, match="cells and width cannot be smaller than those of the model"):
        prepare_weights(model, corpus, cell_width=model.config.lstm.cell_width - 1)
    with pytest.raises(ConfigError, match="without a projection in its token layer"):
        prepare_weights(model, corpus, state_width=5)  # the number of filters
    with pytest.raises(ConfigError, match="only if width stays below cells"):
        prepare_weights(model, corpus, state_width=model.config.lstm.cell_width)
    with pytest.raises(ConfigError, match="the width of a model with normalized token vectors cannot be changed"):
        prepare_weights(tiny_model(has_norm=True, cell_width=8, softmax=True, words=WORDS), corpus, state_width=6)


@pytest.mark.slow
def test_fine_tuning_learns_a_new_domain_sooner_than_a_fresh_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentences of one grammar; the new domain has other nouns."""
    caplog.set_level(logging.INFO)
    options = replace(
        OPTIONS, n_steps=150, batch_size=8, window=10, evaluate_every=150, checkpoint_every=150, log_every=50
    )
    general = _domain(tmp_path / "general", nouns=[f"noun{i}" for i in range(20)], seed=1)
    config = BiLmConfig(CharCnnConfig(char_width=4, filters=((1, 8), (3, 16))), None, LstmConfig(2, 32, 16))
    first = Trainer(general, config, options, tmp_path / "first")
    first.run()
    model = export_model(first, tokenizer="whitespace")

    special = _domain(tmp_path / "special", nouns=[f"term{i}" for i in range(20)], seed=2)
    start = prepare_weights(model, special)
    assert f"starting from a model that knows 20 of {len(special.types) - 3} words" in caplog.text
    brief = replace(options, n_steps=12, n_vocab=start.n_vocab, evaluate_every=12, checkpoint_every=12)
    tuned = Trainer(special, config, brief, tmp_path / "tuned", initial=start)
    before = evaluate(tuned.objective, tuned.ids, special.heldout)
    tuned.run()
    fresh = Trainer(special, config, brief, tmp_path / "fresh")
    fresh.run()
    assert tuned.best < 0.8 * before.geometric_mean
    assert tuned.best < 0.8 * fresh.best


def _domain(folder: Path, *, nouns: list[str], seed: int) -> Corpus:
    chance = np.random.default_rng(seed)
    verbs, places = [f"verb{i}" for i in range(10)], [f"place{i}" for i in range(8)]
    lines = []
    for _ in range(400):
        one, two = chance.choice(nouns, size=2)
        lines.append(f"the {one} {chance.choice(verbs)} a {two} {chance.choice(places)}")
    folder.mkdir()
    (folder / "text.txt").write_text("".join(line + "\n" for line in lines))
    return build(folder / "text.txt", folder / "corpus", input_format="tokens", heldout=40)
