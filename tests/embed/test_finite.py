"""Results are finite numbers, or an error states why they are not: huge weights, half precision, mixes, inputs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from elmo import lexicon
from elmo.embed import Carry, Elmo, compare, look_inside, similarities, similarity
from elmo.embed.encoding import is_finite
from elmo.embed.finite import MAX_HALF
from elmo.errors import ConfigError, ElmoError, NotFiniteError
from elmo.formats.pretrained import Pretrained
from elmo.model.mix import LayerMix
from elmo.predict import perplexity, predict_expectations, score_sentences
from tests.formats.tiny import tiny_model

TEXT = ["the river bank", "a bank lends money", "x"]
MARKED = ["the [[bank]] of the river", "a [[bank]] lends money"]


def enlarge(model: Pretrained, part: str, factor: float) -> Pretrained:
    """Multiply the weights whose name contains ``part``, as far as they stay finite."""
    weights = {name: weight * factor if part in name else weight for name, weight in model.weights.items()}
    softmax = model.softmax
    if softmax is not None and part == "softmax":
        softmax = replace(softmax, weight=softmax.weight * factor, bias=softmax.bias * factor)
    return replace(model, weights=weights, softmax=softmax)


def names_of_parts() -> list[str]:
    parts = {".".join(part for part in name.split(".") if not part.isdigit()) for name in tiny_model("both").weights}
    return sorted({part.rpartition(".")[0] + "." + part.rpartition(".")[2] for part in parts} | {"", "softmax"})


def usages(elmo: Elmo) -> list[lexicon.Usage]:
    return [lexicon.find_marked_usage(elmo.tokenizer, sentence) for sentence in MARKED]


def explain(elmo: Elmo, method: Any) -> lexicon.Explanation:
    return lexicon.Explainer(elmo, method=method).explain(*usages(elmo))


CALLS: dict[str, Callable[[Elmo], Any]] = {
    "encode": lambda elmo: elmo.encode(TEXT),
    "encode all layers": lambda elmo: elmo.encode(TEXT, layers="all", as_tensor=True),
    "encode concat": lambda elmo: elmo.encode(TEXT, layers="concat", dtype="float16", overflow="saturate"),
    "encode sense": lambda elmo: elmo.encode(TEXT, layers="sense"),
    "encode a mix": lambda elmo: elmo.encode(TEXT, layers=LayerMix(elmo.n_layers, gamma=1e38)),
    "encode with a carry": lambda elmo: [elmo.encode(TEXT, start=carry) for carry in [Carry()] for _ in range(2)],
    "outputs": lambda elmo: elmo.outputs(TEXT),
    "warm up": lambda elmo: elmo.warm_up(TEXT),
    "pool": lambda elmo: [encoding.sentence(how) for encoding in elmo.encode(TEXT) for how in ("mean", "max", "ends")],
    "compare": lambda elmo: compare(elmo, "bank", TEXT[:2], layers="all"),
    "inside": lambda elmo: look_inside(elmo, TEXT[0]),
    "score": lambda elmo: list(score_sentences(elmo, TEXT)),
    "perplexity": lambda elmo: perplexity(elmo, TEXT),
    "expectations": lambda elmo: predict_expectations(elmo, TEXT),
    "substitutes": lambda elmo: lexicon.find_substitutes(elmo, MARKED),
    "explain": lambda elmo: [explain(elmo, method) for method in ("leave-out", "replace", "gradient")],
    "senses": lambda elmo: lexicon.embed_usages(elmo, usages(elmo)),
    "pairs": lambda elmo: similarities(*(encoding.vectors for encoding in elmo.encode(TEXT[:2]))),
}


def assert_finite(value: Any, path: str = "") -> None:
    """Check all numbers of a result, whatever it is made of."""
    if isinstance(value, float | complex | np.floating):
        assert np.isfinite(value), path
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        assert np.isfinite(value).all(), path
    elif isinstance(value, torch.Tensor):
        assert bool(torch.isfinite(value).all()), path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            assert_finite(inner, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | Iterator):
        for k, inner in enumerate(value):
            assert_finite(inner, f"{path}[{k}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            assert_finite(getattr(value, field.name), f"{path}.{field.name}")


CASES = [("both", "float32", part) for part in names_of_parts()]
CASES += [(kind, dtype, "") for kind in ("chars", "words") for dtype in ("float32", "float16", "bfloat16", "float64")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype", "part"), CASES)
def test_every_call_on_huge_weights_gives_finite_numbers_or_names_the_cause(kind: str, dtype: str, part: str) -> None:
    model, messages = tiny_model(kind, softmax=True), []
    for factor in (1e18, 1e37):
        for name, call in CALLS.items():
            try:
                result = call(Elmo(enlarge(model, part, factor), dtype=dtype))
            except ElmoError as error:  # or the weights are infinite, so that the model cannot be loaded
                messages.append(str(error))
            else:
                assert_finite(result, f"{name} with {part or 'all'} × {factor:g}: ")
    causes = ("too large", "float16", "out of range", "finite", "exceed")
    assert [text for text in messages if "\n" in text or not any(cause in text for cause in causes)] == []


def test_the_error_names_the_layer_and_the_token() -> None:
    elmo = Elmo(enlarge(tiny_model(), "token_layer", 3e18))
    with pytest.raises(NotFiniteError, match=r"the vectors of .*layer.* are not finite, first at '\w+': the weights"):
        elmo.encode(TEXT, layers="all")


def finite_model() -> Elmo:
    """A model whose token layer has numbers above the range of float16."""
    elmo = Elmo(enlarge(tiny_model(), "token_layer.projection", 1e7))
    assert np.abs(np.asarray(elmo.encode("the river", layers=0).vectors)).max() > MAX_HALF
    return elmo


def test_vectors_that_overflow_float16_are_saturated_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    elmo = finite_model()
    full = np.asarray(elmo.encode(TEXT[0], layers=0).vectors)
    expected = np.clip(full, -MAX_HALF, MAX_HALF).astype(np.float16)
    with caplog.at_level(logging.WARNING):
        warned = elmo.encode(TEXT * 3, layers=0, dtype="float16")
    assert [record.getMessage() for record in caplog.records] == [
        "some vectors are too large for float16; their numbers were reduced to 65504"
    ]
    assert np.array_equal(np.asarray(warned[0].vectors), expected)
    caplog.clear()
    assert np.array_equal(
        np.asarray(elmo.encode(TEXT[0], layers=0, dtype="float16", overflow="saturate").vectors), expected
    )
    assert not caplog.records
    with pytest.raises(NotFiniteError, match=r"65,504, the largest number in float16 .* overflow='saturate'"):
        elmo.encode(TEXT[0], layers=0, dtype="float16", overflow="error")
    with pytest.raises(ConfigError, match="overflow must be one of warn, saturate, error"):
        elmo.encode(TEXT[0], dtype="float16", overflow="wrap")  # type: ignore[call-overload]


def test_weights_out_of_range_are_refused_and_the_network_stays_as_it_was() -> None:
    elmo = Elmo(enlarge(tiny_model(), "token_layer.projection", 1e7))
    before = np.asarray(elmo.encode(TEXT[0], layers=0).vectors)
    with pytest.raises(NotFiniteError, match=r"cannot convert token_layer\.\S+ to float16: its largest weight"):
        elmo.to(dtype="float16")
    assert elmo.precision == "float32"
    assert np.array_equal(np.asarray(elmo.encode(TEXT[0], layers=0).vectors), before)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
def test_a_mix_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="weights and gamma must be finite"):
        LayerMix(3, gamma=value)
    with pytest.raises(ConfigError, match="weights and gamma must be finite"):
        LayerMix(3, weights=[0.0, value, 0.0])
    elmo = Elmo(tiny_model())
    for name in ("w", "gamma"):
        mix = LayerMix(elmo.n_layers)
        with torch.no_grad():
            getattr(mix, name).fill_(value)  # as after a training run that diverged
        with pytest.raises(NotFiniteError, match="but all layers are: the weights of the LayerMix"):
            elmo.encode(TEXT, layers=mix)


def test_similarities_of_extreme_vectors_are_exact() -> None:
    vectors = np.array([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]])
    expected = similarities(vectors, vectors)
    for scale in (1e-300, 1e-160, 1e160, 1e300):
        assert similarities(vectors * scale, vectors) == pytest.approx(expected)
        assert similarity(vectors[0] * scale, vectors[1] * scale) == pytest.approx(0.96)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(NotFiniteError, match="the vectors 'b' must be finite numbers"):
            similarity(vectors[0], np.array([bad, 1.0]))


def test_large_numbers_whose_sum_overflows_are_finite() -> None:
    values = np.full((3, 4), 3e38, np.float32)
    with np.errstate(all="ignore"):
        assert is_finite(values)
        assert is_finite(torch.from_numpy(values))
        assert is_finite(torch.from_numpy(values).bfloat16())
        assert is_finite(np.full(9, 65504, np.float16))
        assert not is_finite(np.array([1, np.inf, -np.inf], np.float32))
        assert not is_finite(torch.tensor([1.0, float("nan")]).bfloat16())
