"""``elmo task``: train, evaluate and use models for the downstream tasks of the paper."""

from __future__ import annotations

import typer

from elmo.cli import task_evaluate, task_predict, task_train
from elmo.cli.options import examples

EXAMPLES = examples(
    "elmo task train tagging train.conll --out a.safetensors --epochs 2",
    "elmo task evaluate ner.safetensors dev.conll",
    "elmo task predict ner.safetensors --text 'The river bank .'",
)

app = typer.Typer(
    name="task",
    help="Train, evaluate and use models for the downstream tasks of the paper.",
    epilog=EXAMPLES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
for name, module in (("train", task_train), ("evaluate", task_evaluate), ("predict", task_predict)):
    app.command(name, epilog=module.EXAMPLES)(module.command)
