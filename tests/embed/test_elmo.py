"""``Elmo``: encoding, devices, errors, saving."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import elmo as package
from elmo import ConfigError, DataError, Elmo, LayerMix
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True, mix=True))


def test_the_public_names_are_sorted_and_import() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="attribute Elmoo"):
        package.Elmoo  # noqa: B018


def test_one_string_gives_one_result_and_a_list_keeps_its_order(elmo: Elmo) -> None:
    one = elmo.encode(TEXT)
    assert one.tokens == tuple(TEXT.split())
    assert one.vectors.shape == (9, elmo.width)
    assert one.vectors.dtype == np.float32
    many = elmo.encode([TEXT, ["already", "tokenized"], ""])
    assert [len(encoding) for encoding in many] == [9, 2, 0]
    assert many[1].offsets is None
    assert many[2].vectors.shape == (0, elmo.width)
    np.testing.assert_array_equal(many[0].vectors, one.vectors)
    assert elmo.encode([]) == []
    assert [e.tokens for e in elmo.encode(t for t in ["a b", "c"])] == [("a", "b"), ("c",)]


def test_vectors_can_be_tensors_and_have_other_precisions(elmo: Elmo) -> None:
    tensor = elmo.encode(TEXT, as_tensor=True).vectors
    assert isinstance(tensor, torch.Tensor)
    (tensor * torch.ones(1, requires_grad=True)).sum().backward()  # works with autograd
    assert elmo.encode(TEXT, dtype="float16").vectors.dtype == np.float16
    assert elmo.encode(TEXT, dtype="bfloat16", as_tensor=True).vectors.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="dtype must not be bfloat16"):
        elmo.encode(TEXT, dtype="bfloat16")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        elmo.encode(TEXT, dtype="int7")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        elmo.to(dtype="int7")
    exact = Elmo(tiny_model(), dtype="float64").encode(TEXT)
    assert exact.vectors.dtype == np.float64
    np.testing.assert_allclose(Elmo(tiny_model()).encode(TEXT).vectors, exact.vectors, atol=1e-6)


def test_a_missing_device_is_a_config_error(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="device must be one of cpu, cuda, mps, xpu; found 'nowhere'"):
        elmo.to("nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cannot use device cuda"):
            elmo.to("cuda")


@pytest.mark.parametrize(
    ("sentences", "message"),
    [(7, "found int"), ([["a", 3]], "sentence 0"), ([b"bytes"], "found bytes"), ([None], "found NoneType")],
)
def test_input_other_than_text_is_an_error(elmo: Elmo, sentences, message: str) -> None:
    with pytest.raises(DataError, match=message):
        elmo.encode(sentences)


def test_a_saved_model_loads_to_the_same_bits(elmo: Elmo, tmp_path) -> None:
    elmo.save_pretrained(tmp_path / "model")
    again = Elmo.from_pretrained(tmp_path / "model")
    for start in ("zero", "warm"):
        before, after = (e.encode(TEXT, layers="all", start=start).vectors for e in (elmo, again))
        np.testing.assert_array_equal(before, after)


def test_a_saved_model_keeps_the_name_of_its_tokenizer(tmp_path) -> None:
    named = Elmo(tiny_model(), tokenizer="whitespace")
    named.save_pretrained(tmp_path / "named")
    again = Elmo.from_pretrained(tmp_path / "named")
    assert again.encode("don't").tokens == ("don't",)
    Elmo.from_pretrained(tmp_path / "named", tokenizer="en").save_pretrained(tmp_path / "english")
    assert Elmo.from_pretrained(tmp_path / "english").encode("don't").tokens == ("do", "n't")
    Elmo(tiny_model(), tokenizer=again.tokenizer).save_pretrained(tmp_path / "own")  # an object has no name to save
    assert Elmo.from_pretrained(tmp_path / "own").tokenizer.name == "en"


def test_the_network_can_be_trained_in_another_model() -> None:
    elmo = Elmo(tiny_model())
    batch = elmo.batch([["good", "film"], ["bad"]])
    mix, head = LayerMix(elmo.n_layers), torch.nn.Linear(elmo.width, 1)
    elmo.bilm.requires_grad_(True)
    optimizer = torch.optim.Adam([*elmo.bilm.parameters(), *mix.parameters(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(30):
        layers = elmo.bilm(torch.from_numpy(batch.char_ids), lengths=torch.from_numpy(batch.lengths)).layers
        score = head(mix(layers).sum(dim=1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, torch.tensor([1.0, 0.0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_the_repr_of_a_model_is_one_line(elmo: Elmo) -> None:
    assert repr(elmo) == "Elmo(tiny, 3 layers, 8 wide, on cpu)"
    with pytest.raises(ConfigError, match=r"found str; use Elmo\.from_pretrained"):
        Elmo("path/to/model")  # pyright: ignore[reportArgumentType]


def test_a_function_that_returns_a_list_of_strings_is_a_tokenizer() -> None:
    result = Elmo(tiny_model(), tokenizer=str.split).encode("a  b c")
    assert (result.tokens, result.offsets) == (("a", "b", "c"), None)


_LITTLE_MEMORY = """
import resource
import elmo.engine.bilm, torch
from elmo import Elmo, SentenceTooLongError
from tests.formats.tiny import tiny_model
elmo = Elmo(tiny_model(state_width=500, cell_width=500))
elmo.encode("allocate what threads and kernels need before the limit is set")
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), -1))
try:
    elmo.encode([["word"] * 90_000])
except SentenceTooLongError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_sentence_too_long_for_memory_is_an_error_that_names_a_limit() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", _LITTLE_MEMORY], capture_output=True, text=True, env=environment, check=False
    )
    assert "up to 90000 tokens: not enough memory" in done.stdout, done.stderr
    assert done.stdout.endswith("of more than 45000 tokens\n")
