"""The TensorFlow variables of a biLM in, our parameters out: which variable is which, and whether all fit.

A *role* is the name that a variable has in published HDF5 files (``elmo.formats.bilm_layout``). Variables of
the token layer are called so in checkpoints too; those of the LSTMs were renamed by one TensorFlow after
another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_layout import cell_group, to_parameters
from elmo.formats.containers.tf_bundle import Bundle
from elmo.formats.files import shown

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
