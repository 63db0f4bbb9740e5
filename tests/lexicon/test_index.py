from __future__ import annotations

import json
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, OutputError, similarity
from elmo.embed.elmo import Elmo
from elmo.formats.loading import describe
from elmo.jobs.plan import Progress
from elmo.lexicon.indexing import IndexJob, build_index
from elmo.lexicon.index import Index, _compute_norms
from elmo.lexicon.usages import embed_usages
from tests.embed.sentences import tiny_elmo
from tests.jobs.jobs import contents, stop_after
from tests.lexicon.conftest import LINES


def test_every_word_is_found_with_its_sentence_place_and_vector(index: Index, elmo: Elmo) -> None:
    found = index.usages("bank")
    assert [(one.word, one.place.rpartition(":")[2]) for one in found.items] == [
        ("bank", "1"), ("bank", "2"), ("Bank", "4"), ("bank", "4"), ("bank", "5"),
    ]  # fmt: skip
    assert found.items[4].parts() == ("The river  rose and the ", "bank", " broke .")
    again = embed_usages(elmo, found.items)
    assert np.array_equal(found.vectors, again.vectors)


def test_punctuation_is_no_word_and_the_list_of_words_counts(index: Index) -> None:
    assert len(index) == sum(any(map(str.isalnum, word)) for line in LINES for word in line.split())
    assert index.words["bank"] == (5, 5)
    assert index.words["river"] == (3, 3)
    assert "." not in index.words
    assert "😀" not in index.words
    assert (index.n_tokens, index.n_sentences) == (sum(len(line.split()) for line in LINES), len(LINES))
    assert len(index.words) == index.n_words


def test_a_list_of_words_and_phrases_is_all_that_is_taken(job: IndexJob, elmo: Elmo) -> None:
    index = build_index(replace(job, words=("new york", "BANK", "sea")), elmo)
    assert index.words == {"bank": (5, 5), "new york": (2, 2)}
    (first, second) = index.usages("New York").items
    assert (first.word, second.word) == ("New York", "new york")
    whole = np.asarray(elmo.encode([first.sentence])[0].vectors)[first.begin : first.end]
    assert np.allclose(index.usages("New York").vectors[0], whole.mean(axis=0), atol=1e-7)
    assert len(index.usages("sea")) == 0
    assert index.n_tokens == sum(len(line.split()) for line in LINES)  # of the text, not of the index


def test_a_limit_takes_a_sample_and_keeps_the_counts(job: IndexJob, elmo: Elmo) -> None:
    index = build_index(replace(job, limit=2), elmo)
    assert index.words["bank"] == (2, 5)
    assert index.words["rose"] == (1, 1)
    assert len(index.usages("bank")) == 2
    other = build_index(replace(job, limit=2, words=("bank",), out=job.out.with_name("other")), elmo)
    assert [one.place for one in other.usages("bank").items] == [
        one.place for one in index.usages("bank").items
    ]


def test_nearest_is_the_highest_cosine_and_itself_first(index: Index) -> None:
    vectors = index.vectors(range(len(index)))
    cosines = np.asarray(similarity(vectors, vectors))
    for number, found in enumerate(index.nearest(vectors, k=4)):
        assert [round(one.similarity, 6) for one in found] == np.round(
            np.sort(cosines[number])[::-1][:4], 6
        ).tolist()
    assert index.nearest(vectors[:1], k=1)[0][0].number == 0


def test_usages_that_are_left_out_do_not_count(index: Index) -> None:
    numbers = index.numbers("bank")
    (found,) = index.nearest(index.vectors(numbers[:1]), k=len(index), exclude=numbers)
    assert len(found) == len(index) - len(numbers)
    assert all(one.usage.word.lower() != "bank" for one in found)


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_a_stopped_job_goes_on_to_the_same_bytes(job: IndexJob, elmo: Elmo, reports: int) -> None:
    build_index(job, elmo)
    expected = contents(job.out)
    begun = replace(job, out=job.out.with_name("begun"))
    with pytest.raises(KeyboardInterrupt):
        build_index(begun, elmo, on_progress=stop_after(reports))
    with pytest.raises(DataError, match="not complete; run the same elmo index command again"):
        Index(begun.out)
    seen: list[Progress] = []
    build_index(begun, elmo, on_progress=seen.append)
    assert contents(begun.out) == expected
    assert reports == 1 or seen[-1].kept > 0


