from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.model.bilm import BiLm
from elmo.model.softmax import Softmax
from elmo.text.ids import ByteAlphabet, TokenIndexer
from elmo.train.corpus import Corpus, TypeIds
from elmo.train.objective import BiLmObjective, StepRandom
from elmo.train.windows import Position, Windows, evaluation_windows
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
WORDS = BiLmConfig(None, WordConfig(N_VOCAB, 4), LstmConfig(1, 6, 4), alphabet=None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    text = folder / "text.txt"
    text.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return build(text, folder / "built", input_format="tokens", heldout=5)


def objective(config: BiLmConfig, **options: float) -> BiLmObjective:
    torch.manual_seed(0)
    bilm, softmax = BiLm.from_config(config), Softmax(n_words=N_VOCAB, width=config.lstm.state_width)
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


def test_dropout_acts_in_training_only(corpus: Corpus) -> None:
    model, ids = objective(CHARS, dropout=0.5), TypeIds(corpus, CHARS, N_VOCAB)
    window = Windows(corpus.train, batch_size=3, window=7, seed=1).at(Position(0, 0))
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
