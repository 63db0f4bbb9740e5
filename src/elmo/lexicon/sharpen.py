"""A model and a matrix in, the same language model in other coordinates out.

Nothing but matrices reads the state h of an LSTM layer: those of its own next step, of the layer above and of
the softmax. So M h can take its place, and M⁻¹ be multiplied into each of them: every probability stays what
it was, but for rounding and where a state was clipped, and only the angles between vectors are others.

Texts in, uses of words out, two and two near each other: most likely of one sense.

Whoever writes a word again a few sentences on means the same by it ("one sense per discourse": Gale, Church
and Yarowsky 1992), and elsewhere it may mean something else. So plain text says which uses are alike.

A model and running text in, the same language model in coordinates that show senses better out.

What a language model knows of a word's sense need not show in the angles between its vectors: these say above
all what may come next. So a matrix is sought for the states of its LSTM layers, by which uses of a word that
are alike come to lie closer together than others; and as ``formats.turned`` shows, a language model in other
coordinates is the same one. Two teachers say which uses are alike, and neither needs more than plain text:
the text itself (``lexicon.near_uses``), and the model's softmax: uses of one sense are those in whose place
it expects the same words (Amrami and Goldberg 2018).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, WarmState
from elmo.lexicon.substitutes import compute_log_priors
from elmo.lexicon.usages import EntryKey, Usage, entry_key, is_word
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


STACKS = ("forward_stack", "backward_stack")
_ROWS = 1 << 14


def turned(model: Pretrained, turn: Tensor) -> Pretrained:
    """``model`` with M h for the states h of all LSTM layers; ``turn`` is M (width, width).

    Skip connections add the states of two layers and one softmax reads both directions, so all of them are
    turned by the same matrix. States are no longer clipped: a box that was upright would lie aslant.
    """
    lstm = model.config.lstm
    if not lstm.has_projection:
        raise ConfigError("this model's states are not projected: what comes out of a cell cannot be turned")
    if tuple(turn.shape) != (lstm.state_width, lstm.state_width):
        raise ShapeError(f"expected a matrix of {lstm.state_width} x {lstm.state_width}, found {turn.shape}")
    forth = turn.double()
    back = torch.linalg.inv(forth)
    weights = dict(model.weights)
    for stack in STACKS:
        for layer in range(lstm.n_layers):
            name = f"{stack}.{layer}"
            readers = [f"{name}.state_weight"] + [f"{name}.input_weight"] * (layer > 0)
            for reader in readers:  # the first layer reads tokens, which stay as they are
                weights[reader] = _product(weights[reader], back)
            projection = weights[f"{name}.projection"]
            weights[f"{name}.projection"] = (forth @ projection.double()).to(projection.dtype)
    softmax, warm = model.softmax, model.warm
    if softmax is not None:
        softmax = SoftmaxWeights(_product(softmax.weight, back), softmax.bias)
    if warm is not None:
        warm = WarmState(_product(warm.hidden, forth.t()), warm.cell)
    config = replace(model.config, lstm=replace(lstm, state_clip=None))
    return replace(model, config=config, weights=weights, softmax=softmax, warm=warm)


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """In double precision, some rows at a time: a softmax may have a million."""
    found = torch.empty_like(rows)
    for part, out in zip(rows.split(_ROWS), found.split(_ROWS), strict=True):
        out.copy_(part.double() @ matrix)
    return found


PAIRS = 8  # of a word
N_USES = 2 * PAIRS
REACH = 400  # tokens from one use of a pair to the other, at most
APART = 4 * REACH  # of a word's pairs one is taken in so many tokens: the next is of another text
N_COMMON = 150  # the most frequent words have no senses to tell
SENTENCE = (6, 40)  # tokens of one that counts
MOST_TOKENS = 2_000_000  # that are read


@dataclass(frozen=True)
class _Place:
    token: int  # of the text
    sentence: Tokens
    place: int

    @property
    def usage(self) -> Usage:
        return Usage(self.sentence, self.place, self.place + 1)


def near_uses(
    texts: Iterable[Iterable[Tokens]], *, key: EntryKey, n_words: int, seed: int = 0
) -> list[Usage]:
    """``N_USES`` uses each of at most ``n_words`` words, a word's pairs one after the other.

    A pair is of one text and of two different sentences. Words are what ``key`` makes one word of, none of
    the most frequent, and none that is written with a capital where it stands: most of these are names
    (in German nouns, which are passed over as well). A use is never the first or last token of its
    sentence, so that both directions have read something before it.
    """
    counts: Counter[str] = Counter()
    before: dict[str, _Place] = {}
    newest: dict[str, int] = {}  # where a word's last pair ends
    pairs: defaultdict[str, list[tuple[_Place, _Place]]] = defaultdict(list)
    n_read = 0
    for sentence in _sentences(texts):
        if sentence is None:  # the next text
            before.clear()
            continue
        fits = SENTENCE[0] <= len(sentence) <= SENTENCE[1]
        last = len(sentence.tokens) - 1
        for place, token in enumerate(sentence.tokens):
            if not is_word(token) or token != token.lower():
                continue
            word = key(token)
            counts[word] += 1
            if not fits or place in (0, last):
                continue
            here = _Place(n_read + place, sentence, place)
            earlier = before.get(word)
            before[word] = here
            if earlier is None or here.token - earlier.token > REACH:
                continue
            if earlier.sentence.tokens == sentence.tokens:  # the same one, or a line that is repeated
                continue
            if word not in newest or here.token - newest[word] >= APART:
                pairs[word].append((earlier, here))
                newest[word] = here.token
        n_read += len(sentence)
        if n_read >= MOST_TOKENS:
            break
    common = {word for word, _ in counts.most_common(N_COMMON)}
    words = [word for word, found in pairs.items() if len(found) >= PAIRS and word not in common]
    chance = random.Random(seed)
    chosen = chance.sample(words, min(n_words, len(words)))
    return [each.usage for word in chosen for pair in chance.sample(pairs[word], PAIRS) for each in pair]


def _sentences(texts: Iterable[Iterable[Tokens]]) -> Iterator[Tokens | None]:
    """All sentences; None where a text ends."""
    for text in texts:
        if isinstance(text, str | Tokens):
            raise DataError("expected texts, each of tokenised sentences, found a sentence: give [text]")
        for sentence in text:
            if not isinstance(sentence, Tokens):
                kind = type(sentence).__name__
                raise DataError(f"expected sentences as a tokenizer gives them, found a {kind}")
            yield sentence
        yield None


N_WORDS = 1500  # more no longer help
FEWEST_WORDS = 50
_HELD_OUT = 10  # of so many words one is set aside, to tell what was gained
_TEMPERATURE = 0.07  # of vectors
_OF_EXPECTED = 0.05  # of what is expected: its vectors lie closer together
_PENALTY = 0.01  # on leaving the old coordinates: no direction is lost, and numbers keep their digits
_STEPS, _RATE, _WORDS_AT_ONCE = 250, 0.002, 24
_SENTENCES_AT_ONCE = 1024
_LOGITS = 1 << 24  # held at a time


@dataclass(frozen=True, eq=False)
class Sharpened:
    """A model, and what was gained, measured on words that were set aside.

    ``before`` and ``after`` are how often, of three uses of a word, the two near each other in the text have
    the nearer vectors, with the mean of all layers: one half by chance.
    """

    model: Pretrained
    n_words: int
    before: float
    after: float
    clipped: float  # share of the states' numbers that the model clipped, and no longer clips


def sharpen(
    elmo: Elmo, texts: Iterable[Iterable[Tokens]], *, seed: int = 0, show_progress: bool = False
) -> Sharpened:
    """Turn a model's states so that their angles tell senses apart; the first two million tokens are read.

    ``texts`` are running text, sentence by sentence in its order, of as many subjects as possible. Every
    probability that the model gives stays as it was, but for rounding, and where a state was clipped.
    """
    if not elmo.config.lstm.has_projection:
        raise ConfigError("this model's states are not projected: it cannot be sharpened")
    usages = near_uses(texts, key=entry_key(elmo), n_words=N_WORDS, seed=seed)
    n_words = len(usages) // N_USES
    if n_words < FEWEST_WORDS:
        raise DataError(
            f"expected running text with {FEWEST_WORDS} words or more that are used twice, in sentences near "
            f"each other, in {N_USES // 2} different places, found {n_words}: sentences of {SENTENCE[0]} to "
            f"{SENTENCE[1]} tokens count, so split longer lines (--split), or give more text"
        )
    layers, around = _read(elmo, usages, show_progress=show_progress)
    n_held = max(1, n_words // _HELD_OUT) * N_USES
    expected = _expected(elmo, around[n_held:], show_progress=show_progress)
    width = elmo.config.lstm.state_width
    turn = _fitted(layers[n_held:], expected, width, seed)
    model = elmo.as_pretrained()
    metadata = {**model.metadata, "sharpened": {"words": n_words, "seed": seed}}
    return Sharpened(
        turned(replace(model, metadata=metadata), turn),
        n_words,
        before=_told(_mean(layers[:n_held], torch.eye(width))),
        after=_told(_mean(layers[:n_held], turn)),
        clipped=_clipped(elmo, layers),
    )


def _read(elmo: Elmo, usages: Sequence[Usage], *, show_progress: bool) -> tuple[Tensor, Tensor]:
    """Of each use all layers (use, layer, width), and the top states that predict it (use, width)."""
    rows: dict[Tokens, list[int]] = {}
    for row, usage in enumerate(usages):
        rows.setdefault(usage.sentence, []).append(row)
    sentences = list(rows)
    layers = torch.empty(len(usages), elmo.n_layers, elmo.width)
    around = torch.empty(len(usages), elmo.width)
    half = elmo.width // 2
    starts = range(0, len(sentences), _SENTENCES_AT_ONCE)
    for start in track_progress(starts, "Reading", is_shown=show_progress):
        some = sentences[start : start + _SENTENCES_AT_ONCE]
        for sentence, found in zip(some, elmo.encode(some, layers="all"), strict=True):
            vectors = torch.from_numpy(np.asarray(found.vectors, dtype=np.float32))  # (layer, time, width)
            for row in rows[sentence]:
                place = usages[row].begin
                layers[row] = vectors[:, place]
                around[row, :half] = vectors[-1, place - 1, :half]
                around[row, half:] = vectors[-1, place + 1, half:]
    return layers, around


def _clipped(elmo: Elmo, layers: Tensor) -> float:
    """The share of the numbers of LSTM states that stand at the clip."""
    lstm = elmo.config.lstm
    if lstm.state_clip is None:
        return 0.0
    own = layers[:, 1:].clone()
    if lstm.has_skip:
        own[:, 1:] -= layers[:, 1:-1]  # as they came out, before the skip connection
    return float((own.abs() >= lstm.state_clip * (1 - 1e-5)).float().mean())


def _expected(elmo: Elmo, states: Tensor, *, show_progress: bool) -> Tensor | None:
    """Σ_w P(w) · v_w of each direction (use, width), P(w) ∝ √(P(w | what was read) / P_0(w)).

    v are the softmax's vectors at length one. Dividing by how frequent a word is keeps those that may stand
    anywhere from drowning the rest. ``lexicon.embed_substitutes`` joins the directions; here each is a teacher
    of its own half.
    """
    softmax, vocab = elmo.softmax, elmo.vocab
    if softmax is None or vocab is None:
        return None
    weight, bias = softmax.weight.detach().float().cpu(), softmax.bias.detach().float().cpu()
    lengths, shares = weight.norm(dim=1).clamp(min=1e-12), torch.from_numpy(compute_log_priors(len(weight)))
    special = [vocab.id(word) for word in (vocab.bos, vocab.eos, vocab.unknown) if word in vocab]
    found = torch.empty_like(states)
    size = max(1, _LOGITS // len(weight))
    for start in track_progress(range(0, len(states), size), "Expected words", is_shown=show_progress):
        rows = slice(start, start + size)
        for half, out in zip(states[rows].chunk(2, dim=1), found[rows].chunk(2, dim=1), strict=True):
            scores = (F.linear(half, weight, bias).log_softmax(dim=1) - shares) / 2
            scores[:, special] = -torch.inf
            out.copy_((scores.softmax(dim=1) / lengths) @ weight)
    return found


def _fitted(layers: Tensor, expected: Tensor | None, width: int, seed: int) -> Tensor:
    """The matrix (width, width) by which uses choose as their teachers do."""
    same = torch.eye(width)
    turn = same.clone().requires_grad_()
    optimizer = torch.optim.Adam([turn], _RATE)
    chance = torch.Generator().manual_seed(seed)
    partner = F.one_hot(torch.arange(N_USES) ^ 1, N_USES).float()  # (use, use)
    words = torch.arange(len(layers)).view(-1, N_USES)
    for _ in range(_STEPS):
        rows = words[torch.randperm(len(words), generator=chance)[:_WORDS_AT_ONCE]].flatten()
        mean = _mean(layers[rows], turn)
        loss = _PENALTY * (turn - same).square().sum() + _disagreement(mean, partner)
        if expected is not None:
            for mine, theirs in zip(mean.chunk(2, 1), expected[rows].chunk(2, 1), strict=True):
                loss = loss + _disagreement(mine, _choices(theirs, _OF_EXPECTED).softmax(dim=2)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return turn.detach()


def _mean(layers: Tensor, turn: Tensor) -> Tensor:
    """The mean of all layers (use, width), those above the token layer turned."""
    above = layers[:, 1:].sum(dim=1)  # (use, width)
    both = above.unflatten(1, (2, -1)) @ turn.t()  # (use, direction, width)
    return (layers[:, 0] + both.flatten(1)) / layers.size(1)


def _choices(vectors: Tensor, temperature: float) -> Tensor:
    """Logits of the other uses of a word for each of its uses (word, use, use): the nearer, the likelier."""
    units = F.normalize(vectors, dim=1).unflatten(0, (-1, N_USES))  # (word, use, width)
    itself = torch.eye(N_USES, dtype=torch.bool)
    return (units @ units.transpose(1, 2) / temperature).masked_fill(itself, -torch.inf)


def _disagreement(vectors: Tensor, target: Tensor) -> Tensor:
    """The cross-entropy of what uses choose against what they should, as van den Oord et al. 2018 have it."""
    chosen = _choices(vectors, _TEMPERATURE).log_softmax(dim=2)
    return -torch.where(target > 0, target * chosen, 0).sum(dim=2).mean()


def _told(vectors: Tensor) -> float:
    """How often a use is nearer to its partner than to a use of another pair of the word."""
    cosines = _choices(vectors, 1.0)  # (word, use, use)
    partner = torch.arange(N_USES) ^ 1
    near = cosines[:, torch.arange(N_USES), partner, None]
    is_other = torch.ones(N_USES, N_USES, dtype=torch.bool).fill_diagonal_(False)
    is_other[torch.arange(N_USES), partner] = False
    return float((near > cosines)[:, is_other].float().mean())
