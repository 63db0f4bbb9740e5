"""Create tiny models with random weights for tests."""

from __future__ import annotations

from typing import Any, Literal

import torch

from elmo.config import (
    BiLmConfig,
    CharCnnConfig,
    EncoderConfig,
    LstmConfig,
    TransformerConfig,
    WordConfig,
    parameter_shapes,
)
from elmo.formats.pretrained import MixWeights, Pretrained, SoftmaxWeights, WarmState
from elmo.text.ids import Vocabulary

WORDS = ("<S>", "</S>", "<UNK>", "the", "river", "bank", "café", "河岸", "\N{GRINNING FACE}")
CHARACTERS = {name: i for i, name in enumerate(("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "a", "é", "河"))}


def tiny_config(
    token: Literal["chars", "words", "both"] = "chars",
    *,
    alphabet: Literal["bytes", "unicode"] = "bytes",
    n_layers: int = 2,
    cell_width: int = 6,
    state_width: int = 4,  # the same as cell_width: no projection
    filters: tuple[tuple[int, int], ...] = ((1, 2), (2, 3)),  # counts adding up to state_width: no token projection
    n_highway: int = 1,
    activation: Literal["relu", "tanh"] = "relu",
    has_skip: bool = True,
    cell_clip: float | None = 3.0,
    state_clip: float | None = 3.0,
    forget_bias: float = 1.0,
    max_characters: int = 50,
    char_width: int = 3,
    n_words: int = len(WORDS),
    is_transformer: bool = False,  # with cell_width hidden units
    highway_width: int | None = None,
    has_norm: bool = False,
) -> BiLmConfig:
    """Return a config with a few hundred weights."""
    chars = None
    if token != "words":
        chars = CharCnnConfig(
            n_characters=261 if alphabet == "bytes" else len(CHARACTERS),
            char_width=char_width,
            filters=filters,
            n_highway=n_highway,
            activation=activation,
            max_characters=max_characters,
            highway_width=highway_width,
            has_norm=has_norm,
        )
    encoder: EncoderConfig = LstmConfig(
        n_layers=n_layers,
        cell_width=cell_width,
        state_width=state_width,
        cell_clip=cell_clip,
        state_clip=state_clip,
        has_skip=has_skip,
        forget_bias=forget_bias,
    )
    if is_transformer:
        encoder = TransformerConfig(n_layers, state_width, n_heads=2, feed_forward_width=cell_width)
    return BiLmConfig(
        chars=chars,
        words=None if token == "chars" else WordConfig(n_words, state_width if token == "words" else 5),
        encoder=encoder,
        alphabet=alphabet if chars else None,
    )


def tiny_weights(config: BiLmConfig, *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random weights for every parameter; padding rows are zero, as in every reader."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in parameter_shapes(config).items()}
    for name in ("token_layer.word_embed.weight", "token_layer.cnn.char_embed.weight"):
        if name in weights:
            weights[name][0] = 0
    return weights


def tiny_model(
    token: Literal["chars", "words", "both"] = "chars",
    *,
    vocab: bool | None = None,  # None: if words or a softmax need one
    softmax: bool = False,
    warm: bool = False,
    mix: bool = False,
    metadata: dict[str, Any] | None = None,
    words: tuple[str, ...] = WORDS,
    seed: int = 0,
    name: str = "tiny",
    **options: Any,  # of tiny_config
) -> Pretrained:
    """Return a model with the requested parts."""
    config = tiny_config(token, n_words=len(words), **options)
    width = config.encoder.state_width
    generator = torch.Generator().manual_seed(seed + 1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    if vocab is None:
        vocab = softmax or token != "chars"
    return Pretrained(
        config=config,
        weights=tiny_weights(config, seed=seed),
        format=name,
        vocab=Vocabulary(words) if vocab else None,
        characters=CHARACTERS if config.alphabet == "unicode" else None,
        softmax=SoftmaxWeights(random(len(words), width), random(len(words))) if softmax else None,
        warm=(
            WarmState(random(2, config.lstm.n_layers, width), random(2, config.lstm.n_layers, config.lstm.cell_width))
            if warm
            else None
        ),
        mix=MixWeights(tuple(0.5 * k for k in range(config.n_layers)), 1.25) if mix else None,
        metadata=metadata or {},
    )


def assert_same_model(found: Pretrained, expected: Pretrained) -> None:
    """Check that everything except the name of the format is equal, tensors bit by bit."""
    assert found.config == expected.config
    assert set(found.weights) == set(expected.weights)
    for name, weight in expected.weights.items():
        assert_same_tensor(found.weights[name], weight)
    assert found.vocab == expected.vocab
    assert found.characters == expected.characters
    assert (found.softmax is None) == (expected.softmax is None)
    if found.softmax and expected.softmax:
        assert_same_tensor(found.softmax.weight, expected.softmax.weight)
        assert_same_tensor(found.softmax.bias, expected.softmax.bias)
    assert (found.warm is None) == (expected.warm is None)
    if found.warm and expected.warm:
        assert_same_tensor(found.warm.hidden, expected.warm.hidden)
        assert_same_tensor(found.warm.cell, expected.warm.cell)
    assert found.mix == expected.mix


def assert_same_tensor(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that type, shape and every bit are equal (-0.0 differs from 0.0)."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    as_bits = torch.int32 if expected.dtype == torch.float32 else torch.uint8
    assert torch.equal(found.contiguous().view(as_bits), expected.contiguous().view(as_bits))
