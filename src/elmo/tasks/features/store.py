"""Sentences and an encoder in, their frozen layers out: computed once, kept on disk in half precision.

A folder per encoder holds blocks of sentences, each a safetensors file that is there whole or not at all; a
sentence is known by a hash of its words. So data sets share what they have in common, a killed run loses
one block. The folder never grows beyond its bound: what was used longest ago goes first, and what does not
fit beside what is in use is computed each time.

A biLM, static vectors and other encoders in, what a task looks its words up in out.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elmo.engine.batches import tracked
from elmo.errors import ConfigError, FormatError, OutputError
from elmo.jobs.reader import DAMAGE
from elmo.storage.atomic import cannot_write, replacing
from elmo.storage.files import reason, shown
from elmo.storage.tensors import read_arrays, write_arrays
from elmo.tasks.data.examples import Words
from elmo.tasks.features.encoders import ElmoEncoder
from elmo.tasks.features.layer import SourceWidths, VectorChoice, VectorSource, WordVectors
from elmo.tasks.features.static import StaticVectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start


Item = tuple[bytes, Words]  # a sentence and its key
States = NDArray[np.float16]  # (layer, time, width)
BLOCK_TOKENS = 20_000  # of a file: some 40 MB for a model 320 wide
DEFAULT_LIMIT = 20 << 30  # bytes
_SUFFIX = ".block"
_KEY_BYTES = 16
_LENGTH_BYTES = 8
_HEADER_BYTES = 512  # at most, of a block
_DEAD = 24 * 3600  # seconds after which an unfinished file has no writer any more
_log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Whatever gives each word of a sentence one vector or several, depending on the sentence alone."""

    @property
    def key(self) -> str:
        """Names the encoder and all that its vectors depend on; letters, digits, ``-`` and ``_``."""
        ...

    @property
    def n_layers(self) -> int:
        """Vectors per word."""
        ...

    @property
    def width(self) -> int:
        """Width of each."""
        ...

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each sentence."""
        ...


class LayerCache:
    """Layers on disk, in ``folder``; without one they are computed each time they are asked for."""

    def __init__(self, folder: Path | None, *, limit: int = DEFAULT_LIMIT) -> None:
        """``limit`` bounds the folder in bytes; what does not fit into it is computed each time."""
        if limit < 0:
            raise ConfigError(f"the limit of a cache must not be negative, found {limit}")
        self.folder = folder
        self.limit = limit

    def layers(
        self, encoder: Encoder, sentences: Iterable[Words], *, show_progress: bool = False
    ) -> SentenceLayers:
        """A view of the layers of all ``sentences``, computing those that are not there yet."""
        if self.folder is None:
            return Computed(encoder)
        wanted = {key_of(words): words for words in dict.fromkeys(sentences)}
        place = self.folder / encoder.key
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(place, error) from error
        blocks = _Blocks(place, (encoder.n_layers, encoder.width), wanted)
        blocks.keep_only(self.limit)
        missing = [(key, words) for key, words in wanted.items() if key not in blocks.rows]
        fitting = _fitting(missing, self.limit - blocks.n_bytes, blocks.token_bytes)
        if fitting:
            n_all, cache = len(wanted), shown(self.folder)
            _log.info("%d of %d sentences are not in the cache %s: computing", len(missing), n_all, cache)
        parts = list(_parts(fitting))
        for part in tracked(parts, "Embedding", is_shown=show_progress):
            small = blocks.small(_n_tokens(part)) if part is parts[-1] else []
            size = _size(part, blocks.token_bytes)
            also = sum(block.n_bytes for block in small)  # for a moment they are there twice
            if blocks.n_bytes + size + also > self.limit:
                small, also = [], 0
            if not self._make_room(blocks, size + also):
                break
            blocks.write(part, encoder.layers([words for _, words in part]), merged=small)
        self._make_room(blocks, 0)
        self._tell_rest(blocks, wanted)
        return Kept(blocks, encoder, {words: key for key, words in wanted.items()})

    def _make_room(self, blocks: _Blocks, n_bytes: int) -> bool:
        """Remove what was used longest ago, not ``blocks``, until ``n_bytes`` more fit; whether they do."""
        found: list[tuple[int, int, Path]] = []
        for path in [] if self.folder is None else self.folder.glob(f"*/*{_SUFFIX}*"):
            with suppress(OSError):  # another process may have been faster
                about = path.stat()
                if path.suffix == ".part" and time.time() - about.st_mtime > _DEAD:  # of a killed run
                    path.unlink()
                else:
                    found.append((about.st_mtime_ns, about.st_size, path))
        total = n_bytes + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                break
            if path.suffix == _SUFFIX and path not in blocks.used:
                with suppress(OSError):
                    path.unlink()
                    total -= size
        return total <= self.limit

    def _tell_rest(self, blocks: _Blocks, wanted: Mapping[bytes, Words]) -> None:
        """One line about sentences that are not kept."""
        rest = sum(key not in blocks.rows for key in wanted)
        if rest:
            _log.warning(
                "the layers of all sentences take %d MB, the cache may take %d MB (--cache-limit): "
                "%d of %d sentences are computed each time they are used",
                _size(list(wanted.items()), blocks.token_bytes) >> 20,
                self.limit >> 20,
                rest,
                len(wanted),
            )


class SentenceLayers(Protocol):
    """Gives layers by sentence."""

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each."""
        ...


