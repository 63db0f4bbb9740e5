"""The equations of ELMo in slow NumPy, one token at a time; ``elmo.model`` must agree with them.

Written from Peters et al. (2018), Kim et al. (2016), Srivastava et al. (2015) and Sak et al. (2014), in
the order of operations of bilm-tf. No batch, no mask, no tensor library.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig

Array = NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def token_vector(
    config: BiLmConfig, w: Mapping[str, Array], *, characters: list[int] | None, word: int | None
) -> Array:
    """Compute x_k of one token from its character ids, its word id, or both."""
    parts = []
    if config.words is not None:
        parts.append(w["token_layer.word_embed.weight"][word])
    if config.chars is not None:
        assert characters is not None
        embedded = [w["token_layer.cnn.char_embed.weight"][c] for c in characters]
        features = []
        for i, (width, count) in enumerate(config.chars.filters):
            kernel, bias = (w[f"token_layer.cnn.convolutions.{i}.{part}"] for part in ("weight", "bias"))
            for n in range(count):
                scores = [
                    sum(kernel[n, :, k] @ embedded[at + k] for k in range(width)) + bias[n]
                    for at in range(len(embedded) - width + 1)
                ]
                best = max(scores)
                features.append(max(best, 0.0) if config.chars.activation == "relu" else np.tanh(best))
        x = np.array(features)
        for i in range(config.chars.n_highway):
            at = f"token_layer.cnn.highways.{i}."
            gate = sigmoid(w[at + "gate.weight"] @ x + w[at + "gate.bias"])
            changed = np.maximum(w[at + "transform.weight"] @ x + w[at + "transform.bias"], 0.0)
            x = gate * changed + (1.0 - gate) * x
        parts.append(x)
    x = np.concatenate(parts)
    if "token_layer.projection.weight" in w:
        x = w["token_layer.projection.weight"] @ x + w["token_layer.projection.bias"]
    return x


def lstm_step(config: BiLmConfig, w: Mapping[str, Array], at: str, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Read one token with one layer; the gates are i, f, j, o."""
    i, f, j, o = np.split(w[at + "input_weight"] @ x + w[at + "state_weight"] @ h + w[at + "bias"], 4)
    lstm = config.lstm
    c = sigmoid(f + lstm.forget_bias) * c + sigmoid(i) * np.tanh(j)
    if lstm.cell_clip is not None:
        c = np.clip(c, -lstm.cell_clip, lstm.cell_clip)
    h = sigmoid(o) * np.tanh(c)
    if at + "projection" in w:
        h = w[at + "projection"] @ h
        if lstm.state_clip is not None:
            h = np.clip(h, -lstm.state_clip, lstm.state_clip)
    return h, c


def layers(
    config: BiLmConfig, w: Mapping[str, Array], tokens: list[Array], *, hidden: Array, cell: Array
) -> tuple[Array, Array, Array]:
    """Compute all layers (layer, time, width) of a sentence from its token vectors, and the last state.

    ``hidden`` and ``cell`` (direction, layer, width) are the state before the sentence.
    """
    hidden, cell = hidden.copy(), cell.copy()
    by_direction = []
    for direction, stack in enumerate(("forward_stack", "backward_stack")):
        inputs = tokens if direction == 0 else tokens[::-1]
        outputs = []
        for layer in range(config.lstm.n_layers):
            states = []
            for x in inputs:
                h, c = lstm_step(config, w, f"{stack}.{layer}.", x, hidden[direction, layer], cell[direction, layer])
                hidden[direction, layer], cell[direction, layer] = h, c
                states.append(h + x if config.lstm.has_skip and layer > 0 else h)
            outputs.append(states if direction == 0 else states[::-1])
            inputs = states
        by_direction.append(outputs)
    all_layers = [[np.concatenate([x, x]) for x in tokens]]
    for forward, backward in zip(*by_direction, strict=True):
        all_layers.append([np.concatenate([f, b]) for f, b in zip(forward, backward, strict=True)])
    return np.array(all_layers), hidden, cell


def mix(states: Array, w: Array, gamma: float, *, layer_norm: bool) -> Array:
    """Compute Eq. 1 for one sentence: (layer, time, width) to (time, width)."""
    if layer_norm:
        mean = states.mean(axis=-1, keepdims=True)
        states = (states - mean) / np.sqrt(states.var(axis=-1, keepdims=True) + 1e-5)
    shares = np.exp(w) / np.exp(w).sum()
    return gamma * sum(share * state for share, state in zip(shares, states, strict=True))


def softmax_loss(states: Array, weight: Array, bias: Array, targets: list[int]) -> tuple[float, dict[str, Array]]:
    """Compute the mean of −log p(target) and its gradient: dL/dlogit_k = p_k − [k is the target]."""
    gradient = {"states": np.zeros_like(states), "weight": np.zeros_like(weight), "bias": np.zeros_like(bias)}
    loss = 0.0
    for t, target in enumerate(targets):
        logits = weight @ states[t] + bias
        p = np.exp(logits - logits.max())
        p /= p.sum()
        loss -= np.log(p[target]) / len(targets)
        p[target] -= 1.0
        gradient["states"][t] = weight.T @ p / len(targets)
        gradient["weight"] += np.outer(p, states[t]) / len(targets)
        gradient["bias"] += p / len(targets)
    return float(loss), gradient


def expected_count(word: int, n_words: int, n_samples: int, n_tries: int) -> float:
    """Compute the expected count of a word in log-uniform samples (TensorFlow's range_sampler)."""
    p = (np.log(word + 2) - np.log(word + 1)) / np.log(n_words + 1)
    return n_samples * p if n_tries == n_samples else 1.0 - (1.0 - p) ** n_tries


def sampled_softmax_loss(
    states: Array, weight: Array, bias: Array, targets: list[int], samples: list[int], n_tries: int
) -> tuple[float, dict[str, Array]]:
    """Compute the loss against samples: logits − log(expected count), without samples equal to the target."""
    gradient = {"states": np.zeros_like(states), "weight": np.zeros_like(weight), "bias": np.zeros_like(bias)}
    loss = 0.0
    for t, target in enumerate(targets):
        words = [target] + [word for word in samples if word != target]
        logits = np.array(
            [
                weight[k] @ states[t] + bias[k] - np.log(expected_count(k, len(bias), len(samples), n_tries))
                for k in words
            ]
        )
        p = np.exp(logits - logits.max())
        p /= p.sum()
        loss -= np.log(p[0]) / len(targets)
        p[0] -= 1.0
        for k, slope in zip(words, p, strict=True):
            gradient["states"][t] += slope * weight[k] / len(targets)
            gradient["weight"][k] += slope * states[t] / len(targets)
            gradient["bias"][k] += slope / len(targets)
    return float(loss), gradient
