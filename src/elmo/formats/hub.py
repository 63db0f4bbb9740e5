"""Download a model from the Hugging Face Hub; only files that a format reader may open are downloaded.

``huggingface_hub`` builds the paths of its cache from the id, the revision and the answers of the server: commits, file
names and ETags. None of these is trusted: the id and the revision are checked here, each answer before
``huggingface_hub`` uses it, and the folder after the download.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from elmo.errors import ElmoError, FormatError
from elmo.formats.archive import PATTERNS
from elmo.storage.files import find_member, format_error, format_path, list_names, read_json

MAX_ANSWER_BYTES = 1 << 23  # of the descriptions of a model; the list of a thousand files has a twentieth of this

_CONFIG = "config.json"
_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)(?!.{201})\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Headers and keys of answers that become part of a path.
_TAG_HEADERS = ("etag", "x-linked-etag", "x-repo-commit")
_TAG_KEYS = ("sha", "oid", "sha256", "blobId", "xetHash")
_PATH_KEYS = ("path", "rfilename")
_hooks_lock = threading.Lock()


def split_id(source: str) -> tuple[str, str | None] | None:
    """Split ``org/name`` or ``org/name@revision`` into id and revision; return None for anything else."""
    repo_id, at, revision = source.partition("@")
    return (repo_id, revision if at else None) if _is_id(repo_id, revision if at else None) else None


def _is_id(repo_id: str, revision: str | None) -> bool:
    return _ID.fullmatch(repo_id) is not None and (revision is None or _REVISION.fullmatch(revision) is not None)


def download(repo_id: str, revision: str | None = None, *, offline: str | None = None) -> Path:
    """Download a model, or find it in the cache, and return its folder.

    Args:
        repo_id: Hub id of the model.
        revision: Branch, tag or commit. By default, the main branch.
        offline: Name of the environment variable that forbids downloads, if one is set.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from elmo import __version__

    name = format_path(repo_id if revision is None else f"{repo_id}@{revision}")
    if not _is_id(repo_id, revision):
        raise FormatError(f"{name:.200}: expected a Hub id such as org/name or org/name@revision")

    def fetch(patterns: Sequence[str]) -> Path:
        with _checked_answers(name):
            folder = snapshot_download(
                repo_id,
                revision=revision,
                local_files_only=offline is not None,
                allow_patterns=list(patterns),
                library_name="pyelmo",
                library_version=__version__,
            )
        return _check_folder(Path(folder), repo_id, Path(constants.HF_HUB_CACHE))

    try:
        # first only the config, so that another kind of model is rejected before gigabytes are downloaded
        _refuse_transformers(fetch([_CONFIG]), name)
        return fetch(PATTERNS)
    except ElmoError:
        raise
    except HFValidationError as error:
        raise FormatError(f"{name}: expected a Hub id such as org/name: {format_error(error)}") from error
    except GatedRepoError as error:
        raise FormatError(
            f"{name}: access to this model is restricted; request access on the Hub, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise FormatError(
            f"{name}: no such folder or archive, and no such model on the Hub; if it is private, run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise FormatError(f"{name}: the Hub has this model, but not the revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        variable = offline or ("HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else None)
        cause = f"{variable} is set" if variable else format_error(error.__cause__ or error)
        raise FormatError(
            f"{name}: no such folder or archive, no such model in the Hub's cache, and it could not be "
            f"downloaded: {cause}; check the network, {offline or 'HF_HUB_OFFLINE'} and HF_ENDPOINT"
        ) from error
    except Exception as error:  # of any type, if the server disconnects or sends other data than expected
        raise FormatError(f"{name}: the download from the Hub failed: {format_error(error)}; try again") from error


@contextmanager
def _checked_answers(name: str) -> Iterator[None]:
    """Check all answers of the server that arrive in the ``with`` block, before they are used.

    The HTTP client of ``huggingface_hub`` before version 1 has no hooks for this.
    """
    from huggingface_hub.utils import get_session

    client = cast("Any", get_session())
    if not hasattr(client, "event_hooks"):
        yield
        return

    def check(response: Any) -> None:
        if problem := _find_problem(response):
            raise FormatError(f"{name}: the Hub sent an invalid answer: {problem}")

    with _hooks_lock:  # all threads share the client
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks["response"], check]}
    try:
        yield
    finally:
        with _hooks_lock:
            hooks = client.event_hooks
            client.event_hooks = {**hooks, "response": [hook for hook in hooks["response"] if hook is not check]}


def _find_problem(response: Any) -> str | None:
    """Describe what is wrong with an answer of the server (an ``httpx.Response``), or return None."""
    for header in _TAG_HEADERS:
        value = response.headers.get(header)
        if value is not None and not _is_tag(value.removeprefix("W/").strip('"')):
            return f"{header} {value!r:.80}"
    is_api = "/api/" in response.url.path
    if response.request.method == "HEAD" or not (is_api or response.status_code >= 400):
        return None  # a file, which is written to disk
    body = bytearray()
    for part in response.iter_bytes():  # decompressed
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            return f"expected at most {MAX_ANSWER_BYTES} bytes, found more"
    response._content = bytes(body)  # what ``response.read()`` stores
    try:
        return _find_bad_name(json.loads(body)) if is_api and response.status_code == 200 else None
    except (ValueError, RecursionError):
        return None  # huggingface_hub reports it


def _find_bad_name(answer: Any) -> str | None:
    """Describe the first commit, hash or file name of an answer that must not become part of a path."""
    items = list(answer) if isinstance(answer, list) else [answer]
    if isinstance(answer, dict):
        commit, siblings = answer.get("sha", ""), answer.get("siblings")
        if commit != "" and not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
            return f"expected a commit, found {commit!r:.80}"
        items += siblings if isinstance(siblings, list) else []
    for item in items:
        if not isinstance(item, dict):
            return f"expected a JSON object for each file, found {item!r:.80}"
        lfs = item.get("lfs")
        for values in (item, lfs if isinstance(lfs, dict) else {}):
            for key in _TAG_KEYS:
                if (tag := values.get(key)) is not None and not (isinstance(tag, str) and _is_tag(tag)):
                    return f"{key} {tag!r:.80}"
            for key in _PATH_KEYS:
                if (path := values.get(key)) is not None and not (isinstance(path, str) and _is_relative(path)):
                    return f"file name {path!r:.80}"
    return None


def _is_tag(text: str) -> bool:
    return text.isprintable() and text.isascii() and not set(text) & set("/\\:") and not text.startswith(".")


def _is_relative(path: str) -> bool:
    """Whether a path stays in its folder, on every system."""
    return path.isprintable() and not set(path) & set("\\:") and not {"", ".", ".."} & set(path.split("/"))


def _check_folder(folder: Path, repo_id: str, cache: Path) -> Path:
    """Return the downloaded folder if it and its files are in the part of the cache that belongs to the model."""
    model = cache.expanduser().resolve() / f"models--{repo_id.replace('/', '--')}"
    if folder.resolve().parent != model / "snapshots" or not _COMMIT.fullmatch(folder.name):
        raise FormatError(f"{format_path(repo_id)}: the download is outside the Hub's cache: {format_path(folder)}")
    for path in folder.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            find_member(folder, path.relative_to(folder).as_posix())  # raises an error if it is outside
    return folder


def _refuse_transformers(folder: Path, name: str) -> None:
    if _CONFIG in list_names(folder):
        values = read_json(find_member(folder, _CONFIG))
        kind = values.get("model_type") if isinstance(values, dict) else None
        if isinstance(kind, str):
            raise FormatError(f"{name}: expected an ELMo model, found a transformers model of type {kind!r:.40}")
