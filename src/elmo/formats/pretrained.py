"""Load models of every published format; the result is a ``Pretrained``.

``load`` takes the name of a bundled or a published model, a path, an archive or a Hugging Face Hub id. It finds the
model's folder (``_find_source``), asks each format reader whether it can read the folder (``detect``), and calls the
first one that can. ``describe``, ``convert`` and ``fingerprint`` build on that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from elmo.catalog.cache import forget_by_hand
from elmo.catalog.download import MAX_GB, download_model, offline_variable
from elmo.catalog.models import CatalogModel, find_model, similar_names
from elmo.config import BiLmConfig, n_parameters, parameter_shapes
from elmo.errors import ConfigError, FormatError, raise_all
from elmo.formats import archive, hub
from elmo.formats.alignment import Alignment
from elmo.formats.archive import is_model_file
from elmo.formats.similarity import SimilarityStatistics
from elmo.storage.files import format_error, format_path, list_names, show_as
from elmo.storage.tensors import Dtype, FiniteTensors
from elmo.text.ids import ByteAlphabet, SimplifiedAlphabet, TokenIndexer, UnicodeAlphabet, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

_MAX_DEPTH = 3  # maximum depth of a model's folder inside an archive
_HUB_PREFIX = "hf:"  # before a Hub id, if a published model has the same name
DEFAULT_MODEL = "en"
_MODELS = Path(__file__).resolve().parents[1] / "models"
_KNOWN_FILES = (
    "config.json with model.safetensors, *options.json with an HDF5 file, a TensorFlow checkpoint (*.index), "
    "a TF-Hub module (saved_model.pb or tfhub_module.pb), encoder.pkl with char.dic or word.dic, or config.json with "
    "weights.th"
)


@dataclass(frozen=True)
class SoftmaxWeights:
    """The output layer, shared by the forward and the backward language model.

    Attributes:
        weight: Weights, (word, width).
        bias: Biases, (word,).
    """

    weight: Tensor
    bias: Tensor

    def problems(self, config: BiLmConfig) -> list[str]:
        """List what does not fit a model with this config, and the tensors that are not finite."""
        named = {"softmax weight": self.weight, "softmax bias": self.bias}
        problems = [f"{name} contains values that are not finite" for name in named if not _is_finite(named[name])]
        rows, width = self.weight.shape
        if width != config.encoder.state_width or tuple(self.bias.shape) != (rows,):
            problems.append(
                f"softmax: expected width {config.encoder.state_width} and bias of shape {(rows,)}, found "
                f"{width} and {tuple(self.bias.shape)}"
            )
        return problems

    @property
    def n_words(self) -> int:
        """The number of words that the model can predict."""
        return len(self.weight)


class StoredSoftmax(SoftmaxWeights):
    """The output layer in a file; it is read and checked on first use, because most commands do not predict words.

    Args:
        n_words: Number of rows, from the header of the file.
        read: Reads the tensors; raises an error if the file is damaged.
    """

    def __init__(self, n_words: int, read: Callable[[], SoftmaxWeights]) -> None:
        vars(self).update(_n_words=n_words, _read=read)  # a frozen dataclass has no assignments

    def __getattr__(self, name: str) -> Tensor:  # called for attributes that are not set yet
        if name not in ("weight", "bias"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if (read := vars(self).get("_read")) is not None:  # None: another thread has just set the attributes
            softmax = read()
            vars(self).update(weight=softmax.weight, bias=softmax.bias)
            vars(self)["_read"] = None  # unmaps the file
        return vars(self)[name]

    def __reduce__(self) -> tuple[type[SoftmaxWeights], tuple[Tensor, Tensor]]:
        return SoftmaxWeights, (self.weight, self.bias)  # another process may not have the file

    def problems(self, config: BiLmConfig) -> list[str]:
        """Return nothing; the shapes were checked in the header, and the values are checked on first use."""
        del config
        return []

    @property
    def n_words(self) -> int:
        """The number of words that the model can predict."""
        return vars(self)["_n_words"]


def _is_finite(tensor: Tensor) -> bool:
    # A sum is finite only if all values are, and is much faster to compute. It may overflow; then look at all values.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


@dataclass(frozen=True)
class WarmState:
    """A start state stored with the model: the mean LSTM state between sentences of running text.

    Attributes:
        hidden: Hidden states, (direction, layer, width).
        cell: Cells, (direction, layer, cell).
    """

    hidden: Tensor
    cell: Tensor

    def problems(self, config: BiLmConfig) -> list[str]:
        """List the tensors that do not fit a model with this config, or that are not finite."""
        problems = []
        for name, shape in warm_shapes(config).items():
            tensor: Tensor = getattr(self, name)
            if tuple(tensor.shape) != shape:
                problems.append(f"{name}: expected shape {shape}, found {tuple(tensor.shape)}")
            elif not tensor.isfinite().all():
                problems.append(f"{name} contains values that are not finite")
        return problems


def warm_shapes(config: BiLmConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a warm state, which only LSTMs have."""
    lstm = config.lstm
    return {"hidden": (2, lstm.n_layers, lstm.state_width), "cell": (2, lstm.n_layers, lstm.cell_width)}


