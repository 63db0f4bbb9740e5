"""``elmo embed``: write a vector for every token of a corpus."""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import describe_resume, logger, show_progress, warn_about_bytes
from elmo.cli.generate import is_set, options_from
from elmo.storage.remote import parse_path
from elmo.text.display import one_line, shorten

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.jobs.estimate import JobEstimate
    from elmo.jobs.plan import EmbedJob, JobPlan, JobSummary
    from elmo.jobs.tables import TableJob

EXAMPLES = opt.examples(
    "elmo embed corpus.txt more/*.txt --out vectors.h5",
    "elmo embed corpus.txt --layers all --dtype float16 --out v.npz",
    "elmo embed corpus.txt --split --out big.parquet --dry-run",
    "elmo embed corpus.txt --workers 2 --out vectors.safetensors",
    "elmo embed corpus.txt --out v.npz --estimate --machines 1,10 --price 0.04",
    "elmo embed corpus.txt --model path/to/model --out other.h5",
    "elmo embed - --layers top < corpus.txt",
    "elmo embed reviews.csv --column text --out reviews.parquet",
)
_N_SHOWN = 10  # number of sentences shown on a terminal
_LINE_WIDTH = 80  # maximum width of a sentence on a terminal, in Latin letters


@options_from(
    "elmo.jobs.plan:EmbedJob",
    skip=("inputs", "out", "layers", "start", "devices"),
    flags={"input_format": "--format"},
    metavars={"set_aside": "FILE"},
    minimums={"batch_size": 1, "shard_tokens": 1, "workers": 1},
)
def command(
    context: typer.Context,
    inputs: opt.Inputs,
    *,
    model: opt.Model = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=parse_path,
            help="Output file. Its suffix selects the format: .h5 (AllenNLP's layout), .safetensors, .npz, "
            ".parquet or .jsonl. It can be in an object store, such as s3://bucket/vectors.parquet.",
            show_default="JSON lines on stdout; on a terminal, only the shapes of the vectors",
        ),
    ] = None,
    layers: opt.Layers = "average",
    tokenizer: opt.Tokenizer = None,
    precision: opt.Precision = "float32",
    start: opt.Start = "zero",
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda|mps|xpu", help="Device to compute on; with --workers, a list such as cuda:0,cuda:1."
        ),
    ] = "cpu",
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Embed this column of a Parquet, CSV or TSV file; the output, which must end in .parquet, keeps the "
            "other columns.",
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "max", "ends", "none"],
        typer.Option(help="With --column: how to pool the vectors of a text; none stores a list of token vectors."),
    ] = "mean",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the estimated size of the job and write nothing.")
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Embed a sample to a temporary folder, print the estimated hours, memory and bytes of the job, and "
            "write nothing to the output.",
        ),
    ] = False,
    machines: Annotated[
        str, typer.Option(metavar="N,N,…", help="With --estimate: numbers of machines like this one.")
    ] = "1",
    price: Annotated[
        float | None,
        opt.option(metavar="PRICE", help="With --estimate: price of one core for one hour, in any currency."),
    ] = None,
    **options: Any,
) -> None:
    """Compute a vector for every token of a text.

    If a command with --out is interrupted, run it again: it resumes after the last complete shard, even with
    another number of workers, and writes the same bytes as an uninterrupted run.
    """
    from elmo.embed.elmo import Elmo
    from elmo.errors import ConfigError
    from elmo.jobs.estimate import estimate_job
    from elmo.jobs.plan import EmbedJob, plan_corpus
    from elmo.jobs.run import embed_corpus
    from elmo.jobs.tables import embed_table

    devices = device.split(",")
    _check_estimate(context)
    if column is not None:
        values = {"column": column, "pooling": pooling, "layers": opt.parse_layers(layers), "start": start}
        table_job = _table_job(context, inputs, out, options | values)
        elmo = Elmo.from_pretrained(model, device=device, dtype=precision, tokenizer=tokenizer)
        context.obj.after_interrupt = partial(describe_resume, table_job.out, restart=table_job.restart)
        with show_progress(context.obj, n_sentences=None, is_stdout_free=True) as show:
            _report_summary(table_job.embed_job(), embed_table(table_job, elmo, on_progress=show))
        return
    job = EmbedJob(
        inputs=tuple(inputs),
        out=out,
        layers=opt.parse_layers(layers),
        start=start,
        devices=tuple(devices) if len(devices) > 1 else (),
        **options,
    )
    if estimate and out is None:
        raise ConfigError("--estimate needs an output file; set --out")
    n_machines = _parse_machines(machines)
    files = job.files()  # reports a missing file before a large model is loaded
    if job.input_format != "conllu" and any(".conllu" in Path(str(file)).suffixes for file in files):
        logger.warning("a .conllu file is read as %s; add --format conllu to read it as CoNLL-U", job.input_format)
    if job.input_format != "text" and tokenizer is not None:
        logger.warning("--tokenizer has no effect: the input of --format %s is already tokenized", job.input_format)
    elmo = Elmo.from_pretrained(model, device=devices[0], dtype=precision, tokenizer=tokenizer)
    if dry_run:
        _print_plan(plan_corpus(job, elmo))
        return
    if estimate:
        _print_estimate(estimate_job(job, elmo, machines=n_machines, price=price))
        return
    if out is None and sys.stdout.isatty():
        _print_shapes(job, elmo)
        return
    if out is not None:
        context.obj.after_interrupt = partial(describe_resume, out, restart=job.restart)
    n_sentences = None if context.obj.is_quiet else job.count_lines()
    with show_progress(context.obj, n_sentences=n_sentences, is_stdout_free=out is not None) as show:
        summary = embed_corpus(job, elmo, on_progress=show)
    _report_summary(job, summary)
    if summary.is_cut_short:
        raise BrokenPipeError


