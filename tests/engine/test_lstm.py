from __future__ import annotations

import pytest
import torch
from torch import Tensor

from elmo.engine.buffers import BufferPool
from elmo.engine.lstm import run_lstm_window
from elmo.errors import ShapeError
from elmo.model.lstm import LstmState, ProjectedLstm
from tests.engine.cases import assert_close_in_float32, autograd_functions, is_compiled

BATCH, TIME, INPUT, STATE, CELL = 3, 6, 5, 4, 7
VECTORS = {INPUT: 32, STATE: 16, CELL: 80}  # the widths for compiled kernels: whole vectors, but not whole panels

KINDS = {
    "clips": {"cell_clip": 0.4, "state_clip": 0.3, "forget_bias": 1.0},
    "no clips": {"cell_clip": None, "state_clip": None, "forget_bias": 0.0},
    "cell clip": {"cell_clip": 0.4, "state_clip": None, "forget_bias": 1.0},
    "state clip": {"cell_clip": None, "state_clip": 0.3, "forget_bias": 1.0},
    "no projection": {"cell_clip": 0.4, "state_clip": 0.3, "forget_bias": 1.0, "state_width": CELL},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def random_lstm(kind: str, variant: str = "0") -> ProjectedLstm:
    """A layer in float64, as large as the compiled kernels require if ``variant`` selects them."""
    torch.manual_seed(0)
    options = {"input_width": INPUT, "state_width": STATE, "cell_width": CELL, **KINDS[kind]}
    if variant != "0":
        options |= {name: VECTORS[options[name]] for name in ("input_width", "state_width", "cell_width")}
    lstm = ProjectedLstm(**options).double()
    for weight in lstm.parameters():
        torch.nn.init.normal_(weight, std=1 if variant == "0" or weight.dim() == 1 else 2 * weight.size(1) ** -0.5)
    return lstm


def compare(read, expected_read, lstm: ProjectedLstm, variant: str, **window: int) -> None:
    """Compare values and gradients with those of the reference: in float64, or of compiled code in float32."""
    expected = values_and_gradients(expected_read, lstm, **window)
    if variant == "0":
        torch.testing.assert_close(values_and_gradients(read, lstm, **window), expected, rtol=0, atol=1e-10)
    lstm.float()
    inputs, state = random_window(lstm, **window)
    function = "_LstmWindow" if variant == "0" else "_CompiledLstmWindow"
    assert autograd_functions(read(lstm, inputs, state)[0]) == {function}
    assert_close_in_float32(values_and_gradients(read, lstm, **window), expected)


def random_window(lstm: ProjectedLstm, *, batch: int = BATCH, time: int = TIME) -> tuple[Tensor, LstmState]:
    torch.manual_seed(1)
    inputs = torch.randn(batch, time, lstm.input_weight.size(1)).to(lstm.bias)
    # some cells and states beyond the clips, which apply from the first token on
    hidden = 0.2 * torch.randn(batch, lstm.state_weight.size(1)).to(lstm.bias)
    cell = 0.3 * torch.randn(batch, lstm.bias.size(0) // 4).to(lstm.bias)
    return inputs.requires_grad_(), LstmState(hidden.requires_grad_(), cell.requires_grad_())


def reference(lstm: ProjectedLstm, inputs: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
    return lstm(inputs, torch.ones(inputs.shape[:2], dtype=torch.bool), state)


def values_and_gradients(read, lstm: ProjectedLstm, **window: int) -> dict[str, Tensor]:
    inputs, state = random_window(lstm, **window)
    lstm.zero_grad()
    outputs, last = read(lstm, inputs, state)
    torch.manual_seed(2)
    loss = sum((x * torch.randn(x.shape).to(x)).sum() for x in (outputs, last.hidden, last.cell))
    assert isinstance(loss, Tensor)
    loss.backward()
    result = {"outputs": outputs, "hidden": last.hidden, "cell": last.cell}
    gradients = {"inputs": inputs, "start hidden": state.hidden, "start cell": state.cell}
    for name, x in (*gradients.items(), *lstm.named_parameters()):
        assert x.grad is not None, name
        result[f"gradient of {name}"] = x.grad
    return {name: x.detach().clone() for name, x in result.items()}


@every_kind
def test_a_window_has_the_values_and_gradients_of_the_reference(kind: str, variant: str) -> None:
    compare(run_lstm_window, reference, random_lstm(kind, variant), variant)


@pytest.mark.parametrize("window", [{"batch": 1, "time": 1}, {"batch": 7, "time": 2}, {"batch": 40, "time": 3}])
def test_a_window_of_any_size_has_the_values_and_gradients_of_the_reference(window: dict, variant: str) -> None:
    compare(run_lstm_window, reference, random_lstm("clips", variant), variant, **window)


def test_a_first_state_beyond_the_clip_is_not_clipped(variant: str) -> None:
    def far(read):
        def read_from_far(lstm: ProjectedLstm, inputs: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
            assert (3 * state.cell).abs().max() > 2 * lstm.cell_clip
            return read(lstm, inputs, LstmState(3 * state.hidden, 3 * state.cell))

        return read_from_far

    compare(far(run_lstm_window), far(reference), random_lstm("clips", variant), variant)


@every_kind
def test_a_reset_sets_the_state_to_zero_and_stops_gradients(kind: str, variant: str) -> None:
    resets = torch.tensor([[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)

    def step_by_step(lstm: ProjectedLstm, inputs: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        outputs = []
        for t in range(inputs.size(1)):
            keep = (~resets[:, t, None]).to(inputs)
            state = LstmState(state.hidden * keep, state.cell * keep)
            output, state = reference(lstm, inputs[:, t : t + 1], state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def in_one_call(lstm: ProjectedLstm, inputs: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        return run_lstm_window(lstm, inputs, state, resets=resets)

    compare(in_one_call, step_by_step, random_lstm(kind, variant), variant)


def test_some_values_are_clipped_and_some_are_not(variant: str) -> None:
    lstm = random_lstm("clips", variant).float()
    outputs, last = run_lstm_window(lstm, *random_window(lstm))
    for x, clip in ((outputs, KINDS["clips"]["state_clip"]), (last.cell, KINDS["clips"]["cell_clip"])):
        n_clipped = int((x.abs() == torch.tensor(clip)).sum())
        assert 0 < n_clipped < x.numel()


@pytest.mark.parametrize("widths", [(32, 20, 48), (20, 16, 48), (32, 16, 50), (32, 37, 37)])
def test_widths_that_are_no_whole_vectors_use_torch(widths: tuple[int, int, int], variant: str) -> None:
    torch.manual_seed(0)
    n_in, width, n_cells = widths
    options = {"cell_clip": 0.4, "state_clip": 0.3, "forget_bias": 1.0}
    lstm = ProjectedLstm(input_width=n_in, state_width=width, cell_width=n_cells, **options)
    outputs, _ = run_lstm_window(lstm, *random_window(lstm))
    assert autograd_functions(outputs) == {"_LstmWindow"}
    expected, _ = reference(lstm, *random_window(lstm))
    torch.testing.assert_close(outputs, expected, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("variant")
def test_a_window_is_close_to_the_reference_in_float32() -> None:
    torch.manual_seed(0)
    lstm = ProjectedLstm(input_width=32, state_width=32, cell_width=128, cell_clip=3.0, state_clip=3.0, forget_bias=1.0)
    expected = values_and_gradients(reference, lstm, batch=16, time=20)
    result = values_and_gradients(run_lstm_window, lstm, batch=16, time=20)
    for name, x in expected.items():
        torch.testing.assert_close(result[name], x, rtol=0, atol=1e-5 * max(1.0, float(x.abs().max())))


@every_kind
def test_gradients_agree_with_finite_differences(kind: str) -> None:
    lstm = random_lstm(kind)
    inputs, state = random_window(lstm, batch=2, time=3)
    names = [name for name, _ in lstm.named_parameters()]

    def read(inputs: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        changed = ProjectedLstm.__new__(ProjectedLstm)
        changed.__dict__.update(lstm.__dict__, _parameters={**lstm._parameters})
        changed._parameters.update(zip(names, weights, strict=True))
        outputs, last = run_lstm_window(changed, inputs, LstmState(hidden, cell))
        return outputs, last.hidden, last.cell

    everything = (inputs, state.hidden, state.cell, *lstm.parameters())
    assert torch.autograd.gradcheck(read, everything, eps=1e-6, atol=1e-6)


@pytest.mark.usefixtures("compiled_variant")
@pytest.mark.parametrize("clipped", ["cell", "state"])
def test_a_value_exactly_at_the_clip_passes_its_gradient_in_compiled_code(clipped: str) -> None:
    # with zero weights the cell is exactly σ(1) · start, and the clip is set to the largest value
    lstm = ProjectedLstm(input_width=16, state_width=16, cell_width=32, cell_clip=None, state_clip=None, forget_bias=1)
    torch.nn.init.zeros_(lstm.input_weight)
    torch.nn.init.zeros_(lstm.state_weight)
    outputs, last = run_lstm_window(lstm, *random_window(lstm, batch=1, time=1))
    assert autograd_functions(outputs) == {"_CompiledLstmWindow"}
    free = values_and_gradients(run_lstm_window, lstm, batch=1, time=1)
    name, value = ("cell_clip", last.cell) if clipped == "cell" else ("state_clip", outputs)
    setattr(lstm, name, value.abs().max().item())
    torch.testing.assert_close(
        values_and_gradients(run_lstm_window, lstm, batch=1, time=1), free, rtol=0, atol=0
    )  # fmt: skip
    setattr(lstm, name, value.abs().max().item() * (1 - 1e-6))
    lower = values_and_gradients(run_lstm_window, lstm, batch=1, time=1)
    assert not torch.equal(lower["gradient of start cell"], free["gradient of start cell"])
    if clipped == "cell":
        assert lower["gradient of start cell"][0, value[0].abs().argmax()] == 0


@pytest.mark.parametrize("clipped", ["cell", "state"])
def test_a_value_exactly_at_the_clip_passes_its_gradient_as_in_clamp(clipped: str) -> None:
    # with zero weights the cell is exactly σ(1) · start, and the clip is set to that value
    for dtype in (torch.float32, torch.float64):
        lstm = ProjectedLstm(
            input_width=1, state_width=1, cell_width=2, cell_clip=None, state_clip=None, forget_bias=1.0
        ).to(dtype)
        torch.nn.init.zeros_(lstm.input_weight)
        torch.nn.init.zeros_(lstm.state_weight)
        inputs, state = random_window(lstm, batch=1, time=1)
        outputs, last = run_lstm_window(lstm, inputs, state)
        if clipped == "cell":
            lstm.cell_clip = last.cell.abs().max().item()
        else:
            lstm.state_clip = outputs.abs().max().item()
        torch.testing.assert_close(
            values_and_gradients(run_lstm_window, lstm, batch=1, time=1),
            values_and_gradients(reference, lstm, batch=1, time=1),
            rtol=0,
            atol=1e-6,
        )
        free = values_and_gradients(run_lstm_window, lstm, batch=1, time=1)
        assert free["gradient of start cell"].abs().min() > 0
        for name in ("cell_clip", "state_clip"):  # with a slightly lower clip the gradient stops
            clip = getattr(lstm, name)
            setattr(lstm, name, None if clip is None else clip * (1 - 1e-6))
        lower = values_and_gradients(run_lstm_window, lstm, batch=1, time=1)
        assert not torch.equal(lower["gradient of start cell"], free["gradient of start cell"])


@pytest.mark.parametrize("n_cells", [32, 128], ids=["no projection", "projection"])
@pytest.mark.parametrize("has_resets", [False, True])
def test_bfloat16_products_are_close_and_gradients_are_float32(n_cells: int, has_resets: bool, variant: str) -> None:
    torch.manual_seed(0)
    lstm = ProjectedLstm(
        input_width=32, state_width=32, cell_width=n_cells, cell_clip=3.0, state_clip=3.0, forget_bias=1.0
    )
    resets = torch.rand(16, TIME) < 0.2 if has_resets else None

    def read(*args) -> tuple[Tensor, LstmState]:
        return run_lstm_window(*args, resets=resets, has_bf16_products=True)

    def exact(*args) -> tuple[Tensor, LstmState]:
        return run_lstm_window(*args, resets=resets) if has_resets else reference(*args)

    outputs, _ = read(lstm, *random_window(lstm, batch=16))
    assert autograd_functions(outputs) == {"_CompiledLstmWindow" if is_compiled(variant, "bfloat16") else "_LstmWindow"}
    expected = values_and_gradients(exact, lstm, batch=16)
    result = values_and_gradients(read, lstm, batch=16)
    for name, x in expected.items():
        assert result[name].dtype == torch.float32
        assert not torch.equal(result[name], x)
        assert (result[name] - x).norm() < 0.02 * x.norm(), name


@pytest.mark.usefixtures("compiled_variant")
def test_two_parts_of_a_window_have_the_bits_of_the_window_in_compiled_code(compiled_variant: str) -> None:
    lstm = random_lstm("clips", compiled_variant).float()
    inputs, state = random_window(lstm)
    whole, last = run_lstm_window(lstm, inputs, state)
    first, between = run_lstm_window(lstm, inputs[:, :2], state)
    second, end = run_lstm_window(lstm, inputs[:, 2:], between)
    assert autograd_functions(second) == {"_CompiledLstmWindow"}
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(end.hidden, last.hidden)
    assert torch.equal(end.cell, last.cell)


def test_buffers_are_reused_by_the_next_window(variant: str) -> None:
    lstm = random_lstm("clips", variant).float()
    pool = BufferPool()

    def read(*args) -> tuple[Tensor, LstmState]:
        return run_lstm_window(*args, buffers=pool)

    expected = values_and_gradients(run_lstm_window, lstm)
    for _ in range(3):
        with torch.no_grad():
            read(lstm, *random_window(lstm))
        torch.testing.assert_close(values_and_gradients(read, lstm), expected, rtol=0, atol=0)


def test_two_parts_of_a_window_with_the_state_passed_on_equal_the_window() -> None:
    lstm = random_lstm("clips")
    inputs, state = random_window(lstm)
    whole, last = run_lstm_window(lstm, inputs, state)
    first, between = run_lstm_window(lstm, inputs[:, :2], state)
    second, end = run_lstm_window(lstm, inputs[:, 2:], between)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close((end.hidden, end.cell), (last.hidden, last.cell), rtol=0, atol=1e-12)


def test_gradients_are_computed_only_where_they_are_required(variant: str) -> None:
    lstm = random_lstm("clips", variant).float()
    inputs, state = random_window(lstm)
    lstm.requires_grad_(False)
    outputs, _ = run_lstm_window(lstm, inputs, LstmState(state.hidden.detach(), state.cell.detach()))
    outputs.sum().backward()
    assert inputs.grad is not None
    assert all(weight.grad is None for weight in lstm.parameters())


def test_inputs_start_and_weights_are_not_modified(variant: str) -> None:
    lstm = random_lstm("clips", variant).float()
    inputs, state = random_window(lstm)
    before = [x.detach().clone() for x in (inputs, state.hidden, state.cell, *lstm.parameters())]
    outputs, last = run_lstm_window(lstm, inputs, state)
    kept = outputs.detach().clone()
    (outputs.sum() + last.cell.sum()).backward()
    assert torch.equal(outputs, kept)
    for x, y in zip(before, (inputs, state.hidden, state.cell, *lstm.parameters()), strict=True):
        assert torch.equal(x, y)


def test_wrong_shapes_are_reported() -> None:
    lstm = random_lstm("clips")
    inputs, state = random_window(lstm)
    with pytest.raises(ShapeError, match=r"shape \(batch, time, 5\) .* found \(3, 6, 4\)"):
        run_lstm_window(lstm, inputs[:, :, :4], state)
    with pytest.raises(ShapeError, match=r"a state of \(\(2, 4\), \(2, 7\)\), found .*\(\(3, 4\), \(3, 7\)\)"):
        run_lstm_window(lstm, inputs[:2], state)
    with pytest.raises(ShapeError, match=r"found \(3, 0, 5\)"):
        run_lstm_window(lstm, inputs[:, :0], state)
