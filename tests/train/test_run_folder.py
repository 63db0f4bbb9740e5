from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from elmo import ConfigError, DataError, ElmoError, OutputError, resume_bilm, train_bilm
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.formats import native
from elmo.train.loop import StepReport
from elmo.train.read_text import BuildProgress
from elmo.train.run_folder import RunFolder
from tests.faults.arena import contents, visible
from tests.formats.tiny import tiny_model

TINY = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (2, 4))), None, LstmConfig(1, 8, 4))
SETTINGS: dict[str, Any] = {
    "preset": TINY, "epochs": 2, "samples": 12, "seed": 4, "checkpoint_every": 4,
    "evaluate_every": 8, "threads": 1,
}  # fmt: skip


def write_text(folder: Path) -> Path:
    lines = [f"The {noun} crosses river {k % 7}." for k in range(40) for noun in ("cat", "dog")]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    return folder / "text.txt"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path)


class StoppedError(Exception):
    pass


def stop(report: StepReport) -> None:
    if report.step > 4:
        raise StoppedError


def begin(folder: Path) -> Path:
    """The place of a model whose run was stopped after its first checkpoint."""
    with pytest.raises(StoppedError):
        train_bilm(folder / "text.txt", folder / "model", **SETTINGS, on_report=stop)
    return folder / "model"


@pytest.fixture
def started(tmp_path: Path, text: Path) -> Path:
    return begin(tmp_path)


