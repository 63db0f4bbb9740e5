"""``Encoding``: the vectors of one sentence, with lookup by word, phrase or position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.embed.find import Span, find_phrase
from elmo.embed.finite import MAX_HALF, OVERFLOWS, Overflow, check_array, check_finite, saturate
from elmo.errors import ConfigError, DataError, ShapeError

Pooling = Literal["mean", "max", "ends"]
LayerChoice = Literal["average", "top", "all", "concat", "sense"]
Vectors = NDArray[np.floating]

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeVar  # only for type checkers, which include it

    from elmo.model.mix import LayerMix

    VectorsT = TypeVar("VectorsT", bound=Vectors | Tensor, default=Vectors)
else:
    from typing import TypeVar

    VectorsT = TypeVar("VectorsT")
_log = logging.getLogger(__name__)
_MIN_SQUARED, _MAX_SQUARED = 1e-140, 1e140  # the squares of numbers between these are float64 numbers
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, eq=False, repr=False)
class Encoding(Generic[VectorsT]):
    """The tokens of one sentence and a vector for each of them.

    This is the result of ``Elmo.encode``. Look up a vector by word, phrase or position:

    >>> import elmo
    >>> encoding = elmo.Elmo.from_pretrained().encode("She moved to New York.")
    >>> encoding.tokens
    ('She', 'moved', 'to', 'New', 'York', '.')
    >>> time, width = encoding.vectors.shape
    >>> encoding.word("moved").shape == (width,)  # the vector of a word
    True
    >>> encoding.phrase("New York").shape == (width,)  # the mean of two tokens; see also span() and characters()
    True
    >>> encoding.sentence().shape == (width,)  # the mean of all tokens
    True

    With ``encode(..., layers="all")``, the first axis of every vector is the layer: ``vectors`` is
    (layer, time, width), and ``word("moved")`` is (layer, width). Compare vectors with ``elmo.similarity``.

    Attributes:
        tokens: The tokens.
        vectors: The vectors, (time, width) or (layer, time, width): a NumPy array, or a tensor if ``encode`` was
            called with ``as_tensor=True``. For type checkers, these are ``Encoding`` and ``Encoding[Tensor]``.
        text: The text of the sentence; None if it was passed as tokens.
        offsets: Begin and end (exclusive) of each token in ``text``; None if it was passed as tokens.
    """

    tokens: tuple[str, ...]
    vectors: VectorsT
    text: str | None = None
    offsets: tuple[Span, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        first = self.tokens[:8]
        words = " ".join(first)[:60] + (" …" if len(self.tokens) > len(first) else "")
        axes = ("layer", "time", "width")[-self.vectors.ndim :]
        shape = ", ".join(f"{axis} {size}" for axis, size in zip(axes, self.vectors.shape, strict=True))
        example = f"; for one word: .word({max(first, key=len)[:20]!r})" if first else ""
        return f"Encoding({words!r}, {len(self.tokens)} tokens, vectors ({shape}){example})"

    def word(self, token: str, *, occurrence: int = 0) -> VectorsT:
        """Return the vector of a token, which must be spelled exactly as in the sentence.

        Args:
            token: The token.
            occurrence: Index of the occurrence to use if the token occurs several times, from 0.
        """
        spans = [(i, i + 1) for i, other in enumerate(self.tokens) if other == token]
        return self.span(*self._pick(spans, token, occurrence))

    def phrase(self, phrase: str, *, occurrence: int = 0, pooling: Pooling = "mean") -> VectorsT:
        """Return the pooled vector of a phrase, such as "New York".

        The phrase is searched in the text, or in the tokens if there is no text.

        Args:
            phrase: One or more words.
            occurrence: Index of the occurrence to use if the phrase occurs several times, from 0.
            pooling: "mean", "max", or "ends" (the first and the last vector, concatenated).
        """
        if self.text is not None and self.offsets is not None:
            whole, parts = find_phrase(phrase, self.text, self.offsets)
            return self.characters(*self._pick(whole or parts, phrase, occurrence), pooling=pooling)
        words = tuple(part for part in phrase.split(" ") if part)
        size = len(words)
        spans = [
            (i, i + size) for i in range(len(self.tokens) - size + 1) if size and self.tokens[i : i + size] == words
        ]
        return self.span(*self._pick(spans, phrase, occurrence), pooling=pooling)

    def characters(self, begin: int, end: int, *, pooling: Pooling = "mean") -> VectorsT:
        """Return the pooled vector of the tokens that overlap ``text[begin:end]``."""
        if self.offsets is None:
            raise DataError("cannot find characters: the sentence was passed as tokens and has no text; use span()")
        inside = [i for i, (first, last) in enumerate(self.offsets) if first < end and last > begin]
        if not inside:
            raise DataError(
                f"no token overlaps characters {begin}..{end} of the text, which has {len(self.text or '')} characters"
            )
        return self.span(inside[0], inside[-1] + 1, pooling=pooling)

    def span(self, begin: int, end: int, *, pooling: Pooling = "mean") -> VectorsT:
        """Return the pooled vector of the tokens from ``begin`` to ``end`` (exclusive)."""
        if not 0 <= begin < end <= len(self.tokens):
            raise DataError(f"span must be within 0..{len(self.tokens)} and not empty; found {begin}..{end}")
        return cast("VectorsT", pool(self.vectors[..., begin:end, :], pooling))

    def sentence(self, pooling: Pooling = "mean") -> VectorsT:
        """Return the pooled vector of the whole sentence, which is zero if there are no tokens."""
        if self.tokens:
            return self.span(0, len(self.tokens), pooling=pooling)
        shape = (*self.vectors.shape[:-2], 1, self.vectors.shape[-1])  # one token whose vector is zero
        if isinstance(self.vectors, np.ndarray):
            return cast("VectorsT", pool(np.zeros(shape, dtype=self.vectors.dtype), pooling))
        return cast("VectorsT", pool(self.vectors.new_zeros(shape), pooling))

    def _pick(self, spans: Sequence[Span], phrase: str, occurrence: int) -> Span:
        if 0 <= occurrence < len(spans):
            return spans[occurrence]
        sentence = " ".join(self.tokens[:12])[:200] + (" …" if len(self.tokens) > 12 else "")
        if not spans:
            raise DataError(f"cannot find {phrase[:40]!r} in the sentence {sentence!r}")
        raise DataError(
            f"occurrence of {phrase[:40]!r} must be in 0..{len(spans) - 1}; found {occurrence}; sentence: {sentence!r}"
        )


def pool(vectors: Vectors | Tensor, pooling: Pooling) -> Vectors | Tensor:
    """Pool vectors (…, time, width) over time: to (…, width), or to (…, 2 · width) for "ends"."""
    if pooling == "mean":
        with np.errstate(over="ignore"):
            mean = vectors.mean(-2)
        check_finite(mean, "the means of the vectors")
        return mean
    if pooling == "max":
        return vectors.max(-2) if isinstance(vectors, np.ndarray) else vectors.amax(-2)
    if pooling == "ends":
        first, last = vectors[..., 0, :], vectors[..., -1, :]
        if isinstance(vectors, np.ndarray):
            return np.concatenate([first, last], axis=-1)
        import torch

        return torch.cat([cast("Tensor", first), cast("Tensor", last)], dim=-1)
    raise ConfigError(f"pooling must be 'mean', 'max' or 'ends'; found {pooling!r:.40}")


def similarity(a: Vectors | Tensor, b: Vectors | Tensor) -> float:
    """Return the cosine of two vectors; see ``similarities`` for the rows of matrices.

    The cosine is computed in float64, so that vectors in half precision lose no further precision. The
    cosine with a zero vector is 0. Raises ``NotFiniteError`` if a vector contains nan or inf.

    Args:
        a: A vector.
        b: Another vector, of the same width.

    Example:
        >>> river, loan = elmo.encode(["The bank of the river.", "The bank gave her a loan."])
        >>> -1 <= similarity(river.word("bank"), loan.word("bank")) <= 1
        True
    """
    if a.ndim != 1 or b.ndim != 1 or a.shape != b.shape:
        raise ShapeError(
            f"similarity needs two vectors with one axis and the same width; found shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; for the rows of matrices, use elmo.similarities"
        )
    return float(similarities(a, b))


def similarities(a: Vectors | Tensor, b: Vectors | Tensor) -> NDArray[np.float64]:
    """Return the cosines of each row of ``a`` with each row of ``b``; a vector is one row, without its axis.

    The cosines are computed in float64, so that vectors in half precision lose no further precision. The
    cosine with a zero vector is 0. Raises ``NotFiniteError`` if a vector contains nan or inf.

    Example:
        >>> first, second = elmo.encode(["The bank of the river.", "The bank gave her a loan."])
        >>> similarities(first.vectors, second.vectors).shape  # a row for each token of the first sentence
        (6, 7)
    """
    x, y = (_as_float64(vectors) for vectors in (a, b))
    for name, vectors in (("a", x), ("b", y)):
        check_array(vectors, f"the vectors {name!r}")
    if x.ndim not in (1, 2) or y.ndim not in (1, 2) or x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"vectors must have one or two axes and the same width; found shapes {x.shape} and {y.shape}")
    cosines = np.clip(_normalize(np.atleast_2d(x)) @ _normalize(np.atleast_2d(y)).T, -1.0, 1.0)
    return cosines.reshape(x.shape[:-1] + y.shape[:-1])


def _as_float64(vectors: Vectors | Tensor) -> NDArray[np.float64]:
    if hasattr(vectors, "detach"):
        vectors = cast("Tensor", vectors).detach().cpu().double().numpy()
    return np.asarray(vectors, dtype=np.float64)


def _normalize(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    if largest.size and not _MIN_SQUARED < largest.min() <= largest.max() < _MAX_SQUARED:
        rows = rows / np.where(largest > 0, largest, 1.0)  # the squares of huge or tiny numbers are inf or 0
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def layer_selector(layers: LayerChoice | int | LayerMix, n_layers: int) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the selected vectors from all layers (layer, time, width).

    ``"sense"`` needs more than the layers of a token; see ``elmo.embed.sense``.
    """
    import torch

    from elmo.model.bilm import Layers
    from elmo.model.mix import LayerMix

    if isinstance(layers, LayerMix):
        mix = layers

        def mix_layers(states: Tensor) -> Tensor:
            mask = torch.ones(1, states.size(1), dtype=torch.bool, device=states.device)
            was_training = mix.training
            mix.eval()  # without dropout
            try:
                with torch.inference_mode():
                    return mix(Layers(states[None], mask, has_boundaries=False))[0]
            finally:
                mix.train(was_training)

        return mix_layers
    if isinstance(layers, int | np.integer) and not isinstance(layers, bool):
        if not -n_layers <= layers < n_layers:
            raise ConfigError(f"layers must be a layer number in 0..{n_layers - 1}; found {layers}")
        return lambda states: states[int(layers)].clone()  # a view would keep all layers in memory
    selectors: dict[str, Callable[[Tensor], Tensor]] = {
        "average": _average,
        "top": lambda states: states[-1].clone(),
        "all": lambda states: states,
        "concat": lambda states: states.transpose(0, 1).flatten(start_dim=1),
    }
    if layers == "sense":
        raise ConfigError("layers='sense' cannot be computed from the layers of a token; use Elmo.encode")
    if not isinstance(layers, str) or layers not in selectors:
        value = repr(layers) if isinstance(layers, str | bool) else type(layers).__name__
        names = ", ".join(get_args(LayerChoice))
        raise ConfigError(f"layers must be {names}, 0..{n_layers - 1} or a LayerMix; found {value[:40]}")
    return selectors[layers]


