"""A model of any format and a corpus in, what a run begins with instead of random weights out.

The model keeps its shape and all weights below the softmax. Its vocabulary is kept when the corpus was built
with it (``vocabulary_of``), or the words are those of the new text; either way rows find their words by
spelling, and known words keep theirs to the bit.

A word that the model did not know was ``<UNK>`` to it until now, so it begins as that, where the model reads
words, and where it predicts them: all new words and ``<UNK>`` share its probability by their counts, and that
of every known word stays as it was. A model that never met an unknown word gives it none to share: there a
new word begins at the mean of the known ones that are about as frequent in the new text. Random rows would
take probability from known words, in whatever context (Hewitt 2021, "Initializing New Word Embeddings for
Pretrained Language Models").
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.errors import ConfigError
from elmo.formats.pretrained import Pretrained, fingerprint
from elmo.text.ids import Vocabulary
from elmo.train.corpus import Corpus
from elmo.train.objective import BiLmObjective
from elmo.train.vocabulary import FIRST_WORD, SPECIAL, UNKNOWN

USUAL_VOCABULARY = 50_000  # words to predict, when nobody says
_FEWEST_PEERS = 8  # known words that a new one is likened to
_TABLE = "token_layer.word_embed.weight"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartingPoint:
    """A model made ready to be trained on one corpus."""

    config: BiLmConfig  # the model's own, but for the number of words that it reads
    n_vocab: int  # words to predict
    weights: Mapping[str, Tensor]  # of ``BiLmObjective.state_dict()``; what is missing begins at random
    identity: str  # SHA-256 of all that the model is: a run that goes on must have begun with the same
    n_known: int  # words of the vocabulary that the model knew; 0 when its softmax is not used

    def put_into(self, objective: BiLmObjective, config: BiLmConfig, n_vocab: int) -> None:
        """Take the place of random weights."""
        if (config, n_vocab) != (self.config, self.n_vocab):
            raise ConfigError(
                f"start: expected a run of the model's shape that predicts {self.n_vocab:,} words, found one "
                f"{'that predicts ' + format(n_vocab, ',') if config == self.config else 'of another shape'}"
            )
        strange = [name for name in self.weights if name not in objective.state_dict()]
        if strange:
            raise ConfigError(f"start: expected a run with {strange[0]}, found none: is it tied or adaptive?")
        objective.load_state_dict(dict(self.weights), strict=False)


def start_from(
    model: Pretrained,
    corpus: Corpus,
    *,
    n_vocab: int | None = None,
    is_tied: bool = False,
    is_adaptive: bool = False,
) -> StartingPoint:
    """Begin with ``model`` on ``corpus``, which was built with its vocabulary or has one of its own.

    ``n_vocab`` words are predicted, by default those that the corpus was given, or 50,000. An adaptive
    softmax (``is_adaptive``) begins at random, and so does that of a model that has none, or a direction
    that it was not trained in; the log tells.
    """
    refuse_what_cannot_be_trained(model, is_tied=is_tied)
    n_vocab = min(n_vocab or corpus.n_given or USUAL_VOCABULARY, len(corpus.types))
    counts = np.array(corpus.counts[:n_vocab])
    counts[UNKNOWN] += int(corpus.counts[n_vocab:].sum())
    rows = _Rows(_places(model.vocab, corpus.types[:n_vocab]), counts)
    weights = {f"bilm.{name}": value.to(torch.float32) for name, value in _trained(model).items()}
    config = model.config
    has_softmax = model.softmax is not None and rows.n_known > 0 and not is_adaptive
    if config.words is not None:
        config = replace(config, words=replace(config.words, n_words=n_vocab))
        table = weights[f"bilm.{_TABLE}"][1:]
        is_shared = not is_tied or model.softmax is None or rows.can_share(model.softmax.bias)
        moved = rows.like_unknown(table) if is_shared else rows.like_peers(table)
        weights[f"bilm.{_TABLE}"] = torch.cat([table.new_zeros(1, table.size(1)), moved])  # row 0 is padding
    if model.softmax is not None and has_softmax:
        weight, bias = rows.of_softmax(model.softmax.weight.to(torch.float32), model.softmax.bias.float())
        weights |= {"softmax.bias": bias} if is_tied else {"softmax.weight": weight, "softmax.bias": bias}
    _tell(model, rows, is_adaptive=is_adaptive)
    return StartingPoint(config, n_vocab, weights, _identity(model), rows.n_known if has_softmax else 0)


def refuse_what_cannot_be_trained(model: Pretrained, *, is_tied: bool = False) -> None:
    """``ConfigError`` for a model that cannot go on here; to be asked before a corpus is built."""
    if is_tied and not is_tied_in(model) and model.softmax is not None:
        raise ConfigError(f"this {model.format} model's softmax has weights of its own: it cannot be tied")
    if model.config.alphabet == "unicode":
        raise ConfigError(
            f"this {model.format} model reads characters by a dictionary of its own, and cannot be trained "
            "here; start from a model that reads UTF-8 bytes or words"
        )


def tell_what_is_lost(model: Pretrained, directions: str) -> None:
    """A direction that the model has, and that a run of the other one will not write."""
    for name, other in (("forward", "backward"), ("backward", "forward")):
        if directions == name and any(
            weight.any() for key, weight in model.weights.items() if key.startswith(f"{other}_stack.")
        ):
            _log.warning("only the %s direction is trained: the new model has no %s one", name, other)


def is_tied_in(model: Pretrained) -> bool:
    """Whether a model that reads words predicts them with the same vectors."""
    table = model.weights.get(_TABLE)
    if table is None or model.softmax is None or model.config.chars is not None:
        return False
    return torch.equal(table[1:], model.softmax.weight)


def vocabulary_of(model: Pretrained) -> Vocabulary:
    """The model's vocabulary as ``corpus.build`` takes it: special words first, under their usual names.

    Words that no corpus can hold (empty ones, line breaks, doubled ones but the last) are left out.
    """
    if model.vocab is None:
        raise ConfigError(
            f"this {model.format} model has no vocabulary to keep; ask for a new one, from the text"
        )
    kept = sorted(_ids(model.vocab).items(), key=lambda item: item[1])
    words = [word for word, _ in kept if word not in SPECIAL and _can_be_held(word)]
    found = Vocabulary((*SPECIAL, *words))
    n_lost = len(model.vocab) - len(words) - sum(name in model.vocab for name in _specials(model.vocab))
    if n_lost:
        _log.warning("%d entries of the model's vocabulary are left out: no text can hold them", n_lost)
    return found


class _Rows:
    """Where each word of the new vocabulary finds its row in the tables of a model."""

    def __init__(self, places: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.places = torch.from_numpy(places)  # (word,): the row; -1 for a word that the model does not know
        self.is_new = self.places < 0
        self.n_words = len(places) - FIRST_WORD
        self.n_known = int((places[FIRST_WORD:] >= 0).sum())
        self._counts = torch.from_numpy(counts).clamp(min=1)
        self._group = self._counts.log2().long()  # words of like frequency

    def of_softmax(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (word, width) and biases (word,) of the new vocabulary."""
        if not self.can_share(bias):
            return self.like_peers(weight), self.like_peers(bias)
        found = self.like_unknown(bias)
        if self.is_new.any():
            shares = self.is_new.clone()
            shares[UNKNOWN] = True
            counts = self._counts[shares].double()
            found[shares] += (counts / counts.sum()).log().to(found)
        return self.like_unknown(weight), found

    def can_share(self, bias: Tensor) -> bool:
        """Whether the unknown word has a probability to share: more than many known words, by its bias."""
        known = bias[self.places[FIRST_WORD:][~self.is_new[FIRST_WORD:]]]
        unknown = int(self.places[UNKNOWN])
        return unknown >= 0 and (not len(known) or bool(bias[unknown] >= known.median()))

    def like_peers(self, table: Tensor) -> Tensor:
        """A new table (word, …): known words as they were, new ones as the mean of those as frequent."""
        found = table[self.places.clamp(min=0)]
        is_peer = ~self.is_new
        is_peer[:FIRST_WORD] = False  # boundaries are unlike all words
        sizes = torch.bincount(self._group[is_peer], minlength=int(self._group.max()) + 1)
        enough = torch.nonzero(sizes >= _FEWEST_PEERS).flatten()
        for group in self._group[self.is_new].unique():
            peers = is_peer
            if len(enough):
                nearest = enough[(enough - group).abs().argmin()]
                peers = is_peer & (self._group == nearest)
            if peers.any():
                found[self.is_new & (self._group == group)] = found[peers].mean(dim=0)
        return found

    def like_unknown(self, table: Tensor) -> Tensor:
        """A new table (word, …): known words as they were, new ones as the unknown word was."""
        if self.is_new[UNKNOWN]:
            return self.like_peers(table)
        return table[torch.where(self.is_new, self.places[UNKNOWN], self.places)]


