"""All shapes of biLM that the published formats allow, small enough for the oracle and for gradcheck."""

from __future__ import annotations

from itertools import product

import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, TransformerConfig, WordConfig
from elmo.model.bilm import BiLm

FILTERS = ((1, 2), (2, 3), (4, 1))  # six features


def _chars(**changes: object) -> CharCnnConfig:
    sizes = {"n_characters": 261, "char_width": 3, "filters": FILTERS, "n_highway": 1, "max_characters": 6}
    return CharCnnConfig(**{**sizes, **changes})  # pyright: ignore[reportArgumentType]


def _lstm(**changes: object) -> LstmConfig:
    sizes = {"n_layers": 2, "cell_width": 5, "state_width": 4, "cell_clip": 0.9, "state_clip": 0.4}
    return LstmConfig(**{**sizes, **changes})  # pyright: ignore[reportArgumentType]


CONFIGS: dict[str, BiLmConfig] = {
    f"{n_layers} layers, {'skip' if has_skip else 'no skip'}, {activation}, {n_highway} highways": BiLmConfig(
        chars=_chars(activation=activation, n_highway=n_highway),
        words=None,
        encoder=_lstm(n_layers=n_layers, has_skip=has_skip),
    )
    for n_layers, has_skip, activation, n_highway in product((1, 2, 3), (True, False), ("relu", "tanh"), (0, 1, 2))
}
CONFIGS |= {
    "no projection of the states": BiLmConfig(_chars(), None, _lstm(cell_width=4)),
    "no projection of the tokens": BiLmConfig(_chars(), None, _lstm(state_width=6, cell_width=8)),
    "no projection at all": BiLmConfig(_chars(), None, _lstm(state_width=6, cell_width=6)),
    "no clips": BiLmConfig(_chars(), None, _lstm(cell_clip=None, state_clip=None)),
    "only the cell clipped": BiLmConfig(_chars(), None, _lstm(state_clip=None)),
    "only the state clipped": BiLmConfig(_chars(), None, _lstm(cell_clip=None)),
    "no forget bias": BiLmConfig(_chars(), None, _lstm(forget_bias=0.0)),
    "words": BiLmConfig(None, WordConfig(n_words=9, word_width=4), _lstm(), alphabet=None),
    "words and characters": BiLmConfig(
        _chars(n_characters=30), WordConfig(n_words=9, word_width=2), _lstm(forget_bias=0.0), alphabet="unicode"
    ),
}

TRANSFORMERS: dict[str, BiLmConfig] = {
    f"{n_layers} layers, {n_heads} heads": BiLmConfig(
        _chars(), None, TransformerConfig(n_layers, state_width=4, n_heads=n_heads, feed_forward_width=5)
    )
    for n_layers, n_heads in ((1, 1), (2, 2), (3, 4))
}
_TRANSFORMER = TransformerConfig(n_layers=2, state_width=4, n_heads=2, feed_forward_width=3)
TRANSFORMERS |= {
    "highways after the projection": BiLmConfig(_chars(highway_width=4, n_highway=2), None, _TRANSFORMER),
    "highways between two projections": BiLmConfig(_chars(highway_width=5), None, _TRANSFORMER),
    "normalized tokens": BiLmConfig(_chars(has_norm=True), None, _TRANSFORMER),
    "transformer that reads words": BiLmConfig(
        None, WordConfig(n_words=9, word_width=4), _TRANSFORMER, alphabet=None
    ),
    "transformer that reads words and characters": BiLmConfig(
        _chars(n_characters=30, has_norm=True), WordConfig(n_words=9, word_width=2), _TRANSFORMER, alphabet="unicode"
    ),
}  # fmt: skip


def random_bilm(config: BiLmConfig, seed: int = 0) -> BiLm:
    """Build a biLM in float64 with weights large enough to reach the clips."""
    generator = torch.Generator().manual_seed(seed)
    bilm = BiLm.from_config(config).double()
    with torch.no_grad():
        for name, weight in bilm.named_parameters():
            scale = 0.5 if weight.dim() == 1 else 1.5 / weight.size(1) ** 0.5
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * scale)
            if name.endswith("embed.weight"):
                weight[0] = 0
    return bilm


def random_ids(
    config: BiLmConfig, lengths: list[int], seed: int = 1
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Draw padded char_ids and word_ids, if the model reads them, for rows of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    char_ids = word_ids = None
    if config.chars:
        size = (*shape, config.chars.max_characters)
        char_ids = torch.randint(1, config.chars.n_characters + 1, size, generator=generator) * mask[:, :, None]
    if config.words:
        word_ids = torch.randint(1, config.words.n_words + 1, shape, generator=generator) * mask
    return char_ids, word_ids