def _table_job(context: typer.Context, inputs: list[str], out: Path | None, options: dict[str, Any]) -> TableJob:
    """Return the job of --column; raise an error for options that have no effect on a table."""
    from elmo.errors import ConfigError
    from elmo.jobs.tables import TableJob

    unused = {
        "input_format": "--format", "split": "--split", "errors": "--errors", "workers": "--workers",
        "runner": "--runner", "cluster": "--cluster", "set_aside": "--set-aside",
    }  # fmt: skip
    if given := [flag for name, flag in unused.items() if is_set(context, name)] + [
        flag for name, flag in {"dry_run": "--dry-run", "estimate": "--estimate"}.items() if is_set(context, name)
    ]:
        raise ConfigError(f"cannot use {given[0]} with --column")
    if len(inputs) != 1 or out is None:
        raise ConfigError("--column needs one input file and --out FILE.parquet")
    values = {name: value for name, value in options.items() if name not in unused}
    return TableJob(input=Path(inputs[0]), out=out, **values)


def _check_estimate(context: typer.Context) -> None:
    from elmo.errors import ConfigError

    if is_set(context, "estimate"):
        if is_set(context, "dry_run"):
            raise ConfigError("cannot use --estimate with --dry-run")
    elif is_set(context, "machines", "price"):
        raise ConfigError(f"{'--machines' if is_set(context, 'machines') else '--price'} needs --estimate")


def _parse_machines(text: str) -> tuple[int, ...]:
    from elmo.errors import ConfigError

    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ConfigError(f"--machines must be numbers separated by commas, such as 1,10; found {text!r:.40}") from None


def _print_shapes(job: EmbedJob, elmo: Elmo) -> None:
    """Print only the shapes of the first vectors; the numbers of one sentence would fill several screens."""
    from elmo.jobs.groups import check_length
    from elmo.jobs.plan import encode_sentences
    from elmo.text.lines import Tally

    tally = Tally()
    sentences = list(islice(job.sentences(elmo.tokenizer, tally), _N_SHOWN + 1))
    for sentence in sentences[:_N_SHOWN]:
        check_length(sentence)
    encodings = encode_sentences(sentences[:_N_SHOWN], job, elmo)
    shapes = [" × ".join(map(str, encoding.vectors.shape)) for encoding in encodings]
    width = max(map(len, shapes), default=0)
    for shape, encoding in zip(shapes, encodings, strict=True):
        print(f"{shape:>{width}}  {shorten(one_line(' '.join(encoding.tokens)), _LINE_WIDTH)}".rstrip())
    has_more = len(sentences) > _N_SHOWN
    which = f" of the first {_N_SHOWN} sentences" if has_more else ""
    logger.info("showing only the shapes%s on a terminal; use --out FILE or a pipe for the vectors", which)
    warn_about_bytes(tally)
    if not has_more and not any(map(len, encodings)):
        logger.warning("the text has no words, so there are no vectors")


