from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmo.errors import ChecksumError, FormatError, OutputError, StateError
from elmo.formats import native
from elmo.formats.pretrained import SoftmaxWeights, WarmState, describe, fingerprint
from elmo.storage import files
from tests.formats.tiny import WORDS, assert_same_model, tiny_model

OPTIONS = [
    {},
    {"n_layers": 1, "has_skip": False, "activation": "tanh"},
    {"n_layers": 3, "cell_width": 4, "state_width": 4, "cell_clip": None, "state_clip": None},
    {"filters": ((1, 1), (3, 3)), "n_highway": 0},
    {"token": "words"},
    {"token": "both", "alphabet": "unicode", "forget_bias": 0.0},
    {"vocab": True, "metadata": {"language": "en", "nested": {"epochs": 10, "loss": [1.5, None, "é"]}}},
    {"token": "both", "softmax": True, "warm": True, "mix": True},
]
PARTS = {"softmax": True, "warm": True, "mix": True, "alphabet": "unicode", "token": "both"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rewrite_sums(folder: Path) -> None:
    """Update the sums of the files; a hostile publisher can do that too."""
    listed = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in listed]
    (folder / "SHA256SUMS").write_text("".join(lines))


def read_with_softmax(folder: Path) -> SoftmaxWeights:
    """Read a model and its softmax, which is verified on first use."""
    softmax = native.read(folder).softmax
    assert softmax is not None
    assert softmax.weight.dtype == torch.float32
    return softmax


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_written_model_is_read_bit_by_bit(tmp_path: Path, options: dict) -> None:
    model = tiny_model(**options)
    native.write(model, tmp_path / "model")
    assert native.can_read(tmp_path / "model")
    found = native.read(tmp_path / "model")
    assert_same_model(found, model)
    assert found.metadata == {**model.metadata, "converted_from": "tiny"}
    assert found.format == native.NAME


def test_a_model_that_was_read_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    native.write(tiny_model(**PARTS), tmp_path / "a")
    native.write(native.read(tmp_path / "a"), tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_takes_half_the_bytes_and_reads_as_rounded_float32(tmp_path: Path, dtype: str) -> None:
    model = tiny_model(softmax=True)
    native.write(model, tmp_path / "whole")
    native.write(model, tmp_path / "half", dtype=dtype)
    found = native.read(tmp_path / "half")
    for name, weight in model.weights.items():
        assert found.weights[name].dtype == torch.float32
        assert torch.equal(found.weights[name], weight.to(getattr(torch, dtype)).float())
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "half")]
    assert sizes[0] - sizes[1] > 0.4 * sizes[0] - 1000


def test_weights_beyond_float16_are_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    model = tiny_model()
    model.weights["forward_stack.0.bias"][3] = 1e6
    with pytest.raises(OutputError, match=r"as float16: forward_stack\.0\.bias has values that are out of range"):
        native.write(model, tmp_path / "model", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="dtype must be one of float32, float16, bfloat16, int8; found 'int4'"):
        native.write(tiny_model(), tmp_path / "model", dtype="int4")  # type: ignore[arg-type]


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    model = tiny_model()
    model.weights["backward_stack.0.bias"].data = model.weights["forward_stack.0.bias"].data
    native.write(model, tmp_path / "model")
    assert_same_model(native.read(tmp_path / "model"), model)


def test_a_folder_with_something_in_it_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="already exists"):
        native.write(tiny_model(), tmp_path / "model")
    assert content(tmp_path / "model") == {"thesis.txt": b"years of work"}


def test_metadata_that_are_not_json_are_refused(tmp_path: Path) -> None:
    for value in (object(), float("nan")):
        with pytest.raises(OutputError, match="metadata cannot be written as JSON"):
            native.write(tiny_model(metadata={"x": value}), tmp_path / "model")


def test_files_can_be_read_by_others(tmp_path: Path) -> None:
    native.write(tiny_model(**PARTS), tmp_path / "model")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    (tmp_path / "new").touch()
    assert modes == {stat.S_IMODE((tmp_path / "new").stat().st_mode)}


# --- vocabulary ----------------------------------------------------------------------------------


def test_more_words_than_a_reader_takes_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_LINES", 3)
    with pytest.raises(OutputError, match=r"vocab\.txt: expected at most 3 words, found \d+"):
        native.write(tiny_model(softmax=True), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_usual_vocabulary_is_plain_text(tmp_path: Path) -> None:
    native.write(tiny_model(vocab=True), tmp_path / "model")
    assert (tmp_path / "model" / "vocab.txt").read_bytes() == ("\n".join(WORDS) + "\n").encode()


def test_a_backslash_alone_needs_no_escapes(tmp_path: Path) -> None:
    native.write(tiny_model(words=("\\n", "a\\", "\\ud800"), vocab=True), tmp_path / "model")
    assert (tmp_path / "model" / "vocab.txt").read_text() == "\\n\na\\\n\\ud800\n"


WORD = st.text(st.one_of(st.characters(exclude_categories=[]), st.sampled_from("\\nru\n\r\ud800\udfff\u2028\x85")))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORD, min_size=1, max_size=6))
def test_any_words_survive(tmp_path: Path, words: list[str]) -> None:
    shutil.rmtree(tmp_path / "model", ignore_errors=True)
    model = tiny_model(vocab=True, words=tuple(words))
    native.write(model, tmp_path / "model")
    assert native.read(tmp_path / "model").vocab == model.vocab


