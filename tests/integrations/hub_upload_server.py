"""A small Hugging Face Hub on 127.0.0.1 that accepts uploads: the part of its API that ``upload_folder`` uses.

Small text files arrive in the commit, other files by Git LFS, as on the real Hub. Uploaded models can be downloaded
again; downloads are answered by ``tests.formats.hub_server``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.formats.hub_server import COMMIT, Answer, answer


@dataclass
class UploadHub:
    """The address of the server, what it received, and the models it has."""

    address: str
    folder: Path
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    lfs: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    private: dict[str, bool | None] = field(default_factory=dict)  # by repository


@contextmanager
def accepting(folder: Path) -> Iterator[UploadHub]:
    """Accept uploads to ``me/…`` until the block ends; other owners are forbidden."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply()

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

        def reply(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers["Authorization"])
            body = self.read_body()
            status, headers, content = respond(hub, self.command, path, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def read_body(self) -> bytes:
            if self.headers["Transfer-Encoding"] != "chunked":
                return self.rfile.read(int(self.headers["Content-Length"] or 0))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = UploadHub(f"http://127.0.0.1:{server.server_port}", folder)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def respond(hub: UploadHub, method: str, path: str, body: bytes) -> Answer:
    """Return status, headers and body for a request."""
    if method in ("GET", "HEAD"):
        models = {f"me/{model.name}": model for model in hub.folder.iterdir()}
        return answer(models, path)
    if method == "PUT" and path.startswith("/lfs/"):
        oid = path.removeprefix("/lfs/")
        assert hashlib.sha256(body).hexdigest() == oid
        hub.lfs[oid] = body
        return 200, {}, b""
    if path == "/api/repos/create":
        values = json.loads(body)
        repo = f"{values.get('organization', 'me')}/{values['name']}"
        if not repo.startswith("me/"):
            return 403, {}, b'{"error": "You do not have the rights to create a model under this namespace"}'
        is_new = repo not in hub.private
        hub.private.setdefault(repo, values.get("private") or values.get("visibility") == "private")
        (hub.folder / values["name"]).mkdir(exist_ok=True)
        return _json({"url": f"{hub.address}/{repo}"}, status=200 if is_new else 409)
    if path == "/api/validate-yaml":
        has_front_matter = json.loads(body)["content"].startswith("---\n")
        return _json({"errors": [] if has_front_matter else [{"message": "no metadata"}], "warnings": []})
    if path.endswith("/preupload/main"):
        files = json.loads(body)["files"]
        kinds = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
             "shouldIgnore": False}
            for file in files
        ]  # fmt: skip
        return _json({"files": kinds})
    if path.endswith("/info/lfs/objects/batch"):
        objects = [
            {"oid": item["oid"], "size": item["size"],
             "actions": {"upload": {"href": f"{hub.address}/lfs/{item['oid']}", "header": {}}}}
            for item in json.loads(body)["objects"]
        ]  # fmt: skip
        return _json({"transfer": "basic", "objects": objects})
    if "/commit/main" in path:
        repo = path.removeprefix("/api/models/").split("/commit/")[0]
        folder = hub.folder / repo.split("/")[1]
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                (folder / value["path"]).write_bytes(base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                (folder / value["path"]).write_bytes(hub.lfs[value["oid"]])
        url = f"{hub.address}/{repo}/commit/{COMMIT}"
        return _json({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
    return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"


def _json(value: object, *, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()
