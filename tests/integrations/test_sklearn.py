"""scikit-learn: the vectorizers in pipelines, grid search, pickles and other processes."""

from __future__ import annotations

import pickle
import re
import runpy
import sys
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("sklearn")

import joblib
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from elmo.integrations import ElmoTokenVectorizer, ElmoVectorizer

TEXTS = ["a good film .", "a bad film .", "good !", "very bad", "so good", "bad bad film"] * 4
EXAMPLES = Path(__file__).parents[2] / "examples" / "sklearn"
LABELS = [1, 0, 1, 0, 1, 0] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sklearn") / "model"
    native.write(tiny_model(warm=True), path)
    return str(path)


def test_a_row_is_the_pooled_vector_of_the_text(folder: str) -> None:
    elmo = Elmo.from_pretrained(folder)
    rows = ElmoVectorizer(folder, layers="concat", pooling="max").fit_transform([*TEXTS, ["two", "tokens"], ""])
    expected = elmo.encode([*TEXTS, ["two", "tokens"], ""], layers="concat")
    np.testing.assert_array_equal(rows, np.stack([encoding.sentence("max") for encoding in expected]))
    warm = ElmoVectorizer(folder, start="warm").transform(TEXTS[:1])
    np.testing.assert_array_equal(warm[0], elmo.encode(TEXTS[0], start="warm").sentence())


def test_sequences_have_one_row_per_token(folder: str) -> None:
    sequences = ElmoTokenVectorizer(folder, layers=1).fit_transform(TEXTS[:2])
    for text, rows in zip(TEXTS, sequences, strict=False):
        np.testing.assert_array_equal(rows, Elmo.from_pretrained(folder).encode(text, layers=1).vectors)


@pytest.mark.parametrize("kind", [ElmoVectorizer, ElmoTokenVectorizer])
def test_scikit_learns_checks_and_clones(kind: Any, folder: str) -> None:
    with pytest.warns(SkipTestWarning):  # the other checks need numbers as input
        check_estimator(kind(folder))
    estimator = kind(folder, layers="top").set_output(transform="pandas").fit(TEXTS)
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert not hasattr(copy, "fingerprint_")
    assert type(copy.transform(["good"])[0:1]) is type(estimator.transform(["good"])[0:1])


@pytest.mark.parametrize("kind", [ElmoVectorizer, ElmoTokenVectorizer])
def test_feature_names_and_data_frames(kind: Any, folder: str) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    vectorizer = kind(folder, layers="concat").fit(TEXTS)
    names = vectorizer.get_feature_names_out().tolist()
    assert names == [f"{kind.__name__.lower()}{k}" for k in range(3 * Elmo.from_pretrained(folder).width)]
    column = pandas.Series(TEXTS[:3], index=[7, 8, 9])
    arrays = vectorizer.transform(column)
    table, other = (vectorizer.set_output(transform=name).transform(column) for name in ("pandas", "polars"))
    if kind is ElmoTokenVectorizer:  # one table per text
        arrays, table, other = arrays[0], table[0], other[0]
        assert table.index.tolist() == ["a", "good", "film", "."]
    else:
        assert table.index.tolist() == [7, 8, 9]
    assert isinstance(other, polars.DataFrame)
    for frame in (table, other):
        assert list(frame.columns) == names
        np.testing.assert_array_equal(frame.to_numpy(), arrays)


@pytest.mark.slow
def test_a_grid_search_in_two_processes_is_the_same_as_by_hand_and_pickles_are_small(folder: str) -> None:
    pipeline = make_pipeline(ElmoVectorizer(folder), LogisticRegression())
    search = GridSearchCV(pipeline, {"elmovectorizer__layers": [0, 1, "top", "average"]}, cv=2, n_jobs=2)
    search.fit(TEXTS, LABELS)
    half, elmo, scores = len(TEXTS) // 2, Elmo.from_pretrained(folder), []
    for layers in (0, 1, "top", "average"):
        rows = np.stack([encoding.sentence() for encoding in elmo.encode(TEXTS, layers=layers)])
        parts = (slice(half), slice(half, None)), (slice(half, None), slice(half))  # folds without shuffling
        by_hand = [LogisticRegression().fit(rows[b], LABELS[b]).score(rows[a], LABELS[a]) for a, b in parts]
        scores.append(np.mean(by_hand))
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores)

    fitted = search.best_estimator_[0]
    assert all(len(pickle.dumps(estimator)) < 10_000 for estimator in (fitted, search))
    (other,) = joblib.Parallel(n_jobs=2)([joblib.delayed(methodcaller("transform", TEXTS))(fitted)])  # same processes
    np.testing.assert_array_equal(other, fitted.transform(TEXTS))


