"""Plans: their options are read, and all their problems are reported at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elmo import ConfigError, DataError, FormatError
from elmo.evidence.plan import EvidencePlan, read_plan, read_tasks
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.tagging import TaggingOptions
from tests.evidence.example_plan import PLAN, write_plan


def test_a_plan_sets_files_and_options(tmp_path: Path) -> None:
    more = "[ner.reader]\ntags = 1\n[ner.fit]\nepochs = 7\n[ner.words]\ncharacters = 5\n"
    plan = read_plan(write_plan(tmp_path, PLAN + more))
    ner, mood = plan.tasks
    assert (plan.model, plan.vectors, plan.seeds) == ("model", str(tmp_path / "glove.txt"), 2)
    assert ner.train == (str(tmp_path / "ner" / "train.conll"),)
    assert ner.reader == {"tags": 1}
    assert ner.head == TaggingOptions(hidden_width=4)
    assert ner.fit == FitOptions(epochs=7, batch_size=8, learning_rate=0.02)
    assert mood.fit.epochs == 2
    assert (ner.words["characters"], mood.words["characters"]) == (5, 0)
    assert (mood.max_train, mood.max_dev, mood.test) == (16, None, ())


def test_paths_may_contain_variables_and_be_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path)
    text = path.read_text().replace('"ner/', '"${EVIDENCE_DATA}/ner/')
    elsewhere = tmp_path / "plans"
    elsewhere.mkdir()
    moved = elsewhere / "plan.toml"
    moved.write_text(text)
    with pytest.raises(ConfigError, match=r"uses the environment variable \$EVIDENCE_DATA, which is not set"):
        read_plan(moved, only=["ner"])
    monkeypatch.setenv("EVIDENCE_DATA", str(tmp_path))
    (elsewhere / "glove.txt").write_text("a 1\n")
    assert read_plan(moved, only=["ner"]).tasks[0].dev == (str(tmp_path / "ner" / "dev.conll"),)


def test_only_selected_tasks_need_their_files(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    (tmp_path / "mood.train.txt").unlink()
    assert [task.name for task in read_plan(path, only=["ner"]).tasks] == ["ner"]
    with pytest.raises(ConfigError, match=r"mood\.train\.txt: no such file"):
        read_plan(path)
    with pytest.raises(ConfigError, match="unknown task 'pos'; this plan has: ner, mood"):
        read_plan(path, only=["ner", "pos"])


def test_all_problems_of_a_plan_are_reported_at_once_with_the_known_names(tmp_path: Path) -> None:
    write_plan(tmp_path)
    path = tmp_path / "bad.toml"
    path.write_text("""
