"""A run's log: found by any of its names, read though its end is cut off, refused where it is damaged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo import FormatError
from elmo.train.log import LogEntry, read_log, read_logs
from tests.train.logs import lines, write_log, write_times


def test_a_run_is_found_by_its_folder_its_model_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (b'{"step": 30, "n_tok\n', "expected a JSON object"),
        (b"[1, 2]\n", "expected a JSON object"),
        (b"[1]", "expected a JSON object"),
        (b"\xff\xfe\n", "expected a JSON object"),
        (b"[" * 100_000 + b"\n", "expected a JSON object"),
        (b'{"step": 990}\n', "expected 'n_tokens'"),
        (b'{"step": -1, "n_tokens": 1}\n', "expected a count as 'step', found -1"),
        (b'{"step": true, "n_tokens": 1}\n', "expected a count as 'step', found True"),
        (b'{"step": 990, "n_tokens": 1, "loss": "low"}\n', "expected a number as 'loss', found 'low'"),
        (b'{"step": 990, "n_tokens": 1, "loss": 1' + b"0" * 400 + b"}\n", "expected a number as 'loss'"),
        (b'{"step": 7, "n_tokens": 1}\n', "expected a step after 200, found 7"),
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


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nothing"):
        with pytest.raises(FormatError, match=rf"{name}: expected a training run \(a folder with log.jsonl"):
            read_log(tmp_path / name)


def test_times_come_from_beside_the_log(tmp_path: Path) -> None:
    write_times(write_log(tmp_path), 0.5)
    assert [entry.seconds for entry in read_log(tmp_path).entries[:2]] == [5.0, 10.0]
    with (tmp_path / "times.jsonl").open("a") as file:
        file.write('{"step": 10')
    assert read_log(tmp_path).entries[-1].seconds == 100.0


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [write_log(tmp_path / name) for name in ("a/m.training", "b/m.training", "b/other.training")]
    assert [run.name for run in read_logs(folders)] == ["a/m", "b/m", "other"]
    deep = [write_log(tmp_path / name) for name in ("x/one/m.training", "y/one/m.training")]
    assert [run.name for run in read_logs(deep)] == ["x/one/m", "y/one/m"]
    assert len(read_logs([folders[0], folders[0]])) == 2