def _average(states: Tensor) -> Tensor:
    """Average layers (layer, time, width); bit for bit like ``states.mean(dim=0)`` for up to four layers."""
    import torch

    if states.device.type != "cpu" or states.dtype != torch.float32 or states.requires_grad:
        return states.mean(dim=0)
    layers = states.numpy()  # torch would start threads, which takes longer than the sums of a sentence
    average = layers[0].copy()
    for layer in layers[1:]:
        average += layer
    average /= np.float32(len(layers))
    return torch.from_numpy(average)


def vector_converter(*, as_tensor: bool, dtype: str | None, overflow: Overflow = "warn") -> Callable[[Tensor], Any]:
    """Return a function that converts a tensor to the requested dtype, and to NumPy unless ``as_tensor``.

    ``overflow`` says what to do with numbers that are too large for float16: reduce them to the largest one, with or
    without a warning, or raise ``NotFiniteError``. The function returns None for vectors that are not finite; call it
    inside ``np.errstate(all="ignore")``.
    """
    if overflow not in OVERFLOWS:
        raise ConfigError(f"overflow must be one of {', '.join(OVERFLOWS)}; found {str(overflow)!r:.40}")
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; found {dtype!r:.40}")
    if dtype == "bfloat16" and not as_tensor:
        raise ConfigError("dtype must not be bfloat16 for NumPy arrays; use as_tensor=True, or dtype='float16'")
    is_reported = overflow != "warn"

    def convert(vectors: Tensor) -> Any:
        nonlocal is_reported
        result = _convert(vectors, as_tensor=as_tensor, dtype=dtype)
        if is_finite(result):
            return result
        if dtype != "float16" or not is_finite(vectors):
            return None
        if not is_reported:
            _log.warning("some vectors are too large for float16; their numbers were reduced to %g", MAX_HALF)
            is_reported = True
        return _convert(saturate(vectors, overflow), as_tensor=as_tensor, dtype=dtype)

    return convert


def is_finite(values: Any) -> bool:
    """Whether all numbers of an array or a tensor are finite; call it inside ``np.errstate(all="ignore")``."""
    if not isinstance(values, np.ndarray):
        import torch

        if values.device.type != "cpu" or values.dtype == torch.bfloat16:
            return bool(torch.isfinite(values).all())
        values = values.detach().numpy()
    if values.dtype == np.float16:
        return bool(np.isfinite(values).all())
    # one pass without a temporary array: a sum is finite if all numbers are finite and not extremely large
    return bool(np.isfinite(np.add.reduce(values, axis=None))) or bool(np.isfinite(values).all())


def _convert(vectors: Tensor, *, as_tensor: bool, dtype: str | None) -> Any:
    import torch

    if dtype is not None:
        vectors = vectors.to(getattr(torch, dtype))
    if as_tensor:
        # autograd cannot use tensors that were created in inference mode
        return vectors.clone() if vectors.is_inference() else vectors
    if vectors.dtype == torch.bfloat16:
        vectors = vectors.float()
    return vectors.cpu().contiguous().numpy()