def _trained(model: Pretrained) -> Mapping[str, Tensor]:
    """The weights without those of a direction that is all zeros: no gradient would ever move them."""
    weights = dict(model.weights)
    for stack in ("forward_stack.", "backward_stack."):
        names = [name for name in weights if name.startswith(stack)]
        if not any(weights[name].any() for name in names):
            _log.warning("the %s direction begins at random: this model has none", stack.partition("_")[0])
            for name in names:
                del weights[name]
    return weights


def _places(vocab: Vocabulary | None, types: list[str]) -> NDArray[np.int64]:
    """The row of each type in the model's tables, by its spelling."""
    if vocab is None:
        return np.full(len(types), -1)
    ids = _ids(vocab)
    special = [vocab.words.index(name) if name in vocab else -1 for name in _specials(vocab)]
    return np.array([*special, *(ids.get(word, -1) for word in types[FIRST_WORD:])])


def _ids(vocab: Vocabulary) -> dict[str, int]:
    """The ordinary words; of doubled ones the last counts, as everywhere."""
    ids = {word: i for i, word in enumerate(vocab.words)}
    for name in _specials(vocab):
        ids.pop(name, None)
    return ids


def _specials(vocab: Vocabulary) -> tuple[str, str, str]:
    return vocab.bos, vocab.eos, vocab.unknown


def _can_be_held(word: str) -> bool:
    try:
        return bool(word.encode("utf-8")) and "\n" not in word
    except UnicodeEncodeError:
        return False


def _tell(model: Pretrained, rows: _Rows, *, is_adaptive: bool) -> None:
    reason = None
    if is_adaptive:
        reason = "an adaptive softmax has other weights"
    elif model.softmax is None:
        reason = f"this {model.format} model has none"
    elif model.vocab is None:
        reason = "the model has no vocabulary that names its words"
    elif not rows.n_known:
        reason = "the model knows no word of this text"
    if reason is not None:
        _log.warning("the softmax begins at random: %s", reason)
    else:
        _log.info("starting from a model that knows %s of %s words", f"{rows.n_known:,}", f"{rows.n_words:,}")


def _identity(model: Pretrained) -> str:
    """The model's fingerprint, and what it leaves out: softmax and vocabulary."""
    digest = hashlib.sha256(fingerprint(model).encode())
    if model.vocab is not None:
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
    if model.softmax is not None:
        for part in (model.softmax.weight, model.softmax.bias):
            digest.update(part.detach().to(torch.float32).contiguous().numpy().data)
    return digest.hexdigest()
