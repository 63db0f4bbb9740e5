"""The packagings of published models: archives of all kinds, in parts and nested, other names, other folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elmo.errors import FormatError
from elmo.formats import archive, bilm_checkpoint, bilm_hdf5
from elmo.formats.pretrained import load
from tests.formats.packaging import (
    BARE,
    COMPRESS,
    MODEL,
    checkpoint,
    deeppavlov,
    hdf5,
    in_parts,
    korean,
    nested,
    packed,
    zipped,
)
from tests.formats.tiny import assert_same_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as options and HDF5."""
    folder = tmp_path_factory.mktemp("packaging") / "model"
    hdf5(folder)
    return folder


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_tar_of_every_compression_loads(folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"zhs.model{suffix}"
    path.write_bytes(packed(folder, path.name))
    assert_same_model(load(path), BARE)
    (tmp_path / "x").write_bytes(path.read_bytes())  # known by its first bytes
    assert_same_model(load(tmp_path / "x"), BARE)


@pytest.mark.parametrize("suffix", [".tar.bz2", ".tar.xz"])
def test_several_streams_and_padding_load(folder: Path, tmp_path: Path, suffix: str) -> None:
    raw, compress = packed(folder, "x.tar"), COMPRESS[suffix]
    half = len(raw) // 2
    path = tmp_path / f"x{suffix}"
    path.write_bytes(compress(raw[:half]) + compress(b"") + compress(raw[half:]) + bytes(4096))
    assert_same_model(load(path), BARE)
    path.write_bytes(compress(raw)[:-9])
    with pytest.raises(FormatError, match=r"truncated|damaged"):
        load(path)


def test_two_files_for_the_same_part_are_refused(tmp_path: Path) -> None:
    for name in ("x.tgz.part-1", "x.tgz.part-01", "x.tgz.part-2"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FormatError, match=r"one file for each part.*found 'x.tgz.part-01' and 'x.tgz.part-1'"):
        load(tmp_path / "x.tgz.part-2")


@pytest.mark.parametrize(
    "names",
    [
        ("x.tgz.part-00", "x.tgz.part-01", "x.tgz.part-02", "x.tgz.part-03"),
        ("x.tar.gz.partaa", "x.tar.gz.partab", "x.tar.gz.partac"),
        ("x.tar.bz2.aa", "x.tar.bz2.ab"),
        ("x.zip.001", "x.zip.002", "x.zip.003"),
        ("x.tar.xz.00",),
        tuple(f"x.tar.part{k}" for k in range(10)),
        tuple(f"x.tar.part{k}" for k in range(1, 12)),
    ],
    ids=lambda names: names[0],
)
def test_an_archive_in_parts_loads_by_any_part_and_by_its_folder(
    folder: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    kind = next(suffix for suffix in (".zip", *COMPRESS) if f"x{suffix}." in names[0])
    for name, part in zip(names, in_parts(packed(folder, f"x{kind}"), len(names)), strict=True):
        (tmp_path / name).write_bytes(part)
    (tmp_path / "README.md").write_text("join the parts")
    assert_same_model(load(tmp_path / names[0]), BARE)
    assert_same_model(load(tmp_path / names[-1]), BARE)
    assert_same_model(load(tmp_path), BARE)
    if len(names) > 2:
        (tmp_path / names[1]).unlink()
        with pytest.raises(FormatError, match=f"a part of the archive before '{names[-1]}' is missing"):
            load(tmp_path / names[0])
        (tmp_path / names[0]).unlink()
        if len(names) > 3:
            with pytest.raises(FormatError, match="the first part of the archive is missing"):
                load(tmp_path / names[2])


def test_a_folder_with_one_archive_loads(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "166.zip").write_bytes(zipped(folder))
    (tmp_path / "notes.txt").write_text("from NLPL")
    assert_same_model(load(tmp_path), BARE)
    (tmp_path / "167.zip").write_bytes(zipped(folder))
    with pytest.raises(FormatError, match=r"found 166\.zip, 167\.zip, notes\.txt"):
        load(tmp_path)


@pytest.mark.parametrize("below", ["hi/elmo", "uniref50_v2", "home/user/lm"])
def test_a_zip_with_a_deep_folder_loads(folder: Path, tmp_path: Path, below: str) -> None:
    (tmp_path / "hi.zip").write_bytes(zipped(folder, below=f"{below}/"))
    assert_same_model(load(tmp_path / "hi.zip"), BARE)


@pytest.mark.parametrize("inner", ["x.zip", "deep/x.zip", "x.tar.gz", "a/x.tar.xz"])
@pytest.mark.parametrize("outer", ["o.zip", "o.tar.bz2"])
def test_an_archive_in_an_archive_loads(folder: Path, tmp_path: Path, inner: str, outer: str) -> None:
    content = tmp_path / "content"
    (content / inner).parent.mkdir(parents=True)
    (content / inner).write_bytes(packed(folder, inner))
    (content / "meta.json").write_text("{}")
    (tmp_path / outer).write_bytes(packed(content, outer))
    assert_same_model(load(tmp_path / outer), BARE)


def test_archives_next_to_a_model_are_not_unpacked(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "content")
    (tmp_path / "content" / "other.zip").write_bytes(b"PK\3\4 damaged")
    (tmp_path / "o.zip").write_bytes(zipped(tmp_path / "content"))
    assert_same_model(load(tmp_path / "o.zip"), BARE)


def test_only_one_level_of_archives_is_unpacked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(nested({"a.zip": nested({"b.zip": zipped(folder)})}))
    with pytest.raises(FormatError, match="in the archive; found no model file"):
        load(tmp_path / "x.zip")


def test_messages_name_the_inner_archive(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(nested({"in/a.zip": b"PK\3\4 damaged"}))
    with pytest.raises(FormatError, match=r"x\.zip: 'in/a\.zip' in the archive: expected a zip directory"):
        load(tmp_path / "x.zip")


@pytest.mark.parametrize("options", ["options.json", "options262.json", "hi-d512-options.json", "elmo_pt_options.json"])
@pytest.mark.parametrize("weights", ["elmo.model", "mimic_wiki.hdf5", "hi-d512-elmo.hdf5", "weight.h5"])
def test_options_and_weights_have_many_names(tmp_path: Path, options: str, weights: str) -> None:
    hdf5(tmp_path / "m", options=options, weights=weights)
    assert_same_model(load(tmp_path / "m"), BARE)
    assert_same_model(load(tmp_path / "m" / weights), BARE)


def test_a_file_called_model_that_is_not_hdf5_is_ignored(tmp_path: Path) -> None:
    hdf5(tmp_path / "m")
    (tmp_path / "m" / "sentencepiece.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>")
    (tmp_path / "m" / "folder.model").mkdir()
    assert_same_model(load(tmp_path / "m"), BARE)


def test_a_softmax_and_a_vocabulary_next_to_the_weights_are_read(tmp_path: Path) -> None:
    name = "elmo_2x4096_512_2048cnn_2xhighway"
    hdf5(
        tmp_path / "m",
        options=f"{name}_options.json",
        weights=f"{name}_weights.hdf5",
        softmax=f"{name}_softmax_weights.hdf5",
        vocab="vocab-2016-09-10.txt",
    )
    assert_same_model(load(tmp_path / "m"), MODEL)


def test_a_checkpoint_without_a_pointer_file_loads(tmp_path: Path) -> None:
    checkpoint(tmp_path / "m", step=1501260, vocab="vocab-2016-09-10.txt", has_pointer=False)
    found = load(tmp_path / "m")
    assert_same_model(found, MODEL)
    assert found.metadata["checkpoint"] == "model.ckpt-1501260"


@pytest.mark.parametrize("saves", ["saves", "saves/epochs/3", "saves/elmo"])
@pytest.mark.parametrize("has_pointer", [False, True])
def test_a_checkpoint_below_saves_with_the_variables_of_deeppavlov_loads(
    tmp_path: Path, saves: str, has_pointer: bool
) -> None:
    deeppavlov(tmp_path / "m", saves=saves, has_pointer=has_pointer)
    found = load(tmp_path / "m")
    assert found.format == bilm_checkpoint.NAME
    assert_same_model(found, MODEL)
    assert found.metadata["checkpoint"] == f"{saves}/model"
    (tmp_path / "x.tar.gz").write_bytes(packed(tmp_path / "m", "x.tar.gz", below="elmo-lm"))
    assert_same_model(load(tmp_path / "x.tar.gz"), MODEL)


def test_the_last_epoch_below_saves_is_read_and_a_choice_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    deeppavlov(folder, saves="saves/epochs/9")
    shutil.copytree(folder / "saves" / "epochs" / "9", folder / "saves" / "epochs" / "10")
    assert load(folder).metadata["checkpoint"] == "saves/epochs/10/model"
    (folder / "saves" / "epochs" / "10").rename(folder / "saves" / "epochs" / "best")
    with pytest.raises(FormatError, match="expected one folder with a checkpoint, found"):
        load(folder)


def test_weights_called_elmo_model_next_to_a_checkpoint_load(tmp_path: Path) -> None:
    korean(tmp_path / "m")
    assert bilm_hdf5.can_read(tmp_path / "m")
    assert bilm_checkpoint.can_read(tmp_path / "m")
    (tmp_path / "elmo.zip").write_bytes(zipped(tmp_path / "m"))
    assert load(tmp_path / "elmo.zip").format == bilm_hdf5.NAME


def test_names_of_parts_are_not_confused_with_other_names() -> None:
    others = ["model.ckpt-7.data-00000-of-00001", "vocab.2016", "x.tar.gz", "x.part-00", "a.zip.txt", "weights.hdf5.01"]
    assert [name for name in others if archive._split_part_name(name)] == []
