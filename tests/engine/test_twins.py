"""Each file of ``elmo.engine`` computes what the file of the same name in ``elmo.model`` computes."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from elmo.config import BiLmConfig
from elmo.embed.elmo import Elmo
from elmo.engine.bilm import Engine
from elmo.engine.lstm import freeze_lstm, run_lstm_rows, run_lstm_window
from elmo.engine.matmul import choose_kernels
from elmo.engine.schedule import BatchSchedule
from elmo.engine.softmax import FrozenSoftmax, compute_loss, compute_token_losses
from elmo.engine.token_layer import FrozenTokenLayer, run_char_cnn, run_highway, run_token_layer
from elmo.engine.transformer import mask_sentences, run_transformer_window
from elmo.model.bilm import BiLmState
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.softmax import LogUniformSampler
from elmo.model.token_layer import Highway
from elmo.model.transformer import TransformerLayer
from elmo.text.ids import ByteAlphabet, TokenIndexer
from tests.engine.cases import every_shape, random_sentences
from tests.model.options import CONFIGS, random_bilm, random_ids
from tests.model.softmax_cases import N_WORDS, random_softmax, random_tokens

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
CHARACTER_CONFIGS = {name: config for name, config in CONFIGS.items() if config.alphabet == "bytes"}
EXACT = {"rtol": 0, "atol": 1e-10}  # in float64


def random_state(n: int, lstm: ProjectedLstm) -> LstmState:
    generator = torch.Generator().manual_seed(3)
    shapes = (n, lstm.state_weight.size(1)), (n, len(lstm.bias) // 4)
    return LstmState(*(torch.randn(shape, generator=generator).to(lstm.bias) / 4 for shape in shapes))


def gradients(module: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """The gradients of a random projection of ``output``, dense, zero for unused weights."""
    generator = torch.Generator().manual_seed(4)
    loss = (output * torch.randn(output.shape, generator=generator).to(output)).sum()
    names, weights = zip(*module.named_parameters(), strict=True)
    results = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return {name: gradient.to_dense() for name, gradient in zip(names, results, strict=True)}


# --- bilm ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
@every_shape
def test_engine_run_agrees_with_bilm_forward_for_every_kind_of_model(model) -> None:
    elmo = Elmo(model)
    sentences = random_sentences(37)
    batch = elmo.batch(sentences)
    ids = [None if part is None else torch.from_numpy(part) for part in (batch.char_ids, batch.word_ids)]
    zero = elmo.bilm.zero_state(len(sentences))
    start = BiLmState(torch.rand_like(zero.hidden) - 0.5, torch.rand_like(zero.cell) - 0.5)
    with torch.no_grad():
        expected = elmo.bilm(*ids, lengths=torch.from_numpy(batch.lengths), state=start)
    output = elmo._engine.run(sentences, start=start)
    inner = expected.layers.without_boundaries()
    for k, sentence in enumerate(sentences):
        torch.testing.assert_close(output.layers[k], inner.states[k, :, : len(sentence)], rtol=0, atol=2e-6)
    torch.testing.assert_close(output.state.hidden, expected.state.hidden, rtol=0, atol=2e-6)
    torch.testing.assert_close(output.state.cell, expected.state.cell, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", CHARACTER_CONFIGS.values(), ids=CHARACTER_CONFIGS.keys())
def test_engine_run_agrees_with_bilm_forward_for_every_option(config: BiLmConfig, dtype: torch.dtype) -> None:
    assert config.chars is not None
    bilm = random_bilm(config).to(dtype)
    indexer = TokenIndexer(ByteAlphabet(config.chars.max_characters), None)
    sentences = random_sentences(9, longest=12)
    batch = indexer.batch(sentences)
    with torch.no_grad():
        expected = bilm(torch.from_numpy(batch.char_ids), lengths=torch.from_numpy(batch.lengths))
    output = Engine(bilm, indexer).run(sentences)
    inner = expected.layers.without_boundaries()
    # some of these random weights give vectors much larger than 1
    tolerance = {"rtol": 5e-7, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 0, "atol": 1e-13}
    for k, sentence in enumerate(sentences):
        torch.testing.assert_close(output.layers[k], inner.states[k, :, : len(sentence)], **tolerance)
    torch.testing.assert_close(output.state.cell, expected.state.cell, **tolerance)


@every_config
def test_the_training_path_has_the_layers_and_gradients_of_bilm_forward(config: BiLmConfig) -> None:
    """Training runs a window through ``run_token_layer`` and ``run_lstm_window``."""
    bilm = random_bilm(config)
    char_ids, word_ids = random_ids(config, [5, 5, 5])
    zero = bilm.zero_state(3)
    start = BiLmState(torch.rand_like(zero.hidden) - 0.5, torch.rand_like(zero.cell) - 0.5)
    expected = bilm(char_ids, word_ids, state=start)

    flat_ids = (None if ids is None else ids.flatten(end_dim=1) for ids in (char_ids, word_ids))
    tokens = run_token_layer(bilm.token_layer, *flat_ids).view(3, 5, -1)
    stacks = [bilm.forward_stack, bilm.backward_stack]
    directions: list[list[Tensor]] = []
    last: list[list[LstmState]] = [[], []]
    for direction, stack in enumerate(stacks):
        x, outputs = (tokens.flip(1) if direction else tokens), []
        for index, lstm in enumerate(stack):
            y, state = run_lstm_window(cast("ProjectedLstm", lstm), x, start.at(direction, index))
            x = y + x if bilm.has_skip and index > 0 else y
            outputs.append(x.flip(1) if direction else x)
            last[direction].append(state)
        directions.append(outputs)
    layers = [torch.cat([tokens, tokens], dim=2)]
    layers += [torch.cat(pair, dim=2) for pair in zip(*directions, strict=True)]
    states = torch.stack(layers, dim=1)

    torch.testing.assert_close(states, expected.layers.states, **EXACT)
    torch.testing.assert_close(BiLmState.stack(last).cell, expected.state.cell, **EXACT)
    torch.testing.assert_close(gradients(bilm, states), gradients(bilm, expected.layers.states), **EXACT)


# --- token_layer --------------------------------------------------------------------------------------------


@every_config
@pytest.mark.parametrize("has_sparse_gradient", [False, True])
def test_run_token_layer_agrees_with_token_layer_and_its_gradients(
    config: BiLmConfig, has_sparse_gradient: bool
) -> None:
    layer = random_bilm(config).token_layer
    ids = [None if part is None else part[0] for part in random_ids(config, [40])]
    expected = layer(*ids)
    output = run_token_layer(layer, *ids, has_sparse_gradient=has_sparse_gradient)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(gradients(layer, output), gradients(layer, expected), **EXACT)


@pytest.mark.usefixtures("kernels")
@every_config
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_frozen_token_layer_agrees_with_token_layer(config: BiLmConfig, dtype: torch.dtype) -> None:
    layer = random_bilm(config).to(dtype).token_layer
    ids = [None if part is None else part[0] for part in random_ids(config, [20])]
    kernels = choose_kernels(next(layer.parameters()))
    tolerance = {"rtol": 5e-7, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(FrozenTokenLayer(layer, kernels)(*ids), layer(*ids), **tolerance)


def test_run_char_cnn_and_run_highway_agree_with_their_modules() -> None:
    cnn = random_bilm(CONFIGS["2 layers, skip, relu, 2 highways"]).token_layer.cnn
    assert cnn is not None
    char_ids, _ = random_ids(CONFIGS["2 layers, skip, relu, 2 highways"], [90])
    assert char_ids is not None
    output, expected = run_char_cnn(cnn, char_ids[0]), cnn(char_ids[0])
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(gradients(cnn, output), gradients(cnn, expected), **EXACT)
    highway, x = cast("Highway", cnn.highways[0]), expected.detach()
    output, expected = run_highway(highway, x), highway(x)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(gradients(highway, output), gradients(highway, expected), **EXACT)


# --- lstm ---------------------------------------------------------------------------------------------------

LENGTHS = [11, 9, 9, 3, 1]


def padded_inputs(lstm: ProjectedLstm) -> tuple[Tensor, Tensor]:
    """Inputs (batch, time, width) and mask (batch, time) of rows of falling length."""
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    inputs = torch.randn(*mask.shape, lstm.input_weight.size(1), generator=generator).to(lstm.bias)
    return inputs, mask


@every_config
def test_run_lstm_window_agrees_with_projected_lstm_and_its_gradients(config: BiLmConfig) -> None:
    lstm = cast("ProjectedLstm", random_bilm(config).forward_stack[0])
    inputs, mask = padded_inputs(lstm)
    start = random_state(len(inputs), lstm)
    expected, expected_last = lstm(inputs, torch.ones_like(mask), start)
    output, last = run_lstm_window(lstm, inputs, start)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(last.cell, expected_last.cell, **EXACT)
    torch.testing.assert_close(gradients(lstm, output), gradients(lstm, expected), **EXACT)


@every_config
@torch.no_grad()
def test_run_lstm_rows_agrees_with_projected_lstm(config: BiLmConfig) -> None:
    lstm = cast("ProjectedLstm", random_bilm(config).forward_stack[0])
    inputs, mask = padded_inputs(lstm)
    start = random_state(len(inputs), lstm)
    expected, expected_last = lstm(inputs, mask, start)
    output, last = run_lstm_rows(lstm, inputs.transpose(0, 1), LENGTHS, start)
    torch.testing.assert_close(output.transpose(0, 1), expected, **EXACT)
    torch.testing.assert_close(last.hidden, expected_last.hidden, **EXACT)
    torch.testing.assert_close(last.cell, expected_last.cell, **EXACT)


@pytest.mark.usefixtures("kernels")
@every_config
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_frozen_lstm_agrees_with_projected_lstm(config: BiLmConfig, dtype: torch.dtype) -> None:
    lstm = cast("ProjectedLstm", random_bilm(config).to(dtype).forward_stack[0])
    inputs, mask = padded_inputs(lstm)
    start = random_state(len(inputs), lstm)
    expected, expected_last = lstm(inputs, mask, start)
    kernels = choose_kernels(lstm.bias)
    schedule = BatchSchedule.build(LENGTHS, max_slots=3, device=inputs.device)
    token_rows = torch.from_numpy(schedule.token_rows).split(LENGTHS)
    rows = inputs.new_zeros(schedule.n_rows(kernels), inputs.size(2))
    for sentence, own_rows in zip(inputs, token_rows, strict=True):
        rows[own_rows] = sentence[: len(own_rows)]
    outputs = rows.new_zeros(len(rows), start.hidden.size(1))
    last = LstmState(torch.empty_like(start.hidden), torch.empty_like(start.cell))
    freeze_lstm(lstm, kernels).run(rows, schedule, start, outputs=outputs, last=last)
    tolerance = {"rtol": 5e-7, "atol": 2e-6} if dtype == torch.float32 else EXACT
    for k, own_rows in enumerate(token_rows):
        torch.testing.assert_close(outputs[own_rows], expected[k, : LENGTHS[k]], **tolerance)
    torch.testing.assert_close(last.hidden, expected_last.hidden, **tolerance)
    torch.testing.assert_close(last.cell, expected_last.cell, **tolerance)


# --- transformer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_dropout", [False, True], ids=["fused attention", "attention with dropout"])
@pytest.mark.parametrize("is_last", [False, True])
def test_run_transformer_window_agrees_with_transformer_layer_and_its_gradients(
    is_last: bool, has_dropout: bool
) -> None:
    layer = TransformerLayer(width=8, n_heads=2, feed_forward_width=12, is_last=is_last).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) / 2)
    inputs = torch.randn(2, 9, 8, generator=generator, dtype=torch.float64)
    sentences = torch.tensor([[0] * 4 + [1] + [2] * 4, [5] * 9])
    drop_shares = (lambda shares: shares) if has_dropout else None
    output = run_transformer_window(layer, inputs, mask_sentences(sentences), drop_shares=drop_shares)
    expected = torch.empty_like(inputs)
    state = LstmState(torch.zeros(1, 0), torch.zeros(1, 0))
    for row, begin, end in ((0, 0, 4), (0, 4, 5), (0, 5, 9), (1, 0, 9)):  # each sentence by itself
        mask = torch.ones(1, end - begin, dtype=torch.bool)
        expected[row, begin:end] = layer(inputs[row : row + 1, begin:end], mask, state)[0][0]
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(gradients(layer, output), gradients(layer, expected), **EXACT)


# --- softmax ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_samples", [False, True], ids=["full", "sampled"])
@pytest.mark.parametrize("has_sparse_gradient", [False, True])
def test_compute_loss_agrees_with_softmax_and_its_gradients(has_samples: bool, has_sparse_gradient: bool) -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    samples = LogUniformSampler(N_WORDS, 7).draw(torch.Generator().manual_seed(0)) if has_samples else None
    expected = softmax(states, targets) if samples is None else softmax.sampled_loss(states, targets, samples)
    loss = compute_loss(softmax, states, targets, samples=samples, has_sparse_gradient=has_sparse_gradient)
    torch.testing.assert_close(loss, expected, **EXACT)
    torch.testing.assert_close(gradients(softmax, loss), gradients(softmax, expected), **EXACT)


@torch.no_grad()
def test_token_losses_and_log_probabilities_agree_with_softmax() -> None:
    softmax, (states, targets) = random_softmax(), random_tokens(300)
    expected = softmax.token_losses(states, targets)
    torch.testing.assert_close(compute_token_losses(softmax, states, targets), expected, **EXACT)
    frozen = FrozenSoftmax(softmax.word_weights, softmax.bias)
    torch.testing.assert_close(frozen.target_log_probabilities(states, targets), -expected, **EXACT)
    torch.testing.assert_close(frozen.log_probabilities(states), softmax.log_probabilities(states), **EXACT)
