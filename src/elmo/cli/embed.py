"""``elmo embed``: files of text in, a file of vectors or JSON lines out."""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import (
    Errors,
    InputFormat,
    Inputs,
    Layers,
    Model,
    Precision,
    Split,
    Start,
    Tokenizer,
    examples,
    layer_choice,
)
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.jobs.plan import EmbedJob, JobPlan, JobSummary

EXAMPLES = examples(
    "elmo embed corpus.txt more/*.txt --out vectors.h5",
    "elmo embed corpus.txt --layers all --dtype float16 --out v.npz",
    "elmo embed corpus.txt --split --out big.parquet --dry-run",
    "elmo embed corpus.txt --workers 2 --out vectors.safetensors",
    "elmo embed corpus.txt --model path/to/model --out other.h5",
    "elmo embed - --layers top < corpus.txt",
)
_SHOWN = 10  # sentences on a terminal
_WIDE = 80  # of a sentence there, in Latin letters
_COUNTED_BYTES = 1 << 32  # counting the lines of more than that would hold up the work
_COMPRESSED = (b"\x1f\x8b", b"\xfd7", b"BZh", b"\x28\xb5")


def command(
    context: typer.Context,
    inputs: Inputs,
    *,
    model: Model = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Its suffix is the format: .h5 (AllenNLP's layout), .safetensors, .npz, .parquet, .jsonl.",
            show_default="JSON lines on stdout; on a terminal, their shapes",
        ),
    ] = None,
    layers: Layers = "average",
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    dtype: Annotated[
        Literal["float32", "float16"], typer.Option(help="Type of the vectors in the output.")
    ] = "float32",
    precision: Precision = "float32",
    start: Start = "zero",
    device: Annotated[
        str,
        typer.Option(metavar="cpu|cuda|mps", help="Where to compute; for --workers also cuda:0,cuda:1,…"),
    ] = "cpu",
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes that share a job with --out; changes the speed, not the vectors.",
        ),
    ] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sentences at a time; changes the speed, not the vectors.",
            show_default="as many as 16,384 tokens hold",
        ),
    ] = None,
    shard_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of one shard.", show_default="about 64 MB of vectors"),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew where an earlier run left its output.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
) -> None:
    """Embed text: a vector for every token.

    After Ctrl-C, a kill or a full disk, give the same command again: with --out it goes on after its last
    whole part (with another number of workers, too), to the same bytes as if it had never stopped.
    """
    from elmo.cli.report import shown, what_is_kept
    from elmo.embed.elmo import Elmo
    from elmo.jobs.plan import EmbedJob, plan_corpus
    from elmo.jobs.run import embed_corpus
    from elmo.text.lines import expand_paths

    devices = device.split(",")
    job = EmbedJob(
        inputs=tuple(inputs),
        out=out,
        layers=layer_choice(layers),
        input_format=input_format,
        split=split,
        errors=errors,
        dtype=dtype,
        start=start,
        batch_size=batch_size,
        shard_tokens=shard_tokens,
        restart=restart,
        workers=workers,
        devices=tuple(devices) if len(devices) > 1 else (),
    )
    files = expand_paths(job.inputs)  # a typo is told before a large model is loaded
    if input_format != "conllu" and any(".conllu" in Path(file).suffixes for file in files):
        logger.warning("a name ends in .conllu, but is read as %s; use --format conllu", input_format)
    if input_format != "text" and tokenizer is not None:
        logger.warning("--tokenizer is for raw text; --format %s has its own tokens", input_format)
    elmo = Elmo.from_pretrained(model, device=devices[0], dtype=precision, tokenizer=tokenizer)
    if dry_run:
        _print_plan(plan(job, elmo))
        return
    if out is None and sys.stdout.isatty():
        _tell(job, _show_shapes(job, elmo))
        return
    if out is not None:
        context.obj.after_interrupt = partial(what_is_kept, out, restart=restart)
    n_sentences = None if context.obj.is_quiet else lines_to_come(job)
    with shown(context.obj, n_sentences=n_sentences, is_stdout_free=out is not None) as show:
        summary = run(job, elmo, on_progress=show)
    _tell(job, summary)
    if summary.is_cut_short:
        raise BrokenPipeError


