r"""The native format of elmo: a folder of safetensors, JSON and text files, with checksums.

- ``config.json``: the config of the biLM, the special words of the vocabulary, a published mix, and metadata.
- ``model.safetensors``: the weights, with the names of ``config.parameter_shapes``.
- ``vocab.txt``: one word per line, in id order, if there is a vocabulary. If any word contains a line break, a
  carriage return or a lone surrogate, config.json has ``"is_escaped": true``, and every line uses the escapes
  ``\\``, ``\n``, ``\r`` and ``\udXXX``.
- ``characters.json``: the id of each character, for a Unicode alphabet.
- ``softmax.safetensors``: ``weight`` (words, width) and ``bias`` (words), if there is an output layer.
- ``warm.safetensors``: ``hidden`` (direction, layer, width) and ``cell`` (direction, layer, cell), if a warm
  state is stored.
- ``similarity.json``: similarity statistics, if they are stored; see ``elmo.formats.similarity``.
- ``alignment.safetensors``: ``layers`` (layer, width, width) and ``sense`` (width, width), if the vectors are aligned
  to another model; see ``elmo.formats.alignment``. config.json then has the fingerprints of that model, and
  ``"format_version": 3``.
- ``SHA256SUMS``: the SHA-256 of each file above, for ``sha256sum -c``.

If config.json has ``"dtype": "int8"``, the matrices of ``model.safetensors`` (except the character vectors) and of
``softmax.safetensors`` are int8. The tensor ``NAME.scale`` has the scale of each row of ``NAME``, in float32; a weight
is its int8 number times the scale of its row. All other tensors are float32. Such models have ``"format_version": 2``.

Models with transformer layers have ``"format_version": 3``, in every precision, and a key ``transformer`` in place of
``lstm`` in their config. Models with the keys ``has_norm`` or ``highway_width`` in the config of their characters also
have ``"format_version": 3``.

``README.md`` is the model card. Users edit it, so it is never read and has no checksum.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo import __version__
from elmo.config import BiLmConfig, EncoderConfig, TransformerConfig, n_parameters, parameter_shapes
from elmo.errors import ConfigError, FormatError, OutputError, StateError, raise_all
from elmo.formats.alignment import Alignment, alignment_shapes
from elmo.formats.pretrained import MixWeights, Pretrained, SoftmaxWeights, StoredSoftmax, WarmState, warm_shapes
from elmo.formats.similarity import SimilarityStatistics, format_statistics, parse_statistics
from elmo.storage import atomic, files, tensors
from elmo.storage.atomic import atomic_file
from elmo.text.ids import UnicodeAlphabet, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

NAME = "elmo"
# Version 2 has int8 weights, version 3 transformer layers or an alignment; other files stay readable by older releases.
VERSION, INT8_VERSION, PARTS_VERSION = 1, 2, 3
CONFIG, WEIGHTS, VOCAB, CHARACTERS = "config.json", "model.safetensors", "vocab.txt", "characters.json"
SOFTMAX, WARM, SIMILARITY = "softmax.safetensors", "warm.safetensors", "similarity.json"
ALIGNMENT = "alignment.safetensors"
# config.json, which every model has, is last in SHA256SUMS, so that a truncated SHA256SUMS is detected
ORDER = (ALIGNMENT, SIMILARITY, WARM, VOCAB, SOFTMAX, WEIGHTS, CHARACTERS, CONFIG)

logger = logging.getLogger(__name__)


def can_read(folder: Path) -> bool:
    """Return whether the folder contains the files that every model of this format has."""
    return {CONFIG, WEIGHTS} <= set(files.list_names(folder))


# --- reading -------------------------------------------------------------------------------------


def read(folder: Path, *, verify: bool = True, is_mapped: bool = True) -> Pretrained:
    """Read a model.

    Args:
        folder: The model's folder.
        verify: Compare every file with its recorded SHA-256 before using it.
        is_mapped: Map float32 weights into memory; they are then read from the file when they are used.
    """
    source = _VerifiedFolder(folder, verify=verify, is_mapped=is_mapped)
    values = source.config()
    config, n_words, is_int8 = values.bilm, values.n_softmax_words, values.is_int8
    shapes = parameter_shapes(config)
    weights = source.tensors(WEIGHTS, shapes, int8=_int8_names(shapes) if is_int8 else ())
    characters = softmax = warm = similarity = alignment = None
    if config.alphabet == "unicode" and config.chars:
        characters = _read_characters(source, config.chars.n_characters)
    if n_words is not None:
        softmax = source.softmax(config, n_words, is_int8=is_int8)
    if source.has(WARM):
        warm = WarmState(**source.tensors(WARM, warm_shapes(config)))
    if source.has(SIMILARITY):
        path = source.path(SIMILARITY)
        similarity = parse_statistics(files.read_json(path), files.format_path(path))
    if values.alignment is not None:
        shapes = alignment_shapes(config)
        names = ("layers", "sense") if values.alignment["has_sense"] else ("layers",)
        matrices = source.tensors(ALIGNMENT, {name: shapes[name] for name in names})
        alignment = Alignment(matrices["layers"], matrices.get("sense"), tuple(values.alignment["targets"]))
    return Pretrained(
        config=config,
        weights=weights,
        format=NAME,
        vocab=None if values.vocabulary is None else _read_vocab(source, **values.vocabulary),
        characters=characters,
        softmax=softmax,
        warm=warm,
        similarity=similarity,
        alignment=alignment,
        mix=values.mix,
        metadata=values.metadata,
    )


def _int8_names(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Return the names of the tensors that are int8 in an int8 model: the matrices except the small character table."""
    return tuple(name for name, shape in shapes.items() if len(shape) == 2 and not name.endswith(".char_embed.weight"))