@dataclass(frozen=True)
class MixWeights:
    """A published layer mix (Eq. 1 of the paper): one weight per layer, before the softmax, and γ.

    Attributes:
        weights: One weight per layer, before the softmax.
        gamma: The scale γ.
    """

    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class Pretrained:
    """A model as read from its files.

    The constructor checks that all parts fit together and reports every mismatch in one ``FormatError``.

    Args:
        config: Sizes of the network.
        weights: Parameters, with the names and shapes of ``config.parameter_shapes``.
        format: Name of the file format, as ``elmo info`` shows it.
        vocab: Words of the word table or of the softmax, in id order.
        characters: Ids of the characters of a Unicode alphabet.
        softmax: The output layer.
        warm: The warm state.
        similarity: How similar random usages of the same word are.
        alignment: Matrices that map the vectors to the coordinates of another model.
        mix: A published layer mix.
        metadata: JSON values; ``"tokenizer"`` names the tokenizer of the training text.
    """

    config: BiLmConfig
    weights: Mapping[str, Tensor]
    format: str
    vocab: Vocabulary | None = None
    characters: Mapping[str, int] | None = None
    softmax: SoftmaxWeights | None = None
    warm: WarmState | None = None
    similarity: SimilarityStatistics | None = None
    alignment: Alignment | None = None
    mix: MixWeights | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if mismatches := self._mismatches():
            raise_all(mismatches, subject=f"{self.format} model")

    def indexer(self) -> TokenIndexer:
        """Build the indexer that converts tokens to the ids that the token layer reads."""
        alphabet, chars = None, self.config.chars
        if chars is not None and self.config.alphabet == "unicode":
            alphabet = UnicodeAlphabet(self.characters or {}, chars.max_characters)
        elif chars is not None:
            is_simplified = self.config.alphabet == "simplified"
            alphabet = (SimplifiedAlphabet if is_simplified else ByteAlphabet)(chars.max_characters)
        return TokenIndexer(alphabet, self.vocab if self.config.words else None)

    def check_unaligned(self, action: str) -> None:
        """Raise ``ConfigError`` if the model is aligned; ``action`` is what cannot be done then."""
        if self.alignment is not None:
            raise ConfigError(f"cannot {action} an aligned model; use the model from which 'elmo align' made it")

    def _mismatches(self) -> list[str]:
        """List everything that does not fit together."""
        config = self.config
        expected = parameter_shapes(config)
        problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in self.weights]
        problems += [f"unexpected {name}" for name in self.weights if name not in expected]
        for name, weight in self.weights.items():
            if name in expected and tuple(weight.shape) != expected[name]:
                problems.append(f"{name}: expected {expected[name]}, found {tuple(weight.shape)}")
        if not isinstance(self.weights, FiniteTensors):
            problems += [
                f"{name} contains values that are not finite"
                for name, weight in self.weights.items()
                if not _is_finite(weight)
            ]
        if config.words and (self.vocab is None or len(self.vocab) != config.words.n_words):
            problems.append(
                f"a word table of {config.words.n_words} rows needs a vocabulary of the same size; found "
                f"{'none' if self.vocab is None else len(self.vocab)}"
            )
        if config.alphabet == "unicode" and self.characters is None:
            problems.append("a Unicode alphabet needs a character dictionary; found none")
        if self.characters is not None and config.chars is not None:
            n = config.chars.n_characters
            outside = [i for i in self.characters.values() if not 0 <= i < n]
            if outside:
                problems.append(f"character ids must be in 0..{n - 1}; found {outside[0]!r:.40}")
        if self.softmax is not None:
            rows = self.softmax.n_words
            problems += self.softmax.problems(config)
            if self.vocab is not None and len(self.vocab) != rows:
                problems.append(f"softmax has {rows} rows, but the vocabulary has {len(self.vocab)} words")
        if self.warm is not None and config.encoder_name != "lstm":
            problems.append(f"a warm state needs LSTM layers; found {config.encoder_name} layers")
        elif self.warm is not None:
            problems += [f"warm state {problem}" for problem in self.warm.problems(config)]
        if self.alignment is not None:
            problems += [f"alignment {problem}" for problem in self.alignment.problems(config)]
        if self.mix is not None and len(self.mix.weights) != config.n_layers:
            problems.append(f"mix: expected {config.n_layers} weights, found {len(self.mix.weights)}")
        if self.mix is not None and not all(map(math.isfinite, (*self.mix.weights, self.mix.gamma))):
            problems.append("mix contains values that are not finite")
        return problems


