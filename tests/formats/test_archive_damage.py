"""Damaged and hostile archives are refused with a typed error, or load if the damage is irrelevant."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.formats import bilm_hdf5, native
from elmo.formats.pretrained import fingerprint, load
from tests.formats.damage import Outcome, assert_refused_or_sound, flips_and_cuts, load_all
from tests.formats.tiny import tiny_model


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    native.write(tiny_model(softmax=True), folder / "native")
    bilm_hdf5.write(tiny_model(vocab=True), folder / "hdf5")
    return folder


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@pytest.fixture(scope="module")
def outcomes(sound: Path, scratch: Path) -> dict[str, list[Outcome]]:
    """Load every copy of every kind in one process, because starting one is slow."""
    damaged, hostile = [], []
    kinds = [("native", ".zip"), ("hdf5", ".zip"), ("hdf5", ".stored.zip"), ("hdf5", ".tgz"), ("native", ".tar")]
    for i, (kind, suffix) in enumerate(kinds):
        path = sound / f"model{suffix}"
        path.write_bytes(packed(sound / kind, suffix))
        damaged += flips_and_cuts(path, n=80, seed=i, into=scratch / "damaged" / str(i))
    members = {path.name: path.read_bytes() for path in (sound / "native").iterdir()}
    for name, make in HOSTILE.items():
        hostile.append(scratch / "hostile" / name / ("x.zip" if name.startswith("zip") else "x.tar"))
        hostile[-1].parent.mkdir(parents=True)
        hostile[-1].write_bytes(make(members))
    found = load_all([*damaged, *hostile])
    return {"damaged": found[: len(damaged)], "hostile": found[len(damaged) :]}


@pytest.mark.slow
def test_damaged_zips_and_tars_are_refused_or_sound(sound: Path, outcomes: dict[str, list[Outcome]]) -> None:
    assert len(outcomes["damaged"]) == 400
    assert_refused_or_sound(outcomes["damaged"])
    loaded = [outcome.case for outcome in outcomes["damaged"] if outcome.result == "loaded"]
    assert 0 < len(loaded) < 100  # most bytes are covered by a checksum; a time stamp is not
    names = {fingerprint(load(sound / kind)) for kind in ("native", "hdf5")}
    assert {fingerprint(load(case)) for case in loaded} <= names  # but every number is


def test_hostile_archives_are_refused(scratch: Path, outcomes: dict[str, list[Outcome]]) -> None:
    hostile = outcomes["hostile"]
    assert len(hostile) == len(HOSTILE) >= 70
    assert_refused_or_sound(hostile, every_one_refused=True)
    found = {outcome.case.parent.name: outcome.detail for outcome in hostile}
    assert {name: found[name] for name, reason in REASONS.items() if reason not in found[name]} == {}
    cases = {outcome.case for outcome in hostile}
    assert [path for path in (scratch / "hostile").rglob("*") if path.is_file() and path not in cases] == []
    assert list(Path(tempfile.gettempdir()).glob("elmo-evil*")) == []


def packed(folder: Path, suffix: str) -> bytes:
    out = io.BytesIO()
    if suffix.endswith(".zip"):
        kind = zipfile.ZIP_STORED if suffix == ".stored.zip" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(out, "w", kind) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, path.name)
    else:
        with tarfile.open(fileobj=out, mode="w:gz" if suffix == ".tgz" else "w") as archive:
            archive.add(folder, "model")
    return out.getvalue()


Members = dict[str, bytes]


# --- zip -----------------------------------------------------------------------------------------


def zipped(members: Members, *extra: tuple[str | zipfile.ZipInfo, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, content in (*members.items(), *extra):
            archive.writestr(name, content)
    return out.getvalue()


def zip_named(name: str) -> Callable[[Members], bytes]:
    """Write a zip with a name that ``zipfile`` would normalize."""

    def make(members: Members) -> bytes:
        stand_in = "#" * len(name.encode())
        return zipped(members, (stand_in, b"{}")).replace(stand_in.encode(), name.encode())

    return make


def zip_of_type(mode: int, content: bytes = b"/etc/passwd") -> Callable[[Members], bytes]:
    def make(members: Members) -> bytes:
        info = zipfile.ZipInfo("meta.json")
        info.external_attr = (mode | 0o777) << 16
        return zipped(members, (info, content))

    return make


def zip_patched(offset: int, value: bytes, *, local: int | None = None) -> Callable[[Members], bytes]:
    """Overwrite a field of the last directory entry and of its local header."""

    def make(members: Members) -> bytes:
        raw = bytearray(zipped(members, ("meta.json", b'{"a": "' + b"b" * 100 + b'"}')))
        at = raw.rfind(b"PK\1\2") + offset
        raw[at : at + len(value)] = value
        if local is not None:
            at = raw.rfind(b"PK\3\4") + local
            raw[at : at + len(value)] = value
        return bytes(raw)

    return make


def zip_flat_bomb(members: Members) -> bytes:
    return zipped(members, ("meta.json", bytes(64 << 20)))


def zip_many_small_bombs(members: Members) -> bytes:
    """Write members that are each small enough, but 800 MB together."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = bytes(16 << 20)
    data = packer.compress(content) + packer.flush()
    entries = [(f"{i}.json".encode(), data, zlib.crc32(content), len(content)) for i in range(50)]
    return raw_zip(entries)


