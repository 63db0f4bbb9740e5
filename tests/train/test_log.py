from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo import FormatError, MissingExtraError, OutputError
from elmo.train.log import LogEntry, LogFile, Stopwatch, TensorBoard, read_log, read_logs, read_times
from tests.jobs.test_run import small_files
from tests.train.logs import lines, write_log, write_times


def test_a_run_is_found_by_its_folder_its_model_and_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_log(tmp_path / "model.training")
    runs = [read_log(folder), read_log(folder / "log.jsonl"), read_log(tmp_path / "model")]
    (tmp_path / "model").mkdir()
    runs.append(read_log(tmp_path / "model"))  # finished now
    monkeypatch.chdir(tmp_path / "model")
    runs.append(read_log("."))
    assert {run.name for run in runs} == {"model"}
    assert {run.entries for run in runs} == {runs[0].entries}
    assert len(runs[0].entries) == len(lines())


def test_an_entry_has_what_was_logged_and_what_follows_from_it(tmp_path: Path) -> None:
    entry = {"step": 50, "n_steps": 100, "n_tokens": 2560, "epoch": 1}
    logged = [
        {**entry, "loss": 5, "learning_rate": 0.2, "gradient_norm": 3.5, "of_the_future": [1]},
        {**entry, "heldout_forward": 100.0, "heldout_backward": 400.0},
        {**entry, "step": 60, "heldout_backward": 81.0},
        {**entry, "step": 70, "heldout_forward": math.inf, "heldout_backward": 1.0},
    ]
    first, both, one, lost = read_log(write_log(tmp_path, logged)).entries
    assert first == LogEntry(50, 2560, 1, 100, loss=5.0, learning_rate=0.2, gradient_norm=3.5)
    assert (first.tokens, first.heldout) == (128_000, None)
    assert both.heldout == pytest.approx(200)
    assert one.heldout == pytest.approx(81)
    assert lost.heldout is None
    assert read_log(tmp_path).best == one


@given(cut=st.integers(0, 400))
def test_a_log_that_was_cut_off_anywhere_gives_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = write_log(tmp_path_factory.mktemp("cut"))
    whole = read_log(folder).entries
    raw = (folder / "log.jsonl").read_bytes()
    (folder / "log.jsonl").write_bytes(raw[:cut])
    n_whole = raw[: cut + 1].count(b"\n")  # a line that only lacks its line break is whole
    assert read_log(folder).entries == whole[:n_whole]


def test_zeros_after_a_power_cut_are_a_cut_line(tmp_path: Path) -> None:
    assert len(read_log(write_log(tmp_path, tail=b"\0" * 80)).entries) == len(lines())


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b'{"step": 30, "n_tok\n', "must be a JSON object"),
        (b"[1, 2]\n", "must be a JSON object"),
        (b"[1]", "must be a JSON object"),
        (b"\xff\xfe\n", "must be a JSON object"),
        (b"[" * 100_000 + b"\n", "must be a JSON object"),
        (b'{"step": 990}\n', "n_tokens must be present"),
        (b'{"step": -1, "n_tokens": 1}\n', "step must be a whole number of at least 0; found -1"),
        (b'{"step": true, "n_tokens": 1}\n', "step must be a whole number of at least 0; found True"),
        (b'{"step": 990, "n_tokens": 1, "loss": "low"}\n', "loss must be a number; found 'low'"),
        (b'{"step": 990, "n_tokens": 1, "loss": 1' + b"0" * 400 + b"}\n", "loss must be a number"),
        (b'{"step": 7, "n_tokens": 1}\n', "step must be at least 200; found 7"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, part: str) -> None:
    folder = write_log(tmp_path, tail=line)
    with pytest.raises(FormatError) as refused:
        read_log(folder)
    message = str(refused.value)
    assert f"log.jsonl, line {len(lines()) + 1}: " in message
    assert part in message
    assert message.isprintable()


