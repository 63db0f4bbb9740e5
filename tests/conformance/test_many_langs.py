"""Compare our vectors with those of ELMoForManyLangs, from folders that its own code writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import Elmo
from tests.conformance.locations import SCRIPTS, needs_peer, peer_python

pytestmark = [pytest.mark.conformance, needs_peer("many_langs")]

LONG = "donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
CHARACTERS = [
    "<bos>",
    "<eos>",
    "<oov>",
    "<pad>",
    "<bow>",
    "<eow>",
    *"abcdefghinorstuz.,-",
    "ä",
    "é",
    "河",
    "岸",
    "\u3000",
]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "bank", "of", "river", ".", "河岸", "\u3000", LONG[:48], "café"]
SENTENCES = [
    ["the", "bank", "of", "the", "river", "."],
    ["河岸", "\u3000", "河", "口"],
    [LONG, "and", LONG[:48], LONG[:49], LONG[:47]],  # cut before they are looked up
    ["The", "café", "cafe\u0301", "№", "\N{GRINNING FACE}"],
    ["the"],
    ["", "bank"],
    [],
    ["<oov>", "<bow>", "a\u00a0b", "x" * 48, "x" * 500],
    ["bank"] * 40,
]


def architecture(
    *,
    word: int = 5,
    char: int = 4,
    filters: Any = ((1, 3), (2, 4), (3, 5)),
    state: int = 6,
    cell: int = 10,
    **other: Any,
) -> dict[str, Any]:
    return {
        "encoder": {
            "name": "elmo", "projection_dim": state, "dim": cell, "n_layers": other.get("n_layers", 2),
            "cell_clip": other.get("cell_clip", 3), "proj_clip": other.get("proj_clip", 3),
        },
        "token_embedder": {
            "name": "cnn", "activation": other.get("activation", "relu"), "filters": filters,
            "n_highway": other.get("n_highway", 2), "word_dim": word, "char_dim": char,
            "max_characters_per_token": 50,
        },
        "classifier": {"name": other.get("classifier", "sampled_softmax"), "n_samples": 3},
        "dropout": 0.1,
    }  # fmt: skip


CASES = {
    "as published, but small": (architecture(), {"is_file_there": False}),
    "as published, saved by a new torch": (architecture(), {"is_file_there": False, "zipped": True}),
    "with its architecture": (architecture(activation="tanh", n_highway=1), {}),
    "clips that cut": (architecture(cell_clip=0.3, proj_clip=0.05), {"scale": 1.5}),
    "no clips": (architecture(cell_clip=0, proj_clip=0), {"scale": 1.5}),
    "three layers": (architecture(n_layers=3, classifier="softmax"), {}),
    "one layer, no highway": (architecture(n_layers=1, n_highway=0, classifier="softmax"), {}),
    "characters only": (architecture(word=0), {}),
    "characters as wide as the states": (architecture(word=0, state=12, cell=20), {"is_file_there": False}),
    "words only": (architecture(char=0), {"is_file_there": False}),
    "cells as wide as the states": (architecture(state=10, cell=10), {"is_file_there": False}),
    "cells narrower than the states": (architecture(state=10, cell=7), {"zipped": True}),
    "published size": (
        architecture(
            word=100, char=50, state=512, cell=4096,
            filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        ),
        {"is_file_there": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_layer_equals_that_of_its_own_code(case: str, tmp_path: Path) -> None:
    values, options = CASES[case]
    request = {
        "architecture": values, "words": WORDS, "characters": CHARACTERS, "sentences": SENTENCES,
        "zipped": options.get("zipped", False), "scale": options.get("scale", 1.0),
    }  # fmt: skip
    (tmp_path / "request.json").write_text(json.dumps(request), encoding="utf-8")
    folder, vectors = tmp_path / "model", tmp_path / "vectors.npz"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = [peer_python("many_langs"), "-W", "ignore"]
    arguments = [SCRIPTS / "many_langs.py", folder, tmp_path / "request.json", vectors]
    subprocess.run([*python, *arguments], env=environment, check=True, timeout=600)
    if not options.get("is_file_there", True):
        (folder / "architecture.json").unlink()

    elmo = Elmo.from_pretrained(folder)
    found = [encoding.vectors for encoding in elmo.encode(SENTENCES, layers="all")]

    with np.load(vectors) as expected:
        worst = 0.0
        for i, sentence in enumerate(SENTENCES):
            assert found[i].shape == expected[f"arr_{i}"].shape == (elmo.n_layers, len(sentence), elmo.width)
            worst = max(worst, float(np.abs(found[i] - expected[f"arr_{i}"]).max(initial=0)))
            assert not sentence or np.abs(expected[f"arr_{i}"]).max() > 0.01  # something was compared
    print(f"{case}: worst difference {worst:.1e}")
    assert worst < 1e-5
    assert (elmo.softmax is not None) == (values["encoder"]["n_layers"] == 2)
    shutil.rmtree(folder)
