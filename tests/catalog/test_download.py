"""Models from a server into the cache: complete, verified, once, also with two processes and after kills."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.catalog import CatalogFile, CatalogModel, download_model, find_model, list_cached, remove_cached
from elmo.catalog.cache import ModelCache, check_file
from elmo.errors import ChecksumError, ConfigError, DownloadError, FormatError, OutputError
from tests.catalog.file_server import FileServer, announces, chunked, cut, status, trickle, web_page

MODEL = CatalogModel(
    name="allenai/small", publisher="", domains=(), corpus="", format="", input="", tokenizer="en"
)  # a name of the table, so that the cache lists it
NAMES = ("options.json", "weights.hdf5")
HDF5 = b"\x89HDF\r\n\x1a\n"
CONTENTS = {"options.json": b"{}" + b" " * 98, "weights.hdf5": HDF5 + os.urandom(49_992)}


def model_on(*servers: FileServer, checksums: dict[str, str] | None = None) -> CatalogModel:
    """Return a model with files on the servers, and put them there."""
    for server in servers:
        server.files.update(CONTENTS)
    files = [CatalogFile(name, tuple(s.url(name) for s in servers), (checksums or {}).get(name)) for name in NAMES]
    return replace(MODEL, files=tuple(files))


@pytest.fixture
def model(server: FileServer) -> CatalogModel:
    return model_on(server)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_downloaded_once(server: FileServer, model: CatalogModel, cache: Path) -> None:
    files = download_model(model)
    assert files.folder == cache / "allenai" / "small"
    assert contents(files.folder) == CONTENTS
    record = json.loads((cache / "allenai" / "small.json").read_text())
    assert {name: file["sha256"] for name, file in record["files"].items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()
    }
    server.requests.clear()
    assert download_model(model).names == NAMES
    assert server.requests == []
    assert sorted(path.name for path in cache.glob("allenai/*")) == ["small", "small.json"]  # nothing else is left
    assert sorted(path.name for path in cache.glob("allenai/.*")) == []


def test_a_file_that_was_changed_in_the_cache_is_refused(model: CatalogModel, cache: Path) -> None:
    path = download_model(model).folder / "weights.hdf5"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ChecksumError, match=r"weights\.hdf5: expected .* run 'elmo cache --remove allenai/small'"):
        download_model(model)
    remove_cached([model.name])
    assert contents(download_model(model).folder) == CONTENTS


def test_a_file_that_has_changed_on_the_server_is_refused_until_its_checksum_is_forgotten(
    server: FileServer, model: CatalogModel, cache: Path
) -> None:
    download_model(model)
    remove_cached([model.name])
    server.files["weights.hdf5"] = HDF5 + b"another model"
    with pytest.raises(ChecksumError, match=r"expected 50,000 bytes .* as at the first use, .*--forget"):
        download_model(model)
    assert not (cache / "allenai" / "small" / "weights.hdf5").exists()
    remove_cached([model.name], forget=True)
    assert (download_model(model).folder / "weights.hdf5").read_bytes() == HDF5 + b"another model"


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_a_published_checksum_is_compared_at_the_first_download(server: FileServer, algorithm: str) -> None:
    right = f"{algorithm}:{hashlib.new(algorithm, CONTENTS['weights.hdf5']).hexdigest()}"
    wrong = f"{algorithm}:{hashlib.new(algorithm, b'').hexdigest()}"
    with pytest.raises(ChecksumError, match=f"expected the published {algorithm} "):
        download_model(model_on(server, checksums={"weights.hdf5": wrong}))
    assert download_model(model_on(server, checksums={"weights.hdf5": right})).names == NAMES


def test_a_continued_download_with_a_wrong_checksum_is_repeated_from_its_beginning(server: FileServer) -> None:
    checksum = f"sha1:{hashlib.sha1(CONTENTS['weights.hdf5'], usedforsecurity=False).hexdigest()}"
    model = model_on(server, checksums={"weights.hdf5": checksum})
    server.faults["weights.hdf5"] = [cut(20_000), status(404)]
    with pytest.raises(DownloadError, match="HTTP status 404"):
        download_model(model)
    partial = ModelCache(model).unfinished / "weights.hdf5"
    partial.write_bytes(bytes(20_000))  # as after a fault of the disk
    server.faults.clear()
    assert contents(download_model(model).folder) == CONTENTS


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("weights.hdf5", b"", "the server sends an empty file"),
        ("weights.hdf5", b"Not Found", "expected a .hdf5 file"),
        ("options.json", b"Not Found", "expected a JSON file"),
    ],
)
def test_a_wrong_file_is_not_kept_as_the_first_download(
    server: FileServer, model: CatalogModel, name: str, content: bytes, problem: str
) -> None:
    server.files[name] = content
    with pytest.raises(DownloadError, match=problem):
        download_model(model)
    assert name not in ModelCache(model).read_record()
    server.files.update(CONTENTS)
    assert download_model(model).names == NAMES


def test_addresses_are_tried_in_order(server: FileServer) -> None:
    from tests.catalog.file_server import serving

    with serving({}) as second, serving({}) as third:
        model = model_on(server, second, third)
        server.faults = {name: [status(404)] for name in NAMES}
        second.faults = {name: [cut(0)] for name in NAMES}
        assert contents(download_model(model).folder) == CONTENTS
        assert {path for path, _ in third.requests} == set(NAMES)
        remove_cached([model.name])
        second.files["weights.hdf5"] = b"a wrong copy"
        second.faults = {}
        assert contents(download_model(model).folder) == CONTENTS  # the checksum is known, so the next one is tried


def test_a_host_that_is_gone_gives_one_line_with_what_to_do(
    server: FileServer, model: CatalogModel, cache: Path
) -> None:
    server.files.clear()
    with pytest.raises(DownloadError) as caught:
        download_model(model)
    message = str(caught.value)
    assert message.startswith("allenai/small: cannot download options.json: http://127.0.0.1")
    assert "HTTP status 404; try again later, or fetch options.json, weights.hdf5 from another place" in message
    assert message.endswith(f"put it into {cache}/by-hand/allenai/small")
    assert (cache / "by-hand" / "allenai" / "small").is_dir()
    server.files.update(CONTENTS)
    server.faults["weights.hdf5"] = [web_page]
    with pytest.raises(DownloadError, match="web page"):
        download_model(model)
    assert list(contents(cache / "allenai" / "small")) == ["options.json"]


def test_files_that_the_user_adds_are_found_verified_and_kept(
    server: FileServer, model: CatalogModel, cache: Path
) -> None:
    folder = cache / "by-hand" / "allenai" / "small"
    folder.mkdir(parents=True)
    (folder / "weights.hdf5").write_bytes(b"mine")
    files = download_model(model)
    assert (files.folder, files.names, files.is_by_hand) == (folder, ("weights.hdf5",), True)
    assert server.requests == []
    assert download_model(model) == files
    (folder / "weights.hdf5").write_bytes(b"not mine")
    with pytest.raises(ChecksumError, match="--forget allenai/small"):
        download_model(model)
    remove_cached([model.name], forget=True)
    assert download_model(model) == files
    (folder / "more.zip.crdownload").write_bytes(b"")
    with pytest.raises(FormatError, match="not finished"):
        download_model(model)


def test_files_that_the_user_adds_must_have_the_published_checksum(server: FileServer, cache: Path) -> None:
    model = model_on(server, checksums={"weights.hdf5": f"md5:{'0' * 32}"})
    folder = cache / "by-hand" / "allenai" / "small"
    folder.mkdir(parents=True)
    (folder / "weights.hdf5").write_bytes(b"mine")
    with pytest.raises(ChecksumError, match="expected the published md5"):
        download_model(model)


@pytest.mark.parametrize("variable", ["ELMO_OFFLINE", "HF_HUB_OFFLINE"])
def test_nothing_is_downloaded_offline(
    server: FileServer, model: CatalogModel, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(DownloadError, match=f"is not in the cache .*, and {variable} is set"):
        download_model(model)
    assert server.requests == []
    monkeypatch.setenv(variable, "0")
    download_model(model)
    monkeypatch.setenv(variable, "true")
    assert download_model(model).names == NAMES


def test_a_mirror_of_the_user_replaces_all_addresses(
    server: FileServer, model: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = {f"models/allenai/small/{name}": content for name, content in CONTENTS.items()}
    monkeypatch.setenv("ELMO_MIRROR", server.url("models/"))
    assert contents(download_model(model).folder) == CONTENTS
    remove_cached([model.name])
    for mirror in ("ftp://127.0.0.1", "http://[::1", "http://", "127.0.0.1"):
        monkeypatch.setenv("ELMO_MIRROR", mirror)
        with pytest.raises(ConfigError, match="ELMO_MIRROR must be an address"):
            download_model(model)


def test_files_larger_than_the_limit_are_refused(server: FileServer, model: CatalogModel) -> None:
    server.faults["weights.hdf5"] = [announces(10**9), chunked]
    with pytest.raises(DownloadError, match="expected at most 40,000 bytes"):
        download_model(model, max_gb=4e-5)
    with pytest.raises(DownloadError, match="expected at most 40,000 bytes, found more"):
        download_model(model, max_gb=4e-5)
    with pytest.raises(ConfigError, match="max_gb must be above 0"):
        download_model(model, max_gb=0)


def test_progress_is_reported_for_each_file(model: CatalogModel) -> None:
    seen: dict[str, tuple[int, int | None]] = {}

    def report(name: str, n_bytes: int, size: int | None) -> None:
        seen[name] = (n_bytes, size)

    download_model(model, progress=report)
    assert seen == {name: (len(content), len(content)) for name, content in CONTENTS.items()}


def test_the_log_states_what_is_downloaded(model: CatalogModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo.catalog"):
        download_model(model)
    assert caplog.messages[0].startswith("downloading allenai/small to ")


def test_the_cache_lists_and_removes_models(server: FileServer, model: CatalogModel, cache: Path) -> None:
    assert list_cached() == []
    server.faults["weights.hdf5"] = [cut(1000)]
    with pytest.raises(DownloadError):
        download_model(model)
    (unfinished,) = list_cached()
    assert (unfinished.name, unfinished.state) == ("allenai/small", "unfinished")
    assert remove_cached(["allenai/small"], unfinished_only=True) >= 1000
    server.faults.clear()
    download_model(model)
    by_hand = cache / "by-hand" / "ratsgo" / "ko"
    by_hand.mkdir(parents=True)
    (by_hand / "elmo.zip").write_bytes(b"zip")
    assert [(cached.name, cached.n_files, cached.n_bytes) for cached in list_cached()] == [
        ("allenai/small", 2, 50_100),
        ("ratsgo/ko", 1, 3),
    ]
    assert remove_cached(["allenai/small", "ratsgo/ko"]) == 50_100
    assert [(cached.name, cached.state) for cached in list_cached()] == [("ratsgo/ko", "by hand")]
    with pytest.raises(ConfigError, match="no published model is called"):
        remove_cached(["../../etc"])


def test_a_removal_that_does_nothing_says_why(
    model: CatalogModel, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert remove_cached([model.name]) == 0
    assert caplog.messages[-1] == f"allenai/small is not in the cache {cache}"
    folder = cache / "by-hand" / "allenai" / "small"
    folder.mkdir(parents=True)
    (folder / "weights.hdf5").write_bytes(b"mine")
    assert remove_cached([model.name]) == 0
    assert caplog.messages[-1] == f"allenai/small was added by hand; remove its files yourself: {folder}"


def test_a_removal_does_not_wait_for_a_download(
    server: FileServer, model: CatalogModel, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults["weights.hdf5"] = [cut(1000)]
    with pytest.raises(DownloadError):
        download_model(model)
    with ModelCache(model).locked():
        with pytest.raises(OutputError, match="cannot remove allenai/small: another process is downloading it"):
            remove_cached([model.name])
        assert remove_cached([model.name], unfinished_only=True) == 0
    assert caplog.messages[-1] == "allenai/small is kept: another process is downloading it"
    assert [cached.state for cached in list_cached()] == ["unfinished"]


def test_a_file_that_vanishes_is_not_in_the_cache(model: CatalogModel, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "gone", None, published=None)
    download_model(model)
    cache = ModelCache(model)
    cache.has_file = lambda *_: True  # type: ignore[method-assign] -- as if the file were removed after this check
    (cache.folder / "weights.hdf5").unlink()
    assert cache.find() is None


def test_links_in_the_cache_are_not_followed(model: CatalogModel, cache: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("x")
    (cache / "allenai").mkdir(parents=True)
    (cache / "allenai" / "small").symlink_to(victim)
    for call in (lambda: download_model(model), lambda: remove_cached([model.name])):
        with pytest.raises(Exception, match="it is a link"):
            call()
    assert contents(victim) == {"precious": b"x"}
    assert find_model("allenai/small") is not None


# --- several processes --------------------------------------------------------------------------------------

SCRIPT = "import sys; from elmo.catalog import download_model as d; print(*d(sys.argv[1]).names)"


@pytest.fixture
def published(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """The files of a real entry of the table, on a mirror."""
    model = find_model("allenai/small")
    assert model is not None
    monkeypatch.setenv("ELMO_MIRROR", server.address)
    for file, content in zip(model.files, CONTENTS.values(), strict=True):
        server.files[f"{model.name}/{file.name}"] = content
    return model


def start(name: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_two_processes_download_a_model_once(server: FileServer, published: CatalogModel) -> None:
    path = f"{published.name}/{published.files[0].name}"
    server.faults[path] = [trickle(0.005)]  # half a second, in which both have started
    both = [start(published.name), start(published.name)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.split()) == (0, [file.name for file in published.files]), err
    assert [path for path, _ in server.requests] == [f"{published.name}/{file.name}" for file in published.files]


@pytest.mark.slow
def test_a_killed_download_continues_and_nothing_half_written_is_found(
    server: FileServer, published: CatalogModel
) -> None:
    path = f"{published.name}/{published.files[1].name}"
    server.files[path] = CONTENTS["weights.hdf5"] * 20
    server.faults[path] = [trickle(0.01, n_bytes=10_000)]  # a second
    cache = ModelCache(published)
    for _ in range(3):
        n_before = len(server.requests)
        process = start(published.name)
        deadline = time.monotonic() + 30
        while len(server.requests) == n_before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (cache.folder / published.files[1].name).exists()
        assert cache.find() is None
    server.faults.clear()
    expected = {file.name: server.files[f"{published.name}/{file.name}"] for file in published.files}
    assert contents(download_model(published).folder) == expected
    ranges = [where for requested, where in server.requests if requested == path]
    assert ranges[0] is None
    assert any(ranges[1:])
