"""One file from one address: the right bytes, or one clear line."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.catalog import transfer
from elmo.errors import DownloadError, ElmoError, OutputError
from tests.catalog.file_server import (
    FileServer,
    announces,
    chunked,
    cut,
    cut_chunk,
    encoded,
    other_range,
    other_total,
    redirect,
    silent,
    status,
    trickle,
    web_page,
    without_length,
    without_ranges,
)

CONTENT = random.Random(0).randbytes(300_000)
LIMIT = 1_000_000

Fetch = Callable[[], bytes]


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return tmp_path / "partial"


@pytest.fixture
def fetch(server: FileServer, partial: Path) -> Fetch:
    """Fetch the file ``x`` of the server."""
    server.files["x"] = CONTENT

    def run() -> bytes:
        transfer.fetch(server.url("x"), partial, max_bytes=LIMIT)
        return partial.read_bytes()

    return run


def test_a_file_arrives_with_progress(server: FileServer, partial: Path) -> None:
    server.files["x"] = CONTENT
    seen: list[tuple[int, int | None]] = []
    transfer.fetch(server.url("x"), partial, max_bytes=LIMIT, report=lambda n, size: seen.append((n, size)))
    assert partial.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)


def test_a_connection_that_is_cut_off_continues_where_it_ended(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [cut(100_000), cut(50_000), cut(1), cut(len(CONTENT))]
    assert fetch() == CONTENT
    assert [where for _, where in server.requests] == [None, "bytes=100000-", "bytes=150000-", "bytes=150001-"]


def test_a_transfer_continues_in_another_process(server: FileServer, fetch: Fetch, partial: Path) -> None:
    server.faults["x"] = [cut(100_000), status(404)]
    with pytest.raises(DownloadError, match="HTTP status 404"):
        fetch()
    assert partial.stat().st_size == 100_000
    server.faults.clear()
    server.requests.clear()
    assert fetch() == CONTENT
    assert server.requests == [("x", "bytes=100000-")]


def test_a_complete_file_is_not_requested_again(server: FileServer, fetch: Fetch) -> None:
    fetch()
    server.requests.clear()
    assert fetch() == CONTENT
    assert server.requests == []


@pytest.mark.parametrize("n_bytes", [0, 1, 100_000, 299_999])
def test_a_server_without_ranges_sends_everything_again(server: FileServer, fetch: Fetch, n_bytes: int) -> None:
    server.faults["x"] = [cut(n_bytes), without_ranges]
    assert fetch() == CONTENT


def test_a_file_that_changes_meanwhile_is_never_mixed(server: FileServer, fetch: Fetch) -> None:
    new = CONTENT[::-1]

    def change(request: object) -> None:
        server.files["x"] = new
        cut(100_000)(request)  # type: ignore[arg-type]

    server.faults["x"] = [change, cut(len(CONTENT))]
    assert fetch() == new


def test_an_unfinished_file_of_another_address_is_not_continued(
    server: FileServer, fetch: Fetch, partial: Path
) -> None:
    server.files["y"] = CONTENT[::-1]
    server.faults["y"] = [cut(1000), status(403)]
    with pytest.raises(DownloadError):
        transfer.fetch(server.url("y"), partial, max_bytes=LIMIT)
    assert fetch() == CONTENT


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"url": 1, "validator": "", "size": "x", "more": 1}'])
def test_an_unfinished_file_of_unknown_origin_is_not_continued(fetch: Fetch, partial: Path, damage: str) -> None:
    partial.write_bytes(b"something else")
    partial.with_name("partial.origin.json").write_text(damage)
    assert fetch() == CONTENT


@pytest.mark.parametrize("fault", [other_range, other_total], ids=["start", "total"])
def test_a_part_that_was_not_requested_is_not_used(server: FileServer, fetch: Fetch, fault: Callable) -> None:
    server.faults["x"] = [fault, fault, cut(len(CONTENT))]
    assert fetch() == CONTENT


def test_a_file_in_chunks_arrives(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [cut_chunk, chunked]
    assert fetch() == CONTENT


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (cut_chunk, "connection ended early"),
        (without_length, "states no size"),
        (web_page, "a web page in place of the file"),
        (encoded, "found the encoding 'gzip'"),
        (announces(LIMIT + 1), "expected at most 1,000,000 bytes, found 1,000,001"),
        (announces(10**17), "expected at most 1,000,000 bytes, found 100,000,000,000,000,000"),
        (announces(len(CONTENT) + 1), "the connection ended after 300,000 of 300,001 bytes"),
        (status(403), "HTTP status 403"),
        (status(410), "HTTP status 410"),
        (status(503), "HTTP status 503"),
        (status(304), "HTTP status 304"),
        (redirect("file:///etc/passwd"), "redirects to an address that is not allowed"),
        (redirect("ftp://127.0.0.1/x"), "redirects to an address that is not allowed"),
        (redirect("data:text/plain,x"), "redirects to an address that is not allowed"),
        (redirect("x"), "redirects more than 5 times"),
        (redirect("http://127.0.0.1:bad/"), ""),
        (redirect("http://127.0.0.1/\x01 \t"), ""),
    ],
)
def test_a_server_that_misbehaves_gives_one_line(
    server: FileServer, fetch: Fetch, fault: Callable, message: str
) -> None:
    server.faults["x"] = [fault]
    with pytest.raises(DownloadError) as caught:
        fetch()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) <= 7


def test_redirects_are_followed_and_keep_the_range(server: FileServer, fetch: Fetch) -> None:
    server.files["z"] = server.files.pop("x")
    server.faults["x"] = [redirect(server.url("y"), 301)]
    server.faults["y"] = [redirect("/z", 307)]
    server.faults["z"] = [cut(1000), cut(len(CONTENT))]
    assert fetch() == CONTENT
    assert server.requests[-1] == ("z", "bytes=1000-")


def test_a_redirect_from_https_to_http_is_refused() -> None:
    from urllib.request import Request

    request = Request("https://example.org/x")
    for target in ("http://example.org/x", "file:///x", "https:///x"):
        with pytest.raises(DownloadError, match="not allowed"):
            transfer._LimitedRedirects().redirect_request(request, None, 302, "", {}, target)  # type: ignore[arg-type]


def test_a_silent_server_is_given_up(server: FileServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "TIMEOUT", 0.05)
    server.faults["x"] = [silent(0.2)]
    with pytest.raises(DownloadError, match=r"no answer within 0\.05 seconds"):
        fetch()


def test_a_slow_server_is_used_if_it_is_fast_enough(
    server: FileServer, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["x"] = CONTENT[:40]
    server.faults["x"] = [trickle(0.002)]
    transfer.fetch(server.url("x"), partial, max_bytes=LIMIT)
    assert partial.read_bytes() == CONTENT[:40]
    monkeypatch.setattr(transfer, "SLOW_SECONDS", 0.02)
    partial.unlink()
    server.files["x"] = CONTENT[:1000]
    with pytest.raises(DownloadError, match="the server sent only"):
        transfer.fetch(server.url("x"), partial, max_bytes=LIMIT)


def test_a_busy_server_is_asked_again_after_the_time_that_it_states(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [status(429, **{"Retry-After": "0"}), status(503, **{"Retry-After": "x"}), cut(len(CONTENT))]
    assert fetch() == CONTENT


def test_more_bytes_than_announced_are_not_stored(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [announces(1000)]
    assert fetch() == CONTENT[:1000]  # HTTP ends there; the checksum and the readers notice


def test_a_limit_holds_for_files_of_unknown_size(server: FileServer, partial: Path) -> None:
    server.files["x"] = CONTENT
    server.faults["x"] = [chunked]
    with pytest.raises(DownloadError, match="expected at most 1,000 bytes, found more"):
        transfer.fetch(server.url("x"), partial, max_bytes=1000)
    assert partial.stat().st_size <= 1000


def test_a_file_larger_than_the_disk_is_refused_before_it_arrives(server: FileServer, partial: Path) -> None:
    server.files["x"] = CONTENT
    server.faults["x"] = [announces(1 << 60)]
    with pytest.raises(OutputError, match="set ELMO_DOWNLOADS to a folder on a larger disk"):
        transfer.fetch(server.url("x"), partial, max_bytes=1 << 61)


def test_a_port_where_nothing_listens_gives_one_line(partial: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/x"
        with pytest.raises(DownloadError, match="refused"):
            transfer.fetch(url, partial, max_bytes=LIMIT)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://", "http://[::1/x", "nonsense", "data:,x"]
)
def test_only_http_addresses_are_opened(partial: Path, url: str) -> None:
    with pytest.raises(ElmoError):
        transfer.fetch(url, partial, max_bytes=LIMIT)
    assert not partial.exists()


def test_a_server_that_only_closes_connections_is_given_up_after_a_few_attempts(
    server: FileServer, fetch: Fetch
) -> None:
    server.faults["x"] = [cut(0)]
    with pytest.raises(DownloadError, match="ended after 0 of"):
        fetch()
    assert len(server.requests) == transfer.ATTEMPTS


def test_a_server_that_sends_a_little_each_time_is_used_to_the_end(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [cut(20_000)]
    assert fetch() == CONTENT
    assert len(server.requests) == 15


def test_a_server_that_sends_a_few_bytes_each_time_is_given_up(server: FileServer, fetch: Fetch) -> None:
    server.faults["x"] = [cut(20)]
    with pytest.raises(DownloadError, match="ended after 100 of"):
        fetch()
    assert len(server.requests) == transfer.ATTEMPTS
