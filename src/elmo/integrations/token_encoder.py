"""``TokenEncoder``: a PyTorch module from tokenized sentences to padded vectors, frozen or fine-tuned.

The integrations with sentence-transformers and Keras are built on this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError
from elmo.model.bilm import BiLm, Layers
from elmo.model.mix import LayerMix
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from elmo.embed.encoding import LayerChoice

    Ids = NDArray[Any] | Tensor

Output = Literal["mix", "average", "top", "concat"]  # one vector per token
OUTPUTS: tuple[Output, ...] = ("mix", "average", "top", "concat")


class TokenEncoder(nn.Module):
    """Computes one vector per token with a pretrained model.

    A frozen network runs in elmo's engine, and so does a trainable one when gradients are off. The vectors are then
    those of ``Elmo.encode``.

    Attributes:
        elmo: The model. Training changes its weights.
        bilm: The network of the model.
        mix: The learned mix of layers; None unless ``layers`` is "mix".
        layers: Layers of the vectors.
        trainable: Whether to train the network.
        width: Width of the vectors.

    Example:
        >>> encoder = TokenEncoder("en", layers="average")
        >>> encoder.width == elmo.width
        True
    """

    def __init__(
        self, model: Elmo | str | Path | None = None, *, layers: Output | int = "mix", trainable: bool = False
    ) -> None:
        """Build the module.

        Args:
            model: A loaded model, or a name as in ``Elmo.from_pretrained``.
            layers: "mix" (a learned weighted sum of layers), "average", "top", "concat" or a layer number.
            trainable: Train the network, not only the mix.
        """
        super().__init__()
        self.elmo = model if isinstance(model, Elmo) else Elmo.from_pretrained(model)
        n_layers = self.elmo.n_layers
        is_number = isinstance(layers, int) and not isinstance(layers, bool) and -n_layers <= layers < n_layers
        if not is_number and layers not in OUTPUTS:
            raise ConfigError(f"layers must be {', '.join(OUTPUTS)} or 0..{n_layers - 1}; found {layers!r:.40}")
        self.layers, self.trainable = layers, trainable
        self.width = self.elmo.width * (n_layers if layers == "concat" else 1)
        self.bilm: BiLm = self.elmo.bilm.requires_grad_(trainable)
        self.mix = LayerMix(n_layers) if layers == "mix" else None

    def forward(self, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Return the vectors of sentences (batch, time, width), padded with zeros, and a mask (batch, time)."""
        if not sentences:
            vectors = torch.zeros(0, 0, self.width, device=self.elmo.device)
            return vectors, vectors.new_zeros(0, 0, dtype=torch.bool)
        if self.trainable and torch.is_grad_enabled():
            batch = self.elmo.batch(sentences)
            return self.run_ids(batch.char_ids, batch.word_ids, batch.lengths)
        if self.mix is None:
            return self._encode(sentences, cast("LayerChoice | int", self.layers))
        states, mask = self._encode(sentences, "all")
        return self.mix(Layers(states.transpose(1, 2), mask, has_boundaries=False)), mask

    def run_ids(self, char_ids: Ids | None, word_ids: Ids | None, lengths: Ids) -> tuple[Tensor, Tensor]:
        """Like ``forward``, for padded ids with boundary tokens, as in ``Elmo.batch``."""
        device = self.elmo.device
        chars, words, n_tokens = (
            None if ids is None else torch.as_tensor(ids, device=device).long() for ids in (char_ids, word_ids, lengths)
        )
        with torch.set_grad_enabled(self.trainable and torch.is_grad_enabled()):
            layers = self.bilm(chars, words, lengths=n_tokens).layers.without_boundaries()
            if (alignment := self.elmo.pretrained.alignment) is not None:
                layers = replace(layers, states=alignment.map_layers(layers.states))
        return (self._select(layers.states) if self.mix is None else self.mix(layers)), layers.mask

    def _select(self, states: Tensor) -> Tensor:
        """Return the chosen layers of states (batch, layer, time, width)."""
        if self.layers == "average":
            return states.mean(dim=1)
        if self.layers == "concat":
            return states.transpose(1, 2).flatten(start_dim=2)
        return states[:, -1 if self.layers == "top" else cast("int", self.layers)]

    def _encode(self, sentences: Sequence[Tokens], layers: LayerChoice | int) -> tuple[Tensor, Tensor]:
        """Encode with the engine: (batch, time, width), or (batch, time, layer, width) for all layers."""
        encodings = self.elmo.encode(sentences, layers=layers, as_tensor=True)
        rows = [cast("Tensor", encoding.vectors) for encoding in encodings]
        if layers == "all":
            rows = [row.transpose(0, 1) for row in rows]
        lengths = torch.tensor([len(encoding) for encoding in encodings])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return pad_sequence(rows, batch_first=True), mask.to(self.elmo.device)
