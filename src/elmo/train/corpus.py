"""Text in, a corpus out: a folder of type ids, built once and read from disk ever after.

What the text says is kept: a word is any token, lower-case ``<unk>`` like all others. A literal ``<UNK>`` is
the unknown word. A literal ``<S>`` or ``</S>`` is no boundary but a word, read by its characters and
predicted as the unknown word, as ``Vocabulary.id`` has it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError, DataError, OutputError
from elmo.formats.files import shown
from elmo.text.lines import ERROR_POLICIES, ErrorPolicy, Source, expand
from elmo.text.lines import shown as shown_source
from elmo.text.simplified import check, simplified
from elmo.text.source import INPUT_FORMATS, InputFormat
from elmo.text.tokens import Tokenizer
from elmo.text.tokens import tokenizer as tokenizer_by_name
from elmo.train.corpus_files import Selecting, write_files
from elmo.train.corpus_folder import MANIFEST, Corpus, CorpusManifest, read_manifest
from elmo.train.corpus_place import replacing, tidy
from elmo.train.draft import BuildProgress, Draft, OnProgress, Reading, read_draft
from elmo.train.given_vocabulary import GivenVocabulary, digest, given_words

__all__ = ["BuildProgress", "Corpus", "build", "reopen"]

MAX_SENTENCE = 1000  # words
_FEWEST = 2  # sentences
_MANY_BYTES = 1 << 22  # text for which it pays to start processes
_SCRATCH = ".draft"  # ends the names of files that are gone when the corpus is done
_log = logging.getLogger(__name__)


def build(
    inputs: str | Path | Sequence[str | Path],
    folder: str | Path,
    *,
    input_format: InputFormat = "text",
    tokenizer: str | Tokenizer = "auto",
    split: bool | None = None,
    heldout: float | int | None = None,
    heldout_inputs: str | Path | Sequence[str | Path] = (),
    deduplicate: bool = False,
    keep_order: bool = False,
    blank_lines_count: bool = False,
    is_simplified: bool = False,
    max_sentence: int = MAX_SENTENCE,
    errors: ErrorPolicy = "strict",
    vocabulary: GivenVocabulary | None = None,
    seed: int = 0,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Corpus:
    """Turn files, globs, folders and stdin (``-``) into a corpus at ``folder``; reuse one that fits.

    ``input_format``: raw ``text`` (``split`` cuts its lines into sentences, unless it is False), ``tokens``
    parted by spaces with a sentence on each line, or ``conllu``. A sentence of more than ``max_sentence``
    words, such as a whole text on one line, is cut. The tokeniser for raw text is chosen by its beginning
    (``auto``: ``zh`` for Chinese, ``en`` for all others), or by name.

    Held out is a share of the sentences (``heldout=0.05``), a number of them (``heldout=500``), what other
    files hold (``heldout_inputs``), or by default 1%: at least 5 sentences, if that leaves enough, and about
    200,000 tokens at most. Which ones depends on the ``seed`` and the sentence's number alone. With
    ``keep_order`` they are taken in runs, so that documents stay whole; the order of the text is kept on disk
    in any case. ``deduplicate`` leaves out sentences that came before.

    Blank lines are nothing, or with ``blank_lines_count`` sentences without words (as for WikiText).
    A ``vocabulary`` (a file with one word a line, a ``Vocabulary`` or a list; ``<S>``, ``</S>`` and ``<UNK>``
    must be in it) has its words come first, in its order. ``is_simplified`` keeps Chinese words in simplified
    characters, whichever script they are written in. ``processes`` tokenise raw text; their number
    changes the speed only.

    A folder that was built from the same files (by path, size and time of change) with the same options is
    opened as it is; another corpus there is replaced when the new one is whole.
    """
    folder = Path(folder)
    if isinstance(heldout, float) and heldout.is_integer() and heldout >= 1:
        heldout = int(heldout)  # a command line knows no integers
    files, heldout_files = _expanded(inputs, folder), _expanded(heldout_inputs, folder)
    _check(
        input_format=input_format,
        split=split,
        heldout=heldout,
        has_heldout_files=bool(heldout_files),
        deduplicate=deduplicate,
        blank_lines_count=blank_lines_count,
        max_sentence=max_sentence,
        errors=errors,
    )
    is_text = input_format == "text"
    reading = Reading(
        input_format,
        _tokenizer(tokenizer),
        split=is_text and split is not False,
        errors=errors,
        blank_lines_count=blank_lines_count,
        max_sentence=max_sentence,
        processes=_processes(processes, [*files, *heldout_files]) if isinstance(tokenizer, str) else 1,
        is_simplified=is_simplified,
    )
    given = None if vocabulary is None else given_words(vocabulary)
    if is_simplified:
        check()
        if given is not None and isinstance(vocabulary, str | Path):
            _refuse_unsimplified(given, vocabulary)
    selecting = Selecting(heldout, deduplicate=deduplicate, keep_order=keep_order, seed=seed)
    wanted = _Wanted(
        _options(reading, selecting, given),
        [_fingerprint(file, "train") for file in files]
        + [_fingerprint(file, "heldout") for file in heldout_files],
    )
    tidy(folder)
    if (found := wanted.at(folder)) is not None:
        return found
    with replacing(folder) as temporary:
        if (found := wanted.at(folder, is_told=True)) is not None:  # another process was faster
            return found
        draft = read_draft(
            files, heldout_files, reading=reading, folder=temporary, given=given, on_progress=on_progress
        )
        _refuse_too_little(draft, files, bool(heldout_files))
        sizes, sums = write_files(draft, selecting=selecting, folder=temporary, on_progress=on_progress)
        chosen = draft.tokenizer
        del draft  # its files are mapped
        for path in temporary.glob("*" + _SCRATCH):
            path.unlink()
        manifest = CorpusManifest(wanted.options, wanted.inputs, sizes, sums, chosen)
        (temporary / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    _log.info("built a corpus of %d words at %s", sizes.train_words, shown(folder))
    return Corpus.open(folder, verify=False)


def reopen(folder: str | Path) -> Corpus:
    """The corpus at ``folder``, of whatever text it was built; what a killed build left beside it goes."""
    tidy(Path(folder))
    return Corpus.open(folder)


@dataclass(frozen=True)
class _Wanted:
    """What a corpus must have been made of, and how."""

    options: dict[str, Any]
    inputs: list[dict[str, Any]]

    def at(self, folder: Path, *, is_told: bool = False) -> Corpus | None:
        """The corpus at ``folder``, if it is such a one, and sound; why not is told once."""
        if not (folder / MANIFEST).is_file():
            return None
        try:
            found = read_manifest(folder)
            if (found.options, found.inputs) != (self.options, self.inputs):
                if not is_told:
                    what = "the text" if found.options == self.options else "an option"
                    _log.info("%s: %s has changed since it was built; building it again", shown(folder), what)
                return None
            if any(one["path"] == "-" for one in self.inputs):
                return None  # nobody knows whether stdin holds the same
            corpus = Corpus.open(folder)
        except DataError as error:
            if not is_told:
                _log.warning("%s; building it again", error)
            return None
        _log.info("%s: built before from the same text, used as it is", shown(folder))
        return corpus


def _expanded(inputs: str | Path | Sequence[str | Path], folder: Path) -> list[Source]:
    """All files of the input; the corpus must not lie among them, or it would be read the next time."""
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    files = expand([str(path) for path in paths])
    place = folder.resolve()
    for path in map(Path, paths):
        if path.resolve() in (place, *place.parents) and path.is_dir():
            raise OutputError(
                f"{shown(folder)}: expected a place outside of the input, found it within {shown(path)}; "
                "name another place, or name the files of the text"
            )
    for file in files:
        if file != "-" and place in file.resolve().parents:
            raise OutputError(
                f"{shown(folder)}: expected a corpus or a new folder, found {shown(file.name)} of the input; "
                "name another"
            )
    return files


def _check(
    *,
    input_format: str,
    split: bool | None,
    heldout: float | int | None,
    has_heldout_files: bool,
    deduplicate: bool,
    blank_lines_count: bool,
    max_sentence: int,
    errors: str,
) -> None:
    """Refuse options that are out of range, or contradict each other."""
    if input_format not in INPUT_FORMATS:
        raise ConfigError(
            f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}"
        )
    if errors not in ERROR_POLICIES:
        raise ConfigError(f"errors: expected one of {', '.join(ERROR_POLICIES)}, found {str(errors)[:40]!r}")
    if split and input_format != "text":
        raise ConfigError(f"splitting into sentences goes with input format text, not with {input_format}")
    is_share = isinstance(heldout, float) and 0 < heldout < 1
    if heldout is not None and not is_share and (not isinstance(heldout, int) or heldout < 0):
        raise ConfigError(
            f"heldout: expected a share between 0 and 1, or a number of sentences, found {heldout}"
        )
    if max_sentence < 1:
        raise ConfigError(f"max_sentence: expected at least 1 word, found {max_sentence}")
    contradictions = {
        "a held-out share and held-out files": heldout is not None and has_heldout_files,
        "counting blank lines and leaving out duplicates": blank_lines_count and deduplicate,
        "counting blank lines and CoNLL-U": blank_lines_count and input_format == "conllu",
    }
    for names, is_so in contradictions.items():
        if is_so:
            raise ConfigError(f"corpus: {names} do not go together; choose one")


def _tokenizer(wanted: str | Tokenizer) -> Tokenizer | None:
    if isinstance(wanted, str):
        return None if wanted == "auto" else tokenizer_by_name(wanted)
    return wanted


def _refuse_unsimplified(given: list[bytes], file: str | Path) -> None:
    for number, word in enumerate(given, start=1):
        text = word.decode("utf-8", "surrogatepass")
        if (found := simplified(text)) != text:
            raise DataError(
                f"{shown(file)}: expected simplified words, found {text[:40]!r} (word {number}); write "
                f"{found[:40]!r}"
            )


def _processes(wanted: int | None, files: list[Source]) -> int:
    """As many as there are processors, unless there is little to do."""
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"processes: expected at least 1, found {wanted}")
        return wanted
    if "-" not in files and sum(file.stat().st_size for file in files if file != "-") < _MANY_BYTES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _options(reading: Reading, selecting: Selecting, given: list[bytes] | None) -> dict[str, Any]:
    """All that changes the bytes of a corpus, but for its text."""
    options = {**asdict(selecting), **{field.name: getattr(reading, field.name) for field in fields(reading)}}
    tokenize = options.pop("tokenize")
    del options["processes"]
    if not reading.is_simplified:
        del options["is_simplified"]  # as in corpora that were built before there was a choice
    is_cut = reading.input_format == "text"
    name = "auto" if tokenize is None else getattr(tokenize, "name", type(tokenize).__name__)
    options["tokenizer"] = name if is_cut else None
    if given is not None:
        options["vocabulary"] = digest(given)
    return options


def _fingerprint(file: Source, part: str) -> dict[str, Any]:
    if file == "-":
        return {"part": part, "path": "-"}
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"{shown(file)}: cannot be read: {error.strerror}") from error
    path = str(file.absolute()).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return {"part": part, "path": path, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _refuse_too_little(draft: Draft, files: list[Source], has_heldout_files: bool) -> None:
    subject = shown_source(files[0]) if len(files) == 1 else f"{len(files)} files"
    n_heldout = len(draft.ends) - draft.n_train
    if draft.n_train == 0:
        raise DataError(f"{subject}: expected text to train on, found no word in it")
    if draft.n_train < _FEWEST:
        raise DataError(
            f"{subject}: expected at least {_FEWEST} sentences to train on, found {draft.n_train}; give more "
            "text, or part it into lines"
        )
    if has_heldout_files and n_heldout == 0:
        raise DataError("the held-out files: expected text, found no word in them")
