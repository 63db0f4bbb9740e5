"""All layers of a biLM for a batch of sentences, with the mask that says which tokens are true.

Token ids in, all layers out: a token layer under a forward and a backward stack of LSTMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor, nn

from elmo.config import BiLmConfig
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.token_layer import CharCnn, IdEmbedding, TokenLayer


@dataclass(frozen=True)
class Layers:
    """Layer 0 is the token layer, doubled; layer l is [forward_l; backward_l]. Padding is zero."""

    states: Tensor  # (batch, layer, time, width)
    mask: Tensor  # (batch, time), True for true tokens, the boundaries among them
    has_boundaries: bool = True

    @property
    def lengths(self) -> Tensor:
        """True tokens of each sentence, (batch,)."""
        return self.mask.sum(dim=1)

    def without_boundaries(self) -> Layers:
        """The same sentences without the tokens that open and close them."""
        if not self.has_boundaries:
            return self
        mask = self.mask[:, 2:]  # a sentence of n tokens and two boundaries has n true tokens left
        states = torch.where(mask[:, None, :, None], self.states[:, :, 1:-1], 0)
        return Layers(states, mask, has_boundaries=False)


@dataclass(frozen=True)
class BiLmState:
    """The recurrent state of both stacks: what a sentence starts from, and what it leaves behind."""

    hidden: Tensor  # (direction, layer, batch, width)
    cell: Tensor  # (direction, layer, batch, cell)

    def at(self, direction: int, layer: int) -> LstmState:
        """The state of one LSTM layer."""
        return LstmState(self.hidden[direction, layer], self.cell[direction, layer])


@dataclass(frozen=True)
class BiLmOutput:
    """Layers of a batch, boundaries included, and the state after each row's last token."""

    layers: Layers
    state: BiLmState


class BiLm(nn.Module):
    """Two language models, one reading forward and one backward, over one shared token layer.

    State is an argument and a result: the same call gives the same vectors, whatever came before.
    """

    def __init__(
        self,
        *,
        token_layer: TokenLayer,
        forward_stack: nn.ModuleList,
        backward_stack: nn.ModuleList,
        has_skip: bool,
    ) -> None:
        super().__init__()
        self.token_layer = token_layer
        self.forward_stack = forward_stack
        self.backward_stack = backward_stack
        self.has_skip = has_skip

    @classmethod
    def from_config(cls, config: BiLmConfig) -> Self:
        """A biLM of that shape, with random weights."""
        chars, words, lstm = config.chars, config.words, config.lstm
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
            )
            token_width += chars.n_filters
        if config.has_token_projection:
            projection = nn.Linear(token_width, lstm.state_width)

        def stack() -> nn.ModuleList:
            return nn.ModuleList(
                ProjectedLstm(
                    input_width=lstm.state_width,
                    state_width=lstm.state_width,
                    cell_width=lstm.cell_width,
                    cell_clip=lstm.cell_clip,
                    state_clip=lstm.state_clip,
                    forget_bias=lstm.forget_bias,
                )
                for _ in range(lstm.n_layers)
            )

        return cls(
            token_layer=TokenLayer(cnn=cnn, word_embed=word_embed, projection=projection),
            forward_stack=stack(),
            backward_stack=stack(),
            has_skip=lstm.has_skip,
        )

    def forward(
        self,
        char_ids: Tensor | None = None,
        word_ids: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        state: BiLmState | None = None,
    ) -> BiLmOutput:
        """All layers of ``char_ids`` (batch, time, char), ``word_ids`` (batch, time), boundaries included.

        ``lengths`` (batch,) counts each row's true tokens; without it, tokens of all-zero ids are padding.
        """
        if lengths is None:
            if char_ids is not None:
                lengths = (char_ids > 0).any(dim=2).sum(dim=1)
            elif word_ids is not None:
                lengths = (word_ids > 0).sum(dim=1)
            else:
                raise ShapeError("a biLM reads char_ids, word_ids or both, but was given neither")
        return self.contextualise(self.token_layer(char_ids, word_ids), lengths, state=state)

    def contextualise(self, tokens: Tensor, lengths: Tensor, *, state: BiLmState | None = None) -> BiLmOutput:
        """All layers for token vectors (batch, time, width) whose rows have ``lengths`` true tokens."""
        batch, time, _ = tokens.shape
        if lengths.shape != (batch,):
            raise ShapeError(f"expected lengths of shape ({batch},), found {tuple(lengths.shape)}")
        if state is None:
            state = self.zero_state(batch)
        elif state.hidden.shape[1:3] != (len(self.forward_stack), batch):
            raise ShapeError(
                f"expected a state of {len(self.forward_stack)} layers and {batch} rows, "
                f"found {state.hidden.size(1)} and {state.hidden.size(2)}"
            )
        steps = torch.arange(time, device=tokens.device)
        mask = steps < lengths[:, None]  # (batch, time)
        # Where a row's token t goes when the row is read backward: its true tokens change places,
        # its padding stays behind them.
        mirror = torch.where(mask, lengths[:, None] - 1 - steps, steps)
        tokens = torch.where(mask[:, :, None], tokens, 0)

        forward, forward_states = self._read(self.forward_stack, tokens, mask, state=state, direction=0)
        mirrored = _take(tokens, mirror)
        backward, backward_states = self._read(self.backward_stack, mirrored, mask, state=state, direction=1)
        layers = [torch.cat([tokens, tokens], dim=2)]
        for ahead, behind in zip(forward, backward, strict=True):
            layers.append(torch.cat([ahead, _take(behind, mirror)], dim=2))
        both = (forward_states, backward_states)
        return BiLmOutput(
            layers=Layers(torch.stack(layers, dim=1), mask),
            state=BiLmState(
                hidden=torch.stack([torch.stack([s.hidden for s in stack]) for stack in both]),
                cell=torch.stack([torch.stack([s.cell for s in stack]) for stack in both]),
            ),
        )

    def zero_state(self, batch: int) -> BiLmState:
        """The state before anything was read."""
        first = cast("ProjectedLstm", self.forward_stack[0])
        like = first.state_weight
        n_layers = len(self.forward_stack)
        return BiLmState(
            hidden=like.new_zeros(2, n_layers, batch, like.size(1)),
            cell=like.new_zeros(2, n_layers, batch, like.size(0) // 4),
        )

    def _read(
        self, stack: nn.ModuleList, inputs: Tensor, mask: Tensor, *, state: BiLmState, direction: int
    ) -> tuple[list[Tensor], list[LstmState]]:
        """One direction: the output of every layer (batch, time, width), and every layer's last state."""
        outputs: list[Tensor] = []
        states: list[LstmState] = []
        for index, lstm in enumerate(stack):
            output, last = lstm(inputs, mask, state.at(direction, index))
            if self.has_skip and index > 0:
                output = output + inputs  # the layer's own recurrence goes on without the skip
            outputs.append(output)
            states.append(last)
            inputs = output
        return outputs, states


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, t]] for x (batch, time, width)."""
    return x.gather(1, index[:, :, None].expand_as(x))
