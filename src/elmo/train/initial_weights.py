"""Initialize a run from a trained model instead of random weights.

The model keeps its weights below the softmax, and its shape unless it is grown. The run predicts the words of the
model if the corpus was built with ``model_vocabulary``, otherwise the words of the new text. In both cases, words
are matched by spelling, and words that the model knows keep their rows of the softmax bit for bit.

The model predicts unknown words as ``<UNK>`` (and reads them as ``<UNK>`` if it has a word table), so new words start
from the row of ``<UNK>``. New words and ``<UNK>`` share the probability of ``<UNK>`` in proportion to their counts, and
the probability of every known word stays the same. If the model gives ``<UNK>`` too little probability, a new word
starts instead from the mean row of the known words that are about as frequent in the new text. Random rows would take
probability from known words in every context (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language
Models").

A model can be grown: given more cells or wider vectors, without changing what it computes (Chen et al. 2016,
"Net2Net"). The weights of the model become the first rows and columns of larger matrices. Weights that lead from new
units to old ones are zero, so the old units have the same values as before. All other new weights are random.
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
from torch.nn.functional import pad

from elmo.config import BiLmConfig, parameter_shapes
from elmo.errors import ConfigError
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, fingerprint
from elmo.text.ids import Vocabulary
from elmo.train.corpus import FIRST_WORD, SPECIAL, UNKNOWN, Corpus
from elmo.train.objective import BiLmObjective

DEFAULT_VOCABULARY = 50_000  # number of words to predict
_MIN_PEERS = 8  # smallest number of known words to average for a new word
_TABLE = "token_layer.word_embed.weight"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InitialWeights:
    """Weights of a trained model, prepared for one corpus.

    Attributes:
        config: Configuration of the run: that of the model, with the number of words in the new vocabulary, and with
            the new widths if the model is grown.
        n_vocab: Number of words to predict.
        weights: Weights by their names in ``BiLmObjective.state_dict()``. Missing weights start at random.
        identity: SHA-256 of the model, which must be the same when the run is resumed.
        n_known: Number of words of the new vocabulary that the model knows, or 0 if its softmax is not used.
    """

    config: BiLmConfig
    n_vocab: int
    weights: Mapping[str, Tensor]
    identity: str
    n_known: int

    def load_into(self, objective: BiLmObjective, config: BiLmConfig, n_vocab: int) -> None:
        """Copy the weights into an objective with random weights."""
        if config != self.config:
            raise ConfigError("init_from: the run must have the shape of the prepared weights; found another shape")
        if n_vocab != self.n_vocab:
            raise ConfigError(f"init_from: the run must predict {self.n_vocab:,} words; found {n_vocab:,}")
        initial = objective.state_dict()
        if unknown := [name for name in self.weights if name not in initial]:
            raise ConfigError(f"init_from: the run must have the softmax of the model; found no {unknown[0]}")
        grown = {name: _grow(name, weight, initial[name]) for name, weight in self.weights.items()}
        objective.load_state_dict(grown, strict=False)


def prepare_weights(
    model: Pretrained,
    corpus: Corpus,
    *,
    n_vocab: int | None = None,
    is_tied: bool = False,
    is_adaptive: bool = False,
    cell_width: int | None = None,
    state_width: int | None = None,
) -> InitialWeights:
    """Prepare the weights of ``model`` for training on ``corpus``.

    The softmax starts from random weights if it is adaptive or if the model has no softmax. A direction starts from
    random weights if the model does not have this direction. Both cases are logged.

    Args:
        model: The trained model.
        corpus: Corpus that was built with the vocabulary of the model or with a new vocabulary.
        n_vocab: Number of words to predict. By default, the size of the vocabulary given for the corpus, or 50,000.
        is_tied: Whether the softmax shares its weights with the input word vectors.
        is_adaptive: Whether the softmax is adaptive.
        cell_width: Number of LSTM cells of the run, if the model is to be grown.
        state_width: Width of the vectors of each direction, if the model is to be grown.
    """
    check_trainable(model, is_tied=is_tied, cell_width=cell_width, state_width=state_width)
    n_vocab = min(n_vocab or corpus.n_given or DEFAULT_VOCABULARY, len(corpus.types))
    counts = np.array(corpus.counts[:n_vocab])
    counts[UNKNOWN] += int(corpus.counts[n_vocab:].sum())
    rows = _RowMap(_find_rows(model.vocab, corpus.types[:n_vocab]), counts)
    weights = {f"bilm.{name}": value.to(torch.float32) for name, value in _trained_weights(model).items()}
    config = _grown_config(model.config, cell_width=cell_width, state_width=state_width)
    has_softmax = model.softmax is not None and rows.n_known > 0 and not is_adaptive
    if config.words is not None:
        config = replace(config, words=replace(config.words, n_words=n_vocab))
        table = weights[f"bilm.{_TABLE}"][1:]
        is_shared = not is_tied or model.softmax is None or rows.can_share(model.softmax.bias)
        moved = rows.from_unknown(table) if is_shared else rows.from_peers(table)
        weights[f"bilm.{_TABLE}"] = torch.cat([table.new_zeros(1, table.size(1)), moved])  # row 0 is padding
    if model.softmax is not None and has_softmax:
        weight, bias = rows.map_softmax(model.softmax.weight.to(torch.float32), model.softmax.bias.float())
        weights |= {"softmax.bias": bias} if is_tied else {"softmax.weight": weight, "softmax.bias": bias}
    _log_known_words(model, rows, is_adaptive=is_adaptive)
    return InitialWeights(config, n_vocab, weights, _identity(model), rows.n_known if has_softmax else 0)


def check_trainable(
    model: Pretrained, *, is_tied: bool = False, cell_width: int | None = None, state_width: int | None = None
) -> None:
    """Raise ``ConfigError`` if a model cannot be trained or grown. Call this before building a corpus."""
    if is_tied and not has_tied_softmax(model) and model.softmax is not None:
        raise ConfigError(
            f"the softmax of this {model.format} model cannot be tied: its weights differ from the input word vectors"
        )
    if model.config.alphabet == "unicode":
        raise ConfigError(
            f"cannot train this {model.format} model: it has its own character dictionary; use a model that "
            "reads UTF-8 bytes or words"
        )
    if cell_width is None and state_width is None:
        return
    if model.config.encoder_name != "lstm":
        raise ConfigError("init_from: cells and width of a transformer cannot be changed; do not set them")
    grown = _grown_config(model.config, cell_width=cell_width, state_width=state_width)
    old, new = model.config.lstm, grown.lstm
    if new.cell_width < old.cell_width or new.state_width < old.state_width:
        raise ConfigError(
            f"init_from: cells and width cannot be smaller than those of the model ({old.cell_width} and "
            f"{old.state_width}); found {new.cell_width} and {new.state_width}"
        )
    if new == old:
        return
    if (old.state_width < old.cell_width) != (new.state_width < new.cell_width):
        raise ConfigError(
            "init_from: a model can be grown only if width stays below cells, or if both stay equal; "
            f"found {new.cell_width} cells and width {new.state_width}"
        )
    if grown.has_token_projection != model.config.has_token_projection:
        raise ConfigError("init_from: the width of a model without a projection in its token layer cannot be changed")
    if new.state_width > old.state_width and grown.chars is not None and grown.chars.has_norm:
        raise ConfigError("init_from: the width of a model with normalized token vectors cannot be changed")
    if new.state_width > old.state_width and (is_tied or has_tied_softmax(model)):
        raise ConfigError("init_from: the width of a model with a tied softmax cannot be changed")


def _grown_config(config: BiLmConfig, *, cell_width: int | None, state_width: int | None) -> BiLmConfig:
    """Return the configuration of a grown model. A word table without a projection has the width of the vectors."""
    if cell_width is None and state_width is None:
        return config
    lstm = replace(
        config.lstm,
        cell_width=config.lstm.cell_width if cell_width is None else cell_width,
        state_width=config.lstm.state_width if state_width is None else state_width,
    )
    words = config.words
    if words is not None and config.chars is None and words.word_width == config.lstm.state_width:
        words = replace(words, word_width=lstm.state_width)
    return replace(config, encoder=lstm, words=words)


def _grow(name: str, weight: Tensor, larger: Tensor) -> Tensor:
    """Put a weight of the model into the first rows and columns of a larger, random weight of the run.

    The old rows get zeros for new inputs: old units must not depend on new ones. A word table has no inputs.
    """
    if weight.shape == larger.shape:
        return weight
    grown, weight = larger.clone(), weight.to(larger)
    if name.endswith(("input_weight", "state_weight", "bias")) and "_stack." in name:  # four gates, one after the other
        blocks, parts = grown.unflatten(0, (4, -1)), weight.unflatten(0, (4, -1))
    else:
        blocks, parts = grown[None], weight[None]
    n_rows = parts.size(1)
    if name.endswith(_TABLE):
        blocks[:, :, : parts.size(2)] = parts
    elif parts.dim() == 2:  # a bias
        blocks[:, :n_rows] = parts
    else:
        blocks[:, :n_rows] = 0
        blocks[:, :n_rows, : parts.size(2)] = parts
    return grown


def pad_states(model: Pretrained, state_width: int) -> Pretrained:
    """Return the same language model with wider states: zeros are appended to each half of its vectors.

    Raises ``ConfigError`` if the model cannot be widened, which needs a projection in its layers and its token layer.
    """
    old = model.config
    widths = f"width {old.width} to {2 * state_width}"
    if old.encoder_name != "lstm":
        raise ConfigError(f"cannot pad the vectors of a transformer from {widths}")
    if old.chars is not None and old.chars.has_norm:  # zeros would change the mean and the deviation
        raise ConfigError(f"cannot pad the vectors of a model with normalized token vectors from {widths}")
    is_projected = old.lstm.state_width < state_width < old.lstm.cell_width
    config = _grown_config(old, cell_width=None, state_width=state_width) if is_projected else old
    if not is_projected or config.has_token_projection != old.has_token_projection:
        raise ConfigError(f"cannot pad the vectors of a model with {old.lstm.cell_width} cells from {widths}")
    shapes = parameter_shapes(config)
    weights = {name: _grow(name, value, value.new_zeros(shapes[name])) for name, value in model.weights.items()}
    n_new, warm, softmax = state_width - old.lstm.state_width, model.warm, model.softmax
    if warm is not None:
        warm = replace(warm, hidden=pad(warm.hidden, (0, n_new)))
    if softmax is not None:
        softmax = SoftmaxWeights(pad(softmax.weight, (0, n_new)), softmax.bias)
    return replace(model, config=config, weights=weights, warm=warm, softmax=softmax)


def warn_of_lost_direction(model: Pretrained, directions: str) -> None:
    """Log a warning if a run trains only one direction of a model that has both."""
    other = {"forward": "backward", "backward": "forward"}.get(directions)
    if other and any(weight.any() for name, weight in model.weights.items() if name.startswith(f"{other}_stack.")):
        _log.warning("training only the %s direction; the new model will have no %s direction", directions, other)


def has_tied_softmax(model: Pretrained) -> bool:
    """Whether the softmax of a model shares its weights with the input word vectors."""
    table = model.weights.get(_TABLE)
    if table is None or model.softmax is None or model.config.chars is not None:
        return False
    return torch.equal(table[1:], model.softmax.weight)


def model_vocabulary(model: Pretrained) -> Vocabulary:
    """Return the vocabulary of a model in the form that ``build_corpus`` expects: ``<S>``, ``</S>``, ``<UNK>``, words.

    Entries that no corpus can contain are left out: empty entries, entries with line breaks, and duplicates.
    """
    if model.vocab is None:
        raise ConfigError(f"this {model.format} model has no vocabulary; set new_vocabulary")
    by_id = sorted(_word_ids(model.vocab).items(), key=lambda item: item[1])
    words = [word for word, _ in by_id if word not in SPECIAL and _is_possible(word)]
    n_lost = len(model.vocab) - len(words) - sum(name in model.vocab for name in _specials(model.vocab))
    if n_lost:
        _log.warning("ignoring %d entries of the model's vocabulary that no text can contain", n_lost)
    return Vocabulary((*SPECIAL, *words))


class _RowMap:
    """Maps the words of the new vocabulary to their rows in the weights of a model."""

    def __init__(self, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.rows = torch.from_numpy(rows)  # (word,); -1 for a word that the model does not know
        self.is_new = self.rows < 0
        self.n_words = len(rows) - FIRST_WORD
        self.n_known = int((rows[FIRST_WORD:] >= 0).sum())
        self._counts = torch.from_numpy(counts).clamp(min=1)
        self._group = self._counts.log2().long()  # words of similar frequency

    def map_softmax(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the softmax weights (word, width) and biases (word,) for the new vocabulary."""
        if not self.can_share(bias):
            return self.from_peers(weight), self.from_peers(bias)
        new_bias = self.from_unknown(bias)
        if self.is_new.any():
            shares = self.is_new.clone()
            shares[UNKNOWN] = True
            counts = self._counts[shares].double()
            new_bias[shares] += (counts / counts.sum()).log().to(new_bias)
        return self.from_unknown(weight), new_bias

    def can_share(self, bias: Tensor) -> bool:
        """Whether ``<UNK>`` has enough probability to share: a bias of at least the median of the known words."""
        known = bias[self.rows[FIRST_WORD:][~self.is_new[FIRST_WORD:]]]
        unknown = int(self.rows[UNKNOWN])
        return unknown >= 0 and (not len(known) or bool(bias[unknown] >= known.median()))

    def from_peers(self, table: Tensor) -> Tensor:
        """Return the rows of a table (word, …) for the new vocabulary.

        A new word gets the mean row of the known words with a similar frequency.
        """
        mapped = table[self.rows.clamp(min=0)]
        is_peer = ~self.is_new
        is_peer[:FIRST_WORD] = False  # the rows of special words are not typical
        sizes = torch.bincount(self._group[is_peer], minlength=int(self._group.max()) + 1)
        large = torch.nonzero(sizes >= _MIN_PEERS).flatten()
        for group in self._group[self.is_new].unique():
            peers = is_peer
            if len(large):
                nearest = large[(large - group).abs().argmin()]
                peers = is_peer & (self._group == nearest)
            if peers.any():
                mapped[self.is_new & (self._group == group)] = mapped[peers].mean(dim=0)
        return mapped

    def from_unknown(self, table: Tensor) -> Tensor:
        """Return the rows of a table (word, …) for the new vocabulary. A new word gets the row of ``<UNK>``."""
        if self.is_new[UNKNOWN]:
            return self.from_peers(table)
        return table[torch.where(self.is_new, self.rows[UNKNOWN], self.rows)]


