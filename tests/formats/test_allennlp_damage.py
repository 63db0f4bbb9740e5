"""Hundreds of damaged and dozens of hostile AllenNLP archives are refused or load safely."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.formats.damage import (
    Change,
    assert_refused_or_sound,
    flips_and_cuts,
    link_to,
    load_all,
    make_pipe,
    write_bytes,
    write_sparse,
)
from tests.formats.hostile_pickles import MARK_OF_A_RUN, payloads, places, storage, stream, zipped
from tests.formats.test_allennlp import VARIANTS
from tests.formats.write_allennlp import options, write_folder

pytestmark = pytest.mark.slow

MODEL = VARIANTS["as published"]


@pytest.mark.parametrize("is_zipped", [False, True], ids=["old stream", "zip"])
def test_no_damage_does_harm(is_zipped: bool, tmp_path: Path) -> None:
    model = write_folder(tmp_path / "sound", MODEL, is_zipped=is_zipped)
    (tmp_path / "cases").mkdir()
    outcomes = load_all(flips_and_cuts(model, n=320, seed=int(is_zipped), into=tmp_path / "cases"))
    assert_refused_or_sound(outcomes)
    assert len(outcomes) == 320


def test_no_damaged_archive_does_harm(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sound", MODEL)
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=".")
    (tmp_path / "cases").mkdir()
    assert_refused_or_sound(load_all(flips_and_cuts(tmp_path / "model.tar.gz", n=300, seed=2, into=tmp_path / "cases")))


def _contextualizer(**values: object) -> Change:
    config = options(MODEL)
    config["model"]["contextualizer"] |= values
    return write_bytes("config.json", json.dumps(config).encode())


def _encoder(**values: object) -> Change:
    config = options(MODEL)
    config["model"]["text_field_embedder"]["token_embedders"]["characters"]["encoder"] |= values
    return write_bytes("config.json", json.dumps(config).encode())


_WORDS = "vocabulary/tokens.txt"
HOSTILE: dict[str, Change] = {
    "layers without end": _contextualizer(num_layers=10**9),
    "a negative number of layers": _contextualizer(num_layers=-1),
    "an absurd width": _contextualizer(input_dim=1 << 40),
    "absurdly many hidden units": _contextualizer(hidden_dim=1 << 60),
    "a large width that is allowed": _contextualizer(input_dim=1 << 16, hidden_dim=1 << 16, num_layers=64),
    "highways without end": _encoder(num_highway=10**9),
    "filters without end": _encoder(filters=[[1, 1]] * 100_000),
    "filters of absurd width": _encoder(filters=[[10**15, 1]]),
    "absurdly many filters": _encoder(filters=[[1, 10**15]]),
    "a true number": _encoder(projection_dim=True),
    "an infinite number": write_bytes("config.json", b'{"model": {"contextualizer": {"input_dim": 1e999}}}'),
    "config of brackets": write_bytes("config.json", b"[" * 1_000_000),
    "config that is a list": write_bytes("config.json", b"[]"),
    "config that is a number": write_bytes("config.json", b"1"),
    "model that is text": write_bytes("config.json", b'{"model": "language_model"}'),
    "config of zeros": write_sparse("config.json", 1 << 33),
    "config linked to elsewhere": link_to("config.json", "/etc/passwd"),
    "config that is a pipe": make_pipe("config.json"),
    "weights of zeros": write_sparse("weights.th", 1 << 40),
    "weights that are a pipe": make_pipe("weights.th"),
    "weights linked to a device": link_to("weights.th", "/dev/zero"),
    "weights linked to elsewhere": link_to("weights.th", "/etc/passwd"),
    "weights linked to themselves": link_to("weights.th", "weights.th"),
    "words linked to elsewhere": link_to(_WORDS, "../../../../../../../../../etc/passwd"),
    "words that are a pipe": make_pipe(_WORDS),
    "words of zeros": write_sparse(_WORDS, 1 << 33),
    "words without end": write_bytes(_WORDS, b"\n" * 5_000_000),
    "words that are not UTF-8": write_bytes(_WORDS, b"\xff\xfe\n" * 7),
}


def test_no_hostile_folder_does_harm(tmp_path: Path) -> None:
    sound = write_folder(tmp_path / "sound", MODEL)
    touched = tmp_path / MARK_OF_A_RUN
    files = {name: stream(data, keys=["0"], storages=storage()) for name, data in places().items()}
    for name, data in payloads(touched).items():
        files[f"{name}, bare"] = data
        files[f"{name}, streamed"] = stream(data, keys=["0"], storages=storage())
        files[f"{name}, zipped"] = zipped(data, entries={"archive/data/0": bytes(16)})
    files["zip bomb"] = zipped(
        b"\x80\x02}.", entries={"archive/data/0": bytes(1 << 26)}, compression=zipfile.ZIP_DEFLATED
    )
    changes = HOSTILE | {name: write_bytes("weights.th", data) for name, data in files.items()}
    cases = []
    for number, change in enumerate(changes.values()):
        shutil.copytree(sound, tmp_path / "cases" / str(number))
        change(tmp_path / "cases" / str(number))
        cases.append(tmp_path / "cases" / str(number))
    assert len(HOSTILE) >= 20
    assert_refused_or_sound(load_all(cases), every_one_refused=True)
    assert not touched.exists()
