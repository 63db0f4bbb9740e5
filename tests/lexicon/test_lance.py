"""The Lance table of an index: its rows, its search, interrupted builds and tables of other indexes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, OutputError
from elmo.cli import main
from elmo.formats import native
from elmo.lexicon import Index, IndexJob, LanceIndex, build_index, find_neighbors
from elmo.lexicon import lance as module
from tests.formats.tiny import tiny_model

lance = pytest.importorskip("lance")

WORDS = ["the", "river", "bank", "money", "loan", "water", "film", "good", "bad", "old", "new", "red"]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(), tokenizer="whitespace")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(1), tmp_path_factory.mktemp("lance") / "corpus.txt"
    path.write_text("".join(" ".join(rng.choice(WORDS, 6)) + "\n" for _ in range(120)))
    return path


@pytest.fixture
def index(elmo: Elmo, corpus: Path, tmp_path: Path) -> Index:
    return build_index(IndexJob((str(corpus),), tmp_path / "index", to="lance"), elmo)


def test_the_table_has_one_row_per_usage(index: Index) -> None:
    table = lance.dataset(index.folder / "usages.lance").to_table()
    assert table["number"].to_pylist() == list(range(len(index)))
    usage = index.usage(9)
    row = {name: table[name][9].as_py() for name in ("word", "sentence", "begin", "end", "place")}
    assert row == {
        "word": usage.word, "sentence": "".join(usage.parts()), "begin": usage.begin, "end": usage.end,
        "place": usage.place,
    }  # fmt: skip
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(index), -1)
    np.testing.assert_array_equal(vectors, index.vectors(range(len(index))))


def test_a_small_table_is_searched_exactly(elmo: Elmo, index: Index) -> None:
    queries = ["the [[bank]] lent money", "a red [[river]]"]
    assert find_neighbors(elmo, index, queries, approximate=True) == find_neighbors(elmo, index, queries)


def test_a_large_table_is_searched_by_its_vector_index(
    elmo: Elmo, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_ROWS", 500)
    monkeypatch.setattr(module, "PARTITION_ROWS", 100)
    index = build_index(IndexJob((str(corpus),), tmp_path / "index", to="lance"), elmo)
    assert lance.dataset(index.folder / "usages.lance").describe_indices()
    queries = index.vectors(np.arange(0, 700, 35)) + np.float32(0.01)
    exact, near = index.nearest(queries, 10), LanceIndex.open(index).nearest(queries, 10)
    found = [{item.number for item in row} for row in near]
    recall = np.mean([len(set_ & {item.number for item in row}) / 10 for set_, row in zip(found, exact, strict=True)])
    assert recall >= 0.95
    for row in near:  # the cosines are exact, and sorted
        assert [item.similarity for item in row] == sorted((item.similarity for item in row), reverse=True)
    cosines = {item.number: item.similarity for item in exact[0]}
    assert all(item.similarity == cosines[item.number] for item in near[0] if item.number in cosines)


def test_an_interrupted_build_resumes(elmo: Elmo, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = lance.dataset(index.folder / "usages.lance").to_table()
    shutil.rmtree(index.folder / "usages.lance")
    monkeypatch.setattr(module, "_COMMIT", 100)
    write, calls = lance.write_dataset, []

    def fail_third(*arguments: Any, **options: Any) -> Any:
        calls.append(options["mode"])
        if len(calls) == 3:
            raise OSError("the disk is full")
        return write(*arguments, **options)

    monkeypatch.setattr(lance, "write_dataset", fail_third)
    with pytest.raises(OutputError, match=r"usages\.lance.*the disk is full"):
        LanceIndex.build(index)
    with pytest.raises(DataError, match=r"expected usages\.lance, found none; build it with: elmo index … --to lance$"):
        LanceIndex.open(index)
    progress: list[tuple[int, int]] = []
    LanceIndex.build(index, on_progress=lambda n, total: progress.append((n, total)))
    assert progress[0][0] > 200  # the first 200 rows were kept
    assert progress[-1] == (len(index), len(index))
    assert lance.dataset(index.folder / "usages.lance").to_table() == expected


def test_the_table_of_an_empty_index_can_be_built_again(elmo: Elmo, corpus: Path, tmp_path: Path) -> None:
    for _ in range(2):
        index = build_index(IndexJob((str(corpus),), tmp_path / "index", words=("absent",), to="lance"), elmo)
        assert len(index) == lance.dataset(index.folder / "usages.lance").count_rows() == 0


def test_tables_of_other_indexes_and_other_files_are_refused(elmo: Elmo, index: Index, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "other.txt").write_text("the river bank\n" * 3)
    build_index(IndexJob((str(tmp_path / "other.txt"),), other, to="lance"), elmo)
    for name in ("usages.lance", "lance.json"):
        part = index.folder / name
        shutil.rmtree(part) if part.is_dir() else part.unlink()
        shutil.move(other / name, part)
    with pytest.raises(
        DataError, match=r"it was built for another index; build it again with: elmo index … --to lance$"
    ):
        LanceIndex.open(index)
    LanceIndex.build(index)  # replaces it
    assert len(LanceIndex.open(index).nearest(index.vectors([0]), 3)[0]) == 3
    with pytest.raises(ConfigError, match=r"this index was built with another model"):
        find_neighbors(Elmo(tiny_model(seed=5)), index, ["the [[bank]]"], approximate=True)
    shutil.rmtree(index.folder / "usages.lance")
    (index.folder / "usages.lance").mkdir()
    (index.folder / "usages.lance" / "thesis.doc").write_text("mine")
    with pytest.raises(OutputError, match=r"it is not a Lance table; remove it, or choose another output$"):
        LanceIndex.build(index)
    with pytest.raises(ConfigError, match=r"^to must be 'lance' or None; found 'qdrant'$"):
        IndexJob(("a",), tmp_path, to="qdrant")  # pyright: ignore[reportArgumentType]


def test_the_command_line_builds_and_searches_a_table(corpus: Path, tmp_path: Path, capsys) -> None:
    native.write(tiny_model(), tmp_path / "model")
    model, folder = ["--model", str(tmp_path / "model")], str(tmp_path / "index")
    assert main(["index", str(corpus), "--out", folder, "--to", "lance", *model]) == 0
    capsys.readouterr()
    arguments = ["neighbors", folder, "the [[bank]]", "-n", "3", *model]
    assert main(arguments) == 0
    exact = capsys.readouterr().out
    assert main([*arguments, "--approximate"]) == 0
    assert capsys.readouterr().out == exact
