from __future__ import annotations

import fcntl
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, ElmoError, OutputError, SentenceTooLongError, StateError
from elmo.jobs.groups import split_groups
from elmo.jobs.plan import EmbedJob, plan_corpus
from elmo.jobs.reader import read_embeddings
from elmo.jobs.run import embed_corpus
from elmo.text.reader import Sentence
from tests.embed.sentences import assert_same, sentences, tiny_elmo
from tests.jobs.jobs import LINES, SUFFIXES, begin, contents

ROOT = Path(__file__).parents[2]


# --- sentences that are set aside -------------------------------------------------------------


@pytest.fixture
def poisoned(job: EmbedJob, text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EmbedJob:
    """A job whose text has a sentence and a token that are too long."""
    monkeypatch.setattr("elmo.jobs.groups.MAX_TOKENS", 6)
    monkeypatch.setenv("ELMO_MAX_TOKEN_BYTES", "40")
    lines = [*LINES, "a b c d e f g", "good", f"x {'河' * 14} y", "the end", "h i j k l m \udc80"]
    text.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return replace(job, errors="surrogateescape", set_aside=folder / "aside" / "bad.jsonl")


def test_sentences_that_are_too_long_are_set_aside_by_choice(
    poisoned: EmbedJob, text: Path, out: Path, elmo: Elmo
) -> None:
    with pytest.raises(SentenceTooLongError, match=r"text\.txt:8: a sentence must have at most 6 tokens; found 7"):
        embed_corpus(replace(poisoned, set_aside=None), elmo)
    summary = embed_corpus(poisoned, elmo)  # resumes
    assert (summary.sentences, summary.set_aside) == (9, 3)
    assert summary.kept > 0
    rows = [json.loads(line) for line in (poisoned.set_aside or out).read_text().splitlines()]
    name = str(text)
    assert [(row["line"], row["start"], row["text"]) for row in rows] == [
        (8, 0, "a b c d e f g"), (10, 0, f"x {'河' * 14} y"), (12, 0, "h i j k l m \udc80"),
    ]  # fmt: skip
    assert {row["file"] for row in rows} == {name}
    assert rows[0]["error"] == "a sentence must have at most 6 tokens; found 7"
    assert rows[1]["error"].startswith("a token must have at most 40 bytes; found a longer one")
    good = [*LINES, "good", "the end"]
    assert [one.tokens for one in read_embeddings(out)] == [tuple(line.split()) for line in good]


def test_what_is_set_aside_does_not_depend_on_interruptions(
    poisoned: EmbedJob, folder: Path, out: Path, elmo: Elmo
) -> None:
    embed_corpus(replace(poisoned, out=folder / "other" / "v.npz"), elmo)
    expected, aside = contents(folder / "other"), contents(folder / "aside")
    (folder / "aside" / "bad.jsonl").unlink()
    begin(poisoned, elmo, reports=8)
    assert not contents(folder / "aside")
    assert embed_corpus(poisoned, elmo).kept > 0
    assert (contents(out.parent), contents(folder / "aside")) == (expected, aside)
    assert b'"set_aside": true' in expected["v.npz.manifest.json"]
    summary = embed_corpus(poisoned, elmo)
    assert summary.was_complete
    assert summary.set_aside == 3
    assert contents(folder / "aside") == aside
    with pytest.raises(OutputError, match=r"was started with other options: set aside \(was true, now null\)"):
        embed_corpus(replace(poisoned, set_aside=None), elmo)


def test_a_stream_leaves_out_what_is_set_aside(poisoned: EmbedJob, elmo: Elmo) -> None:
    stream = io.StringIO()
    summary = embed_corpus(replace(poisoned, out=None), elmo, stdout=stream)
    assert len(stream.getvalue().splitlines()) == summary.sentences == 9
    assert summary.set_aside == 3
    assert plan_corpus(poisoned, elmo).sentences == 9


def test_the_file_that_is_set_aside_is_no_other_file_of_the_job(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="set_aside must not be the output file"):
        replace(job, set_aside=job.out)
    before = text.read_bytes()
    with pytest.raises(OutputError, match=r"text\.txt: it is an input or another output of the job"):
        embed_corpus(replace(job, set_aside=text), elmo)
    assert text.read_bytes() == before


# --- output -----------------------------------------------------------------------------------


def test_a_job_of_one_shard_has_the_plain_name(text: Path, out: Path, elmo: Elmo) -> None:
    summary = embed_corpus(EmbedJob((str(text),), out), elmo)
    assert sorted(contents(out.parent)) == ["v.npz", "v.npz.manifest.json"]
    assert summary.files == (out,)
    assert (summary.sentences, summary.tokens, summary.kept, summary.was_complete) == (7, 20, 0, False)


def test_shards_are_cut_between_sentences(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    summary = embed_corpus(job, elmo)
    names = [f"v-0000{i}.npz" for i in range(4)]
    assert sorted(contents(out.parent)) == [*names, "v.npz.manifest.json"]
    assert [path.name for path in summary.files] == names
    lengths = [[len(one) for one in read_embeddings(path)] for path in summary.files]
    assert lengths == [[4, 0, 2], [4], [4], [6, 0]]


@pytest.mark.parametrize("layers", ["average", "top", "all", "concat", 1])
@pytest.mark.parametrize("start", ["zero", "warm"])
def test_vectors_equal_those_of_encode(job: EmbedJob, out: Path, elmo: Elmo, layers: str | int, start: str) -> None:
    embed_corpus(replace(job, layers=layers, start=start, shard_tokens=None), elmo)  # type: ignore[arg-type]
    assert_same(list(read_embeddings(out)), elmo.encode(LINES, layers=layers, start=start))  # type: ignore[arg-type]


def test_bytes_do_not_depend_on_the_batch_size_or_the_run(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(job, elmo)
    first = contents(out.parent)
    embed_corpus(replace(job, batch_size=5, restart=True), elmo)
    assert contents(out.parent) == first


def test_an_empty_input_gives_an_empty_output(text: Path, elmo: Elmo) -> None:
    text.write_text("")
    for suffix in SUFFIXES:
        out = text.with_name(f"v{suffix}")
        assert embed_corpus(EmbedJob((str(text),), out), elmo).sentences == 0
        assert list(read_embeddings(out)) == []


def test_places_have_file_line_and_character(folder: Path, text: Path, out: Path, elmo: Elmo) -> None:
    other = folder / "other.txt"
    other.write_text("One . Two .\n")
    embed_corpus(EmbedJob((str(text), str(other)), out, split=True), elmo)
    with np.load(out) as arrays:
        files = json.loads(str(arrays["elmo"]))["files"]
        places = [(files[file], line, start) for file, line, start in arrays["places"].tolist()]
    assert files == [str(text), str(other)]
    assert places[2] == (str(text), 3, 0)
    assert places[-1][0:2] == (str(other), 1)


def test_tokens_and_conllu_input_can_be_read(folder: Path, text: Path, out: Path, elmo: Elmo) -> None:
    conllu, rest = folder / "x.conllu", "\t_" * 8
    conllu.write_text(f"1\tNew York{rest}\n2\tis{rest}\n\n")
    embed_corpus(EmbedJob((str(conllu),), out, input_format="conllu"), elmo)
    assert [one.tokens for one in read_embeddings(out)] == [("New York", "is")]
    embed_corpus(EmbedJob((str(text),), out.with_name("w.npz"), input_format="tokens"), elmo)
    result = list(read_embeddings(out.with_name("w.npz")))
    assert [one.tokens for one in result] == [tuple(line.split()) for line in LINES]


# --- JSON lines on a stream ---------------------------------------------------------------------------


def test_without_out_json_lines_are_written_to_the_stream(text: Path, folder: Path, elmo: Elmo) -> None:
    stream = io.StringIO()
    summary = embed_corpus(EmbedJob((str(text),), batch_size=2), elmo, stdout=stream)
    (folder / "v.jsonl").write_text(stream.getvalue())
    assert_same(list(read_embeddings(folder / "v.jsonl")), elmo.encode(LINES))
    assert [json.loads(line)["index"] for line in stream.getvalue().splitlines()] == list(range(7))
    assert (summary.sentences, summary.tokens, summary.files, summary.is_cut_short) == (7, 20, (), False)


PIPE = """
import sys
sys.path[:0] = [{root!r}, {src!r}]
from elmo.jobs.plan import EmbedJob
from elmo.jobs.run import embed_corpus
from tests.embed.sentences import tiny_elmo
import torch
torch.set_num_threads(1)
summary = embed_corpus(EmbedJob(({text!r},), batch_size=1), tiny_elmo())
print(summary.is_cut_short, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_closed_pipe_ends_the_job_quietly(text: Path) -> None:
    text.write_text("some words\n" * 1000)
    code = PIPE.format(root=str(ROOT), src=str(ROOT / "src"), text=str(text))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"True\n"
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_of_the_stream_is_a_one_line_error(text: Path, elmo: Elmo) -> None:
    stream = Path("/dev/full").open("w")  # noqa: SIM115
    with pytest.raises(OutputError, match=r"cannot write .*/dev/full: No space left on device"):
        embed_corpus(EmbedJob((str(text),)), elmo, stdout=stream)
    with pytest.raises(OSError, match="No space"):
        stream.close()


# --- errors ----------------------------------------------------------------------------------


def test_two_processes_cannot_write_one_output(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    out.parent.mkdir()
    with (out.parent / ".v.npz.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match=r"v\.npz: another process is writing this output"):
            embed_corpus(job, elmo)
    assert embed_corpus(job, elmo).sentences == 7  # an unlocked lock file has no effect


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """Limit the file size, to simulate a full disk without special permissions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_is_a_one_line_error_and_keeps_complete_shards(
    job: EmbedJob, text: Path, out: Path, elmo: Elmo, suffix: str
) -> None:
    text.write_text("ten words " * 3 + "\n" + "ten words " * 500 + "\n")
    job = replace(job, out=out.with_suffix(suffix))
    name = "part-00001.safetensors" if suffix == ".hdf5" else f"v-00001{suffix}"
    with small_files(10_000), pytest.raises(OutputError, match=rf"cannot write .*{name}: File too large$"):
        embed_corpus(job, elmo)
    assert not [left for left in contents(out.parent) if left.endswith((".part", ".lock"))]
    summary = embed_corpus(job, elmo)
    assert (summary.kept, summary.sentences) == (1, 2)


@pytest.mark.parametrize("limit", [2_000, 5_000, 12_000])
def test_an_hdf5_file_that_does_not_fit_keeps_its_parts(
    job: EmbedJob, text: Path, out: Path, elmo: Elmo, limit: int
) -> None:
    text.write_text("a b\n" * 30)
    job = replace(job, out=out.with_suffix(".hdf5"), shard_tokens=40)
    begin(job, elmo, reports=18)  # at the first report of the assembly
    with small_files(limit), pytest.raises(OutputError, match=r"cannot write .*v\.hdf5: File too large$"):
        embed_corpus(job, elmo)
    assert embed_corpus(job, elmo).kept == 30


def test_a_folder_that_cannot_be_created_is_a_one_line_error(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*v\.npz: (Not a directory|File exists)"):
        embed_corpus(replace(job, out=text / "v.npz"), elmo)
    (text.parent / "folder.npz").mkdir()
    with pytest.raises(OutputError, match="the output must be a file; found a folder"):
        embed_corpus(replace(job, out=text.parent / "folder.npz"), elmo)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_without_permission_is_a_one_line_error(job: EmbedJob, out: Path, elmo: Elmo) -> None:
    out.parent.mkdir(mode=0o500)
    with pytest.raises(OutputError, match=r"cannot write .*v\.npz: Permission denied"):
        embed_corpus(job, elmo)


def test_an_output_cannot_be_one_of_the_inputs(folder: Path, text: Path, elmo: Elmo) -> None:
    for inputs in (str(folder), str(folder / "*")):
        with pytest.raises(
            OutputError, match=r"v\.npz: the output, or another file of the job, is one of the inputs; choose"
        ):
            embed_corpus(EmbedJob((inputs,), folder / "v.npz"), elmo)
    assert list(contents(folder)) == [text.name]


@pytest.mark.parametrize("name", ["text.jsonl", "text-00001.jsonl"])
def test_a_restart_never_removes_its_own_input(folder: Path, text: Path, elmo: Elmo, name: str) -> None:
    source = text.rename(folder / name)
    expected = contents(folder)
    with pytest.raises(OutputError, match=r"text\.jsonl: the output, or another file of the job, is one of the inputs"):
        embed_corpus(EmbedJob((str(source),), folder / "text.jsonl", restart=True), elmo)
    assert contents(folder) == expected


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"out": Path("v.txt")}, OutputError, r"v\.txt: the file name must end in \.hdf5"),
        ({"layers": "bottom"}, ConfigError, "layers must be average"),
        ({"layers": 3}, ConfigError, r"0\.\.2; found 3"),
        ({"dtype": "float64"}, ConfigError, "dtype must be one of float32, float16"),
        ({"start": "cold"}, ConfigError, "start must be"),
        ({"input_format": "html"}, ConfigError, "input format must be one of"),
        ({"errors": "ignore"}, ConfigError, "errors must be one of"),
        ({"batch_size": 0}, ConfigError, "batch_size must be at least 1"),
        ({"shard_tokens": 0}, ConfigError, "shard_tokens must be at least 1"),
        ({"inputs": ("no.txt",)}, DataError, r"no\.txt: no such file"),
        ({"inputs": "no.txt"}, ConfigError, r"inputs must be a tuple of strings; found one string; use \('no\.txt',\)"),
    ],
)
def test_wrong_options_are_errors_before_anything_is_written(
    job: EmbedJob, out: Path, elmo: Elmo, change: dict[str, object], kind: type[ElmoError], match: str
) -> None:
    with pytest.raises(kind, match=match):
        embed_corpus(replace(job, **change), elmo)  # type: ignore[arg-type]
    assert not out.parent.exists()


