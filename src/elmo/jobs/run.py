"""Run an embedding job: ``embed_corpus`` writes resumable shards to files, or JSON lines to a stream.

A job can be stopped at any time, for example by Ctrl-C, ``kill -9`` or a full disk. The same job, run again,
resumes after the last complete shard and writes the same bytes (on the same machine, with the same number of
threads).

Memory does not depend on the size of the input. A process holds the model and three groups of sentences: one
is read, one is computed and one is written. With workers, each worker holds the model and one group. The
exception is HDF5: its dataset ``sentence_to_index`` is a single string, so the text of all distinct sentences
is in memory when the file is assembled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from elmo.engine.batches import split_batches
from elmo.errors import OutputError
from elmo.jobs.groups import check_length
from elmo.jobs.manifest import OutputFiles
from elmo.jobs.plan import EmbedJob, JobSummary, Progress, encode_sentences
from elmo.jobs.shard import Layout
from elmo.jobs.sharded import ShardedRun, keep_split
from elmo.jobs.writers import check_libraries, json_line
from elmo.storage.atomic import atomic_file, cannot_write, hold_lock
from elmo.storage.files import format_path
from elmo.text.lines import Tally
from elmo.text.reader import UnusableSentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


def embed_corpus(
    job: EmbedJob,
    model: Elmo | str | Path | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    stdout: TextIO | None = None,
) -> JobSummary:
    """Embed a corpus, or resume a job that was stopped.

    >>> from elmo.jobs import EmbedJob, embed_corpus, read_embeddings
    >>> job = EmbedJob(inputs=("corpus.txt",), out=Path("all.npz"))
    >>> embed_corpus(job, "en").sentences
    10
    >>> for encoding in read_embeddings("all.npz"):
    ...     assert len(encoding.tokens) == len(encoding.vectors)

    Raises ``OutputError`` if the output cannot be written or belongs to another job. After an error, complete
    shards are kept.

    Args:
        job: The input, output and options of the job.
        model: A loaded model, or a name as in ``Elmo.from_pretrained``.
        on_progress: Called with the progress after each batch and each shard; with workers, after each shard.
        stdout: Stream for the JSON lines of a job without an output file. Default: ``sys.stdout``.
    """
    elmo = _load(job, model)
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    encode_sentences([], job, elmo)  # report invalid options before anything is written
    tally = Tally()
    report = on_progress or (lambda _: None)
    aside = _SetAside(job)
    if job.out is None:
        with aside.writing():
            summary = _write_stream(
                job, elmo, tally=tally, report=report, stream=stdout or sys.stdout, on_unusable=aside.add
            )
        return replace(summary, set_aside=aside.n)
    files = OutputFiles(job.out)
    check_libraries(files.suffix)
    job = keep_split(job, files)
    sentences = job.sentences(elmo.tokenizer, tally, aside.add)
    files.make_folders()
    with hold_lock(files.lock, subject=files.out) as lock:
        run = ShardedRun(job, elmo, files=files, lock=lock, limit=job.tokens_per_shard(layout), report=report)
        with aside.writing():
            summary = run.run(sentences, tally)
    return replace(summary, set_aside=aside.n)


class _SetAside:
    """Writes the sentences that a job leaves out.

    Every run reads the whole text, also if it resumes a job, so it writes the whole file, in the order of the text.
    """

    def __init__(self, job: EmbedJob) -> None:
        self.path, self.n = job.set_aside, 0
        self._file: TextIO | None = None
        if self.path is None:
            return
        others = [path for path in job.files() if path != "-"]
        if job.out is not None:
            others += [job.out, OutputFiles(job.out).manifest]
        if self.path.resolve() in {path.resolve() for path in others}:
            raise OutputError(
                f"cannot write {format_path(self.path)}: it is an input or another output of the job; choose another "
                "file (--set-aside)"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file; it appears under its name if the job succeeds."""
        if self.path is None:
            yield
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        with atomic_file(self.path) as temporary, temporary.open("x", encoding="ascii", newline="\n") as self._file:
            yield

    def add(self, sentence: UnusableSentence) -> None:
        """Write a sentence."""
        assert self._file is not None  # noqa: S101 -- for the type checker
        assert self.path is not None  # noqa: S101
        fields = asdict(sentence)
        try:
            self._file.write(json.dumps({"file": fields.pop("path"), **fields}) + "\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.n += 1


def _load(job: EmbedJob, model: Elmo | str | Path | None) -> Elmo:
    from elmo.embed.elmo import Elmo

    if isinstance(model, Elmo):
        return model.snapshot()  # one job, one precision
    job.files()  # report a missing file before a large model is loaded
    return Elmo.from_pretrained(model, device=job.devices[0] if job.devices else "cpu")


def _write_stream(
    job: EmbedJob,
    elmo: Elmo,
    *,
    tally: Tally,
    report: Callable[[Progress], None],
    stream: TextIO,
    on_unusable: Callable[[UnusableSentence], None],
) -> JobSummary:
    """Write JSON lines to a stream; stop without an error if the reader closes the stream."""
    n_sentences, n_tokens, is_cut_short = 0, 0, False
    is_ascii = not (stream.encoding or "utf-8").lower().startswith("utf")
    sentences = job.sentences(elmo.tokenizer, tally, on_unusable)
    try:
        for batch in split_batches(sentences, batch_size=job.batch_size):
            for sentence in batch:
                check_length(sentence)
            for encoding in encode_sentences(batch, job, elmo):
                stream.write(json_line(n_sentences, encoding, is_ascii=is_ascii) + "\n")
                n_sentences += 1
                n_tokens += len(encoding)
            stream.flush()
            report(Progress(stage="embedding", sentences=n_sentences, tokens=n_tokens, shards=0, kept=0))
    except BrokenPipeError:
        is_cut_short = True
        with suppress(OSError):
            stream.close()  # otherwise the interpreter flushes the stream at exit and prints an error
    except OSError as error:
        raise cannot_write(Path(getattr(stream, "name", None) or "<stream>"), error) from error
    return JobSummary(
        sentences=n_sentences,
        tokens=n_tokens,
        repaired_lines=tally.repaired,
        skipped_lines=tally.skipped,
        is_cut_short=is_cut_short,
    )
