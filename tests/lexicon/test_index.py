"""Reading an index: words, usages, nearest usages, and damaged files."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, similarities
from elmo.embed.elmo import Elmo
from elmo.formats import native
from elmo.formats.pretrained import fingerprint, load
from elmo.lexicon.index import Index, _compute_norms
from elmo.lexicon.indexing import IndexJob, build_index
from elmo.lexicon.usages import embed_usages
from tests.embed.sentences import tiny_elmo
from tests.formats.tiny import tiny_model
from tests.jobs.jobs import contents


def test_every_word_is_found_with_its_sentence_location_and_vector(index: Index, elmo: Elmo) -> None:
    found = index.usages("bank")
    assert [(one.word, one.place.rpartition(":")[2]) for one in found.items] == [
        ("bank", "1"), ("bank", "2"), ("Bank", "4"), ("bank", "4"), ("bank", "5"),
    ]  # fmt: skip
    assert found.items[4].parts() == ("The river  rose and the ", "bank", " broke .")
    again = embed_usages(elmo, found.items)
    assert np.array_equal(found.vectors, again.vectors)


def test_the_nearest_usages_have_the_highest_cosines(index: Index) -> None:
    vectors = index.vectors(range(len(index)))
    cosines = similarities(vectors, vectors)
    for number, found in enumerate(index.nearest(vectors, k=4)):
        assert [round(one.similarity, 6) for one in found] == np.round(np.sort(cosines[number])[::-1][:4], 6).tolist()
    assert index.nearest(vectors[:1], k=1)[0][0].number == 0


def test_excluded_usages_are_not_found(index: Index) -> None:
    numbers = index.numbers("bank")
    (found,) = index.nearest(index.vectors(numbers[:1]), k=len(index), exclude=numbers)
    assert len(found) == len(index) - len(numbers)
    assert all(one.usage.word.lower() != "bank" for one in found)


@pytest.mark.slow
def test_another_model_is_rejected(index: Index) -> None:
    said = "usages: this index was built with another model; use that model, or build an index with your model$"
    with pytest.raises(ConfigError, match=said):
        index.check_model(tiny_elmo(seed=1))


@pytest.mark.parametrize("layers", ["sense", "average"])
def test_another_softmax_is_rejected_if_it_changes_the_vectors(job: IndexJob, layers) -> None:
    model = tiny_model(softmax=True)
    index, without = build_index(replace(job, layers=layers), Elmo(model)), Elmo(replace(model, softmax=None))
    if layers == "average":
        index.check_model(without)
    else:
        with pytest.raises(ConfigError, match="this index was built with another model"):
            index.check_model(without)


@pytest.mark.slow
def test_the_message_names_a_bundled_model(index: Index, elmo: Elmo) -> None:
    index.model = fingerprint(load("zh"), with_softmax=True)
    said = "built with another model, the bundled zh: use --model zh, or build an index with your model$"
    with pytest.raises(ConfigError, match=said):
        index.check_model(elmo)


def test_an_index_remembers_the_model_that_built_it(job: IndexJob, tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True), tmp_path / "mine")
    elmo = Elmo.from_pretrained(tmp_path / "mine")
    index = build_index(job, elmo)
    assert Index(job.out).find_model() == index.source == str(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"built with another model, .*mine: use --model .*mine, or build"):
        index.check_model(tiny_elmo(seed=1))
    (tmp_path / "mine").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"its model .*mine no longer exists; set the model"):
        index.find_model()
    index.check_model(Elmo.from_pretrained(tmp_path / "moved"))  # the fingerprint decides


def test_an_index_names_its_model_but_never_downloads_it(job: IndexJob, elmo: Elmo) -> None:
    index = build_index(job, elmo)
    assert index.source is None
    with pytest.raises(ConfigError, match="it does not say which model it was built with; set the model"):
        index.find_model()
    for source in ("org/name", "../model", "hf://org/name"):
        index.source = source
        with pytest.raises(ConfigError, match=f"built with the model {source}, which must be named"):
            index.find_model()


def test_an_index_of_version_1_is_read(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    values = json.loads((job.out / "index.json").read_text())
    del values["source"]
    (job.out / "index.json").write_text(json.dumps(values | {"version": 1}))
    index = Index(job.out)
    assert (index.source, len(index) > 0) == (None, True)
    index.check_model(elmo)


def test_an_index_that_was_moved_is_reported(job: IndexJob, elmo: Elmo, tmp_path: Path) -> None:
    build_index(job, elmo)
    index = Index(job.out)
    job.out.rename(tmp_path / "moved")
    with pytest.raises(DataError, match=r"^the index 'usages' was moved or removed; start again with its new folder$"):
        index.usage(0)


def test_damage_is_detected_and_repaired(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    whole = contents(job.out)
    (job.out / "index.json").write_text("{}")
    with pytest.raises(DataError, match=r"index\.json: expected an index of version 2"):
        Index(job.out)
    build_index(job, elmo)  # writes index.json again
    assert contents(job.out) == whole
    values = json.loads((job.out / "index.json").read_text())
    (job.out / "index.json").write_text(json.dumps(values | {"usages": 7}))
    with pytest.raises(DataError, match="shards with 7 usages, but some are missing"):
        Index(job.out)
    (job.out / "words.tsv").unlink()
    build_index(job, elmo)
    assert contents(job.out) == whole
    shard = sorted(job.out.glob("usages-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot read .* as part of an index: the file is truncated"):
        Index(job.out).usages("bank")
    build_index(job, elmo)
    assert contents(job.out) == whole
    shard.unlink()
    with pytest.raises(DataError, match="some are missing; run the same elmo index command again"):
        Index(job.out)


@pytest.mark.slow
@pytest.mark.parametrize("header", [b"12", b"null", b'{"__metadata__": 3}', b'{"vectors": []}'])
def test_a_wrong_header_is_rejected(job: IndexJob, elmo: Elmo, header: bytes) -> None:
    build_index(replace(job, shard_tokens=100), elmo)
    header += b" " * (-len(header) % 8)
    (job.out / "usages.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(DataError, match=r"cannot read .* as part of an index"):
        Index(job.out).usages("bank")


def test_many_shards_need_few_open_files(job: IndexJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.lexicon.index._MAX_OPEN_SHARDS", 2)
    index = build_index(replace(job, shard_tokens=1), elmo)
    assert len(list(job.out.glob("usages-*"))) > 4
    assert [one.word.lower() for one in index.usages("bank").items] == ["bank"] * 5
    assert len(index.nearest(index.vectors([0]), k=100)[0]) == len(index)


@pytest.mark.slow
def test_a_flipped_byte_causes_no_other_error_than_data_error(job: IndexJob, elmo: Elmo) -> None:
    """The shard is read, maybe with another number, or rejected with ``DataError``."""
    build_index(replace(job, shard_tokens=100), elmo)
    path = job.out / "usages.safetensors"
    whole = path.read_bytes()
    chance = random.Random(0)
    for _ in range(300):
        at = chance.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        try:
            index = Index(job.out)
            for number in range(len(index)):
                index.usage(number)
            index.numbers("bank")
        except DataError:
            continue


def test_norms_are_exact_and_need_little_memory() -> None:
    vectors = np.random.default_rng(0).normal(size=(100_000, 64)).astype(np.float16)
    vectors[0] = 0
    _compute_norms(vectors[:1])
    tracemalloc.start()
    try:
        found = _compute_norms(vectors)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < vectors.nbytes  # in float64 they have four times as many bytes
    assert np.array_equal(found, np.linalg.norm(vectors.astype(np.float64), axis=1).astype(np.float32))
