"""Build a corpus from text: a folder of type ids, built once and mapped from disk in every run.

``build_corpus`` reuses a corpus that was built from the same files with the same options. Otherwise it reads
the text (``read_text``), decides for each sentence whether it is for training, held out or dropped, orders
the types by frequency and writes the files. It works on chunks of whole sentences and needs one byte per
sentence (nine with ``deduplicate``) and about forty per type, however many tokens there are.

A word is any token; lower-case ``<unk>`` is an ordinary word. A literal ``<UNK>`` is the unknown word. A
literal ``<S>`` or ``</S>`` is a word, not a boundary: it is read by its characters and predicted as
``<UNK>``, as in ``Vocabulary.id``.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, OutputError
from elmo.storage.atomic import cannot_write, hold_lock, sync
from elmo.storage.files import format_path
from elmo.text import chinese
from elmo.text.lines import Source, expand_paths, format_source
from elmo.text.tokenizers import Tokenizer, load_tokenizer
from elmo.train.corpus import (
    COUNTS,
    EOS,
    FILES,
    FIRST_WORD,
    HELDOUT,
    MANIFEST,
    TRAIN,
    TYPE_ENDS,
    TYPES,
    UNKNOWN,
    Corpus,
    CorpusManifest,
    CorpusSizes,
    gather_slices,
    hash_numbers,
    map_array,
    read_manifest,
)
from elmo.train.options import CorpusOptions
from elmo.train.read_text import TEMPORARY, BuildProgress, NumberedText, OnProgress, read_text
from elmo.train.vocabulary import hash_words, read_vocabulary

_MIN_SENTENCES = 2
_MIN_BYTES = 1 << 22  # smallest text for which starting several processes pays off
_log = logging.getLogger(__name__)


def build_corpus(
    texts: str | Path | Sequence[str | Path],
    folder: str | Path,
    options: CorpusOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Corpus:
    """Build a corpus from files, globs, folders or stdin (``-``), or reuse the one at ``folder``.

    A corpus is reused if it was built from the same files (by path, size and modification time) with the same
    options. Any other corpus at ``folder`` is replaced when the new one is complete.

    Args:
        texts: Text to read.
        folder: Folder of the corpus.
        options: How to read and divide the text.
        on_progress: Called with the progress.
    """
    folder, options = Path(folder), options or CorpusOptions()
    files, heldout_files = _expand(texts, folder), _expand(options.heldout_file, folder)
    name = options.tokenizer
    tokenize = (None if name == "auto" else load_tokenizer(name)) if isinstance(name, str) else name
    processes = _n_processes(options, [*files, *heldout_files])
    vocabulary = None if options.vocabulary is None else read_vocabulary(options.vocabulary)
    if options.simplified:
        chinese.check_opencc()
        if vocabulary is not None and isinstance(options.vocabulary, str | Path):
            _check_simplified(vocabulary, options.vocabulary)
    source = _CorpusSource(
        _manifest_options(options, tokenize, vocabulary),
        [_stat_file(file, "train") for file in files] + [_stat_file(file, "heldout") for file in heldout_files],
    )
    remove_leftovers(folder)
    if (corpus := source.find(folder)) is not None:
        return corpus
    with replace_folder(folder) as temporary:
        if (corpus := source.find(folder, is_logged=False)) is not None:  # another process was faster
            return corpus
        text = read_text(
            files,
            heldout_files,
            options=options,
            tokenize=tokenize,
            processes=processes,
            folder=temporary,
            vocabulary=vocabulary,
            on_progress=on_progress,
        )
        _check_sentences(text, files, bool(heldout_files))
        sizes, sums = write_files(text, options=options, folder=temporary, on_progress=on_progress)
        tokenizer_name = text.tokenizer
        del text  # its files are mapped
        for path in temporary.glob("*" + TEMPORARY):
            path.unlink()
        manifest = CorpusManifest(source.options, source.inputs, sizes, sums, tokenizer_name)
        (temporary / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    _log.info("built a corpus of %d words at %s", sizes.train_words, format_path(folder))
    return Corpus.open(folder, verify=False)


def reopen_corpus(folder: str | Path) -> Corpus:
    """Open a corpus without its text, and remove what a killed build left next to it."""
    remove_leftovers(Path(folder))
    return Corpus.open(folder)


def _expand(texts: str | Path | Sequence[str | Path], folder: Path) -> list[Source]:
    """Return all files of the input. The corpus must not be among them, or the next build would read it."""
    paths = [texts] if isinstance(texts, str | Path) else texts
    files = expand_paths([str(path) for path in paths])
    location = folder.resolve()
    for path in map(Path, paths):
        if path.resolve() in (location, *location.parents) and path.is_dir():
            raise OutputError(
                f"{format_path(folder)}: expected a folder outside the input, found one inside "
                f"{format_path(path)}; use another folder, or list the files of the text"
            )
    for file in files:
        if file != "-" and location in file.resolve().parents:
            raise OutputError(
                f"{format_path(folder)}: expected a corpus or a new folder, found the input file "
                f"{format_path(file.name)}; use another folder"
            )
    return files


def _n_processes(options: CorpusOptions, files: list[Source]) -> int:
    if not isinstance(options.tokenizer, str):
        return 1
    if options.processes is not None:
        return options.processes
    if "-" not in files and sum(file.stat().st_size for file in files if file != "-") < _MIN_BYTES:
        return 1
    return n_cpus()


def n_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_simplified(words: list[bytes], file: str | Path) -> None:
    for number, word in enumerate(words, start=1):
        text = word.decode("utf-8", "surrogatepass")
        if (converted := chinese.simplify(text)) != text:
            raise DataError(
                f"{format_path(file)}: expected simplified words, found {text[:40]!r} (word {number}); "
                f"write {converted[:40]!r}"
            )


def _check_sentences(text: NumberedText, files: list[Source], has_heldout_files: bool) -> None:
    subject = format_source(files[0]) if len(files) == 1 else f"{len(files)} files"
    if text.n_train == 0:
        raise DataError(f"{subject}: expected text to train on, found no words")
    if text.n_train < _MIN_SENTENCES:
        raise DataError(
            f"{subject}: expected at least {_MIN_SENTENCES} sentences to train on, found {text.n_train}; use "
            "more text, or put each sentence on its own line"
        )
    if has_heldout_files and len(text.ends) == text.n_train:
        raise DataError("the held-out files: expected text, found no words")


# --- what a corpus was built from ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _CorpusSource:
    """The options and inputs that a corpus must have been built from."""

    options: dict[str, Any]
    inputs: list[dict[str, Any]]

    def find(self, folder: Path, *, is_logged: bool = True) -> Corpus | None:
        """Open the corpus at ``folder`` if it was built from this source and is intact."""
        if not (folder / MANIFEST).is_file():
            return None
        try:
            manifest = read_manifest(folder)
            if (manifest.options, manifest.inputs) != (self.options, self.inputs):
                if is_logged:
                    what = "the text" if manifest.options == self.options else "an option"
                    _log.info(
                        "%s: %s has changed since the corpus was built; building it again", format_path(folder), what
                    )
                return None
            if any(file["path"] == "-" for file in self.inputs):
                return None  # stdin may have other text now
            corpus = Corpus.open(folder)
        except DataError as error:
            if is_logged:
                _log.warning("%s; building it again", error)
            return None
        _log.info("%s: reusing the corpus, which was built from the same text", format_path(folder))
        return corpus


def _manifest_options(
    options: CorpusOptions, tokenize: Tokenizer | None, vocabulary: list[bytes] | None
) -> dict[str, Any]:
    """Return every option that changes the bytes of a corpus, except its text."""
    name = "auto" if tokenize is None else getattr(tokenize, "name", type(tokenize).__name__)
    values = {
        "heldout": options.heldout,
        "deduplicate": options.deduplicate,
        "keep_order": options.keep_order,
        "seed": options.seed,
        "input_format": options.input_format,
        "split": options.has_splitting,
        "errors": options.errors,
        "blank_lines_count": options.blank_lines,
        "max_sentence": options.max_sentence,
        "tokenizer": name if options.input_format == "text" else None,
    }
    if options.simplified:
        values["is_simplified"] = True
    if vocabulary is not None:
        values["vocabulary"] = hash_words(vocabulary)
    return values


def _stat_file(file: Source, part: str) -> dict[str, Any]:
    if file == "-":
        return {"part": part, "path": "-"}
    try:
        stat = file.stat()
    except OSError as error:
        raise DataError(f"cannot read {format_path(file)}: {error.strerror}") from error
    path = str(file.absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {"part": part, "path": path, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


# --- which sentences to keep --------------------------------------------------------------------------------

_DROPPED, _TRAIN, _HELDOUT = 0, 1, 2
_CHUNK = 1 << 21  # tokens, types or sentences that are processed at a time
_RUN = 64  # consecutive sentences that are held out together with ``keep_order``
_MIN_HELDOUT = 5  # sentences held out of a small text
_DEFAULT_SHARE = 0.01
_DEFAULT_TOKENS = 200_000  # more tokens do not improve the estimate of a loss


def _divide(text: NumberedText, options: CorpusOptions) -> NDArray[np.uint8]:
    """Decide the part of each sentence: dropped, training or held out."""
    parts = np.full(len(text.ends), _TRAIN, dtype=np.uint8)
    parts[text.n_train :] = _HELDOUT
    if options.deduplicate:
        _drop_duplicates(text, parts)
    if text.n_train == len(text.ends):
        _hold_out(text, parts, options)
    if not (parts == _TRAIN).any():
        raise DataError(f"the text has {text.n_train} sentences, and none is left to train on; use more text")
    return parts


def _drop_duplicates(text: NumberedText, parts: NDArray[np.uint8]) -> None:
    """Drop repeated sentences, found by a 64-bit hash of their words and length."""
    hashes = np.empty(text.n_train, dtype=np.uint64)
    for first, last in _sentence_ranges(text, text.n_train):
        start, lengths = _lengths(text, first, last)
        tokens = text.types.map_tokens(text.tokens, start, start + int(lengths.sum()))
        begins = np.cumsum(lengths) - lengths
        positions = np.arange(len(tokens)) - np.repeat(begins, lengths)
        # a word's value depends on its position, so that the sum depends on the word order
        values = hash_numbers(0, tokens.astype(np.uint64) << np.uint64(32) | positions.astype(np.uint64))
        hashes[first:last] = np.add.reduceat(values, begins)
    n_shares = -(-text.n_train // _CHUNK)  # sorted share by share, to save memory
    for share in range(n_shares):
        numbers = np.concatenate(
            [
                np.flatnonzero(hashes[first : first + _CHUNK] % np.uint64(n_shares) == share) + first
                for first in range(0, text.n_train, _CHUNK)
            ]
        )
        values = hashes[numbers]
        order = np.argsort(values, kind="stable")  # equal ones in text order
        is_repeated = np.zeros(len(order), dtype=bool)
        is_repeated[1:] = values[order][1:] == values[order][:-1]
        parts[numbers[order[is_repeated]]] = _DROPPED


def _hold_out(text: NumberedText, parts: NDArray[np.uint8], options: CorpusOptions) -> None:
    """Hold out the sentences with the lowest hashes of their numbers."""
    n = int((parts == _TRAIN).sum())
    heldout = options.heldout
    if heldout is None:
        n_heldout = min(max(_MIN_HELDOUT, round(_DEFAULT_SHARE * n)), max(1, n // 5))
    else:
        n_heldout = heldout if isinstance(heldout, int) else max(1, round(heldout * n))
    if n_heldout >= n:
        raise DataError(
            f"the text has {n} sentence{'s' * (n != 1)}, too few to hold out {n_heldout}; use more text, or "
            "hold out fewer sentences"
        )
    numbers = _lowest_hashes(parts, n_heldout, options)
    if heldout is None:
        starts = np.where(numbers > 0, text.ends[numbers - 1], 0)
        n_fit = int(np.searchsorted(np.cumsum(text.ends[numbers] - starts), _DEFAULT_TOKENS, side="right"))
        numbers = numbers[: max(1, n_fit)]
    parts[numbers] = _HELDOUT


def _lowest_hashes(parts: NDArray[np.uint8], n_sentences: int, options: CorpusOptions) -> NDArray[np.int64]:
    """Return the numbers of the training sentences with the lowest hashes, lowest first."""
    run = _RUN if options.keep_order else 1
    limit = 4.0 * n_sentences + 16 * run  # only hashes below it are sorted; one pass is usually enough
    while True:
        share = min(1.0, limit / len(parts))
        below = np.uint64(min(int(share * 2**64), 2**64 - 1))
        numbers, hashes = [], []
        for first in range(0, len(parts), _CHUNK):
            candidates = np.flatnonzero(parts[first : first + _CHUNK] == _TRAIN) + first
            values = hash_numbers(options.seed, candidates // run)
            numbers.append(candidates[values <= below])
            hashes.append(values[values <= below])
        selected = np.concatenate(numbers)
        if len(selected) >= n_sentences or share == 1.0:
            return selected[np.argsort(np.concatenate(hashes), kind="stable")[:n_sentences]]
        limit *= 4


# --- writing the files --------------------------------------------------------------------------------------


def write_files(
    text: NumberedText, *, options: CorpusOptions, folder: Path, on_progress: OnProgress | None = None
) -> tuple[CorpusSizes, dict[str, str]]:
    """Write the files of a corpus. Returns its counts and the SHA-256 of each file."""
    parts = _divide(text, options)
    counts = np.zeros(text.types.n_types, dtype=np.int64)
    for tokens, part in _chunks(text, parts):
        np.add.at(counts, tokens[part == _TRAIN], 1)  # bincount would visit all types each time
    counts[0] = counts[EOS]  # each sentence is read from both ends
    look_alikes = list(text.types.look_alikes)
    counts[UNKNOWN] += counts[look_alikes].sum()  # they are predicted as <UNK>
    order = _type_order(text, counts)
    n_types = len(order) - len(look_alikes)
    ids = np.empty(len(order), dtype="<u4")  # final id by type of ``text``
    ids[order] = np.arange(len(order), dtype=np.uint32)
    with ExitStack() as stack:
        files = {name: stack.enter_context(_open_hashed(folder / name)) for name in FILES}
        _write_types(text, order, files[TYPES], files[TYPE_ENDS])
        files[COUNTS].write(counts[order[:n_types]].astype("<i8"))
        n_done = 0
        for tokens, part in _chunks(text, parts):
            for name, label in ((TRAIN, _TRAIN), (HELDOUT, _HELDOUT)):
                files[name].write(ids[tokens[part == label]])
            n_done += len(tokens)
            if on_progress is not None:
                size = len(text.tokens)
                on_progress(BuildProgress("write", n_done, size, size, len(text.ends)))
    n_sentences = np.bincount(parts, minlength=3)
    sizes = CorpusSizes(
        types=n_types,
        train_words=files[TRAIN].n_bytes // 4 - int(n_sentences[_TRAIN]),
        train_sentences=int(n_sentences[_TRAIN]),
        heldout_words=files[HELDOUT].n_bytes // 4 - int(n_sentences[_HELDOUT]),
        heldout_sentences=int(n_sentences[_HELDOUT]),
        duplicates=int(n_sentences[_DROPPED]),
        repaired_lines=text.tally.repaired,
        skipped_lines=text.tally.skipped,
        given_types=text.n_given,
        look_alikes=len(look_alikes),
    )
    return sizes, {name: file.digest.hexdigest() for name, file in files.items()}


def _type_order(text: NumberedText, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort types: the user's vocabulary, then by falling count, then by first occurrence.

    Words that are spelled like a boundary come last: no vocabulary may contain them.
    """
    ages, ranks = text.types.ages[FIRST_WORD:], -counts[FIRST_WORD:]
    if text.n_given is not None:
        ranks[ages < text.n_given] = np.iinfo(np.int64).min  # they have the lowest ages, in their order
    ranks[[number - FIRST_WORD for number in text.types.look_alikes]] = 1
    return np.concatenate([np.arange(FIRST_WORD), FIRST_WORD + np.lexsort((ages, ranks))])


