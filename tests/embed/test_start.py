"""Start states: zero, warm and carried."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo import Carry, ConfigError, DataError, Elmo, ShapeError, StateError
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True, mix=True))


def test_with_a_warm_start_vectors_differ_and_depend_on_their_sentence_only(elmo: Elmo) -> None:
    sentences = [TEXT, "a b c", ["x"]]
    warm = elmo.encode(sentences, start="warm", layers="all")
    assert not np.array_equal(warm[0].vectors, elmo.encode(TEXT, layers="all").vectors)
    for k, sentence in enumerate(sentences):
        alone = elmo.encode([sentence], start="warm", layers="all")[0]
        assert alone.vectors.tobytes() == warm[k].vectors.tobytes()


def test_the_error_for_a_missing_warm_state_names_the_command() -> None:
    elmo = Elmo(tiny_model())
    with pytest.raises(StateError, match="elmo warm MODEL TEXT"):
        elmo.encode(TEXT, start="warm")
    state = elmo.warm_up([TEXT, "another line of text", "and one more"] * 5)
    assert state.hidden.shape == (2, 2, 4)
    assert elmo.encode(TEXT, start="warm").vectors.shape == (9, 8)


def test_the_warm_state_is_the_mean_of_the_final_states_of_running_text() -> None:
    elmo = Elmo(tiny_model())
    lines = [[f"w{i}"] for i in range(32)]  # one line per stream, each starts from zero
    left = elmo._engine.run(lines).state
    warm = elmo.warm_up(lines)
    torch.testing.assert_close(warm.hidden, left.hidden.mean(dim=2))
    torch.testing.assert_close(warm.cell, left.cell.mean(dim=2))
    with pytest.raises(DataError, match="the text has no tokens"):
        elmo.warm_up(["", ""])


def test_a_carry_passes_the_state_on_by_batch_row(elmo: Elmo) -> None:
    first, second = [["a", "b"], ["c"]], [["d"], ["e", "f"]]
    carry = Carry()
    elmo.encode(first, start=carry)
    carried = elmo.encode(second, start=carry)
    assert not np.array_equal(carried[0].vectors, elmo.encode(second)[0].vectors)
    one_call, at_once = Carry(), elmo.encode(first + second, start=(one_call_carry := Carry()), batch_size=2)
    del one_call
    np.testing.assert_array_equal(at_once[3].vectors, carried[1].vectors)
    np.testing.assert_array_equal(one_call_carry.state.cell, carry.state.cell)


def test_a_smaller_batch_keeps_the_other_carried_rows_and_a_larger_one_adds_rows_from_zero(elmo: Elmo) -> None:
    carry = Carry()
    elmo.encode([["a"], ["b"]], start=carry)
    kept = carry.state.cell[:, :, 1].clone()
    elmo.encode([["c"]], start=carry)
    assert torch.equal(carry.state.cell[:, :, 1], kept)
    encodings = elmo.encode([["c"], ["d"], ["e"]], start=carry)
    np.testing.assert_array_equal(encodings[2].vectors, elmo.encode([["e"]])[0].vectors)
    with pytest.raises(ShapeError, match="another shape"):
        Elmo(tiny_model(n_layers=1)).encode([["a"]], start=carry)


def test_carry_is_an_object_and_unknown_starts_are_errors(elmo: Elmo) -> None:
    with pytest.raises(StateError, match=r"create one Carry\(\)"):
        elmo.encode(TEXT, start="carry")
    with pytest.raises(ConfigError, match="start must be"):
        elmo.encode(TEXT, start="lukewarm")
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        elmo.encode(TEXT, batch_size=0)
