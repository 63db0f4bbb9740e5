"""Collecting evidence: tables agree with results, a killed collection resumes, no run is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, Elmo
from elmo.errors import OutputError
from elmo.evidence.collect import RunReport, collect_evidence
from elmo.evidence.plan import read_plan
from elmo.evidence.runs import EvidenceRun
from elmo.evidence.tables import Evidence
from elmo.tasks.fit import Epoch
from tests.evidence.example_plan import PLAN, write_plan
from tests.formats.tiny import tiny_model

ELMO = Elmo(tiny_model())


class Killed(BaseException):
    pass


def collected(folder: Path, out: Path, **options: Any) -> Evidence:
    plan = read_plan(folder / "plan.toml")
    return collect_evidence(plan, out, model=ELMO, **{"cache": folder / "layers", **options})


def new_runs(**options: Any) -> list[tuple[str, str, int]]:
    """Collect evidence and return the new runs."""
    found: list[tuple[str, str, int]] = []

    def tell(report: RunReport) -> None:
        assert report.n_done <= report.n_all
        if report.is_new:
            found.append((report.run.task, report.run.condition, report.run.seed))

    collected(**options, on_run=tell)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan and its evidence with all tables and the curve; shared, do not change it."""
    folder = tmp_path_factory.mktemp("whole")
    write_plan(folder)
    collected(folder, folder / "out", curve=True)
    return folder


TRANSLATION = (
    PLAN
    + """
[mt]
kind = "translation"
train = ["mt.en", "mt.de"]
dev = ["mt.en", "mt.de"]
sizes = [6, 12]
[mt.head]
hidden_width = 4
n_units = 40
beam_width = 2
"""
)


@pytest.mark.slow
def test_table_4_compares_vectors_by_number_of_pairs(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    write_plan(tmp_path, TRANSLATION)
    (tmp_path / "mt.en").write_text("a a b\nb Q\n" * 6)
    (tmp_path / "mt.de").write_text("ein ein Baum\nBaum Q\n" * 6)
    found = collected(tmp_path, tmp_path / "out", tables=[4])
    assert not found.tables
    (table,) = found.sizes
    assert [(table.task, row.n_examples) for row in table.rows] == [("mt", 6), ("mt", 12)]
    assert all(set(row.cells) == {"random", "baseline", "elmo_only"} for row in table.rows)
    assert len(found.runs) == 2 * 3 * 2
    assert {mix.condition for mix in found.mixes} == {"elmo_only"}
    lines = (tmp_path / "out" / "evidence.txt").read_text("utf-8").splitlines()
    assert lines[0] == "Table 4. Random vectors, static vectors and ELMo by number of training examples"
    assert lines[1].split()[:4] == ["mt", "score", "random", "vectors"]
    assert lines[3].split()[:2] == ["12", "bleu"]
    again = json.loads((tmp_path / "out" / "evidence.json").read_text("utf-8"))
    assert again["sizes"][0]["rows"][0]["n_examples"] == 6
    assert new_runs(folder=tmp_path, out=tmp_path / "out", tables=[4]) == []
    with pytest.raises(ConfigError, match="table 4 needs a task with sizes"):
        collect_evidence(write_plan(tmp_path), tmp_path / "other", model=ELMO, tables=[4])


def files_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((out / "runs").glob("*.json"))]


