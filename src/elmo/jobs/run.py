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

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from elmo.engine.batches import split_batches
from elmo.jobs.groups import check_length
from elmo.jobs.manifest import OutputFiles
from elmo.jobs.plan import EmbedJob, JobSummary, Progress, encode_sentences
from elmo.jobs.shard import Layout
from elmo.jobs.sharded import ShardedRun
from elmo.jobs.writers import check_libraries, json_line
from elmo.storage.atomic import cannot_write, hold_lock
from elmo.text.lines import Tally

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
    >>> job = EmbedJob(inputs=("corpus.txt",), out=Path("vectors.npz"))  # doctest: +SKIP
    >>> embed_corpus(job, "en")  # doctest: +SKIP
    >>> for encoding in read_embeddings("vectors.npz"): ...  # doctest: +SKIP

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
    if job.out is None:
        return _write_stream(job, elmo, tally=tally, report=report, stream=stdout or sys.stdout)
    files = OutputFiles(job.out)
    check_libraries(files.suffix)
    sentences = job.sentences(elmo.tokenizer, tally)
    files.make_folders()
    with hold_lock(files.lock, subject=job.out) as lock:
        run = ShardedRun(job, elmo, files=files, lock=lock, limit=job.tokens_per_shard(layout), report=report)
        return run.run(sentences, tally)


def _load(job: EmbedJob, model: Elmo | str | Path | None) -> Elmo:
    from elmo.embed.elmo import Elmo

    if isinstance(model, Elmo):
        return model.snapshot()  # one job, one precision
    job.files()  # report a missing file before a large model is loaded
    return Elmo.from_pretrained(model, device=job.devices[0] if job.devices else "cpu")


def _write_stream(
    job: EmbedJob, elmo: Elmo, *, tally: Tally, report: Callable[[Progress], None], stream: TextIO
) -> JobSummary:
    """Write JSON lines to a stream; stop without an error if the reader closes the stream."""
    n_sentences, n_tokens, is_cut_short = 0, 0, False
    is_ascii = not (stream.encoding or "utf-8").lower().startswith("utf")
    sentences = job.sentences(elmo.tokenizer, tally)
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