def fingerprint(model: Pretrained, *, with_warm: bool = False, with_softmax: bool = False) -> str:
    """Compute the SHA-256 of everything that determines a model's vectors; it is the same in every file format.

    This includes the config, the alphabet, the words of a word table, the weights and an alignment. A published mix and
    the metadata do not change the vectors and are not included.

    Args:
        model: The model.
        with_warm: Whether to include the warm state, which affects results computed with ``start="warm"``.
        with_softmax: Whether to include the softmax and its vocabulary, which affect vectors with ``layers="sense"``.

    Example:
        >>> fingerprint(load("en")) == fingerprint(load(bundled_folder("en")))
        True
    """
    digest = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        line = json.dumps(
            [name, value], sort_keys=True
        )  # always one line, so that two different lists of parts never give the same bytes
        digest.update(line.encode() + b"\n")

    config = model.config.to_json()
    if "lstm" in config:  # some publishers write a clip as 3, others as 3.0
        config["lstm"] |= {key: float(value) for key, value in config["lstm"].items() if type(value) is int}
    add("config", config)
    if model.characters is not None:
        add("characters", dict(model.characters))
    has_softmax = with_softmax and model.softmax is not None and model.vocab is not None
    if model.vocab and (model.config.words or has_softmax):
        vocab = model.vocab
        add("words", [vocab.bos, vocab.eos, vocab.unknown, *vocab.words])
    tensors = dict(model.weights)
    if has_softmax and model.softmax is not None:
        tensors |= {"softmax.weight": model.softmax.weight, "softmax.bias": model.softmax.bias}
    if with_warm and model.warm:
        tensors |= {"warm.hidden": model.warm.hidden, "warm.cell": model.warm.cell}
    if model.alignment is not None:
        tensors |= {f"alignment.{name}": matrix for name, matrix in model.alignment.tensors().items()}
    for name in sorted(tensors):
        add(name, list(tensors[name].shape))
        array = tensors[name].detach().cpu().float().contiguous().numpy()
        digest.update(array.astype("<f4", copy=False).reshape(-1).view("u1").data)
    return digest.hexdigest()


# --- loading and converting ----------------------------------------------------------------------


