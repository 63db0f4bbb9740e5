"""A TF-Hub elmo module or SavedModel folder in, a model out, without TensorFlow.

The names of the LSTMs' variables in ``google/elmo/2`` and ``/3`` are not confirmed by any public source. So
names are matched by what every likely layout has in common (a direction, a layer's number, and kernel, bias
or projection at the end), shapes must agree with one another, and what is ambiguous is refused. This reader
is tested on files of that layout only. The graph itself (``saved_model.pb``) is not read: sizes come from the
shapes; clips, skip connections and activation are those of every English biLM published with bilm-tf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_layout import cell_group, shapes
from elmo.formats.bilm_tf import mismatches, read_floats, read_weights, roles
from elmo.formats.containers.tf_checkpoint import Bundle, read_index
from elmo.formats.pretrained import MixWeights, Pretrained
from elmo.storage.files import names, shown
from elmo.text.ids import N_BYTE_CHARACTERS

NAME = "TF-Hub module"
_PREFIX = "variables/variables"
_GRAPHS = {"saved_model.pb", "tfhub_module.pb"}


def is_here(folder: Path) -> bool:
    """Whether the folder has a graph and, beside it, variables."""
    return bool(_GRAPHS & set(names(folder))) and "variables.index" in names(folder / "variables")


def read(folder: Path) -> Pretrained:
    """The model with its fixed mix of layers; every mismatch is reported at once."""
    bundle = read_index(folder, _PREFIX)
    try:
        scope = _scope(bundle)
        by_role = _from_zero(roles(bundle.names, scope=scope))
        config = _config(bundle, by_role)
        mix = _mix_names(bundle)
    except FormatError as error:
        raise FormatError(f"{shown(folder)}: {error}") from error
    problems = mismatches(bundle, by_role, shapes(config))
    if mix:
        problems += mismatches(bundle, mix, {"weights": (config.n_layers,), "scaling": ()})
    raise_all(problems, subject=shown(folder))
    return Pretrained(
        config=config,
        weights=read_weights(bundle, by_role),
        format=NAME,
        mix=_read_mix(bundle, mix, shown(folder)) if mix else None,
        metadata={"scope": scope.rstrip("/")},
    )


def _scope(bundle: Bundle) -> str:
    """The path in front of the biLM's variables, such as ``bilm/`` or ``module/bilm/``."""
    found = [name for name in bundle.names if name.rpartition("/")[2] == "char_embed"]
    if len(found) != 1:
        raise FormatError(f"expected one variable char_embed, found {found[:5] or bundle.names[:5]}")
    return found[0].removesuffix("char_embed")


def _from_zero(by_role: Mapping[str, str]) -> dict[str, str]:
    """The same, with the LSTM layers counted from 0 where the file counts from 1."""
    cells = [match for role in by_role if (match := re.fullmatch(r"(RNN_.*/Cell)(\d+)(/.*)", role))]
    if not cells or min(int(match[2]) for match in cells) != 1:
        return dict(by_role)
    renamed = {match[0]: f"{match[1]}{int(match[2]) - 1}{match[3]}" for match in cells}
    return {renamed.get(role, role): name for role, name in by_role.items()}


def _config(bundle: Bundle, by_role: Mapping[str, str]) -> BiLmConfig:
    """The sizes that the shapes tell; clips, skips and the rest are those of every published English biLM."""

    def shape(role: str, n_axes: int) -> tuple[int, ...]:
        if role not in by_role:
            raise FormatError(f"expected a variable for {role}, found none among {len(bundle.names)}")
        found = bundle.entries[by_role[role]].shape
        if len(found) != n_axes:
            raise FormatError(f"{shown(by_role[role])}: expected {n_axes} axes, found shape {found}")
        return found

    n_characters, char_width = shape("char_embed", 2)
    if n_characters != N_BYTE_CHARACTERS:
        raise FormatError(
            f"{shown(by_role['char_embed'])}: expected {N_BYTE_CHARACTERS} rows, found {n_characters}"
        )
    n_filters = sum(role.startswith("CNN/W_cnn_") for role in by_role)
    filters = [shape(f"CNN/W_cnn_{i}", 4) for i in range(n_filters)]
    rows, columns = shape(f"{cell_group(0, 0)}/W_0", 2)
    return BiLmConfig(
        chars=CharCnnConfig(
            char_width=char_width,
            filters=tuple((width, count) for _, width, _, count in filters),
            n_highway=sum(role.startswith("CNN_high_") and role.endswith("/W_carry") for role in by_role),
        ),
        words=None,
        lstm=LstmConfig(
            n_layers=sum(role.startswith("RNN_0/") and role.endswith("/W_0") for role in by_role),
            cell_width=columns // 4,
            state_width=rows // 2,
        ),
    )


def _mix_names(bundle: Bundle) -> dict[str, str]:
    """The two variables of the mix, wherever their scope is; nothing when the module has none."""
    found = {
        part: [name for name in bundle.names if f"/{name}".endswith(f"/aggregation/{part}")]
        for part in ("weights", "scaling")
    }
    if not any(found.values()):
        return {}
    if any(len(some) != 1 for some in found.values()):
        raise FormatError(f"expected one aggregation/weights and one aggregation/scaling, found {found}")
    return {part: some[0] for part, some in found.items()}


def _read_mix(bundle: Bundle, mix: Mapping[str, str], subject: str) -> MixWeights:
    weights, gamma = (read_floats(bundle, mix[part]) for part in ("weights", "scaling"))
    found = MixWeights(tuple(float(share) for share in weights), float(gamma))
    if not all(math.isfinite(value) for value in (*found.weights, found.gamma)):
        raise FormatError(
            f"{subject}: {shown(mix['weights'])} or its scaling holds values that are not finite"
        )
    return found
