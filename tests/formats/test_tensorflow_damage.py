from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.formats import write_bundle as made
from tests.formats.damage import assert_refused_or_sound, flips_and_cuts, load_all
from tests.formats.tiny import tiny_model
from tests.formats.write_bilm import write_hub_folder, write_training_folder
from tests.formats.write_bundle import write_bundle

pytestmark = pytest.mark.slow

Write = Callable[[Path], None]
SLICES = [[(0, 100), (0, None)], [(100, 161), (0, None)]]


def training_folder(folder: Path) -> None:
    write_training_folder(folder, tiny_model(softmax=True), slices={"lm/char_embed": SLICES}, n_shards=2, per_block=30)


def hub_folder(folder: Path) -> None:
    write_hub_folder(folder, tiny_model(mix=True), slices={"bilm/char_embed": SLICES}, n_shards=2, per_block=30)


@pytest.mark.parametrize("write", [training_folder, hub_folder])
def test_damaged_checkpoints_are_refused_or_load_unchanged_numbers(tmp_path: Path, write: Write) -> None:
    write(tmp_path / "sound")
    cases = flips_and_cuts(tmp_path / "sound", n=320, seed=0, into=tmp_path / "cases")
    outcomes = load_all([tmp_path / "sound", *cases])
    assert outcomes[0].result == "loaded", outcomes[0]
    assert_refused_or_sound(outcomes)


@pytest.mark.parametrize(
    ("write", "scope"), [(training_folder, "model.ckpt-7"), (hub_folder, "variables")], ids=["bilm", "hub"]
)
def test_damage_to_used_data_is_always_detected(tmp_path: Path, write: Write, scope: str) -> None:
    """Index and data have checksums; only the optimizer's slots, which are not read, may be damaged."""
    write(tmp_path / "sound")
    files = [path.name for path in (tmp_path / "sound").rglob(f"{scope}.*") if path.name.endswith(".index")]
    cases = flips_and_cuts(tmp_path / "sound", n=60, seed=1, into=tmp_path / "cases", names=files)
    if write is hub_folder:  # no slots: every byte of data matters
        data = [path.name for path in (tmp_path / "sound").rglob(f"{scope}.data*")]
        cases += flips_and_cuts(tmp_path / "sound", n=60, seed=2, into=tmp_path / "data", names=data)
    assert_refused_or_sound(load_all(cases), every_one_refused=True)


def index(folder: Path) -> Path:
    return next(path for path in folder.rglob("*.index"))


def with_entry(name: str, entry: bytes) -> Write:
    """Replace the entry of one variable; all checksums are correct."""

    def spoil(folder: Path) -> None:
        from elmo.formats.containers.tf_checkpoint import read_table

        pairs = read_table(index(folder).read_bytes())
        pairs[name.encode()] = entry
        index(folder).write_bytes(made.table(sorted(pairs.items())))

    return spoil


def with_index(data: bytes) -> Write:
    return lambda folder: (index(folder).write_bytes(data), None)[1]


def with_block(content: bytes) -> Write:
    block = made.block([(b"z", made.varint(0) + made.varint(len(content)))])
    return with_index(made.with_footer(made.stored(content), block))


def with_snappy(stream: bytes) -> Write:
    block = made.block([(b"z", made.varint(0) + made.varint(len(stream)))])
    return with_index(made.with_footer(made.stored(stream, compression=1), block))


def with_note(text: str) -> Write:
    return lambda folder: ((folder / "checkpoint").write_text(text), None)[1]


def with_options(**values: object) -> Write:
    def spoil(folder: Path) -> None:
        options = json.loads((folder / "options.json").read_text())
        for path, value in values.items():
            *parts, key = path.split("__")
            target = options
            for part in parts:
                target = target[part]
            target[key] = value
        (folder / "options.json").write_text(json.dumps(options))

    return spoil


def linked(pattern: str, to: str) -> Write:
    def spoil(folder: Path) -> None:
        path = next(folder.rglob(pattern))
        path.unlink()
        path.symlink_to(to)

    return spoil


def piped(pattern: str) -> Write:
    def spoil(folder: Path) -> None:
        path = next(folder.rglob(pattern))
        path.unlink()
        os.mkfifo(path)

    return spoil


def sparse(pattern: str, size: int) -> Write:
    return lambda folder: os.truncate(next(folder.rglob(pattern)), size)


def with_bomb_of_slices(folder: Path) -> None:
    """Let a thousand slices of one huge variable share one kilobyte."""
    boxes = [[(i, 1), (0, None)] for i in range(1000)]
    pairs = {made.slice_key("lm/softmax/W", box): made.entry("float32", (1, 1 << 20), size=4 << 20) for box in boxes}
    pairs[b"lm/softmax/W"] = made.entry("float32", (1000, 1 << 20), slices=boxes)
    pairs[b""] = made.header(1)
    index(folder).write_bytes(made.table(sorted(pairs.items())))
    path = Path(str(index(folder)).removesuffix(".index") + ".data-00000-of-00001")
    path.touch()
    os.truncate(path, 4 << 20)


def with_many_slices(folder: Path) -> None:
    """Write thousands of entries, each with a thousand missing slices."""
    entry = made.entry("float32", [2000], slices=[[(0, 1)]] * 1000)
    pairs = [(b"", made.header(1)), *((f"lm/{i:06d}".encode(), entry) for i in range(100))]
    index(folder).write_bytes(made.table(pairs))


