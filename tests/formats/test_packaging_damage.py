"""Damaged and hostile copies of models in the packagings of published models."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.formats.pretrained import fingerprint, load
from tests.formats import packaging
from tests.formats.damage import Outcome, assert_refused_or_sound, flips_and_cuts, load_all
from tests.formats.packaging import COMPRESS, nested, packed, zipped

Write = Callable[[Path], None]
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    packaging.hdf5(folder)
    return folder


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


def write_kinds(root: Path, model: Path) -> dict[str, Path]:
    """Write one sound copy of each packaging: a file or a folder."""
    files = {"x.tar.bz2": packed(model, "x.tar.bz2"), "x.tar.xz": packed(model, "x.tar.xz")}
    files["nested.zip"] = nested({"in/x.zip": zipped(model)})
    kinds = {name: root / name for name in files}
    for name, content in files.items():
        kinds[name].write_bytes(content)
    kinds["parts"] = root / "parts"
    kinds["parts"].mkdir()
    for k, part in enumerate(packaging.in_parts(packed(model, "x.tgz"), 4)):
        (kinds["parts"] / f"x.tgz.part-0{k}").write_bytes(part)
    kinds["saves"] = root / "saves-model"
    packaging.deeppavlov(kinds["saves"], saves="saves/epochs/3")
    kinds["elmo.model"] = root / "other-names"
    packaging.hdf5(kinds["elmo.model"], options="options262.json", weights="elmo.model")
    return kinds


@pytest.mark.slow
def test_damaged_packagings_are_refused_or_sound(model: Path, scratch: Path) -> None:
    root = scratch / "sound"
    root.mkdir()
    kinds = write_kinds(root, model)
    cases = []
    for seed, (name, path) in enumerate(kinds.items()):
        cases += flips_and_cuts(path, n=300, seed=seed, into=scratch / "damaged" / name)
    outcomes = load_all([*kinds.values(), *cases])
    assert [outcome.result for outcome in outcomes[: len(kinds)]] == ["loaded"] * len(kinds)
    damaged = outcomes[len(kinds) :]
    assert len(damaged) == 300 * len(kinds)
    assert_refused_or_sound(damaged)
    loaded = [outcome.case for outcome in damaged if outcome.result == "loaded"]
    archives = [case for case in loaded if not {"saves", "elmo.model"} & {*case.parts}]
    # archives have checksums for every number; a flip in a name or a time stamp may be harmless
    assert {fingerprint(load(case)) for case in archives} <= {fingerprint(load(model))}


# --- hostile archives -------------------------------------------------------------------------------------


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "", content: bytes = b"") -> bytes:
    """Return a tar with one member."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return tar_of((info, content))


def file(name: str, content: bytes) -> Write:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def thousands_of_parts(folder: Path) -> None:
    for k in range(1500):
        (folder / f"x.tgz.{k:04d}").write_bytes(b"")


def pointer_outside(folder: Path) -> None:
    (folder / "saves/epochs/3/checkpoint").write_text('model_checkpoint_path: "../../x"\n')


def two_saves(folder: Path) -> None:
    shutil.copytree(folder / "saves/epochs/3", folder / "saves/epochs/best")


