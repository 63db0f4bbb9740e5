"""Jobs with their text and output in an object store: the same bytes, also if requests fail and processes are killed.

The first tests use the store ``memory://`` of fsspec. The others use a real S3-compatible server (moto) in its own
process; ``make engines`` installs it. They are skipped where it is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, MissingExtraError, OutputError
from elmo.jobs.plan import EmbedJob
from elmo.jobs.run import embed_corpus
from elmo.storage import remote
from tests.jobs.jobs import begin, contents, stop_after
from tests.jobs.test_engines import need, stop_engine

pytest.importorskip("upath", reason="universal-pathlib is not installed")
N_SHARDS = 20
TEXT = "".join(f"the river bank {k}\n\n" for k in range(N_SHARDS))
FAILURES = 0.05


def store(url: str) -> dict[str, bytes]:
    """Return all files below an address."""
    import fsspec

    system, name = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return {file.removeprefix(name).lstrip("/"): system.cat_file(file) for file in system.find(name)}


def expected_bytes(job: EmbedJob, elmo: Elmo, folder: Path) -> dict[str, bytes]:
    """Return the files of the same job with a local output."""
    assert job.out is not None
    out = folder / "expected" / job.out.name
    embed_corpus(replace(job, out=out, workers=1, runner="local"), elmo)
    return contents(out.parent)


@pytest.fixture
def memory() -> Iterator[str]:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe("/bucket/text/a.txt", TEXT.encode())
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".parquet", ".safetensors"])
def test_text_and_output_can_be_in_an_object_store(memory: str, elmo: Elmo, folder: Path, suffix: str) -> None:
    job = EmbedJob((f"{memory}/text/*.txt",), remote.parse_path(f"{memory}/out/v{suffix}"), shard_tokens=4)
    summary = embed_corpus(job, elmo)
    assert (summary.sentences, str(summary.files[0])) == (2 * N_SHARDS, f"{memory}/out/v-00000{suffix}")
    assert store(f"{memory}/out") == expected_bytes(job, elmo, folder)
    assert embed_corpus(job, elmo).was_complete


def test_a_stopped_job_is_resumed_and_a_damaged_shard_is_written_again(memory: str, elmo: Elmo, folder: Path) -> None:
    import fsspec

    job = EmbedJob((f"{memory}/text",), remote.parse_path(f"{memory}/out/v.npz"), shard_tokens=4)
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(job, elmo, on_progress=stop_after(10))
    fsspec.filesystem("memory").pipe("/bucket/out/v-00003.npz", b"damaged")
    fsspec.filesystem("memory").pipe("/bucket/out/v-00030.npz", b"of another run")
    others = {"other.txt": b"not ours", "v-20240101.npz": b"not ours, a date"}
    for name, data in others.items():
        fsspec.filesystem("memory").pipe(f"/bucket/out/{name}", data)
    summary = embed_corpus(job, elmo)
    assert summary.kept == 6  # the sentences of the shards before the damaged one
    assert store(f"{memory}/out") == {**expected_bytes(job, elmo, folder), **others}


def test_failed_requests_are_repeated_and_then_reported(
    memory: str, elmo: Elmo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(remote, "RETRY_SECONDS", 0.0)
    counts: dict[str, int] = dict.fromkeys(("info", "cat_file", "put_file", "ls"), 0)
    is_down = False

    def fail(name: str) -> Any:
        method = getattr(MemoryFileSystem, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            if is_down or counts[name] % 3:
                raise RuntimeError("the store is\nbusy")
            return method(*arguments, **options)

        return call

    job = EmbedJob((f"{memory}/text/a.txt",), remote.parse_path(f"{memory}/out/v.npz"), shard_tokens=50)
    with monkeypatch.context() as patch:
        for name in counts:
            patch.setattr(MemoryFileSystem, name, fail(name))
        embed_corpus(job, elmo)
        assert all(counts.values()), counts
        is_down = True
        with pytest.raises(DataError, match=r"^cannot read memory://bucket/text/a.txt: the store is busy$"):
            embed_corpus(job, elmo)
        local = folder / "text.txt"
        local.write_text(TEXT)
        with pytest.raises(OutputError, match=r"^cannot write memory://\S+: the store is busy$"):
            embed_corpus(replace(job, inputs=(str(local),), out=remote.parse_path(f"{memory}/new/v.npz")), elmo)
    assert store(f"{memory}/out") == expected_bytes(job, elmo, folder)


@pytest.mark.parametrize(
    ("inputs", "out", "message"),
    [
        ("text/none.txt", "out/v.npz", "text/none.txt: no such file or folder"),
        ("text/*.none", "out/v.npz", "no file matches this pattern"),
        ("text", "out/v.h5", "in an object store, the file name must end in .jsonl, .npz, .parquet, .safetensors"),
        ("text", "text/a.txt", "the file name must end in"),
        ("text", "text/v.jsonl", "is one of the inputs"),
    ],
)
def test_a_bad_address_is_an_error_in_one_line(memory: str, elmo: Elmo, inputs: str, out: str, message: str) -> None:
    before = store(memory)
    with pytest.raises((DataError, OutputError)) as caught:
        embed_corpus(EmbedJob((f"{memory}/{inputs}",), remote.parse_path(f"{memory}/{out}")), elmo)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store(memory) == before


def test_paths_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot use ftp:// paths; use a local path or one of s3, gs"):
        remote.parse_path("ftp://user:secret@host/b")
    for address in ("memory://a//b.npz", "memory://a/../b.npz"):
        with pytest.raises(ConfigError, match="must not contain // or"):
            remote.parse_path(address)
    for options in ({"out": Path("s3://bucket/v.npz")}, {"set_aside": Path("s3://bucket/a.jsonl")}):
        with pytest.raises(ConfigError, match="expected a local path"):
            EmbedJob(("a.txt",), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must not contain a password"):
        remote.parse_path("memory://user:secret@host/b")
    if importlib.util.find_spec("gcsfs") is None:
        with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[gs\]'"):
            remote.parse_path("gs://bucket/a")
    assert remote.parse_path("file") == Path("file")


def test_a_missing_file_in_a_subclass_of_the_error_is_described() -> None:
    class SpecialError(FileNotFoundError):
        def __init__(self, text: str) -> None:
            super().__init__(text)

    def fail() -> None:
        raise SpecialError("somewhere")

    with pytest.raises(FileNotFoundError, match="no such bucket or file"):
        remote._request(fail)


# --- a real S3-compatible server --------------------------------------------------------------------


class S3Server:
    """The server of ``s3_server.py`` with a bucket ``corpus``."""

    def __init__(self, failures: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("s3_server.py")), str(port), str(failures), "7"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.failures()
                return
            except OSError:
                assert self.process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def failures(self) -> tuple[int, int]:
        """Return how many requests have failed, and how many there were."""
        with urllib.request.urlopen(f"{self.url}/failures", timeout=10) as reply:
            failed, requests = reply.read().split()
        return int(failed), int(requests)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for library in ("moto", "s3fs", "flask"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: make engines")
    import s3fs

    server = S3Server(FAILURES)
    for name, value in {
        "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem(skip_instance_cache=True)
    remote._request(lambda: system.mkdir("corpus"))
    remote._request(lambda: system.pipe("corpus/text/a.txt", TEXT.encode()))
    yield server
    s3fs.S3FileSystem.clear_instance_cache()
    server.process.kill()
    server.process.wait()


def read_s3(prefix: str) -> dict[str, bytes]:
    return remote._request(lambda: store(f"s3://{prefix}"))


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "ray", "spark"])
def test_an_output_in_s3_has_the_same_bytes_although_requests_fail(
    s3: S3Server, elmo: Elmo, folder: Path, runner: Any
) -> None:
    if runner != "local":
        need(runner)
    out = remote.parse_path("s3://corpus/out/v.npz")
    job = EmbedJob(("s3://corpus/text/*.txt",), out, shard_tokens=4, workers=2, runner=runner)
    begin(replace(job, workers=1, runner="local"), elmo, reports=4)
    begin(job, elmo, reports=4)
    summary = embed_corpus(job, elmo)
    if runner != "local":
        stop_engine(runner)
    assert 0 < summary.kept < summary.sentences == 2 * N_SHARDS
    assert read_s3("corpus/out") == expected_bytes(job, elmo, folder)
    failed, requests = s3.failures()
    assert failed > 0.02 * requests


@pytest.mark.slow
def test_killed_drivers_with_an_output_in_s3_are_resumed(s3: S3Server, elmo: Elmo, folder: Path) -> None:
    elmo.save_pretrained(folder / "model")
    job = EmbedJob(("s3://corpus/text",), remote.parse_path("s3://corpus/out/v.jsonl"), shard_tokens=4)
    command = [
        sys.executable, "-m", "elmo", "embed", "s3://corpus/text", "--out", "s3://corpus/out/v.jsonl", "--model",
        str(folder / "model"), "--shard-tokens", "4", "--workers", "2", "--quiet",
    ]  # fmt: skip
    for n_shards in (2, 8):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < deadline:
                if len(read_s3("corpus").keys()) > n_shards:
                    break
                time.sleep(0.1)
            process.kill()
    subprocess.run(command, check=True, timeout=300)
    found = read_s3("corpus/out")
    manifest = json.loads(found.pop("v.jsonl.manifest.json"))
    assert manifest["is_complete"]
    assert len(manifest["shards"]) == N_SHARDS
    loaded = Elmo.from_pretrained(folder / "model")
    expected = expected_bytes(job, loaded, folder)
    del expected["v.jsonl.manifest.json"]
    assert found == expected


@pytest.mark.slow
def test_a_bucket_that_is_missing_or_forbidden_is_an_error_in_one_line(s3: S3Server, elmo: Elmo, folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text(TEXT)
    with pytest.raises(OutputError, match=r"^cannot write s3://absent/v\.npz\S*: no such bucket or file$"):
        embed_corpus(EmbedJob((str(text),), remote.parse_path("s3://absent/v.npz")), elmo)
    with pytest.raises(DataError, match=r"^s3://absent/x\.txt: no such file or folder"):
        embed_corpus(EmbedJob(("s3://absent/x.txt",), folder / "v.npz"), elmo)
    with pytest.raises(OutputError, match=r"^cannot write s3://forbidden/out/v\.npz\S*: Permission denied$"):
        embed_corpus(EmbedJob((str(text),), remote.parse_path("s3://forbidden/out/v.npz")), elmo)
    with pytest.raises(DataError, match=r"^cannot read s3://forbidden/x\.txt: Permission denied$"):
        embed_corpus(EmbedJob(("s3://forbidden/x.txt",), folder / "v.npz"), elmo)
    assert set(read_s3("corpus")) == {"text/a.txt"}
    assert not list(folder.glob("v*"))
