"""Parallel texts: two files of lines, or tables; unequal files and blank lines."""

from __future__ import annotations

import lzma
import re
from collections import Counter
from pathlib import Path

import pytest

from elmo import ConfigError, DataError
from elmo.tasks.data.parallel import WITH_BLANK, read_parallel, read_translations


def write(folder: Path, **files: str) -> list[Path]:
    paths = [folder / name.replace("_", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_two_files_of_lines_are_read_in_parallel(tmp_path: Path) -> None:
    paths = write(tmp_path, a_en="Two men .\nA dog .\n", a_de="Zwei Männer.\nEin Hund.\n", b_en="我 爱\n", b_de="x\n")
    found = list(read_parallel(paths))
    assert [(one.source, one.target) for one in found] == [
        (("Two", "men", "."), "Zwei Männer."), (("A", "dog", "."), "Ein Hund."), (("我", "爱"), "x"),
    ]  # fmt: skip
    assert str(found[1].location).endswith("a.en:2")


def test_compressed_files_are_read(tmp_path: Path) -> None:
    for name, text in (("a.en.xz", "a b\n"), ("a.de.xz", "c\n")):
        (tmp_path / name).write_bytes(lzma.compress(text.encode()))
    (found,) = read_parallel([tmp_path / "a.en.xz", tmp_path / "a.de.xz"])
    assert (found.source, found.target) == (("a", "b"), "c")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", "source\ttarget\na b\tc d\n"),
        ("x.tsv", "Target\tSource\nc d\ta b\n"),
        ("x.csv", 'source,target\na b,"c d"\n'),
        ("x.jsonl", '{"source": ["a", "b"], "target": "c d"}\n'),
    ],
)
def test_tables_have_a_source_and_a_target_column(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (found,) = read_parallel(tmp_path / name)
    assert (found.source, found.target) == (("a", "b"), "c d")
    (blind,) = read_parallel(tmp_path / name, is_labeled=False)
    assert (blind.source, blind.target) == (("a", "b"), None)


def test_columns_are_chosen_by_number(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("1\tc\ta\n2\td\tb\n")
    found = read_parallel(tmp_path / "x.tsv", source=2, target=1)
    assert [(one.source, one.target) for one in found] == [(("a",), "c"), (("b",), "d")]


@pytest.mark.parametrize(("n_source", "n_target"), [(3, 2), (2, 4), (0, 1), (1, 0)])
def test_unequal_numbers_of_lines_are_one_error(tmp_path: Path, n_source: int, n_target: int) -> None:
    paths = write(tmp_path, a_en="a\n" * n_source, a_de="b\n" * n_target)
    expected = rf"a\.de: expected {n_source} lines, as in \S*a\.en; found {n_target}$"
    with pytest.raises(DataError, match=expected):
        list(read_parallel(paths))


def test_empty_files_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.en: expected texts; found an empty file"):
        list(read_parallel(write(tmp_path, a_en="", a_de="")))


def test_pairs_with_a_blank_side_are_counted_and_skipped(tmp_path: Path) -> None:
    paths = write(tmp_path, a_en="a\n\n \nd\n", a_de="w\nx\n\n \n")
    left_out: Counter[str] = Counter()
    assert [one.source for one in read_parallel(paths, left_out=left_out)] == [("a",)]
    assert left_out == {WITH_BLANK: 3}


def test_blank_lines_remain_if_there_are_no_translations(tmp_path: Path) -> None:
    found = list(read_parallel(write(tmp_path, a_en="a\n\nb\n\n"), is_labeled=False))
    assert [one.source for one in found] == [("a",), (), ("b",), ()]
    assert [one.sentences for one in found] == [(("a",),), (), (("b",),), ()]


def test_files_that_do_not_form_pairs_are_refused(tmp_path: Path) -> None:
    (one,) = write(tmp_path, a_en="a\n")
    with pytest.raises(ConfigError, match=r"must come in pairs, such as train.en train.de: .*; found 1 file$"):
        list(read_parallel(one))
    write(tmp_path, a_de="b\n")
    for paths in ([tmp_path], [tmp_path / "a.*"], tmp_path):
        with pytest.raises(ConfigError, match="must be passed one by one, because folders and patterns do not say"):
            list(read_parallel(paths))
    (tmp_path / "x.tsv").write_text("source\ttarget\na\tb\n")
    with pytest.raises(ConfigError, match=r"x\.tsv: tables and files of lines cannot be read together"):
        list(read_parallel([one, tmp_path / "x.tsv"]))
    with pytest.raises(ConfigError, match="cannot choose columns in files of lines"):
        list(read_parallel([one, tmp_path / "a.de"], target=1))


def test_translations_of_another_system_must_have_one_line_per_pair(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_de="x y\n\nz\n")
    assert read_translations(path, n=3) == ["x y", "", "z"]
    with pytest.raises(DataError, match=re.escape("a.de: expected 2 lines, one for each pair that is scored; found 3")):
        read_translations(path, n=2)
