"""Bad input of ``elmo train``: one clear line each, and nothing half-written."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails

SPECIAL = "<S>\n</S>\n<UNK>\n"


@pytest.fixture
def folder(here: Path) -> Path:
    """The current folder: ``text.txt`` is sound, all else is not."""
    chance = random.Random(0)
    lines = [f"The {noun} crosses river number {k}." for k in range(20) for noun in ("cat", "dog")]
    texts = {
        "text.txt": "\n".join(lines) + "\n",
        "empty.txt": "",
        "blank.txt": " \n\t\n\n",
        "one.txt": "One sentence only.\n",
        "unnamed.vocab": "the\nof\n",
        "twice.vocab": SPECIAL + "the\nof\nthe\n",
        "gap.vocab": SPECIAL + "the\n\nof\n",
        "alone.vocab": SPECIAL,
    }
    data = {
        "nul.bin": bytes(chance.randrange(4) for _ in range(5000)),
        "random.bin": chance.randbytes(5000),
        "high.bin": bytes(chance.randrange(128, 256) for _ in range(5000)),
        "picture.png": b"\x89PNG\r\n\x1a\n" + chance.randbytes(100),
        "binary.gz": gzip.compress(chance.randbytes(5000)),
        "cut.gz": gzip.compress(b"a b c\n" * 1000)[:-20],
    }
    for name, text in texts.items():
        (here / name).write_text(text, encoding="utf-8")
    for name, content in data.items():
        (here / name).write_bytes(content)
    (here / "bare").mkdir()
    return here


def assert_nothing_is_left(folder: Path, before: set[Path]) -> None:
    assert set(folder.rglob("*")) == before


TEXTS = {
    "empty.txt": "empty.txt must contain at least 2 sentences to train on; found 0",
    "blank.txt": "blank.txt must contain at least 2 sentences to train on; found 0",
    "one.txt": "one.txt must contain at least 2 sentences to train on; found 1; use more text",
    "nul.bin": "nul.bin: found a NUL at byte 3; the file is binary",
    "random.bin": "random.bin: found a NUL at byte",
    "high.bin": "high.bin:1: byte 1 of the line (0xbd) is not UTF-8",
    "picture.png": "picture.png: this is a picture, not text",
    "binary.gz": "binary.gz: found a NUL at byte",
    "cut.gz": "cannot read cut.gz: Compressed file ended before",
    "absent.txt": "absent.txt: no such file or folder",
    "bare": "bare: this folder has no files",
    "*.none": "*.none: no file matches this pattern",
}


@pytest.mark.parametrize(("name", "message"), TEXTS.items())
def test_a_file_without_text_is_one_line_and_leaves_nothing(run: Run, folder: Path, name: str, message: str) -> None:
    before = set(folder.rglob("*"))
    assert_fails(run("train", name, "--out", "m", "--preset", "tiny"), message)
    assert_nothing_is_left(folder, before)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("replace", "random.bin: found a NUL at byte"),
        ("skip", "random.bin must contain at least 2 sentences to train on; found 0"),
        ("surrogateescape", "random.bin: found a NUL at byte"),
    ],
)
def test_a_policy_for_single_bytes_makes_no_text_of_a_binary_file(
    run: Run, folder: Path, policy: str, message: str
) -> None:
    before = set(folder.rglob("*"))
    outcome = run("train", "random.bin", "--errors", policy, "--out", "m", "--preset", "tiny")
    assert_fails(outcome, message)
    assert_nothing_is_left(folder, before)


@pytest.mark.slow
def test_an_empty_stdin_is_one_line(run: Run, folder: Path) -> None:
    outcome = run("train", "-", "--out", "m", "--preset", "tiny", stdin="\n")
    assert_fails(outcome, "<stdin> must contain at least 2 sentences to train on; found 0")
    assert not (folder / "m").exists()
    assert not (folder / "m.training").exists()


PLACES = {
    "text.txt/m": "cannot write",
    "/proc/m": "cannot write",
    "/dev/null": "already exists",
    "text.txt": "already exists",
    "more": "already exists",
    ".": "already exists",
}


@pytest.mark.parametrize(("place", "message"), PLACES.items())
def test_an_output_that_cannot_be_written_is_one_line(run: Run, folder: Path, place: str, message: str) -> None:
    before = set(folder.rglob("*"))
    assert_fails(run("train", "text.txt", "--out", place, "--preset", "tiny"), place, message)
    assert_nothing_is_left(folder, before)


def test_a_model_does_not_go_among_its_text(run: Run, folder: Path) -> None:
    before = set(folder.rglob("*"))
    outcome = run("train", "more", "--out", "more/m", "--preset", "tiny")
    assert_fails(outcome, "must not be in the input folder more")
    assert_nothing_is_left(folder, before)


VOCABULARIES = {
    "unnamed.vocab": "unnamed.vocab: the special words <S>, </S>, <UNK> must be included; found no <S>, </S>, <UNK>",
    "twice.vocab": "twice.vocab: the word 'the' occurs twice, in line 4 and 6",
    "gap.vocab": "gap.vocab: line 5 is empty",
    "alone.vocab": "alone.vocab: the vocabulary has only special words",
    "empty.txt": "empty.txt: the special words",
    "nul.bin": "nul.bin",
    "picture.png": "picture.png: this is a picture, not text",
    "absent.vocab": "absent.vocab",
    "bare": "bare must be a vocabulary file",
}


@pytest.mark.parametrize(("name", "message"), VOCABULARIES.items())
def test_a_bad_vocabulary_is_one_line_and_leaves_nothing(run: Run, folder: Path, name: str, message: str) -> None:
    before = set(folder.rglob("*"))
    outcome = run("train", "text.txt", "--out", "m", "--preset", "tiny", "--vocabulary", name)
    assert_fails(outcome, message)
    assert_nothing_is_left(folder, before)


OPTIONS = [  # none of these needs a corpus to be known for wrong, or the corpus itself is refused
    ("--heldout 0", "heldout must be above 0, because a run needs held-out text to choose a checkpoint"),
    ("--heldout -1", "heldout"),
    ("--heldout nan", "heldout"),
    ("--heldout inf", "heldout"),
    ("--heldout 1.5", "heldout"),
    ("--heldout 40", "cannot hold out 40 of 40 sentences"),
    ("--heldout 0.999", "cannot hold out 40 of 40 sentences"),
    ("--heldout 1e30", "cannot hold out"),
    ("--heldout 5 --heldout-file one.txt", "cannot be combined"),
    ("--heldout-file empty.txt", "the held-out files must contain text"),
    ("--heldout-file absent.txt", "absent.txt: no such file"),
    ("--blank-lines --deduplicate", "cannot be combined"),
    ("--epochs 0", "epochs"),
    ("--epochs nan", "epochs"),
    ("--epochs inf", "epochs"),
    ("--epochs 1 --hours 1", "epochs and hours"),
    ("--hours -1", "hours"),
    ("--dropout 1", "dropout"),
    ("--dropout nan", "dropout"),
    ("--learning-rate 0", "learning_rate"),
    ("--learning-rate nan", "learning_rate"),
    ("--seed -1", "seed"),
    ("--seed 99999999999999999999999", "seed"),
    ("--format conllu", "text.txt:1: expected 10 columns"),
    ("--tokenizer klingon", "klingon"),
    ("--new-vocabulary", "vocabulary"),
    ("--from nowhere", "nowhere"),
    ("--tied", "tied"),
    ("--adaptive 9,3", ""),
    ("--clip -1", "clip"),
    ("--clip nan", "clip"),
    ("--loss-scale 0", "loss_scale"),
    ("--warmup 1 --weight-decay nan", "weight_decay"),
    ("--optimizer adamw --weight-decay nan", "weight_decay must be a finite number of at least 0"),
    ("--batch-size 3 --accumulate 4", "a batch of 3 rows cannot be split into 4 parts"),
    ("--samples 5 --adaptive 9", "samples and adaptive choose different kinds of softmax"),
    ("--from model --reads characters", "the run has the shape of the model"),
    ("--from model --vocabulary 10", "the run has the vocabulary of the model"),
    ("--from model --tied", "cannot be tied"),
    ("--vocabulary ²", "cannot read ²: No such file"),
    ("--device tpu", "tpu"),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_options_that_contradict_each_other_are_one_line_and_leave_nothing(
    run: Run, folder: Path, options: str, message: str
) -> None:
    before = set(folder.rglob("*"))
    outcome = run("train", "text.txt", "--out", "m", *options.split())
    assert_fails(outcome, message)
    assert_nothing_is_left(folder, before)


@pytest.mark.parametrize(
    "options",
    [
        "--vocabulary 3", "--vocabulary 99999999", "--samples -1", "--batch-size 0", "--format xml",
        "--errors x", "--optimizer fastest", "--preset huge", "--epochs x", "--resume",
    ],
)  # fmt: skip
def test_values_that_no_option_takes_are_wrong_usage(run: Run, folder: Path, options: str) -> None:
    before = set(folder.rglob("*"))
    outcome = run("train", "text.txt", "--out", "m", *options.split())
    assert_fails(outcome, options.split(maxsplit=1)[0], "elmo train --help", code=2)
    assert_nothing_is_left(folder, before)
