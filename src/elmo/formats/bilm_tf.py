"""The TensorFlow variables of a biLM in, our parameters out: which variable is which, and whether all fit.

A *role* is the name that a variable has in published HDF5 files (``elmo.formats.bilm_layout``). Variables of
the token layer are called so in checkpoints too; those of the LSTMs were renamed by one TensorFlow after
another.

The folder of a bilm-tf training run (options, checkpoint, vocabulary) in, a model out, without TensorFlow.

The softmax, which published HDF5 files lack, is kept; what the optimiser stored beside the weights is not
read. A vocabulary is optional, unless the model reads words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_layout import cell_group, shapes, to_parameters
from elmo.formats.containers.tf_checkpoint import Bundle, read_index
from elmo.formats.options_json import read_options
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage.files import member, names, read_bytes, read_lines, shown
from elmo.text.ids import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


FLOATS = ("float32", "float16", "bfloat16", "float64")
SOFTMAX = ("softmax/W", "softmax/b")
_TOKEN_LAYER = re.compile(
    r"char_embed|embedding|CNN/[Wb]_cnn_\d{1,4}|CNN_high_\d{1,4}/[Wb]_(carry|transform)|CNN_proj/[Wb]_proj",
    re.ASCII,
)
_DIRECTION = re.compile(
    r"(?:(?<=/)|^)RNN_([01])(?=/)|(?:(?<=/)|(?<=_)|^)(?:(forward|fw)|(backward|bw))(?=[/_])", re.IGNORECASE
)
_LAYER = re.compile(r"(?:(?<=/)|(?<=_)|^)(?:cell|layer)_?(\d{1,4})(?=/)", re.IGNORECASE | re.ASCII)
# kernel and bias since TensorFlow 1.2, weights and biases in 1.0 and 1.1, W_0 and B before
_CELL_PART = re.compile(
    r"/(?:(?P<W_P_0>projection/(?:kernel|weights)|W_P_0)|(?P<W_0>kernel|weights|W_0)|(?P<B>bias(?:es)?|B))$",
    re.IGNORECASE,
)


def role_of(name: str) -> str | None:
    """What a variable is for, by its name without the model's scope; None when it is no part of a biLM."""
    if _TOKEN_LAYER.fullmatch(name) or name in SOFTMAX:
        return name
    part = _CELL_PART.search(name)
    directions = {0 if match[1] == "0" or match[2] else 1 for match in _DIRECTION.finditer(name)}
    layers = {int(number) for number in _LAYER.findall(name)}
    if part is None or not directions:
        return None
    if len(directions) > 1 or len(layers) > 1:
        raise FormatError(
            f"variable {name!r:.100}: expected one direction and one layer in its name, found several"
        )
    # One layer alone stands in no MultiRNNCell and has no number.
    return f"{cell_group(directions.pop(), layers.pop() if layers else 0)}/{part.lastgroup}"


def roles(names: Iterable[str], *, scope: str) -> dict[str, str]:
    """Role to name, of every variable in ``scope``; what an optimiser keeps beside a variable is left out.

    Two variables of one role, and variables of no role, are refused: the file is of another kind of model.
    """
    found: dict[str, str] = {}
    unknown: list[str] = []
    problems: list[str] = []
    for name in names:
        if not name.startswith(scope):
            continue
        role = role_of(name.removeprefix(scope))
        if role is None:
            unknown.append(name)
        elif role in found:
            problems.append(f"{found[role]!r:.100} and {name!r:.100} both look like {role}")
        else:
            found[role] = name
    slots = tuple(f"{name}/" for name in found.values())  # such as kernel/Adagrad
    problems += [f"unexpected variable {name!r:.100}" for name in unknown if not name.startswith(slots)]
    raise_all(problems, subject=f"variables in {scope!r}")
    return found


def mismatches(bundle: Bundle, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Where the variables of a file are not those of ``shapes`` (by role), each in a few words."""
    problems = [f"missing {role} {shape}" for role, shape in shapes.items() if role not in names]
    problems += [f"unexpected {names[role]!r:.100}" for role in names if role not in shapes]
    for role, shape in shapes.items():
        if role in names:
            entry = bundle.entries[names[role]]
            if entry.shape != shape:
                problems.append(f"{shown(names[role])}: expected {shape}, found {entry.shape}")
            elif entry.dtype not in FLOATS:
                problems.append(f"{shown(names[role])}: expected floating-point numbers, found {entry.dtype}")
    return problems


def read_floats(bundle: Bundle, name: str) -> NDArray[np.float32]:
    """One variable as float32."""
    with np.errstate(
        over="ignore"
    ):  # a float64 beyond float32 becomes infinite, and is refused as such later
        return bundle.read(name).astype(np.float32, copy=False)


def read_weights(bundle: Bundle, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Our parameters, from variables that ``mismatches`` has passed."""
    import torch

    weights: dict[str, Tensor] = {}
    for role, name in names.items():
        for parameter, array in to_parameters(role, read_floats(bundle, name)).items():
            weights[parameter] = torch.from_numpy(np.ascontiguousarray(array))
    return weights


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