class FormatReader(Protocol):
    """The interface that the module of each format implements.

    Example:
        >>> reader = detect(bundled_folder("en"))
        >>> reader.NAME
        'elmo'
    """

    @property
    def NAME(self) -> str:  # noqa: N802  a constant of the module
        """Name of the format, as ``elmo info`` shows it."""
        ...

    def can_read(self, folder: Path) -> bool:
        """Return whether the folder contains the files of this format."""
        ...

    def read(self, folder: Path) -> Pretrained:
        """Read the model in the folder."""
        ...


@dataclass(frozen=True)
class ModelInfo:
    """The summary of a model that ``elmo info`` shows.

    Args:
        source: The name or path that was loaded.
        format: Name of the file format.
        files: Size of each file in bytes; for an archive, of the unpacked files.
        config: Sizes of the network.
        n_parameters: Number of weights.
        n_words: Size of the vocabulary, if there is one.
        has_softmax: Whether the model has an output layer.
        has_warm: Whether the model has a warm state.
        has_mix: Whether the model has a published layer mix.
        fingerprint: SHA-256 of config and weights; it is the same in every file format.
        metadata: Other values from the model's files, such as training options.
    """

    source: str
    format: str
    files: dict[str, int]
    config: BiLmConfig
    n_parameters: int
    n_words: int | None
    has_softmax: bool
    has_warm: bool
    has_mix: bool
    fingerprint: str
    metadata: dict[str, object]


def load(source: str | Path | None = None) -> Pretrained:
    """Read a model of any published format.

    Args:
        source: The name of a bundled model (None means the English one), a folder, an archive, one of the
            model's files, the name of a published model (``elmo.catalog``), or a Hugging Face Hub id (``org/name`` or
            ``org/name@revision``). If a folder has the same name as a bundled model, write ``./en`` to load the
            folder. A folder takes precedence over a published model, and a published model over one on the Hub with
            the same name; ``hf:org/name`` always means the Hub.

    Example:
        >>> model = load("en")
        >>> model.config == elmo.config
        True
    """
    with _find_source(source) as found:
        return _read(found)


def absolute_source(source: str | Path | None = None) -> str:
    """Return a source that ``load`` also understands from another working directory: a name or an absolute path."""
    if source is None:
        return DEFAULT_MODEL
    if isinstance(source, str) and (source in bundled_models() or not Path(source).exists()):
        return source
    return str(Path(source).absolute())


def describe(source: str | Path | None = None) -> ModelInfo:
    """Load a model and summarize it; ``source`` is as for ``load``.

    Example:
        >>> info = describe("en")
        >>> info.has_softmax, info.has_warm
        (True, True)
    """
    with _find_source(source) as found:
        model = _read(found)
        files = {name: size for name, size in _file_sizes(found.folder) if is_model_file(name)}
    if model.softmax is not None:
        _ = model.softmax.weight  # raises an error if the file is damaged
    return ModelInfo(
        source=DEFAULT_MODEL if source is None else str(source),
        format=model.format,
        files=files,
        config=model.config,
        n_parameters=n_parameters(model.config),
        n_words=None if model.vocab is None else len(model.vocab),
        has_softmax=model.softmax is not None,
        has_warm=model.warm is not None,
        has_mix=model.mix is not None,
        fingerprint=fingerprint(model),
        metadata=dict(model.metadata),
    )


def convert(
    source: str | Path | None,
    out: str | Path,
    *,
    to: Literal["native", "hdf5", "onnx"] = "native",
    dtype: Dtype | None = None,
) -> None:
    """Load a model of any published format and write it to a new folder.

    Args:
        source: The model, as for ``load``.
        out: The folder to create.
        to: Output format: ``native`` is elmo's own (with checksums and a model card); ``hdf5`` is for AllenNLP,
            bilm-tf and simple_elmo; ``onnx`` is for ONNX Runtime, for example in a browser.
        dtype: Precision of the weights in the file; int8 has a scale for each row of a matrix and takes a quarter of
            the space of float32; hdf5 supports float32 only, and onnx float32 and float16.
            Default: float32; for onnx, the smallest type that changes no weight.

    Example:
        >>> convert("en", "half", dtype="float16")
        >>> Elmo.from_pretrained("half").width == elmo.width
        True
    """
    from elmo.formats import bilm_hdf5, native, onnx

    if to not in ("native", "hdf5", "onnx"):
        raise ConfigError(f"convert: to must be 'native', 'hdf5' or 'onnx'; found {to!r:.40}")
    if to == "hdf5" and dtype not in (None, "float32"):
        raise ConfigError(f"convert: dtype must be float32 for to='hdf5'; found {dtype!r:.40}; use to='native'")
    model = load(source)
    if to == "native":
        native.write(model, Path(out), dtype=dtype or "float32")
    elif to == "hdf5":
        bilm_hdf5.write(model, Path(out))
    else:
        onnx.write(model, Path(out), dtype=dtype)