def test_other_files_than_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"empty must be a training run: a folder with log.jsonl"):
        read_log(tmp_path / "empty")
    with pytest.raises(FormatError, match=r"nothing: no such file or folder; expected a training run"):
        read_log(tmp_path / "nothing")


def test_times_are_read_from_the_file_next_to_the_log(tmp_path: Path) -> None:
    write_times(write_log(tmp_path), 0.5)
    assert [entry.seconds for entry in read_log(tmp_path).entries[:2]] == [5.0, 10.0]
    with (tmp_path / "times.jsonl").open("a") as file:
        file.write('{"step": 10')
    assert read_log(tmp_path).entries[-1].seconds == 100.0


def test_runs_with_equal_names_get_their_folders_as_prefix(tmp_path: Path) -> None:
    folders = [write_log(tmp_path / name) for name in ("a/m.training", "b/m.training", "b/other.training")]
    assert [run.name for run in read_logs(folders)] == ["a/m", "b/m", "other"]
    deep = [write_log(tmp_path / name) for name in ("x/one/m.training", "y/one/m.training")]
    assert [run.name for run in read_logs(deep)] == ["x/one/m", "y/one/m"]
    assert len(read_logs([folders[0], folders[0]])) == 2


def test_lines_added_after_a_checkpoint_are_cut_off_and_can_be_added_again(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.jsonl")
    log.cut(0)
    log.add({"step": 1, "loss": 2.5})
    kept = log.synced_size()
    log.add({"step": 2})
    whole = log.path.read_bytes()
    assert [json.loads(line) for line in whole.splitlines()] == [{"step": 1, "loss": 2.5}, {"step": 2}]
    log.cut(kept)
    assert log.synced_size() == kept
    log.add({"step": 2})
    assert log.path.read_bytes() == whole


def test_a_log_that_lost_lines_is_continued_and_not_filled_with_zeros(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogFile(tmp_path / "log.jsonl")
    log.cut(100)  # somebody removed it
    assert log.path.read_bytes() == b""
    assert "the last entries are missing" in caplog.text


def test_a_full_disk_or_a_folder_as_log_is_one_line(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.jsonl")
    log.cut(0)
    with small_files(10), pytest.raises(OutputError, match=r"cannot write .*log\.jsonl: File too large"):
        log.add({"text": "longer than that"})
    with pytest.raises(OutputError, match=r"cannot write .*: Is a directory"):
        LogFile(tmp_path).cut(0)
    with pytest.raises(OutputError, match=r"cannot write .*: No such file"):
        LogFile(tmp_path / "absent").synced_size()


def record(folder: Path, *steps: int) -> dict[int, float]:
    watch = Stopwatch(folder)
    for step in steps:
        watch(LogEntry(step, 640))
    return read_times(folder / "times.jsonl")


def test_every_step_has_one_time_and_they_grow(tmp_path: Path) -> None:
    times = record(tmp_path, 10, 20, 20, 30)
    assert list(times) == [10, 20, 30]
    assert (tmp_path / "times.jsonl").read_text().count("\n") == 3
    assert 0 <= times[10] <= times[20] <= times[30]


def test_a_resumed_run_counts_from_its_last_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "times.jsonl").write_text('{"step": 10, "seconds": 100.0}\n{"step": 20, "seconds": 1e6}\n{"step": 3')
    times = record(tmp_path, 20, 30)
    assert list(times) == [10, 20, 30]
    assert 100 <= times[20] <= times[30] < 1e6


def test_times_that_are_damaged_do_not_stop_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "times.jsonl").write_text("damaged\n")
    with caplog.at_level(logging.WARNING, logger="elmo"):
        assert list(record(tmp_path, 20)) == [20]
    assert "times.jsonl, line 1" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*times\.jsonl"):
        record(tmp_path / "nowhere", 10)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]
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


def test_a_missing_library_is_reported_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*board"):
        TensorBoard(tmp_path / "file" / "board")(LogEntry(10, 640, loss=1.0))
