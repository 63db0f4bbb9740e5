"""Read a TF-Hub elmo module or SavedModel folder without TensorFlow.

No public source confirms the names of the LSTM variables in ``google/elmo/2`` and ``/3``. So names are
matched by what all likely layouts share (a direction, a layer number, and kernel, bias or projection at the
end), shapes must be consistent, and ambiguous files are rejected. This reader has been tested only on generated
files with such names. The graph (``saved_model.pb``) is not read: sizes are derived from the shapes; clipping, skip
connections and activation are those of every English biLM published with bilm-tf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.errors import FormatError, raise_all
from elmo.formats.bilm_checkpoint import assign_roles, find_mismatches, read_floats, read_weights
from elmo.formats.bilm_layout import N_CHARACTERS, Shape, cell_group, dataset_shapes
from elmo.formats.containers.tf_checkpoint import Bundle, read_index
from elmo.formats.pretrained import MixWeights, Pretrained
from elmo.storage.files import format_path, list_names

NAME = "TF-Hub module"
_PREFIX = "variables/variables"
_GRAPHS = {"saved_model.pb", "tfhub_module.pb"}


def can_read(folder: Path) -> bool:
    """Return whether the folder contains a graph and variables."""
    return bool(_GRAPHS & set(list_names(folder))) and "variables.index" in list_names(folder / "variables")


def read(folder: Path) -> Pretrained:
    """Read the model with its fixed layer mix; report all mismatches at once."""
    bundle, subject = read_index(folder, _PREFIX), format_path(folder)
    try:
        scope = _find_scope(bundle)
        variables = _count_layers_from_zero(assign_roles(bundle.names, scope=scope))
        config = _infer_config(bundle, variables)
        mix = _find_mix(bundle)
    except FormatError as error:
        raise FormatError(f"{subject}: {error}") from error
    problems = find_mismatches(bundle, variables, dataset_shapes(config))
    if mix:
        problems += find_mismatches(bundle, mix, {"weights": (config.n_layers,), "scaling": ()})
    raise_all(problems, subject=subject)
    return Pretrained(
        config=config,
        weights=read_weights(bundle, variables),
        format=NAME,
        mix=_read_mix(bundle, mix) if mix else None,
        metadata={"scope": scope.rstrip("/")},
    )


def _find_scope(bundle: Bundle) -> str:
    """Return the prefix of the names of the biLM's variables, such as ``bilm/`` or ``module/bilm/``."""
    matches = [name for name in bundle.names if name.rpartition("/")[2] == "char_embed"]
    if len(matches) != 1:
        raise FormatError(f"expected one variable char_embed, found {matches[:5] or bundle.names[:5]}")
    return matches[0].removesuffix("char_embed")


def _count_layers_from_zero(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the same variables, with LSTM layers numbered from 0 if the file numbers them from 1."""
    cells = [match for role in variables if (match := re.fullmatch(r"(RNN_.*/Cell)(\d+)(/.*)", role))]
    if not cells or min(int(match[2]) for match in cells) != 1:
        return dict(variables)
    renamed = {match[0]: f"{match[1]}{int(match[2]) - 1}{match[3]}" for match in cells}
    return {renamed.get(role, role): name for role, name in variables.items()}


def _infer_config(bundle: Bundle, variables: Mapping[str, str]) -> BiLmConfig:
    """Derive the sizes from the shapes; everything else is as in every published English biLM."""

    def shape(role: str, n_axes: int) -> Shape:
        if role not in variables:
            raise FormatError(f"expected a variable for {role}, found none among {len(bundle.names)} variables")
        shape = bundle.shapes[variables[role]]
        if len(shape) != n_axes:
            raise FormatError(f"{format_path(variables[role])}: expected {n_axes} axes, found shape {shape}")
        return shape

    n_characters, char_width = shape("char_embed", 2)
    if n_characters != N_CHARACTERS:
        name = format_path(variables["char_embed"])
        raise FormatError(f"{name}: expected {N_CHARACTERS} rows, found {n_characters}")
    n_filters = sum(role.startswith("CNN/W_cnn_") for role in variables)
    filters = [shape(f"CNN/W_cnn_{i}", 4) for i in range(n_filters)]
    rows, columns = shape(f"{cell_group(0, 0)}/W_0", 2)
    return BiLmConfig(
        chars=CharCnnConfig(
            char_width=char_width,
            filters=tuple((width, count) for _, width, _, count in filters),
            n_highway=sum(role.startswith("CNN_high_") and role.endswith("/W_carry") for role in variables),
        ),
        words=None,
        encoder=LstmConfig(
            n_layers=sum(role.startswith("RNN_0/") and role.endswith("/W_0") for role in variables),
            cell_width=columns // 4,
            state_width=rows // 2,
        ),
    )


def _find_mix(bundle: Bundle) -> dict[str, str]:
    """Return the names of the two variables of the mix, in any scope; an empty dict if the module has no mix."""
    matches = {
        part: [name for name in bundle.names if f"/{name}".endswith(f"/aggregation/{part}")]
        for part in ("weights", "scaling")
    }
    if not any(matches.values()):
        return {}
    if any(len(names) != 1 for names in matches.values()):
        raise FormatError(f"expected one aggregation/weights and one aggregation/scaling, found {matches}")
    return {part: names[0] for part, names in matches.items()}


def _read_mix(bundle: Bundle, mix: Mapping[str, str]) -> MixWeights:
    weights, gamma = (read_floats(bundle, mix[part]) for part in ("weights", "scaling"))
    return MixWeights(tuple(weights.tolist()), gamma.item())
