"""PyTorch: ``export_bilm``, the network as a ``torch.export`` program that runs without this package.

For training, ``elmo.BiLm`` and ``elmo.LayerMix`` are ordinary modules; see ``examples/pytorch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, MissingExtraError
from elmo.model.bilm import BiLm, Layers
from elmo.model.lstm import LstmState, ProjectedLstm

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from elmo.embed.elmo import Elmo
    from elmo.model.mix import LayerMix

MIN_TIME = 4  # the exported loop over time needs this many tokens, including boundary tokens


def export_bilm(elmo: Elmo, *, mix: LayerMix | None = None) -> ExportedProgram:
    """Export the network for batches of any size and sentences of any length.

    The inputs of the program are the ids that ``elmo.batch`` returns: ``char_ids`` (batch, time, char), ``word_ids``
    (batch, time), or both, depending on the model. Pad them with zeros to at least two tokens and two boundary tokens.
    The program returns the vectors without boundary tokens, (batch, layer, time, width), or (batch, time, width) with a
    mix, and a mask (batch, time), which is False for padding.

    Args:
        elmo: The model, in float32 or float64.
        mix: A mix of layers to include in the program.

    Example:
        >>> program = export_bilm(elmo)  # doctest: +SKIP
        >>> torch.export.save(program, "elmo.pt2")  # doctest: +SKIP
    """
    elmo.pretrained.check_unaligned("export")
    if elmo.precision not in ("float32", "float64"):
        raise ConfigError(f"precision of the model must be float32 or float64; found {elmo.precision}")
    if mix is not None and mix.n_layers != elmo.n_layers:
        raise ConfigError(f"mix must have {elmo.n_layers} layers, as the model; found {mix.n_layers}")
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("time", min=MIN_TIME)}
    batch = elmo.batch([["two", "tokens"], ["and", "three", "more"]])
    named = {"char_ids": batch.char_ids, "word_ids": batch.word_ids}
    inputs = {name: torch.as_tensor(ids, device=elmo.device) for name, ids in named.items() if ids is not None}
    network = _ExportedNetwork(elmo.bilm, mix).eval()
    return torch.export.export(network, (), inputs, dynamic_shapes=dict.fromkeys(inputs, dims))


class _ExportedNetwork(nn.Module):
    """A biLM whose loops over time are operations of the exported graph."""

    def __init__(self, bilm: BiLm, mix: LayerMix | None) -> None:
        super().__init__()
        forward, backward = (
            nn.ModuleList(_ScanLstm(layer) if isinstance(layer, ProjectedLstm) else layer for layer in stack)
            for stack in (bilm.forward_stack, bilm.backward_stack)
        )
        self.bilm = BiLm(
            token_layer=bilm.token_layer,
            forward_stack=forward,
            backward_stack=backward,
            has_skip=bilm.has_skip,
            has_positions=bilm.has_positions,
        )
        self.mix = mix

    def forward(self, char_ids: Tensor | None = None, word_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        layers: Layers = self.bilm(char_ids, word_ids).layers.without_boundaries()
        return (layers.states if self.mix is None else self.mix(layers)), layers.mask


class _ScanLstm(nn.Module):
    """``ProjectedLstm`` with ``scan`` as the loop over time; an ordinary loop is exported for one length only."""

    def __init__(self, lstm: ProjectedLstm) -> None:
        super().__init__()
        self.lstm = lstm

    @property
    def state_widths(self) -> tuple[int, int]:
        return self.lstm.state_widths

    def forward(self, inputs: Tensor, mask: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        try:
            from torch._higher_order_ops.scan import scan  # not public yet
        except ImportError as error:
            raise MissingExtraError(
                "export_bilm", extra="all", expected="a PyTorch with torch.export and scan", found=torch.__version__
            ) from error
        lstm = self.lstm
        gates = F.linear(inputs, lstm.input_weight, lstm.bias)  # (batch, time, 4 · cell)

        def step(carried: tuple[Tensor, Tensor], token: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
            (hidden, cell), (token_gates, is_token) = carried, token
            new = lstm.step(token_gates, LstmState(hidden, cell))
            kept = torch.where(is_token, new.hidden, hidden), torch.where(is_token, new.cell, cell)
            return kept, torch.where(is_token, new.hidden, 0)

        (hidden, cell), outputs = scan(
            step,
            (state.hidden.contiguous(), state.cell.contiguous()),
            (gates.transpose(0, 1).contiguous(), mask.t()[:, :, None].contiguous()),
        )
        return outputs.transpose(0, 1), LstmState(hidden, cell)