# --- checksums -----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="coreutils are not installed")
def test_coreutils_check_the_sums(tmp_path: Path) -> None:
    native.write(tiny_model(**PARTS), tmp_path)
    command = ["sha256sum", "-c", "SHA256SUMS"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    read = {"config.json", "model.safetensors", "vocab.txt", "characters.json", "softmax.safetensors"}
    assert {line.split(":")[0] for line in done.stdout.splitlines()} == read | {"warm.safetensors"}


def test_a_changed_file_is_named_with_its_sums(tmp_path: Path) -> None:
    native.write(tiny_model(vocab=True), tmp_path / "model")
    path = tmp_path / "model" / "vocab.txt"
    path.write_text(path.read_text().replace("river", "rivet"), encoding="utf-8")
    with pytest.raises(ChecksumError, match=r"vocab\.txt: expected SHA-256 [0-9a-f]{16}…, found [0-9a-f]{16}…"):
        native.read(tmp_path / "model")
    found = native.read(tmp_path / "model", verify=False).vocab
    assert found is not None
    assert "rivet" in found


def test_a_folder_without_sums_loads_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(**PARTS)
    native.write(model, tmp_path / "model")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    with caplog.at_level(logging.WARNING):
        assert_same_model(native.read(tmp_path / "model"), model)
    assert "has no SHA256SUMS" in caplog.text


def test_the_model_card_may_be_edited(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("# My model")
    native.read(tmp_path / "model")


@pytest.mark.slow
def test_every_single_flip_in_the_sums_is_caught(tmp_path: Path) -> None:
    native.write(tiny_model(**PARTS), tmp_path / "model")
    path = tmp_path / "model" / "SHA256SUMS"
    sound = path.read_bytes()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << at % 8 if at % 3 else 0x20  # 0x20 changes lower case to upper case
        path.write_bytes(damaged)
        with pytest.raises(FormatError):
            read_with_softmax(tmp_path / "model")
    for length in range(len(sound)):  # truncated anywhere, even at the end of a line
        path.write_bytes(sound[:length])
        with pytest.raises(FormatError):
            native.read(tmp_path / "model")


# --- the warm state ------------------------------------------------------------------------------


def warm_state(value: float) -> WarmState:
    return WarmState(torch.full((2, 2, 4), value), torch.full((2, 2, 6), value))


@pytest.mark.parametrize("has_sums", [True, False])
@pytest.mark.parametrize("has_warm", [True, False])
def test_a_warm_state_is_stored_with_a_model(tmp_path: Path, has_warm: bool, has_sums: bool) -> None:
    native.write(tiny_model(warm=has_warm), tmp_path / "model")
    if not has_sums:
        (tmp_path / "model" / "SHA256SUMS").unlink()
    native.add_warm(tmp_path / "model", warm_state(0.5))
    found = native.read(tmp_path / "model").warm
    assert found is not None
    assert torch.equal(found.hidden, warm_state(0.5).hidden)
    assert torch.equal(found.cell, warm_state(0.5).cell)


def test_a_link_in_a_strangers_folder_is_not_written_through(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    (tmp_path / "precious").write_bytes(b"mine")
    for name in (".warm.safetensors.part", ".SHA256SUMS.part", "warm.safetensors"):
        (tmp_path / "model" / name).symlink_to(tmp_path / "precious")
    native.add_warm(tmp_path / "model", warm_state(0.5))
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert native.read(tmp_path / "model").warm is not None


def test_a_warm_state_of_another_model_is_refused(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    before = content(tmp_path / "model")
    with pytest.raises(StateError, match=r"warm state: hidden: expected shape \(2, 2, 4\), found \(2, 1, 4\)"):
        native.add_warm(tmp_path / "model", WarmState(torch.zeros(2, 1, 4), torch.zeros(2, 2, 6)))
    with pytest.raises(StateError, match="cell contains values that are not finite"):
        native.add_warm(tmp_path / "model", WarmState(torch.zeros(2, 2, 4), torch.full((2, 2, 6), torch.nan)))
    assert content(tmp_path / "model") == before


@pytest.mark.slow
@pytest.mark.parametrize("has_warm", [True, False])
def test_a_crash_at_any_step_of_storing_a_warm_state_leaves_a_model_that_loads(tmp_path: Path, has_warm: bool) -> None:
    """A child process stores a warm state and dies before its n-th write, rename or sync."""
    states = []
    for n_steps in range(30):
        folder = tmp_path / str(n_steps)
        native.write(tiny_model(warm=has_warm), folder)
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            child = os.fork()  # newer Pythons warn about threads, which this child never uses
        if child == 0:
            try:
                _die_after(n_steps)
                native.add_warm(folder, warm_state(0.5))
                os._exit(0)
            finally:
                os._exit(2)  # never return to the tests
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 1)
        has_died = code == 1
        warm = native.read(folder).warm
        states.append(None if warm is None else float(warm.cell.flatten()[0]))
        if not has_died:
            break
    assert not has_died
    assert states[-1] == 0.5
    assert n_steps >= 6  # the file and the sums: each written, synced and renamed
    old = states[0]
    assert (old is not None) == has_warm
    changes = [state for state, previous in zip(states[1:], states, strict=False) if state != previous]
    assert changes == ([None, 0.5] if has_warm else [0.5])


def _die_after(n_steps: int) -> None:
    """End this process after n calls that open for writing, ``fsync`` or ``rename``."""
    import sys

    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count > n_steps:
            os._exit(1)

    def audit(event: str, arguments: tuple) -> None:
        if event == "os.rename" or (event == "open" and arguments[1] and set("wx") & set(str(arguments[1]))):
            step()

    sys.addaudithook(audit)
    sync = os.fsync
    os.fsync = lambda descriptor: (step(), sync(descriptor))[1]


# --- what names a model --------------------------------------------------------------------------


def test_the_fingerprint_depends_on_what_vectors_depend_on_and_on_nothing_else(tmp_path: Path) -> None:
    options = {"token": "both", "alphabet": "unicode"}
    model = tiny_model(**options)
    native.write(model, tmp_path / "model")
    same = fingerprint(model)
    assert fingerprint(native.read(tmp_path / "model")) == same
    assert len(same) == 64
    for extra in ({"metadata": {"a": 1}}, {"warm": True}, {"mix": True}, {"softmax": True}, {"cell_clip": 3}):
        assert fingerprint(tiny_model(**options, **extra)) == same, extra
    others = [{"seed": 1}, {"cell_clip": 2.0}, {"has_skip": False}, {"words": (*WORDS[:-1], "other")}]
    found = {fingerprint(tiny_model(**options, **extra)) for extra in others}
    assert len(found | {same}) == 5
    assert fingerprint(tiny_model(**options, warm=True), with_warm=True) != same


# --- refusals ------------------------------------------------------------------------------------


def test_a_config_of_another_program_is_refused(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match=r"config\.json must be a JSON object with format 'elmo'; found None"):
        native.read(tmp_path / "model")


def test_a_newer_version_is_refused_with_the_next_step(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 4}))
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match="format_version must be 1, 2 or 3; found 4; update pyelmo"):
        native.read(tmp_path / "model")


