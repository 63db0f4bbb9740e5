from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import FrameType

import pytest

from elmo import Elmo, formats
from elmo.errors import ConfigError, FormatError, OutputError
from elmo.formats import bilm_hdf5, native
from elmo.formats.pretrained import convert, describe, fingerprint, load
from tests.formats.damage import SOURCE
from tests.formats.tiny import assert_same_model, tiny_model

FIXTURES = Path(__file__).parents[2] / ".." / "shared" / "fixtures"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    native.write(tiny_model(softmax=True, warm=True), tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_loads(folder: Path) -> None:
    model = tiny_model(softmax=True, warm=True)
    assert_same_model(load(folder), model)
    assert_same_model(load(str(folder)), model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "SHA256SUMS"])
def test_one_of_a_models_files_stands_for_its_folder(folder: Path, name: str) -> None:
    assert_same_model(load(folder / name), tiny_model(softmax=True, warm=True))


def test_hdf5_weights_or_options_stand_for_their_folder(tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(), tmp_path / "model")
    for name in ("options.json", "weights.hdf5"):
        found = load(tmp_path / "model" / name)
        assert found.format == bilm_hdf5.NAME
        assert_same_model(found, tiny_model())


def test_with_several_formats_in_one_folder_our_own_is_read(folder: Path, tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(seed=1), tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        path.rename(folder / path.name)
    assert load(folder).format == native.NAME


def test_no_source_is_the_bundled_english_model_and_an_empty_one_is_refused() -> None:
    assert_same_model(load(None), load(formats.bundled_folder("en")))
    assert describe(None).source == "en"
    with pytest.raises(ConfigError, match="model must be a name, a path or a Hub id; found an empty string"):
        load("")


def test_a_folder_without_a_known_format_is_refused_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(FormatError, match=r"expected config\.json with model\.safetensors, .*; found notes\.md"):
        load(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="found nothing"):
        load(tmp_path / "empty")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(FormatError, match=r"notes\.md: expected the folder or archive of a model, found another file"):
        load(tmp_path / "notes.md")


@pytest.mark.parametrize("source", ["/no/such/folder", "no\0such", "x" * 5000, "a/b/c", "..", "\ud800", "-/-", "a b/c"])
def test_a_missing_source_gives_one_line(source: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FormatError) as caught:
        load(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigError("n_words must lie in 1..9"), "{}: n_words must lie in 1..9"),
        (OSError(errno.EIO, "Input/output error"), "cannot read {}: Input/output error"),
    ],
)
def test_sizes_out_of_range_and_a_failing_disk_are_reported_with_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(native, "read", fail)
    with pytest.raises(FormatError) as caught:
        load(folder)
    assert str(caught.value) == message.format(folder)


def test_a_path_object_never_uses_the_network(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FormatError, match="org/name: no such folder, archive or Hub id"):
        load(Path("org/name"))


def test_a_model_is_described(folder: Path) -> None:
    model = tiny_model(softmax=True, warm=True)
    info = describe(folder)
    assert info.format == "elmo"
    assert info.config == model.config
    assert info.n_parameters == sum(weight.numel() for weight in model.weights.values()) - 3  # a padding row
    assert info.n_words == 9
    assert (info.has_softmax, info.has_warm, info.has_mix) == (True, True, False)
    assert info.fingerprint == fingerprint(model)
    assert info.files["model.safetensors"] == (folder / "model.safetensors").stat().st_size
    assert "README.md" not in info.files


def test_an_archive_is_described_by_what_is_in_it(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"top/{path.name}")
    info, plain = describe(tmp_path / "model.zip"), describe(folder)
    assert info.fingerprint == plain.fingerprint
    assert info.files == plain.files


def test_importing_pretrained_does_not_import_heavy_libraries() -> None:
    heavy = {"torch", "h5py", "safetensors", "huggingface_hub"}
    code = f"import sys, elmo.formats.pretrained, elmo.formats.pretrained; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


# --- conversion ----------------------------------------------------------------------------------


def test_a_round_trip_keeps_every_bit_and_the_fingerprint(tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True), tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b", to="hdf5")
    convert(tmp_path / "b", tmp_path / "c", to="native")
    found = load(tmp_path / "c")
    assert_same_model(found, tiny_model(softmax=True))
    assert found.metadata["converted_from"] == bilm_hdf5.NAME
    assert (
        fingerprint(native.read(tmp_path / "a"))
        == fingerprint(native.read(tmp_path / "c"))
        == fingerprint(load(tmp_path / "b"))
    )
    softmax = {fingerprint(native.read(tmp_path / name), with_softmax=True) for name in ("a", "c")}
    assert len({*softmax, fingerprint(load(tmp_path / "b"), with_softmax=True)}) == 1


@pytest.mark.parametrize("name", ["bilm-tf", "allennlp"])
def test_published_fixtures_convert_to_our_format_bit_by_bit(tmp_path: Path, name: str) -> None:
    if not (FIXTURES / name).is_dir():
        pytest.skip("the published fixtures are not here")
    convert(FIXTURES / name, tmp_path / "ours")
    assert_same_model(load(tmp_path / "ours"), load(FIXTURES / name))


def test_impossible_conversions_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dtype must be float32 for to='hdf5'; found 'float16'"):
        convert(folder, tmp_path / "out", to="hdf5", dtype="float16")
    with pytest.raises(ConfigError, match="to must be 'native', 'hdf5' or 'onnx'; found 'gguf'"):
        convert(folder, tmp_path / "out", to="gguf")  # type: ignore[arg-type]
    with pytest.raises(OutputError, match="already exists"):
        convert(folder, folder)


def test_a_mistyped_path_is_not_looked_up_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    for name in ("small/weigths.hdf5", "smal/weights.hdf5", "small/modle", "smal/model.zip"):
        with pytest.raises(FormatError, match=r"no such folder, archive or Hub id \(org/name\)"):
            load(name)


def test_damaged_weights_next_to_other_hdf5_files_are_reported_with_their_damage(tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(softmax=True), tmp_path / "model")
    weights = tmp_path / "model/weights.hdf5"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FormatError, match=r"weights\.hdf5: .*found 1000"):
        load(tmp_path / "model")


@pytest.mark.slow
def test_loading_a_bundled_model_runs_code_in_at_most_twelve_files() -> None:
    """A newcomer can follow ``Elmo.from_pretrained`` from the name of a model to the network."""
    Elmo.from_pretrained("en")  # imports everything
    source = Path(formats.__file__).parents[1]
    files: set[str] = set()

    def record(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(source):
            files.add(path.relative_to(source).as_posix())

    previous = sys.getprofile()
    sys.setprofile(record)
    try:
        Elmo.from_pretrained("en")
    finally:
        sys.setprofile(previous)
    packages = ("formats/", "storage/", "text/", "embed/", "model/", "config.py")
    path = sorted(file for file in files if file.startswith(packages))
    assert "formats/native.py" in path
    assert len(path) <= 12, path
