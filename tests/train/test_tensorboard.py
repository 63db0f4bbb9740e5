"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elmo import MissingExtraError, OutputError
from elmo.train.log import LogEntry, TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.fixture(autouse=True)
def needs_tensorboard(request: pytest.FixtureRequest) -> None:
    if "missing" not in request.node.name:
        pytest.importorskip("tensorboard")


def test_every_figure_is_a_curve_by_tokens(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "board") as board:
        assert not (tmp_path / "board").exists()  # before the first report
        board(LogEntry(10, 640, loss=7.5, learning_rate=0.25, gradient_norm=2.0))
        board(LogEntry(20, 640, loss=7.0))
        board(LogEntry(20, 640, heldout_forward=80.0, heldout_backward=90.0))
    assert scalars(tmp_path / "board") == {
        "train/loss": [(6400, 7.5), (12800, 7.0)],
        "train/learning_rate": [(6400, 0.25)],
        "train/gradient_norm": [(6400, 2.0)],
        "heldout/forward": [(12800, 80.0)],
        "heldout/backward": [(12800, 90.0)],
    }


def test_a_report_can_be_read_before_the_run_ends(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board(LogEntry(10, 640, loss=7.5))
    assert scalars(tmp_path) == {"train/loss": [(6400, 7.5)]}
    board.close()


def test_a_board_that_nobody_closed_lets_its_file_go(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board(LogEntry(10, 640, loss=7.5))
    writer = board._writer
    assert writer is not None
    assert writer.all_writers
    del board
    assert not writer.all_writers


def test_what_was_reported_after_the_last_checkpoint_is_there_once(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30, 40):
        first(LogEntry(step, 640, loss=float(step)))
        first(LogEntry(step, 640, heldout_forward=float(step)))
    first.close()
    (old,) = tmp_path.iterdir()
    old.write_bytes(old.read_bytes()[:-5])  # as a kill leaves it
    again = TensorBoard(tmp_path)  # from the checkpoint of step 20
    again(LogEntry(30, 640, loss=3.5))
    again(LogEntry(30, 640, heldout_forward=4.5))
    again.close()
    assert scalars(tmp_path) == {
        "train/loss": [(6400, 10.0), (12800, 20.0), (19200, 3.5)],
        "heldout/forward": [(6400, 10.0), (12800, 20.0), (19200, 4.5)],
    }


def test_a_missing_library_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="board: cannot be written"):
        TensorBoard(tmp_path / "file" / "board")(LogEntry(10, 640, loss=1.0))