def test_a_missing_warm_state_is_an_error(job: EmbedJob) -> None:
    with pytest.raises(StateError, match="elmo warm"):
        embed_corpus(replace(job, start="warm"), tiny_elmo())


def test_a_value_too_large_for_float16_is_an_error(job: EmbedJob) -> None:
    elmo = tiny_elmo()
    elmo.bilm.token_layer.projection.bias.fill_(1e6)  # type: ignore[union-attr, operator]
    with pytest.raises(OutputError, match=r"text\.txt:1: cannot store the vectors as float16"):
        embed_corpus(replace(job, dtype="float16", layers=0), elmo)


def test_the_error_has_the_place_of_a_sentence_that_is_too_long(job: EmbedJob, text: Path, elmo: Elmo) -> None:
    text.write_text("a b\n" + "x " * 100_001)
    for out in (job.out, None):
        with pytest.raises(
            SentenceTooLongError, match=r"text\.txt:2: a sentence must have at most 100000 tokens; found 100001"
        ):
            embed_corpus(replace(job, out=out), elmo, stdout=io.StringIO())


# --- planning -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shard_tokens", [6, None])
def test_a_plan_matches_the_run(job: EmbedJob, out: Path, elmo: Elmo, suffix: str, shard_tokens: int | None) -> None:
    job = replace(job, out=out.with_suffix(suffix), shard_tokens=shard_tokens)
    planned = plan_corpus(job, elmo)
    assert not out.parent.exists()
    summary = embed_corpus(job, elmo)
    assert (planned.sentences, planned.tokens) == (summary.sentences, summary.tokens) == (7, 20)
    assert planned.files == (*summary.files, summary.manifest)
    assert planned.shards == (1 if shard_tokens is None else 4)


