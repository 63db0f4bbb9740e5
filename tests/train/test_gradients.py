from __future__ import annotations

import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, TransformerConfig, WordConfig
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from elmo.train.corpus import Corpus, TypeIds
from elmo.train.gradients import Gradients
from elmo.train.objective import BiLmObjective, StepRandom
from elmo.train.options import Directions, DropoutOptions
from elmo.train.windows import Position, Window, Windows
from tests.train.small_corpus import build

N_VOCAB, N_ROWS, N_STEPS = 30, 32, 5
LSTM = LstmConfig(2, 6, 4, 0.9, 0.5)
CHARS = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 5))), None, LSTM)
TRANSFORMER = BiLmConfig(CHARS.chars, None, TransformerConfig(2, 4, n_heads=2, feed_forward_width=6))
WORDS = BiLmConfig(None, WordConfig(N_VOCAB, 4), LSTM, alphabet=None)
NOTHING = DropoutOptions(0.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [f"w{i % 41} w{i % 7} w{i % 13} the bank" for i in range(200)]
    (folder / "text.txt").write_text("".join(line + "\n" for line in lines))
    return build(folder / "text.txt", folder / "built", input_format="tokens", heldout=5)


def make(config: BiLmConfig, softmax: str, directions: Directions, dropout: DropoutOptions) -> BiLmObjective:
    torch.manual_seed(0)
    bilm = BiLm.from_config(config)
    if softmax == "adaptive":
        return BiLmObjective(
            bilm,
            AdaptiveSoftmax(n_words=N_VOCAB, width=4, cutoffs=[10], narrowing=2.0),
            dropout=dropout,
            directions=directions,
        ).double()
    table = bilm.token_layer.word_embed if softmax.startswith("tied") else None
    made = Softmax(n_words=N_VOCAB, width=4, tied_to=table)
    return BiLmObjective(bilm, made, dropout=dropout, directions=directions, has_sparse_gradients=True).double()


def reading(corpus: Corpus, model: BiLmObjective, softmax: str) -> tuple[Window, BiLmState, tuple[Samples, ...] | None]:
    window = Windows(corpus.train, batch_size=N_ROWS, window=N_STEPS, seed=1, has_positions=True).at(Position(0, 2))
    zero = model.bilm.zero_state(N_ROWS)
    chance = torch.Generator().manual_seed(5)
    state = BiLmState(*(torch.randn(x.shape, generator=chance).to(x) / 3 for x in (zero.hidden, zero.cell)))
    if not softmax.endswith("sampled"):
        return window, state, None
    sampler = LogUniformSampler(N_VOCAB, 12)
    return window, state, tuple(sampler.draw(chance) for _ in model.directions)


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("directions", ["both", "forward", "backward"])
@pytest.mark.parametrize(
    ("config", "softmax"),
    [
        (CHARS, "full"),
        (CHARS, "sampled"),
        (TRANSFORMER, "sampled"),
        (WORDS, "tied full"),
        (WORDS, "tied sampled"),
        (WORDS, "adaptive"),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else f"{value.encoder_name}, {'characters' if value.chars else 'words'}"
    ),
)
def test_pieces_side_by_side_give_the_gradients_of_the_whole(
    corpus: Corpus, config: BiLmConfig, softmax: str, directions: Directions, n_threads: int
) -> None:
    model, ids = make(config, softmax, directions, NOTHING), TypeIds(corpus, config, N_VOCAB)
    window, state, samples = reading(corpus, model, softmax)
    losses = model(window, ids, state, samples=samples)
    (7 * losses.mean).backward()
    expected = {
        name: weight.grad.to_dense() if weight.grad is not None else None for name, weight in model.named_parameters()
    }

    other = make(config, softmax, directions, NOTHING)
    gradients = Gradients(other, n_threads=n_threads)
    gradients.add_window(window, ids, state, samples=samples, random=StepRandom(0, 0))
    gradients.clear()  # what a window left behind does not show in the next
    found = gradients.add_window(window, ids, state, samples=samples, random=StepRandom(0, 0), scale=7)
    gradients.close()
    torch.testing.assert_close(found.mean, losses.mean, rtol=0, atol=1e-12)
    for name in ("hidden", "cell"):
        torch.testing.assert_close(getattr(found.state, name), getattr(losses.state, name), rtol=0, atol=1e-12)
    for name, weight in other.named_parameters():
        if expected[name] is None:
            assert weight.grad is None, name  # the direction that is not trained
        else:
            torch.testing.assert_close(weight.grad, expected[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("rows", [slice(0, 16), slice(0, 32)], ids=["one piece", "the whole window"])
def test_a_piece_without_rare_targets_leaves_that_part_of_an_adaptive_softmax_alone(
    corpus: Corpus, rows: slice
) -> None:
    model, other = (make(WORDS, "adaptive", "both", NOTHING) for _ in range(2))
    ids = TypeIds(corpus, WORDS, N_VOCAB)
    window, state, _ = reading(corpus, model, "adaptive")
    for direction in (window.forward, window.backward):
        direction.targets[rows] %= 10  # what is rare begins there
        assert (direction.targets >= 10).any() == (rows.stop < N_ROWS)
    losses = model(window, ids, state)
    losses.mean.backward()
    gradients = Gradients(other, n_threads=4)  # two pieces of each direction
    found = gradients.add_window(window, ids, state, samples=None, random=StepRandom(0, 0))
    gradients.close()
    torch.testing.assert_close(found.mean, losses.mean, rtol=0, atol=1e-12)
    for (name, weight), expected in zip(other.named_parameters(), model.parameters(), strict=True):
        assert weight.grad is not None, name
        if expected.grad is None:  # as it is where no target at all is rare
            assert rows.stop == N_ROWS, name
            assert not weight.grad.any(), name
        else:
            torch.testing.assert_close(weight.grad, expected.grad, rtol=0, atol=1e-12, msg=name)
    of_rare = other.get_parameter("softmax.parts.tail.0.1.weight").grad
    assert of_rare is not None
    assert of_rare.any() == (rows.stop < N_ROWS)


def test_rows_in_turns_give_the_gradients_of_the_whole(corpus: Corpus) -> None:
    found = []
    for turns in ([slice(0, 32)], [slice(0, 10), slice(10, 32)]):
        model, ids = make(CHARS, "sampled", "both", NOTHING), TypeIds(corpus, CHARS, N_VOCAB)
        window, state, samples = reading(corpus, model, "sampled")
        gradients = Gradients(model, n_threads=1)
        gradients.clear()
        for rows in turns:
            part = BiLmState(state.hidden[:, :, rows], state.cell[:, :, rows])
            share = (rows.stop - rows.start) / 32
            gradients.add_window(
                window.select_rows(rows), ids, part, samples=samples, random=StepRandom(0, 0), scale=share
            )
        found.append([weight.grad for weight in model.parameters()])
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "dropout",
    [
        DropoutOptions(0.4),
        DropoutOptions(0.4, is_variational=True),
        DropoutOptions(0.0, words=0.4),
        DropoutOptions(0.0, weights=0.4),
        DropoutOptions(0.0, inputs=0.4),
        DropoutOptions(0.0, outputs=0.4),
    ],
    ids=["layers", "variational", "words", "weights", "inputs", "outputs"],
)
def test_what_is_dropped_follows_from_seed_and_step_alone(corpus: Corpus, dropout: DropoutOptions) -> None:
    found = []
    for n_threads, seed, step in ((2, 3, 7), (2, 3, 7), (2, 3, 8), (2, 4, 7), (1, 3, 7)):
        model, ids = make(CHARS, "full", "both", dropout).train(), TypeIds(corpus, CHARS, N_VOCAB)
        window, state, _ = reading(corpus, model, "full")
        torch.manual_seed(len(found))  # torch's own generator has no say
        gradients = Gradients(model, n_threads=n_threads)
        losses = gradients.add_window(window, ids, state, samples=None, random=StepRandom(seed, step))
        gradients.close()
        gradient = model.get_parameter("bilm.forward_stack.0.state_weight").grad
        assert gradient is not None
        found.append((float(losses.mean), gradient.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert len({loss for loss, _ in found}) >= 3
    # two threads, one for each direction, drop what one thread drops
    assert found[4][0] == pytest.approx(found[0][0], abs=1e-12)


def test_variational_dropout_takes_the_same_numbers_from_all_tokens_of_a_row() -> None:
    x = torch.ones(3, 7, 50)
    chance = torch.Generator().manual_seed(0)
    each = make(CHARS, "full", "both", DropoutOptions(0.5))._drop_vectors(x, 0.5, chance)
    variational = make(CHARS, "full", "both", DropoutOptions(0.5, is_variational=True))
    rows = variational._drop_vectors(x, 0.5, chance)
    assert not torch.equal(each[:, 0], each[:, 1])
    assert (rows == rows[:, :1]).all()
    assert not torch.equal(rows[0], rows[1])
    assert set(rows.unique().tolist()) == {0.0, 2.0}
    model = make(CHARS, "full", "both", DropoutOptions(0.0, words=0.5)).train()
    words = model.drop_words(torch.ones(40, 6), StepRandom(0, 0))
    assert set(words.sum(dim=1).tolist()) == {0.0, 12.0}


@pytest.mark.parametrize("softmax", ["full", "sampled"])
def test_products_in_bfloat16_give_nearly_the_same_gradients(corpus: Corpus, softmax: str) -> None:
    found = []
    for is_bf16 in (False, True):
        torch.manual_seed(0)
        made = Softmax(n_words=N_VOCAB, width=4)
        model = BiLmObjective(
            BiLm.from_config(CHARS), made, dropout=NOTHING, has_bf16_products=is_bf16, has_sparse_gradients=True
        )
        window, state, samples = reading(corpus, model, softmax)
        gradients = Gradients(model, n_threads=2)
        ids = TypeIds(corpus, CHARS, N_VOCAB)
        losses = gradients.add_window(window, ids, state, samples=samples, random=StepRandom(0, 0))
        gradients.close()
        found.append((losses.mean, [weight.grad for weight in model.parameters()]))
    (exact, exact_gradients), (rounded, rounded_gradients) = found
    assert rounded != exact
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0)
    for a, b in zip(exact_gradients, rounded_gradients, strict=True):
        assert a is not None
        assert b is not None
        assert b.dtype == torch.float32
        assert float((a - b).norm()) <= 0.05 * float(a.norm()) + 1e-6
