"""``elmo evidence``: a plan of tasks in, the paper's tables and figures on the user's own data out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli.options import MODEL_HELP, AsJson, examples
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.evidence.collect import RunReport

EXAMPLES = examples(
    "elmo evidence plan.toml --vectors glove.txt --out evidence",
    "elmo evidence plan.toml -m path/to/model --out other --tables 1 --curve",
    "elmo evidence plan.toml --out evidence --tables 1,3 --tasks ner --seeds 2",
)
_CONDITIONS = {
    "baseline": "baseline",
    "input": "ELMo at the input",
    "top_only": "the last layer only",
    "lambda_1": "ELMo with λ=1",
    "output": "ELMo at the output",
    "both": "ELMo at both",
}


def _tables(value: str) -> str:
    if not all(part.strip() in ("1", "2", "3") for part in value.split(",") if part.strip()):
        raise typer.BadParameter(f"expected numbers of tables like 1,2,3, found {value[:40]!r}")
    return value


def command(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="The tasks.", show_default=False)],
    *,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where runs, tables and pictures go.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=MODEL_HELP, show_default="the plan's"
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Static vectors of words: GloVe's, word2vec's or fastText's.",
            show_default="the plan's",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Runs of each kind.", show_default="the plan's, else 3"),
    ] = None,
    tables: Annotated[
        str, typer.Option(metavar="1,2,3", callback=_tables, help="Which tables; none: ''.")
    ] = "1,2,3",
    curve: Annotated[bool, typer.Option("--curve", help="Learn from fewer examples, too.")] = False,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="a,b,c", help="Only these of the plan.", show_default="all"),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where layers are kept.", show_default="FOLDER/layers"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat the paper's comparisons on your own data.

    Table 1 holds ELMo against the same network without, table 2 the last layer against all layers, table 3
    ELMo at the input against the output; the curve learns from fewer examples. Each run's result is kept in
    FOLDER/runs: given again, the command goes on where it was stopped, and does nothing twice.

    PLAN.toml has a table for each task: [ner], then kind = "tagging", train and dev with their files; see
    examples/evidence.toml.
    """
    from elmo.embed.elmo import Elmo
    from elmo.evidence.collect import collect
    from elmo.evidence.plan import read_plan
    from elmo.evidence.tables import lines_of
    from elmo.plots.evidence import draw_pictures

    names = None if tasks is None else [name.strip() for name in tasks.split(",") if name.strip()]
    found = read_plan(plan, only=names)
    source = context.get_parameter_source("model")
    if found.model and not (source is not None and source.name == "COMMANDLINE"):
        model = found.model  # what a plan says counts for more than the environment
    context.obj.after_interrupt = "; give the same command again to go on"
    evidence = collect(
        found,
        out,
        elmo=lambda: Elmo.from_pretrained(model),
        vectors=vectors,
        n_seeds=seeds,
        tables=[int(part) for part in tables.split(",") if part.strip()],
        has_curve=curve,
        cache=cache,
        on_run=_tell,
    )
    drawn, left_out = draw_pictures(evidence, out)
    if as_json:
        print(json.dumps(evidence.to_json(), ensure_ascii=False))
    else:
        print("\n".join(map(one_line, lines_of(evidence))))
    logger.info("%s: written: evidence.json, evidence.txt%s", out, "".join(f", {name}" for name in drawn))
    if left_out:
        logger.warning("left out: %s; pictures need pip install 'pyelmo[plots]'", ", ".join(left_out))


def _tell(report: RunReport) -> None:
    if not report.is_new:
        return
    run, result = report.run, report.result
    text = (
        f"{report.n_done} of {report.n_all}: {run.task}, {_CONDITIONS[run.condition]}, seed {run.seed}, "
        f"{run.n_examples:,} examples: {report.score} {100 * result.score:.2f} in {_time(result.seconds)}"
    )
    if report.n_done < report.n_all:
        text += f", about {_time(report.seconds_left)} left"
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


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