def _trained_weights(model: Pretrained) -> Mapping[str, Tensor]:
    """Return the weights of a model, without those of an untrained direction, which are all zero."""
    weights = dict(model.weights)
    for stack in ("forward_stack.", "backward_stack."):
        names = [name for name in weights if name.startswith(stack)]
        if not any(weights[name].any() for name in names):
            direction = stack.partition("_")[0]
            _log.warning("the model has no %s direction; this direction starts from random weights", direction)
            for name in names:
                del weights[name]
    return weights


def _find_rows(vocab: Vocabulary | None, types: list[str]) -> NDArray[np.int64]:
    """Return the row of each type in the weights of a model, or -1 if the vocabulary does not contain it."""
    if vocab is None:
        return np.full(len(types), -1)
    ids = _word_ids(vocab)
    special = [vocab.words.index(name) if name in vocab else -1 for name in _specials(vocab)]
    return np.array([*special, *(ids.get(word, -1) for word in types[FIRST_WORD:])])


def _word_ids(vocab: Vocabulary) -> dict[str, int]:
    """Return the ids of the ordinary words of a vocabulary. A repeated word gets its last id."""
    ids = {word: i for i, word in enumerate(vocab.words)}
    for name in _specials(vocab):
        ids.pop(name, None)
    return ids