def test_every_mismatch_of_the_weights_is_reported_at_once(tmp_path: Path) -> None:
    native.write(tiny_model(n_layers=2), tmp_path / "two")
    native.write(tiny_model(n_layers=1, cell_width=8), tmp_path / "one")
    shutil.copy(tmp_path / "one" / "model.safetensors", tmp_path / "two" / "model.safetensors")
    rewrite_sums(tmp_path / "two")
    with pytest.raises(FormatError) as caught:
        native.read(tmp_path / "two")
    assert "missing backward_stack.1.input_weight (24, 4)" in str(caught.value)
    assert "forward_stack.0.bias: expected (24,), found (32,)" in str(caught.value)


def test_truncated_weights_are_reported_in_bytes(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match=r"model\.safetensors: .*expected (\d+) bytes of data, found \d+"):
        native.read(tmp_path / "model")


def test_loading_does_not_read_the_softmax(tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    path = tmp_path / "model" / "softmax.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    softmax = native.read(tmp_path / "model").softmax
    assert softmax is not None
    assert softmax.n_words == len(WORDS)
    for _ in range(2):  # the error does not disappear
        with pytest.raises(ChecksumError, match=r"softmax\.safetensors: expected SHA-256"):
            _ = softmax.weight
    with pytest.raises(ChecksumError, match=r"softmax\.safetensors: expected SHA-256"):
        describe(tmp_path / "model")  # as elmo info does


def test_a_softmax_that_is_not_finite_is_reported_on_first_use(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    native.write(model, tmp_path / "model")
    assert model.softmax is not None
    bias = model.softmax.bias.clone()
    bias[1] = float("nan")
    tensors = {"weight": model.softmax.weight, "bias": bias}
    safetensors.torch.save_file(tensors, tmp_path / "model" / "softmax.safetensors", metadata={"format": "pt"})
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match="softmax bias contains values that are not finite"):
        read_with_softmax(tmp_path / "model")


def test_a_softmax_is_read_after_its_file_was_removed_and_can_be_pickled(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    native.write(model, tmp_path / "model")
    softmax = native.read(tmp_path / "model").softmax
    shutil.rmtree(tmp_path / "model")
    assert softmax is not None
    assert model.softmax is not None
    for copy in (pickle.loads(pickle.dumps(softmax)), softmax):
        assert torch.equal(copy.weight, model.softmax.weight)
        assert torch.equal(copy.bias, model.softmax.bias)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_that_are_not_finite_are_named(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    native.write(tiny_model(), tmp_path / "model")
    weights = {name: weight.to(dtype) for name, weight in tiny_model().weights.items()}
    weights["forward_stack.0.bias"][3] = value
    safetensors.torch.save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match=r"model: forward_stack\.0\.bias contains values that are not finite$"):
        native.read(tmp_path / "model")


def test_a_float64_weight_that_float32_cannot_store_is_named(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    weights = {name: weight.double() for name, weight in tiny_model().weights.items()}
    weights["forward_stack.0.bias"][3] = 1e300
    safetensors.torch.save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    rewrite_sums(tmp_path / "model")
    with pytest.raises(FormatError, match=r"forward_stack\.0\.bias contains values that are not finite"):
        native.read(tmp_path / "model")


def test_large_finite_weights_are_accepted(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    assert model.softmax is not None
    model.softmax.weight.fill_(3e38)  # their sum overflows
    model.weights["forward_stack.0.bias"].fill_(3e38)
    native.write(model, tmp_path / "model")
    assert torch.equal(read_with_softmax(tmp_path / "model").weight, model.softmax.weight)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the memory of a process")
def test_mapped_weights_take_no_memory_before_they_are_used(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import safetensors.torch, torch
from elmo.embed.elmo import Elmo
def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])  # kB
Elmo.from_pretrained(sys.argv[1])  # imports what loading needs
before = resident()
elmo = Elmo.from_pretrained(sys.argv[2])
print(resident() - before, sum(w.sum().item() for w in elmo.bilm.parameters()) and resident() - before)
"""
    native.write(tiny_model(softmax=True), tmp_path / "tiny")
    native.write(tiny_model(cell_width=8192, state_width=64, softmax=True), tmp_path / "large")
    size = (tmp_path / "large" / "model.safetensors").stat().st_size / 1024
    assert size > 65536
    arguments = [sys.executable, "-c", code, tmp_path / "tiny", tmp_path / "large"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    unused, used = map(int, done.stdout.split())
    assert unused < size / 4
    assert used > size / 2  # so the first number means something


def test_a_listed_but_missing_softmax_is_reported(tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    (tmp_path / "model" / "softmax.safetensors").unlink()
    with pytest.raises(FormatError, match=r"expected a file softmax\.safetensors, found none"):
        native.read(tmp_path / "model")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "elsewhere")
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        native.read(tmp_path / "model")


def test_weights_read_into_memory_outlive_their_file(tmp_path: Path) -> None:
    model = tiny_model(softmax=True, warm=True)
    native.write(model, tmp_path / "model")
    found = native.read(tmp_path / "model", is_mapped=False)
    for path in (tmp_path / "model").glob("*.safetensors"):
        path.write_bytes(b"\xff" * path.stat().st_size)  # in place: a mapped tensor would change
    assert_same_model(found, model)


# --- the model card ------------------------------------------------------------------------------


def test_the_card_has_front_matter_for_the_hub(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    metadata = {"language": ["en", "fr"], "licence": "apache-2.0"}
    native.write(tiny_model(softmax=True, metadata=metadata), tmp_path / "model")
    _, front, body = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["library_name"] == "pyelmo"
    assert "elmo" in values["tags"]
    assert values["language"] == ["en", "fr"]
    assert values["license"] == "apache-2.0"
    assert "| Vocabulary | 9 words |" in body


def test_hostile_metadata_cannot_break_the_card(tmp_path: Path) -> None:
    metadata = {"language": "en\n---\nevil: true", "license": ['"', {"a": 1}], "converted_from": "a|b\n\ud800"}
    native.write(tiny_model(metadata=metadata), tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "evil" not in card
    assert "license:" not in card
    assert "| Converted from | a\\|b ? |" in card


def test_an_odd_softmax_survives(tmp_path: Path) -> None:
    model = tiny_model()  # a softmax without a vocabulary: some checkpoints come without their words
    softmax = SoftmaxWeights(torch.randn(7, 4), torch.randn(7))
    model = type(model)(config=model.config, weights=model.weights, format="tiny", softmax=softmax)
    native.write(model, tmp_path / "model")
    assert_same_model(native.read(tmp_path / "model"), model)
