r"""A model in, the text of its ``config.json`` out; and back, as values of which every type is checked.

A folder of our own format in, a model out, and back: safetensors, JSON and text, every byte checked.

- ``config.json``: the biLM's config, the vocabulary's special words, a published mix, metadata.
- ``model.safetensors``: the weights, by the names of ``config.parameter_shapes``.
- ``vocab.txt``: one word a line, in id order, when the model has words. When any word holds a line break, a
  carriage return or a lone surrogate, config.json says ``"is_escaped": true``, and ``\\``, ``\n``, ``\r`` and
  ``\udXXX`` stand for a backslash and for those, in every line.
- ``characters.json``: character to id, for a Unicode alphabet.
- ``softmax.safetensors``: ``weight`` (words, width) and ``bias`` (words), when there is an output layer.
- ``warm.safetensors``: ``hidden`` (direction, layer, width) and ``cell`` (direction, layer, cell), when a
  warm state was stored.
- ``SHA256SUMS``: the SHA-256 of each file above, for ``sha256sum -c``.
- ``README.md``: the model card. People edit it, so nothing reads it, and no checksum covers it.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmo.config import MAX_ROWS, BiLmConfig, parameter_shapes
from elmo.errors import ConfigError, FormatError, OutputError, StateError, raise_all
from elmo.formats.model_card import model_card
from elmo.formats.pretrained import MixWeights, Pretrained, SoftmaxWeights, WarmState, fingerprint
from elmo.storage import checksums, files
from elmo.storage import tensors as safetensors_file
from elmo.text.ids import UnicodeAlphabet, Vocabulary

FORMAT = "elmo"
VERSION = 1


@dataclass(frozen=True)
class VocabularyNotes:
    """What ``vocab.txt`` does not say itself."""

    n_words: int
    is_escaped: bool
    bos: str
    eos: str
    unknown: str


@dataclass(frozen=True)
class NativeConfig:
    """All that ``config.json`` says."""

    bilm: BiLmConfig
    vocabulary: VocabularyNotes | None  # None: there is no vocab.txt
    n_softmax_words: int | None  # None: there is no softmax.safetensors
    mix: MixWeights | None
    metadata: Mapping[str, Any]


def to_text(model: Pretrained, *, dtype: str, is_escaped: bool) -> str:
    """The file's content; the same model gives the same text."""
    vocab, mix, metadata = model.vocab, model.mix, dict(model.metadata)
    if model.format != FORMAT:
        metadata.setdefault("converted_from", model.format)
    values = {
        "format": FORMAT,
        "format_version": VERSION,
        "library_version": _library_version(),
        "dtype": dtype,
        "config": model.config.to_json(),
        "vocabulary": None if vocab is None else {
            "n_words": len(vocab), "is_escaped": is_escaped,
            "bos": vocab.bos, "eos": vocab.eos, "unknown": vocab.unknown,
        },
        "softmax": None if model.softmax is None else {"n_words": len(model.softmax.bias)},
        "mix": None if mix is None else {"weights": list(mix.weights), "gamma": mix.gamma},
        "metadata": metadata,
    }  # fmt: skip
    try:
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise OutputError(f"model: its mix or metadata cannot be written as JSON: {error}") from error