@pytest.mark.slow
def test_tables_agree_with_the_result_files(whole: Path) -> None:
    evidence = json.loads((whole / "out" / "evidence.json").read_text())
    scores: dict[tuple[Any, ...], dict[int, float]] = {}
    for file in files_of(whole / "out"):
        run = file["run"]
        where = (run["task"], run["condition"], run["n_examples"])
        scores.setdefault(where, {})[run["seed"]] = file["result"]["score"]
    sizes = {"ner": 24, "mood": 16}
    assert [table["number"] for table in evidence["tables"]] == [1, 2, 3]
    for table in evidence["tables"]:
        assert [row["task"] for row in table["rows"]] == ["ner", "mood"]
        for row in table["rows"]:
            for condition, cell in row["cells"].items():
                found = scores[row["task"], condition, sizes[row["task"]]]
                assert cell["scores"] == [found[1], found[2]]
                assert cell["mean"] == pytest.approx(np.mean(list(found.values())))
                assert cell["spread"] == pytest.approx(abs(found[1] - found[2]) / np.sqrt(2))
            for gain in row["gains"]:
                means = [row["cells"][gain[side]]["mean"] for side in ("condition", "over")]
                assert gain["gain"]["difference"] == pytest.approx(means[0] - means[1])
    for curve in evidence["curves"]:
        for point in curve["points"]:
            for side, condition in (("baseline", "baseline"), ("elmo", "input")):
                found = scores[curve["task"], condition, point["n_examples"]]
                assert point[side]["scores"] == [found[1], found[2]]
    assert len(evidence["runs"]) == len(files_of(whole / "out"))  # runs that tables share are there once
    assert not list((whole / "out" / "runs").glob("*.training"))


def test_mixes_are_those_of_the_best_epochs(whole: Path) -> None:
    evidence = json.loads((whole / "out" / "evidence.json").read_text())
    mixes = {(mix["task"], mix["condition"], mix["place"]): mix for mix in evidence["mixes"]}
    assert {key[1:] for key in mixes} == {
        ("input", "input"), ("lambda_1", "input"), ("output", "output"),
        ("both", "input"), ("both", "output"),
    }  # fmt: skip
    runs = [
        file["result"]["mixes"]["output"]
        for file in files_of(whole / "out")
        if (file["run"]["task"], file["run"]["condition"]) == ("ner", "both")
    ]
    found = mixes["ner", "both", "output"]
    np.testing.assert_allclose(found["shares"], np.mean([run["shares"] for run in runs], axis=0))
    assert found["gamma"] == pytest.approx(np.mean([run["gamma"] for run in runs]))


def test_the_text_has_every_table_and_explains_it(whole: Path) -> None:
    text = (whole / "out" / "evidence.txt").read_text()
    evidence = json.loads((whole / "out" / "evidence.json").read_text())
    for part in ("Table 1.", "Table 2.", "Table 3.", "Figure 1.", "Figure 2.", "over 2 seeds", "Welch's t"):
        assert part in text
    cell = evidence["tables"][0]["rows"][0]["cells"]["input"]
    assert f"{100 * cell['mean']:.2f} ± {100 * cell['spread']:.2f}" in text


def stop_at(place: int) -> Callable[[RunReport], None]:
    def stop(report: RunReport) -> None:
        if report.n_done == place:
            raise Killed

    return stop


@pytest.mark.slow
def test_a_killed_collection_resumes_where_it_stopped(tmp_path: Path) -> None:
    write_plan(tmp_path)
    options = {"folder": tmp_path, "tables": [1], "curve": False}
    all_runs = new_runs(**options, out=tmp_path / "whole")

    def stop_inside(run: EvidenceRun, epoch: Epoch) -> None:
        if (run.task, run.condition, run.seed, epoch.epoch) == ("mood", "input", 1, 1):
            raise Killed

    with pytest.raises(Killed):
        collected(**options, out=tmp_path / "out", on_run=stop_at(2))
    with pytest.raises(Killed):
        collected(**options, out=tmp_path / "out", on_epoch=stop_inside)
    assert len(list((tmp_path / "out" / "runs").glob("*.training"))) == 1
    seen: list[tuple[str, int]] = []
    done = new_runs(
        **options, out=tmp_path / "out", on_epoch=lambda run, epoch: seen.append((run.condition, epoch.epoch))
    )
    assert done == all_runs[6:] == [("mood", "input", 1), ("mood", "input", 2)]
    assert seen == [("input", 2), ("input", 1), ("input", 2)]  # the first epoch of the first was kept
    one, two = ((tmp_path / name / "evidence.json").read_bytes() for name in ("whole", "out"))
    assert one == two
    assert new_runs(**options, out=tmp_path / "out") == []


