from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import EncodingError, OutputError
from elmo.jobs.plan import EmbedJob, Progress
from elmo.jobs.reader import read_embeddings
from elmo.jobs.run import embed_corpus
from tests.embed.sentences import assert_same, tiny_elmo
from tests.formats.tiny import tiny_model
from tests.jobs.jobs import LINES, SUFFIXES, begin, contents


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_interrupted_job_resumes_to_the_same_bytes(job: EmbedJob, out: Path, elmo: Elmo, suffix: str) -> None:
    job = replace(job, out=out.with_suffix(suffix))
    embed_corpus(job, elmo)
    expected = contents(out.parent)
    for reports in (0, 1, 3, 5, 8):
        begin(replace(job, restart=True), elmo, reports=reports)
        assert not [name for name in contents(out.parent) if name.endswith((".part", ".lock"))]
        summary = embed_corpus(job, elmo)
        assert contents(out.parent) == expected
        assert summary.sentences == 7
        assert (summary.kept > 0) == (reports >= 3)


def test_a_resumed_job_says_so(job: EmbedJob, elmo: Elmo, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="elmo")
    begin(replace(job, restart=True), elmo, reports=3)
    assert not [record for record in caplog.messages if "resuming" in record]
    summary = embed_corpus(job, elmo)
    assert f"after {summary.kept} sentences" in next(record for record in caplog.messages if "resuming" in record)