def test_a_finished_index_is_left_alone(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = {path: path.stat().st_mtime_ns for path in job.out.iterdir()}
    build_index(job, elmo)
    assert {path: path.stat().st_mtime_ns for path in job.out.iterdir()} == before


def test_another_wish_for_the_same_folder_is_refused_and_restart_obeyed(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    other = replace(job, words=("bank",))
    with pytest.raises(OutputError, match="was started with other options: words"):
        build_index(other, elmo)
    assert len(build_index(replace(other, restart=True), elmo)) == 5


def test_another_model_is_refused(index: Index) -> None:
    said = "usages: this index was built with another model; use that model, or build an index with yours$"
    with pytest.raises(ConfigError, match=said):
        index.check_model(tiny_elmo(seed=1))


def test_a_bundled_model_that_made_the_index_is_named(index: Index, elmo: Elmo) -> None:
    index.model = describe("zh").fingerprint
    said = "built with another model, the bundled zh: use --model zh, or build an index with yours$"
    with pytest.raises(ConfigError, match=said):
        index.check_model(elmo)


def test_a_folder_with_other_files_is_left_alone(job: IndexJob, elmo: Elmo) -> None:
    job.out.mkdir()
    (job.out / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match="has other files"):
        build_index(job, elmo)
    with pytest.raises(OutputError, match="expected a folder, found a file"):
        build_index(replace(job, out=job.out / "thesis.tex"), elmo)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_text_without_tokens_is_refused_and_leaves_nothing(job: IndexJob, elmo: Elmo, text: str) -> None:
    Path(job.inputs[0]).write_text(text)
    with pytest.raises(DataError, match="expected text, found no word in it"):
        build_index(job, elmo)
    assert not job.out.exists()


def test_a_text_of_nothing_to_index_leaves_the_old_index_as_it_was(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    Path(job.inputs[0]).write_text("\n")
    with pytest.raises(DataError, match="found no word in it"):
        build_index(replace(job, restart=True), elmo)
    assert contents(job.out) == before


def test_a_text_of_punctuation_gives_an_empty_index(job: IndexJob, elmo: Elmo) -> None:
    Path(job.inputs[0]).write_text(". , !\n")
    index = build_index(job, elmo)
    assert len(index) == 0
    assert index.words == {}
    assert index.nearest(np.ones((1, elmo.width), np.float32)) == [[]]
    assert len(index.usages("bank")) == 0


def test_words_of_any_kind_come_back_from_the_list(job: IndexJob, elmo: Elmo) -> None:
    Path(job.inputs[0]).write_text("a\\n b\\\\c \\t 河\\x\n", encoding="utf-8")
    index = build_index(job, elmo)
    assert set(index.words) == {"a\\n", "b\\\\c", "\\t", "河\\x"}


def test_damage_is_found_and_named(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    whole = contents(job.out)
    (job.out / "index.json").write_text("{}")
    with pytest.raises(DataError, match=r"index\.json: expected an index of version 1"):
        Index(job.out)
    build_index(job, elmo)  # what was written last is written again
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
    with pytest.raises(DataError, match="cannot be read as part of an index: the file ends before"):
        Index(job.out).usages("bank")
    build_index(job, elmo)
    assert contents(job.out) == whole
    shard.unlink()
    with pytest.raises(DataError, match="some are missing; run the same elmo index command again"):
        Index(job.out)


@pytest.mark.parametrize("header", [b"12", b"null", b'{"__metadata__": 3}', b'{"vectors": []}'])
def test_a_header_that_describes_nothing_is_refused(job: IndexJob, elmo: Elmo, header: bytes) -> None:
    build_index(replace(job, shard_tokens=100), elmo)
    header += b" " * (-len(header) % 8)
    (job.out / "usages.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(DataError, match="cannot be read as part of an index"):
        Index(job.out).usages("bank")


def test_killed_before_the_last_file_it_ends_with_the_same_bytes(
    job: IndexJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(job, elmo)
    whole = contents(job.out)
    killed = replace(job, out=job.out.with_name("killed"))

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # asked for when words.tsv stands, and index.json does not yet
        patch.setattr("elmo.lexicon.indexing.compute_fingerprint", kill)
        with pytest.raises(KeyboardInterrupt):
            build_index(killed, elmo)
    assert (killed.out / "words.tsv").exists()
    assert not (killed.out / "index.json").exists()
    build_index(killed, elmo)
    assert contents(killed.out) == whole


def test_a_refused_restart_leaves_the_index_as_it_was(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with pytest.raises(OutputError, match="contains input files"):
        build_index(replace(job, inputs=(str(job.out),), restart=True), elmo)
    assert contents(job.out) == before


def test_tokens_with_other_spaces_or_no_unicode_are_found_and_sampled(job: IndexJob, elmo: Elmo) -> None:
    words = ["10\u00a0000", *(f"caf{chr(code)}" for code in (0xDCE8, 0xDCE9))]
    Path(job.inputs[0]).write_bytes((" ".join(words) + "\n").encode("utf-8", "surrogateescape") * 3)
    wish = replace(job, input_format="tokens", errors="surrogateescape", limit=2)
    index = build_index(wish, elmo)
    assert index.words == dict.fromkeys(words, (2, 3))
    assert len(index.usages("10\u00a0000")) == 2


def test_many_shards_need_few_open_files(job: IndexJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.lexicon.index._MAX_OPEN_SHARDS", 2)
    index = build_index(replace(job, shard_tokens=1), elmo)
    assert len(list(job.out.glob("usages-*"))) > 4
    assert [one.word.lower() for one in index.usages("bank").items] == ["bank"] * 5
    assert len(index.nearest(index.vectors([0]), k=100)[0]) == len(index)


def test_no_flipped_byte_of_a_shard_leads_outside_it(job: IndexJob, elmo: Elmo) -> None:
    """It may change a number, but is refused or read: never an error of another kind."""
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


def test_what_cannot_be_asked_is_told_at_once(job: IndexJob, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="several vectors per usage"):
        replace(job, layers="all")
    with pytest.raises(ConfigError, match="limit reads the text twice"):
        replace(job, inputs=("-",), limit=3)
    with pytest.raises(DataError, match="no such file"):
        build_index(replace(job, inputs=("nowhere.txt",)), elmo)
    assert not job.out.exists()
    with pytest.raises(DataError, match="build an index with elmo index"):
        Index(job.out)


def test_lengths_of_a_shard_are_exact_and_need_no_wide_copy_of_its_vectors() -> None:
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
