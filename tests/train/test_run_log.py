from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmo.errors import OutputError
from elmo.train.log import LogFile
from tests.jobs.test_run import small_files


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


def test_a_log_that_lost_lines_is_gone_on_with_and_not_filled_with_zeros(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogFile(tmp_path / "log.jsonl")
    log.cut(100)  # somebody removed it
    assert log.path.read_bytes() == b""
    assert "lines are missing" in caplog.text


def test_a_full_disk_or_a_place_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.jsonl")
    log.cut(0)
    with small_files(10), pytest.raises(OutputError, match=r"log\.jsonl: cannot be written: File too large"):
        log.add({"text": "longer than that"})
    with pytest.raises(OutputError, match="cannot be written: Is a directory"):
        LogFile(tmp_path).cut(0)
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        LogFile(tmp_path / "absent").synced_size()