def test_a_finished_job_is_not_changed(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    for name in ("v.npz", "w.hdf5"):
        job = replace(job, out=out.with_name(name))
        embed_corpus(job, elmo)
        before = {path: path.stat().st_mtime_ns for path in out.parent.iterdir()}
        reports: list[Progress] = []
        summary = embed_corpus(job, elmo, on_progress=reports.append)
        assert summary.was_complete
        assert summary.kept == summary.sentences == 7
        assert reports == []
        assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("is_finished", [True, False])
def test_changed_input_is_an_error(job: EmbedJob, text: Path, elmo: Elmo, is_finished: bool) -> None:
    embed_corpus(job, elmo) if is_finished else begin(job, elmo)
    text.write_text(text.read_text().replace("A/b", "A/c"))
    with pytest.raises(OutputError, match=r"the input has changed .*: sentences 1 to 3 have changed; .*--restart"):
        embed_corpus(job, elmo)
    summary = embed_corpus(replace(job, restart=True), elmo)
    assert summary.kept == 0
    assert not summary.was_complete


def test_longer_or_shorter_input_is_an_error(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    lines = text.read_text().splitlines(keepends=True)
    text.write_text("".join(lines[:4]))
    with pytest.raises(OutputError, match=r"the input has changed .*: it is shorter"):
        embed_corpus(job, elmo)
    text.write_text("".join(lines) + "one two three four five six\n")
    with pytest.raises(OutputError, match=r"the input has changed .*: it is longer"):
        embed_corpus(job, elmo)


def test_if_the_input_now_ends_with_the_first_shard_the_output_has_the_plain_name(
    job: EmbedJob, text: Path, out: Path, elmo: Elmo
) -> None:
    begin(job, elmo)
    assert (out.parent / "v-00000.npz").exists()
    text.write_text("".join(line + "\n" for line in LINES[:3]))
    embed_corpus(job, elmo)
    assert sorted(contents(out.parent)) == ["v.npz", "v.npz.manifest.json"]
    assert embed_corpus(job, elmo).was_complete


def test_the_error_names_the_options_that_differ(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    begin(job, elmo)
    other = replace(job, layers="top", dtype="float16")
    match = r'dtype \(was "float32", now "float16"\); layers .*--restart'
    with pytest.raises(OutputError, match=match):
        embed_corpus(other, elmo)
    embed_corpus(replace(other, restart=True), elmo)
    assert_same(list(read_embeddings(out)), elmo.encode(LINES, layers="top", dtype="float16"))


def test_a_job_cannot_be_resumed_on_another_device(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    begin(job, elmo)
    manifest = out.with_name("v.npz.manifest.json")
    manifest.write_text(manifest.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    with pytest.raises(OutputError, match=r'device \(was "cuda", now "cpu"\)'):
        embed_corpus(job, elmo)


def test_options_may_change_before_the_first_complete_shard(
    job: EmbedJob, out: Path, elmo: Elmo, tmp_path: Path
) -> None:
    bad = tmp_path / "latin.txt"
    bad.write_bytes("caf\u00e9\n".encode("latin-1"))
    job = replace(job, inputs=(str(bad),))
    with pytest.raises(EncodingError):
        embed_corpus(job, elmo)
    assert out.with_name("v.npz.manifest.json").exists()
    assert embed_corpus(replace(job, errors="replace"), elmo).repaired_lines == 1


def test_another_model_is_an_error(job: EmbedJob, elmo: Elmo) -> None:
    begin(job, elmo)
    with pytest.raises(OutputError, match=r"was started with other options: the model; .*--restart"):
        embed_corpus(job, tiny_elmo(warm=True, seed=1))


@pytest.mark.parametrize("layers", ["sense", "average"])
def test_another_softmax_is_an_error_only_if_it_changes_the_vectors(job: EmbedJob, layers: str) -> None:
    job, model = replace(job, layers=layers), tiny_model(softmax=True)
    begin(job, Elmo(model))
    without = Elmo(replace(model, softmax=None))
    if layers == "average":
        embed_corpus(job, without)
    else:
        with pytest.raises(OutputError, match=r"was started with other options: the model; .*--restart"):
            embed_corpus(job, without)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_shard_is_made_again(job: EmbedJob, out: Path, elmo: Elmo, suffix: str, damage: str) -> None:
    job = replace(job, out=out.with_suffix(suffix))
    summary = embed_corpus(job, elmo)
    expected = contents(out.parent)
    path = summary.files[len(summary.files) // 2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data if damage == "flip" else data[:-1])
    if damage == "missing":
        path.unlink()
    again = embed_corpus(job, elmo)
    assert not again.was_complete
    assert again.kept == (0 if suffix == ".hdf5" else 4)
    assert contents(out.parent) == expected


def test_files_of_a_killed_run_are_removed(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    expected = contents(out.parent)
    embed_corpus(job, elmo)
    for name in (
        ".v-00002.npz.part",
        ".v.npz.manifest.json.part",
        ".v.npz.part",
        "v-00007.npz",
        "v.npz",
        ".v.npz.lock",
    ):
        (out.parent / name).write_bytes(b"torn")
    (out.parent / "v-notes.npz").write_bytes(b"mine")
    assert embed_corpus(job, elmo).was_complete
    result = contents(out.parent)
    assert result.pop("v-notes.npz") == b"mine"
    assert result == expected


def test_files_of_others_are_not_replaced_without_restart(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    out.parent.mkdir()
    out.write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"v\.npz: it already exists without a manifest.*--restart"):
        embed_corpus(job, elmo)
    assert contents(out.parent) == {"v.npz": b"mine"}
    assert embed_corpus(replace(job, restart=True), elmo).sentences == 7


def test_outputs_that_differ_only_in_their_suffix_do_not_interfere(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    expected = contents(out.parent)
    for suffix in (".parquet", ".hdf5", ".safetensors", ".h5"):
        embed_corpus(replace(job, out=out.with_suffix(suffix), restart=True), elmo)
    assert contents(out.parent).items() >= expected.items()


def test_an_output_with_the_name_of_a_shard_of_another_job_is_kept(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    whole = replace(job, shard_tokens=None)
    embed_corpus(replace(whole, out=out.with_name("v-00000.npz")), elmo)
    expected = contents(out.parent)
    for restart in (False, True):
        embed_corpus(replace(whole, restart=restart), elmo)
    assert contents(out.parent).items() >= expected.items()


def test_a_manifest_of_another_output_is_never_replaced(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    out.with_name("v.npz.manifest.json").rename(out.with_name("w.npz.manifest.json"))
    expected = contents(out.parent)
    for restart in (False, True):
        with pytest.raises(OutputError, match=r"w\.npz\.manifest\.json: it is the manifest of v\.npz; choose"):
            embed_corpus(replace(job, out=out.with_name("w.npz"), restart=restart), elmo)
    assert contents(out.parent) == expected


def test_a_damaged_manifest_asks_for_a_restart(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    expected = contents(out.parent)
    (out.parent / "v.npz.manifest.json").write_text("{")
    with pytest.raises(OutputError, match=r"v\.npz\.manifest\.json.*use --restart"):
        embed_corpus(job, elmo)
    embed_corpus(replace(job, restart=True), elmo)
    assert contents(out.parent) == expected


def test_a_job_on_stdin_is_resumed_with_the_same_input(
    job: EmbedJob, text: Path, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    job = replace(job, inputs=("-",))
    feed(text.read_bytes())
    begin(job, elmo)
    feed(text.read_bytes()[3:])
    with pytest.raises(OutputError, match="the input has changed"):
        embed_corpus(job, elmo)
    feed(text.read_bytes())
    summary = embed_corpus(job, elmo)
    assert summary.kept == 3
    assert summary.sentences == 7


def test_a_job_of_an_earlier_release_that_kept_lines_resumes_with_the_same_options(
    job: EmbedJob, out: Path, elmo: Elmo, caplog: pytest.LogCaptureFixture
) -> None:
    begin(replace(job, split=False), elmo)  # earlier releases stored false for the default
    with caplog.at_level("INFO"):
        assert embed_corpus(replace(job, split=None), elmo).kept > 0
    assert "was started with --no-split: keeping lines" in caplog.text
    with pytest.raises(OutputError, match=r"split \(was false, now true; add --no-split\)"):
        embed_corpus(replace(job, split=True), elmo)
    embed_corpus(replace(job, split=None, restart=True), elmo)
    with pytest.raises(OutputError, match=r"split \(was null, now false; leave out --split and --no-split\)"):
        embed_corpus(replace(job, split=False), elmo)