def _write_types(text: NumberedText, order: NDArray[np.int64], types: _HashedFile, type_ends: _HashedFile) -> None:
    spellings, ends = map_array(text.types.spellings, "u1"), text.types.ends
    written = 0
    for first in range(0, len(order), _CHUNK // 8):
        chunk = order[first : first + _CHUNK // 8]
        starts = np.where(chunk > 0, ends[chunk - 1], 0)
        lengths = ends[chunk] - starts
        types.write(gather_slices(spellings, starts, lengths))
        type_ends.write((written + np.cumsum(lengths)).astype("<i8"))
        written += int(lengths.sum())


def _chunks(text: NumberedText, parts: NDArray[np.uint8]) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint8]]]:
    """Yield the types of a chunk of tokens, and the part of each token."""
    for first, last in _sentence_ranges(text, len(text.ends)):
        start, lengths = _lengths(text, first, last)
        tokens = text.types.map_tokens(text.tokens, start, start + int(lengths.sum()))
        yield tokens, np.repeat(parts[first:last], lengths)


def _sentence_ranges(text: NumberedText, n_sentences: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of sentences with about a chunk of tokens each."""
    first = 0
    while first < n_sentences:
        start = int(text.ends[first - 1]) if first else 0
        last = int(np.searchsorted(text.ends[:n_sentences], start + _CHUNK, side="right"))
        last = max(last, first + 1)
        yield first, last
        first = last


def _lengths(text: NumberedText, first: int, last: int) -> tuple[int, NDArray[np.int64]]:
    """Return the first token of a range of sentences, and their lengths."""
    start = int(text.ends[first - 1]) if first else 0
    return start, np.diff(text.ends[first:last], prepend=start)


class _HashedFile:
    """A file that computes the SHA-256 of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, values: NDArray) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).data
        self.digest.update(data)
        self._file.write(data)
        self.n_bytes += len(data)


