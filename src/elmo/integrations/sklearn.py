"""scikit-learn: ``ElmoVectorizer`` (one vector per text) and ``ElmoTokenVectorizer`` (one vector per token).

The estimators store only their parameters. The model is loaded on first use, by its name or path, and shared by all
estimators of a process. A pickled estimator is therefore small. Another process loads the model again, and checks that
it is the model of ``fit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.embed.encoding import Encoding, Pooling
from elmo.errors import ConfigError, DataError
from elmo.integrations.requirements import require
from elmo.jobs.sharded import compute_fingerprint

require("scikit-learn", extra="sklearn", at_least="1.6")

from sklearn import get_config  # noqa: E402
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin  # noqa: E402

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from elmo.embed.encoding import LayerChoice, Vectors

Container = Literal["default", "pandas", "polars"]
BATCH = 1024  # texts that are encoded at once; their token vectors are in memory until they are pooled


class _ElmoTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):
    """What both estimators share: parameters, the model and its checks."""

    model: str | Path
    layers: LayerChoice | int
    start: Literal["zero", "warm"]
    tokenizer: str | None
    dtype: str
    device: str
    fingerprint_: str

    def fit(self, X: Iterable[Any], y: Any = None) -> Self:  # noqa: N803
        """Check the parameters and the input, and store the fingerprint of the model; nothing is learned.

        Args:
            X: Texts, or lists of tokens.
            y: Ignored.
        """
        del y
        _check_texts(X)
        self._n_features_out  # noqa: B018 -- checks the layers and the pooling
        self.fingerprint_ = self._fingerprint()
        return self

    @property
    def _n_features_out(self) -> int:
        raise NotImplementedError

    def _encode(self, texts: Sequence[Any]) -> Iterator[Encoding]:
        """Encode texts in batches; raise ``ConfigError`` if the estimator was fitted with another model."""
        elmo = self._elmo()
        expected = getattr(self, "fingerprint_", None)
        if expected is not None and (found := self._fingerprint()) != expected:
            raise ConfigError(
                f"model {str(self.model)!r:.100} must have the fingerprint {expected[:12]}…, as in fit; found "
                f"{found[:12]}…; use the other model, or fit the estimator again"
            )
        for begin in range(0, len(texts), BATCH):
            yield from elmo.encode(texts[begin : begin + BATCH], layers=self.layers, start=self.start, dtype="float32")

    def _elmo(self) -> Elmo:
        if not isinstance(self.model, str | Path):
            raise ConfigError(
                f"model must be a name or a path; found {type(self.model).__name__}; write a model with "
                "save_pretrained and pass its folder"
            )
        if self.layers == "all":
            raise ConfigError("layers must give one vector per token; found all; use concat")
        return load_shared(str(self.model), self.tokenizer, self.dtype, self.device)

    def _fingerprint(self) -> str:
        # the fingerprint of the files, because a lower precision rounds the weights
        exact = load_shared(str(self.model), self.tokenizer, "float32", "cpu")
        return _shared_fingerprint(exact, self.start, "sense" if self.layers == "sense" else "average")

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        tags.no_validation = True
        return tags


class ElmoVectorizer(_ElmoTransformer, auto_wrap_output_keys=("transform",)):
    """Converts texts to vectors, as a transformer for pipelines.

    >>> from elmo.integrations import ElmoVectorizer
    >>> ElmoVectorizer().fit_transform(["I sat by the bank .", "She ran ."]).shape
    (2, 320)
    """

    def __init__(
        self,
        model: str | Path = "en",
        *,
        layers: LayerChoice | int = "average",
        pooling: Pooling = "mean",
        start: Literal["zero", "warm"] = "zero",
        tokenizer: str | None = None,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        """Store the parameters.

        Args:
            model: A bundled model, a folder, an archive or a Hub id, as in ``Elmo.from_pretrained``.
            layers: "average", "top", "concat" or a layer number.
            pooling: "mean", "max", or "ends" (the first and the last vector, concatenated).
            start: State at the start of a text: "zero" or "warm".
            tokenizer: Name of a tokenizer for texts. Default: the tokenizer of the model.
            dtype: Precision of the network, as in ``Elmo.from_pretrained``; the vectors are float32.
            device: Device of the network.
        """
        self.model = model
        self.layers = layers
        self.pooling: Pooling = pooling
        self.start = start
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.device = device

    def transform(self, X: Iterable[Any]) -> Vectors:  # noqa: N803
        """Return the vectors of texts, (text, width).

        Args:
            X: Texts, or lists of tokens.
        """
        texts = _as_texts(X)
        rows = np.zeros((len(texts), self._n_features_out), np.float32)
        for row, encoding in zip(rows, self._encode(texts), strict=True):
            row[:] = encoding.sentence(self.pooling)
        return rows

    @property
    def _n_features_out(self) -> int:
        empty = self._elmo().encode([[]], layers=self.layers, start=self.start)[0]
        return empty.sentence(self.pooling).shape[-1]


class ElmoTokenVectorizer(_ElmoTransformer, auto_wrap_output_keys=None):
    """Converts texts to sequences of vectors, one per token.

    The result of ``transform`` is a list with an array (time, width) per text, or a data frame per text after
    ``set_output``. Concatenate them to train a classifier of tokens.

    Args:
        model: A name or path, as in ``Elmo.from_pretrained``.
        layers: Layers of the vectors, as in ``Elmo.encode``, except "all".
        start: State at the start of a text: "zero", or "warm" (stored with the model).
        tokenizer: Name of a tokenizer. Default: the tokenizer of the model.
        dtype: Precision of the network, as in ``Elmo.from_pretrained``.
        device: Device of the network.

    Example:
        >>> vectors = ElmoTokenVectorizer().fit_transform(["The bank of the river.", "Yes."])
        >>> [len(tokens) for tokens in vectors]
        [6, 2]
    """

    def __init__(
        self,
        model: str | Path = "en",
        *,
        layers: LayerChoice | int = "average",
        start: Literal["zero", "warm"] = "zero",
        tokenizer: str | None = None,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        """Store the parameters, which are those of ``ElmoVectorizer``."""
        self.model = model
        self.layers = layers
        self.start = start
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.device = device

    def transform(self, X: Iterable[Any]) -> list[Any]:  # noqa: N803
        """Return the vectors of the tokens of each text, (time, width).

        Args:
            X: Texts, or lists of tokens.
        """
        wrap = self._container()
        return [wrap(encoding) for encoding in self._encode(_as_texts(X))]

    def set_output(  # pyright: ignore[reportIncompatibleVariableOverride] -- the method is conditional there
        self, *, transform: Container | None = None
    ) -> Self:
        """Choose the container of the vectors of a text: an array, or a data frame of pandas or polars.

        Args:
            transform: "default", "pandas" or "polars"; None leaves the current choice.
        """
        if transform is not None:
            if transform not in ("default", "pandas", "polars"):
                raise ConfigError(f"transform must be default, pandas or polars; found {transform!r:.40}")
            self._sklearn_output_config = {"transform": transform}  # clone copies this attribute
        return self

    def _container(self) -> Any:
        own: dict[str, Container] = getattr(self, "_sklearn_output_config", {})
        choice: Container = own.get("transform") or get_config()["transform_output"]
        if choice == "default":
            return lambda encoding: encoding.vectors
        names = self.get_feature_names_out()
        if choice == "pandas":
            import pandas as pd

            return lambda encoding: pd.DataFrame(encoding.vectors, index=list(encoding.tokens), columns=names)
        import polars as pl

        return lambda encoding: pl.DataFrame(encoding.vectors, schema=list(names))

    @property
    def _n_features_out(self) -> int:
        empty = self._elmo().encode([[]], layers=self.layers, start=self.start)[0]
        return empty.vectors.shape[-1]


def _as_texts(column: Any) -> list[Any]:
    _check_texts(column)
    return list(cast("Iterable[Any]", column))


def _check_texts(column: Any) -> None:
    """Reject a single string and tables; an iterator is not consumed, because ``fit_transform`` passes it on."""
    if isinstance(column, str | bytes):
        raise DataError("X must be a list of texts; found one string; pass [text]")
    if len(getattr(column, "shape", (0,))) > 1:  # a data frame would be read as the list of its column names
        raise DataError(
            f"X must be one column of texts; found a table of shape {tuple(column.shape)}; select a column, as in "
            'ColumnTransformer([("elmo", ElmoVectorizer(), "text")])'
        )
    if not isinstance(column, Iterable):
        raise DataError(f"X must be a list of texts; found {type(column).__name__}")


# --- loaded models, shared by all estimators of a process --------------------------------------------


def load_shared(source: str, tokenizer: str | None, dtype: str, device: str) -> Elmo:
    """Load a model, or return it if it was loaded before and its files have not changed."""
    return _load(source, tokenizer, dtype, device, _stamp(Path(source)))


@lru_cache(maxsize=4)
def _load(source: str, tokenizer: str | None, dtype: str, device: str, stamp: tuple[tuple[str, int, int], ...]) -> Elmo:
    del stamp
    return Elmo.from_pretrained(source, tokenizer=tokenizer, dtype=dtype, device=device)


@lru_cache(maxsize=4)
def _shared_fingerprint(elmo: Elmo, start: str, layers: str) -> str:
    return compute_fingerprint(elmo, start=start, layers=layers)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and time of change of the files of a model; nothing for a bundled model or a Hub id."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())
