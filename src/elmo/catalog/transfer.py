"""Fetch one file over HTTP into a file that may already contain its beginning.

A server may close the connection, be slow, state a wrong size, redirect, or send another version of the file. Rules:

- A transfer continues only at the same address, and only if the server confirms with ``If-Range`` that it still has the
  same version. Otherwise it starts again.
- The size must be stated or the end marked, so that a connection that ends early is noticed.
- Redirects lead to HTTP and HTTPS only, never from HTTPS to HTTP, and there are at most ``MAX_REDIRECTS``.
- A web page is not a file: many hosts answer with one when a file is gone.
- A transfer that fails is repeated as long as it makes progress, and ``ATTEMPTS`` times without progress.

``urllib`` is used because no HTTP library is a dependency in all versions of ``huggingface_hub``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from elmo.errors import DownloadError, ElmoError, OutputError
from elmo.storage.atomic import atomic_file, cannot_write, open_for_append, sync
from elmo.storage.files import format_error, read_json

ATTEMPTS = 5  # attempts per address without progress
RETRY_SECONDS = 0.5  # before the second attempt; doubled for each further one
MAX_RETRY_SECONDS = 60.0  # that a server may ask for with Retry-After
TIMEOUT = 30.0  # seconds without a byte after which a connection is given up
SLOW_SECONDS = 60.0  # a connection that brings fewer than SLOW_BYTES in this time is given up
SLOW_BYTES = 1 << 14  # progress of fewer bytes does not count
MAX_REDIRECTS = 5
_BLOCK = 1 << 18
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,18})")
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)

Report = Callable[[int, int | None], None]  # bytes so far, size if known


@dataclass(frozen=True)
class _Origin:
    """Where the beginning of an unfinished file comes from."""

    url: str
    validator: str  # ETag or date; without one, a transfer cannot continue
    size: int | None


class _RetryableError(Exception):
    """The connection failed; another attempt may succeed."""

    def __init__(self, message: str, *, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def fetch(url: str, partial: Path, *, max_bytes: int, report: Report | None = None) -> None:
    """Fetch a file to ``partial``; raise ``DownloadError`` if this address cannot provide it.

    Args:
        url: Address of the file.
        partial: The unfinished file. Its origin is kept in a file next to it, so that a later call can continue.
        max_bytes: Largest size that is accepted.
        report: Called with the number of bytes so far and the size.
    """
    if not is_http(url):
        raise DownloadError(f"expected an address that starts with http:// or https://, found {url!r:.100}")
    n_failures, best = 0, _size(partial)
    while True:
        try:
            return _receive(url, partial, max_bytes=max_bytes, report=report)
        except (ElmoError, KeyboardInterrupt):
            raise
        except (_RetryableError, OSError, http.client.HTTPException, ValueError) as error:
            problem = _describe(error)
            if not _is_retryable(error):
                raise DownloadError(problem) from error
            size = _size(partial)
            n_failures = 1 if size - best >= SLOW_BYTES else n_failures + 1
            best = max(best, size)
            if n_failures >= ATTEMPTS:
                raise DownloadError(problem) from error
            wait = getattr(error, "wait", 0.0)
            time.sleep(max(wait, RETRY_SECONDS * 2 ** (n_failures - 1)))


def remove_unfinished(partial: Path) -> None:
    """Remove an unfinished file and what is known about its origin."""
    partial.unlink(missing_ok=True)
    _origin_path(partial).unlink(missing_ok=True)


# --- one request ---------------------------------------------------------------------------------


def _receive(url: str, partial: Path, *, max_bytes: int, report: Report | None) -> None:
    """Send one request and add what it brings to ``partial``; return when the file is complete."""
    origin, start = _read_origin(partial), _size(partial)
    if origin is None or origin.url != url or start == 0:
        origin, start = None, 0
    elif origin.size == start:
        return  # complete, but the process ended before the file got its name
    headers = {"User-Agent": _user_agent(), "Accept-Encoding": "identity"}
    if origin is not None:
        headers |= {"Range": f"bytes={start}-", "If-Range": origin.validator}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 -- the opener supports HTTP only
    try:
        response = _opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and origin is not None:
                match = _UNSATISFIED.fullmatch(error.headers.get("Content-Range", ""))
                if match and int(match[1]) == start:
                    return  # the file was complete
                remove_unfinished(partial)
                raise _RetryableError("the file has changed on the server") from error
            if error.code in _TEMPORARY:
                raise _RetryableError(f"HTTP status {error.code}", wait=_retry_after(error.headers)) from error
            raise DownloadError(f"HTTP status {error.code}") from error
    with response:
        _store(response, url, partial, origin=origin, start=start, max_bytes=max_bytes, report=report)


def _store(
    response: Any, url: str, partial: Path, *, origin: _Origin | None, start: int, max_bytes: int, report: Report | None
) -> None:
    """Check the header of a response, and write its body."""
    headers: Message = response.headers
    if (encoding := headers.get("Content-Encoding", "identity")) != "identity":
        raise DownloadError(f"expected the file itself, found the encoding {encoding!r:.40}")
    length = headers.get("Content-Length", "")
    n_expected = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None
    is_chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    if n_expected is None and not is_chunked:
        raise DownloadError("the server states no size, so that a broken connection could not be noticed")
    if response.status == 206:
        match = _RANGE.fullmatch(headers.get("Content-Range", ""))
        is_continued = (
            match is not None
            and origin is not None
            and int(match[1]) == start
            and origin.size in (None, int(match[3]))
            and _validator(headers) in ("", origin.validator)
        )
        if match is None or not is_continued:
            remove_unfinished(partial)
            raise _RetryableError("the server sent another part of the file than was requested")
        size = int(match[3])
    elif response.status == 200:
        start, size = 0, n_expected
        if "html" in headers.get("Content-Type", "").lower():
            raise DownloadError("the server sent a web page in place of the file")
    else:
        raise DownloadError(f"HTTP status {response.status}")
    _check_size(size, max_bytes, partial, start=start)
    validator = _validator(headers)
    try:
        if start == 0:
            remove_unfinished(partial)
            if validator:
                _write_origin(partial, _Origin(url, validator, size))
        with open_for_append(partial) as file:
            n_bytes = _copy(response, file, start, size=size, max_bytes=max_bytes, report=report)
        sync(partial)
    except OSError as error:
        if _is_network(error):
            raise
        raise cannot_write(partial, error) from error
    if size is not None and n_bytes != size:
        raise _RetryableError(f"the connection ended after {n_bytes:,} of {size:,} bytes")


def _copy(
    response: Any, file: IO[bytes], position: int, *, size: int | None, max_bytes: int, report: Report | None
) -> int:
    """Append the body of a response to a file; return the position at the end."""
    window_start, window_bytes = time.monotonic(), 0
    while True:
        try:
            block = response.read1(_BLOCK)
        except OSError as error:
            raise _RetryableError(_describe(error)) from error
        if not block:
            return position
        position += len(block)
        if position > max_bytes or (size is not None and position > size):
            raise DownloadError(f"expected at most {min(max_bytes, size or max_bytes):,} bytes, found more")
        file.write(block)
        if report is not None:
            report(position, size)
        window_bytes += len(block)
        elapsed = time.monotonic() - window_start
        if elapsed > SLOW_SECONDS:
            if window_bytes < SLOW_BYTES:
                raise _RetryableError(f"the server sent only {window_bytes:,} bytes in {elapsed:.0f} seconds")
            window_start, window_bytes = time.monotonic(), 0


def _check_size(size: int | None, max_bytes: int, partial: Path, *, start: int) -> None:
    if size is None:
        return
    if size > max_bytes:
        raise DownloadError(f"expected at most {max_bytes:,} bytes, found {size:,}")
    free = shutil.disk_usage(partial.parent).free
    if size - start > free:
        raise OutputError(
            f"cannot write {partial.name}: it has {size:,} bytes, but {partial.parent} has {free:,} free; set "
            "ELMO_DOWNLOADS to a folder on a larger disk"
        )


# --- addresses and redirects ---------------------------------------------------------------------


class _LimitedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP and HTTPS, but not from HTTPS to HTTP."""

    max_repeats = max_redirections = MAX_REDIRECTS + 1  # urllib's message about too many is unclear

    def redirect_request(  # noqa: PLR0917 -- as in urllib
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request for the target of a redirect."""
        if not is_http(newurl) or (urlsplit(req.full_url).scheme, urlsplit(newurl).scheme) == ("https", "http"):
            raise DownloadError(f"the server redirects to an address that is not allowed: {newurl!r:.100}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Check the target of a redirect, and follow it."""
        try:
            target = headers.get("location", "")
            if urlsplit(target).scheme not in ("", "http", "https"):  # urllib would report another error
                raise DownloadError(f"the server redirects to an address that is not allowed: {target!r:.100}")
            if sum(getattr(req, "redirect_dict", {}).values()) >= MAX_REDIRECTS:
                raise DownloadError(f"the server redirects more than {MAX_REDIRECTS} times")
            return super().http_error_302(req, fp, code, msg, headers)
        except BaseException:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def is_http(url: str) -> bool:
    """Return whether an address is one of a host that is reached by HTTP or HTTPS."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets of an IPv6 address that do not match
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for HTTP and HTTPS only; urllib's own also reads files and FTP."""
    opener = urllib.request.OpenerDirector()
    opener.addheaders = []
    for handler in (
        urllib.request.ProxyHandler(),  # from http_proxy and https_proxy
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _LimitedRedirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _user_agent() -> str:
    from elmo import __version__

    return f"pyelmo/{__version__}"


# --- what is known about an unfinished file ------------------------------------------------------


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _origin_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.origin.json")


def _write_origin(partial: Path, origin: _Origin) -> None:
    with atomic_file(_origin_path(partial)) as temporary:
        temporary.write_text(json.dumps(asdict(origin)) + "\n", encoding="utf-8")


def _read_origin(partial: Path) -> _Origin | None:
    path = _origin_path(partial)
    if not path.is_file():
        return None
    try:
        return _Origin(**read_json(path))
    except (ElmoError, TypeError):
        return None


def _validator(headers: Message) -> str:
    """Return what identifies the version of a file: a strong ETag, or else the date of its last change."""
    tag = headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return tag
    return headers.get("Last-Modified", "")


# --- errors --------------------------------------------------------------------------------------


def _is_network(error: OSError) -> bool:
    return isinstance(error, urllib.error.URLError | ConnectionError | TimeoutError | ssl.SSLError)


def _is_retryable(error: Exception) -> bool:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror | ssl.SSLCertVerificationError | ConnectionRefusedError):
        return False
    return isinstance(cause, _RetryableError | OSError | http.client.HTTPException) and not isinstance(
        cause, http.client.InvalidURL
    )


def _describe(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the host is unknown"
    if isinstance(cause, TimeoutError):
        return f"no answer within {TIMEOUT:g} seconds"
    if isinstance(cause, http.client.IncompleteRead | http.client.RemoteDisconnected):
        return "the connection ended early"
    return format_error(cause) if isinstance(cause, BaseException) else str(cause)[:200]


def _retry_after(headers: Message) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), MAX_RETRY_SECONDS) if text.isascii() and text.isdigit() else 0.0