def _print_plan(plan: JobPlan) -> None:
    rows = {
        "sentences": f"{plan.sentences:,}",
        "tokens": f"{plan.tokens:,}",
        "shards": f"{plan.shards:,}, at most {plan.tokens_per_shard:,} tokens each",
        "output": f"about {_format_size(plan.output_bytes)}",
        "memory": f"about {_format_size(plan.memory_bytes)}",
    }
    if not plan.files:
        del rows["shards"]
    for name, value in rows.items():
        print(f"{name:9}  {value}")
    for k, path in enumerate(plan.files):
        print(one_line(f"{'' if k else 'files':9}  {path}"))


def _print_estimate(estimate: JobEstimate) -> None:
    threads = f"{estimate.threads} thread{'s' * (estimate.threads > 1)}"
    processes = (
        f"{estimate.workers} workers with {threads} each" if estimate.workers > 1 else f"one process with {threads}"
    )
    measured = f"measured for {estimate.measured_seconds:.1f} s"
    rows = {
        "sentences": f"{estimate.sentences:,}",
        "tokens": f"{estimate.tokens:,}",
        "shards": f"{estimate.shards:,}",
        "speed": f"{estimate.tokens_per_second:,.0f} tokens/s: {processes}, {measured}",
        "reading": f"{estimate.tokens_read_per_second:,.0f} tokens/s, by one process for all machines",
        "output": f"about {_format_size(estimate.output_bytes)}",
        "memory": f"about {_format_size(estimate.memory_bytes)} per machine",
    }
    for name, value in rows.items():
        print(f"{name:10}  {value}")
    columns = {"machines": [f"{column.machines:,}" for column in estimate.machines]}
    columns["hours"] = [f"{column.hours:,.3g}" for column in estimate.machines]
    columns["core-hours"] = [f"{column.core_hours:,.3g}" for column in estimate.machines]
    if any(column.cost is not None for column in estimate.machines):
        columns["cost"] = [f"{column.cost or 0:,.2f}" for column in estimate.machines]
    width = max(len(value) for values in columns.values() for value in values)
    for name, values in columns.items():
        print(f"{name:10}  {'  '.join(value.rjust(width) for value in values)}")
    if limited := [column.machines for column in estimate.machines if column.is_limited_by_reading]:
        logger.warning(
            "with %s or more machines, reading the text in one process limits the speed", f"{min(limited):,}"
        )


def _format_size(n_bytes: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"


def _report_summary(job: EmbedJob, summary: JobSummary) -> None:
    from elmo.text.lines import Tally

    warn_about_bytes(Tally(repaired=summary.repaired_lines, skipped=summary.skipped_lines))
    if summary.set_aside:
        logger.warning("left out sentences that cannot be embedded: %d; see %s", summary.set_aside, job.set_aside)
    if not summary.tokens and not summary.is_cut_short:
        logger.warning("the text has no words, so there are no vectors")
    if job.out is None:
        return
    n_files = len(summary.files)
    files = str(summary.files[0]) + (f" … {summary.files[-1].name}" if n_files > 1 else "")
    logger.info(
        "%s: %s sentences, %s tokens",
        f"{files} is already complete" if summary.was_complete else f"wrote {files}",
        f"{summary.sentences:,}",
        f"{summary.tokens:,}",
        extra={
            "sentences": summary.sentences,
            "tokens": summary.tokens,
            "files": [str(file) for file in summary.files],
        },
    )