[defaults]
seed = 3
seeds = 0
fit = {rate = 1}
[one]
kind = "tagged"
train = "nothing.conll"
dev = "$NOT_SET_AT_ALL/dev.conll"
[two]
kind = "tagging"
train = "ner/train.conll"
max_train = true
device = "cuda"
reader = {label = 2, tokenizer = "xx"}
head = {hidden_width = "wide", heads = 2}
fit = {seed = 3, epochs = 0.5}
words = {elmo = "output"}
[three]
kind = "classification"
train = 3
dev = "mood.dev.txt"
head = {network = "cubic"}
fit = {epochs = 0}
[four]
kind = "coreference"
train = "ner"
dev = "ner"
fit = 3
""")
    with pytest.raises(ConfigError) as refused:
        read_plan(path)
    message = str(refused.value)
    assert "\n" not in message
    for part in (
        "[defaults] has no option 'seed'; it has: model, vectors, seeds, fit, words",
        "[defaults] seeds must be an integer of at least 1; found 0",
        "[defaults.fit] has no option 'rate'; it has: epochs, patience, batch_size",
        "[one] kind must be one of tagging, classification, entailment",
        "nothing.conll: no such file or folder",
        "uses the environment variable $NOT_SET_AT_ALL, which is not set",
        "[two] has no option 'device'; it has: kind, train, dev",
        "[two] dev must be a path; found nothing",
        "[two] max_train must be an integer of at least 1; found True",
        "[two.reader] the reader of tagging has no option 'label'; it has: file_format, separator, tags",
        "[two.reader] tokenizer must be one of",
        "[two.head] has no option 'heads'; it has: hidden_width",
        "[two.head] hidden_width must be an integer; found 'wide'",
        "[two.fit] has no option 'seed'",
        "[two.fit] epochs must be an integer; found 0.5",
        "[two.words] has no option 'elmo'; it has: layer_norm, dropout",
        "[three] train must be a path; found 3",
        "[three.head] network must be one of biattentive, linear; found 'cubic'",
    ):
        assert part in message, part
    assert re.search(r"and \d more$|\[four.fit\] must be a table", message)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected at least one task"),
        ("[defaults]\nseeds = 1\n", "expected at least one task"),
        ("seeds = 3\n", r"\[seeds\] must be a table; found 3"),
        ("[ner\n", "cannot read .* as TOML"),
        ("x = \udcff", "cannot read .* as TOML"),
        ("defaults = 1\n", r"\[defaults\] must be a table; found 1"),
        ("[a]\nkind = []\n", "kind must be one of"),
        ("[a]\nreader = {tags = 1.5}\nkind = 'tagging'", "tags must be a string, a number"),
        ("[a]\nfit = {epochs = 0}\nkind = 'tagging'", r"\[a.fit\]: .*epochs must be at least 1; found 0"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=part):
        read_plan(path)
    with pytest.raises(FormatError, match="nothing"):
        read_plan(tmp_path / "nothing.toml")


def test_problems_of_the_data_are_reported_for_all_tasks_at_once(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    (tmp_path / "ner" / "train.conll").write_text("only\nwords\n")
    (tmp_path / "mood.dev.txt").write_text("")
    with pytest.raises(DataError, match=r"\[ner\].*train\.conll.*\[mood\].*dev\.txt"):
        read_tasks(read_plan(path))


def test_invalid_head_options_are_reported_with_the_plan(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    path.write_text(path.read_text() + "dropout = 3.0\n")  # of the last table, mood's head
    with pytest.raises(ConfigError, match=r"\[mood\.head\]: option dropout must be a number .* found 3\.0"):
        read_plan(path)


def test_the_hash_of_data_does_not_depend_on_file_names(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
        write_plan(place)
    plans: list[EvidencePlan] = [read_plan(place / "plan.toml") for place in places]
    one, two = (read_tasks(plan) for plan in plans)
    assert one["ner"].digest == two["ner"].digest != one["mood"].digest
    assert len(one["mood"].train) == 16
    file = places[0] / "ner" / "dev.conll"
    file.write_text(file.read_text() + "a O\n")
    assert read_tasks(plans[0])["ner"].digest != two["ner"].digest


def test_options_of_a_reader_are_checked_without_a_file(tmp_path: Path) -> None:
    wrong = PLAN + '[ner.reader]\nfile_format = "tsv"\n'
    with pytest.raises(ConfigError, match=r"\[ner\.reader\] .*must be one of") as refused:
        read_plan(write_plan(tmp_path, wrong))
    assert "at least one file" not in str(refused.value)
    right = PLAN + '[ner.reader]\nfile_format = "columns"\n'
    assert read_plan(write_plan(tmp_path, right)).tasks[0].reader == {"file_format": "columns"}


def test_the_example_plan_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Path(__file__).parents[2] / "examples" / "evidence.toml"
    for name in re.findall(r'"\$DATA/([^"]+)"', example.read_text(encoding="utf-8")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "glove.txt").touch()
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("VECTORS", str(tmp_path / "glove.txt"))
    plan = read_plan(example)
    kinds = {"tagging", "classification", "entailment", "answers", "roles", "coreference"}
    assert {task.kind for task in plan.tasks} == kinds
    assert plan.seeds == 3
