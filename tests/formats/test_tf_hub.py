from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmo.errors import ElmoError, FormatError
from elmo.formats import tf_hub
from elmo.formats.pretrained import MixWeights, Pretrained
from tests.formats.tiny import assert_same_model, tiny_model
from tests.formats.write_bilm import hub_cell, write_hub_folder


def with_mix(**how: object) -> Pretrained:
    return tiny_model(mix=True, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "how", [{}, {"n_highway": 2}, {"n_layers": 1}, {"cell_width": 4}, {"filters": ((1, 2), (2, 2))}], ids=str
)
@pytest.mark.parametrize("graph", ["saved_model.pb", "tfhub_module.pb"])
def test_a_module_comes_back_bit_by_bit_with_its_mix(tmp_path: Path, how: dict[str, int], graph: str) -> None:
    model = with_mix(**how)
    write_hub_folder(tmp_path, model)
    (tmp_path / "saved_model.pb").rename(tmp_path / graph)
    assert tf_hub.can_read(tmp_path)
    found = tf_hub.read(tmp_path)
    assert_same_model(found, model)
    assert found.mix == MixWeights(model.mix.weights, 1.25)  # type: ignore[union-attr]
    assert found.format == tf_hub.NAME


@pytest.mark.parametrize(
    "template",
    [
        "RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell/{part}",
        "RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/{part}",
        "rnn_{d}/layer{l}/lstm/{part}",
        "{word}/layer_{one}/lstm_cell/{part}",  # counted from 1
        "bidirectional_rnn/{short}/multi_rnn_cell/cell_{l}/lstm_cell/{part}",
        "lstm_{word}/lstm_cell_{l}/{part}",
    ],
)
def test_likely_names_of_the_lstms_are_matched(tmp_path: Path, template: str) -> None:
    def name(direction: int, layer: int, part: str) -> str:
        ending = "projection/kernel" if part == "projection" else part
        word, short = (("forward", "fw"), ("backward", "bw"))[direction]
        return template.format(d=direction, l=layer, one=layer + 1, word=word, short=short, part=ending)

    model = with_mix()
    write_hub_folder(tmp_path, model, cell_name=name)
    assert_same_model(tf_hub.read(tmp_path), model)


def test_the_scope_is_found_in_any_module(tmp_path: Path) -> None:
    model = tiny_model()
    more = {
        "classifier/kernel": np.zeros((3, 3), dtype=np.float32),  # from the surrounding model
        "module/aggregation/weights": np.array([1, 2, 3], dtype=np.float32),
        "module/aggregation/scaling": np.array(0.5, dtype=np.float32),
    }
    write_hub_folder(tmp_path, model, scope="module/bilm/", more=more)
    found = tf_hub.read(tmp_path)
    assert found.mix == MixWeights((1.0, 2.0, 3.0), 0.5)
    assert found.metadata == {"scope": "module/bilm"}


def test_partitioned_variables_are_joined(tmp_path: Path) -> None:
    model = with_mix()
    write_hub_folder(tmp_path, model, slices={"bilm/char_embed": [[(0, 100), (0, None)], [(100, 161), (0, None)]]})
    assert_same_model(tf_hub.read(tmp_path), model)


def test_a_module_without_a_mix_has_none(tmp_path: Path) -> None:
    write_hub_folder(tmp_path, tiny_model())
    assert tf_hub.read(tmp_path).mix is None


@pytest.mark.parametrize(
    ("more", "without", "reason"),
    [
        ({"bilm/forward/backward/cell_0/kernel": (2, 2)}, (), "expected one direction and one layer"),
        ({"bilm/RNN_0/cell_0/cell_1/kernel": (2, 2)}, (), "expected one direction and one layer"),
        ({"bilm/forward/cell_0/kernel": (8, 24)}, (), "both match RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"),
        ({"bilm/gate/kernel": (8, 24)}, (), "unexpected variable 'bilm/gate/kernel'"),
        ({"other/char_embed": (261, 3)}, (), "expected one variable char_embed, found"),
        ({"bilm/char_embed": (262, 3)}, (), "expected 261 rows, found 262"),
        ({"bilm/char_embed": (261,)}, (), "expected 2 axes"),
        ({"bilm/CNN_proj/W_proj": (5, 5)}, (), r"expected \(5, 4\), found \(5, 5\)"),
        ({"bilm/RNN_0/cell_7/kernel": (8, 24)}, (), "unexpected 'bilm/RNN_0/cell_7/kernel'"),
        ({"aggregation/weights": (2,)}, (), r"aggregation/weights: expected \(3,\), found \(2,\)"),
        ({"x/aggregation/weights": (3,)}, (), "expected one aggregation/weights"),
        ({}, ("aggregation/scaling",), "expected one aggregation/weights and one aggregation/scaling"),
        ({}, ("bilm/char_embed",), "expected one variable char_embed"),
        ({}, ("bilm/CNN/W_cnn_0",), "CNN/W_cnn_1|CNN/W_cnn_0"),
        (
            {},
            ("bilm/" + hub_cell(0, 0, "kernel"),),
            "expected a variable for RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0",
        ),
        ({}, ("bilm/" + hub_cell(1, 1, "kernel"),), r"missing RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0 \(8, 24\)"),
        (
            {},
            ("bilm/" + hub_cell(1, 0, "projection"),),
            r"missing RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0 \(6, 4\)",
        ),
    ],
)
def test_ambiguous_or_mismatched_variables_are_refused(
    tmp_path: Path, more: dict[str, tuple[int, ...]], without: tuple[str, ...], reason: str
) -> None:
    arrays = {name: np.zeros(shape, dtype=np.float32) for name, shape in more.items()}
    write_hub_folder(tmp_path, with_mix(), more=arrays, without=without)
    with pytest.raises(ElmoError, match=reason):
        tf_hub.read(tmp_path)


def test_a_name_with_a_line_break_is_reported_in_one_line(tmp_path: Path) -> None:
    def name(direction: int, layer: int, part: str) -> str:
        return hub_cell(direction, layer, part).replace("MultiRNNCell", "a\nb")

    spoiled = {f"bilm/{name(0, 1, 'kernel')}": np.zeros((2, 2), dtype=np.float32)}
    write_hub_folder(tmp_path, tiny_model(), cell_name=name, more=spoiled)
    with pytest.raises(FormatError, match=r"expected \(8, 24\), found \(2, 2\)") as caught:
        tf_hub.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_mix_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    write_hub_folder(tmp_path, with_mix(), more={"aggregation/scaling": np.array(np.nan, dtype=np.float32)})
    with pytest.raises(FormatError, match="not finite"):
        tf_hub.read(tmp_path)


def test_a_linked_folder_of_variables_is_not_followed(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    write_hub_folder(outside, with_mix())
    model.mkdir()
    (model / "saved_model.pb").touch()
    (model / "variables").symlink_to(outside / "variables")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        tf_hub.read(model)


def test_other_folders_are_not_taken_for_modules(tmp_path: Path) -> None:
    write_hub_folder(tmp_path, with_mix())
    (tmp_path / "saved_model.pb").unlink()
    assert not tf_hub.can_read(tmp_path)
    assert not tf_hub.can_read(tmp_path / "nothing")
