"""The folder of a bilm-tf training run (options, checkpoint, vocabulary) in, a model out, without TensorFlow.

The softmax, which published HDF5 files lack, is kept; what the optimiser stored beside the weights is not
read. A vocabulary is optional, unless the model reads words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_layout import shapes
from elmo.formats.containers.tf_bundle import Bundle, read_index
from elmo.formats.files import member, names, read_bytes, read_lines, shown
from elmo.formats.options import read_options
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.formats.tf_variables import FLOATS, SOFTMAX, mismatches, read_floats, read_weights, roles
from elmo.text.vocab import Vocabulary

NAME = "bilm-tf checkpoint"
_SCOPE = "lm/"
_STATE = "checkpoint"  # where TensorFlow's Saver notes the names of what it saved
_STATE_LIMIT = 1 << 16


def is_here(folder: Path) -> bool:
    """Whether the folder has the index and a data file of some checkpoint."""
    return bool(_prefixes(folder))


def latest(folder: Path) -> str:
    """The prefix of the checkpoint to read: what TensorFlow's note names, or else that of the highest step.

    Only the base name counts: notes often hold an absolute path on their author's disk.
    """
    found = _prefixes(folder)
    if _STATE not in names(folder):
        if not found:
            raise FormatError(
                f"{shown(folder)}: expected a TensorFlow checkpoint (.index and .data), found none"
            )
        steps = sorted((_step(prefix), prefix) for prefix in found)
        if len(steps) > 1 and steps[-1][0] == steps[-2][0]:
            raise FormatError(
                f"{shown(folder)}: expected one latest checkpoint, found "
                f"{shown(steps[-2][1])} and {shown(steps[-1][1])}"
            )
        return steps[-1][1]
    path = member(folder, _STATE)
    note = read_bytes(path, _STATE_LIMIT).decode("utf-8", "replace")
    named = re.search(r'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"([^"\n]*)"', note, re.MULTILINE)
    prefix = re.split(r"[/\\]", named[1])[-1] if named else ""
    if prefix not in found:
        raise FormatError(
            f"{shown(path)}: expected the name of a checkpoint in this folder, one of {found[:5]}, found "
            f"{prefix!r:.80}; remove this file to read the latest one"
        )
    return prefix


def read(folder: Path) -> Pretrained:
    """The latest checkpoint with its softmax and vocabulary; every mismatch is reported at once."""
    options = read_options(
        member(folder, _one_of(folder, r".*options\.json", "options.json") or "options.json")
    )
    vocab_name = _one_of(folder, r"(?i:.*vocab.*)\.txt", "vocab.txt")
    prefix = latest(folder)
    bundle = read_index(folder, prefix)
    try:
        by_role = roles(bundle.names, scope=_SCOPE)
    except FormatError as error:
        raise FormatError(f"{shown(folder / prefix)}: {error}") from error
    softmax = {role: by_role.pop(role) for role in SOFTMAX if role in by_role}
    config = options.config(
        n_words=None if options.chars else _n_words(bundle, by_role, shown(folder / prefix))
    )
    if "softmax/b" in softmax and config.words:
        softmax.setdefault("softmax/W", by_role["embedding"])  # share_embedding_softmax: one table for both
    problems = mismatches(bundle, by_role, shapes(config))
    if softmax:
        rows = next(iter(bundle.shapes[next(iter(softmax.values()))]), 0)
        expected = {"softmax/W": (rows, config.lstm.state_width), "softmax/b": (rows,)}
        problems += mismatches(bundle, softmax, expected)
    raise_all(problems, subject=shown(folder / prefix))
    return Pretrained(
        config=config,
        weights=read_weights(bundle, by_role),
        format=NAME,
        vocab=Vocabulary.from_lines(read_lines(member(folder, vocab_name))) if vocab_name else None,
        softmax=_read_softmax(bundle, softmax, shown(folder / prefix)) if softmax else None,
        metadata={"training": dict(options.training), "checkpoint": prefix, **_progress(bundle)},
    )


def _n_words(bundle: Bundle, by_role: Mapping[str, str], subject: str) -> int:
    shape = bundle.shapes[by_role["embedding"]] if "embedding" in by_role else ()
    if len(shape) != 2:
        raise FormatError(
            f"{subject}: expected a table {_SCOPE}embedding, as options.json has no char_cnn, found "
            f"{shape or 'none'}"
        )
    return shape[0]


def _read_softmax(bundle: Bundle, by_role: Mapping[str, str], subject: str) -> SoftmaxWeights:
    import torch

    weight, bias = (torch.from_numpy(read_floats(bundle, by_role[role])) for role in SOFTMAX)
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise FormatError(f"{subject}: {_SCOPE}softmax: holds values that are not finite")
    return SoftmaxWeights(weight, bias)


def _progress(bundle: Bundle) -> dict[str, Any]:
    """How far training had come, where the file says so."""
    found: dict[str, Any] = {}
    for name, kinds in (("global_step", ("int32", "int64")), ("train_perplexity", FLOATS)):
        if bundle.dtypes.get(name) in kinds and bundle.shapes[name] == ():
            value = bundle.read(name).item()
            if math.isfinite(value):
                found[name] = value
    return found


def _one_of(folder: Path, pattern: str, preferred: str) -> str | None:
    """The file whose name fits; the preferred name where there are several."""
    found = [name for name in names(folder) if re.fullmatch(pattern, name)]
    if len(found) > 1 and preferred not in found:
        raise FormatError(
            f"{shown(folder)}: expected one file {preferred}, found {found[:5]}; keep one of them"
        )
    return preferred if preferred in found else next(iter(found), None)


def _prefixes(folder: Path) -> list[str]:
    """Checkpoints of which the index and the first data file are there."""
    here = names(folder)
    prefixes = [name.removesuffix(".index") for name in here if name.endswith(".index")]
    return [
        prefix for prefix in prefixes if prefix and any(name.startswith(f"{prefix}.data-") for name in here)
    ]


def _step(prefix: str) -> int:
    number = re.search(r"-(\d{1,18})$", prefix)
    return int(number[1]) if number else -1
