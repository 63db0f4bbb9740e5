"""A corpus folder in its place: reuse, damage, refusals, full disks, and what killed builds left behind."""

from __future__ import annotations

import json
import logging
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import DataError, ElmoError, OutputError
from elmo.train import corpus_builder
from elmo.train.corpus import Corpus
from elmo.train.corpus_builder import reopen_corpus, replace_folder
from tests.train.small_corpus import TEXT, build, build_tokens, names


def test_an_unchanged_text_is_not_read_again(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="elmo")
    folder = tmp_path / "corpus"
    first = build_tokens(file, folder)
    stamp = (folder / "train.u32").stat().st_mtime_ns
    assert build_tokens(file, folder).manifest == first.manifest
    assert "which was built from the same text" in caplog.text
    assert (folder / "train.u32").stat().st_mtime_ns == stamp
    assert build_tokens(file, folder, max_sentence=2).n_sentences > first.n_sentences
    assert "an option has changed" in caplog.text
    file.write_text(TEXT * 2)
    assert build_tokens(file, folder, max_sentence=2).n_tokens == 2 * first.n_tokens
    assert "the text has changed" in caplog.text
    assert names(tmp_path) == ["corpus", "text.txt"]


@pytest.mark.parametrize("name", ["manifest.json", "types.txt", "type_ends.u64", "counts.u64", "train.u32"])
def test_damage_is_refused_and_built_anew(file: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "corpus"
    sound = build_tokens(file, folder).manifest
    data = (folder / name).read_bytes()
    for at in range(0, len(data), 7):
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(DataError, match="corpus"):
            Corpus.open(folder)
    for length in (0, len(data) // 2, len(data) - 2):
        (folder / name).write_bytes(data[:length])
        with pytest.raises(DataError, match="corpus"):
            Corpus.open(folder, verify=name == "types.txt")
    (folder / name).unlink()
    with pytest.raises(DataError, match="corpus"):
        Corpus.open(folder)
    assert build_tokens(file, folder).manifest == sound
    assert (folder / name).read_bytes() == data


def test_another_folder_is_no_corpus_and_is_left_alone(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a corpus"):
        Corpus.open(tmp_path)
    with pytest.raises(DataError, match="expected a corpus"):
        Corpus.open(tmp_path / "absent")
    with pytest.raises(
        OutputError, match=r"expected a corpus or a new folder, found the input file text\.txt"
    ):
        build_tokens(file, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "other"}))
    with pytest.raises(DataError, match="expected the manifest of a corpus"):
        Corpus.open(tmp_path)
    with pytest.raises(OutputError, match="expected a folder for the corpus"):
        build_tokens(file, file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected text to train on, found no words"),
        (b"\n \n\t\n", "expected text to train on, found no words"),
        (b"one sentence only\n", "expected at least 2 sentences to train on, found 1"),
        (b"\x00\x01\x02\n" * 99, "expected text, found a NUL at byte 1: the file is binary"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "this is a picture, not text"),
        ("héllo\nyou".encode("utf-16"), "this file is UTF-16"),
        (b"PK\x03\x04" + bytes(40), "this is a zip archive"),
        (lzma.compress(b"a b\n" * 99)[:-9], "cannot be read"),
    ],
)
@pytest.mark.parametrize("input_format", ["text", "tokens"])
def test_bad_text_is_refused_in_one_line_and_leaves_nothing(
    file: Path, tmp_path: Path, data: bytes, message: str, input_format: Any
) -> None:
    file.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        build(file, tmp_path / "new" / "corpus", input_format=input_format)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["text.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_format": "xml"}, "input_format: expected one of text, tokens, conllu, found 'xml'"),
        ({"split": True}, "split: only raw text is split into sentences"),
        ({"errors": "ignore"}, "errors: expected one of strict"),
        ({"heldout": 1.5}, "heldout: expected a share between 0 and 1"),
        ({"heldout": -1}, "heldout: expected a share between 0 and 1"),
        ({"heldout": 4}, "the text has 4 sentences, too few to hold out 4"),
        ({"max_sentence": 0}, "max_sentence: expected at least 1, found 0"),
        ({"processes": 0}, "processes: expected at least 1, found 0"),
        ({"blank_lines": True, "deduplicate": True}, "cannot be combined"),
        ({"tokenizer": "klingon"}, "tokenizer: expected one of"),
        ({"heldout_file": "absent.txt", "heldout": None}, r"absent\.txt: no such file"),
    ],
)
def test_bad_options_are_refused_and_leave_nothing(
    file: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        build_tokens(file, tmp_path / "corpus", **options)
    assert names(tmp_path) == ["text.txt"]


def test_a_place_that_cannot_be_written_is_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written") as caught:
        build_tokens(file, file / "corpus")
    assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match="cannot be written"):
        build_tokens(file, Path("/proc/corpus"))


def test_a_full_disk_leaves_the_old_corpus(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpus"
    old = build_tokens(file, folder).manifest

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_builder._HashedFile, "write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        build_tokens(file, folder, max_sentence=2)
    assert Corpus.open(folder).manifest == old
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_what_a_killed_run_left_is_cleared_away(file: Path, tmp_path: Path) -> None:
    for name in (".corpus.part", ".corpus.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.u32").write_bytes(b"half")
    build_tokens(file, tmp_path / "corpus")
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_a_build_killed_before_it_removed_the_old_corpus_is_tidied_up_by_whoever_opens_the_new_one(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    for opened in (lambda: build_tokens(file, folder), lambda: reopen_corpus(folder)):
        built = build_tokens(file, folder).manifest
        shutil.copytree(folder, tmp_path / ".corpus.old")
        (tmp_path / ".corpus.lock").touch()
        assert opened().manifest == built
        assert names(tmp_path) == ["corpus", "text.txt"]


def test_a_build_killed_between_two_renames_is_finished_by_the_next_one(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    build_tokens(file, tmp_path / "new")
    stamp = (tmp_path / "new" / "train.u32").stat().st_mtime_ns
    (tmp_path / "new").rename(tmp_path / ".corpus.part")
    build_tokens(file, tmp_path / "other", max_sentence=2)
    (tmp_path / "other").rename(tmp_path / ".corpus.old")
    build_tokens(file, folder)
    assert (folder / "train.u32").stat().st_mtime_ns == stamp  # it was not built again
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_what_a_living_build_has_beside_a_corpus_is_left_to_it(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    built = build_tokens(file, folder).manifest
    with replace_folder(folder) as temporary:
        assert build_tokens(file, folder).manifest == built
        assert temporary.is_dir()
        with pytest.raises(OutputError, match="another process is writing"):
            build_tokens(file, folder, max_sentence=2)
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_stdin_is_read_anew_each_time(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (TEXT, TEXT * 3):
        file.write_text(text)
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert build_tokens(Path("-"), tmp_path / "corpus").n_sentences == 4 * (len(text) // len(TEXT))
