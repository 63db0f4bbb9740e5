"""Files of text in; shards of vectors with a manifest, or JSON lines on a stream, out: ``elmo embed``.

A job may be stopped at any instant, by Ctrl-C, ``kill -9`` or a full disk, and started again with the same
arguments: it goes on after the last whole shard and ends with the same bytes (on the same machine, with as
many threads). Memory is that of the model and of three groups of sentences, one being read, one computed and
one written, whatever the size of the input; with workers, each has the model and one group. Only HDF5, whose
``sentence_to_index`` is one string, holds the distinct sentences' text when it is put together at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from elmo.config import BiLmConfig, n_parameters
from elmo.embed.atomic import cannot_write, locked
from elmo.embed.groups import check_length, groups
from elmo.embed.output_files import OutputFiles
from elmo.embed.pieces import pieces
from elmo.embed.request import EmbedJob, Plan, Progress, Summary, encode
from elmo.embed.shard import Layout
from elmo.embed.to_files import ToFiles
from elmo.embed.writers import check_libraries, json_line
from elmo.text.source import Tally
from elmo.text.tokens import Tokenizer
from elmo.text.tokens import tokenizer as tokenizer_by_name

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

_LIBRARIES = 300 << 20  # memory of Python and torch themselves, about
_TOKEN_TEXT = 200  # memory of a token with its offsets, about

__all__ = ["EmbedJob", "Plan", "Progress", "Summary", "plan", "run"]


def plan(job: EmbedJob, model: Elmo | BiLmConfig, *, tokenizer: Tokenizer | None = None) -> Plan:
    """Count what a job would read and write; only text is read, and nothing is written.

    With a config alone, ``tokenizer`` stands for the model's own tokeniser (English when not given).
    """
    config = model if isinstance(model, BiLmConfig) else model.config
    if tokenizer is None:
        tokenizer = tokenizer_by_name("en") if isinstance(model, BiLmConfig) else model.tokenizer
    layout = Layout.of(config, layers=job.layers, dtype=job.dtype)
    limit = job.tokens_per_shard(layout)
    files = None if job.out is None else OutputFiles(job.out)
    n_sentences = n_tokens = n_bytes = n_shards = widest_shard = widest_batch = 0
    for group in groups(job.sentences(tokenizer), max_tokens=limit):
        lengths = [len(sentence.tokens) for sentence in group.sentences]
        widest_shard = max(widest_shard, group.n_tokens)
        for piece in pieces(group.sentences, batch_size=job.batch_size):
            widest_batch = max(widest_batch, sum(len(sentence.tokens) for sentence in piece))
        n_shards += 1
        n_sentences += len(lengths)
        n_tokens += group.n_tokens
        n_bytes += sum(len(token) for sentence in group.sentences for token in sentence.tokens.tokens)
    # A number is a dozen characters of JSON; elsewhere a token has its end and offsets, a sentence its place.
    is_json = files is None or files.suffix == ".jsonl"
    numbers = 12 * (layout.n_layers or 1) * layout.width if is_json else layout.token_bytes + 24
    per_sentence = 1000 if files is not None and files.is_assembled else 40  # HDF5: a dataset each
    # The network holds a batch's layers about three times over, a writer its shard twice.
    loaded = _LIBRARIES + 4 * n_parameters(config)
    computing = 3 * widest_batch * 4 * config.n_layers * config.width
    writing, text = 2 * widest_shard * layout.token_bytes, widest_shard * _TOKEN_TEXT
    if job.workers == 1:  # the next group is being computed while a shard is written, and a third is read
        memory = loaded + computing + writing + widest_shard * layout.token_bytes + 3 * text
    else:
        memory = loaded + 2 * job.workers * text + job.workers * (loaded + computing + writing + text)
    written: tuple[Path, ...] = ()
    if files is not None:
        is_one = n_shards == 1 or files.is_assembled
        shards = [files.shard(i, is_only=is_one) for i in range(n_shards)]
        written = (*([files.out] if is_one else shards), files.manifest)
    return Plan(
        sentences=n_sentences,
        tokens=n_tokens,
        shards=0 if files is None else n_shards,
        tokens_per_shard=limit,
        output_bytes=n_tokens * numbers + n_bytes + n_sentences * per_sentence,
        memory_bytes=memory,
        files=written,
    )


def run(
    job: EmbedJob,
    elmo: Elmo,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    stdout: TextIO | None = None,
) -> Summary:
    """Do the job, or what is left of it; ``stdout`` gets the JSON lines of a job without ``out``.

    ``OutputError`` when the output cannot be written or belongs to another job; whole shards stay.
    """
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    limit = job.tokens_per_shard(layout)
    encode([], job, elmo)  # a wrong option is told before anything is written
    tally = Tally()
    report = on_progress or (lambda _: None)
    if job.out is None:
        return _to_stream(job, elmo, tally=tally, report=report, stream=stdout or sys.stdout)
    files = OutputFiles(job.out)
    check_libraries(files.suffix)
    sentences = job.sentences(elmo.tokenizer, tally)
    files.make_folders()
    with locked(files.lock, subject=job.out) as lock:
        return ToFiles(job, elmo, files=files, lock=lock, limit=limit, report=report).run(sentences, tally)


def _to_stream(
    job: EmbedJob, elmo: Elmo, *, tally: Tally, report: Callable[[Progress], None], stream: TextIO
) -> Summary:
    """JSON lines on a stream; a reader who has seen enough ends the job quietly."""
    sentences, n_sentences, n_tokens, is_cut_short = job.sentences(elmo.tokenizer, tally), 0, 0, False
    try:
        for batch in pieces(sentences, batch_size=job.batch_size):
            for sentence in batch:
                check_length(sentence)
            for encoding in encode(batch, job, elmo):
                stream.write(json_line(n_sentences, encoding) + "\n")
                n_sentences += 1
                n_tokens += len(encoding)
            stream.flush()
            report(Progress(stage="embedding", sentences=n_sentences, tokens=n_tokens, shards=0, kept=0))
    except BrokenPipeError:
        is_cut_short = True
        with suppress(OSError):
            stream.close()  # else the interpreter tries to flush it once more as it exits, and complains
    except OSError as error:
        raise cannot_write(Path(getattr(stream, "name", None) or "<stream>"), error) from error
    return Summary(
        sentences=n_sentences,
        tokens=n_tokens,
        kept=0,
        was_complete=False,
        files=(),
        manifest=None,
        repaired_lines=tally.repaired,
        skipped_lines=tally.skipped,
        is_cut_short=is_cut_short,
    )
