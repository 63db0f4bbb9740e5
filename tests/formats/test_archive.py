from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

from elmo.errors import ElmoError, FormatError
from elmo.formats import archive, bilm_checkpoint, bilm_hdf5, many_langs, native, tf_hub
from elmo.formats.archive import is_model_file
from elmo.formats.pretrained import Pretrained, convert, load
from tests.formats.many_langs_folder import write_folder
from tests.formats.tiny import assert_same_model, tiny_model
from tests.formats.write_bilm import write_hub_folder, write_training_folder


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return tiny_model(softmax=True, warm=True)


@pytest.fixture(scope="module")
def folder(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive") / "model"
    native.write(model, folder)
    return folder


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder in which every test unpacks; it must be empty afterwards."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield scratch
    assert list(scratch.iterdir()) == []


def zipped(path: Path, folder: Path, *, below: str = "", kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as out:
        for file in sorted(folder.rglob("*")):
            out.write(file, below + file.relative_to(folder).as_posix())
    return path


def tarred(path: Path, folder: Path, *, below: str, kind: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz", format=kind) as out:
        out.add(folder, below)
    return path


@pytest.mark.parametrize("below", ["", "top/", "a/b/c/"])
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_loads_as_its_folder_does(model, folder: Path, tmp_path: Path, below: str, kind: int) -> None:
    assert_same_model(load(zipped(tmp_path / "x.zip", folder, below=below, kind=kind)), model)


@pytest.mark.parametrize("below", [".", "top", "./top/", "é" * 60 + "/" + "n" * 80])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz"])
def test_a_tar_loads_as_its_folder_does(model, folder: Path, tmp_path: Path, name, kind, below) -> None:
    assert_same_model(load(tarred(tmp_path / name, folder, below=below, kind=kind)), model)


WRITERS = {
    bilm_checkpoint.NAME: lambda folder: write_training_folder(folder, tiny_model(softmax=True)),
    tf_hub.NAME: lambda folder: write_hub_folder(folder, tiny_model(mix=True)),
    many_langs.NAME: write_folder,
}


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
@pytest.mark.parametrize("name", list(WRITERS))
def test_every_published_format_loads_from_an_archive_and_converts(tmp_path: Path, name: str, suffix: str) -> None:
    folder, path = tmp_path / "model", tmp_path / f"x{suffix}"
    folder.mkdir()
    WRITERS[name](folder)
    expected = load(folder)
    assert expected.format == name
    if suffix == ".zip":
        zipped(path, folder)
    else:
        tarred(path, folder, below=".")
    assert_same_model(load(path), expected)
    convert(path, tmp_path / "ours")
    assert_same_model(load(tmp_path / "ours"), expected)


def test_an_nlpl_zip_loads(tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(vocab=True), tmp_path / "model")
    (tmp_path / "model" / "weights.hdf5").rename(tmp_path / "model" / "model.hdf5")
    (tmp_path / "model" / "meta.json").write_text('{"language": "no"}')
    found = load(zipped(tmp_path / "210.zip", tmp_path / "model"))
    assert found.format == bilm_hdf5.NAME
    assert_same_model(found, tiny_model(vocab=True))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list mapped files")
def test_nothing_stays_mapped_in_a_folder_that_is_gone(folder: Path, tmp_path: Path, scratch: Path) -> None:
    loaded = load(zipped(tmp_path / "x.zip", folder))  # Windows cannot remove a mapped file
    assert str(scratch) not in Path("/proc/self/maps").read_text()
    assert loaded.softmax is not None


def test_an_archive_is_known_by_its_bytes_too(model, folder: Path, tmp_path: Path) -> None:
    zipped(tmp_path / "x.zip", folder).rename(tmp_path / "download")
    tarred(tmp_path / "x.tar", folder, below="m").rename(tmp_path / "image")
    assert_same_model(load(tmp_path / "download"), model)
    assert_same_model(load(tmp_path / "image"), model)


def test_only_model_files_are_unpacked(folder: Path, tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", folder, below="m/")
    with zipfile.ZipFile(path, "a") as out:
        for name in ("m/setup.py", "m/x.so", "m/corpus.txt.gz", "inner.zip", "__MACOSX/m/._config.json", "m/._a.json"):
            out.writestr(name, "x")
    with archive.unpacked(path) as root:
        found = {file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()}
    assert found == {f"m/{name.name}" for name in folder.iterdir() if name.name != "README.md"}


def test_the_folder_is_removed_when_the_caller_fails(folder: Path, tmp_path: Path, scratch: Path) -> None:
    def fail_inside() -> None:
        with archive.unpacked(zipped(tmp_path / "x.zip", folder)) as root:
            assert root.is_relative_to(scratch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()


def test_errors_name_the_archive_and_not_the_temporary_folder(folder: Path, tmp_path: Path, scratch: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "config.json").write_text("{}")
    with pytest.raises(FormatError) as caught:
        load(zipped(tmp_path / "x.zip", copy))
    assert str(tmp_path / "x.zip" / "config.json") in str(caught.value)
    assert str(scratch) not in str(caught.value)


def test_two_models_in_one_archive_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", folder, below="one/")
    with zipfile.ZipFile(path, "a") as out:
        for file in folder.iterdir():
            out.write(file, f"two/{file.name}")
    with pytest.raises(FormatError, match=r"expected one model, found one, two; unpack the archive and load one"):
        load(path)


def test_an_archive_without_a_model_lists_its_content(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        out.writestr("readme.md", "")
        out.writestr("data/a.json", "{}")
    with pytest.raises(FormatError, match=r"expected config\.json with .* in the archive; found data/a\.json"):
        load(tmp_path / "x.zip")
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    with pytest.raises(FormatError, match="in the archive; found no model file"):
        load(tmp_path / "empty.zip")


def test_a_file_that_is_only_named_like_an_archive_is_refused(tmp_path: Path) -> None:
    for name, content in (("a.zip", b""), ("b.tar", b"hello"), ("c.tgz", b"\0" * 2048), ("d.zip", b"x" * 9999)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="expected a zip or tar archive, found another kind of file"):
            load(tmp_path / name)


def test_a_gzip_without_a_tar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"just text " * 200))
    with pytest.raises(FormatError, match="expected a tar header at byte 0, found none"):
        load(tmp_path / "x.gz")


def test_a_gzip_of_several_parts_and_with_zeros_behind_loads(model, folder: Path, tmp_path: Path) -> None:
    raw = tarred(tmp_path / "x.tar", folder, below="m").read_bytes()
    half = len(raw) // 2
    parts = gzip.compress(raw[:half]) + gzip.compress(b"") + gzip.compress(raw[half:])
    (tmp_path / "x.tgz").write_bytes(parts + bytes(100_000))
    assert_same_model(load(tmp_path / "x.tgz"), model)


def test_a_truncated_zip_is_reported(folder: Path, tmp_path: Path) -> None:
    raw = zipped(tmp_path / "x.zip", folder).read_bytes()
    (tmp_path / "x.zip").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="the file may be truncated"):
        load(tmp_path / "x.zip")


def test_a_flip_after_the_last_member_of_a_gzip_is_caught(folder: Path, tmp_path: Path) -> None:
    path = tarred(tmp_path / "x.tgz", folder, below="m")
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1  # gzip's checksum of the content
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="incorrect data check"):
        load(path)


@pytest.mark.slow
def test_weights_of_a_large_member_load_and_zeros_are_taken_for_a_bomb(tmp_path: Path) -> None:
    for name, content, is_fine in (("random", os.urandom(17 << 20), True), ("zeros", bytes(17 << 20), False)):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            out.writestr("model.hdf5", content)
        if is_fine:
            with archive.unpacked(tmp_path / f"{name}.zip") as root:
                assert (root / "model.hdf5").read_bytes() == content
        else:
            with pytest.raises(FormatError, match=r"'model\.hdf5' must unpack to at most 20 times its packed size"):
                load(tmp_path / f"{name}.zip")


def test_a_tar_with_zero_bytes_of_padding_and_old_headers_loads(model, folder: Path, tmp_path: Path) -> None:
    out = io.BytesIO()
    for path in folder.iterdir():
        info = tarfile.TarInfo(path.name)
        info.size = path.stat().st_size
        header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
        header[257:265] = bytes(8)  # the tar format of 1979 had no magic
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        out.write(header + path.read_bytes() + bytes(-info.size % 512))
    (tmp_path / "x.tar").write_bytes(out.getvalue() + bytes(512 * 30))
    assert_same_model(load(tmp_path / "x.tar"), model)


WANTED = [
    "model.hdf5", "a/b/elmo_2x4096_weights.hdf5", "vocab-2016-09-10.txt", "SHA256SUMS", "checkpoint",
    "model.ckpt-935588.index", "variables/variables.data-00000-of-00001", "encoder.pkl", "char.dic",
    "saved_model.pb", "configs/cnn.json",
]  # fmt: skip
UNWANTED = ["modeling.py", "x.json/a.py", "pytorch_model.bin", "inner.zip", "__MACOSX/config.json", "lib.so"]


def test_published_names_are_model_files_and_code_is_not() -> None:
    assert [name for name in WANTED if not is_model_file(name)] == []
    assert [name for name in UNWANTED if is_model_file(name)] == []


@pytest.mark.parametrize("damage", ["no checksums", "other weights", "bad JSON", "missing file"])
def test_messages_about_an_archive_never_show_the_temporary_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = tmp_path / "tiny"
    native.write(tiny_model(), folder)
    if damage == "no checksums":
        (folder / "SHA256SUMS").unlink()
    elif damage == "other weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-4] + b"abcd")
    elif damage == "bad JSON":
        (folder / "config.json").write_text("{")
    else:
        (folder / "config.json").unlink()
    with zipfile.ZipFile(tmp_path / "tiny.zip", "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"inner/{path.name}")
    messages = []
    try:
        load(tmp_path / "tiny.zip")
    except ElmoError as error:
        messages.append(str(error))
    messages += [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert str(tmp_path / "tiny.zip") in messages[0]
    assert "elmo-unpacked" not in messages[0]
