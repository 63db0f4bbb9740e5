"""Read the folder of a bilm-tf training run (options, checkpoint, vocabulary) without TensorFlow.

Unlike published HDF5 files, a checkpoint contains the softmax, which is read too; the optimizer's slots are not.
The vocabulary is optional unless the model reads words. Checkpoints are next to the options, or below ``saves``, as
DeepPavlov writes them.

Variables are identified by their *role*: the name of the same weights in bilm-tf's HDF5 files (``bilm_layout``).
Variables of the token layer have that name in checkpoints too; the names of LSTM variables depend on the version
of TensorFlow. ``tf_hub`` uses the same functions for its variables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_layout import Array, Shape, cell_group, dataset_shapes, read_options, to_parameters
from elmo.formats.containers.tf_checkpoint import Bundle, read_index
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage.files import find_member, format_path, list_names, read_bytes, read_lines
from elmo.text.ids import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

NAME = "bilm-tf checkpoint"
_SCOPE = "lm/"
_STATE = "checkpoint"  # the file in which TensorFlow's Saver lists its checkpoints
_STATE_LIMIT = 1 << 16
_SAVES = "saves"  # DeepPavlov's folder of checkpoints
_MAX_SAVES = 1000  # checkpoint folders below it
_SAVES_DEPTH = 3  # saves/epochs/3


def can_read(folder: Path) -> bool:
    """Return whether the folder contains the index and a data file of a checkpoint."""
    return bool(_prefixes(folder)) or (_find_saves(folder) is not None and _options_name(folder) is not None)


def read(folder: Path) -> Pretrained:
    """Read the latest checkpoint with its softmax and vocabulary; report all mismatches at once."""
    options = read_options(find_member(folder, _options_name(folder) or "options.json"))
    vocab_name = _find_file(folder, r"(?i:.*vocab.*)\.txt", "vocab.txt")
    saves = None if _prefixes(folder) else _find_saves(folder)
    prefix = find_latest(folder) if saves is None else f"{saves}/{find_latest(folder / saves)}"
    subject = format_path(folder / prefix)
    bundle = read_index(folder, prefix)
    try:
        variables = assign_roles(bundle.names, scope=_SCOPE)
    except FormatError as error:
        raise FormatError(f"{subject}: {error}") from error
    softmax = {role: variables.pop(role) for role in _SOFTMAX if role in variables}
    config = options.config(n_words=None if options.chars else _n_words(bundle, variables, subject))
    if "softmax/b" in softmax and config.words:
        softmax.setdefault("softmax/W", variables["embedding"])  # share_embedding_softmax
    problems = find_mismatches(bundle, variables, dataset_shapes(config))
    if softmax:
        rows = next(iter(bundle.shapes[next(iter(softmax.values()))]), 0)
        expected = {"softmax/W": (rows, config.lstm.state_width), "softmax/b": (rows,)}
        problems += find_mismatches(bundle, softmax, expected)
    raise_all(problems, subject=subject)
    return Pretrained(
        config=config,
        weights=read_weights(bundle, variables),
        format=NAME,
        vocab=Vocabulary.from_lines(read_lines(find_member(folder, vocab_name))) if vocab_name else None,
        softmax=_read_softmax(bundle, softmax) if softmax else None,
        metadata={"training": dict(options.training), "checkpoint": prefix, **_read_progress(bundle)},
    )


def find_latest(folder: Path) -> str:
    """Return the prefix of the latest checkpoint: the one that TensorFlow recorded, or else that of the highest step.

    Only the last part of the recorded path is used, because it is often an absolute path on another computer.
    """
    prefixes = _prefixes(folder)
    if _STATE not in list_names(folder):
        if not prefixes:
            raise FormatError(f"{format_path(folder)}: expected a TensorFlow checkpoint (.index and .data), found none")
        numbers = {prefix: re.search(r"-(\d{1,18})$", prefix) for prefix in prefixes}
        steps = sorted((int(number[1]) if number else -1, prefix) for prefix, number in numbers.items())
        if len(steps) > 1 and steps[-1][0] == steps[-2][0]:
            raise FormatError(
                f"{format_path(folder)}: expected one latest checkpoint, found "
                f"{format_path(steps[-2][1])} and {format_path(steps[-1][1])}"
            )
        return steps[-1][1]
    path = find_member(folder, _STATE)
    record = read_bytes(path, _STATE_LIMIT).decode("utf-8", "replace")
    match = re.search(r'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"([^"\n]*)"', record, re.MULTILINE)
    prefix = re.split(r"[/\\]", match[1])[-1] if match else ""
    if prefix not in prefixes:
        raise FormatError(
            f"{format_path(path)}: expected a checkpoint in this folder, such as {prefixes[0]!r:.80}, "
            f"found {prefix!r:.80}; remove this file to load the latest checkpoint"
        )
    return prefix


def _find_saves(folder: Path) -> str | None:
    """Return the folder below ``saves`` with the checkpoints; among several at the same level, that of the last epoch.

    Names are numbers of epochs; other names are only used if there is no choice.
    """
    if _SAVES not in list_names(folder):
        return None
    level = [_SAVES]
    for _ in range(_SAVES_DEPTH):
        if matches := [name for name in level if _prefixes(folder / name)]:
            numbered = {name: name.rpartition("/")[2] for name in matches}
            epochs = {name: int(end) for name, end in numbered.items() if re.fullmatch(r"[0-9]{1,9}", end)}
            if len(matches) > 1 and len(epochs) < len(matches):
                raise FormatError(
                    f"{format_path(folder / _SAVES)}: expected one folder with a checkpoint, found {matches[:5]}"
                )
            return max(matches, key=lambda name: epochs.get(name, 0))
        level = [f"{name}/{inner}" for name in level for inner in list_names(folder / name)[:_MAX_SAVES]][:_MAX_SAVES]
    return None


def _options_name(folder: Path) -> str | None:
    return _find_file(folder, r".*options\.json", "options.json")


def _prefixes(folder: Path) -> list[str]:
    """List the checkpoints that have an index and a data file."""
    names = list_names(folder)
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    return [prefix for prefix in prefixes if prefix and any(name.startswith(f"{prefix}.data-") for name in names)]


def _find_file(folder: Path, pattern: str, preferred: str) -> str | None:
    """Return the name of the file that matches the pattern; with several matches, the preferred one."""
    matches = [name for name in list_names(folder) if re.fullmatch(pattern, name)]
    if len(matches) > 1 and preferred not in matches:
        raise FormatError(
            f"{format_path(folder)}: expected one file {preferred}, found {matches[:5]}; keep one of them"
        )
    return preferred if preferred in matches else next(iter(matches), None)


def _n_words(bundle: Bundle, variables: Mapping[str, str], subject: str) -> int:
    shape = bundle.shapes[variables["embedding"]] if "embedding" in variables else ()
    if len(shape) != 2:
        raise FormatError(
            f"{subject}: expected a table {_SCOPE}embedding, because options.json has no char_cnn; found "
            f"{shape or 'none'}"
        )
    return shape[0]


def _read_softmax(bundle: Bundle, variables: Mapping[str, str]) -> SoftmaxWeights:
    import torch

    return SoftmaxWeights(*(torch.from_numpy(read_floats(bundle, variables[role])) for role in _SOFTMAX))


def _read_progress(bundle: Bundle) -> dict[str, Any]:
    """Read the training progress, if the checkpoint contains it."""
    progress: dict[str, Any] = {}
    for name, dtypes in (("global_step", ("int32", "int64")), ("train_perplexity", _FLOATS)):
        if name in bundle.entries and bundle.entries[name].dtype in dtypes and bundle.shapes[name] == ():
            value = bundle.read(name).item()
            if math.isfinite(value):
                progress[name] = value
    return progress


# --- variables and their roles -------------------------------------------------------------------

_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SOFTMAX = ("softmax/W", "softmax/b")
_TOKEN_LAYER = re.compile(
    r"char_embed|embedding|CNN/[Wb]_cnn_\d{1,4}|CNN_high_\d{1,4}/[Wb]_(carry|transform)|CNN_proj/[Wb]_proj", re.ASCII
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


def assign_roles(names: Iterable[str], *, scope: str) -> dict[str, str]:
    """Map roles to the names of the variables in ``scope``; the optimizer's slots are ignored.

    If two variables have the same role, or a variable has none, the file is another kind of model, and
    ``FormatError`` is raised.
    """
    variables: dict[str, str] = {}
    unknown: list[str] = []
    problems: list[str] = []
    for name in names:
        if not name.startswith(scope):
            continue
        role = _role(name.removeprefix(scope))
        if role is None:
            unknown.append(name)
        elif role in variables:
            problems.append(f"{variables[role]!r:.100} and {name!r:.100} both match {role}")
        else:
            variables[role] = name
    slots = tuple(f"{name}/" for name in variables.values())  # such as kernel/Adagrad
    problems += [f"unexpected variable {name!r:.100}" for name in unknown if not name.startswith(slots)]
    raise_all(problems, subject=f"variables in {scope!r}")
    return variables


def _role(name: str) -> str | None:
    """Return the role of a variable, by its name without the scope; None if it is not part of a biLM."""
    if _TOKEN_LAYER.fullmatch(name) or name in _SOFTMAX:
        return name
    part = _CELL_PART.search(name)
    directions = {0 if match[1] == "0" or match[2] else 1 for match in _DIRECTION.finditer(name)}
    layers = {int(number) for number in _LAYER.findall(name)}
    if part is None or not directions:
        return None
    if len(directions) > 1 or len(layers) > 1:
        raise FormatError(f"variable {name!r:.100}: expected one direction and one layer in its name, found several")
    # a single layer has no MultiRNNCell and no number
    return f"{cell_group(directions.pop(), layers.pop() if layers else 0)}/{part.lastgroup}"


def find_mismatches(bundle: Bundle, variables: Mapping[str, str], shapes: Mapping[str, Shape]) -> list[str]:
    """List the differences between the variables of a file and the expected shapes, both by role."""
    problems = [f"missing {role} {shape}" for role, shape in shapes.items() if role not in variables]
    problems += [f"unexpected {variables[role]!r:.100}" for role in variables if role not in shapes]
    for role, shape in shapes.items():
        if role in variables:
            name, entry = format_path(variables[role]), bundle.entries[variables[role]]
            if entry.shape != shape:
                problems.append(f"{name}: expected {shape}, found {entry.shape}")
            elif entry.dtype not in _FLOATS:
                problems.append(f"{name}: expected floating-point numbers, found {entry.dtype}")
    return problems


def read_weights(bundle: Bundle, variables: Mapping[str, str]) -> dict[str, Tensor]:
    """Read variables that ``find_mismatches`` has checked, and convert them to parameters of the biLM."""
    import torch

    weights: dict[str, Tensor] = {}
    for role, name in variables.items():
        for parameter, array in to_parameters(role, read_floats(bundle, name)).items():
            weights[parameter] = torch.from_numpy(np.ascontiguousarray(array))
    return weights


def read_floats(bundle: Bundle, name: str) -> Array:
    """Read one variable as float32."""
    with np.errstate(over="ignore"):  # a float64 outside the range of float32 becomes infinite, and is rejected later
        return bundle.read(name).astype(np.float32, copy=False)
