"""One sentence's vectors, and what is made of them: words, spans, phrases, the sentence.

A sentence with words marked, ``the bank by the [[bank]]``, in; the sentence and their places out.

All layers of a sentence in, what ``encode`` was asked for out: which of them, in what form.

All layers of each sentence in, the outputs of TF-Hub's elmo module out, by its names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.formats.pretrained import MixWeights
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from elmo.model.mix import LayerMix


Pooling = Literal["mean", "max", "ends"]
Vectors = NDArray[np.floating]
Span = tuple[int, int]  # begin and end, end exclusive


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """Tokens and their vectors: (time, width), or (layer, time, width) when all layers were asked for."""

    tokens: tuple[str, ...]
    vectors: Vectors | Tensor
    text: str | None = None  # None when tokens were given
    offsets: tuple[tuple[int, int], ...] | None = None  # of each token in the text, end exclusive

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        words = " ".join(self.tokens[:8])[:60] + (" …" if len(self.tokens) > 8 else "")
        return f"Encoding({words!r}, {len(self.tokens)} tokens, vectors {tuple(self.vectors.shape)})"

    def word(self, token: str, *, occurrence: int = 0) -> Vectors | Tensor:
        """The vector of one token, by its spelling."""
        places = [(i, i + 1) for i, found in enumerate(self.tokens) if found == token]
        return self.span(*_one(places, token, occurrence, self.tokens))

    def phrase(self, phrase: str, *, occurrence: int = 0, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of a phrase, such as "New York": sought in the text, or in tokens without offsets."""
        if self.text is not None and self.offsets is not None:
            whole, parts = places_of(phrase, self.text, self.offsets)
            begin, end = _one(whole or parts, phrase, occurrence, self.tokens)
            return self.characters(begin, end, pooling=pooling)
        wanted = tuple(part for part in phrase.split(" ") if part)
        size = len(wanted)
        places = [
            (i, i + size)
            for i in range(len(self.tokens) - size + 1)
            if size and self.tokens[i : i + size] == wanted
        ]
        return self.span(*_one(places, phrase, occurrence, self.tokens), pooling=pooling)

    def characters(self, begin: int, end: int, *, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of the tokens that overlap text[begin:end]."""
        if self.offsets is None:
            raise DataError("this sentence was given as tokens and has no character offsets; use span()")
        inside = [i for i, (first, last) in enumerate(self.offsets) if first < end and last > begin]
        if not inside:
            raise DataError(
                f"no token overlaps characters {begin}..{end} of a text of {len(self.text or '')}"
            )
        return self.span(inside[0], inside[-1] + 1, pooling=pooling)

    def span(self, begin: int, end: int, *, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of tokens begin..end (end exclusive), pooled: mean, max, or [first; last]."""
        if not 0 <= begin < end <= len(self.tokens):
            raise DataError(f"expected a span within 0..{len(self.tokens)} tokens, found {begin}..{end}")
        return pool(self.vectors[..., begin:end, :], pooling)

    def sentence(self, pooling: Pooling = "mean") -> Vectors | Tensor:
        """The vector of the whole sentence; zero for a sentence without tokens."""
        if self.tokens:
            return self.span(0, len(self.tokens), pooling=pooling)
        shape = (*self.vectors.shape[:-2], 1, self.vectors.shape[-1])  # as if of one token that is zero
        if isinstance(self.vectors, np.ndarray):
            return pool(np.zeros(shape, dtype=self.vectors.dtype), pooling)
        return pool(self.vectors.new_zeros(shape), pooling)


def pool(vectors: Vectors | Tensor, pooling: Pooling) -> Vectors | Tensor:
    """(…, time, width) to (…, width), or (…, 2 · width) for the two ends side by side."""
    if pooling == "mean":
        return vectors.mean(-2)
    if pooling == "max":
        return vectors.max(-2) if isinstance(vectors, np.ndarray) else vectors.amax(-2)
    if pooling == "ends":
        first, last = vectors[..., 0, :], vectors[..., -1, :]
        if isinstance(vectors, np.ndarray):
            return np.concatenate([first, last], axis=-1)
        import torch

        return torch.cat([cast("Tensor", first), cast("Tensor", last)], dim=-1)
    raise ConfigError(f"pooling must be 'mean', 'max' or 'ends', not {pooling!r:.40}")


def similarity(a: Vectors | Tensor, b: Vectors | Tensor) -> float | Vectors:
    """Cosine of two vectors, or the matrix of cosines of the rows of ``a`` with the rows of ``b``.

    Sums are taken in float64, so that half-precision vectors lose nothing more here. A zero vector is
    like nothing: its cosine is 0.
    """
    x, y = (np.asarray(_to_numpy(v), dtype=np.float64) for v in (a, b))
    if x.ndim not in (1, 2) or y.ndim not in (1, 2) or x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"expected vectors or rows of one width, found shapes {x.shape} and {y.shape}")
    unit_x, unit_y = _units(np.atleast_2d(x)), _units(np.atleast_2d(y))
    cosines = np.clip(unit_x @ unit_y.T, -1.0, 1.0)
    if x.ndim == 1 and y.ndim == 1:
        return float(cosines[0, 0])
    return cosines.reshape(x.shape[:-1] + y.shape[:-1])