def bundled_models() -> tuple[str, ...]:
    """Return the names of the bundled models, the default first.

    Example:
        >>> bundled_models()
        ('en', 'zh')
    """
    names = sorted(path.parent.name for path in _MODELS.glob("*/config.json"))
    return tuple(sorted(names, key=lambda name: name != DEFAULT_MODEL))


def bundled_folder(name: str = DEFAULT_MODEL) -> Path:
    """Return the folder of a bundled model.

    Args:
        name: Name of the model.

    Example:
        >>> bundled_folder("zh").name
        'zh'
    """
    names = bundled_models()
    if not names:
        raise ConfigError(
            "no model is bundled with this installation; pass a path or a Hub id such as org/name (on the "
            "command line with --model, or in the environment variable ELMO_MODEL)"
        )
    if name not in names:
        raise ConfigError(f"bundled model must be one of {', '.join(names)}; found {name[:40]!r}")
    return _MODELS / name


def bundled_name(checksum: str, *, with_warm: bool = False, with_softmax: bool = False) -> str | None:
    """Return the name of the bundled model with this fingerprint, or None.

    Args:
        checksum: The fingerprint.
        with_warm: Whether the fingerprint includes the warm state.
        with_softmax: Whether the fingerprint includes the softmax and its vocabulary.

    Example:
        >>> bundled_name(fingerprint(load("zh")))
        'zh'
    """
    for name in bundled_models():
        if fingerprint(load(name), with_warm=with_warm, with_softmax=with_softmax) == checksum:
            return name
    return None


def detect(folder: str | Path) -> FormatReader | None:
    """Return the reader for the model in a folder, or None if no format matches.

    If a folder contains files of several formats, elmo's native format is preferred, because it has checksums.

    Args:
        folder: The folder.

    Example:
        >>> detect(bundled_folder("en")).NAME
        'elmo'
        >>> detect(Path.cwd()) is None
        True
    """
    return next((reader for reader in _readers() if reader.can_read(Path(folder))), None)


def _readers() -> Iterator[FormatReader]:
    # readers are imported only when needed: most models have the first or second format
    from elmo.formats import native

    yield native
    from elmo.formats import bilm_hdf5

    yield bilm_hdf5
    from elmo.formats import allennlp, bilm_checkpoint, many_langs, tf_hub

    yield bilm_checkpoint
    yield tf_hub
    yield many_langs
    yield allennlp


@dataclass(frozen=True)
class _Source:
    """Where the files of a model are.

    Args:
        folder: The folder with the model.
        is_temporary: Whether the folder is removed after loading.
        model: The entry of the table of published models, if the name was one of these.
    """

    folder: Path
    is_temporary: bool = False
    model: CatalogModel | None = None


def _read(source: _Source) -> Pretrained:
    folder = source.folder
    reader = _choose_reader(folder, source.model)
    if reader is None:
        files = ", ".join(map(format_path, list_names(folder)[:8])) or "nothing"
        raise FormatError(f"{format_path(folder)}: expected {_KNOWN_FILES}; found {files}")
    try:
        model = _read_with(reader, source)
    except ConfigError as error:  # a size in a file is out of range
        raise FormatError(f"{format_path(folder)}: {error}") from error
    except OSError as error:  # a disk or network failure in the middle of a file
        raise FormatError(f"cannot read {format_path(folder)}: {format_error(error)}") from error
    if source.model is None:
        return model
    _announce(source.model)
    about = {"catalog": source.model.name, "tokenizer": source.model.tokenizer}
    return replace(model, metadata={**about, **model.metadata})


