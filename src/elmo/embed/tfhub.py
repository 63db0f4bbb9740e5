"""Compute the outputs of TF-Hub's ELMo module, for ``Elmo.outputs``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from elmo.config import BiLmConfig
from elmo.embed.encoding import Vectors
from elmo.errors import DataError
from elmo.formats.pretrained import MixWeights
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from torch import Tensor


def read_rows(
    sentences: Iterable[str | Sequence[str] | Tokens] | str | None,
    tokens: Sequence[Sequence[str]] | None,
    lengths: Sequence[int] | None,
) -> list[Sequence[str]]:
    """Return the tokens of each row, from sentences or from padded tokens with lengths."""
    if (sentences is None) == (tokens is None):
        raise DataError("cannot compute the outputs: pass either sentences or tokens")
    if tokens is None:
        if lengths is not None:
            raise DataError("cannot use lengths with sentences; pass tokens=… instead of sentences")
        rows = [sentences] if isinstance(sentences, str | Tokens) else cast("Iterable[str]", sentences)
        return [_split(row) for row in rows]
    for k, row in enumerate(tokens):
        if isinstance(row, str):
            raise DataError(f"row {k} must be a list of tokens; found one string; pass it as a sentence")
    if lengths is None:
        return list(tokens)
    if len(lengths) != len(tokens):
        raise DataError(f"lengths must have {len(tokens)} values, one per row; found {len(lengths)}")
    for k, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
        if not 0 <= length <= len(row):
            raise DataError(f"length of row {k} must be in 0..{len(row)}; found {length}")
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def _split(row: str | Sequence[str] | Tokens) -> Sequence[str]:
    """Split a string at spaces only, as TF-Hub's module does."""
    if isinstance(row, str):
        return [token for token in row.split(" ") if token]
    return row.tokens if isinstance(row, Tokens) else row


def build_outputs(
    layers: Iterable[Tensor], lengths: Sequence[int], config: BiLmConfig, mix: MixWeights | None
) -> dict[str, Vectors]:
    """Compute the outputs of TF-Hub's module from all layers (layer, time, width) of each sentence.

    Outputs are padded with zeros to the longest sentence. Without ``mix``, all layers have equal weights.
    """
    import torch

    from elmo.model.bilm import Layers
    from elmo.model.mix import LayerMix

    weights, gamma = (mix.weights, mix.gamma) if mix else (None, 1.0)
    layer_mix = LayerMix(config.n_layers, weights=weights, gamma=gamma, is_fixed=True)
    batch, time, half = len(lengths), max(lengths, default=0), config.width // 2
    lstm_names = [f"lstm_outputs{i}" for i in range(1, config.n_layers)]
    outputs: dict[str, Vectors] = {"word_emb": np.zeros((batch, time, half), np.float32)}
    for name in (*lstm_names, "elmo"):
        outputs[name] = np.zeros((batch, time, config.width), np.float32)
    outputs["default"] = np.zeros((batch, config.width), np.float32)
    for row, (tensor, n_tokens) in enumerate(zip(layers, lengths, strict=True)):
        if n_tokens == 0:
            continue
        states = tensor.float().cpu()
        mask = torch.ones(1, n_tokens, dtype=torch.bool)
        with torch.inference_mode():
            mixed = layer_mix(Layers(states[None], mask, has_boundaries=False))[0]
        outputs["word_emb"][row, :n_tokens] = states[0, :, :half]
        for i, name in enumerate(lstm_names, start=1):
            outputs[name][row, :n_tokens] = states[i]
        outputs["elmo"][row, :n_tokens] = mixed
        outputs["default"][row] = mixed.mean(dim=0)  # the mean over tokens, without padding
    return outputs
