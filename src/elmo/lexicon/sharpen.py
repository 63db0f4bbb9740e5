"""Transform the states of a model so that the angles between vectors separate word senses better.

Only matrices read the state h of an LSTM layer: those of the same layer at the next token, of the layer above
and of the softmax.
If M h replaces h and each of these matrices is multiplied by M⁻¹, the model predicts the same probabilities,
except for rounding and clipped states, but the angles between vectors change. ``sharpen_model`` fits M so that
similar usages of a word have closer vectors. Two signals show which usages are similar:

- Distance in the text: two occurrences of a word within a few sentences mostly have the same sense ("one sense
  per discourse", Gale, Church and Yarowsky 1992).
- The softmax: usages with the same sense have similar predicted substitutes (Amrami and Goldberg 2018).
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

from elmo.config import LstmConfig
from elmo.embed.sense import compute_log_priors
from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, WarmState
from elmo.lexicon.usages import EntryKey, Usage, entry_key, is_word
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

N_WORDS = 1500  # maximum number of words to learn from; more do not improve the result
MIN_WORDS = 50
_HELD_OUT = 10  # one word in ten is held out for the evaluation
_BATCH_SENTENCES = 1024


@dataclass(frozen=True, eq=False)
class SharpenedModel:
    """A transformed model, with its evaluation on held-out words.

    The accuracy is the fraction of cases in which a usage of a word is more similar to another usage nearby in
    the text than to a usage elsewhere. The vectors are the mean of all layers. Chance level is 0.5.

    Attributes:
        model: The transformed model.
        n_words: Number of words that were used, for training and evaluation.
        before: Accuracy of the original model.
        after: Accuracy of the transformed model.
        clipped: Fraction of state values that the original model clipped; the transformed model does not clip.
    """

    model: Pretrained
    n_words: int
    before: float
    after: float
    clipped: float


def sharpen_model(
    elmo: Elmo, texts: Iterable[Iterable[Tokens]], *, seed: int = 0, show_progress: bool = False
) -> SharpenedModel:
    """Transform the states of a model so that their angles separate word senses better.

    The model still predicts the same probabilities, except for rounding and clipped states.

    Args:
        elmo: A model whose LSTMs have projections.
        texts: Texts on many subjects, each a sequence of tokenized sentences in their original order. At most
            ``MAX_TOKENS`` tokens are read.
        seed: Random seed for choosing words and usages.
        show_progress: Whether to show a progress bar.

    Example:
        >>> sentences = [elmo.tokenizer(line) for line in Path("corpus.txt").open()]  # doctest: +SKIP
        >>> sharpened = sharpen_model(elmo, [sentences])  # doctest: +SKIP
    """
    _check_projection(elmo.config.lstm)
    elmo.pretrained.check_unaligned("sharpen")
    usages = find_usage_pairs(texts, key=entry_key(elmo), n_words=N_WORDS, seed=seed)
    n_words = len(usages) // N_USAGES
    if n_words < MIN_WORDS:
        raise DataError(
            f"expected text with at least {MIN_WORDS} words that occur twice in nearby sentences, in {N_PAIRS} "
            f"different passages, found {n_words}; only sentences of {SENTENCE_LENGTHS[0]} to "
            f"{SENTENCE_LENGTHS[1]} tokens are used: split longer lines (--split), or use more text"
        )
    layers, context = _encode(elmo, usages, show_progress=show_progress)
    n_held_out = max(1, n_words // _HELD_OUT) * N_USAGES
    substitutes = _predict_substitutes(elmo, context[n_held_out:], show_progress=show_progress)
    width = elmo.config.lstm.state_width
    matrix = _fit_matrix(layers[n_held_out:], substitutes, width, seed)
    model = elmo.as_pretrained()
    metadata = {**model.metadata, "sharpened": {"words": n_words, "seed": seed}}
    return SharpenedModel(
        transform_states(replace(model, metadata=metadata), matrix),
        n_words,
        before=_pair_accuracy(_mean_of_layers(layers[:n_held_out], torch.eye(width))),
        after=_pair_accuracy(_mean_of_layers(layers[:n_held_out], matrix)),
        clipped=_clipped_share(elmo, layers),
    )


def _encode(elmo: Elmo, usages: Sequence[Usage], *, show_progress: bool) -> tuple[Tensor, Tensor]:
    """Return the layers of usages (usage, layer, width), and the states that predict each word (usage, width)."""
    rows: dict[Tokens, list[int]] = {}
    for row, usage in enumerate(usages):
        rows.setdefault(usage.sentence, []).append(row)
    sentences = list(rows)
    layers = torch.empty(len(usages), elmo.n_layers, elmo.width)
    context = torch.empty(len(usages), elmo.width)
    half = elmo.width // 2
    begins = range(0, len(sentences), _BATCH_SENTENCES)
    for begin in track_progress(begins, "Reading", is_shown=show_progress):
        batch = sentences[begin : begin + _BATCH_SENTENCES]
        for sentence, encoding in zip(batch, elmo.encode(batch, layers="all"), strict=True):
            vectors = torch.from_numpy(np.asarray(encoding.vectors, dtype=np.float32))  # (layer, time, width)
            for row in rows[sentence]:
                time = usages[row].begin
                layers[row] = vectors[:, time]
                context[row, :half] = vectors[-1, time - 1, :half]
                context[row, half:] = vectors[-1, time + 1, half:]
    return layers, context


def _clipped_share(elmo: Elmo, layers: Tensor) -> float:
    """Compute the fraction of LSTM state values that are at the clipping limit."""
    lstm = elmo.config.lstm
    if lstm.state_clip is None:
        return 0.0
    states = layers[:, 1:].clone()
    if lstm.has_skip:
        states[:, 1:] -= layers[:, 1:-1]  # undo the skip connections
    return float((states.abs() >= lstm.state_clip * (1 - 1e-5)).float().mean())


# --- Pairs of usages that are near each other in the text -------------------------------------------

N_PAIRS = 8  # pairs per word
N_USAGES = 2 * N_PAIRS
MAX_DISTANCE = 400  # maximum distance between the usages of a pair, in tokens
MIN_GAP = 4 * MAX_DISTANCE  # minimum distance between two pairs of a word, so that their passages differ
N_COMMON = 150  # number of most frequent words to skip
SENTENCE_LENGTHS = (6, 40)  # shortest and longest sentence to use, in tokens
MAX_TOKENS = 2_000_000


def find_usage_pairs(texts: Iterable[Iterable[Tokens]], *, key: EntryKey, n_words: int, seed: int = 0) -> list[Usage]:
    """Find ``N_USAGES`` usages for each of at most ``n_words`` words; usages 2k and 2k + 1 are a pair.

    The usages of a pair come from different sentences of the same text that are near each other. The most
    frequent words are skipped, and so are capitalized tokens, because most of them are names (in German also
    all nouns). A usage is never the first or last token of its sentence, so that both directions have context.
    ``key`` maps a token to its dictionary entry.
    """
    counts: Counter[str] = Counter()
    previous: dict[str, tuple[int, Tokens, int]] = {}  # last occurrence: position in the text, sentence, time
    last_pairs: dict[str, int] = {}  # position of the last pair of each word
    pairs: defaultdict[str, list[tuple[Usage, Usage]]] = defaultdict(list)
    n_read = 0
    for sentence in _read_sentences(texts):
        if sentence is None:  # the end of a text
            previous.clear()
            continue
        has_length = SENTENCE_LENGTHS[0] <= len(sentence) <= SENTENCE_LENGTHS[1]
        last = len(sentence.tokens) - 1
        for time, token in enumerate(sentence.tokens):
            if not is_word(token) or token != token.lower():
                continue
            word = key(token)
            counts[word] += 1
            if not has_length or time in (0, last):
                continue
            position = n_read + time
            earlier, previous[word] = previous.get(word), (position, sentence, time)
            if earlier is None or position - earlier[0] > MAX_DISTANCE:
                continue
            if earlier[1].tokens == sentence.tokens:  # the same sentence, or a repeated line
                continue
            if word not in last_pairs or position - last_pairs[word] >= MIN_GAP:
                pairs[word].append((Usage(earlier[1], earlier[2], earlier[2] + 1), Usage(sentence, time, time + 1)))
                last_pairs[word] = position
        n_read += len(sentence)
        if n_read >= MAX_TOKENS:
            break
    common = {word for word, _ in counts.most_common(N_COMMON)}
    words = [word for word in pairs if len(pairs[word]) >= N_PAIRS and word not in common]
    generator = random.Random(seed)
    selected = generator.sample(words, min(n_words, len(words)))
    return [usage for word in selected for pair in generator.sample(pairs[word], N_PAIRS) for usage in pair]


def _read_sentences(texts: Iterable[Iterable[Tokens]]) -> Iterator[Tokens | None]:
    """Yield all sentences, and None at the end of each text."""
    for text in texts:
        if isinstance(text, str | Tokens):
            raise DataError("texts must be a list of texts, each a list of sentences; found a single text; pass [text]")
        for sentence in text:
            if not isinstance(sentence, Tokens):
                raise DataError(f"sentences must be Tokens from a tokenizer; found {type(sentence).__name__}")
            yield sentence
        yield None


# --- The matrix -------------------------------------------------------------------------------------

_TEMPERATURE = 0.07  # of similarities between vectors
_SUBSTITUTE_TEMPERATURE = 0.05  # lower, because the vectors of substitutes are more similar to each other
_PENALTY = 0.01  # weight of the squared distance from the identity; preserves all directions and the scale
_N_STEPS, _LEARNING_RATE, _BATCH_WORDS = 250, 0.002, 24
_MAX_LOGITS = 1 << 24  # maximum number of logits in memory at once


def _predict_substitutes(elmo: Elmo, states: Tensor, *, show_progress: bool) -> Tensor | None:
    """Return the weighted mean softmax vectors of the words that each direction predicts (usage, width).

    For each direction, this is Σ_w p_w · v_w with p_w ∝ √(P(w | context) / P_0(w)), where v_w are unit vectors
    of the softmax. Dividing by the prior P_0 prevents words that fit everywhere from dominating. Unlike in
    ``embed_substitutes``, the directions are not combined, because each direction is the target for its own
    half of the vectors. Returns None if the model has no softmax.
    """
    softmax, vocab = elmo.softmax, elmo.vocab
    if softmax is None or vocab is None:
        return None
    weight, bias = softmax.weight.detach().float().cpu(), softmax.bias.detach().float().cpu()
    norms = weight.norm(dim=1).clamp(min=1e-12)
    log_priors = torch.from_numpy(compute_log_priors(len(weight)))
    special = [vocab.id(word) for word in (vocab.bos, vocab.eos, vocab.unknown) if word in vocab]
    substitutes = torch.empty_like(states)
    size = max(1, _MAX_LOGITS // len(weight))
    for begin in track_progress(range(0, len(states), size), "Substitutes", is_shown=show_progress):
        rows = slice(begin, begin + size)
        for half, out in zip(states[rows].chunk(2, dim=1), substitutes[rows].chunk(2, dim=1), strict=True):
            scores = (F.linear(half, weight, bias).log_softmax(dim=1) - log_priors) / 2
            scores[:, special] = -torch.inf
            out.copy_((scores.softmax(dim=1) / norms) @ weight)
    return substitutes


def _fit_matrix(layers: Tensor, substitutes: Tensor | None, width: int, seed: int) -> Tensor:
    """Fit the matrix (width, width) so that the usages of a pair, and usages with similar substitutes, are similar."""
    identity = torch.eye(width)
    matrix = identity.clone().requires_grad_()
    optimizer = torch.optim.Adam([matrix], _LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    partners = F.one_hot(torch.arange(N_USAGES) ^ 1, N_USAGES).float()  # (usage, usage)
    words = torch.arange(len(layers)).view(-1, N_USAGES)
    for _ in range(_N_STEPS):
        rows = words[torch.randperm(len(words), generator=generator)[:_BATCH_WORDS]].flatten()
        mean = _mean_of_layers(layers[rows], matrix)
        loss = _PENALTY * (matrix - identity).square().sum() + _contrastive_loss(mean, partners)
        if substitutes is not None:
            for half, target in zip(mean.chunk(2, 1), substitutes[rows].chunk(2, 1), strict=True):
                similar = _similarity_logits(target, _SUBSTITUTE_TEMPERATURE).softmax(dim=2)
                loss = loss + _contrastive_loss(half, similar) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return matrix.detach()


def _mean_of_layers(layers: Tensor, matrix: Tensor) -> Tensor:
    """Return the mean of all layers (usage, width) after the LSTM layers are multiplied by the matrix."""
    lstm = layers[:, 1:].sum(dim=1)  # (usage, width)
    transformed = lstm.unflatten(1, (2, -1)) @ matrix.t()  # (usage, direction, width)
    return (layers[:, 0] + transformed.flatten(1)) / layers.size(1)


def _similarity_logits(vectors: Tensor, temperature: float) -> Tensor:
    """Return cosine / temperature for all usages of each word (word, usage, usage), with -∞ on the diagonal."""
    units = F.normalize(vectors, dim=1).unflatten(0, (-1, N_USAGES))  # (word, usage, width)
    is_same = torch.eye(N_USAGES, dtype=torch.bool)
    return (units @ units.transpose(1, 2) / temperature).masked_fill(is_same, -torch.inf)


def _contrastive_loss(vectors: Tensor, target: Tensor) -> Tensor:
    """Compute the cross-entropy of target probabilities and the softmax of similarities (van den Oord et al. 2018)."""
    log_p = _similarity_logits(vectors, _TEMPERATURE).log_softmax(dim=2)
    return -torch.where(target > 0, target * log_p, 0).sum(dim=2).mean()


def _pair_accuracy(vectors: Tensor) -> float:
    """Compute how often a usage is more similar to the other usage of its pair than to a usage of another pair."""
    cosines = _similarity_logits(vectors, 1.0)  # (word, usage, usage)
    partner = torch.arange(N_USAGES) ^ 1
    near = cosines[:, torch.arange(N_USAGES), partner, None]
    is_other = torch.ones(N_USAGES, N_USAGES, dtype=torch.bool).fill_diagonal_(False)
    is_other[torch.arange(N_USAGES), partner] = False
    return float((near > cosines)[:, is_other].float().mean())


# --- The transformed model --------------------------------------------------------------------------

_STACKS = ("forward_stack", "backward_stack")
_BATCH_ROWS = 1 << 14


def transform_states(model: Pretrained, matrix: Tensor) -> Pretrained:
    """Multiply the states of all LSTM layers by ``matrix`` (width, width) and return the transformed model.

    Skip connections add the states of two layers and both directions share one softmax, so all states are
    transformed by the same matrix. States are no longer clipped, because clipping limits each coordinate.

    Args:
        model: A model whose LSTMs have projections.
        matrix: The matrix, (width, width).

    Example:
        >>> swapped = torch.eye(elmo.width // 2).flip(0)  # the order of the coordinates does not change cosines
        >>> model = Elmo(transform_states(elmo.as_pretrained(), swapped))
    """
    lstm = model.config.lstm
    _check_projection(lstm)
    if tuple(matrix.shape) != (lstm.state_width, lstm.state_width):
        raise ShapeError(f"matrix must be {lstm.state_width} x {lstm.state_width}; found {tuple(matrix.shape)}")
    forward = matrix.double()
    inverse = torch.linalg.inv(forward)
    weights = dict(model.weights)
    for stack in _STACKS:
        for layer in range(lstm.n_layers):
            name = f"{stack}.{layer}"
            readers = [f"{name}.state_weight"] + [f"{name}.input_weight"] * (layer > 0)
            for reader in readers:  # the input of the first layer is the token layer, which stays the same
                weights[reader] = _multiply(weights[reader], inverse)
            projection = weights[f"{name}.projection"]
            weights[f"{name}.projection"] = (forward @ projection.double()).to(projection.dtype)
    softmax, warm = model.softmax, model.warm
    if softmax is not None:
        softmax = SoftmaxWeights(_multiply(softmax.weight, inverse), softmax.bias)
    if warm is not None:
        warm = WarmState(_multiply(warm.hidden, forward.t()), warm.cell)
    config = replace(model.config, encoder=replace(lstm, state_clip=None))
    return replace(model, config=config, weights=weights, softmax=softmax, warm=warm, similarity=None)


def _check_projection(lstm: LstmConfig) -> None:
    if not lstm.has_projection:
        raise ConfigError("cannot transform the states of this model: its LSTMs have no projections")


def _multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """Compute ``rows @ matrix`` in float64, some rows at a time, because a softmax may have a million rows."""
    product = torch.empty_like(rows)
    for part, out in zip(rows.split(_BATCH_ROWS), product.split(_BATCH_ROWS), strict=True):
        out.copy_(part.double() @ matrix)
    return product
