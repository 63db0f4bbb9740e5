"""Damaged and hostile folders of our own format are all refused, because every byte has a checksum."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmo.config import BiLmConfig, parameter_shapes
from elmo.formats import native
from tests.formats.damage import Outcome, assert_refused_or_sound, flips_and_cuts, load_all
from tests.formats.tiny import tiny_model

ALL = ("config.json", "model.safetensors", "vocab.txt", "characters.json", "softmax.safetensors",
       "warm.safetensors", "SHA256SUMS")  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native") / "sound"
    model = tiny_model("both", alphabet="unicode", softmax=True, warm=True, mix=True, metadata={"language": "en"})
    native.write(model, folder)
    return folder


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native") / "int8"
    native.write(tiny_model("both", alphabet="unicode", softmax=True, warm=True), folder, dtype="int8")
    return folder


@pytest.fixture(scope="module")
def outcomes(sound: Path, int8: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Load every copy of every kind in one process, because starting one is slow."""
    root = tmp_path_factory.mktemp("cases")
    damaged = flips_and_cuts(sound, n=350, seed=0, into=root / "damaged", names=ALL)
    damaged += flips_and_cuts(int8, n=100, seed=2, into=root / "damaged-int8", names=ALL)
    read = [name for name in ALL if name != "SHA256SUMS"]
    unsigned = flips_and_cuts(sound, n=150, seed=1, into=root / "unsigned", names=read)
    unsigned += flips_and_cuts(int8, n=150, seed=3, into=root / "unsigned-int8", names=read)
    for case in unsigned:
        (case / "SHA256SUMS").unlink()
    hostile = []
    for source, kinds in ((sound, HOSTILE), (int8, HOSTILE_INT8)):
        for name, spoil in kinds.items():
            hostile.append(root / "hostile" / name)
            shutil.copytree(source, hostile[-1])
            spoil(hostile[-1])
            _sign(hostile[-1])
    found = {outcome.case: outcome for outcome in load_all([*damaged, *unsigned, *hostile])}
    groups = {"damaged": damaged, "unsigned": unsigned, "hostile": hostile}
    return {group: [found[case] for case in cases] for group, cases in groups.items()}


@pytest.mark.slow
def test_every_one_of_450_damaged_copies_is_refused(outcomes: dict[str, list[Outcome]]) -> None:
    assert len(outcomes["damaged"]) == 450
    assert_refused_or_sound(outcomes["damaged"], every_one_refused=True)


def test_without_sums_damage_is_refused_or_changes_only_numbers(outcomes: dict[str, list[Outcome]]) -> None:
    """Without SHA256SUMS, which a publisher may omit, the structure must still be safe."""
    assert_refused_or_sound(outcomes["unsigned"])


def test_hostile_folders_are_refused(outcomes: dict[str, list[Outcome]]) -> None:
    assert len(outcomes["hostile"]) >= 70
    assert_refused_or_sound(outcomes["hostile"], every_one_refused=True)


def _sign(folder: Path) -> None:
    """Write correct sums; a hostile publisher can do that too."""
    sums = folder / "SHA256SUMS"
    if not sums.is_file() or sums.stat().st_size > 10_000 or sums.read_bytes().startswith(b"keep"):
        return
    lines = []
    for name in native.ORDER:
        path = folder / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 26:
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")
        else:
            lines.append(f"{'0' * 64}  {name}\n")
    sums.write_text("".join(lines))


def config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        change(values)
        (folder / "config.json").write_text(json.dumps(values))

    return spoil


def header(change: Callable[[dict[str, Any]], Any], name: str = "model.safetensors") -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        values = json.loads(raw[8 : 8 + length])
        change(values)
        text = json.dumps(values).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])

    return spoil