def _specials(vocab: Vocabulary) -> tuple[str, str, str]:
    return vocab.bos, vocab.eos, vocab.unknown


def _is_possible(word: str) -> bool:
    try:
        return bool(word.encode("utf-8")) and "\n" not in word
    except UnicodeEncodeError:
        return False


def _log_known_words(model: Pretrained, rows: _RowMap, *, is_adaptive: bool) -> None:
    reason = None
    if is_adaptive:
        reason = "an adaptive softmax cannot use the weights of the model"
    elif model.softmax is None:
        reason = f"this {model.format} model has no softmax"
    elif model.vocab is None:
        reason = "the model has no vocabulary"
    elif not rows.n_known:
        reason = "the model does not know any word of this text"
    if reason is not None:
        _log.warning("the softmax starts from random weights: %s", reason)
    else:
        _log.info("starting from a model that knows %s of %s words", f"{rows.n_known:,}", f"{rows.n_words:,}")


def _identity(model: Pretrained) -> str:
    """Return the SHA-256 of the network, the vocabulary and the softmax of a model."""
    digest = hashlib.sha256(fingerprint(model).encode())
    if model.vocab is not None:
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
    if model.softmax is not None:
        for part in (model.softmax.weight, model.softmax.bias):
            digest.update(part.detach().to(torch.float32).contiguous().numpy().data)
    return digest.hexdigest()