@pytest.mark.slow
def test_a_changed_plan_repeats_only_affected_runs(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    options = {"folder": tmp_path, "out": tmp_path / "out", "tables": [1], "seeds": 1}
    assert len(new_runs(**options)) == 2 * 2
    path.write_text(PLAN.replace("hidden_width = 4", "hidden_width = 5"))
    assert {task for task, _, _ in new_runs(**options)} == {"ner"}
    path.write_text(PLAN)
    assert new_runs(**options) == []  # the old ones are still there
    path.write_text(PLAN.replace("[mood", "[feeling"))
    assert new_runs(**options) == []  # a name is only a name
    assert new_runs(**{**options, "seeds": 2}) == [
        (task, condition, 2) for task in ("ner", "feeling") for condition in ("baseline", "input")
    ]
    assert {condition for _, condition, _ in new_runs(**{**options, "tables": [3]})} == {"output", "both"}
    glove = tmp_path / "glove.txt"
    glove.write_text(glove.read_text() + "c 1 2 3\n")
    assert len(new_runs(**options)) == 4
    dev = tmp_path / "ner" / "dev.conll"
    dev.write_text(dev.read_text() + "Q B-X\n")
    assert {task for task, _, _ in new_runs(**options)} == {"ner"}


@pytest.mark.slow
def test_another_model_repeats_only_runs_with_elmo(tmp_path: Path) -> None:
    write_plan(tmp_path)
    plan = read_plan(tmp_path / "plan.toml", only=["ner"])
    collect_evidence(plan, tmp_path / "out", model=ELMO, tables=[1], seeds=1)
    again: list[str] = []
    collect_evidence(
        plan,
        tmp_path / "out",
        model=Elmo(tiny_model(seed=7)),
        tables=[1],
        seeds=1,
        on_run=lambda report: again.append(report.run.condition) if report.is_new else None,
    )
    assert again == ["input"]


def test_a_damaged_result_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_plan(tmp_path)
    options = {"folder": tmp_path, "out": tmp_path / "out", "tables": [1], "seeds": 1}
    new_runs(**options)
    before = (tmp_path / "out" / "evidence.json").read_bytes()
    for path, text in zip(sorted((tmp_path / "out" / "runs").glob("*.json")), ("{", "{}"), strict=False):
        path.write_text(text)
    assert len(new_runs(**options)) == 2
    assert "training the run again" in caplog.text
    assert (tmp_path / "out" / "evidence.json").read_bytes() == before


def test_a_test_set_is_scored_instead_of_dev(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    (tmp_path / "ner" / "test.conll").write_text("a B-X\nQ O\n\n")  # all that was learned is wrong here
    path.write_text(PLAN.replace('dev = "ner/dev.conll"', 'dev = "ner/dev.conll"\ntest = "ner/test.conll"'))
    evidence = collected(tmp_path, tmp_path / "out", tables=[1], seeds=1)
    ner = evidence.tasks[0]
    assert (ner.scored_on, ner.n_scored, evidence.tasks[1].scored_on) == ("test", 1, "dev")
    assert evidence.tables[0].rows[0].cells["input"].mean == 0.0


@pytest.mark.slow
def test_a_baseline_without_vectors_is_refused_before_data_is_read(tmp_path: Path) -> None:
    path = write_plan(tmp_path, PLAN.replace('vectors = "glove.txt"', ""))
    with pytest.raises(ConfigError, match=r"\[ner\] needs word vectors .*\[mood\] needs word vectors"):
        collected(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path.write_text(path.read_text() + "[mood.words]\ncharacters = 3\n[ner.words]\ncharacters = 3\n")
    assert collected(tmp_path, tmp_path / "out", tables=[1], seeds=1).n_seeds == 1


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path)
    with pytest.raises(OutputError, match=r"cannot write .*glove\.txt"):
        collected(tmp_path, tmp_path / "glove.txt")
