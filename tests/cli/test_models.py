"""``elmo info``, ``convert`` and ``warm`` from the shell."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import Elmo
from elmo.engine.matmul import check_int8_support, check_packed_support
from elmo.formats.pretrained import load
from tests.cli.conftest import Run, assert_fails
from tests.formats.tiny import assert_same_model, tiny_model


def row(out: str, name: str) -> str:
    """Return the value next to a name in a table."""
    (line,) = [line for line in out.splitlines() if line.startswith(name)]
    return line[len(name) :].strip()


def test_info_describes_the_model(run: Run) -> None:
    outcome = run("info", "model")
    assert (outcome.code, outcome.err) == (0, "")
    assert row(outcome.out, "format") == "elmo"
    assert row(outcome.out, "parameters") == "1,856"
    assert row(outcome.out, "layers") == "3, each 8 wide"
    assert row(outcome.out, "vocabulary") == "9 words"
    assert (row(outcome.out, "softmax"), row(outcome.out, "warm state")) == ("yes", "no")
    assert "model.safetensors" in outcome.out


def test_info_as_json_agrees_with_the_table(run: Run) -> None:
    table, info = run("info", "model").out, json.loads(run("info", "model", "--json").out)
    assert info["format"] == row(table, "format")
    assert f"{info['n_parameters']:,}" == row(table, "parameters")
    assert info["fingerprint"] == row(table, "checksum").split()[0]
    assert info["config"]["lstm"]["cell_width"] == 6
    assert info["has_softmax"] is True


def test_info_describes_the_engine(run: Run) -> None:
    outcome = run("info", "model", "--engine")
    assert (outcome.code, outcome.err) == (0, "")
    kernels = Elmo.from_pretrained("model").kernels
    assert row(outcome.out, "products") == f"{kernels.name}, float32: {kernels.reason}"
    assert row(outcome.out, "threads").startswith(str(torch.get_num_threads()))
    info = json.loads(run("info", "model", "--engine", "--json").out)
    assert list(info) == ["products", "threads", "words"]


def test_int8_is_used_or_gives_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = check_packed_support() or check_int8_support()
    arguments = ("embed", "corpus.txt", "--model", "model", "--precision", "int8")
    if missing is None:
        rough, exact = run(*arguments).out, run(*arguments[:-2]).out
        assert rough.count("\n") == exact.count("\n")
        assert rough != exact
        assert "int8" in row(run("info", "model", "--engine", "--precision", "int8").out, "products")
    monkeypatch.setenv("ELMO_KERNELS", "0")  # compiled kernels have been loaded
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert_fails(run(*arguments), "no int8 instructions", "use float32")


def test_info_reads_the_environment_and_archives(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(here / "model.zip", "w") as archive:
        for file in (here / "model").iterdir():
            archive.write(file, file.name)
    monkeypatch.setenv("ELMO_MODEL", "model.zip")
    assert row(run("info").out, "checksum") == row(run("info", "model").out, "checksum")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_damaged_model_is_an_error_in_every_command(run: Run, here: Path, name: str) -> None:
    path = here / "model" / name
    path.write_bytes(path.read_bytes()[:-7] + b"garbage")
    for arguments in (
        ["info", "model"],
        ["convert", "model", "out"],
        ["warm", "model", "corpus.txt"],
        ["embed", "corpus.txt", "--model", "model"],
        ["compare", "a", "a", "a", "--model", "model"],
    ):
        assert_fails(run(*arguments), name)
    assert not (here / "out").exists()


def test_convert_there_and_back_keeps_every_bit(run: Run, here: Path) -> None:
    first = run("convert", "model", "old", "--to", "hdf5")
    assert (first.code, first.out, first.err) == (0, "", "elmo: wrote old\n")
    assert run("info", "old", "--json").out.count("HDF5") == 1
    assert run("convert", "old", "new").code == 0
    assert_same_model(load(here / "new"), tiny_model(softmax=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_convert_can_halve_the_weights(run: Run, here: Path, dtype: str) -> None:
    assert run("convert", "model", "half", "--dtype", dtype).code == 0
    sizes = [(here / folder / "model.safetensors").stat().st_size for folder in ("model", "half")]
    assert sizes[1] < 0.7 * sizes[0]
    assert_fails(run("convert", "model", "half"), "half", "already exists")


def test_warm_adds_a_state_that_embed_starts_from(run: Run, here: Path) -> None:
    assert_fails(run("embed", "corpus.txt", "--model", "model", "--start", "warm"), "elmo warm")
    outcome = run("warm", "model", "corpus.txt", "more")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "elmo: added a warm state to model; use it with --start warm\n"
    assert row(run("info", "model").out, "warm state") == "yes"
    warm = run("embed", "corpus.txt", "--model", "model", "--start", "warm")
    assert warm.code == 0
    assert warm.out != run("embed", "corpus.txt", "--model", "model").out
    elmo = Elmo.from_pretrained(here / "model")
    lines = [
        line for path in ("corpus.txt", "more/a.txt", "more/b.txt") for line in Path(path).read_text().splitlines()
    ]
    stored = elmo.pretrained.warm
    assert stored
    again = elmo.warm_up(lines)
    np.testing.assert_array_equal(stored.hidden, again.hidden)
    np.testing.assert_array_equal(stored.cell, again.cell)


def test_warm_copies_a_model_of_another_format(run: Run, here: Path) -> None:
    run("convert", "model", "old", "--to", "hdf5")
    before = {path: path.read_bytes() for path in (here / "old").iterdir()}
    assert run("warm", "old", "corpus.txt", "--out", "copy").code == 0
    assert row(run("info", "copy").out, "warm state") == "yes"
    assert run("warm", "old", "corpus.txt").code == 0
    assert row(run("info", "old-warm").out, "warm state") == "yes"
    assert_fails(run("warm", "old", "corpus.txt"), "old-warm", "already exists")
    assert {path: path.read_bytes() for path in (here / "old").iterdir()} == before


def test_warm_reads_stdin(run: Run, here: Path) -> None:
    text = (here / "corpus.txt").read_text(encoding="utf-8")
    assert run("warm", "model", "-", "--out", "a", stdin=text).code == 0
    assert run("warm", "model", "corpus.txt", "--out", "b").code == 0
    assert (here / "a" / "warm.safetensors").read_bytes() == (here / "b" / "warm.safetensors").read_bytes()