def _choose_reader(folder: Path, model: CatalogModel | None) -> FormatReader | None:
    """Return the reader for a folder: the one for the stated format of a published model, or else the first one."""
    if model is not None:
        for reader in _readers():
            if model.format == reader.NAME and reader.can_read(folder):
                return reader
    return detect(folder)


def _read_with(reader: FormatReader, source: _Source) -> Pretrained:
    from elmo.formats import native

    if reader is native and source.is_temporary:  # mapped weights would be lost when the folder is removed
        return native.read(source.folder, is_mapped=False)
    return reader.read(source.folder)


@cache
def _announce(model: CatalogModel) -> None:
    """Log once what a published model expects as input; a warning, if the input is not plain text of its language."""
    is_plain = model.input == "tokenized text"
    level = logging.INFO if is_plain else logging.WARNING
    logger.log(level, "%s expects %s (tokenizer: %s)", model.name, model.input, model.tokenizer)


@contextmanager
def _find_source(source: str | Path | None) -> Iterator[_Source]:
    """Find or fetch the folder with the model."""
    if source is None:
        source = bundled_folder()
    elif source == "":  # an unset shell variable, not a request for the bundled model
        raise ConfigError("model must be a name, a path or a Hub id; found an empty string")
    elif isinstance(source, str) and source in bundled_models():
        source = bundled_folder(source)
    path = Path(source)
    model = find_model(source) if isinstance(source, str) else None
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # for example, the name is too long
        raise FormatError(f"cannot open {format_path(path)!s:.200}: {error.strerror}") from error
    if model is not None and (is_folder or is_file):
        logger.warning("%s is a path here, so the published model with this name is not loaded", format_path(path))
    if is_folder:
        with _open_folder(path) as found:
            yield found
    elif is_file and is_model_file(path.name):  # a file of a model stands for its folder
        yield _Source(path.parent)
    elif is_file and archive.is_archive(path):
        with _open_archive(path) as folder:
            yield _Source(folder, is_temporary=True)
    elif is_file:
        raise FormatError(f"{format_path(path)}: expected the folder or archive of a model, found another file")
    elif model is not None:
        with _open_published(model, str(source)) as found:
            yield found
    elif (
        isinstance(source, str)
        and (repo := hub.split_id(source.removeprefix(_HUB_PREFIX)))
        and (source.startswith(_HUB_PREFIX) or not _looks_like_path(path))
    ):
        yield _Source(_download_from_hub(source, repo))
    else:
        raise FormatError(
            f"{format_path(path)!s:.200}: no such folder, archive or Hub id (org/name); bundled models: "
            f"{', '.join(bundled_models()) or 'none'}; 'elmo models' lists the published ones"
        )


@contextmanager
def _open_folder(folder: Path) -> Iterator[_Source]:
    """Yield a folder that the user names; if it contains only an archive, yield the unpacked archive."""
    archives = archive.find_archives(folder) if detect(folder) is None else []
    if len(archives) == 1:
        with _open_archive(archives[0]) as unpacked:
            yield _Source(unpacked, is_temporary=True)
    else:
        yield _Source(folder)


@contextmanager
def _open_archive(path: Path) -> Iterator[Path]:
    """Unpack an archive, and yield the folder in it that contains the model."""
    is_complete = lambda folder: bool(_find_models(folder))  # noqa: E731
    with archive.unpacked(path, is_complete=is_complete) as root, show_as(root, path):
        yield _only_model(root, path)


