"""Options of a command, generated from a signature and a docstring."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
import typer
from typer.testing import CliRunner

from elmo.cli import generate
from elmo.cli.generate import options_from, read_descriptions, read_options

LIBRARY = '''
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmo.sizes import Size as ModelSize

Decay = Literal["none", "linear"]
SAMPLES = 1 << 13


def train(
    inputs: str | Path,
    *,
    out: Path,
    name: str = "model",
    decay: Decay = "none",
    size: ModelSize | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    init_from: str | Path | None = None,
    n_samples: int = SAMPLES,
    learning_rate: float | None = None,
    is_tied: bool = False,
    shuffle: bool = True,
    heldout: list[str] | None = None,
    extra_inputs: tuple[str, ...] = (),
    on_step: Callable[[int], None] | None = None,
) -> None:
    """Train a model.

    Some words: more words.

    Args:
        inputs: Text files.
        out: Folder of the model.
        name (str): Name of the model, stored in
            ``config.json``.
        decay: How the learning rate decreases.
        size: Size of the model. Default: depends on the text.
        device: Where to compute.
        init_from: Model to start from.
        n_samples: Sampled words per prediction.
        learning_rate: Step size.
        is_tied: Share the word vectors.
        shuffle: Read the text in random order.
        heldout: Text to hold out.

        extra_inputs: More text files.
        on_step: Called after each step.

    Returns:
        out: Nothing.
    """


@dataclass(frozen=True)
class OptimizerOptions:
    """How weights follow gradients.

    Attributes:
        name: Name of the algorithm.
        warmup_steps: Steps until the full learning rate.
    """

    name: Literal["adagrad", "sgd"] = "adagrad"
    warmup_steps: int = 0

    def build(self) -> None:
        """Build it."""
'''


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small library with the names elmo.library, elmo.sizes and the package elmo.door."""
    root = tmp_path / "elmo"
    (root / "door").mkdir(parents=True)
    (root / "library.py").write_text(LIBRARY)
    (root / "sizes.py").write_text('from typing import Literal\nSize = Literal["tiny", "small"]\n')
    (root / "door" / "__init__.py").write_text('"""A package."""\n')
    (root / "door" / "__init__.pyi").write_text("from ..library import OptimizerOptions as OptimizerOptions\n")
    monkeypatch.setattr(generate, "_PACKAGE", root)
    generate._parse.cache_clear()


def invoke(command: Callable[..., Any], *arguments: str) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(command)
    return CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})


def train_command(received: dict[str, Any], **settings: Any) -> Callable[..., Any]:
    @options_from("elmo.library:train", skip=("out", "on_step"), **settings)
    def command(
        context: typer.Context,
        inputs: Annotated[list[str], typer.Argument(metavar="INPUT")],
        *,
        out: Annotated[Path, typer.Option(metavar="FOLDER")],
        **options: Any,
    ) -> None:
        """Train."""
        received.update(inputs=inputs, out=out, **options)

    return command


def test_types_defaults_and_help_come_from_the_source() -> None:
    options = {option.name: option for option in read_options("elmo.library:train", skip=("on_step",))}
    assert "inputs" not in options
    assert options["out"].type is Path
    assert options["out"].is_required
    assert options["name"].help == "Name of the model, stored in config.json."
    assert get_args(options["decay"].type) == ("none", "linear")
    assert options["size"].type == Literal["tiny", "small"] | None
    assert options["size"].help == "Size of the model."
    assert options["size"].show_default == "depends on the text"
    assert options["init_from"].type == str | None
    assert options["n_samples"].default == 8192
    assert options["heldout"].type == list[str] | None
    assert options["extra_inputs"].default == ()
    assert options["is_tied"].flag == "--tied"
    assert options["shuffle"].flag == "--shuffle/--no-shuffle"


def test_a_command_gets_the_defaults_of_the_library() -> None:
    received: dict[str, Any] = {}
    outcome = invoke(train_command(received), "a.txt", "--out", "model")
    assert outcome.exit_code == 0, outcome.output
    assert received == {
        "inputs": ["a.txt"],
        "out": Path("model"),
        "name": "model",
        "decay": "none",
        "size": None,
        "device": "cpu",
        "init_from": None,
        "n_samples": 8192,
        "learning_rate": None,
        "is_tied": False,
        "shuffle": True,
        "heldout": None,
        "extra_inputs": (),
    }