def bz2_zeros(n_bytes: int, start: bytes = b"") -> bytes:
    compressor = bz2.BZ2Compressor(1)
    parts = [compressor.compress(start)]
    parts += [compressor.compress(bytes(MEGABYTE)) for _ in range(n_bytes // MEGABYTE)]
    return b"".join([*parts, compressor.flush()])


def xz_zeros(n_bytes: int, start: bytes = b"") -> bytes:
    compressor = lzma.LZMACompressor(preset=0)
    parts = [compressor.compress(start)]
    parts += [compressor.compress(bytes(MEGABYTE)) for _ in range(n_bytes // MEGABYTE)]
    return b"".join([*parts, compressor.flush()])


def huge_member(name: bytes = b"weights.hdf5", size: int = 80 * MEGABYTE) -> bytes:
    info = tarfile.TarInfo(name.decode())
    info.size = size
    return info.tobuf()


def xz_with_large_dictionary() -> bytes:
    """Declare a dictionary of 3 GB, for which a reader would allocate memory."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    raw = bytearray(lzma.compress(member("config.json", content=b"{}"), filters=filters))
    raw[16] = 39  # of the block header: the size of the dictionary
    header_size = (raw[12] + 1) * 4
    checksum = zlib.crc32(bytes(raw[12 : 12 + header_size - 4]))
    raw[12 + header_size - 4 : 12 + header_size] = checksum.to_bytes(4, "little")
    return bytes(raw)


def zip_bomb(n_megabytes: int = 64, name: str = "weights.hdf5") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(n_megabytes * MEGABYTE))
    return out.getvalue()


def zip_link(name: str, target: bytes) -> bytes:
    out = io.BytesIO()
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, target)
    return out.getvalue()


def parts(*contents: bytes, name: str = "x.tgz.part-0{}") -> Write:
    def write(folder: Path) -> None:
        for k, content in enumerate(contents):
            (folder / name.format(k)).write_bytes(content)

    return write


def link(name: str, target: str, before: Write) -> Write:
    def write(folder: Path) -> None:
        before(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return write


def pipe(name: str, before: Write) -> Write:
    def write(folder: Path) -> None:
        before(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return write


def saves(change: Callable[[Path], None]) -> Write:
    def write(folder: Path) -> None:
        folder.rmdir()
        packaging.deeppavlov(folder, saves="saves/epochs/3")
        change(folder)

    return write


def move_saves_outside(folder: Path) -> None:
    shutil.move(folder / "saves", folder.parent / f"{folder.name}-outside")
    (folder / "saves").symlink_to(f"../{folder.name}-outside")


def loop_of_saves(folder: Path) -> None:
    shutil.rmtree(folder / "saves")
    (folder / "saves").mkdir()
    for name in "abcdefgh":
        (folder / "saves" / name).symlink_to(".")


def many_saves(folder: Path) -> None:
    shutil.rmtree(folder / "saves" / "epochs" / "3")
    for k in range(3000):
        (folder / "saves" / "epochs" / f"e{k}").mkdir()


def names_of_model(change: Callable[[Path], None]) -> Write:
    def write(folder: Path) -> None:
        folder.rmdir()
        packaging.hdf5(folder, weights="elmo.model")
        change(folder)

    return write


def replaced_by_link(folder: Path) -> None:
    (folder / "elmo.model").unlink()
    (folder / "elmo.model").symlink_to("/etc/passwd")


def replaced_by_pipe(folder: Path) -> None:
    (folder / "elmo.model").unlink()
    os.mkfifo(folder / "elmo.model")


def only_a_signature(folder: Path) -> None:
    (folder / "elmo.model").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\xff" * 500)


TAR_EVIL = {
    "slip": member("../evil.json", content=b"{}"),
    "slip absolute": member("/tmp/elmo-evil.json", content=b"{}"),
    "link": member("options.json", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    "hard link": member("options.json", kind=tarfile.LNKTYPE, target="/etc/passwd"),
    "device": member("options.json", kind=tarfile.CHRTYPE),
    "pipe": member("options.json", kind=tarfile.FIFOTYPE),
    "lying size": huge_member(size=1 << 40) + b"{}",
}
HOSTILE: dict[str, Write] = {
    **{f"bz2: {name}": file("x.tar.bz2", bz2.compress(tar)) for name, tar in TAR_EVIL.items()},
    **{f"xz: {name}": file("x.tar.xz", lzma.compress(tar)) for name, tar in TAR_EVIL.items()},
    "bz2: bomb": file("x.tar.bz2", bz2_zeros(100 * MEGABYTE, huge_member())),
    "bz2: bomb behind the end": file("x.tar.bz2", bz2_zeros(100 * MEGABYTE, huge_member(size=0))),
    "bz2: no tar": file("x.tar.bz2", bz2.compress(b"text " * 300)),
    "bz2: many streams": file("x.tar.bz2", bz2.compress(b"") * 100_000),
    "bz2: only a header": file("x.tar.bz2", b"BZh9"),
    "xz: bomb": file("x.tar.xz", xz_zeros(100 * MEGABYTE, huge_member())),
    "xz: bomb behind the end": file("x.tar.xz", xz_zeros(100 * MEGABYTE, huge_member(size=0))),
    "xz: large dictionary": file("x.tar.xz", xz_with_large_dictionary()),
    "xz: many streams": file("x.tar.xz", lzma.compress(b"") * 50_000),
    "xz: only a header": file("x.tar.xz", b"\xfd7zXZ\0"),
    "nested: slip": file("x.zip", nested({"a.zip": nested({"../evil.json": b"{}"})})),
    "nested: name slips": file("x.zip", nested({"../a.zip": nested({"options.json": b"{}"})})),
    "nested: link": file("x.zip", nested({"a.zip": zip_link("options.json", b"/etc/passwd")})),
    "nested: inner is a link": file("x.zip", zip_link("a.zip", b"/etc/passwd")),
    "nested: bomb": file("x.zip", nested({"a.zip": zip_bomb()})),
    "nested: bombs of small files": file(
        "x.zip", nested({f"{k}.zip": zip_bomb(15, "meta.json") for k in range(4)} | {"b.zip": zip_bomb(15)})
    ),
    "nested: too many": file("x.zip", nested({f"{k}.zip": nested({"a.txt": b""}) for k in range(100)})),
    "nested: bzip2 bomb in a zip": file("x.zip", nested({"a.tar.bz2": bz2_zeros(100 * MEGABYTE, huge_member())})),
    "nested: same names": file("x.zip", nested({"a/b.zip": nested({}), "a-b.zip": nested({})})),
    "nested: itself": file("x.zip", nested({"x.zip": nested({"x.zip": nested({"x.zip": b"PK\5\6" + bytes(18)})})})),
    "nested: damaged": file("x.zip", nested({"a.zip": b"PK\3\4" * 100})),
    "nested: folder in the way": file("x.zip", nested({"a.zip/b.json": b"{}", "a.zip": zip_bomb(1)})),
    "parts: link": link("x.tgz.part-01", "/etc/passwd", parts(*packaging.in_parts(COMPRESS[".tgz"](b"x" * 4000), 2))),
    "parts: pipe": pipe("x.tgz.part-01", parts(b"\x1f\x8b", b"")),
    "parts: endless device": link("x.tgz.part-01", "/dev/zero", parts(b"\x1f\x8b", b"")),
    "parts: first is a link": link("x.tgz.part-00", "/etc/passwd", parts(b"\x1f\x8b", b"")),
    "archive in a folder is a link": link("x.zip", "/etc/passwd", parts(b"notes", name="{}.txt")),
    "parts: gap": parts(b"\x1f\x8b", name="x.tgz.part-1{}"),
    "parts: empty": parts(b"", b"", b""),
    "parts: thousands": thousands_of_parts,
    "parts: bomb": parts(*packaging.in_parts(xz_zeros(100 * MEGABYTE, huge_member()), 2), name="x.tar.xz.part{}"),
    "saves: outside": saves(move_saves_outside),
    "saves: loop": saves(loop_of_saves),
    "saves: many": saves(many_saves),
    "saves: pointer outside": saves(pointer_outside),
    "saves: two": saves(two_saves),
    "elmo.model: link": names_of_model(replaced_by_link),
    "elmo.model: pipe": names_of_model(replaced_by_pipe),
    "elmo.model: only a signature": names_of_model(only_a_signature),
}


@pytest.fixture(scope="module")
def outcomes(scratch: Path) -> dict[str, Outcome]:
    cases = {}
    for k, (name, write) in enumerate(HOSTILE.items()):
        folder = scratch / "hostile" / f"{k:02d}"
        folder.mkdir(parents=True)
        write(folder)
        only = list(folder.iterdir())
        is_archive = len(only) == 1 and only[0].is_file() and ".part" not in only[0].name
        cases[name] = only[0] if is_archive else folder
    return dict(zip(cases, load_all(list(cases.values())), strict=True))


@pytest.mark.slow
def test_hostile_packagings_are_refused(outcomes: dict[str, Outcome]) -> None:
    assert len(outcomes) >= 50
    assert_refused_or_sound(list(outcomes.values()), every_one_refused=True)


@pytest.mark.slow
def test_hostile_packagings_are_refused_for_the_right_reason(outcomes: dict[str, Outcome]) -> None:
    expected = {
        "bz2: slip": "is unsafe or too long",
        "xz: link": "found a link",
        "bz2: lying size": "archive must unpack to at most",
        "bz2: bomb": "archive must unpack to at most",
        "bz2: bomb behind the end": "archive must unpack to at most",
        "xz: bomb": "archive must unpack to at most",
        "xz: large dictionary": "emory",
        "bz2: many streams": "at most 4096 parts in a bzip2 file",
        "nested: bomb": "must unpack to at most 20 times its packed size",
        "nested: bombs of small files": "expected at most 4 archives in the archive, found 5",
        "nested: too many": "expected at most 4 archives",
        "nested: link": "found a link",
        "parts: pipe": "expected a regular file",
        "parts: link": "links to a file outside its folder",
        "archive in a folder is a link": "links to a file outside its folder",
        "parts: gap": "the first part of the archive is missing",
        "parts: thousands": "expected at most 1000 parts",
        "saves: outside": "links to a file outside its folder",
    }
    assert {name: outcomes[name].detail for name, text in expected.items() if text not in outcomes[name].detail} == {}