def _units(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def _to_numpy(vectors: Vectors | Tensor) -> Vectors:
    if isinstance(vectors, np.ndarray):
        return vectors
    if hasattr(vectors, "detach"):
        return cast("Tensor", vectors).detach().cpu().double().numpy()
    return np.asarray(vectors)


def places_of(
    phrase: str, text: str, offsets: Sequence[Span], *, ignore_case: bool = False
) -> tuple[list[Span], list[Span]]:
    """Where a phrase stands in ``text``: as whole tokens, and as a part of them that may be a word.

    White space in the phrase stands for any white space in the text.
    """
    spelled = r"\s+".join(re.escape(part) for part in phrase.split())
    begins, ends = {begin for begin, _ in offsets}, {end for _, end in offsets}
    whole: list[Span] = []
    parts: list[Span] = []
    if not spelled:
        return whole, parts
    # looking ahead: places may overlap
    for match in re.finditer(f"(?=({spelled}))", text, re.IGNORECASE if ignore_case else re.NOFLAG):
        begin, end = match.span(1)
        if begin in begins and end in ends:
            whole.append((begin, end))
        elif not (_is_inside_word(text, begin) or _is_inside_word(text, end)):
            parts.append((begin, end))
    return whole, parts


def _is_inside_word(text: str, at: int) -> bool:
    """Whether a word goes on across this place: "bank" is not in "banker", but 苹果 may be in 苹果树.

    Scripts without capitals either put no spaces between words (Chinese, Thai) or join particles to them
    (Korean, Arabic), so there a part of a token may well be the word.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.combining(after):
        return True
    return all(c.isalnum() and unicodedata.category(c) != "Lo" for c in (before, after))


def _one(places: Sequence[Span], what: str, occurrence: int, tokens: tuple[str, ...]) -> Span:
    if not 0 <= occurrence < len(places):
        shown = " ".join(tokens[:12])[:200] + (" …" if len(tokens) > 12 else "")
        if not places:
            raise DataError(f"{what[:40]!r} is not in the sentence: {shown!r}")
        raise DataError(
            f"occurrence must lie in 0..{len(places) - 1} for {what[:40]!r}, found {occurrence}; "
            f"the sentence: {shown!r}"
        )
    return places[occurrence]


MARK = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def without_marks(sentence: str, number: int) -> tuple[str, tuple[Span, ...]]:
    """The sentence without its marks, and where each of them stood; ``number`` is the sentence's."""
    plain, spans, at = "", [], 0
    for match in MARK.finditer(sentence):
        if not match[1].strip():
            raise DataError(
                f"sentence {number}: expected one word marked by [[ ]], found a mark without any: "
                f"{start_of(sentence)!r}"
            )
        plain += sentence[at : match.start()]
        spans.append((len(plain), len(plain) + len(match[1])))
        plain, at = plain + match[1], match.end()
    return plain + sentence[at:], tuple(spans)


def unmarked(sentence: str, number: int) -> tuple[str, Span | None]:
    """The same for a sentence that may mark one word; None where it marks none."""
    plain, spans = without_marks(sentence, number)
    if len(spans) > 1:
        raise DataError(
            f"sentence {number}: expected one word marked by [[ ]], found {len(spans)}: "
            f"{start_of(sentence)!r}"
        )
    return plain, spans[0] if spans else None


def find_word(word: str, text: str, offsets: Sequence[Span]) -> Span | None:
    """The first place of the word: whole tokens before parts of them, its spelling before other case."""
    spelled = places_of(word, text, offsets)
    in_any_case = places_of(word, text, offsets, ignore_case=True)
    found = next((places for pair in zip(spelled, in_any_case, strict=True) for places in pair if places), [])
    return found[0] if found else None


def joined_places(tokens: Sequence[str]) -> tuple[Span, ...]:
    """Where tokens stand in the text that spaces between them make."""
    found, at = [], 0
    for token in tokens:
        found.append((at, at + len(token)))
        at += len(token) + 1
    return tuple(found)


def start_of(text: str) -> str:
    """As much of a sentence as a message has room for."""
    return text if len(text) <= 60 else text[:59] + "…"


LayerChoice = Literal["average", "top", "all", "concat"]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def layer_taker(layers: LayerChoice | int | LayerMix, n_layers: int) -> Callable[[Tensor], Tensor]:
    """A function from all layers (layer, time, width) to the vectors asked for."""
    import torch

    from elmo.model.bilm import Layers
    from elmo.model.mix import LayerMix

    if isinstance(layers, LayerMix):
        mix = layers

        def mixed(states: Tensor) -> Tensor:
            mask = torch.ones(1, states.size(1), dtype=torch.bool, device=states.device)
            was_training = mix.training
            mix.eval()  # no dropout here
            try:
                with torch.inference_mode():
                    return mix(Layers(states[None], mask, has_boundaries=False))[0]
            finally:
                mix.train(was_training)

        return mixed
    if isinstance(layers, int | np.integer) and not isinstance(layers, bool):
        if not -n_layers <= layers < n_layers:
            raise ConfigError(f"layer must lie in 0..{n_layers - 1}, found {layers}")
        return lambda states: states[int(layers)].clone()  # a view would keep all layers in memory
    named: dict[str, Callable[[Tensor], Tensor]] = {
        "average": lambda states: states.mean(dim=0),
        "top": lambda states: states[-1].clone(),
        "all": lambda states: states,
        "concat": lambda states: states.transpose(0, 1).flatten(start_dim=1),
    }
    if not isinstance(layers, str) or layers not in named:
        found = repr(layers) if isinstance(layers, str | bool) else type(layers).__name__
        raise ConfigError(
            f"layers must be {', '.join(named)}, 0..{n_layers - 1} or a LayerMix, not {found[:40]}"
        )
    return named[layers]


def check_dtype(dtype: str | None, known: Sequence[str] = DTYPES) -> None:
    """Refuse a precision that is not one of those."""
    if dtype is not None and dtype not in known:
        raise ConfigError(f"dtype must be one of {', '.join(known)}, not {dtype!r:.40}")


def finisher(*, as_tensor: bool, dtype: str | None) -> Callable[[Tensor], Any]:
    """A function that brings vectors into the form and precision asked for."""
    import torch

    check_dtype(dtype)
    if dtype == "bfloat16" and not as_tensor:
        raise ConfigError("numpy has no bfloat16; ask for tensors with as_tensor=True, or for float16")

    def finish(vectors: Tensor) -> Any:
        if dtype is not None:
            vectors = vectors.to(getattr(torch, dtype))
        if as_tensor:
            # a tensor made in inference mode could not be used in a user's own training
            return vectors.clone() if vectors.is_inference() else vectors
        if vectors.dtype == torch.bfloat16:
            vectors = vectors.float()
        return vectors.cpu().contiguous().numpy()

    return finish


def outputs(
    layers: Iterable[Tensor], lengths: Sequence[int], config: BiLmConfig, mix: MixWeights | None
) -> dict[str, Vectors]:
    """Padded with zeros to the longest sentence; ``mix`` weighs the layers, which share alike without it."""
    import torch

    from elmo.model.bilm import Layers
    from elmo.model.mix import LayerMix

    weights, gamma = (mix.weights, mix.gamma) if mix else (None, 1.0)
    weigh = LayerMix(config.n_layers, weights=weights, gamma=gamma, is_fixed=True)
    batch, time, half = len(lengths), max(lengths, default=0), config.width // 2
    lstm_names = [f"lstm_outputs{i}" for i in range(1, config.n_layers)]
    found: dict[str, Vectors] = {"word_emb": np.zeros((batch, time, half), np.float32)}
    for name in (*lstm_names, "elmo"):
        found[name] = np.zeros((batch, time, config.width), np.float32)
    found["default"] = np.zeros((batch, config.width), np.float32)
    for k, (given, n) in enumerate(zip(layers, lengths, strict=True)):
        if n == 0:
            continue
        states = given.float().cpu()
        mask = torch.ones(1, n, dtype=torch.bool)
        with torch.inference_mode():
            mixed = weigh(Layers(states[None], mask, has_boundaries=False))[0]
        found["word_emb"][k, :n] = states[0, :, :half]
        for i, name in enumerate(lstm_names, start=1):
            found[name][k, :n] = states[i]
        found["elmo"][k, :n] = mixed
        found["default"][k] = mixed.mean(dim=0)  # over true tokens: the padding is not among them
    return found


def true_tokens(
    sentences: Iterable[str | Sequence[str] | Tokens] | str | None,
    tokens: Sequence[Sequence[str]] | None,
    lengths: Sequence[int] | None,
) -> list[Sequence[str]]:
    """The tokens of each row, from either of the module's two signatures: text, or tokens with lengths."""
    if (sentences is None) == (tokens is None):
        raise DataError("give either sentences, or tokens with their lengths")
    if tokens is None:
        if lengths is not None:
            raise DataError("lengths go with tokens, not with sentences")
        rows = [sentences] if isinstance(sentences, str | Tokens) else cast("Iterable[str]", sentences)
        return [_split(row) for row in rows]
    for k, row in enumerate(tokens):
        if isinstance(row, str):
            raise DataError(f"row {k}: expected a list of tokens, found one string; pass it as a sentence")
    if lengths is None:
        return list(tokens)
    if len(lengths) != len(tokens):
        raise DataError(f"expected a length for each of {len(tokens)} rows, found {len(lengths)}")
    for k, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
        if not 0 <= length <= len(row):
            raise DataError(f"row {k} has {len(row)} tokens, but its length is given as {length}")
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def _split(row: str | Sequence[str] | Tokens) -> Sequence[str]:
    """The module splits text on spaces and on nothing else."""
    if isinstance(row, str):
        return [token for token in row.split(" ") if token]
    return row.tokens if isinstance(row, Tokens) else row