class Computed:
    """Layers that are computed each time."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each."""
        return self._encoder.layers(sentences)


class Kept:
    """Layers that lie on disk, mapped into memory: pages that are not used cost nothing."""

    def __init__(self, blocks: _Blocks, encoder: Encoder, keys: Mapping[Words, bytes]) -> None:
        self._blocks = blocks
        self._encoder = encoder  # for the sentences that did not fit
        self._keys = keys  # of the sentences that were asked for: every epoch looks them up again

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each, in half precision where they are kept."""
        keys = [self._keys.get(tuple(words)) or key_of(words) for words in sentences]
        given = dict(zip(keys, sentences, strict=True))
        rest = {key: words for key, words in given.items() if key not in self._blocks.rows}
        computed = dict(zip(rest, self._encoder.layers(list(rest.values())), strict=True)) if rest else {}
        return [computed[key] if key in computed else self._blocks.states(key) for key in keys]


@dataclass(frozen=True, eq=False)
class _Block:
    """A file of sentences."""

    path: Path
    n_bytes: int
    keys: tuple[bytes, ...]
    lengths: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return sum(self.lengths)


class _Blocks:
    """The blocks of one encoder: those with sentences that are wanted are mapped, the others left alone."""

    def __init__(self, folder: Path, form: tuple[int, int], wanted: Mapping[bytes, Words]) -> None:
        self.folder = folder
        self.used: dict[Path, _Block] = {}
        self.rows: dict[bytes, tuple[Path, int, int]] = {}  # block, first token, number of tokens
        self.token_bytes = form[0] * form[1] * np.dtype(np.float16).itemsize
        self._form = form  # layers, width
        self._wanted = wanted
        self._mapped: dict[Path, NDArray[Any]] = {}
        self._small: dict[Path, _Block] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            block = self._read(path)
            if block is not None:
                if block.n_tokens < BLOCK_TOKENS // 4:
                    self._small[path] = block
                self._use(block)

    @property
    def n_bytes(self) -> int:
        """Of the blocks in use."""
        return sum(block.n_bytes for block in self.used.values())

    def _read(self, path: Path) -> _Block | None:
        """What a block holds; a damaged one is removed, but not one that cannot be read just now."""
        try:
            arrays, _ = read_arrays(path, is_mapped=True)  # no longer mapped when we leave
            states, lengths, keys = (arrays[name] for name in ("states", "lengths", "keys"))
            n_bytes = path.stat().st_size
            if states.shape != (int(lengths.sum()), *self._form) or keys.shape != (len(lengths), _KEY_BYTES):
                raise ValueError(f"states of shape {states.shape}")
            if states.dtype != np.float16 or lengths.dtype != np.int64 or (lengths < 0).any():
                raise ValueError(f"states of {states.dtype}, lengths of {lengths.dtype}")
            return _Block(path, n_bytes, tuple(key.tobytes() for key in keys), tuple(lengths.tolist()))
        except FileNotFoundError:  # another process removed it
            return None
        except (OSError, MemoryError) as error:
            raise _cannot_read(path, error) from error
        except (FormatError, *DAMAGE) as error:
            cause = error.__cause__ if isinstance(error, FormatError) else None
            if isinstance(cause, FileNotFoundError):
                return None
            if isinstance(cause, OSError):
                raise _cannot_read(path, cause) from error
            return _leave_out(path, reason(error))

    def _use(self, block: _Block) -> None:
        """Map a block that holds something wanted which no other holds; it counts as used now."""
        new = [key in self._wanted and key not in self.rows for key in block.keys]
        states = self._map(block) if any(new) else None
        if states is None:
            return
        with suppress(OSError):
            os.utime(block.path)
        self.used[block.path] = block
        self._mapped[block.path] = states
        first = 0
        for key, length, is_new in zip(block.keys, block.lengths, new, strict=True):
            if is_new:
                self.rows[key] = (block.path, first, length)
            first += length

    def _map(self, block: _Block) -> States | None:
        """(token, layer, width), by torch, which keeps no descriptor, unlike Python's mmap; None: gone."""
        import torch

        try:
            raw = torch.from_file(
                str(block.path), shared=False, size=block.n_bytes, dtype=torch.uint8
            ).numpy()
        except (RuntimeError, MemoryError, UnicodeError) as error:
            if not block.path.exists():
                return None
            raise _cannot_read(block.path, error) from error
        raw.flags.writeable = False
        # a length of the header, the header; then the arrays as `write` orders them: lengths, states, keys
        begin = 8 + int.from_bytes(raw[:8].tobytes(), "little") + _LENGTH_BYTES * len(block.lengths)
        end = begin + block.n_tokens * self.token_bytes
        if end + _KEY_BYTES * len(block.keys) != block.n_bytes:
            return _leave_out(block.path, f"{block.n_bytes} bytes")
        return raw[begin:end].view("<f2").reshape(-1, *self._form)

    def keep_only(self, limit: int) -> None:
        """Of the blocks in use as many as fit into ``limit``, those that give most for their size."""
        if self.n_bytes <= limit:
            return
        given = dict.fromkeys(self.used, 0)
        for path, _, length in self.rows.values():
            given[path] += length
        left: set[Path] = set()
        for block in sorted(self.used.values(), key=lambda block: -given[block.path] / block.n_bytes):
            if block.n_bytes <= limit:
                limit -= block.n_bytes
            else:
                left.add(block.path)
        self._leave(left)

    def _leave(self, paths: set[Path]) -> None:
        """Use them no more."""
        for path in paths:
            for held in (self.used, self._mapped, self._small):
                held.pop(path, None)
        self.rows = {key: row for key, row in self.rows.items() if row[0] not in paths}

    def small(self, n_tokens: int) -> list[_Block]:
        """Small blocks, as many as fit into one beside ``n_tokens``."""
        found = []
        for block in self._small.values():
            n_tokens += block.n_tokens
            if n_tokens > BLOCK_TOKENS:
                break
            found.append(block)
        return found

    def write(self, part: Sequence[Item], layers: Sequence[NDArray[Any]], *, merged: list[_Block]) -> None:
        """A new block with these sentences and those of the blocks to be ``merged``, which go then."""
        with np.errstate(over="ignore"):
            states = [one.transpose(1, 0, 2).astype(np.float16) for one in layers]
        if not all(np.isfinite(one).all() for one in states):
            raise ConfigError("the layers of this model do not fit into half precision; run without a cache")
        found = dict(zip((key for key, _ in part), states, strict=True))
        for block in merged:
            mapped = self._map(block)
            pieces = [] if mapped is None else np.split(mapped, np.cumsum(block.lengths)[:-1])
            for key, piece in zip(block.keys, pieces, strict=False):  # none of a block that is gone
                found.setdefault(key, piece)
        keys = np.frombuffer(b"".join(found), np.uint8).reshape(-1, _KEY_BYTES)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
        path = self.folder / f"{name}-{os.getpid()}{_SUFFIX}"  # two processes may compute the same sentences
        arrays = [
            ("lengths", np.array([len(one) for one in found.values()], np.int64)),
            ("states", np.concatenate(list(found.values()))),
            ("keys", keys),
        ]
        with replacing(path) as temporary, temporary.open("wb") as file:
            write_arrays(arrays, {"layers": self._form[0], "width": self._form[1]}, file)
        old = {block.path for block in merged} - {path}
        self._leave(old)
        for one in old:  # other processes that have mapped them keep them until they end
            with suppress(OSError):
                one.unlink()
        block = self._read(path)
        if block is not None:
            self._use(block)

    def states(self, key: bytes) -> States:
        path, first, length = self.rows[key]
        return self._mapped[path][first : first + length].transpose(1, 0, 2)


