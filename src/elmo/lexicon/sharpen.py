"""A model and running text in, the same language model in coordinates that show senses better out.

What a language model knows of a word's sense need not show in the angles between its vectors: these say above
all what may come next. So a matrix is sought for the states of its LSTM layers, by which uses of a word that
are alike come to lie closer together than others; and as ``formats.turned`` shows, a language model in other
coordinates is the same one. Two teachers say which uses are alike, and neither needs more than plain text:
the text itself (``lexicon.near_uses``), and the model's softmax: uses of one sense are those in whose place
it expects the same words (Amrami and Goldberg 2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.embed.progress import tracked
from elmo.errors import ConfigError, DataError
from elmo.formats.pretrained import Pretrained
from elmo.formats.turned import turned
from elmo.lexicon.choice import entry_key
from elmo.lexicon.entries import log_shares
from elmo.lexicon.near_uses import N_USES, near_uses
from elmo.lexicon.usages import Usage
from elmo.text.tokens import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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


def sharpen(elmo: Elmo, text: Iterable[Tokens], *, seed: int = 0, show_progress: bool = False) -> Sharpened:
    """Turn a model's states so that their angles tell senses apart; the first two million tokens are read.

    ``text`` is running text in its order, of as many subjects as possible: uses of a word some hundred tokens
    apart should be of one text. Every probability that the model gives stays as it was, but for rounding, and
    where a state was clipped.
    """
    if not elmo.config.lstm.has_projection:
        raise ConfigError("this model's states are not projected: it cannot be sharpened")
    usages = near_uses(text, key=entry_key(elmo), n_words=N_WORDS, seed=seed)
    n_words = len(usages) // N_USES
    if n_words < FEWEST_WORDS:
        raise DataError(
            f"expected running text with {FEWEST_WORDS} words or more that are used twice, in sentences near "
            f"each other, in {N_USES // 2} different places, found {n_words}: give more text"
        )
    layers, expected = _read(elmo, usages, show_progress=show_progress)
    n_held = max(1, n_words // _HELD_OUT) * N_USES
    width = elmo.config.lstm.state_width
    turn = _fitted(layers[n_held:], None if expected is None else expected[n_held:], width, seed)
    kept = layers[:n_held]
    metadata = {**elmo.pretrained.metadata, "sharpened": {"words": n_words, "seed": seed}}
    return Sharpened(
        replace(turned(elmo.pretrained, turn), metadata=metadata),
        n_words,
        before=_told(_mean(kept, torch.eye(width))),
        after=_told(_mean(kept, turn)),
    )


def _read(elmo: Elmo, usages: Sequence[Usage], *, show_progress: bool) -> tuple[Tensor, Tensor | None]:
    """Of each use all layers (use, layer, width), and what both sides of it let expect (use, width)."""
    rows: dict[Tokens, list[int]] = {}
    for row, usage in enumerate(usages):
        rows.setdefault(usage.sentence, []).append(row)
    sentences = list(rows)
    layers = torch.empty(len(usages), elmo.n_layers, elmo.width)
    around = torch.empty(len(usages), elmo.width)  # the states that predict the use
    half = elmo.width // 2
    starts = range(0, len(sentences), _SENTENCES_AT_ONCE)
    for start in tracked(starts, "Reading", is_shown=show_progress):
        some = sentences[start : start + _SENTENCES_AT_ONCE]
        encoded = elmo.encode([list(sentence.tokens) for sentence in some], layers="all")
        for sentence, found in zip(some, encoded, strict=True):
            vectors = torch.from_numpy(np.asarray(found.vectors, dtype=np.float32))  # (layer, time, width)
            for row in rows[sentence]:
                place = usages[row].begin
                layers[row] = vectors[:, place]
                around[row, :half] = vectors[-1, place - 1, :half]
                around[row, half:] = vectors[-1, place + 1, half:]
    return layers, _expected(elmo, around)


def _expected(elmo: Elmo, states: Tensor) -> Tensor | None:
    """Σ_w P(w) · v_w of each direction (use, width), P(w) ∝ √(P(w | what was read) / P_0(w)).

    v are the softmax's vectors at length one. Dividing by how frequent a word is keeps those that may stand
    anywhere from drowning the rest.
    """
    softmax, vocab = elmo.softmax, elmo.vocab
    if softmax is None or vocab is None:
        return None
    weight, bias = softmax.weight.detach().float().cpu(), softmax.bias.detach().float().cpu()
    units, shares = F.normalize(weight, dim=1), torch.from_numpy(log_shares(len(weight)))
    special = [vocab.id(word) for word in (vocab.bos, vocab.eos, vocab.unknown) if word in vocab]
    found = []
    for half in states.chunk(2, dim=1):
        parts = []
        for part in half.split(max(1, _LOGITS // len(weight))):
            scores = (F.linear(part, weight, bias).log_softmax(dim=1) - shares) / 2
            scores[:, special] = -torch.inf
            parts.append(scores.softmax(dim=1) @ units)
        found.append(torch.cat(parts))
    return torch.cat(found, dim=1)


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
    """How often a use is nearer to its partner than to the first use of the word's next pair."""
    units = F.normalize(vectors, dim=1).unflatten(0, (-1, N_USES // 2, 2))  # (word, pair, use, width)
    first, second = units.unbind(dim=2)
    near = (first * second).sum(dim=2)
    far = (first * first.roll(1, dims=1)).sum(dim=2)
    return float((near > far).float().mean())