def zip_understated_bomb(members: Members) -> bytes:
    """Declare 10 bytes in the directory for a member of 50 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(bytes(50 << 20)) + packer.flush()
    return raw_zip([(b"meta.json", data, zlib.crc32(bytes(10)) ^ 1, 10)])


def zip_overlapping_bomb(members: Members) -> bytes:
    """Write many directory entries that share the same packed bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = bytes(15 << 20)
    data = packer.compress(content) + packer.flush()
    return raw_zip([(b"0.json", data, zlib.crc32(content), len(content))], n_copies=1000)


def zip_overlapping(members: Members) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(b"[1, 2, 3]") + packer.flush()
    return raw_zip([(b"0.json", data, zlib.crc32(b"[1, 2, 3]"), 9)], n_copies=3)


def zip_nested_bomb(members: Members) -> bytes:
    inner = zipped({}, ("meta.json", bytes(64 << 20)))
    for _ in range(3):
        inner = zipped({}, *((f"{i}.zip", inner) for i in range(4)))
    return inner


def zip_quine_directory(members: Members) -> bytes:
    """Write a directory whose only entry points to the directory itself."""
    raw = bytearray(raw_zip([(b"meta.json", b"{}", zlib.crc32(b"{}"), 2)]))
    at = raw.rfind(b"PK\1\2")
    raw[at + 42 : at + 46] = struct.pack("<I", at)
    return bytes(raw)


def zip_million_members(members: Members) -> bytes:
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = entry * 1_000_000
    start = b"PK\3\4" + bytes(27)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 10**6, 10**6, len(directory), len(start))
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(start) + len(directory), 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)
    return start + directory + end64 + locator + end


def zip_many_members_few_declared(members: Members) -> bytes:
    start_and_directory = zip_million_members(members)[: 31 + 47 * 10**6]
    return start_and_directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 47 * 10**6, 31, 0)


def zip_directory_behind_a_decoy(members: Members) -> bytes:
    """Add a 64-bit record for one member, which has no effect without its locator."""
    decoy = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 47, 31) + bytes(20)
    entries = bytearray(zip_million_members(members)[: 31 + 47 * 10**6])
    entries[-47 + 32 : -47 + 34] = struct.pack("<H", len(decoy))  # the last entry's comment
    size = len(entries) - 31 + len(decoy)
    return bytes(entries) + decoy + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, 31, 0)


def raw_zip(entries: list[tuple[bytes, bytes, int, int]], n_copies: int = 1) -> bytes:
    """Write entries (name, deflated data, CRC and declared size) without any checks."""
    body, directory = b"", b""
    for name, data, crc, size in entries:
        common = struct.pack("<5H3I2H", 20, 0, 8, 0, 0, crc, len(data), size, len(name), 0)
        for copy in range(n_copies):
            copied = f"{copy}.json".encode() if n_copies > 1 else name
            fields = struct.pack("<5H3I2H", 20, 0, 8, 0, 0, crc, len(data), size, len(copied), 0)
            directory += (
                struct.pack("<4sH", b"PK\1\2", 20) + fields + struct.pack("<3H2I", 0, 0, 0, 0, len(body)) + copied
            )
        body += b"PK\3\4" + common + name + data
    n = len(entries) * n_copies
    return body + directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, len(directory), len(body), 0)


# --- tar -----------------------------------------------------------------------------------------


def tarred(members: Members, *extra: tarfile.TarInfo, kind: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info, io.BytesIO(bytes(min(info.size, 1000))) if info.isreg() else None)
    return out.getvalue()


def tar_with(name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "", pax: dict | None = None):
    def make(members: Members) -> bytes:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        info.pax_headers = pax or {}
        return tarred(members, info)

    return make


