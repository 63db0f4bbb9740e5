"""The equations of ELMo in slow NumPy, one token at a time; ``elmo.model`` must agree with them.

Written from Peters et al. (2018), Kim et al. (2016), Srivastava et al. (2015) and Sak et al. (2014), in
the order of operations of bilm-tf. No batch, no mask, no tensor library.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig, TransformerConfig

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
        if config.chars.highway_width is not None:
            x = w["token_layer.cnn.projection.weight"] @ x + w["token_layer.cnn.projection.bias"]
        for i in range(config.chars.n_highway):
            at = f"token_layer.cnn.highways.{i}."
            gate = sigmoid(w[at + "gate.weight"] @ x + w[at + "gate.bias"])
            changed = np.maximum(w[at + "transform.weight"] @ x + w[at + "transform.bias"], 0.0)
            x = gate * changed + (1.0 - gate) * x
        parts.append(x)
    x = np.concatenate(parts)
    if "token_layer.projection.weight" in w:
        x = w["token_layer.projection.weight"] @ x + w["token_layer.projection.bias"]
    if "token_layer.norm.gamma" in w:
        x = normalize(w, "token_layer.norm.", x)
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
    if isinstance(config.encoder, TransformerConfig):
        return transformer_layers(config.encoder, w, tokens), hidden, cell
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
    return join_directions(tokens, *by_direction), hidden, cell


def join_directions(tokens: list[Array], forward: list[list[Array]], backward: list[list[Array]]) -> Array:
    """Concatenate both directions; layer 0 is the token vector, twice."""
    all_layers = [[np.concatenate([x, x]) for x in tokens]]
    for left_to_right, right_to_left in zip(forward, backward, strict=True):
        all_layers.append([np.concatenate([f, b]) for f, b in zip(left_to_right, right_to_left, strict=True)])
    return np.array(all_layers)


# --- the transformer (Vaswani et al. 2017, in the order of operations of AllenNLP) -------------------------------


def normalize(w: Mapping[str, Array], at: str, x: Array) -> Array:
    """Normalize one vector; ε is added to the deviation of the population, not to the variance."""
    return w[at + "gamma"] * (x - x.mean()) / (x.std() + 1e-6) + w[at + "beta"]


def normalize_gradient(w: Mapping[str, Array], at: str, x: Array, d_y: Array) -> tuple[Array, dict[str, Array]]:
    """Compute the gradients of ``normalize`` for x and for γ and β."""
    centered, deviation = x - x.mean(), x.std()
    scale = deviation + 1e-6
    d = d_y * w[at + "gamma"]
    d_deviation = -(d @ centered) / scale**2
    d_centered = d / scale + d_deviation * centered / (len(x) * deviation)
    return d_centered - d_centered.mean(), {at + "gamma": d_y * centered / scale, at + "beta": d_y}


def linear(w: Mapping[str, Array], at: str, x: Array) -> Array:
    return w[at + "weight"] @ x + w[at + "bias"]


def position(k: int, width: int) -> Array:
    """Encode position k: sine and cosine of each of width / 2 angles, in turn."""
    angles = [k / 10000 ** (i / width) for i in range(0, width, 2)]
    return np.array([value for angle in angles for value in (np.sin(angle), np.cos(angle))])


def transformer_layers(transformer: TransformerConfig, w: Mapping[str, Array], tokens: list[Array]) -> Array:
    """Compute all layers (layer, time, width) of a sentence from its token vectors."""
    inputs = [x + position(k, len(x)) for k, x in enumerate(tokens)]
    by_direction = []
    for stack, step in (("forward_stack", 1), ("backward_stack", -1)):
        xs, outputs = inputs[::step], []
        for layer in range(transformer.n_layers):
            at = f"{stack}.{layer}."
            xs = transformer_layer(transformer.n_heads, w, at, xs)
            is_last = layer == transformer.n_layers - 1
            outputs.append([normalize(w, at + "output_norm.", x) if is_last else x for x in xs][::step])
        by_direction.append(outputs)
    return join_directions(tokens, *by_direction)


def attention_shares(query: Array, keys: Array) -> Array:
    """Compute how much a query attends to each of some keys: the softmax of scaled products."""
    scores = keys @ query / np.sqrt(len(query))
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def transformer_layer(n_heads: int, w: Mapping[str, Array], at: str, xs: list[Array]) -> list[Array]:
    """Read the tokens of a sentence with one layer, in the order of its direction, without ``output_norm``."""
    normal = [normalize(w, at + "attention_norm.", x) for x in xs]
    query, key, value = (np.array([linear(w, at + name, n) for n in normal]) for name in ("query.", "key.", "value."))
    heads = np.split(np.arange(len(xs[0])), n_heads)
    outputs = []
    for t, x in enumerate(xs):
        context = [attention_shares(query[t, h], key[: t + 1, h]) @ value[: t + 1, h] for h in heads]
        y = x + linear(w, at + "context.", np.concatenate(context))
        hidden = np.maximum(linear(w, at + "hidden.", normalize(w, at + "feed_forward_norm.", y)), 0.0)
        outputs.append(y + linear(w, at + "output.", hidden))
    return outputs


def transformer_layer_gradient(
    n_heads: int, w: Mapping[str, Array], at: str, xs: list[Array], d_outputs: Array
) -> tuple[Array, dict[str, Array]]:
    """Compute the gradients of ``transformer_layer`` for its inputs (time, width) and its weights, by hand."""
    total: dict[str, Array] = {}

    def add(gradients: dict[str, Array]) -> None:
        for name, gradient in gradients.items():
            total[name] = total.get(name, 0.0) + gradient

    def back(name: str, x: Array, d_y: Array) -> Array:
        """Add the gradients of ``linear``; return that of its input."""
        add({at + name + "weight": np.outer(d_y, x), at + name + "bias": d_y})
        return w[at + name + "weight"].T @ d_y

    def back_norm(name: str, x: Array, d_y: Array) -> Array:
        d_x, gradients = normalize_gradient(w, at + name, x, d_y)
        add(gradients)
        return d_x

    normal = [normalize(w, at + "attention_norm.", x) for x in xs]
    query, key, value = (np.array([linear(w, at + name, n) for n in normal]) for name in ("query.", "key.", "value."))
    d_query, d_key, d_value = (np.zeros_like(query) for _ in range(3))
    heads = np.split(np.arange(len(xs[0])), n_heads)
    d_xs = np.zeros_like(np.array(xs))
    for t, x in enumerate(xs):
        shares = [attention_shares(query[t, h], key[: t + 1, h]) for h in heads]
        context = np.concatenate([s @ value[: t + 1, h] for s, h in zip(shares, heads, strict=True)])
        y = x + linear(w, at + "context.", context)
        between = normalize(w, at + "feed_forward_norm.", y)
        before_relu = linear(w, at + "hidden.", between)
        d_hidden = back("output.", np.maximum(before_relu, 0.0), d_outputs[t])
        d_between = back("hidden.", between, d_hidden * (before_relu > 0))
        d_y = d_outputs[t] + back_norm("feed_forward_norm.", y, d_between)
        d_context = back("context.", context, d_y)
        d_xs[t] += d_y
        for s, h in zip(shares, heads, strict=True):
            d_shares = value[: t + 1, h] @ d_context[h]
            d_value[: t + 1, h] += np.outer(s, d_context[h])
            d_scores = s * (d_shares - s @ d_shares) / np.sqrt(len(h))
            d_query[t, h] += d_scores @ key[: t + 1, h]
            d_key[: t + 1, h] += np.outer(d_scores, query[t, h])
    for t, x in enumerate(xs):
        parts = zip(("query.", "key.", "value."), (d_query, d_key, d_value), strict=True)
        d_normal = sum(back(name, normal[t], gradient[t]) for name, gradient in parts)
        d_xs[t] += back_norm("attention_norm.", x, np.asarray(d_normal))
    return d_xs, total


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
