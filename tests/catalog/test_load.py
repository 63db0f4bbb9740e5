"""Every published name resolves: it loads from files of its layout, or ends with one line that says what to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from elmo import Elmo
from elmo.catalog import CatalogModel, list_models
from elmo.errors import ChecksumError, DownloadError, ElmoError, FormatError
from elmo.formats import bundled_folder, convert, describe, fetch, load, native, pretrained
from tests.catalog.file_server import FileServer
from tests.formats import packaging, write_allennlp
from tests.formats.hub_server import COMMIT, serving
from tests.formats.tiny import assert_same_model, tiny_model

MODELS = list_models()
DOWNLOADS = [m for m in MODELS if m.files and not m.unsupported]
BY_HAND = [m for m in MODELS if m.availability == "by hand"]
UNSUPPORTED = [m for m in MODELS if m.unsupported]


@pytest.fixture(autouse=True)
def mirror(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses lead to the local server."""
    monkeypatch.setenv("ELMO_MIRROR", server.address)
    pretrained._announce.cache_clear()


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each format, as its publishers lay it out."""
    root = tmp_path_factory.mktemp("layouts")
    packaging.hdf5(root / "bilm-tf HDF5", vocab="vocab.txt")
    packaging.checkpoint(root / "bilm-tf checkpoint", has_pointer=False)
    packaging.deeppavlov(root / "deeppavlov")
    packaging.hub_module(root / "TF-Hub module")
    packaging.many_langs(root / "ELMoForManyLangs")
    write_allennlp.write_folder(
        root / "AllenNLP transformer", tiny_model(softmax=True, is_transformer=True, state_width=8)
    )
    return root, {path.name: path for path in root.iterdir()}  # type: ignore[return-value]


@pytest.fixture
def published(layouts, tmp_path: Path):
    """Return a function that returns the files of a model, by name."""
    _, folders = layouts

    def files_of(model: CatalogModel) -> dict[str, bytes]:
        names = [file.name for file in model.files] or ["elmo.zip"]
        folder = folders["deeppavlov" if model.name.startswith("deeppavlov/") and "checkpoint" in model.format
                         else model.format]  # fmt: skip
        if ".part-" in names[0]:
            whole = packaging.packed(folder, "x.tgz", below="bilm-output-result")
            return dict(zip(names, packaging.in_parts(whole, len(names)), strict=True))
        if len(names) == 1:
            return {names[0]: packaging.packed(folder, names[0], below="a/b")}
        if "checkpoint" in model.format:
            step = int(next(name for name in names if name.endswith(".index"))[len("model.ckpt-") : -len(".index")])
            vocab = next(name for name in names if "vocab" in name)
            packaging.checkpoint(tmp_path / "m", step=step, vocab=vocab, has_pointer="checkpoint" in names)
        else:
            options, softmax, vocab = (
                next((name for name in names if role in name), None) for role in ("options", "softmax", "vocab")
            )
            weights = next(name for name in names if name.endswith(".hdf5") and "softmax" not in name)
            packaging.hdf5(tmp_path / "m", options=str(options), weights=weights, softmax=softmax, vocab=vocab)
        return {name: (tmp_path / "m" / name).read_bytes() for name in names}

    return files_of


@pytest.mark.parametrize("model", DOWNLOADS, ids=lambda model: model.name)
def test_a_name_loads_from_files_of_its_layout(
    server: FileServer, published, model: CatalogModel, caplog: pytest.LogCaptureFixture
) -> None:
    server.files = {f"{model.name}/{name}": content for name, content in published(model).items()}
    if any(file.checksum for file in model.files):  # published checksums are those of the real files
        with pytest.raises(ElmoError, match="expected the published"):
            load(model.name)
        return
    found = load(model.name)
    assert found.format == model.format
    assert found.metadata["catalog"] == model.name
    assert found.metadata["tokenizer"] == model.tokenizer
    if "softmax" in model.contains:
        assert found.softmax is not None
    records = [record for record in caplog.records if "expects" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.WARNING] * (model.input != "tokenized text")
    server.files.clear()
    load((model.aliases or (model.name,))[0])  # from the cache
    assert len(server.requests) == len(model.files)
    assert len([record for record in caplog.records if "expects" in record.getMessage()]) == len(records)  # once


@pytest.mark.parametrize("model", BY_HAND, ids=lambda model: model.name)
def test_a_model_without_an_address_is_found_where_its_line_says(
    server: FileServer, published, model: CatalogModel, cache: Path
) -> None:
    with pytest.raises(DownloadError) as caught:
        load(model.name)
    folder = cache / "by-hand" / model.name
    assert str(caught.value).endswith(f"and put it into {folder}")
    assert "\n" not in str(caught.value)
    for name, content in published(model).items():
        (folder / name).write_bytes(content)
    assert load(model.name).format == model.format
    assert server.requests == []


def test_a_file_of_the_user_that_cannot_be_read_can_be_replaced(published, cache: Path) -> None:
    model = BY_HAND[0]
    folder = cache / "by-hand" / model.name
    folder.mkdir(parents=True)
    (name, content), *_ = published(model).items()
    (folder / name).write_bytes(content[: len(content) // 2])  # still being copied
    with pytest.raises(FormatError):
        load(model.name)
    (folder / name).write_bytes(content)
    assert load(model.name).format == model.format
    (folder / name).write_bytes(content + b"x")
    with pytest.raises(ChecksumError, match=r"as at the first use.*--forget"):
        load(model.name)


@pytest.mark.parametrize("model", UNSUPPORTED, ids=lambda model: model.name)
def test_a_model_in_another_format_names_the_one_to_load(server: FileServer, model: CatalogModel) -> None:
    with pytest.raises(FormatError) as caught:
        load(model.name)
    message = str(caught.value)
    assert message.startswith(f"{model.name} is a")
    assert (f"load {model.same_as}, which has the same weights" in message) == (model.same_as is not None)
    assert server.requests == []


def test_these_and_the_hub_are_all() -> None:
    others = [model.name for model in MODELS if model not in (*DOWNLOADS, *BY_HAND, *UNSUPPORTED)]
    assert others == ["hf/lysandre-elmo", "hf/lysandre-elmo-2x4096", "hf/test-elmo-tiny"]


def test_the_transformer_is_downloaded(server: FileServer) -> None:
    server.files["allenai/transformer-elmo/transformer-elmo-2019.01.10.tar.gz"] = b"\x1f\x8b"
    assert [path.name for path in fetch("allenai/transformer-elmo").iterdir()] == ["transformer-elmo-2019.01.10.tar.gz"]
    with pytest.raises(FormatError, match=r"run 'elmo cache --forget allenai/transformer-elmo'$"):
        load("allenai/transformer-elmo")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_names_on_the_hub_load_through_the_hub(
    layouts, hub_cache: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    native.write(tiny_model(), tmp_path / "m")
    native.write(tiny_model(seed=3), tmp_path / "other")
    with serving({"lysandre/test-elmo-tiny": tmp_path / "m", "allenai/small": tmp_path / "other"}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        assert_same_model(load("hf/test-elmo-tiny"), tiny_model())
        assert fetch("hf/test-elmo-tiny").name == COMMIT
        assert_same_model(load("hf:allenai/small"), tiny_model(seed=3))  # not the published model of this name
        assert fetch("hf:allenai/small").name == COMMIT


def test_a_published_name_takes_precedence_over_the_hub_and_says_so(
    server: FileServer, published, caplog: pytest.LogCaptureFixture
) -> None:
    model = next(model for model in MODELS if model.name == "allenai/small")
    server.files = {f"{model.name}/{name}": content for name, content in published(model).items()}
    with caplog.at_level(logging.INFO, logger="elmo"):
        load("allenai/small")
    messages = [record.getMessage() for record in caplog.records]
    assert "allenai/small is a published model of this name; hf:allenai/small would be the one on the Hub" in messages


def test_a_folder_takes_precedence_over_a_published_name_and_says_so(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native.write(tiny_model(), tmp_path / "nlpl" / "166")
    monkeypatch.chdir(tmp_path)
    assert_same_model(load("nlpl/166"), tiny_model())
    assert "nlpl/166 is a path here, so the published model with this name is not loaded" in caplog.messages
    assert server.requests == []


def test_a_published_model_is_described_converted_and_encodes(server: FileServer, published, tmp_path: Path) -> None:
    model = next(model for model in MODELS if model.name == "seqvec/uniref50")
    server.files = {f"{model.name}/{name}": content for name, content in published(model).items()}
    assert describe("seqvec").metadata["tokenizer"] == "characters"
    convert("seqvec", tmp_path / "mine")
    for source in ("seqvec", str(tmp_path / "mine")):
        elmo = Elmo.from_pretrained(source)
        assert elmo.encode("MKT AY").tokens == ("M", "K", "T", "A", "Y")
    assert Elmo.from_pretrained("seqvec", tokenizer="whitespace").encode("MKT AY").tokens == ("MKT", "AY")


def test_an_unknown_name_points_to_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="'elmo models' lists the published ones"):
        load("flair:nonsense")
    with pytest.raises(ElmoError, match=r"expected the name of a published model or a Hub id.*'elmo models' lists"):
        fetch("flair:nonsense")
    monkeypatch.setenv("ELMO_OFFLINE", "1")
    for use in (load, fetch):
        with pytest.raises(FormatError, match=r"ELMO_OFFLINE is set.*with similar names: allenai/original,"):
            use("allenai/orignal")
        with pytest.raises(FormatError) as caught:
            use("somebody/bert")
        assert "similar" not in str(caught.value)


def test_a_bundled_model_needs_no_download(server: FileServer) -> None:
    assert fetch("en") == bundled_folder("en")
    assert server.requests == []
