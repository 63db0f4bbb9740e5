"""Download a model from the Hugging Face Hub; only files that a format reader may open are downloaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from elmo.errors import FormatError
from elmo.formats.archive import PATTERNS
from elmo.storage.files import find_member, format_error, format_path, list_names, read_json

_CONFIG = "config.json"
_ID = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w][\w./-]{0,200}))?", re.ASCII)


def split_id(source: str) -> tuple[str, str | None] | None:
    """Split ``org/name`` or ``org/name@revision`` into id and revision; return None for anything else."""
    match = _ID.fullmatch(source)
    return (match[1], match[2]) if match else None


def download(repo_id: str, revision: str | None = None) -> Path:
    """Download a model, or find it in the cache, and return its folder."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  httpx's or requests', depending on the version
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = repo_id if revision is None else f"{repo_id}@{revision}"

    def fetch(patterns: Sequence[str]) -> Path:
        folder = snapshot_download(repo_id, revision=revision, allow_patterns=list(patterns), library_name="pyelmo")
        return Path(folder)

    try:
        # first only the config, so that another kind of model is rejected before gigabytes are downloaded
        _refuse_transformers(fetch([_CONFIG]), name)
        return fetch(PATTERNS)
    except HFValidationError as error:
        raise FormatError(f"{format_path(name)}: expected a Hub id such as org/name: {format_error(error)}") from error
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
        cause = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else format_error(error.__cause__ or error)
        raise FormatError(
            f"{name}: no such folder or archive, no such model in the Hub's cache, and it could not be "
            f"downloaded: {cause}; check the network, HF_HUB_OFFLINE and HF_ENDPOINT"
        ) from error
    # huggingface_hub and its HTTP library raise these if a server disconnects or sends invalid data
    except (HTTPError, OSError, ValueError, RuntimeError, KeyError, AssertionError) as error:
        raise FormatError(f"{name}: the download from the Hub failed: {format_error(error)}; try again") from error


def _refuse_transformers(folder: Path, name: str) -> None:
    if _CONFIG in list_names(folder):
        values = read_json(find_member(folder, _CONFIG))
        kind = values.get("model_type") if isinstance(values, dict) else None
        if isinstance(kind, str):
            raise FormatError(f"{name}: expected an ELMo model, found a transformers model of type {kind!r:.40}")