def with_folder_as_data(folder: Path) -> None:
    path = next(folder.rglob("*.data-00000*"))
    path.unlink()
    path.mkdir()


NAMES = {"bilm": "lm/char_embed", "hub": "bilm/char_embed"}
HUGE = (1 << 63) - 1


def hostile(kind: str) -> list[Write]:
    name = NAMES[kind]
    spoilers = [
        with_entry(name, made.entry("float32", [1 << 33, 1 << 30], size=16)),
        with_entry(name, made.entry("float32", [1 << 39, 1 << 39])),  # the product overflows 64 bits
        with_entry(name, made.entry("float32", [261, 3], offset=HUGE - 10, size=261 * 12)),
        with_entry(name, made.entry("float32", [HUGE // 4], size=HUGE)),
        with_entry(name, made.entry("float32", [-261, -3], size=261 * 12)),
        with_entry(name, made.entry("float32", [1] * 2000, size=4)),
        with_entry(name, made.entry("float32", [261, 3], shard=2, size=261 * 12)),
        with_entry(name, made.entry("float32", [261, 3], shard=-1, size=261 * 12)),
        with_entry(name, made.entry("float32", [261, 3], slices=[*SLICES, SLICES[0]])),  # an overlap
        with_entry(name, made.entry("float32", [261, 3], slices=SLICES[:1])),  # a gap
        with_entry(name, made.entry("float32", [261, 3], slices=[[(1 << 40, HUGE)] * 2])),
        with_entry(name, made.entry("string", [261, 3], size=10)),
        with_entry(name, b"\x12" + b"\xff" * 100),
        with_entry("", made.header(1 << 31)),
        with_entry("", made.header(99_999)),
        with_entry("", made.header(endianness=1)),
        with_index(b""),
        with_index(made.footer(b"\xff" * 40)),  # endless numbers
        with_index(made.footer(made.varint(HUGE) * 4)),
        with_index(bytes(1 << 19) + made.footer(made.varint(0) + made.varint(1 << 19) * 3)),
        with_block(b"\0\1\0k" + b"".join(made.varint(i) + b"\1\0k" for i in range(1, 9000)) + bytes(4)),  # keys grow
        with_block(made.block([(b"k" * 900 + i.to_bytes(2, "big"), b"") for i in range(1000)])),
        with_block(b"".join(b"\0\2\0" + i.to_bytes(2, "big") for i in range(60_000)) + bytes(4)),  # too many keys
        with_block(b"\xff" * 200),
        with_snappy(made.varint(1 << 62) + b"\0a"),
        with_snappy(made.varint(1 << 20) + b"\0a" + bytes([63 << 2 | 2, 1, 0]) * (1 << 14)),  # one letter, 1 MB
        with_many_slices,
        with_bomb_of_slices,
        with_folder_as_data,
        linked("*.index", "/etc/passwd"),
        linked("*.data-00000*", "/dev/zero"),
        linked("*.data-00001*", "../../outside.index"),
        linked("*.data-00001*", "../outside.index"),
        piped("*.index"),
        piped("*.data-00000*"),
        sparse("*.index", 1 << 40),
    ]
    if kind == "bilm":
        spoilers += [
            with_note('model_checkpoint_path: "../../../../etc/passwd"'),
            with_note('model_checkpoint_path: "/etc/passwd"'),
            with_note('model_checkpoint_path: ".."'),
            with_note('model_checkpoint_path: "' + "a" * 60_000),
            with_note("model_checkpoint_path" * 50_000),
            linked("checkpoint", "/etc/passwd"),
            piped("checkpoint"),
            piped("options.json"),
            linked("vocab.txt", "/etc/passwd"),
            with_options(lstm__dim=65_536, lstm__projection_dim=65_536),
            with_options(lstm__n_layers=64),
            with_options(lstm__n_layers=10**30),
            with_options(char_cnn__filters=[[50, 65_536]]),
            with_options(char_cnn__n_highway=64),
            with_options(char_cnn=None),
        ]
    else:
        spoilers += [
            with_entry("aggregation/weights", made.entry("float32", [1 << 39], size=8)),
            with_entry("bilm/CNN/W_cnn_9", made.entry("float32", [1, 1, 1, 0])),
            with_entry("bilm/CNN_high_9999999999/W_carry", made.entry("float32", [0])),
            with_entry("bilm/RNN_0/cell_9999/kernel", made.entry("float32", [0])),
        ]
    return spoilers


@pytest.mark.parametrize("kind", ["bilm", "hub"])
def test_hostile_checkpoints_are_refused(tmp_path: Path, kind: str) -> None:
    cases = []
    write_bundle(tmp_path, "outside", {"w": np.ones(3, dtype=np.float32)})
    (training_folder if kind == "bilm" else hub_folder)(tmp_path / "sound")
    for i, spoil in enumerate(hostile(kind)):
        folder = tmp_path / f"{i:02d}"
        shutil.copytree(tmp_path / "sound", folder)
        spoil(folder)
        cases.append(folder)
    outcomes = load_all(cases)
    assert len(outcomes) >= 20
    assert_refused_or_sound(outcomes, every_one_refused=True)
