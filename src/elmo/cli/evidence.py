"""``elmo evidence``: repeat the comparisons of the paper on your own data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.console import LogInterval, logger
from elmo.cli.results import print_results

if TYPE_CHECKING:
    from elmo.evidence.collect import RunReport
    from elmo.evidence.runs import EvidenceRun
    from elmo.tasks.fit import Epoch

EXAMPLES = opt.examples(
    "elmo evidence plan.toml --vectors glove.txt --out evidence",
    "elmo evidence plan.toml -m path/to/model --out other --tables 1 --curve",
    "elmo evidence plan.toml --out evidence --tables 1,3 --tasks ner --seeds 2",
)
_CONDITIONS = {
    "baseline": "baseline",
    "input": "ELMo at the input",
    "top_only": "last layer only",
    "lambda_1": "ELMo with λ=1",
    "output": "ELMo at the output",
    "both": "ELMo at input and output",
    "random": "random vectors",
    "elmo_only": "ELMo without static vectors",
}


def _check_tables(value: str) -> str:
    if not all(part.strip() in ("1", "2", "3", "4") for part in value.split(",") if part.strip()):
        raise typer.BadParameter(f"expected table numbers from 1 to 4, such as 1,3; found {value[:40]!r}")
    return value


def command(
    context: typer.Context,
    plan: Annotated[Path, opt.argument(metavar="PLAN.toml", help="TOML file that lists the tasks.")],
    *,
    out: Annotated[Path, opt.option(metavar="FOLDER", help="Folder for runs, tables and figures.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=opt.MODEL_HELP, show_default="from the plan"
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of static word vectors: GloVe, word2vec or fastText.",
            show_default="from the plan",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of runs per condition.", show_default="from the plan, or 3"),
    ] = None,
    tables: Annotated[
        str,
        typer.Option(metavar="1,2,3,4", callback=_check_tables, help="Numbers of the tables to repeat; '' for none."),
    ] = "1,2,3",
    curve: Annotated[bool, typer.Option("--curve", help="Also train on subsets of the training data.")] = False,
    tasks: Annotated[
        str | None, typer.Option(metavar="a,b,c", help="Run only these tasks of the plan.", show_default="all")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder in which computed layers are cached.",
            show_default="layers in the folder of --out",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Repeat the comparisons of the paper on your own data.

    Table 1 compares ELMo with the same network without ELMo. Table 2 compares the last layer with all layers.
    Table 3 compares ELMo at the input with ELMo at the output. Table 4 compares random vectors, static vectors and
    ELMo, for several numbers of training examples (sizes in the plan). With --curve, scores for smaller training sets
    are measured as well. Finished runs are kept in FOLDER/runs, so the same command resumes after an interruption.

    PLAN.toml has a section for each task, such as [ner] with kind = "tagging" and the files train and dev; see
    examples/evidence.toml.
    """
    from elmo.evidence.collect import collect_evidence
    from elmo.evidence.plan import read_plan
    from elmo.evidence.tables import format_evidence
    from elmo.plots.evidence import draw_pictures

    names = None if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    plan_read = read_plan(plan, only=names)
    source = context.get_parameter_source("model")
    if plan_read.model and (source is None or source.name != "COMMANDLINE"):
        model = plan_read.model  # the plan overrides the environment, the command line overrides the plan
    context.obj.after_interrupt = "; run the same command again to resume"
    evidence = collect_evidence(
        plan_read,
        out,
        model=model,
        vectors=vectors,
        seeds=seeds,
        tables=[int(part) for part in tables.split(",") if part.strip()],
        curve=curve,
        cache=cache,
        on_run=_log_run,
        on_epoch=_EpochLines(),
        show_progress=context.obj.is_bar_shown,
    )
    drawn, skipped = draw_pictures(evidence, out)
    print_results(evidence.to_json(), format_evidence(evidence), as_json=as_json)
    logger.info("wrote evidence.json, evidence.txt%s to %s", "".join(f", {name}" for name in drawn), out)
    if skipped:
        logger.warning(
            "cannot draw %s: matplotlib is not installed; run: pip install 'pyelmo[plots]'", ", ".join(skipped)
        )


class _EpochLines:
    """Log the last epoch, at most once in ten seconds, so that long runs show progress and short ones only results."""

    def __init__(self) -> None:
        self._interval = LogInterval()

    def __call__(self, run: EvidenceRun, epoch: Epoch) -> None:
        if not self._interval.is_over():
            return
        logger.info(
            f"{run.task}, {_CONDITIONS[run.condition]}, seed {run.seed}, {run.n_examples:,} examples: "
            f"epoch {epoch.epoch}, loss {epoch.loss:.4f}",
            extra={"task": run.task, "condition": run.condition, "seed": run.seed, "epoch": epoch.epoch},
        )


def _log_run(report: RunReport) -> None:
    if not report.is_new:
        return
    run, result = report.run, report.result
    text = (
        f"{report.n_done} of {report.n_all}: {run.task}, {_CONDITIONS[run.condition]}, seed {run.seed}, "
        f"{run.n_examples:,} examples: {report.score} {100 * result.score:.2f} "
        f"in {_format_time(result.seconds)}"
    )
    if report.n_done < report.n_all:
        text += f", about {_format_time(report.seconds_left)} left"
    logger.info(
        text,
        extra={
            "task": run.task,
            "condition": run.condition,
            "seed": run.seed,
            "n_examples": run.n_examples,
            "score": result.score,
            "seconds": result.seconds,
            "seconds_left": round(report.seconds_left),
            "done": report.n_done,
            "all": report.n_all,
        },
    )


def _format_time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
