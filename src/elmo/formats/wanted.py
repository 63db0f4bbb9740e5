"""A file's name in, whether some reader may open it out: all that is unpacked, and all that is downloaded."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath

# As huggingface_hub matches them: a star may also stand for folders.
PATTERNS = (
    "*.json",
    "*.hdf5",
    "*.h5",
    "*.safetensors",
    "*[vV]ocab*.txt",
    "*.dic",
    "*.pkl",
    "*.pb",
    "*.index",
    "*.data-*-of-*",
    "*checkpoint",
    "*SHA256SUMS",
)


def is_wanted(name: str) -> bool:
    """Whether a member of an archive or a repository may be part of a model."""
    path = PurePosixPath(name)
    if path.name.startswith("._") or path.parts[:1] == ("__MACOSX",):  # what macOS adds to its zips
        return False
    return any(fnmatchcase(name, pattern) for pattern in PATTERNS)
