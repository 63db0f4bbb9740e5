"""The walks in docs/architecture.md list exactly the files that run, and no walk is too long."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import elmo
from elmo import Elmo
from tests.engine.cases import BUILT_VARIANTS
from tests.formats.tiny import tiny_model

pytestmark = pytest.mark.slow

SOURCE = Path(elmo.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
TAGGED = "She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n. O\n\n"


def walk(title: str) -> list[str]:
    """The files in the table of one walk, in order."""
    _, found, rest = PAGE.read_text(encoding="utf-8").partition(f"### {title}\n")
    assert found, f"docs/architecture.md has no section {title!r}"
    section = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([a-z_/]+\.py)` \|", section, re.MULTILINE)


def files_that_run(call: Callable[[], Any]) -> set[str]:
    """The source files of elmo whose functions run, in all threads that start meanwhile."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            files.add(Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix())

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return files


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(2)  # one per direction
    yield
    torch.set_num_threads(n_threads)


def load() -> Elmo:
    return Elmo.from_pretrained("en")


def test_loading_a_model() -> None:
    load()  # imports are not part of the walk
    listed = walk("Load a model")
    assert files_that_run(load) == set(listed)
    assert len(listed) <= 13


def test_encoding_a_sentence() -> None:
    if not BUILT_VARIANTS:
        pytest.skip("the walk uses compiled kernels")
    load().encode("Import everything .")
    model = load()
    listed = walk("Encode a sentence")
    files = files_that_run(lambda: model.encode("I sat by the bank of the river."))
    assert files - set(walk("Load a model")) == set(listed)
    assert len(listed) <= 10


def test_encoding_a_sentence_with_a_transformer() -> None:
    if not BUILT_VARIANTS:
        pytest.skip("the walk uses compiled kernels")

    def load_transformer() -> Elmo:
        return Elmo(tiny_model("chars", is_transformer=True, metadata={"tokenizer": "en"}))

    load_transformer().encode("Import everything .")
    model = load_transformer()
    listed = walk("Encode a sentence with a transformer")
    loading = set(walk("Load a model")) - {"model/lstm.py"} | {"model/transformer.py"}
    assert files_that_run(load_transformer) <= loading
    files = files_that_run(lambda: model.encode("I sat by the bank of the river."))
    assert files - set(walk("Load a model")) == set(listed)


def test_predicting_substitutes() -> None:
    from elmo.lexicon import find_substitutes

    def predict() -> object:
        return find_substitutes(model, ["I sat by the [[bank]] of the river ."])

    model = load()
    predict()
    model = load()
    listed = walk("Predict substitutes")
    assert files_that_run(predict) - set(walk("Load a model")) == set(listed)
    assert len(listed) <= 13


def test_one_training_step(tmp_path: Path) -> None:
    from elmo.train import PRESETS, Trainer, TrainOptions, build_corpus

    text = tmp_path / "text.txt"
    others = " ".join(f"word{k}" for k in range(40))  # enough words to sample a multiple of 16
    text.write_text(f"She sat by the river .\nThe bank lent her money .\n{others} .\n" * 20)
    corpus = build_corpus(text, tmp_path / "corpus")
    options = TrainOptions(n_steps=3, batch_size=2, window=5, n_samples=16)
    listed, files = walk("Take a training step"), set()
    for n_threads in (1, 2):  # the threads of a pool that has started cannot be traced
        torch.set_num_threads(n_threads)
        with Trainer(corpus, PRESETS["tiny"], options, tmp_path / f"run{n_threads}") as trainer:
            trainer.train_step()
            files |= files_that_run(trainer.train_step)
    assert files == set(listed)
    assert len(listed) <= 15


def test_training_a_tagger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elmo import tasks

    monkeypatch.setenv("ELMO_CACHE", str(tmp_path / "cache"))
    for name in ("train.conll", "dev.conll"):
        (tmp_path / name).write_text(TAGGED * 4)

    def train(name: str) -> None:
        data, dev = [tmp_path / "train.conll"], [tmp_path / "dev.conll"]
        tasks.train("tagging", data, out=tmp_path / name, dev=dev, epochs=1)

    train("first.safetensors")  # also fills the feature cache: encoding is a walk of its own
    listed = walk("Train a tagger")
    assert files_that_run(lambda: train("second.safetensors")) - set(walk("Load a model")) == set(listed)
    assert len(listed) <= 22
