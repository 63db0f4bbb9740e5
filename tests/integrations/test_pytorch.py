"""PyTorch: the exported network computes the vectors of the model for any batch, and the example runs."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elmo import ConfigError, Elmo, LayerMix
from elmo.integrations import export_bilm
from tests.formats.tiny import tiny_model

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch" / "classifier.py"
BATCHES = [[["the", "bank"]], [["the", "river", "bank", "of", "it"], ["the"], ["a", "river", "bank"]]]


def inputs_of(elmo: Elmo, batch: list[list[str]]) -> dict[str, torch.Tensor]:
    ids = elmo.batch(batch)
    named = {"char_ids": ids.char_ids, "word_ids": ids.word_ids}
    return {name: torch.as_tensor(part) for name, part in named.items() if part is not None}


def test_a_saved_program_has_the_vectors_of_the_model(tmp_path: Path) -> None:
    elmo = Elmo(tiny_model("both", n_layers=1))  # export takes seconds per layer
    torch.export.save(export_bilm(elmo), tmp_path / "bilm.pt2")
    program = torch.export.load(tmp_path / "bilm.pt2").module()
    for batch in BATCHES:
        states, mask = program(**inputs_of(elmo, batch))
        for row, encoding in enumerate(elmo.encode(batch, layers="all", as_tensor=True)):
            torch.testing.assert_close(states[row, :, mask[row]], encoding.vectors, atol=1e-6, rtol=1e-5)
        assert not states.transpose(1, 2)[~mask].any()


def test_bad_options_give_one_line() -> None:
    with pytest.raises(ConfigError, match="mix must have 3 layers, as the model; found 2"):
        export_bilm(Elmo(tiny_model()), mix=LayerMix(2))
    with pytest.raises(ConfigError, match="must be float32 or float64; found bfloat16"):
        export_bilm(Elmo(tiny_model(), dtype="bfloat16"))


def test_the_example_trains_a_classifier_and_exports_its_mix(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("1 a good film\n0 a bad film\n1 so good !\n0 very bad\n" * 4)
    command = [sys.executable, EXAMPLE, tmp_path / "train.txt", tmp_path / "classifier.pt2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0]
    shares, gamma = re.findall(r"mix (\[.*\]), gamma (.*)", done.stdout)[-1]
    mix = LayerMix(3, weights=[math.log(share) for share in ast.literal_eval(shares)], gamma=float(gamma))
    assert not torch.allclose(mix.shares, torch.full((3,), 1 / 3), atol=1e-3)  # learned
    elmo = Elmo.from_pretrained("en")
    vectors, mask = torch.export.load(tmp_path / "classifier.pt2").module()(**inputs_of(elmo, BATCHES[1]))
    for row, encoding in enumerate(elmo.encode(BATCHES[1], layers=mix, as_tensor=True)):
        torch.testing.assert_close(vectors[row, mask[row]], encoding.vectors, atol=1e-5, rtol=1e-4)
