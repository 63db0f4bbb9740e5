"""ONNX files, run by ONNX Runtime, compute what the reference network computes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elmo import Elmo, convert
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, parameter_shapes
from elmo.errors import ConfigError, FormatError, OutputError
from elmo.formats import native, onnx
from elmo.formats.pretrained import Pretrained
from elmo.predict import score_sentences
from elmo.text.ids import Vocabulary
from tests.formats.many_langs_folder import write_folder
from tests.formats.tiny import WORDS, tiny_config, tiny_model
from tests.formats.write_published import publish

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

SENTENCES = (
    ["the", "river", "bank"],
    ["café"],
    [],
    ["河岸", "the", "x" * 60, "the", "a"],
    ["\N{GRINNING FACE}", "bank"],
)
TOLERANCE = 2e-6  # absolute, and relative to the largest value of a token above 4
# (cell, state, filters, highways) of AllenNLP's small, medium and original models
SHAPES = {
    "small": (1024, 128, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)), 1),
    "medium": (2048, 256, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)), 1),
    "original": (4096, 512, ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)), 2),
}


def session(content: bytes | Path) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(content if isinstance(content, bytes) else str(content), options)


TINY = tiny_model("chars", max_characters=12)
TINY_GRAPH = session(onnx.build_network(TINY).content)


def feeds(model: Pretrained, sentences: Sequence[Sequence[str]]) -> dict[str, NDArray[np.int32]]:
    """Return the inputs of the graph; padding has ids that no table has."""
    indexer, time = model.indexer(), max(map(len, sentences))
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    inputs: dict[str, NDArray[np.int32]] = {"lengths": lengths}
    for name, has_ids in (("char_ids", indexer.alphabet), ("word_ids", indexer.vocab)):
        if has_ids is not None:
            rows = [getattr(indexer.words(sentence), name) for sentence in sentences]
            inputs[name] = np.full((len(rows), time, *rows[0].shape[1:]), 1 << 30, np.int32)
            for target, row in zip(inputs[name], rows, strict=True):
                target[: len(row)] = row
    return inputs


def run(graph: Any, model: Pretrained, sentences: Sequence[Sequence[str]]) -> dict[str, NDArray[np.float32]]:
    names = ["layers", "prediction_states"]
    return dict(zip(names, graph.run(names, feeds(model, sentences)), strict=True))


def reference(model: Pretrained, sentences: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
    """Return the layers (layer, position, width) of each sentence with its boundaries, computed without a batch."""
    bilm, indexer = Elmo(model).bilm, model.indexer()
    found = []
    for sentence in sentences:
        batch = indexer.batch([sentence])
        ids = [None if x is None else torch.from_numpy(x) for x in (batch.char_ids, batch.word_ids)]
        with torch.inference_mode():
            found.append(bilm(*ids, lengths=torch.from_numpy(batch.lengths)).layers.states[0].numpy())
    return found


def largest_error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest difference, relative to the largest value of a token where that is above 4."""
    scale = np.maximum(np.abs(expected).max(axis=-1, keepdims=True, initial=0) / 4, 1)
    return float((np.abs(found - expected) / scale).max(initial=0))


def assert_agrees(model: Pretrained, sentences: Sequence[Sequence[str]], graph: Any = None) -> None:
    found = run(graph or session(onnx.build_network(model).content), model, sentences)
    time, width = max(map(len, sentences)), model.config.encoder.state_width
    assert found["layers"].shape == (len(sentences), model.config.n_layers, time, 2 * width)
    assert found["prediction_states"].shape == (len(sentences), 2, time + 2, width)
    for k, expected in enumerate(reference(model, sentences)):
        n = len(sentences[k])
        layers, (before, after) = found["layers"][k], found["prediction_states"][k]
        assert largest_error(layers[:, :n], expected[:, 1:-1]) < TOLERANCE
        assert largest_error(before[1 : n + 2], expected[-1, :-1, :width]) < TOLERANCE
        assert largest_error(after[: n + 1], expected[-1, 1:, width:]) < TOLERANCE
        for padding in (layers[:, n:], before[:1], before[n + 2 :], after[n + 1 :]):
            assert not padding.any()


def random_model(config: BiLmConfig) -> Pretrained:
    """Return a model with random weights that keep the scale of their inputs."""
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 100
        weights[name] = torch.randn(shape, generator=generator) * fan_in**-0.5
    return Pretrained(config=config, weights=weights, format="random")