def header(name: bytes = b"meta.json", *, kind: bytes = b"0", size: bytes = b"00000000002") -> bytes:
    """Return a header of any content with a correct checksum."""
    raw = bytearray(512)
    raw[: len(name)] = name
    raw[124 : 124 + len(size)] = size
    raw[156:157] = kind
    raw[257:265] = b"ustar\x0000"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def block(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def tar_raw(content: bytes) -> Callable[[Members], bytes]:
    return lambda members: content + tarred(members)


def tar_pax(records: bytes) -> Callable[[Members], bytes]:
    return tar_raw(header(b"x", kind=b"x", size=octal(len(records))) + block(records))


def gz_zeros(start: bytes, size: int) -> Callable[[Members], bytes]:
    """Write a gzip of ``size`` zeros after ``start`` without keeping them in memory."""

    def make(members: Members) -> bytes:
        out = io.BytesIO()
        with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
            file.write(start)
            for _ in range(size >> 20):
                file.write(bytes(1 << 20))
        return out.getvalue()

    return make


def gz_million_members(members: Members) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(header(size=b"00000000000", name=b"a.txt") * 1000)
    return out.getvalue()


def octal(number: int) -> bytes:
    return b"%011o" % number


# A later check would refuse these too, so test that the first one does.
REASONS = {
    "zip_flat_bomb": "times its packed size",
    "zip_many_small_bombs": "archive must unpack to at most",
    "zip_overlapping_bomb": "archive must unpack to at most",
    "zip_overlapping": "overlap those of another member",
    "zip_million_members": "zip directory must have at most",
    "zip_many_members_few_declared": "zip directory must have at most",
    "zip_directory_behind_a_decoy": "zip directory must have at most",
    "zip_encrypted": "is encrypted",
    "zip_link": "found a link",
    "zip_slip_of_an_unwanted_file": "is unsafe or too long",
    "tar_pax_size_huge": "bytes of attributes",
    "tar_size_huge": "archive must unpack to at most",
    "tar_gz_tail_bomb": "archive must unpack to at most",
    "tar_gz_skipped_bomb": "archive must unpack to at most",
    "tar_gz_many_members": "at most 4096 members",
    "tar_gz_many_parts": "at most 4096 parts",
}
PAX_SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
HOSTILE: dict[str, Callable[[Members], bytes]] = {
    "zip_slip_up": zip_named("../evil.json"),
    "zip_slip_up_inside": zip_named("a/b/../../../evil.json"),
    "zip_slip_absolute": zip_named("/tmp/elmo-evil.json"),
    "zip_slip_backslash": zip_named("..\\evil.json"),
    "zip_slip_backslash_absolute": zip_named("\\evil.json"),
    "zip_slip_drive": zip_named("C:/evil.json"),
    "zip_slip_drive_relative": zip_named("C:evil.json"),
    "zip_slip_share": zip_named("//server/share/evil.json"),
    "zip_slip_dots_and_space": zip_named(".. /evil.json"),
    "zip_slip_three_dots": zip_named(".../evil.json"),
    "zip_slip_stream": zip_named("config.json:evil.json"),
    "zip_slip_of_an_unwanted_file": zip_named("../evil.py"),
    "zip_name_with_nul": zip_named("evil.json\0.txt"),
    "zip_name_with_newline": zip_named("evil\n.json"),
    "zip_name_with_escape": zip_named("evil\x1b[2J.json"),
    "zip_name_long": zip_named("a" * 300 + ".json"),
    "zip_name_deep": zip_named("a/" * 100 + "b.json"),
    "zip_name_not_utf8": lambda m: zipped(m, ("é.json", b"{}")).replace("é".encode(), b"\xff\xfe"),
    "zip_name_surrogate": lambda m: zipped(m, ("日.json", b"{}")).replace("日".encode(), b"\xed\xa0\x80"),
    "zip_names_in_other_case": lambda m: zipped(m, ("CONFIG.json", b"{}")),
    "zip_name_twice": lambda m: zipped(m, ("confi#.json", b"{}")).replace(b"confi#.json", b"config.json"),
    "zip_file_and_folder": lambda m: zipped(m, ("config.json/a.json", b"{}")),
    "zip_link": zip_of_type(stat.S_IFLNK),
    "zip_link_inside": zip_of_type(stat.S_IFLNK, b"config.json"),
    "zip_device": zip_of_type(stat.S_IFCHR),
    "zip_pipe": zip_of_type(stat.S_IFIFO),
    "zip_encrypted": zip_patched(8, b"\1\0", local=6),
    "zip_encrypted_strongly": zip_patched(8, b"\x41\0", local=6),
    "zip_size_of_4_gigabytes": zip_patched(24, b"\xfe\xff\xff\xff", local=22),
    "zip_packed_size_of_4_gigabytes": zip_patched(20, b"\xfe\xff\xff\xff", local=18),
    "zip_offset_beyond_the_end": zip_patched(42, b"\xf0\xff\xff\xff"),
    "zip_unknown_compression": zip_patched(10, b"\x63\0", local=8),
    "zip_lzma": lambda m: zipped(m, ("meta.json", bytes(1000)), kind=zipfile.ZIP_LZMA),
    "zip_bzip2_bomb": lambda m: zipped({}, ("meta.json", bytes(17 << 20)), kind=zipfile.ZIP_BZIP2),
    "zip_flat_bomb": zip_flat_bomb,
    "zip_many_small_bombs": zip_many_small_bombs,
    "zip_understated_bomb": zip_understated_bomb,
    "zip_overlapping_bomb": zip_overlapping_bomb,
    "zip_overlapping": zip_overlapping,
    "zip_nested_bomb": zip_nested_bomb,
    "zip_quine_directory": zip_quine_directory,
    "zip_million_members": zip_million_members,
    "zip_many_members_few_declared": zip_many_members_few_declared,
    "zip_directory_behind_a_decoy": zip_directory_behind_a_decoy,
    "tar_slip_up": tar_with("../evil.json"),
    "tar_slip_absolute": tar_with("/tmp/elmo-evil.json"),
    "tar_slip_in_pax": tar_with("a.json", pax={"path": "../../evil.json"}),
    "tar_slip_backslash": tar_with("..\\evil.json"),
    "tar_slip_long_name": tar_with("../" * 60 + "evil.json"),
    "tar_link": tar_with("meta.json", kind=tarfile.SYMTYPE, target="/etc/passwd"),
    "tar_link_to_a_folder": tar_with("variables", kind=tarfile.SYMTYPE, target="/tmp"),
    "tar_hard_link": tar_with("meta.json", kind=tarfile.LNKTYPE, target="../../etc/passwd"),
    "tar_link_long": tar_with("meta.json", kind=tarfile.SYMTYPE, target="/x" * 200),
    "tar_device": tar_with("meta.json", kind=tarfile.CHRTYPE),
    "tar_block_device": tar_with("meta.json", kind=tarfile.BLKTYPE),
    "tar_pipe": tar_with("meta.json", kind=tarfile.FIFOTYPE),
    "tar_sparse": tar_with("meta.json", kind=tarfile.GNUTYPE_SPARSE),
    "tar_sparse_pax": tar_with("meta.json", pax=PAX_SPARSE),
    "tar_name_twice": tar_with("config.json"),
    "tar_name_not_utf8": tar_raw(header(b"\xff.json") + block(b"{}")),
    "tar_name_with_escape": tar_raw(header(b"a\x1b.json") + block(b"{}")),
    "tar_size_huge": tar_raw(header(size=octal(1 << 32))),
    "tar_size_of_2_80": tar_raw(header(size=b"\x80" + b"\0" + b"\xff" * 10)),
    "tar_size_negative": tar_raw(header(size=b"\xff" * 12)),
    "tar_size_no_number": tar_raw(header(size=b"9z9z9z9z9z9")),
    "tar_pax_size_huge": tar_raw(header(b"x", kind=b"x", size=octal(8 << 30))),
    "tar_pax_size_lies": tar_pax(b"25 size=9999999999999999\n"),
    "tar_pax_damaged": tar_pax(b"999 a=b\n"),
    "tar_pax_length_zero": tar_pax(b"0 a=bcd\n\n"),
    "tar_long_name_huge": tar_raw(header(b"././@LongLink", kind=b"L", size=octal(8 << 30))),
    "tar_cut_in_a_header": lambda m: tarred(m)[:700],
    "tar_gz_zeros": gz_zeros(header(size=octal(80 << 20)), 100 << 20),
    "tar_gz_pax_bomb": gz_zeros(header(b"x", kind=b"x", size=octal(80 << 20)), 100 << 20),
    "tar_gz_tail_bomb": gz_zeros(header(b"a.txt", size=octal(0)) + bytes(1024), 120 << 20),
    "tar_gz_skipped_bomb": gz_zeros(header(b"skipped.bin", size=octal(66 << 20)), 90 << 20),
    "tar_gz_many_members": gz_million_members,
    "tar_gz_many_parts": lambda m: gzip.compress(b"") * 1_000_000 + gzip.compress(tarred(m)),
    "tar_gz_long_header": lambda m: b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * (40 << 20),
    "tar_gz_no_tar": lambda m: gzip.compress(b"x" * 1000),
    "tar_gz_cut": lambda m: gzip.compress(tarred(m))[:-100],
    "tar_gz_garbage_behind": lambda m: gzip.compress(tarred(m)) + b"garbage" * 10,
}  # fmt: skip
