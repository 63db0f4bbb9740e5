"""The bidirectional language model (biLM) of ELMo, which computes the states of all layers from token ids.

A token layer computes one vector per token. Two stacks of LSTM layers read these vectors, one from left to
right and one from right to left (Peters et al. 2018). A transformer ELMo has stacks of transformer layers instead
(Peters et al. 2018b).

``BiLm.forward`` is the definition of the network. ``elmo.engine`` computes the same layers faster, with the
weights of a ``BiLm``; encoding, prediction and training run through the engine. Use ``BiLm`` directly to
study or change the network, to backpropagate through all layers, or to run it on another device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor, nn

from elmo.config import BiLmConfig, TransformerConfig
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.token_layer import CharCnn, IdEmbedding, TokenLayer
from elmo.model.transformer import LayerNorm, TransformerLayer, encode_positions


@dataclass(frozen=True)
class Layers:
    """The states of all layers for a batch of sentences.

    Layer 0 is the token layer, concatenated with itself to have the width of the other layers; layer l is
    ``[forward_l; backward_l]``. The states of padding are zero.

    Attributes:
        states: States, (batch, layer, time, width).
        mask: True for tokens and boundaries, False for padding, (batch, time).
        has_boundaries: Whether the states include those of the boundaries ``<S>`` and ``</S>``.

    Example:
        >>> layers = elmo.bilm(torch.from_numpy(elmo.batch([["The", "bank"], ["Yes"]]).char_ids)).layers
        >>> layers.mask.tolist()  # with the boundaries
        [[True, True, True, True], [True, True, True, False]]
        >>> layers.without_boundaries().lengths.tolist()
        [2, 1]
    """

    states: Tensor
    mask: Tensor
    has_boundaries: bool = True

    @property
    def lengths(self) -> Tensor:
        """Number of tokens in each sentence, (batch,), including boundary tokens that were not removed."""
        return self.mask.sum(dim=1)

    def without_boundaries(self) -> Layers:
        """Return the layers without the boundary tokens at the start and the end of each sentence."""
        if not self.has_boundaries:
            return self
        mask = self.mask[:, 2:]  # True for n tokens of a sentence with n tokens and two boundaries
        states = torch.where(mask[:, None, :, None], self.states[:, :, 1:-1], 0)
        return Layers(states, mask, has_boundaries=False)


@dataclass(frozen=True)
class BiLmState:
    """The recurrent state of both stacks of layers, before or after a sentence; that of a transformer has no width.

    Attributes:
        hidden: Hidden states, (direction, layer, batch, width).
        cell: Cells, (direction, layer, batch, cell).
    """

    hidden: Tensor
    cell: Tensor

    def at(self, direction: int, layer: int) -> LstmState:
        """Return the state of one LSTM layer; ``direction`` is 0 for forward, 1 for backward."""
        return LstmState(self.hidden[direction, layer], self.cell[direction, layer])

    def select_rows(self, rows: slice) -> BiLmState:
        """The state of some rows of the batch, as a view."""
        return BiLmState(self.hidden[:, :, rows], self.cell[:, :, rows])

    @classmethod
    def stack(cls, directions: list[list[LstmState]]) -> BiLmState:
        """Combine the states of single LSTM layers; ``directions`` has one list of layers per direction."""
        return cls(
            hidden=torch.stack([torch.stack([layer.hidden for layer in stack]) for stack in directions]),
            cell=torch.stack([torch.stack([layer.cell for layer in stack]) for stack in directions]),
        )


@dataclass(frozen=True)
class BiLmOutput:
    """The layers of a batch, including boundary tokens, and the state after the last token of each row.

    Attributes:
        layers: The states of all layers.
        state: The recurrent state after the last token of each row.
    """

    layers: Layers
    state: BiLmState


class BiLm(nn.Module):
    """A forward and a backward language model that share one token layer.

    The recurrent state is an argument and a result of a call, and not an attribute of the module.

    Example:
        >>> ids = torch.from_numpy(elmo.batch([["The", "bank"], ["Yes"]]).char_ids)
        >>> elmo.bilm(ids).layers.without_boundaries().states.shape == (2, elmo.n_layers, 2, elmo.width)
        True
    """

    def __init__(
        self,
        *,
        token_layer: TokenLayer,
        forward_stack: nn.ModuleList,
        backward_stack: nn.ModuleList,
        has_skip: bool,
        has_positions: bool = False,
    ) -> None:
        """Build a biLM from its parts.

        Args:
            token_layer: The layer that both directions share.
            forward_stack: Layers that read from left to right.
            backward_stack: Layers that read from right to left.
            has_skip: Whether the input of each layer but the first is added to its output.
            has_positions: Whether positions are added to the input of the first layer, as transformers need.
        """
        super().__init__()
        self.token_layer = token_layer
        self.forward_stack = forward_stack
        self.backward_stack = backward_stack
        self.has_skip = has_skip
        self.has_positions = has_positions

    @classmethod
    def from_config(cls, config: BiLmConfig) -> Self:
        """Build a biLM with the architecture of ``config`` and random weights."""
        chars, words, encoder = config.chars, config.words, config.encoder
        cnn = word_embed = projection = None
        token_width = 0
        if words is not None:
            word_embed = IdEmbedding(words.n_words, words.word_width)
            token_width += words.word_width
        if chars is not None:
            cnn = CharCnn(
                n_characters=chars.n_characters,
                char_width=chars.char_width,
                filters=chars.filters,
                n_highway=chars.n_highway,
                activation=chars.activation,
                highway_width=chars.highway_width,
            )
            token_width += chars.width
        if config.has_token_projection:
            projection = nn.Linear(token_width, encoder.state_width)
        norm = LayerNorm(encoder.state_width) if chars is not None and chars.has_norm else None

        def build_layer(number: int) -> nn.Module:
            if isinstance(encoder, TransformerConfig):
                return TransformerLayer(
                    width=encoder.state_width,
                    n_heads=encoder.n_heads,
                    feed_forward_width=encoder.feed_forward_width,
                    is_last=number == encoder.n_layers - 1,
                )
            return ProjectedLstm(
                input_width=encoder.state_width,
                state_width=encoder.state_width,
                cell_width=encoder.cell_width,
                cell_clip=encoder.cell_clip,
                state_clip=encoder.state_clip,
                forget_bias=encoder.forget_bias,
            )

        return cls(
            token_layer=TokenLayer(cnn=cnn, word_embed=word_embed, projection=projection, norm=norm),
            forward_stack=nn.ModuleList(build_layer(number) for number in range(encoder.n_layers)),
            backward_stack=nn.ModuleList(build_layer(number) for number in range(encoder.n_layers)),
            has_skip=not isinstance(encoder, TransformerConfig) and encoder.has_skip,
            has_positions=isinstance(encoder, TransformerConfig),
        )

    def forward(
        self,
        char_ids: Tensor | None = None,
        word_ids: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        state: BiLmState | None = None,
    ) -> BiLmOutput:
        """Compute all layers for a padded batch of sentences, including their boundary tokens.

        Args:
            char_ids: Character ids (batch, time, char), if the model reads characters.
            word_ids: Word ids (batch, time), if the model reads words.
            lengths: Number of tokens in each row, (batch,). Default: tokens whose ids are all zero are padding.
            state: The state before the first token. Default: all zeros.
        """
        for name, values in (("char_ids", char_ids), ("word_ids", word_ids), ("lengths", lengths)):
            if values is not None and not isinstance(values, Tensor):
                kind = type(values).__name__
                raise ShapeError(f"{name} must be a tensor, such as torch.as_tensor({name}); found {kind}")
        if lengths is None:
            if char_ids is not None:
                lengths = (char_ids > 0).any(dim=2).sum(dim=1)
            elif word_ids is not None:
                lengths = (word_ids > 0).sum(dim=1)
            else:
                raise ShapeError("cannot run the network: pass char_ids, word_ids or both")
        return self.contextualize(self.token_layer(char_ids, word_ids), lengths, state=state)

    if TYPE_CHECKING:  # torch declares that calling a module returns Any

        def __call__(
            self,
            char_ids: Tensor | None = None,
            word_ids: Tensor | None = None,
            *,
            lengths: Tensor | None = None,
            state: BiLmState | None = None,
        ) -> BiLmOutput:
            """Run ``forward``."""
            ...

    def contextualize(self, tokens: Tensor, lengths: Tensor, *, state: BiLmState | None = None) -> BiLmOutput:
        """Compute all layers from token vectors (batch, time, width) and the number of tokens per row, (batch,)."""
        batch, time, _ = tokens.shape
        if lengths.shape != (batch,):
            raise ShapeError(f"lengths must have shape ({batch},); found {tuple(lengths.shape)}")
        if state is None:
            state = self.zero_state(batch)
        elif state.hidden.shape[1:3] != (len(self.forward_stack), batch):
            raise ShapeError(
                f"state must have {len(self.forward_stack)} layers and {batch} rows; "
                f"found {state.hidden.size(1)} layers and {state.hidden.size(2)} rows"
            )
        steps = torch.arange(time, device=tokens.device)
        mask = steps < lengths[:, None]  # (batch, time)
        # This index reverses the tokens of each row and leaves its padding at the end.
        reversal = torch.where(mask, lengths[:, None] - 1 - steps, steps)  # (batch, time)
        tokens = torch.where(mask[:, :, None], tokens, 0)
        inputs = tokens + encode_positions(time, like=tokens) if self.has_positions else tokens

        forward, forward_states = self._run_stack(self.forward_stack, inputs, mask, state=state, direction=0)
        backward, backward_states = self._run_stack(
            self.backward_stack, _take(inputs, reversal), mask, state=state, direction=1
        )
        layers = [torch.cat([tokens, tokens], dim=2)]  # (batch, time, 2 · width) each
        for left_to_right, right_to_left in zip(forward, backward, strict=True):
            layers.append(torch.cat([left_to_right, _take(right_to_left, reversal)], dim=2))
        return BiLmOutput(
            layers=Layers(torch.stack(layers, dim=1), mask),  # (batch, layer, time, 2 · width)
            state=BiLmState.stack([forward_states, backward_states]),
        )

    def zero_state(self, batch: int) -> BiLmState:
        """Return a state of zeros with ``batch`` rows."""
        weight, n_layers = next(self.forward_stack.parameters()), len(self.forward_stack)
        hidden, cell = cast("ProjectedLstm | TransformerLayer", self.forward_stack[0]).state_widths
        return BiLmState(
            hidden=weight.new_zeros(2, n_layers, batch, hidden), cell=weight.new_zeros(2, n_layers, batch, cell)
        )

    def _run_stack(
        self, stack: nn.ModuleList, inputs: Tensor, mask: Tensor, *, state: BiLmState, direction: int
    ) -> tuple[list[Tensor], list[LstmState]]:
        """Run one direction; return the output (batch, time, width) and the last state of each layer."""
        outputs: list[Tensor] = []
        states: list[LstmState] = []
        for index, layer in enumerate(stack):
            output, last = layer(inputs, mask, state.at(direction, index))
            if self.has_skip and index > 0:
                output = output + inputs  # the recurrent state does not include the skip connection
            outputs.append(output)
            states.append(last)
            inputs = output
        return outputs, states


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Return x[b, index[b, t]] for each b and t; x is (batch, time, width), index is (batch, time)."""
    return x.gather(1, index[:, :, None].expand_as(x))