# --- agreement with the reference network ---------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"token": "words"},
        {"token": "both", "alphabet": "unicode", "n_highway": 2},
        {"alphabet": "unicode", "forget_bias": 0.0},
        {"activation": "tanh", "has_skip": False, "n_layers": 3},
        {"state_width": 6, "cell_width": 6, "state_clip": 0.1},  # no projection: its clip has no effect
        {"filters": ((1, 1), (2, 3)), "n_highway": 0, "n_layers": 1},  # no token projection
        {"cell_clip": 0.25, "state_clip": 0.125},
        {"cell_clip": None, "state_clip": None, "max_characters": 7, "filters": ((7, 4), (3, 2))},
        {"is_transformer": True},
        {"is_transformer": True, "n_layers": 3, "highway_width": 4, "has_norm": True},
        {"is_transformer": True, "token": "both", "alphabet": "unicode", "has_norm": True},
    ],
    ids=str,
)
def test_every_kind_of_network_computes_the_layers_of_the_reference(options: dict[str, Any]) -> None:
    assert_agrees(tiny_model(**options), SENTENCES)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.text(max_size=12), max_size=9), min_size=1, max_size=5))
def test_padding_and_order_change_nothing(sentences: list[list[str]]) -> None:
    assert_agrees(TINY, sentences, TINY_GRAPH)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes_agree_within_two_millionths(name: str) -> None:
    cell, state, filters, n_highway = SHAPES[name]
    config = BiLmConfig(
        chars=CharCnnConfig(filters=filters, n_highway=n_highway),
        words=None,
        encoder=LstmConfig(cell_width=cell, state_width=state, cell_clip=0.2, state_clip=0.2),
    )
    model = random_model(config)
    states = reference(model, SENTENCES[:1])[0]  # (layer, position, width)
    is_clipped = np.abs(states[1]) == np.float32(0.2)
    assert 0.005 < is_clipped.mean() < 0.5
    assert np.abs(states[2]).max() > 0.2  # with the skip connection
    assert_agrees(model, SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("en", ["I sat by the bank of the river and watched the boats .", "Hello", "", "It 's café time ! " * 60]),
        ("zh", ["我 坐 在 河 岸 上 看 船 。", "你好", "", "苹果 发布 了 新 手机 。 " * 60]),
    ],
)
def test_bundled_models_agree_with_encode_in_both_precisions(tmp_path: Path, name: str, texts: list[str]) -> None:
    elmo = Elmo.from_pretrained(name)
    sentences = [text.split() for text in texts]
    convert(name, tmp_path / "default", to="onnx")
    convert(name, tmp_path / "single", to="onnx", dtype="float32")
    graph = session(tmp_path / "default/model.onnx")
    assert_agrees(elmo.pretrained, sentences, graph)
    found = run(graph, elmo.pretrained, sentences)
    for layers, encoding in zip(found["layers"], elmo.encode(sentences, layers="all"), strict=True):
        assert largest_error(layers[:, : len(encoding.tokens)], np.asarray(encoding.vectors)) < TOLERANCE
    # the weights of the bundled models are float16 numbers, so this precision is chosen and changes nothing
    assert json.loads((tmp_path / "default/model.json").read_text())["dtype"] == "float16"
    single = run(session(tmp_path / "single/model.onnx"), elmo.pretrained, sentences)
    for key, values in found.items():
        np.testing.assert_array_equal(values, single[key])
    assert (tmp_path / "default/model.onnx").stat().st_size < 10_500_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["en", "zh"])
def test_states_and_softmax_give_the_scores_of_the_language_models(tmp_path: Path, name: str) -> None:
    elmo = Elmo.from_pretrained(name)
    assert elmo.vocab is not None
    assert elmo.softmax is not None
    sentences = [text.split() for text in ("I sat by the bank of the river .", "我 坐 在 河 岸 上", "the")]
    convert(name, tmp_path / "out", to="onnx")
    states = run(session(tmp_path / "out/model.onnx"), elmo.pretrained, sentences)["prediction_states"]
    softmax = session(tmp_path / "out/softmax.onnx")
    for sentence, (before, after), scores in zip(sentences, states, score_sentences(elmo, sentences), strict=True):
        n, ids = len(sentence), elmo.vocab.ids(sentence)
        assert scores.forward is not None
        assert scores.backward is not None
        for rows, targets, expected in (
            (before[1 : n + 2], [*ids, elmo.vocab.eos_id], scores.forward),
            (after[: n + 1], [elmo.vocab.bos_id, *ids], scores.backward),
        ):
            (log_p,) = softmax.run(["log_probabilities"], {"states": rows})
            # a float32 sum of 40,000 probabilities has an error of 2e-5, also in torch
            np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1, atol=5e-5)
            np.testing.assert_allclose(log_p[np.arange(n + 1), targets], expected, atol=5e-5)
    (vectors,) = softmax.run(["word_vectors"], {"states": states[0, 0]})
    np.testing.assert_array_equal(vectors, elmo.softmax.weight.numpy())


