from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, TransformerConfig, WordConfig
from elmo.model.bilm import BiLm
from elmo.model.softmax import Softmax
from elmo.text.ids import ByteAlphabet, TokenIndexer
from elmo.train.corpus import BOS, EOS, Corpus, TypeIds
from elmo.train.objective import BiLmObjective, StepRandom
from elmo.train.windows import Position, Windows, evaluation_windows, sentence_windows
from tests.train.small_corpus import build

N_VOCAB = 12
LINES = [
    "the bank of the river",
    "the bank has the money",
    "café 河岸 <S> 😀",
    "a very-long-word-that-goes-on-for-more-than-forty-eight-bytes-and-then-some",
    "the river has a bank",
] * 20
CHARS = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 5))), None, LstmConfig(2, 6, 4, 0.9, 0.5))
TRANSFORMER = BiLmConfig(CHARS.chars, None, TransformerConfig(2, 4, n_heads=2, feed_forward_width=6))
WORDS = BiLmConfig(None, WordConfig(N_VOCAB, 4), LstmConfig(1, 6, 4), alphabet=None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    text.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return build(text, folder / "built", input_format="tokens", heldout=5)


def objective(config: BiLmConfig, **options: float) -> BiLmObjective:
    torch.manual_seed(0)
    bilm, softmax = BiLm.from_config(config), Softmax(n_words=N_VOCAB, width=config.encoder.state_width)
    return BiLmObjective(bilm, softmax, **options).double()  # pyright: ignore[reportArgumentType]


def test_type_ids_are_those_of_the_alphabet(corpus: Corpus) -> None:
    ids = np.arange(len(corpus.types))
    char_ids, word_ids = TypeIds(corpus, CHARS, N_VOCAB).inputs(ids)
    indexer = TokenIndexer(ByteAlphabet(), None)
    assert char_ids is not None
    assert word_ids is None
    np.testing.assert_array_equal(char_ids[:2], indexer.boundaries().char_ids)
    np.testing.assert_array_equal(char_ids[2:], indexer.words(corpus.types[2:]).char_ids)


@pytest.mark.parametrize("config", [CHARS, WORDS], ids=["characters", "words"])
def test_losses_are_those_of_the_reference_network(corpus: Corpus, config: BiLmConfig) -> None:
    model, ids = objective(config).eval(), TypeIds(corpus, config, N_VOCAB)
    window = Windows(corpus.train, batch_size=3, window=7, seed=1).at(Position(0, 2))
    start = model.bilm.zero_state(3)
    found = model(window, ids, start)
    each = model.token_losses(window, ids, start)
    for direction, half, loss, losses in (
        (window.forward, 0, found.forward, each.forward),
        (window.backward, 1, found.backward, each.backward),
    ):
        char_ids, word_ids = ids.inputs(direction.inputs.flatten())
        shaped = [None if x is None else x.view(3, 7, *x.shape[1:]) for x in (char_ids, word_ids)]
        # the window is in reading order already, so each stack of the reference is read by itself
        tokens = model.bilm.token_layer(*shaped)
        stack = (model.bilm.forward_stack, model.bilm.backward_stack)[half]
        mask = torch.ones(3, 7, dtype=torch.bool)
        inputs = tokens
        for index, lstm in enumerate(stack):
            output, _ = lstm(inputs, mask, start.at(half, index))
            inputs = output + inputs if model.bilm.has_skip and index > 0 else output
        logits = inputs @ model.get_parameter("softmax.weight").T + model.softmax.bias
        targets = ids.targets(direction.targets)
        assert losses is not None
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        torch.testing.assert_close(losses.flatten(), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(loss, expected.mean(), rtol=0, atol=1e-10)


def test_losses_of_a_transformer_are_those_of_the_whole_network_for_each_sentence(corpus: Corpus) -> None:
    """Windows of whole sentences compute the loss of each token as ``BiLm.forward`` and the softmax do."""
    model, ids = objective(TRANSFORMER).eval(), TypeIds(corpus, TRANSFORMER, N_VOCAB)
    n_sentences = 0
    for window in sentence_windows(corpus.heldout, max_tokens=20):
        losses = model.token_losses(window, ids, model.bilm.zero_state(len(window.forward.inputs)))
        assert window.mask is not None
        for row, mask in enumerate(window.mask):
            sentence = np.concatenate([[BOS], window.forward.targets[row, mask]])
            char_ids, _ = ids.inputs(sentence)
            assert char_ids is not None
            top = model.bilm(char_ids[None]).layers.states[0, -1]
            forward, backward = top[:-1].chunk(2, dim=1)[0], top[1:].chunk(2, dim=1)[1]
            for states, targets, found in (
                (forward, sentence[1:], losses.forward),
                (backward, sentence[:-1], losses.backward),
            ):
                logits = states @ model.get_parameter("softmax.weight").T + model.softmax.bias
                expected = torch.nn.functional.cross_entropy(logits, ids.targets(targets), reduction="none")
                assert found is not None
                own = found[row][torch.from_numpy(mask)]
                own = own if found is losses.forward else own.flip(0)
                torch.testing.assert_close(own, expected, rtol=0, atol=1e-10)
            n_sentences += 1
    assert n_sentences == 5


def test_a_window_of_a_transformer_reads_complete_sentences_as_the_whole_network_does(corpus: Corpus) -> None:
    model, ids = objective(TRANSFORMER).eval(), TypeIds(corpus, TRANSFORMER, N_VOCAB)
    zero = model.bilm.zero_state(2)
    windows = Windows(corpus.train, batch_size=2, window=40, seed=1, has_positions=True)
    long = model.token_losses(windows.at(Position(0, 0)), ids, zero)
    window = windows.at(Position(0, 0))
    targets = window.forward.targets[0]
    end = int(np.flatnonzero(targets == EOS)[0]) + 1  # the first sentence is complete, because the row starts with it
    (whole,) = sentence_windows(targets[:end].astype(np.uint32), max_tokens=end)
    alone = model.token_losses(whole, ids, model.bilm.zero_state(1))
    for found, expected in ((long.forward, alone.forward), (long.backward, alone.backward)):
        assert found is not None
        assert expected is not None
        torch.testing.assert_close(found[0, :end], expected[0], rtol=0, atol=1e-10)


def test_a_transformer_without_positions_is_refused(corpus: Corpus) -> None:
    model, ids = objective(TRANSFORMER), TypeIds(corpus, TRANSFORMER, N_VOCAB)
    window = Windows(corpus.train, batch_size=3, window=7, seed=1).at(Position(0, 0))
    with pytest.raises(TypeError, match="pass has_positions=True to Windows"):
        model.eval()(window, ids, model.bilm.zero_state(3))


@pytest.mark.parametrize("config", [CHARS, TRANSFORMER], ids=["LSTM", "transformer"])
def test_dropout_acts_in_training_only(corpus: Corpus, config: BiLmConfig) -> None:
    model, ids = objective(config, dropout=0.5), TypeIds(corpus, config, N_VOCAB)
    window = Windows(corpus.train, batch_size=3, window=7, seed=1, has_positions=True).at(Position(0, 0))
    start = model.bilm.zero_state(3)
    first, second = (model.train()(window, ids, start, random=StepRandom(0, step)).mean for step in (0, 1))
    assert first != second
    assert first == model(window, ids, start, random=StepRandom(0, 0)).mean
    assert model.eval()(window, ids, start).mean == model(window, ids, start).mean


@pytest.mark.slow
def test_a_tiny_model_overfits_a_text_of_100_sentences(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    sentences = [" ".join(chance.choice(words, size=chance.integers(3, 9))) for _ in range(105)]
    text = tmp_path / "text.txt"
    text.write_text("".join(line + "\n" for line in sentences))
    corpus = build(text, tmp_path / "corpus", input_format="tokens", heldout=5)
    config = BiLmConfig(CharCnnConfig(char_width=8, filters=((1, 16), (2, 32))), None, LstmConfig(2, 96, 48))
    torch.manual_seed(0)
    softmax = Softmax(n_words=len(corpus.types), width=48)
    model = BiLmObjective(BiLm.from_config(config), softmax, dropout=0.0)
    ids = TypeIds(corpus, config, len(corpus.types))
    windows = Windows(corpus.train, batch_size=4, window=20, seed=None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    state = model.bilm.zero_state(4)
    for window in windows.read():
        losses = model(window, ids, state)
        state = losses.state
        optimizer.zero_grad()
        losses.mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if window.position.epoch == 50:
            break
    total, count, state = 0.0, 0, model.bilm.zero_state(4)
    for window in evaluation_windows(corpus.train, batch_size=4, window=20):
        each = model.token_losses(window, ids, state)
        state = each.state
        mask = torch.from_numpy(window.mask)
        assert each.forward is not None
        assert each.backward is not None
        total += float((each.forward + each.backward)[mask].sum())
        count += 2 * int(mask.sum())
    perplexity = np.exp(total / count)
    assert perplexity < 1.3