def test_another_model_in_the_same_folder_is_detected(tmp_path: Path) -> None:
    native.write(tiny_model(seed=0), tmp_path / "model")
    data = pickle.dumps(ElmoVectorizer(tmp_path / "model").fit(TEXTS))
    (tmp_path / "model").rename(tmp_path / "old")
    native.write(tiny_model(seed=1), tmp_path / "model")
    with pytest.raises(
        ConfigError, match=r"must have the fingerprint \w{12}…, as in fit; found \w{12}…; use"
    ) as caught:
        pickle.loads(data).transform(TEXTS)
    assert "\n" not in str(caught.value)
    refitted = pickle.loads(data).fit_transform(TEXTS)  # and the new weights are used
    expected = Elmo(tiny_model(seed=1)).encode(TEXTS[0]).sentence()
    np.testing.assert_array_equal(refitted[0], expected)


@pytest.mark.parametrize("kind", [ElmoVectorizer, ElmoTokenVectorizer])
def test_texts_can_come_from_an_iterator(kind: Any, folder: str) -> None:
    rows = kind(folder).fit_transform(iter(TEXTS))
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(kind(folder).fit_transform(TEXTS)))


@pytest.mark.parametrize("kind", [ElmoVectorizer, ElmoTokenVectorizer])
def test_bad_inputs_and_parameters_give_one_line(kind: Any, folder: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": TEXTS, "other": TEXTS})
    for column, match in [
        ("one text", r"found one string; pass \[text\]"),
        (table, r"found a table of shape \(24, 2\); select a column"),
        (7, "found int"),
        (["text", None], "sentence 1 must be text or a list of tokens; found NoneType"),
    ]:
        with pytest.raises(DataError, match=match) as caught:
            kind(folder).fit_transform(column)
        assert "\n" not in str(caught.value)
    for options, match in [
        ({"layers": "topp"}, "layers must be average, top"),
        ({"layers": 9}, r"layers must be a layer number in 0\.\.2; found 9"),
        ({"layers": "all"}, "found all; use concat"),
        ({"model": Elmo(tiny_model())}, "model must be a name or a path; found Elmo"),
    ]:
        with pytest.raises(ConfigError, match=match):
            kind(**{"model": folder, **options}).fit(TEXTS)
    with pytest.raises(ConfigError, match="pooling must be"):
        ElmoVectorizer(folder, pooling="sum").fit(TEXTS)  # type: ignore[arg-type]


def test_a_column_of_a_table_is_selected_by_name(folder: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": TEXTS, "n": range(len(TEXTS))})
    rows = ColumnTransformer([("elmo", ElmoVectorizer(folder), "text")], remainder="passthrough").fit_transform(table)
    np.testing.assert_array_equal(rows[:, :-1], ElmoVectorizer(folder).transform(TEXTS))


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "She O\nflew O\nto O\nLondon LOC\n. O\n\nParis LOC\nis O\nhere O\n\n"
    (tmp_path / "train.conll").write_text(rows)
    (tmp_path / "train.txt").write_text("".join(f"{y} {x}\n" for x, y in zip(TEXTS, LABELS, strict=True)))
    monkeypatch.setattr(sys, "argv", ["tagging.py", *[str(tmp_path / "train.conll")] * 2])
    runpy.run_path(str(EXAMPLES / "tagging.py"))
    monkeypatch.setattr(sys, "argv", ["sentiment.py", *[str(tmp_path / "train.txt")] * 2])
    with joblib.parallel_config("threading"):
        runpy.run_path(str(EXAMPLES / "sentiment.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "accuracy 1.0000"
    assert re.fullmatch(r"dev accuracy with layers \{'elmo__layers': .*\}: 1\.0000", lines[-1])