def test_the_reference_implementation_of_onnx_agrees() -> None:
    from onnx import checker, load_model_from_string
    from onnx.reference import ReferenceEvaluator

    for model in (tiny_model(), tiny_model("both", alphabet="unicode")):
        proto = load_model_from_string(onnx.build_network(model).content)
        checker.check_model(proto, full_check=True)

        assert_agrees(model, SENTENCES, ReferenceEvaluator(proto))


# --- files ----------------------------------------------------------------------------------------


def test_a_folder_describes_its_files_inputs_and_outputs(tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True, metadata={"tokenizer": "zh"}), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "out", to="onnx")
    values = json.loads((tmp_path / "out/model.json").read_text())
    assert values["format"] == "elmo-onnx"
    assert (values["opset"], values["tokenizer"], values["directions"]) == (20, "zh", "both")
    assert values["alphabet"] == {
        "kind": "bytes", "max_characters": 50, "bow": 259, "eow": 260, "pad": 261, "unknown": None
    }  # fmt: skip
    assert BiLmConfig.from_json(values["config"]) == tiny_config()
    assert (tmp_path / "out/vocab.txt").read_text(encoding="utf-8").split() == list(WORDS)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.onnx", "softmax.onnx", "vocab.txt", "model.json"} == {*values["files"], "model.json"}
    for name, described in values["files"].items():
        content = (tmp_path / "out" / name).read_bytes()
        assert described == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    kinds = {"int32": "tensor(int32)", "float32": "tensor(float)"}
    for name, signature in values["graphs"].items():
        graph = session(tmp_path / "out" / name)
        for found, expected in ((graph.get_inputs(), "inputs"), (graph.get_outputs(), "outputs")):
            described = [(value["name"], kinds[value["dtype"]], value["shape"]) for value in signature[expected]]
            assert described == [(value.name, value.type, value.shape) for value in found]


