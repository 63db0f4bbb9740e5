"""Hostile models inside each packaging of published models: at least twenty are refused in each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.formats import packaging
from tests.formats.damage import assert_refused_or_sound, load_all
from tests.formats.packaging import packed, zipped
from tests.formats.test_bilm_hdf5_damage import HOSTILE, OPTIONS, set_options
from tests.formats.test_tensorflow_damage import hostile, training_folder
from tests.formats.write_bundle import write_bundle
from tests.formats.write_published import publish

pytestmark = pytest.mark.slow

Pack = Callable[[Path, Path], Path]  # writes the packaging of a folder into another one; returns what is loaded


def as_file(name: str) -> Pack:
    def pack(model: Path, folder: Path) -> Path:
        (folder / name).write_bytes(packed(model, name))
        return folder / name

    return pack


def as_nested(model: Path, folder: Path) -> Path:
    (folder / "x.zip").write_bytes(packaging.nested({"in/y.zip": zipped(model)}))
    return folder / "x.zip"


def as_parts(model: Path, folder: Path) -> Path:
    for k, part in enumerate(packaging.in_parts(packed(model, "x.tgz"), 3)):
        (folder / f"x.tgz.part-0{k}").write_bytes(part)
    return folder


ARCHIVES: dict[str, Pack] = {
    "bz2": as_file("x.tar.bz2"),
    "xz": as_file("x.tar.xz"),
    "nested": as_nested,
    "parts": as_parts,
}


def test_hostile_contents_of_an_archive_are_refused(tmp_path: Path) -> None:
    models = [publish(tmp_path / "models" / str(number)) for number in range(len(OPTIONS) + 2)]
    for model, text in zip(models, OPTIONS.values(), strict=False):
        set_options(model, text)
    (models[-2] / "weights.hdf5").write_bytes(b"cos\nsystem\n(S'touch /tmp/elmo-was-here'\ntR.")
    cases = []
    for name, pack in ARCHIVES.items():
        for number, model in enumerate(models):
            folder = tmp_path / name / str(number)
            folder.mkdir(parents=True)
            cases.append(pack(model, folder))
    outcomes = load_all(cases)
    for first in range(0, len(cases), len(models)):
        *spoiled, sound = outcomes[first : first + len(models)]
        assert sound.result == "loaded"
        assert len(spoiled) >= 20
        assert_refused_or_sound(spoiled, every_one_refused=True)


def hostile_weights(root: Path) -> Iterator[Path]:
    """Yield folders with hostile weights that are called ``elmo.model``."""
    others = ("options", "vocabulary", "softmax")  # other files, and files that take long to write:
    others += ("many", "bomb", "holes", "chunks")
    for spoil in [spoil for spoil in HOSTILE if not spoil.__name__.startswith(others)]:
        folder = publish(root / spoil.__name__ / "model")
        spoil(folder)
        (folder / "weights.hdf5").rename(folder / "elmo.model")
        yield folder


def hostile_saves(root: Path) -> Iterator[Path]:
    """Yield folders with a hostile checkpoint below ``saves``."""
    training_folder(root / "sound")
    write_bundle(root, "outside", {"w": np.ones(3, dtype=np.float32)})
    for number, spoil in enumerate(hostile("bilm")):
        folder = root / f"{number:02d}"
        shutil.copytree(root / "sound", folder)
        spoil(folder)
        saves = folder / "saves" / "epochs" / "3"
        saves.mkdir(parents=True)
        for path in [*folder.glob("model.ckpt*"), folder / "checkpoint"]:
            path.rename(saves / path.name)
        yield folder


@pytest.mark.parametrize("write", [hostile_weights, hostile_saves])
def test_hostile_weights_in_other_places_are_refused(write: Callable[[Path], Iterator[Path]], tmp_path: Path) -> None:
    outcomes = load_all(write(tmp_path))
    assert len(outcomes) >= 20
    assert_refused_or_sound(outcomes, every_one_refused=True)