@contextmanager
def _open_hashed(path: Path) -> Iterator[_HashedFile]:
    with path.open("wb") as file:
        yield _HashedFile(file)
        file.flush()
        os.fsync(file.fileno())


# --- replacing the folder -----------------------------------------------------------------------------------
#
#     .corpus.lock    held by the process that builds
#     .corpus.part    the new corpus while it is written
#     .corpus.old     the old corpus until the new one is in place
#
# A kill may come between any two steps. The next process that opens or builds the corpus removes the rest.


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. On exit, it replaces ``folder`` if it contains a manifest; otherwise it is deleted.

    Only one process writes at a time, so the temporary folder has a fixed name, and a killed process leaves at
    most one behind.
    """
    temporary, old, lock = _neighbors(folder)
    created = [parent for parent in folder.parents if not parent.exists()]  # innermost first
    is_done = False
    try:
        _check_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(lock, subject=folder):
            try:
                _finish_move(folder)
                temporary.mkdir()
                yield temporary
                if (temporary / MANIFEST).is_file():
                    _move(temporary, folder, old)
                is_done = True
            finally:
                _remove(temporary, old)
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        if not is_done:
            for parent in created:
                with suppress(OSError):
                    parent.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed build left next to ``folder``. A running build is not disturbed."""
    *_, lock = neighbors = _neighbors(folder)
    if any(path.exists() for path in neighbors):
        # a build is running, or the disk is read-only: the corpus can be read anyway
        with suppress(OutputError, OSError):
            _check_folder(folder)
            with hold_lock(lock, subject=folder):
                _finish_move(folder)


def _neighbors(folder: Path) -> tuple[Path, Path, Path]:
    temporary, old, lock = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old", "lock"))
    return temporary, old, lock


def _finish_move(folder: Path) -> None:
    """Finish an interrupted move and remove other leftovers. The caller holds the lock."""
    temporary, old, _ = _neighbors(folder)
    if old.exists() and not folder.exists() and (temporary / MANIFEST).is_file():
        temporary.rename(folder)  # it was complete before the old one was moved
        sync(folder.parent)
    _remove(temporary, old)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _check_folder(folder: Path) -> None:
    """Raise ``OutputError`` if ``folder`` contains anything other than an older corpus."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{format_path(folder)}: expected a folder for the corpus, found something else")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := sorted(names - {*FILES, MANIFEST}):
        raise OutputError(
            f"{format_path(folder)}: expected a corpus or a new folder, found {format_path(others[0])}; use "
            "another folder"
        )


def _move(temporary: Path, folder: Path, old: Path) -> None:
    with (temporary / MANIFEST).open("rb") as file:
        os.fsync(file.fileno())
    sync(temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