def test_a_plan_needs_only_a_config(text: Path, out: Path, elmo: Elmo) -> None:
    text.write_text("one two three four\n" * 200)
    for suffix in SUFFIXES:
        job = EmbedJob((str(text),), out.with_name(f"{suffix[1:]}{suffix}"), layers="all")
        planned = plan_corpus(job, elmo.config)
        result = sum(path.stat().st_size for path in embed_corpus(job, elmo).files)
        assert result / 2 < planned.output_bytes < result * 2


def test_a_shard_is_about_64_megabytes() -> None:
    from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
    from elmo.jobs.shard import Layout

    config = BiLmConfig(chars=CharCnnConfig(), words=None, encoder=LstmConfig())
    layout = Layout.of(config, layers="all", dtype="float32")
    assert EmbedJob(()).tokens_per_shard(layout) * 3 * 1024 * 4 == pytest.approx(1 << 26, rel=0.01)


# --- groups -------------------------------------------------------------------------------------------


def test_at_most_one_sentence_is_read_ahead() -> None:
    n_read = 0

    def counted() -> Iterator[Sentence]:
        nonlocal n_read
        for sentence in sentences([("a", "b")] * 100):
            n_read += 1
            yield sentence

    for group in split_groups(counted(), max_tokens=10):
        assert n_read == min(group.first + 6, 100)
        assert len(group.sentences) == 5


def test_groups_are_limited_by_characters_and_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.jobs.groups.MAX_CHARACTERS", 10)
    monkeypatch.setattr("elmo.jobs.groups.MAX_SENTENCES", 3)
    rows = [("x" * 6,), ("x" * 6,), (), (), (), ("x" * 99,), ("y",)]
    result = [len(group.sentences) for group in split_groups(sentences(rows), max_tokens=1000)]
    assert result == [1, 3, 1, 1, 1]