def test_a_many_langs_model_is_converted_with_the_ids_that_its_graph_reads(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    convert(folder, tmp_path / "out", to="onnx")
    elmo = Elmo.from_pretrained(folder)
    values = json.loads((tmp_path / "out/model.json").read_text())
    characters = json.loads((tmp_path / "out/characters.json").read_text())
    alphabet, word = values["alphabet"], "bané?"
    inner = [characters.get(c, alphabet["unknown"]) for c in word]
    row = [alphabet["bow"], *inner, alphabet["eow"]]
    row += [alphabet["pad"]] * (alphabet["max_characters"] - len(row))
    words = (tmp_path / "out/vocab.txt").read_text(encoding="utf-8").split("\n")
    unknown = words.index(values["vocabulary"]["unknown"]) + 1
    inputs = {"char_ids": [[row]], "word_ids": [[unknown]], "lengths": [1]}
    graph = session(tmp_path / "out/model.onnx")
    (layers,) = graph.run(["layers"], {name: np.array(value, np.int32) for name, value in inputs.items()})
    np.testing.assert_allclose(layers[0], elmo.encode([[word]], layers="all")[0].vectors, atol=TOLERANCE)


def test_a_published_model_is_converted(tmp_path: Path) -> None:
    folder = publish(tmp_path / "model", words=WORDS)
    convert(folder, tmp_path / "out", to="onnx")
    assert_agrees(Elmo.from_pretrained(folder).pretrained, SENTENCES, session(tmp_path / "out/model.onnx"))
    assert not (tmp_path / "out/softmax.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_converting_twice_gives_the_same_bytes(tmp_path: Path, dtype: Any) -> None:
    native.write(tiny_model("both", softmax=True), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a", to="onnx", dtype=dtype)
    source, out = str(tmp_path / "model"), str(tmp_path / "b")
    code = f"from elmo import convert; convert({source!r}, {out!r}, to='onnx', dtype={dtype!r})"
    subprocess.run([sys.executable, "-c", code], check=True)  # another process has another hash seed
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_half_precision_is_the_default_only_if_it_is_exact(tmp_path: Path) -> None:
    exact = {name: weight.half().float() for name, weight in TINY.weights.items()}
    for name, weights in (("exact", exact), ("other", TINY.weights)):
        onnx.write(replace(TINY, weights=weights), tmp_path / name)
    stored = [json.loads((tmp_path / name / "model.json").read_text())["dtype"] for name in ("exact", "other")]
    assert stored == ["float16", "float32"]
    assert_agrees(replace(TINY, weights=exact), SENTENCES, session(tmp_path / "exact/model.onnx"))
    onnx.write(TINY, tmp_path / "rounded", dtype="float16")
    found = run(session(tmp_path / "rounded/model.onnx"), TINY, SENTENCES)["layers"]
    expected = run(TINY_GRAPH, TINY, SENTENCES)["layers"]
    assert 0 < np.abs(found - expected).max() < 2e-3


def quantized(weight: torch.Tensor, largest: int = 127) -> torch.Tensor:
    """Round a matrix to int8 with a scale for each row."""
    if weight.dim() < 2:
        return weight
    rows = weight.flatten(1)
    scales = rows.abs().amax(1, keepdim=True) / largest
    return ((rows / scales.clamp_min(1e-12)).round() * scales).view_as(weight)


@pytest.mark.parametrize("largest", [127, 100])
def test_int8_rows_with_scales_are_found_and_stored_exactly(tmp_path: Path, largest: int) -> None:
    from onnx import load_model_from_string

    model = tiny_model("both", softmax=True, max_characters=12)
    assert model.softmax is not None
    small = replace(
        model,
        weights={name: quantized(weight, largest) for name, weight in model.weights.items()},
        softmax=replace(model.softmax, weight=quantized(model.softmax.weight, largest)),
    )
    onnx.write(small, tmp_path / "int8")
    onnx.write(small, tmp_path / "float32", dtype="float32")
    graph = load_model_from_string((tmp_path / "int8/model.onnx").read_bytes()).graph
    stored = {initializer.name for initializer in graph.initializer}
    wide = [name for name, weight in small.weights.items() if weight.dim() > 1 and weight[0].numel() >= 8]
    assert wide
    assert {f"{name}.int8" for name in wide} <= stored
    found, expected = (run(session(tmp_path / name / "model.onnx"), small, SENTENCES) for name in ("int8", "float32"))
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values)
    states = {"states": expected["prediction_states"].reshape(-1, small.config.lstm.state_width)}
    outputs = [session(tmp_path / name / "softmax.onnx").run(None, states) for name in ("int8", "float32")]
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_scales_are_exact_or_there_are_none() -> None:
    generator = np.random.default_rng(0)
    numbers = generator.integers(-127, 128, (300, 40)).astype(np.int8)
    numbers[5] = 0
    scales = generator.lognormal(-5, 3, 300).astype(np.float32)
    array = numbers.astype(np.float32) * scales[:, None]
    split = onnx.split_scales(array)
    assert split is not None
    np.testing.assert_array_equal(split[0].astype(np.float32) * split[1][:, None], array)
    array[211, 17] = np.nextafter(array[211, 17], np.float32(np.inf))
    assert onnx.split_scales(array) is None
    assert onnx.split_scales(generator.standard_normal((30, 40)).astype(np.float32)) is None


# --- errors ---------------------------------------------------------------------------------------


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.write(TINY, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"^dtype must be float32 or float16 for ONNX; found 'bfloat16'$"):
        convert(tmp_path / "model", tmp_path / "out", to="onnx", dtype="bfloat16")
    large = {name: 1e5 * weight for name, weight in TINY.weights.items()}
    with pytest.raises(OutputError, match=r"^cannot store the weights as float16: .* has values out of range; use"):
        onnx.write(replace(TINY, weights=large), tmp_path / "out", dtype="float16")
    with pytest.raises(OutputError, match="model already exists"):
        convert(tmp_path / "model", tmp_path / "model", to="onnx")
    no_boundaries = replace(tiny_model("words"), vocab=Vocabulary(("a", *WORDS[1:])))
    with pytest.raises(FormatError, match=r"^vocabulary of 9 words must contain the boundary token <S>$"):
        onnx.write(no_boundaries, tmp_path / "out")
    monkeypatch.setattr(onnx, "MAX_WEIGHT_BYTES", 1000)
    with pytest.raises(OutputError, match=r"^an ONNX file must have at most 1,000 bytes; found more; use float16$"):
        convert(tmp_path / "model", tmp_path / "out", to="onnx", dtype="float32")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # nothing half-written is left


@pytest.mark.slow
def test_a_missing_library_is_reported(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from elmo import MissingExtraError, convert\n"
        f"try: convert('en', {str(tmp_path / 'out')!r}, to='onnx')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "ONNX export requires an optional dependency: pip install 'pyelmo[onnx]'\n"
    assert not (tmp_path / "out").exists()