class _VerifiedFolder:
    """The folder of a model; the size and SHA-256 of each file are checked before its content is used."""

    def __init__(self, folder: Path, *, verify: bool, is_mapped: bool) -> None:
        self.folder, self._is_mapped = folder, is_mapped
        self.sums: dict[str, str] | None = None
        if files.CHECKSUMS_NAME in files.list_names(folder):
            self.sums = files.read_checksums(folder, ORDER)
        else:
            logger.warning("cannot check %s for damage: it has no %s", files.format_path(folder), files.CHECKSUMS_NAME)
        self._verify = verify

    def has(self, name: str) -> bool:
        """Return whether an optional file belongs to the model; it must be in ``SHA256SUMS``, if the folder has one."""
        return name in (files.list_names(self.folder) if self.sums is None else self.sums)

    def config(self) -> NativeConfig:
        return _parse_config(files.read_json(self.path(CONFIG)), files.format_path(self.folder / CONFIG))

    def tensors(
        self, name: str, shapes: Mapping[str, tuple[int, ...]], *, int8: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        tensors.check(files.find_member(self.folder, name), shapes, int8=int8)
        return tensors.read(self.path(name, None), shapes, is_mapped=self._is_mapped, int8=int8)

    def softmax(self, config: BiLmConfig, n_words: int, *, is_int8: bool) -> SoftmaxWeights:
        """Return the output layer; a mapped file is read, verified and converted to float32 on first use."""
        shapes = {"weight": (n_words, config.encoder.state_width), "bias": (n_words,)}
        int8 = _int8_names(shapes) if is_int8 else ()
        if not self._is_mapped:
            return SoftmaxWeights(**self.tensors(SOFTMAX, shapes, int8=int8))
        stored = tensors.StoredTensors(files.find_member(self.folder, SOFTMAX), shapes, int8=int8)
        sha256 = self._checksum(SOFTMAX)

        def read() -> SoftmaxWeights:
            softmax = SoftmaxWeights(**stored.read(sha256))
            if problems := softmax.problems(config):
                raise_all(problems, subject=f"{NAME} model")
            return softmax

        return StoredSoftmax(n_words, read)

    def path(self, name: str, limit: int | None = files.JSON_LIMIT) -> Path:
        """Return the path of a file of at most ``limit`` bytes, after verifying its SHA-256."""
        path = files.find_member(self.folder, name)
        with files.open_regular(path, limit):
            pass  # checks the size
        if (checksum := self._checksum(name)) is not None:
            files.verify_checksum(path, checksum)
        return path

    def _checksum(self, name: str) -> str | None:
        """Return the SHA-256 that a file must have, or None if it is not verified."""
        if not self._verify or self.sums is None:
            return None
        if name not in self.sums:
            sums_path = files.format_path(self.folder / files.CHECKSUMS_NAME)
            raise FormatError(f"{sums_path} must have a line for {name}; found none")
        return self.sums[name]


def _read_vocab(
    source: _VerifiedFolder, *, n_words: int, is_escaped: bool, bos: str, eos: str, unknown: str
) -> Vocabulary:
    subject = files.format_path(source.folder / VOCAB)
    lines = files.read_lines(source.path(VOCAB, files.LINES_LIMIT))
    if len(lines) != n_words:
        raise FormatError(f"{subject}: expected {n_words} words, found {len(lines)} lines")
    if is_escaped:
        try:
            lines = [_ESCAPE.sub(_unescape, line) for line in lines]
        except ValueError as error:
            raise FormatError(f"{subject}: {error}") from error
    return Vocabulary(tuple(lines), bos=bos, eos=eos, unknown=unknown)


def _read_characters(source: _VerifiedFolder, n_characters: int) -> dict[str, int]:
    subject = files.format_path(source.folder / CHARACTERS)
    ids = files.read_json(source.path(CHARACTERS))
    if not isinstance(ids, dict) or not all(type(i) is int and 0 <= i < n_characters for i in ids.values()):
        raise FormatError(f"{subject} must be a JSON object with an id in 0..{n_characters - 1} per character")
    try:
        UnicodeAlphabet(ids)  # checks that the special characters are present
    except FormatError as error:
        raise FormatError(f"{subject}: {error}") from error
    return ids


# --- config.json ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NativeConfig:
    """The content of ``config.json``, with every type checked."""

    bilm: BiLmConfig
    is_int8: bool
    vocabulary: dict[str, Any] | None  # the keyword arguments of _read_vocab; None: there is no vocab.txt
    n_softmax_words: int | None  # None: there is no softmax.safetensors
    mix: MixWeights | None
    alignment: dict[str, Any] | None  # targets and has_sense; None: there is no alignment.safetensors
    metadata: Mapping[str, Any]


def _parse_config(values: Any, subject: str) -> NativeConfig:
    if not isinstance(values, dict) or values.get("format") != NAME:
        actual = values.get("format") if isinstance(values, dict) else values
        raise FormatError(f"{subject} must be a JSON object with format {NAME!r}; found {actual!r:.40}")
    version, is_int8 = values.get("format_version"), values.get("dtype") == "int8"
    if version not in (VERSION, INT8_VERSION, PARTS_VERSION):
        raise FormatError(
            f"{subject}: format_version must be {VERSION}, {INT8_VERSION} or {PARTS_VERSION}; found {version!r:.40}; "
            "update pyelmo"
        )
    problems = _section_problems(values)
    try:
        bilm = BiLmConfig.from_json(values.get("config", {}))
    except ConfigError as error:
        raise_all([*problems, str(error)[:2000]], subject=subject)
        raise
    expected = _choose_version(bilm, is_int8=is_int8, is_aligned=values.get("alignment") is not None)
    if version != expected:
        problems.append(f"format_version must be {expected} for these parts and this dtype; found {version}")
    if problems:
        raise_all(problems, subject=subject)
    softmax, mix = values.get("softmax"), values.get("mix")
    return NativeConfig(
        bilm,
        is_int8=is_int8,
        vocabulary=values.get("vocabulary"),
        n_softmax_words=None if softmax is None else softmax["n_words"],
        mix=None if mix is None else MixWeights(tuple(mix["weights"]), mix["gamma"]),
        alignment=values.get("alignment"),
        metadata=values.get("metadata", {}),
    )


def _choose_version(config: BiLmConfig, *, is_int8: bool, is_aligned: bool) -> int:
    """Return the oldest version of the format that has all parts of a model."""
    has_new_chars = config.chars is not None and (config.chars.has_norm or config.chars.highway_width is not None)
    if is_aligned or has_new_chars or config.encoder_name == "transformer":
        return PARTS_VERSION
    return INT8_VERSION if is_int8 else VERSION


def _section_problems(values: Mapping[str, Any]) -> list[str]:
    """List the sections of ``config.json`` that do not have the expected form."""
    problems = []
    match values.get("vocabulary"):
        case {"n_words": int(), "is_escaped": bool(), "bos": str(), "eos": str(), "unknown": str(), **more} if not more:
            pass
        case None:
            pass
        case other:
            names = "n_words, is_escaped, bos, eos and unknown"
            problems.append(f"vocabulary must be null or a JSON object with the keys {names}; found {other!r:.80}")
    match values.get("softmax"):
        case None | {"n_words": int()}:
            pass
        case other:
            problems.append(f"softmax must be null or a JSON object with the key n_words; found {other!r:.80}")
    match values.get("mix"):
        case None:
            pass
        case {"weights": [*weights], "gamma": gamma} if all(map(_is_number, (*weights, gamma))):
            pass
        case other:
            problems.append(
                f"mix must be null or a JSON object with a list weights and a number gamma; found {other!r:.80}"
            )
    match values.get("alignment"):
        case None:
            pass
        case {"has_sense": bool(), "targets": [*targets]} if all(isinstance(target, str) for target in targets):
            pass
        case other:
            problems.append(
                f"alignment must be null or a JSON object with a list targets and has_sense; found {other!r:.80}"
            )
    if not isinstance(values.get("metadata", {}), dict):
        problems.append("metadata must be a JSON object")
    return problems


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _format_config(model: Pretrained, *, dtype: str, is_escaped: bool) -> str:
    """Return the text of ``config.json``; it is always the same for the same model."""
    vocab, mix, alignment, metadata = model.vocab, model.mix, model.alignment, dict(model.metadata)
    if model.format != NAME:
        metadata.setdefault("converted_from", model.format)
    values = {
        "format": NAME,
        "format_version": _choose_version(model.config, is_int8=dtype == "int8", is_aligned=alignment is not None),
        "library_version": __version__,
        "dtype": dtype,
        "config": model.config.to_json(),
        "vocabulary": None if vocab is None else describe_vocabulary(vocab, is_escaped=is_escaped),
        "softmax": None if model.softmax is None else {"n_words": len(model.softmax.bias)},
        "mix": None if mix is None else {"weights": list(mix.weights), "gamma": mix.gamma},
        "metadata": metadata,
    }  # fmt: skip
    if alignment is not None:
        values["alignment"] = {"targets": list(alignment.targets), "has_sense": alignment.sense is not None}
    try:
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise OutputError(f"the model's mix or metadata cannot be written as JSON: {error}") from error


def describe_vocabulary(vocab: Vocabulary, *, is_escaped: bool) -> dict[str, Any]:
    """Return the section of ``config.json`` that describes ``vocab.txt``."""
    return {
        "n_words": len(vocab), "is_escaped": is_escaped,
        "bos": vocab.bos, "eos": vocab.eos, "unknown": vocab.unknown,
    }  # fmt: skip


def format_vocabulary(vocab: Vocabulary) -> tuple[str, bool]:
    """Return the text of ``vocab.txt``, and whether its words are escaped."""
    is_escaped = any(map(_NEEDS_ESCAPES.search, vocab.words))
    words = map(_escape, vocab.words) if is_escaped else vocab.words
    return "".join(f"{word}\n" for word in words), is_escaped


# --- writing -------------------------------------------------------------------------------------


def write(model: Pretrained, folder: Path, *, dtype: tensors.Dtype = "float32") -> None:
    """Write a model to a new folder, completely or not at all; the bytes are always the same for the same model.

    Args:
        model: The model.
        folder: The folder to create.
        dtype: Precision of the stored weights and softmax; they are converted back to float32 when they are read. With
            ``"int8"``, each row of a matrix has a scale, and all other weights are float32.
    """
    tensors.check_dtype(dtype)  # reject an unknown name before anything is written
    texts, is_escaped = dict[str, str](), False
    if model.vocab is not None:
        if len(model.vocab) > files.MAX_LINES:  # the limits here and below are those of the reader
            raise OutputError(f"{VOCAB}: expected at most {files.MAX_LINES} words, found {len(model.vocab)}")
        texts[VOCAB], is_escaped = format_vocabulary(model.vocab)
    texts[CONFIG] = _format_config(model, dtype=dtype, is_escaped=is_escaped)
    if model.characters is not None:
        texts[CHARACTERS] = json.dumps(dict(model.characters), indent=0) + "\n"
    if model.similarity is not None:
        texts[SIMILARITY] = format_statistics(model.similarity)
    contents = {name: text.encode() for name, text in texts.items()}
    for name, content in contents.items():
        limit = files.LINES_LIMIT if name == VOCAB else files.JSON_LIMIT
        if len(content) > limit:
            raise OutputError(f"{name}: expected at most {limit} bytes, found {len(content)}")
    with atomic.atomic_folder(folder) as new:
        for name, content in contents.items():
            (new / name).write_bytes(content)
        _write_weights(model.weights, new / WEIGHTS, dtype)
        if model.softmax:
            _write_weights({"weight": model.softmax.weight, "bias": model.softmax.bias}, new / SOFTMAX, dtype)
        if model.warm:
            (new / WARM).write_bytes(tensors.to_bytes(vars(model.warm)))
        if model.alignment:
            (new / ALIGNMENT).write_bytes(tensors.to_bytes(model.alignment.tensors()))
        sums = {name: files.compute_sha256(new / name) for name in ORDER if (new / name).exists()}
        (new / files.CHECKSUMS_NAME).write_text(files.format_checksums(sums, ORDER), encoding="ascii", newline="\n")
        (new / "README.md").write_text(_model_card(model, dtype=dtype), encoding="utf-8", newline="\n")


def _write_weights(weights: Mapping[str, Tensor], path: Path, dtype: tensors.Dtype) -> None:
    int8 = _int8_names({name: tuple(weight.shape) for name, weight in weights.items()})
    tensors.write(weights, path, dtype=dtype, int8=int8)


def choose_copy(model: Path, out: Path | None, *, suffix: str) -> Path | None:
    """Return the folder for a copy of a model to which a part is added; None if the part is added to the model itself.

    Other formats cannot store warm states and statistics, so their models are copied to NAME-SUFFIX by default.
    """
    if out is None and not can_read(model):
        out = Path(f"{model.name.split('.')[0] or 'model'}-{suffix}")
    if out is not None and out.exists():
        raise OutputError(f"cannot write {out}: it already exists; choose a new folder")
    return out


def add_warm(folder: Path, warm: WarmState) -> None:
    """Store a warm state in the folder of a model, replacing an existing one.

    The model can be loaded even after a crash in the middle, because a ``warm.safetensors`` that is not listed in
    ``SHA256SUMS`` is ignored: the old file is removed from the list before the new file is written, and the new
    file is added to the list afterwards.

    Args:
        folder: Folder of a model in elmo's own format.
        warm: The state.

    Example:
        >>> convert("en", "with-state")
        >>> add_warm(Path("with-state"), load("en").warm)
    """
    source = _VerifiedFolder(folder, verify=True, is_mapped=False)
    raise_all(warm.problems(source.config().bilm), subject="warm state", kind=StateError)
    _add_file(source, WARM, tensors.to_bytes(vars(warm)))


def add_similarity(folder: Path, similarity: SimilarityStatistics) -> None:
    """Store similarity statistics in the folder of a model, replacing existing ones, as safely as ``add_warm``."""
    source = _VerifiedFolder(folder, verify=True, is_mapped=False)
    _add_file(source, SIMILARITY, format_statistics(similarity).encode())


def _add_file(source: _VerifiedFolder, name: str, content: bytes) -> None:
    folder, sums = source.folder, source.sums
    if sums is not None and sums.pop(name, None):
        _replace(folder / files.CHECKSUMS_NAME, files.format_checksums(sums, ORDER).encode())
    _replace(folder / name, content)
    if sums is not None:
        sums[name] = files.compute_sha256(folder / name)
        _replace(folder / files.CHECKSUMS_NAME, files.format_checksums(sums, ORDER).encode())


def _replace(path: Path, content: bytes) -> None:
    with atomic_file(path) as temporary, temporary.open("xb") as file:  # mode "x" never follows a link
        file.write(content)


_NEEDS_ESCAPES = re.compile("[\n\r\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
_ESCAPE = re.compile(r"\\(\\|n|r|ud[89a-f][0-9a-f]{2}|)")
_ESCAPED_CHARACTERS = {"\\": "\\", "n": "\n", "r": "\r"}


def _escape(word: str) -> str:
    return word.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()  # surrogates become \udXXX


def _unescape(match: re.Match[str]) -> str:
    if not match[1]:
        raise ValueError(f"an escape must be \\\\, \\n, \\r or \\udXXX; found another one in {match.string[:40]!r}")
    return _ESCAPED_CHARACTERS.get(match[1]) or chr(int(match[1][1:], 16))


# --- model card ----------------------------------------------------------------------------------

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,40}")


def _model_card(model: Pretrained, *, dtype: str) -> str:
    """Return the text of ``README.md``: front matter for the Hub, sizes and an example."""
    config, encoder = model.config, model.config.encoder
    token_layer = " and ".join(
        name for name, part in (("words", config.words), ("characters", config.chars)) if part is not None
    )
    front = ["library_name: pyelmo", "pipeline_tag: feature-extraction", "tags: [elmo, bilm, word-embeddings]"]
    meta = model.metadata.get("meta")  # an NLPL model's meta.json
    notes = {**(meta if isinstance(meta, dict) else {}), **model.metadata}
    for key, names in (("language", ("language", "languages")), ("license", ("license", "licence"))):
        tags = [tag for name in names for tag in _tags(notes.get(name))]
        if len(tags) == 1:
            front.append(f'{key}: "{tags[0]}"')
        elif tags and key == "language":
            front += [f"{key}:", *(f'- "{tag}"' for tag in tags)]
    rows = [
        ("Parameters", f"{n_parameters(config):,}"),
        ("Token layer", token_layer + (f" ({config.alphabet})" if config.alphabet else "")),
        ("Layers", f"{config.n_layers}: the token layer and {encoder.n_layers} {config.encoder_title} layers"),
        ("Vector width", str(config.width)),
        _describe_encoder(encoder),
        ("Vocabulary", "none" if model.vocab is None else f"{len(model.vocab):,} words"),
        ("Output layer (softmax)", "yes" if model.softmax else "no"),
        ("Precision", "int8, with a scale for each row" if dtype == "int8" else dtype),
    ]
    origin = model.metadata.get("converted_from", model.format)
    if origin != NAME:
        rows.append(("Converted from", str(origin)))
    if "sharpened" in model.metadata:
        rows.append(("Vectors", "transformed by `elmo sharpen` to separate word senses"))
    if model.alignment is not None:
        rows.append(("Vectors", "in the coordinates of another model, by `elmo align`"))
    return "\n".join([
        "---", *front, "---", "",
        "# ELMo: word vectors in context", "",
        "A bidirectional language model ([Peters et al. 2018](https://arxiv.org/abs/1802.05365)).", "",
        "```python",
        "from elmo import Elmo  # pip install pyelmo", "",
        'elmo = Elmo.from_pretrained("path/to/this/folder")  # or its Hub id',
        'vectors = elmo.encode("I sat by the bank of the river .").vectors  # (time, width)',
        "```", "",
        "| | |", "|---|---|", *(f"| {name} | {_table_cell(value)} |" for name, value in rows), "",
        "`sha256sum -c SHA256SUMS` checks the files; loading the model checks them too.", "",
    ])  # fmt: skip


def _describe_encoder(encoder: EncoderConfig) -> tuple[str, str]:
    if isinstance(encoder, TransformerConfig):
        return "Transformer", f"{encoder.n_heads} heads, {encoder.feed_forward_width} hidden units in each layer"
    return "LSTM cells", f"{encoder.cell_width} in each direction"


def _tags(value: Any) -> list[str]:
    """Return the values that can be written safely to the YAML front matter: short, simple tags."""
    values = value if isinstance(value, list | tuple) else [value]
    return [tag for tag in values if isinstance(tag, str) and _TAG.fullmatch(tag)]


def _table_cell(value: str) -> str:
    """Format text as one cell of a Markdown table, without lone surrogates, which cannot be written."""
    return " ".join(value.replace("|", "\\|").split()).encode("utf-8", "replace").decode()[:200]
