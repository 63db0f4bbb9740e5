"""All layers of each sentence in, the outputs of TF-Hub's elmo module out, by its names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from elmo.config import BiLmConfig
from elmo.embed.encoding import Vectors
from elmo.errors import DataError
from elmo.formats.pretrained import MixWeights
from elmo.text.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


def outputs(
    layers: Iterable[Tensor], lengths: Sequence[int], config: BiLmConfig, mix: MixWeights | None
) -> dict[str, Vectors]:
    """Padded with zeros to the longest sentence; ``mix`` weighs the layers, which share alike without it."""
    import torch

    from elmo.model.layers import Layers
    from elmo.model.mix import LayerMix

    weights, gamma = (mix.weights, mix.gamma) if mix else (None, 1.0)
    weigh = LayerMix(config.n_layers, weights=weights, gamma=gamma, is_fixed=True)
    batch, time, half = len(lengths), max(lengths, default=0), config.width // 2
    lstm_names = [f"lstm_outputs{i}" for i in range(1, config.n_layers)]
    found: dict[str, Vectors] = {"word_emb": np.zeros((batch, time, half), np.float32)}
    for name in (*lstm_names, "elmo"):
        found[name] = np.zeros((batch, time, config.width), np.float32)
    found["default"] = np.zeros((batch, config.width), np.float32)
    for k, (given, n) in enumerate(zip(layers, lengths, strict=True)):
        if n == 0:
            continue
        states = given.float().cpu()
        mask = torch.ones(1, n, dtype=torch.bool)
        with torch.inference_mode():
            mixed = weigh(Layers(states[None], mask, has_boundaries=False))[0]
        found["word_emb"][k, :n] = states[0, :, :half]
        for i, name in enumerate(lstm_names, start=1):
            found[name][k, :n] = states[i]
        found["elmo"][k, :n] = mixed
        found["default"][k] = mixed.mean(dim=0)  # over true tokens: the padding is not among them
    return found


def true_tokens(
    sentences: Iterable[str | Sequence[str] | Tokens] | str | None,
    tokens: Sequence[Sequence[str]] | None,
    lengths: Sequence[int] | None,
) -> list[Sequence[str]]:
    """The tokens of each row, from either of the module's two signatures: text, or tokens with lengths."""
    if (sentences is None) == (tokens is None):
        raise DataError("give either sentences, or tokens with their lengths")
    if tokens is None:
        if lengths is not None:
            raise DataError("lengths go with tokens, not with sentences")
        rows = [sentences] if isinstance(sentences, str | Tokens) else cast("Iterable[str]", sentences)
        return [_split(row) for row in rows]
    for k, row in enumerate(tokens):
        if isinstance(row, str):
            raise DataError(f"row {k}: expected a list of tokens, found one string; pass it as a sentence")
    if lengths is None:
        return list(tokens)
    if len(lengths) != len(tokens):
        raise DataError(f"expected a length for each of {len(tokens)} rows, found {len(lengths)}")
    for k, (row, length) in enumerate(zip(tokens, lengths, strict=True)):
        if not 0 <= length <= len(row):
            raise DataError(f"row {k} has {len(row)} tokens, but its length is given as {length}")
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def _split(row: str | Sequence[str] | Tokens) -> Sequence[str]:
    """The module splits text on spaces and on nothing else."""
    if isinstance(row, str):
        return [token for token in row.split(" ") if token]
    return row.tokens if isinstance(row, Tokens) else row