def _leave_out(path: Path, why: str) -> None:
    _log.warning("%s: damaged, left out and computed again (%s)", path.name, why)
    with suppress(OSError):
        path.unlink()


def _cannot_read(path: Path, error: BaseException) -> OutputError:
    return OutputError(f"{shown(path)}: a block of the cache cannot be read: {reason(error)}")


def key_of(words: Words) -> bytes:
    """A sentence's name: no two lists of words have the same bytes before they are hashed."""
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for word in words:
        raw = word.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def _parts(missing: Sequence[Item]) -> Iterator[list[Item]]:
    """Runs of sentences of about as many tokens as a block holds."""
    part: list[Item] = []
    n_tokens = 0
    for item in missing:
        part.append(item)
        n_tokens += len(item[1])
        if n_tokens >= BLOCK_TOKENS:
            yield part
            part, n_tokens = [], 0
    if part:
        yield part


def _n_tokens(part: Iterable[Item]) -> int:
    return sum(len(words) for _, words in part)


def _size(part: Sequence[Item], token_bytes: int) -> int:
    """Bytes of a block of these sentences, at most."""
    return _HEADER_BYTES + len(part) * (_KEY_BYTES + _LENGTH_BYTES) + _n_tokens(part) * token_bytes


def _fitting(missing: Sequence[Item], room: int, token_bytes: int) -> list[Item]:
    """The first of the sentences, as many as blocks of ``room`` bytes in all can hold."""
    found: list[Item] = []
    n_tokens = 0
    for item in missing:
        # headers are of as many blocks as there can be, and of one more
        n_tokens += len(item[1])
        room -= _KEY_BYTES + _LENGTH_BYTES + len(item[1]) * token_bytes
        if room < _HEADER_BYTES * (n_tokens // BLOCK_TOKENS + 1):
            break
        found.append(item)
    return found


@dataclass(frozen=True, eq=False)
class WordSources:
    """All that vectors of words can come from."""

    choice: VectorChoice
    elmo: Elmo | None = None
    static: StaticVectors | None = None
    others: tuple[Encoder, ...] = ()
    cache: LayerCache = field(default_factory=lambda: LayerCache(None))
    start: Start = "zero"
    _known: dict[str, tuple[Any, ElmoEncoder]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.choice.is_bilm_tuned and self.start != "zero":
            raise ConfigError(
                f"a biLM that is fine-tuned starts from zero, found the start {self.start!r:.20}; "
                "leave one of the two out"
            )

    @property
    def widths(self) -> SourceWidths:
        """Of all that is given."""
        return SourceWidths(
            static=(0, 0) if self.static is None else (len(self.static.words), self.static.width),
            n_layers=self.elmo.n_layers if self.elmo and self.choice.elmo != "none" else 0,
            elmo=self.elmo.width if self.elmo and self.choice.elmo != "none" else 0,
            others=tuple(one.width for one in self.others),
        )

    def _encoder(self, elmo: Elmo) -> ElmoEncoder:
        """One for all pieces of a corpus: to know a biLM, all its weights are hashed.

        A model that was warmed up meanwhile is another one.
        """
        known = self._known.get("pretrained")
        if known is None or known[0] is not elmo.pretrained:
            known = self._known["pretrained"] = (elmo.pretrained, ElmoEncoder(elmo, start=self.start))
        return known[1]

    def network(self) -> WordVectors:
        """New weights for what a task learns of its words' vectors."""
        bilm = None
        if self.choice.is_bilm_tuned and self.elmo is not None:
            import copy

            bilm = copy.deepcopy(self.elmo.bilm).requires_grad_(True)
        return WordVectors(self.choice, self.widths, static=self.static, bilm=bilm)

    def of(self, sentences: Iterable[Words], *, show_progress: bool = False) -> VectorSource:
        """Where these sentences' vectors are looked up; frozen layers are computed now, if not before."""
        wanted: Sequence[Words] = list(dict.fromkeys(sentences))
        layers = None
        has_elmo = self.elmo is not None and self.choice.elmo != "none"
        if has_elmo and self.elmo is not None and not self.choice.is_bilm_tuned:
            layers = self.cache.layers(self._encoder(self.elmo), wanted, show_progress=show_progress)
        indexer = self.elmo.indexer if has_elmo and self.elmo and self.choice.is_bilm_tuned else None
        return VectorSource(
            static=self.static,
            has_characters=self.choice.characters > 0,
            elmo=layers,
            bilm_indexer=indexer,
            others=tuple(self.cache.layers(one, wanted, show_progress=show_progress) for one in self.others),
        )