def from_json(values: Any, subject: str) -> NativeConfig:
    """From a parsed ``config.json``; ``FormatError`` for anything that ``to_text`` does not write."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else values
        raise FormatError(f"{subject}: expected an object with format {FORMAT!r}, found {found!r:.40}")
    if values.get("format_version") != VERSION:
        raise FormatError(
            f"{subject}: expected format_version {VERSION}, found {values.get('format_version')!r:.40}; "
            "a newer pyelmo may read it"
        )
    problems = []
    for key, tests in _PARTS.items():
        if values.get(key) is not None:
            problems += [f"{key}: {problem}" for problem in _part_problems(values[key], tests)]
    metadata = values.get("metadata", {})
    if not isinstance(metadata, dict):
        problems.append("metadata must be an object")
    try:
        bilm = BiLmConfig.from_json(values.get("config", {}))
    except ConfigError as error:
        bilm = None
        problems.append(str(error)[:2000])
    raise_all(problems, subject=subject)
    if bilm is None:  # for the type checker: raise_all has raised
        raise FormatError(f"{subject}: no config")
    vocabulary, softmax, mix = (values.get(key) for key in ("vocabulary", "softmax", "mix"))
    return NativeConfig(
        bilm,
        vocabulary=None if vocabulary is None else VocabularyNotes(**vocabulary),
        n_softmax_words=None if softmax is None else softmax["n_words"],
        mix=None if mix is None else MixWeights(tuple(mix["weights"]), mix["gamma"]),
        metadata=metadata,
    )


def _part_problems(part: Any, tests: Mapping[str, Callable[[Any], bool]]) -> list[str]:
    if not isinstance(part, dict):
        return [f"must be an object or null, found {part!r:.40}"]
    return [
        *(f"unexpected {name!r:.40}" for name in part if name not in tests),
        *(f"missing {name!r}" for name in tests if name not in part),
        *(
            f"cannot use {name} {part[name]!r:.40}"
            for name, is_fit in tests.items()
            if name in part and not is_fit(part[name])
        ),
    ]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ROWS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


_PARTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "vocabulary": {
        "n_words": _is_count,
        "is_escaped": _is_bool,
        "bos": _is_text,
        "eos": _is_text,
        "unknown": _is_text,
    },
    "softmax": {"n_words": _is_count},
    "mix": {"weights": _is_numbers, "gamma": _is_number},
}


def _library_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyelmo")
    except PackageNotFoundError:  # run from its sources
        return None


NAME = FORMAT
CONFIG, WEIGHTS, VOCAB, CHARACTERS = "config.json", "model.safetensors", "vocab.txt", "characters.json"
SOFTMAX, WARM = "softmax.safetensors", "warm.safetensors"
# config.json stands last in SHA256SUMS: it says which other files there are, so no line can be cut off unseen
ORDER = (WARM, VOCAB, SOFTMAX, WEIGHTS, CHARACTERS, CONFIG)

logger = logging.getLogger(__name__)


def is_here(folder: Path) -> bool:
    """Whether the folder has the files that every model of this format has."""
    return {CONFIG, WEIGHTS} <= set(files.names(folder))


def checksum(folder: Path) -> str:
    """One SHA-256 that names the model, whatever format it is in; see ``fingerprint``."""
    return fingerprint(read(folder))


# --- reading -------------------------------------------------------------------------------------


def read(folder: Path, *, verify: bool = True, is_mapped: bool = True) -> Pretrained:
    """Read a model; ``verify`` compares every file with its recorded SHA-256 before it is used.

    ``is_mapped`` leaves float32 weights in their file until they are used.
    """
    source = _Source(folder, verify=verify, is_mapped=is_mapped)
    values = source.config()
    config, width = values.bilm, values.bilm.lstm.state_width
    weights = source.tensors(WEIGHTS, parameter_shapes(config))
    characters = softmax = warm = None
    if config.alphabet == "unicode" and config.chars:
        characters = _read_characters(source, config.chars.n_characters)
    if values.n_softmax_words is not None:
        shapes = {"weight": (values.n_softmax_words, width), "bias": (values.n_softmax_words,)}
        softmax = SoftmaxWeights(**source.tensors(SOFTMAX, shapes))
    if source.has(WARM):
        warm = WarmState(**source.tensors(WARM, _warm_shapes(config)))
    return Pretrained(
        config=config,
        weights=weights,
        format=NAME,
        vocab=None if values.vocabulary is None else _read_vocab(source, values.vocabulary),
        characters=characters,
        softmax=softmax,
        warm=warm,
        mix=values.mix,
        metadata=values.metadata,
    )


class _Source:
    """A folder whose files are checked, sizes first and SHA-256 next, before their content is used."""

    def __init__(self, folder: Path, *, verify: bool, is_mapped: bool) -> None:
        self.folder, self._is_mapped = folder, is_mapped
        self._sums: dict[str, str] | None = None
        if checksums.NAME in files.names(folder):
            self._sums = checksums.read(folder, ORDER)
        else:
            logger.warning("%s: has no %s, so damage would go unseen", files.shown(folder), checksums.NAME)
        self._verify = verify and self._sums is not None

    def has(self, name: str) -> bool:
        """Whether a file that a model may have is part of this one: a listed one is, a stray one is not."""
        return name in (files.names(self.folder) if self._sums is None else self._sums)

    def config(self) -> NativeConfig:
        return from_json(self.json(CONFIG, files.JSON_LIMIT), files.shown(self.folder / CONFIG))

    def json(self, name: str, limit: int) -> Any:
        path = files.member(self.folder, name)
        with files.open_regular(path, limit):
            pass  # its size is fit to be read whole
        self._check(path)
        return files.read_json(path, limit)

    def lines(self, name: str) -> list[str]:
        path = files.member(self.folder, name)
        with files.open_regular(path, files.LINES_LIMIT):
            pass
        self._check(path)
        return files.read_lines(path)

    def tensors(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        path = files.member(self.folder, name)
        safetensors_file.check(path, shapes)
        self._check(path)
        return safetensors_file.read(path, shapes, is_mapped=self._is_mapped)

    def _check(self, path: Path) -> None:
        if not self._verify or self._sums is None:
            return
        if path.name not in self._sums:
            raise FormatError(
                f"{files.shown(self.folder / checksums.NAME)}: expected a line for {path.name}, found none"
            )
        checksums.verify(path, self._sums[path.name])


def _read_vocab(source: _Source, notes: VocabularyNotes) -> Vocabulary:
    subject = files.shown(source.folder / VOCAB)
    lines = source.lines(VOCAB)
    if len(lines) != notes.n_words:
        raise FormatError(f"{subject}: expected {notes.n_words} words, found {len(lines)} lines")
    if notes.is_escaped:
        try:
            lines = [_unescaped(line) for line in lines]
        except ValueError as error:
            raise FormatError(f"{subject}: {error}") from error
    return Vocabulary(tuple(lines), bos=notes.bos, eos=notes.eos, unknown=notes.unknown)


def _read_characters(source: _Source, n_characters: int) -> dict[str, int]:
    subject = files.shown(source.folder / CHARACTERS)
    values = source.json(CHARACTERS, files.JSON_LIMIT)
    if not isinstance(values, dict) or not all(
        type(i) is int and 0 <= i < n_characters for i in values.values()
    ):
        raise FormatError(
            f"{subject}: expected an object of characters and their ids in 0..{n_characters - 1}"
        )
    try:
        UnicodeAlphabet(values)  # has its special characters
    except FormatError as error:
        raise FormatError(f"{subject}: {error}") from error
    return values


def _warm_shapes(config: BiLmConfig) -> dict[str, tuple[int, ...]]:
    lstm = config.lstm
    return {"hidden": (2, lstm.n_layers, lstm.state_width), "cell": (2, lstm.n_layers, lstm.cell_width)}


# --- writing -------------------------------------------------------------------------------------


def write(model: Pretrained, folder: Path, *, dtype: safetensors_file.Dtype = "float32") -> None:
    """Write a model to a new folder, whole or not at all; the same model gives the same bytes.

    ``dtype`` is that of the weights and the softmax; reading gives float32 again.
    """
    safetensors_file.torch_dtype(dtype)  # a wrong name is refused before anything is written
    is_escaped = model.vocab is not None and any(map(_BREAKS.search, model.vocab.words))
    texts = {CONFIG: to_text(model, dtype=dtype, is_escaped=is_escaped)}
    if model.vocab is not None:
        words = map(_escaped, model.vocab.words) if is_escaped else model.vocab.words
        texts[VOCAB] = "".join(f"{word}\n" for word in words)
    if model.characters is not None:
        texts[CHARACTERS] = json.dumps(dict(model.characters), indent=0) + "\n"
    raw = {name: text.encode() for name, text in texts.items()}
    for name, limit in (
        (CONFIG, files.JSON_LIMIT),
        (VOCAB, files.LINES_LIMIT),
        (CHARACTERS, files.JSON_LIMIT),
    ):
        if len(raw.get(name, b"")) > limit:  # no reader would take it
            raise OutputError(f"{name}: expected at most {limit} bytes, found {len(raw[name])}")
    if model.vocab is not None and len(model.vocab) > files.MAX_LINES:
        raise OutputError(f"{VOCAB}: expected at most {files.MAX_LINES} words, found {len(model.vocab)}")
    with files.new_folder(folder) as new:
        for name, content in raw.items():
            (new / name).write_bytes(content)
        safetensors_file.write(model.weights, new / WEIGHTS, dtype=dtype)
        if model.softmax:
            softmax = {"weight": model.softmax.weight, "bias": model.softmax.bias}
            safetensors_file.write(softmax, new / SOFTMAX, dtype=dtype)
        if model.warm:
            (new / WARM).write_bytes(_warm_bytes(model.warm, model.config))
        sums = {name: checksums.sha256(new / name) for name in ORDER if (new / name).exists()}
        (new / checksums.NAME).write_text(checksums.to_text(sums, ORDER), encoding="ascii", newline="\n")
        (new / "README.md").write_text(model_card(model, dtype=dtype), encoding="utf-8", newline="\n")


def add_warm(folder: Path, warm: WarmState) -> None:
    """Store a warm state with a model, in place of one that it may have.

    A crash at any instant leaves a model that loads: a warm.safetensors that SHA256SUMS does not list is not
    part of it, so the old one is struck off the list before the new file comes, and that is listed last.
    """
    source = _Source(folder, verify=True, is_mapped=False)
    content = _warm_bytes(warm, source.config().bilm)
    has_sums = checksums.NAME in files.names(folder)
    sums = checksums.read(folder, ORDER) if has_sums else {}
    if sums.pop(WARM, None):
        _replace(folder / checksums.NAME, checksums.to_text(sums, ORDER).encode())
    _replace(folder / WARM, content)
    if has_sums:
        sums[WARM] = checksums.sha256(folder / WARM)
        _replace(folder / checksums.NAME, checksums.to_text(sums, ORDER).encode())


def _warm_bytes(warm: WarmState, config: BiLmConfig) -> bytes:
    parts = {"hidden": warm.hidden, "cell": warm.cell}
    problems = []
    for name, shape in _warm_shapes(config).items():
        if tuple(parts[name].shape) != shape:
            problems.append(f"{name}: expected {shape}, found {tuple(parts[name].shape)}")
        elif not parts[name].isfinite().all():
            problems.append(f"{name} holds values that are not finite")
    raise_all(problems, subject="warm state", kind=StateError)
    return safetensors_file.to_bytes(parts)


def _replace(path: Path, content: bytes) -> None:
    """Put a whole file in the place of another, or of none."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # in a stranger's folder it may be a link to anything
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        if os.name != "nt":  # Windows opens no folders
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise files.cannot_write(path, error) from error


_BREAKS = re.compile("[\n\r\ud800-\udfff]")
_TO_ESCAPE = re.compile("[\\\\\n\r\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(\\|n|r|ud[89a-f][0-9a-f]{2}|)")
_SHORT = {"\\": "\\", "n": "\n", "r": "\r"}
_LONG = {character: short for short, character in _SHORT.items()}


def _escaped(word: str) -> str:
    return _TO_ESCAPE.sub(lambda match: f"\\{_LONG.get(match[0]) or f'u{ord(match[0]):04x}'}", word)


def _unescaped(line: str) -> str:
    return _ESCAPE.sub(_unescape, line)


def _unescape(match: re.Match[str]) -> str:
    if not match[1]:
        raise ValueError(
            f"expected an escape \\\\, \\n, \\r or \\udXXX, found another in {match.string[:40]!r}"
        )
    return _SHORT.get(match[1]) or chr(int(match[1][1:], 16))