def _show_shapes(job: EmbedJob, elmo: Elmo) -> JobSummary:
    """For a terminal, where the numbers of one sentence would fill several screens: the first sentences."""
    from elmo.engine.batches import check_length
    from elmo.jobs.plan import encode_sentences
    from elmo.jobs.plan import JobSummary
    from elmo.text.display import shorten
    from elmo.text.lines import Tally

    tally = Tally()
    read = list(islice(job.sentences(elmo.tokenizer, tally), _SHOWN + 1))
    for sentence in read[:_SHOWN]:
        check_length(sentence)
    found = encode_sentences(read[:_SHOWN], job, elmo)
    shapes = [" × ".join(map(str, encoding.vectors.shape)) for encoding in found]
    widest = max(map(len, shapes), default=0)
    for shape, encoding in zip(shapes, found, strict=True):
        print(f"{shape:>{widest}}  {shorten(one_line(' '.join(encoding.tokens)), _WIDE)}".rstrip())
    has_more = len(read) > _SHOWN
    of = f", of the first {_SHOWN} sentences" if has_more else ""
    logger.info("a terminal shows only the shapes of vectors%s; --out FILE, or a pipe, takes them all", of)
    return JobSummary(
        sentences=len(found), tokens=sum(map(len, found)), kept=0, was_complete=False, files=(),
        manifest=None, repaired_lines=tally.repaired, skipped_lines=tally.skipped, is_cut_short=has_more,
    )  # fmt: skip


def _print_plan(found: JobPlan) -> None:
    rows = {
        "sentences": f"{found.sentences:,}",
        "tokens": f"{found.tokens:,}",
        "shards": f"{found.shards:,}, at most {found.tokens_per_shard:,} tokens each",
        "output": f"about {_size(found.output_bytes)}",
        "memory": f"about {_size(found.memory_bytes)}",
    }
    if not found.files:
        del rows["shards"]
    for name, value in rows.items():
        print(f"{name:9}  {value}")
    for k, path in enumerate(found.files):
        print(one_line(f"{'' if k else 'files':9}  {path}"))


def _size(n_bytes: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"


def _tell(job: EmbedJob, summary: JobSummary) -> None:
    if summary.repaired_lines:
        logger.warning(
            "lines repaired that were not UTF-8 (--errors %s): %d", job.errors, summary.repaired_lines
        )
    if summary.skipped_lines:
        logger.warning("lines left out that were not UTF-8 (--errors skip): %d", summary.skipped_lines)
    if not summary.tokens and not summary.is_cut_short:
        logger.warning("the text has no word in it, so there are no vectors")
    if job.out is not None:
        done = "was done already" if summary.was_complete else "written"
        fields = {
            "sentences": summary.sentences,
            "tokens": summary.tokens,
            "files": [str(f) for f in summary.files],
        }
        n_files = len(summary.files)
        shown = str(summary.files[0]) + (f" … {summary.files[-1].name}" if n_files > 1 else "")
        logger.info(
            "%s: %s: %s sentences, %s tokens",
            shown,
            done,
            f"{summary.sentences:,}",
            f"{summary.tokens:,}",
            extra=fields,
        )


def lines_to_come(job: EmbedJob) -> int | None:
    """How many sentences there are, where counting line ends tells; else None."""
    from elmo.text.lines import expand_paths

    if job.split or job.input_format == "conllu":
        return None
    paths = expand_paths(job.inputs)
    if any(path == "-" or not path.is_file() for path in paths):  # a pipe can be read only once
        return None
    files = [path for path in paths if path != "-"]
    if sum(path.stat().st_size for path in files) > _COUNTED_BYTES:
        return None
    total = 0
    for path in files:
        with path.open("rb") as file:
            last = b"\n"
            while chunk := file.read(1 << 20):
                if last == b"\n" and file.tell() == len(chunk) and chunk.startswith(_COMPRESSED):
                    return None
                total += chunk.count(b"\n")
                last = chunk[-1:]
            total += last != b"\n"
    return total