@pytest.fixture(scope="module")
def started_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for tests after which it must be as it was."""
    folder = tmp_path_factory.mktemp("started")
    write_text(folder)
    return begin(folder)


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 5}, r"other options: seed \(4, not 5\); resume it"),
    ({"epochs": 3}, r"other options: epochs \(2, not 3\)"),
    ({"threads": 2}, r"other options: threads \(1, not 2\)"),
    ({"clip": 1.0}, r"other options: clip \(default, not 1\.0\)"),
    ({"deduplicate": True}, r"other options: deduplicate \(default, not True\)"),
    ({"tokenizer": "whitespace"}, r"other options: tokenizer \(default, not whitespace\)"),
    ({"hours": 1, "epochs": None}, r"other options: epochs \(2, not default\), hours \(default, not 1\)"),
]


@pytest.mark.parametrize(("others", "message"), OTHERS)
def test_a_started_run_is_not_changed_by_a_call_with_other_options(
    started_once: Path, others: dict[str, Any], message: str
) -> None:
    before = contents(started_once.parent)
    with pytest.raises(ConfigError, match=rf"model: a run with this output was started with {message}"):
        train_bilm(started_once.parent / "text.txt", started_once, **{**SETTINGS, **others})
    assert contents(started_once.parent) == before


@pytest.mark.slow
def test_a_started_run_is_not_changed_by_other_text_and_resumes_with_its_own(
    started: Path, text: Path, tmp_path: Path
) -> None:
    train_bilm(text, tmp_path / "whole", **SETTINGS)
    (tmp_path / "copy").write_bytes(text.read_bytes())
    stamp = text.stat().st_mtime_ns
    (tmp_path / "other.txt").write_text("Another text.\n" * 90)
    before = contents(tmp_path / "model.training")
    with pytest.raises(ConfigError, match=r"other options: texts \(….*text\.txt, not ….*other\.txt\)"):
        train_bilm(tmp_path / "other.txt", started, **SETTINGS)
    text.write_text("Another text.\n" * 90)
    with pytest.raises(ConfigError, match=r"has changed since its start \(.*text\.txt\); resume it \(--resume\)"):
        train_bilm(text, started, **SETTINGS)
    text.write_text((tmp_path / "copy").read_text().replace("cat", "cow"))  # as long as before
    os.utime(text, ns=(stamp, stamp))
    with pytest.raises(ConfigError, match="has changed since its start"):
        train_bilm(text, started, **SETTINGS)
    text.unlink()
    with pytest.raises(DataError, match="no such file"):
        train_bilm(text, started, **SETTINGS)
    assert contents(tmp_path / "model.training") == before
    resume_bilm(started)
    assert contents(started) == contents(tmp_path / "whole")


def test_files_that_join_a_folder_of_text_are_another_text(tmp_path: Path, text: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    text.rename(folder / "a.txt")
    with pytest.raises(StoppedError):
        train_bilm(folder, tmp_path / "model", **SETTINGS, on_report=stop)
    (folder / "b.txt").write_text("Another text.\n" * 90)
    with pytest.raises(ConfigError, match=r"has changed since its start \(1 files at the start, 2 now\)"):
        train_bilm(folder, tmp_path / "model", **SETTINGS)


@pytest.mark.slow
def test_the_damaged_corpus_of_a_started_run_is_built_again(started: Path, text: Path, tmp_path: Path) -> None:
    train_bilm(text, tmp_path / "whole", **SETTINGS)
    damaged = tmp_path / "model.training" / "corpus" / "train.u32"
    damaged.write_bytes(b"\1" + damaged.read_bytes()[1:])
    train_bilm(text, started, **SETTINGS)
    assert contents(started) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_the_same_call_after_the_model_was_written_succeeds_and_draws_missing_curves(
    text: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out = train_bilm(text, tmp_path / "model", **SETTINGS)
    before = contents(tmp_path)
    (tmp_path / "model.training" / "curves.png").unlink()
    (tmp_path / "model.training" / ".run.lock").touch()  # from a killed process
    assert train_bilm(text, out, **SETTINGS) == out
    assert contents(tmp_path).keys() == before.keys()
    assert resume_bilm(out) == out
    text.unlink()
    assert train_bilm(text, out, **SETTINGS) == out


@pytest.mark.slow
@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_model_that_this_run_did_not_write_is_never_taken_for_its_own(
    started: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: str
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    native.write(tiny_model(), started)  # its run is not at its end
    for call in (lambda: train_bilm(text, started, **SETTINGS), lambda: resume_bilm(started)):
        with pytest.raises(OutputError, match="model already exists"):
            call()
    native.write(tiny_model(), tmp_path / "bare")  # it has no run
    with pytest.raises(OutputError, match="bare already exists"):
        train_bilm(text, tmp_path / "bare", **SETTINGS)
    assert not (tmp_path / "bare.training").exists()
    out = train_bilm(text, tmp_path / "whole", **SETTINGS)
    with pytest.raises(OutputError, match="whole already exists"):  # its run had other options
        train_bilm(text, out, **{**SETTINGS, "seed": 5})
    weights = out / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\7")
    with pytest.raises(OutputError, match="whole already exists"):  # its checksums do not hold
        train_bilm(text, out, **SETTINGS)
    for path in out.iterdir():
        path.unlink()
    native.write(tiny_model(), out)
    with pytest.raises(OutputError, match="whole already exists"):  # it came from elsewhere
        train_bilm(text, out, **SETTINGS)


def test_the_model_is_the_last_thing_that_is_written(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def get_in_the_way(report: StepReport) -> None:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "mine").touch()

    with pytest.raises(OutputError, match="already exists"):
        train_bilm(text, tmp_path / "model", **SETTINGS, on_report=get_in_the_way)
    assert (tmp_path / "model.training" / "curves.png").is_file()


@pytest.mark.slow
def test_a_run_that_was_stopped_while_its_text_was_read_is_resumed(text: Path, tmp_path: Path) -> None:
    def interrupt(progress: BuildProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bilm(text, tmp_path / "model", **SETTINGS, on_progress=interrupt)
    resume_bilm(tmp_path / "model")
    train_bilm(text, tmp_path / "whole", **SETTINGS)
    assert contents(tmp_path / "model") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_without_a_checkpoint_another_run_may_replace_it_but_a_refused_call_changes_nothing(
    text: Path, tmp_path: Path
) -> None:
    def stop_at_once(report: StepReport) -> None:
        raise StoppedError

    out, settings = tmp_path / "model", {**SETTINGS, "log_every": 1}
    with pytest.raises(StoppedError):
        train_bilm(text, out, **settings, on_report=stop_at_once)
    before = contents(tmp_path / "model.training")
    (tmp_path / "empty.txt").touch()
    for refused in (tmp_path / "empty.txt", tmp_path / "absent.txt"):
        with pytest.raises(DataError):
            train_bilm(refused, out, **settings)
        assert contents(tmp_path / "model.training") == before
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("cat", "cow"))
    train_bilm(other, out, **{**settings, "seed": 5})
    recipe = json.loads((tmp_path / "model.training" / "recipe.json").read_text())
    assert (recipe["texts"], recipe["options"]["seed"]) == ([str(other)], 5)
    assert "cow" in (out / "vocab.txt").read_text().splitlines()


def test_two_processes_do_not_share_a_folder(text: Path, started: Path) -> None:
    before = visible(contents(started.parent))
    with RunFolder(started).hold(), pytest.raises(OutputError, match="model: another process is writing"):
        train_bilm(text, started, **SETTINGS)
    assert visible(contents(started.parent)) == before


def test_a_call_that_fails_before_the_start_leaves_no_folder(text: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    for inputs, choices in ((tmp_path / "empty.txt", {}), (text, {"init_from": tmp_path / "absent"})):
        settings = {name: value for name, value in SETTINGS.items() if name != "preset" or not choices}
        with pytest.raises(ElmoError):
            train_bilm(inputs, tmp_path / "deep" / "below" / "model", **settings, **choices)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_resumed_run_uses_the_same_number_of_threads(text: Path, tmp_path: Path) -> None:
    mine = torch.get_num_threads()
    found: list[int] = []

    def look(report: StepReport) -> None:
        found.append(torch.get_num_threads())
        if len(found) == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_bilm(text, tmp_path / "model", **{**SETTINGS, "threads": mine + 1}, on_report=look)
    resume_bilm(tmp_path / "model", on_report=look)
    assert set(found) == {mine + 1}
    assert torch.get_num_threads() == mine


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_one_thread_tokenizes_without_other_processes(tmp_path: Path) -> None:
    source = tmp_path / "large.txt"
    source.write_text("The cat crosses the river near the bank.\n" * 120_000)  # enough to start some
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())  # servers or a browser of other tests
    started: list[set[str]] = []

    def look(progress: BuildProgress) -> None:
        started.append(set(children.read_text().split()) - before)
        raise StoppedError

    with pytest.raises(StoppedError):
        train_bilm(source, tmp_path / "model", **SETTINGS, on_progress=look)
    assert started == [set()]
