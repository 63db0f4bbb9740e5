"""Tensors and a description in, a task model's one file out; and back, both seen to fit each other.

Files of version 1 and 2 are of heads whose LSTMs had their weights under other names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmo.embed.atomic import cannot_write, replacing
from elmo.errors import FormatError
from elmo.formats.files import open_regular, shown
from elmo.tasks.vectors.static import StaticVectors

FORMAT = "elmo task model"
VERSION = 3
TABLE = "words.static.weight"  # of the network, which the file keeps in the form of the next two
_ABOUT = "elmo"  # under this name the file carries its description as JSON
_STATIC_WORDS, _STATIC_VECTORS = "static.words", "static.vectors"


def write_file(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the one file, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # one entry: the library writes several in any order, and equal models should be equal files
    described = {"format": FORMAT, "version": VERSION, **about}
    try:
        with replacing(path) as temporary:
            save_file(dict(tensors), temporary, metadata={_ABOUT: json.dumps(described, sort_keys=True)})
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def read_file(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The tensors, and the description that came with them."""
    from safetensors import SafetensorError, safe_open

    with open_regular(path):  # a typed error for what is no file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise FormatError(f"{shown(path)}: expected a task model, as elmo task train writes them")
            if about.get("version") != VERSION:
                raise FormatError(f"{shown(path)}: written by another version of elmo; train it again")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 -- no mapping
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FormatError(f"{shown(path)}: no task model, or a damaged one: {error}") from error


def static_tensors(static: StaticVectors, table: Tensor, *, is_exact: bool) -> dict[str, Tensor]:
    """Words and vectors of ``table`` (word, width), halved where nothing is lost that matters."""
    raw = json.dumps(static.words, ensure_ascii=False).encode("utf-8", "surrogatepass")
    halved = table.half()
    is_exact = is_exact or not torch.isfinite(halved).all()
    return {
        _STATIC_WORDS: torch.frombuffer(bytearray(raw), dtype=torch.uint8),
        _STATIC_VECTORS: table if is_exact else halved,
    }


def take_static(tensors: dict[str, Tensor]) -> StaticVectors | None:
    """What ``static_tensors`` made, taken out of ``tensors``; the network's table comes in its place."""
    if _STATIC_WORDS not in tensors:
        return None
    words = json.loads(tensors.pop(_STATIC_WORDS).numpy().tobytes().decode("utf-8", "surrogatepass"))
    vectors = tensors.pop(_STATIC_VECTORS).float().numpy()
    # the first two rows are of padding and of words without a vector
    if not isinstance(words, list) or vectors.ndim != 2 or len(vectors) != len(words) + 2:
        raise ValueError(f"{len(words)} words with vectors of shape {vectors.shape}")
    tensors[TABLE] = torch.from_numpy(np.ascontiguousarray(vectors))
    return StaticVectors(tuple(map(str, words)), vectors[2:])
