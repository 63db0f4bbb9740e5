"""Hundreds of damaged and dozens of hostile EFML folders are refused or load safely."""

from __future__ import annotations

import json
import shutil
import struct
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
from tests.formats.many_langs_folder import CHARACTERS, WORDS, architecture, random_weights, write_folder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_zipped", [False, True], ids=["old stream", "zip"])
def test_no_damage_does_harm(is_zipped: bool, tmp_path: Path) -> None:
    import torch

    weights = random_weights(architecture())
    weights["classifier.pkl"] = {
        "column_emb.weight": torch.ones(len(WORDS), 6), "column_bias.weight": torch.ones(len(WORDS), 1),
    }  # fmt: skip
    model = write_folder(tmp_path / "sound", weights=weights, is_zipped=is_zipped)
    (tmp_path / "cases").mkdir()
    outcomes = load_all(flips_and_cuts(model, n=350, seed=int(is_zipped), into=tmp_path / "cases"))
    assert_refused_or_sound(outcomes)
    assert len(outcomes) == 350


def _dictionary(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def _architecture(**values: object) -> Change:
    return lambda folder: (folder / "tiny.json").write_text(json.dumps(architecture(**values)))  # type: ignore[arg-type]


def _pointing(path: str) -> Change:
    """Point to an architecture outside a folder that has none."""

    def change(folder: Path) -> None:
        (folder / "tiny.json").unlink()
        (folder / "config.json").write_text(json.dumps({"config_path": path}))

    return change


REFUSED: dict[str, Change] = {
    "ids without end": _dictionary("char.dic", "a\t6", "a\t999999999"),
    "an id of a million digits": _dictionary("char.dic", "a\t6", "a\t" + "9" * 1_000_000),
    "a negative id": _dictionary("word.dic", "bank\t4", "bank\t-4"),
    "a doubled character": _dictionary("char.dic", "a\t6", "b\t6"),
    "a doubled word": _dictionary("word.dic", "bank\t4", "de\t4"),
    "no boundaries": _dictionary("word.dic", "<bos>", "<x>"),
    "no unknown character": _dictionary("char.dic", "<oov>", "<x>"),
    "no padding": _dictionary("char.dic", "<pad>", "<x>"),
    "dictionary that is not UTF-8": write_bytes("char.dic", b"\xff\xfe\t0\n" * len(CHARACTERS)),
    "empty dictionary": write_bytes("word.dic", b""),
    "dictionary of empty lines": write_bytes("word.dic", b"\n" * 5_000_000),
    "dictionary of one line": write_bytes("word.dic", b"x" * 20_000_000),
    "dictionary of zeros": write_sparse("char.dic", 1 << 33),
    "dictionary that is a pipe": make_pipe("word.dic"),
    "weights that are a pipe": make_pipe("encoder.pkl"),
    "weights of zeros": write_sparse("encoder.pkl", 1 << 40),
    "weights linked to a device": link_to("encoder.pkl", "/dev/zero"),
    "weights linked to elsewhere": link_to("encoder.pkl", "/etc/passwd"),
    "weights linked to themselves": link_to("encoder.pkl", "encoder.pkl"),
    "config linked to elsewhere": link_to("config.json", "/etc/passwd"),
    "architecture linked to elsewhere": link_to("tiny.json", "/etc/passwd"),
    "dictionary linked to elsewhere": link_to("char.dic", "../../../../../../../../../etc/passwd"),
    "config of brackets": write_bytes("config.json", b"[" * 1_000_000),
    "config that is a list": write_bytes("config.json", b"[]"),
    "config of zeros": write_sparse("config.json", 1 << 33),
    "architecture of text": write_bytes("tiny.json", b'"encoder"'),
    "architecture of layers without end": _architecture(n_layers=10**9),
    "architecture of highways without end": _architecture(n_highway=10**9),
    "architecture of absurd width": _architecture(word=10**15),
    "architecture of an absurd word": _architecture(max_characters_per_token=10**9),
    "architecture that is infinite": write_bytes("tiny.json", b'{"encoder": {"cell_clip": 1e999}}'),
}
SOUND: dict[str, Change] = {
    "architecture at /etc/passwd": _pointing("/etc/passwd"),
    "architecture up and away": _pointing("../../../../../../../../etc/passwd"),
    "architecture at a device": _pointing("/dev/zero"),
    "architecture on a share": _pointing("\\\\server\\share\\x.json"),
}


def _zip_slip() -> bytes:
    return zipped(b"\x80\x02}.", entries={"../../../../tmp/slipped": b"x", "/tmp/slipped": b"x"})


def _zip_of_many_entries() -> bytes:
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 46 * 1_000_000, 4, 0)
    return b"PK\3\4" + (b"PK\1\2" + bytes(42)) * 1_000_000 + end


def test_no_hostile_folder_does_harm(tmp_path: Path) -> None:
    sound = write_folder(tmp_path / "sound")
    touched = tmp_path / MARK_OF_A_RUN
    files = {name: stream(data, keys=["0"], storages=storage()) for name, data in places().items()}
    for name, data in payloads(touched).items():
        files[f"{name}, bare"] = data
        files[f"{name}, streamed"] = stream(data, keys=["0"], storages=storage())
        files[f"{name}, zipped"] = zipped(data, entries={"archive/data/0": bytes(16)})
    files["zip bomb"] = zipped(
        b"\x80\x02}.", entries={"archive/data/0": bytes(1 << 26)}, compression=zipfile.ZIP_DEFLATED
    )
    files |= {"zip slip": _zip_slip(), "zip of many entries": _zip_of_many_entries()}
    changes = {**REFUSED, **{name: write_bytes("token_embedder.pkl", data) for name, data in files.items()}}
    refused, read = (
        [_changed(sound, change, tmp_path / group / str(i)) for i, change in enumerate(group_changes.values())]
        for group, group_changes in (("refused", changes), ("read", SOUND))
    )
    assert len(refused) >= 100
    outcomes = load_all([*refused, *read])
    assert_refused_or_sound(outcomes[: len(refused)], every_one_refused=True)
    for outcome in outcomes[len(refused) :]:
        assert (outcome.result, outcome.violations) == ("loaded", ())
    assert not touched.exists()
    assert not Path("/tmp/slipped").exists()


def _changed(sound: Path, change: Change, folder: Path) -> Path:
    shutil.copytree(sound, folder)
    change(folder)
    return folder
