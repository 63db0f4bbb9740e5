"""Serve folders as a small Hugging Face Hub on 127.0.0.1, with the API that ``snapshot_download`` uses.

The folders are models below ``me/``; other names give the errors of the Hub.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
Change = Callable[[str, Answer], Answer]  # what a hostile server makes of the answer for a path


@dataclass
class Hub:
    """The address of the server and the requests it received."""

    address: str
    requests: list[str] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)


@contextmanager
def serving(models: dict[str, Path], changes: Mapping[str, Change] | None = None) -> Iterator[Hub]:
    """Serve each folder under its id until the block ends; ``changes`` are applied to the answers of their ids."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            hub.agents.add(self.headers["User-Agent"])
            status, headers, body = answer(models, path)
            for repo, change in (changes or {}).items():
                if f"/{repo}/" in path:
                    status, headers, body = change(path, (status, headers, body))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                # a connection that breaks in the middle of a file
                self.wfile.write(body[: len(body) // 2] if "/broken/resolve/" in path else body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def answer(models: dict[str, Path], path: str) -> Answer:
    """Return status, headers and body for a request."""
    is_api = path.startswith("/api/models/")
    parts = path.removeprefix("/api/models" if is_api else "").strip("/").split("/")
    repo, rest = "/".join(parts[:2]), parts[2:]
    if repo.endswith("/gated"):
        return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
    if repo.endswith("/down"):
        return 500, {}, b"the hamsters are asleep"
    if repo.endswith("/nonsense"):
        return 200, {"Content-Type": "application/json"}, b"<html>a captive portal</html>"
    if repo not in models:
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
    files = {file.relative_to(models[repo]).as_posix(): file.read_bytes()
             for file in sorted(models[repo].rglob("*")) if file.is_file()}  # fmt: skip
    if is_api and rest[:1] == ["revision"]:
        if rest[1:] not in (["main"], ["v1"], [COMMIT]):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        siblings = [{"rfilename": name} for name in files]
        return _json({"id": repo, "sha": COMMIT, "siblings": siblings})
    if is_api and rest[:1] == ["tree"]:
        return _json([{"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                      for name, content in files.items()])  # fmt: skip
    name = "/".join(rest[2:])
    if rest[:1] == ["resolve"] and name in files:
        return 200, {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": COMMIT}, files[name]
    return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"


def _json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