def test_a_command_gets_the_values_of_the_command_line() -> None:
    received: dict[str, Any] = {}
    command = train_command(received, flags={"init_from": "--from", "n_samples": ("--samples", "-s")})
    line = "a.txt --out m --decay linear --size tiny --from x -s 5 --tied --no-shuffle --heldout p --heldout q"
    outcome = invoke(command, *line.split())
    assert outcome.exit_code == 0, outcome.output
    assert received["decay"] == "linear"
    assert (received["size"], received["init_from"], received["n_samples"]) == ("tiny", "x", 5)
    assert (received["is_tied"], received["shuffle"]) == (True, False)
    assert received["heldout"] == ["p", "q"]


def test_help_shows_metavars_defaults_and_order_of_panels() -> None:
    command = train_command(
        {}, panels={"Learning": ("learning_rate", "decay"), "Text": ("heldout",)}, metavars={"learning_rate": "X"}
    )
    shown = invoke(command, "--help").output
    assert "--learning-rate X" in shown
    assert "Size of the model." in shown
    assert "(depends on the text)" in " ".join(shown.split())
    assert "--n-samples N " in shown
    assert "<none|linear>" in shown
    places = [shown.index(flag) for flag in ("--out", "--learning-rate", "--decay", "--heldout", "--name")]
    assert places == sorted(places)


def test_minimums_are_checked() -> None:
    received: dict[str, Any] = {}
    command = train_command(received, minimums={"n_samples": 1})
    assert invoke(command, "a", "--out", "m", "--n-samples", "0").exit_code == 2
    assert invoke(command, "a", "--out", "m", "--n-samples", "1").exit_code == 0
    assert received["n_samples"] == 1


def test_a_dataclass_becomes_a_dict_of_the_options_that_are_set() -> None:
    received: dict[str, Any] = {}

    @options_from("elmo.library:train", skip=("out", "on_step"))
    @options_from("elmo.door:OptimizerOptions", into="optimizer", flags={"name": "--optimizer"})
    def command(context: typer.Context, *, optimizer: dict[str, Any], **options: Any) -> None:
        received.update(optimizer=optimizer, **options)

    assert invoke(command, "--optimizer", "sgd").exit_code == 0
    assert received["optimizer"] == {"name": "sgd"}
    assert received["name"] == "model"
    shown = invoke(command, "--help").output
    assert shown.index("--name") < shown.index("--optimizer") < shown.index("--warmup-steps")


@pytest.mark.parametrize(
    ("source", "settings", "part"),
    [
        ("elmo.library:train", {}, "on_step: cannot generate an option of the type"),
        ("elmo.library:train", {"skip": ("on_stop", "on_step")}, "no parameter on_stop"),
        ("elmo.library:train", {"skip": ("on_step",), "flags": {"nam": "--n"}}, "no parameter nam"),
        ("elmo.library:SAMPLES", {}, "not a function"),
        ("elmo.library:test", {}, "elmo.library has no test"),
    ],
)
def test_mistakes_in_a_declaration_are_errors(source: str, settings: Any, part: str) -> None:
    def command(**options: Any) -> None:
        """Do nothing."""

    decorated = options_from(source, **settings)(command)
    with pytest.raises(TypeError, match=part):
        inspect.signature(decorated)


def test_a_parameter_of_the_command_replaces_that_of_the_library() -> None:
    received: dict[str, Any] = {}

    @options_from("elmo.library:train", skip=("on_step", "out"))
    def command(*, name: Annotated[str, typer.Option("--title")] = "own", **options: Any) -> None:
        received.update(name=name, **options)

    assert invoke(command, "--title", "x").exit_code == 0
    assert (received["name"], received["decay"]) == ("x", "none")


def test_descriptions_end_with_their_section() -> None:
    text = "T.\n\nAttributes:\n    a: One\n        and two.\n    b (int): Three: four.\n\nExample:\n    c: no\n"
    assert read_descriptions(text) == {"a": "One and two.", "b": "Three: four."}
    assert read_descriptions("Title.") == {}


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys; from elmo.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_keys_of_an_unpacked_typed_dict_become_options(tmp_path: Path) -> None:
    (tmp_path / "elmo" / "tasks.py").write_text(
        "class Settings(TypedDict, total=False):\n"
        '    """Settings.\n\n    Attributes:\n        epochs: Number of epochs. Default: 5.\n    """\n\n'
        "    epochs: int | None\n\n\n"
        "def fit(*, seed: int = 0, **settings: Unpack[Settings]) -> None:\n"
        '    """Fit a model.\n\n    Args:\n        seed: Random seed.\n    """\n'
    )
    seed, epochs = read_options("elmo.tasks:fit")
    assert (seed.name, seed.default) == ("seed", 0)
    assert (epochs.name, epochs.type, epochs.default, epochs.show_default) == ("epochs", int | None, None, "5")
    assert epochs.help == "Number of epochs."
