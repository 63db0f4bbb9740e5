"""Build a corpus from text: a folder of type ids that is built once and mapped into memory in every run.

``build_corpus`` reuses a corpus that was built from the same files with the same options. Otherwise it reads
the text (``read_text``), decides for each sentence whether it is used for training, held out or dropped, sorts
the types by frequency and writes the files. It processes chunks of whole sentences, so it needs only one byte of
memory per sentence (nine with ``deduplicate``) and about forty bytes per type.

A literal ``<UNK>`` in the text is the unknown word; lower-case ``<unk>`` is an ordinary word. A literal ``<S>`` or
``</S>`` is not a sentence boundary: the model reads its characters and predicts it as ``<UNK>``, as
``Vocabulary.id`` does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmo.errors import DataError, OutputError
from elmo.storage.atomic import cannot_write, hold_lock, sync
from elmo.storage.files import compute_sha256, format_path
from elmo.text import chinese
from elmo.text.lines import Source, expand_paths, format_source
from elmo.text.tokenizers import Tokenizer, load_tokenizer
from elmo.train.corpus import (
    BOS,
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
from elmo.train.vocabulary import read_vocabulary

_MIN_SENTENCES = 2
_MIN_BYTES = 1 << 22  # smaller texts are tokenized faster by a single process
_log = logging.getLogger(__name__)


def build_corpus(
    texts: str | Path | Sequence[str | Path],
    folder: str | Path,
    options: CorpusOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Corpus:
    """Build a corpus from text, or reuse the corpus in ``folder``.

    A corpus is reused if it was built from files with the same content (by SHA-256) with the same options. Otherwise it
    is replaced when the new corpus is complete.

    Args:
        texts: Files, globs or folders of text; ``-`` is stdin.
        folder: Folder of the corpus.
        options: How to read the text and divide it into a training and a held-out part.
        on_progress: Function that is called with a ``BuildProgress`` after each block of text.

    Example:
        >>> corpus = build_corpus("corpus.txt", "corpus", CorpusOptions(heldout=2))
        >>> corpus.n_sentences  # without the two that are held out
        8
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
    values = _manifest_options(options, tokenize, vocabulary)
    parts = [*_label(files, "train"), *_label(heldout_files, "heldout")]
    remove_leftovers(folder)
    if (corpus := _find_corpus(folder, values, parts)) is not None:
        return corpus
    with replace_folder(folder) as temporary:
        if (corpus := _find_corpus(folder, values, parts, is_logged=False)) is not None:  # built by another process
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
        inputs = [_describe_input(file, part, digest) for (part, file), digest in zip(parts, text.digests, strict=True)]
        del text  # unmaps the temporary files
        for path in temporary.glob("*" + TEMPORARY):
            path.unlink()
        manifest = CorpusManifest(values, inputs, sizes, sums, tokenizer_name)
        (temporary / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    _log.info("built a corpus of %d words at %s", sizes.train_words, format_path(folder))
    return Corpus.open(folder, verify=False)


def _label(files: Sequence[Source], part: str) -> list[tuple[str, Source]]:
    return [(part, file) for file in files]


def reopen_corpus(folder: str | Path) -> Corpus:
    """Open a corpus whose input files may no longer exist, and remove the temporary files of a killed build."""
    remove_leftovers(Path(folder))
    return Corpus.open(folder)


def _expand(texts: str | Path | Sequence[str | Path], folder: Path) -> list[Source]:
    """Return all input files. They must not include the corpus, which the next build would read as text."""
    paths = [texts] if isinstance(texts, str | Path) else texts
    files = expand_paths([str(path) for path in paths])
    location = folder.resolve()
    name = format_path(folder)
    for path in map(Path, paths):
        if path.resolve() in (location, *location.parents) and path.is_dir():
            raise OutputError(
                f"the corpus {name} must not be in the input folder {format_path(path)}; use another folder"
            )
    for file in files:
        if file != "-" and location in file.resolve().parents:
            raise OutputError(
                f"the corpus {name} must not contain input files; found {format_path(file.name)}; use another folder"
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
                f"{format_path(file)} must contain simplified words; found {text[:40]!r} (word {number}) instead of "
                f"{converted[:40]!r}"
            )


def _check_sentences(text: NumberedText, files: list[Source], has_heldout_files: bool) -> None:
    subject = format_source(files[0]) if len(files) == 1 else f"{len(files)} files"
    if text.n_train < _MIN_SENTENCES:
        raise DataError(
            f"{subject} must contain at least {_MIN_SENTENCES} sentences to train on; found {text.n_train}; use more "
            "text, or put each sentence on its own line"
        )
    if has_heldout_files and len(text.ends) == text.n_train:
        raise DataError("the held-out files must contain text; found no words")


# --- what a corpus was built from ---------------------------------------------------------------------------


def _find_corpus(
    folder: Path, options: dict[str, Any], inputs: list[tuple[str, Source]], *, is_logged: bool = True
) -> Corpus | None:
    """Open the corpus in ``folder`` if it is intact and was built with these options from these files."""
    if not (folder / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(folder)
        if not all(is_regular(file) for _, file in inputs):
            return None  # stdin may contain other text now
        if manifest.options != options or not _has_same_text(manifest, inputs):
            if is_logged:
                names = sorted(manifest.options.keys() | options.keys())
                changed = [name for name in names if manifest.options.get(name) != options.get(name)]
                what = f"{', '.join(changed)} changed" if changed else "the text has changed"
                _log.info("%s since the corpus %s was built; building it again", what, format_path(folder))
            return None
        corpus = Corpus.open(folder)
    except DataError as error:
        if is_logged:
            _log.warning("building the corpus again because it cannot be reused: %s", error)
        return None
    _log.info("reusing the corpus %s, which was built from the same text", format_path(folder))
    return corpus


def _manifest_options(
    options: CorpusOptions, tokenize: Tokenizer | None, vocabulary: list[bytes] | None
) -> dict[str, Any]:
    """Return the options that change the content of a corpus, as they are stored in its manifest."""
    name = "auto" if tokenize is None else getattr(tokenize, "name", type(tokenize).__name__)
    values = {
        "heldout": options.heldout,
        "deduplicate": options.deduplicate,
        "keep_order": options.keep_order,
        "seed": options.seed,
        "input_format": options.input_format,
        "split": options.splitting,
        "errors": options.errors,
        "blank_lines_count": options.blank_lines,
        "max_sentence": options.max_sentence,
        "tokenizer": name if options.input_format == "text" else None,
    }
    if options.simplified:
        values["is_simplified"] = True
    if vocabulary is not None:
        values["vocabulary"] = hashlib.sha256(b"\n".join(vocabulary)).hexdigest()
    return values


def _describe_input(file: Source, part: str, digest: str) -> dict[str, Any]:
    """Describe an input file in the manifest, without its folder: a corpus may be given to others."""
    if file == "-" or not is_regular(file):
        return {"part": part, "path": "-"}
    name = file.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {"part": part, "path": name, "size": file.stat().st_size, "sha256": digest}


def _has_same_text(manifest: CorpusManifest, inputs: list[tuple[str, Source]]) -> bool:
    return [kept["part"] for kept in manifest.inputs] == [part for part, _ in inputs] and not any(
        is_changed(file, kept) for (_, file), kept in zip(inputs, manifest.inputs, strict=True)
    )


def is_regular(file: Source) -> bool:
    """Whether an input can be read twice; stdin and pipes cannot."""
    return file != "-" and file.is_file()


def is_changed(file: Source, kept: Mapping[str, Any]) -> bool:
    """Whether the content of a file differs from its entry in a manifest."""
    if file == "-" or kept["path"] == "-":
        return file != kept["path"]
    try:
        status = file.stat()
        if status.st_size != kept["size"]:
            return True
        if "sha256" not in kept:  # in manifests of version 1
            return status.st_mtime_ns != kept["mtime_ns"]
        return compute_sha256(file) != kept["sha256"]
    except OSError as error:
        raise DataError(f"cannot read {format_path(file)}: {error.strerror}") from error


# --- which sentences to keep --------------------------------------------------------------------------------

_DROPPED, _TRAIN, _HELDOUT = 0, 1, 2
_CHUNK = 1 << 21  # number of tokens, types or sentences that are processed at a time
_RUN = 64  # with ``keep_order``, this many consecutive sentences are held out together
_MIN_HELDOUT = 5  # number of sentences that are held out from a small text
_DEFAULT_SHARE = 0.01
_DEFAULT_TOKENS = 200_000  # more held-out tokens would hardly make the perplexity more accurate


def _divide(text: NumberedText, options: CorpusOptions) -> NDArray[np.uint8]:
    """Decide for each sentence whether it is dropped, used for training or held out."""
    parts = np.full(len(text.ends), _TRAIN, dtype=np.uint8)
    parts[text.n_train :] = _HELDOUT
    if options.deduplicate:
        _drop_duplicates(text, parts)
    if text.n_train == len(text.ends):
        _hold_out(text, parts, options)
    if not (parts == _TRAIN).any():
        raise DataError(f"none of the {text.n_train} sentences of the text is left to train on; use more text")
    return parts


def _drop_duplicates(text: NumberedText, parts: NDArray[np.uint8]) -> None:
    """Drop repeated sentences. They are found by a 64-bit hash of their words."""
    hashes = np.empty(text.n_train, dtype=np.uint64)
    for sentences, tokens, lengths in _sentence_chunks(text, text.n_train):
        begins = np.cumsum(lengths) - lengths
        positions = np.arange(len(tokens)) - np.repeat(begins, lengths)
        # the hash of a word depends on its position, so the sum depends on the word order
        values = hash_numbers(0, tokens.astype(np.uint64) << np.uint64(32) | positions.astype(np.uint64))
        hashes[sentences] = np.add.reduceat(values, begins)
    n_shares = -(-text.n_train // _CHUNK)  # hashes are sorted share by share, to save memory
    for share in range(n_shares):
        chunks = (hashes[first : first + _CHUNK] for first in range(0, text.n_train, _CHUNK))
        matches = [np.flatnonzero(chunk % np.uint64(n_shares) == share) + k * _CHUNK for k, chunk in enumerate(chunks)]
        numbers = np.concatenate(matches)
        numbers = numbers[np.argsort(hashes[numbers], kind="stable")]  # equal hashes stay in text order
        values = hashes[numbers]
        parts[numbers[1:][values[1:] == values[:-1]]] = _DROPPED


def _hold_out(text: NumberedText, parts: NDArray[np.uint8], options: CorpusOptions) -> None:
    """Hold out a random choice of sentences: those whose numbers have the lowest hashes."""
    n = int((parts == _TRAIN).sum())
    heldout = options.heldout
    if heldout is None:
        n_heldout = min(max(_MIN_HELDOUT, round(_DEFAULT_SHARE * n)), max(1, n // 5))
    else:
        n_heldout = heldout if isinstance(heldout, int) else max(1, round(heldout * n))
    if n_heldout >= n:
        raise DataError(f"cannot hold out {n_heldout} of {n} sentences; use more text, or hold out fewer sentences")
    numbers = _lowest_hashes(parts, n_heldout, options)
    if heldout is None:
        starts = np.where(numbers > 0, text.ends[numbers - 1], 0)
        n_fit = int(np.searchsorted(np.cumsum(text.ends[numbers] - starts), _DEFAULT_TOKENS, side="right"))
        numbers = numbers[: max(1, n_fit)]
    parts[numbers] = _HELDOUT


def _lowest_hashes(parts: NDArray[np.uint8], n_sentences: int, options: CorpusOptions) -> NDArray[np.int64]:
    """Return the numbers of the training sentences with the lowest hashes, in the order of their hashes."""
    run = _RUN if options.keep_order else 1
    limit = 4.0 * n_sentences + 16 * run  # about this many hashes are sorted; one pass is usually enough
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
    """Write the files of a corpus. Return its sizes and the SHA-256 of each file."""
    parts = _divide(text, options)
    counts = np.zeros(text.types.n_types, dtype=np.int64)
    for tokens, part in _chunks(text, parts):
        np.add.at(counts, tokens[part == _TRAIN], 1)  # bincount would create an array of all types for every chunk
    counts[BOS] = counts[EOS]
    look_alikes = list(text.types.look_alikes)
    counts[UNKNOWN] += counts[look_alikes].sum()  # they are predicted as <UNK>
    order = _type_order(text, counts)
    n_types = len(order) - len(look_alikes)
    ids = np.empty(len(order), dtype="<u4")  # maps the types of ``text`` to their final ids
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
    """Return the order of the types: the user's vocabulary, then other words by descending count and first occurrence.

    Words that are spelled ``<S>`` or ``</S>`` come last, because no vocabulary may contain them.
    """
    ages, ranks = text.types.ages[FIRST_WORD:], -counts[FIRST_WORD:]
    if text.n_given is not None:
        ranks[ages < text.n_given] = np.iinfo(np.int64).min  # the user's words were numbered first
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
    """Yield the text in chunks: the type of each token, and its part (dropped, training or held-out)."""
    for sentences, tokens, lengths in _sentence_chunks(text, len(text.ends)):
        yield tokens, np.repeat(parts[sentences], lengths)


def _sentence_chunks(
    text: NumberedText, n_sentences: int
) -> Iterator[tuple[slice, NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield the first ``n_sentences`` in chunks: range of the sentences, types of their tokens, and their lengths."""
    first = start = 0
    while first < n_sentences:
        last = max(int(np.searchsorted(text.ends[:n_sentences], start + _CHUNK, side="right")), first + 1)
        end = int(text.ends[last - 1])
        lengths = np.diff(text.ends[first:last], prepend=start)
        yield slice(first, last), text.types.map_tokens(text.tokens, start, end), lengths
        first, start = last, end


class _HashedFile:
    """A file that computes the SHA-256 of its content while it is written."""

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
#     .corpus.lock    lock of the process that builds the corpus
#     .corpus.part    the new corpus while it is written
#     .corpus.old     the old corpus until the new one has replaced it
#
# A process may be killed between any two steps. The next process that opens or builds the corpus cleans up.


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. On exit, it replaces ``folder``, or is deleted if no manifest was written to it.

    Only one process writes at a time, so the temporary folder has a fixed name, and killed processes leave at
    most one such folder behind.
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
    """Remove the temporary files that a killed build left next to ``folder``, unless a build is running."""
    *_, lock = neighbors = _neighbors(folder)
    if any(path.exists() for path in neighbors):
        # if a build is running or the disk is read-only, the corpus can still be read
        with suppress(OutputError, OSError):
            _check_folder(folder)
            with hold_lock(lock, subject=folder):
                _finish_move(folder)


def _neighbors(folder: Path) -> tuple[Path, Path, Path]:
    temporary, old, lock = (folder.with_name(f".{folder.name}.{kind}") for kind in ("part", "old", "lock"))
    return temporary, old, lock


def _finish_move(folder: Path) -> None:
    """Finish an interrupted replacement and remove temporary folders. The caller holds the lock."""
    temporary, old, _ = _neighbors(folder)
    if old.exists() and not folder.exists() and (temporary / MANIFEST).is_file():
        temporary.rename(folder)  # the new corpus was complete before the old one was moved away
        sync(folder.parent)
    _remove(temporary, old)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _check_folder(folder: Path) -> None:
    """Raise ``OutputError`` if ``folder`` is neither new nor a corpus."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{format_path(folder)} must be a folder for the corpus; found a file or a symbolic link")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if others := sorted(names - {*FILES, MANIFEST}):
        name = format_path(folder)
        raise OutputError(f"{name} must be a corpus or a new folder; found {format_path(others[0])} in it")


def _move(temporary: Path, folder: Path, old: Path) -> None:
    sync(temporary / MANIFEST)
    sync(temporary)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync(folder.parent)