def raw(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def link(name: str, target: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return spoil


def sparse(name: str, start: bytes, size: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.write(start)
            file.truncate(size)

    return spoil


def pipe(folder: Path) -> None:
    (folder / "vocab.txt").unlink()
    os.mkfifo(folder / "vocab.txt")


def set_in(values: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        values = values[key]
    values[last] = value


def huge_but_consistent(folder: Path) -> None:
    """Write a config for 2**36 numbers and a matching header; only the size of the file reveals it."""
    config(lambda v: v["config"]["lstm"].update(cell_width=1 << 16, state_width=1 << 15))(folder)
    values = json.loads((folder / "config.json").read_text())
    offset = 0
    header: dict[str, Any] = {}
    for name, shape in parameter_shapes(BiLmConfig.from_json(values["config"])).items():
        n_bytes = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


FIRST = "backward_stack.0.bias"


def scales(name: str, *values: float) -> Callable[[Path], None]:
    """Overwrite the first scales of a matrix of an int8 model."""

    def spoil(folder: Path) -> None:
        path = folder / ("softmax.safetensors" if name == "weight" else "model.safetensors")
        content = bytearray(path.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        begin = 8 + length + json.loads(content[8 : 8 + length])[f"{name}.scale"]["data_offsets"][0]
        struct.pack_into(f"<{len(values)}f", content, begin, *values)
        path.write_bytes(content)

    return spoil


def huge_int8(folder: Path) -> None:
    """Write a header for a softmax of 2**26 rows in int8; only the size of the file reveals it."""
    config(lambda v: set_in(v, "softmax.n_words", 1 << 26))(folder)
    n = 1 << 26
    header = {
        "bias": {"dtype": "F32", "shape": [n], "data_offsets": [0, 4 * n]},
        "weight.scale": {"dtype": "F32", "shape": [n], "data_offsets": [4 * n, 8 * n]},
        "weight": {"dtype": "I8", "shape": [n, 4], "data_offsets": [8 * n, 12 * n]},
    }
    text = json.dumps(header).encode()
    (folder / "softmax.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


MATRIX = "backward_stack.0.input_weight"  # (24, 4)
HOSTILE_INT8: dict[str, Callable[[Path], None]] = {
    "int8_scale_nan": scales(MATRIX, 0.5, math.nan),
    "int8_scale_infinite": scales(MATRIX, math.inf),
    "int8_scale_negative": scales("token_layer.word_embed.weight", 0.5, -0.5),
    "int8_scale_overflows": scales(MATRIX, 3e38),
    "int8_scale_of_the_softmax_nan": scales("weight", 0.5, math.nan),
    "int8_scale_of_the_softmax_negative": scales("weight", -math.inf),
    "int8_scale_missing": header(lambda v: v.pop(f"{MATRIX}.scale")),
    "int8_scale_of_a_bias": header(lambda v: v.update({f"{FIRST}.scale": v[FIRST]})),
    "int8_scale_is_a_matrix": header(lambda v: v[f"{MATRIX}.scale"].update(shape=[24, 1])),
    "int8_scale_of_fewer_rows": header(lambda v: v[f"{MATRIX}.scale"].update(shape=[6])),
    "int8_scale_of_2_70_rows": header(lambda v: v[f"{MATRIX}.scale"].update(shape=[1 << 70])),
    "int8_scale_in_float16": header(lambda v: v[f"{MATRIX}.scale"].update(dtype="F16", shape=[48])),
    "int8_scale_on_the_numbers": header(lambda v: v[f"{MATRIX}.scale"].update(data_offsets=v[MATRIX]["data_offsets"])),
    "int8_numbers_unsigned": header(lambda v: v[MATRIX].update(dtype="U8")),
    "int8_numbers_transposed": header(lambda v: v[MATRIX].update(shape=[4, 24])),
    "int8_numbers_flat": header(lambda v: v[MATRIX].update(shape=[96])),
    "int8_bias_is_int8": header(lambda v: v[FIRST].update(dtype="I8", shape=[96])),
    "int8_softmax_of_float32": header(lambda v: v["weight"].update(dtype="F32", shape=[9, 1]), "softmax.safetensors"),
    "int8_softmax_of_2_26_rows": huge_int8,
    "int8_in_version_1": config(lambda v: set_in(v, "format_version", 1)),
    "int8_in_version_3": config(lambda v: set_in(v, "format_version", 3)),
    "int8_called_float32": config(lambda v: set_in(v, "dtype", "float32")),
    "int8_called_float32_in_version_1": config(lambda v: v.update(dtype="float32", format_version=1)),
}  # fmt: skip
HOSTILE: dict[str, Callable[[Path], None]] = {
    "no_header_length": raw("model.safetensors", b"\1\2\3"),
    "empty_weights": raw("model.safetensors", b""),
    "header_longer_than_file": raw("model.safetensors", struct.pack("<Q", 1 << 40) + b"{}"),
    "header_of_2_64": raw("model.safetensors", b"\xff" * 8 + b"{}"),
    "header_not_json": raw("model.safetensors", struct.pack("<Q", 4) + b"nope"),
    "header_nested_deep": raw("model.safetensors", struct.pack("<Q", 200_000) + b"[" * 200_000),
    "header_not_utf8": raw("model.safetensors", struct.pack("<Q", 4) + b'{"\xff"'),
    "header_is_a_list": raw("model.safetensors", struct.pack("<Q", 2) + b"[]"),
    "header_twice_one_key": raw("model.safetensors", struct.pack("<Q", 15) + b'{"a":1, "a": 2}'),
    "weights_are_a_pickle": raw("model.safetensors", b"\x80\x04cos\nsystem\n\x8c\x04true\x85R."),
    "sparse_10_gigabytes": sparse("model.safetensors", struct.pack("<Q", 2) + b"{}", 10 << 30),
    "sparse_vocabulary": sparse("vocab.txt", b"a\n", 10 << 30),
    "sparse_config": sparse("config.json", b"{}", 10 << 30),
    "sparse_sums": sparse("SHA256SUMS", b"", 10 << 30),
    "dtype_unknown": header(lambda v: v[FIRST].update(dtype="I64")),
    "dtype_a_list": header(lambda v: v[FIRST].update(dtype=["F32"])),
    "shape_negative": header(lambda v: v[FIRST].update(shape=[-24])),
    "shape_boolean": header(lambda v: v[FIRST].update(shape=[True])),
    "shape_2_70": header(lambda v: v[FIRST].update(shape=[1 << 70])),
    "offsets_beyond_the_end": header(lambda v: v[FIRST].update(data_offsets=[1 << 40, (1 << 40) + 96])),
    "offsets_reversed": header(lambda v: v[FIRST].update(data_offsets=[96, 0])),
    "offsets_overlap": header(lambda v: v["backward_stack.0.input_weight"].update(data_offsets=[0, 384])),
    "entry_null": header(lambda v: v.update({FIRST: None})),
    "entry_missing": header(lambda v: v.pop(FIRST)),
    "entry_extra": header(lambda v: v.update(extra={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})),
    "metadata_no_strings": header(lambda v: v.update(__metadata__={"a": 1})),
    "softmax_with_other_rows": config(lambda v: set_in(v, "softmax.n_words", 10)),
    "softmax_of_2_26_rows": config(lambda v: set_in(v, "softmax.n_words", 1 << 26)),
    "huge_but_consistent": huge_but_consistent,
    "cells_of_2_16": config(lambda v: set_in(v, "config.lstm.cell_width", 1 << 16)),
    "cells_negative": config(lambda v: set_in(v, "config.lstm.cell_width", -6)),
    "layers_of_2_40": config(lambda v: set_in(v, "config.lstm.n_layers", 1 << 40)),
    "clip_with_400_digits": config(lambda v: set_in(v, "config.lstm.cell_clip", 10**400)),
    "clip_not_a_number": raw("config.json", b'{"format": "elmo", "format_version": 1, "config": NaN}'),
    "filters_many": config(lambda v: set_in(v, "config.chars.filters", [[1, 1]] * 50_000)),
    "activation_of_a_megabyte": config(lambda v: set_in(v, "config.chars.activation", "x\n" * 300_000)),
    "config_key_unknown": config(lambda v: set_in(v, "config.lstm.import", "os")),
    "config_nested_deep": raw("config.json", b'{"a":' * 150_000),
    "config_a_list": raw("config.json", b"[]"),
    "vocabulary_fewer_words": config(lambda v: set_in(v, "vocabulary.n_words", 8)),
    "vocabulary_name_no_string": config(lambda v: set_in(v, "vocabulary.bos", 3)),
    "vocabulary_path": config(lambda v: set_in(v, "vocabulary.file", "/etc/passwd")),
    "vocabulary_of_newlines": raw("vocab.txt", b"\n" * (1 << 25)),
    "vocabulary_not_utf8": raw("vocab.txt", b"\xff\xfe\n" * 9),
    "vocabulary_a_link": link("vocab.txt", "/etc/passwd"),
    "vocabulary_a_pipe": pipe,
    "vocabulary_a_device": link("vocab.txt", "/dev/zero"),
    "config_a_link_loop": link("config.json", "config.json"),
    "characters_out_of_range": raw("characters.json", b'{"<bos>": 99}'),
    "characters_not_numbers": raw("characters.json", b'{"<bos>": "1"}'),
    "characters_without_boundaries": raw("characters.json", b'{"a": 1}'),
    "characters_of_brackets": raw("characters.json", b"[" + b"[]," * 349_000 + b"[]]"),
    "mix_of_strings": config(lambda v: set_in(v, "mix.weights", ["1", "2", "3"])),
    "mix_too_long": config(lambda v: set_in(v, "mix.weights", [0.5] * 10_000)),
    "warm_of_another_shape": header(lambda v: v["cell"].update(shape=[2, 6, 2]), "warm.safetensors"),
    "sums_name_a_path": raw("SHA256SUMS", b"keep  ../../etc/passwd\n"),
}  # fmt: skip