@contextmanager
def _open_published(model: CatalogModel, name: str) -> Iterator[_Source]:
    """Download a published model or find it in the cache, and yield its folder."""
    if hub.split_id(name) is not None:
        logger.info("%s is a published model of this name; %s%s would be the one on the Hub", name, _HUB_PREFIX, name)
    if model.hub is not None and (repo := hub.split_id(model.hub)):
        yield _Source(hub.download(*repo, offline=offline_variable()), model=model)
        return
    files = download_model(model)
    try:
        with _open_files(files.folder, model) as found:
            yield found
    except FormatError as error:
        if type(error) is not FormatError:
            raise
        if files.is_by_hand:
            forget_by_hand(model)  # the user may replace files that cannot be read
            raise
        raise FormatError(f"{error}; if the download is wrong, run 'elmo cache --forget {model.name}'") from error


@contextmanager
def _open_files(folder: Path, model: CatalogModel) -> Iterator[_Source]:
    """Yield the folder with the files of a published model; if they are an archive, yield it unpacked."""
    archives = [] if _find_models(folder) else archive.find_archives(folder)
    if len(archives) == 1:
        with _open_archive(archives[0]) as unpacked:
            yield _Source(unpacked, is_temporary=True, model=model)
    else:
        yield _Source(_only_model(folder, folder), model=model)


def fetch(source: str, *, max_gb: float = MAX_GB) -> Path:
    """Download a published model or a model on the Hub, verify its checksums, and return its folder.

    A later ``load`` of the same name finds it without the network. Bundled models need no download.

    Args:
        source: Name of a published or bundled model, or a Hub id.
        max_gb: Largest size of a file in GB; only for published models that are not on the Hub.

    Example:
        >>> fetch("allenai/small").name  # doctest: +SKIP
    """
    if source in bundled_models():
        return bundled_folder(source)
    model = find_model(source)
    if model is not None and model.hub is None:
        return download_model(model, max_gb=max_gb).folder
    repo = hub.split_id(model.hub if model is not None and model.hub else source.removeprefix(_HUB_PREFIX))
    if repo is None:
        raise ConfigError(
            f"expected the name of a published model or a Hub id; found {source[:80]!r}; 'elmo models' lists the "
            "published models"
        )
    return _download_from_hub(source, repo)


def _download_from_hub(name: str, repo: tuple[str, str | None]) -> Path:
    """Download a model from the Hub; if it is not there, say which published models have similar names."""
    try:
        return hub.download(*repo, offline=offline_variable())
    except FormatError as error:
        if similar := similar_names(name):
            raise FormatError(f"{error}; published models with similar names: {', '.join(similar)}") from error
        raise


def _looks_like_path(path: Path) -> bool:
    """Return whether a string in the form of a Hub id is more likely a mistyped path."""
    name = path.name
    return path.parent.is_dir() or is_model_file(name) or name.lower().endswith(archive.SUFFIXES)


def _find_models(root: Path) -> list[Path]:
    """List the folders with a model, searching level by level down to the first level with one."""
    level = [root]
    for _ in range(_MAX_DEPTH + 1):
        if matches := [folder for folder in level if detect(folder) is not None]:
            return matches
        level = [path for folder in level for path in sorted(folder.iterdir()) if path.is_dir()]
    return []


def _only_model(root: Path, source: Path) -> Path:
    """Return the only folder below ``root`` that contains a model."""
    matches = _find_models(root)
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(format_path(folder.relative_to(root)) for folder in matches[:8])
        raise FormatError(
            f"{format_path(source)}: expected one model, found {listed}; unpack the archive and load one of them"
        )
    files = ", ".join(format_path(name) for name, _ in _file_sizes(root)[:8])
    place = "in the archive" if source.is_file() else "in the folder"
    raise FormatError(f"{format_path(source)}: expected {_KNOWN_FILES} {place}; found {files or 'no model file'}")


def _file_sizes(folder: Path) -> list[tuple[str, int]]:
    """List the files below a folder with their sizes in bytes."""
    sizes = []
    for path, folders, files in os.walk(folder):
        folders.sort()
        if len(Path(path).relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()
        for name in sorted(files):
            file = Path(path, name)
            sizes.append((file.relative_to(folder).as_posix(), file.stat().st_size if file.exists() else 0))
    return sizes
