"""A Hugging Face Hub id in, the folder of the downloaded model out: only files that a reader may open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from elmo.errors import FormatError
from elmo.formats.archive import PATTERNS
from elmo.storage.files import member, names, read_json, reason, shown

CONFIG = "config.json"
_ID = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w][\w./-]{0,200}))?", re.ASCII)


def split_id(source: str) -> tuple[str, str | None] | None:
    """``org/name`` or ``org/name@revision`` as id and revision; None for anything else."""
    match = _ID.fullmatch(source)
    return (match[1], match[2]) if match else None


def fetch(repo_id: str, revision: str | None = None) -> Path:
    """Download a model, or find it in the cache; ``FormatError`` says why it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  httpx's or requests', as this version has it
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = repo_id if revision is None else f"{repo_id}@{revision}"

    def download(patterns: Sequence[str]) -> Path:
        found = snapshot_download(
            repo_id, revision=revision, allow_patterns=list(patterns), library_name="pyelmo"
        )
        return Path(found)

    try:
        # Small files first: the name of some other kind of model must not fetch gigabytes of it.
        _refuse_transformers(download([CONFIG]), what)
        folder = download(PATTERNS)
    except HFValidationError as error:
        raise FormatError(f"{shown(what)}: expected a Hub id such as org/name: {reason(error)}") from error
    except GatedRepoError as error:
        raise FormatError(
            f"{what}: the Hub gives this model on request only; ask on its page, then `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise FormatError(
            f"{what}: expected a folder, an archive or a Hub id, found none: the Hub has no such model, or "
            "it is private (`hf auth login`)"
        ) from error
    except RevisionNotFoundError as error:
        raise FormatError(f"{what}: the Hub has this model, but no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        raise FormatError(
            f"{what}: is no folder or archive here, is not (wholly) in the Hub's cache, and could not be "
            f"downloaded: {_cause(error)}; check the network, HF_HUB_OFFLINE and HF_ENDPOINT"
        ) from error
    # whatever a server that breaks off or answers nonsense makes of the libraries underneath
    except (HTTPError, OSError, ValueError, RuntimeError, KeyError, AssertionError) as error:
        raise FormatError(f"{what}: the download from the Hub failed: {reason(error)}; try again") from error
    return folder


def _refuse_transformers(folder: Path, what: str) -> None:
    if CONFIG in names(folder):
        values = read_json(member(folder, CONFIG))
        kind = values.get("model_type") if isinstance(values, dict) else None
        if isinstance(kind, str):
            raise FormatError(
                f"{what}: expected an ELMo model, found one of type {kind!r:.40} (transformers)"
            )


def _cause(error: BaseException) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return reason(error.__cause__ or error)
