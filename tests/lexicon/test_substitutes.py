"""Substitutes: language models, lemmas and formulas, the command, and substitute vectors."""

from __future__ import annotations

import builtins
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from elmo.cli import substitutes as cli
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, StateError
from elmo.formats import native
from elmo.lexicon import substitutes as library
from elmo.lexicon.substitutes import (
    ContextPredictor,
    LemmaTable,
    Lemmatizer,
    Substituter,
    Substitutes,
    embed_substitutes,
    find_substitutes,
    tokenizer_language,
)
from elmo.lexicon.usages import Usage, find_marked_usage
from elmo.predict.scores import score_sentences
from elmo.text.tokenizers import Tokens
from tests.embed.sentences import tiny_elmo
from tests.formats.tiny import tiny_model

WORDS = ("<S>", "</S>", "<UNK>", "the", ",", "bank", "Bank", "banks", "river", "rivers", "shore", "money",
         "1995", "1996", "New", "York", "went", "go", "河岸", "银行", "了")  # fmt: skip
SENTENCE = "I sat by the [[bank]] of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    pytest.importorskip("simplemma")
    return Elmo(tiny_model(softmax=True, warm=True, words=WORDS))


def usage(elmo: Elmo, sentence: str = SENTENCE) -> Usage:
    return find_marked_usage(elmo.tokenizer, sentence)


def substitutes(elmo: Elmo, sentence: str, **options: Any) -> Substitutes:
    """Return the substitutes of one sentence."""
    (found,) = find_substitutes(elmo, [sentence], **options)
    return found


def test_predictions_equal_the_scores_of_the_words(elmo: Elmo) -> None:
    sentence = ["the", "river", *["bank"] * 200, "shore"]  # longer than a window
    for start in ("zero", "warm"):
        (scored,) = score_sentences(elmo, [sentence], start=start)
        usages = [Usage(Tokens.from_words(sentence), k, k + 1) for k in (0, 1, 127, 128, 129, 202)]
        for found in ContextPredictor(elmo, start=start).predict(usages):
            k, row = found.usage.begin, WORDS.index(found.usage.word)
            assert found.forward is not None and found.backward is not None  # noqa: PT018
            assert scored.forward is not None and scored.backward is not None  # noqa: PT018
            assert found.forward[row] == pytest.approx(scored.forward[k], abs=1e-5)
            assert found.backward[row] == pytest.approx(scored.backward[k + 1], abs=1e-5)
            assert np.exp(found.forward).sum() == pytest.approx(1, abs=1e-4)


def test_the_prediction_does_not_depend_on_the_word_itself(elmo: Elmo) -> None:
    found = ContextPredictor(elmo).predict(usage(elmo, f"the [[{word}]] of") for word in ("bank", "river"))
    one, other = found
    np.testing.assert_array_equal(one.forward, other.forward)
    np.testing.assert_array_equal(one.backward, other.backward)


def test_predictions_in_a_batch_have_the_bits_of_single_ones(elmo: Elmo) -> None:
    texts = [f"the {'river ' * k}[[bank]] of money" for k in range(140)]  # more than are read at once
    together = list(ContextPredictor(elmo).predict(usage(elmo, text) for text in texts))
    for k in (0, 1, 77, 139):
        (alone,) = ContextPredictor(elmo).predict([usage(elmo, texts[k])])
        np.testing.assert_array_equal(together[k].forward, alone.forward)
        np.testing.assert_array_equal(together[k].backward, alone.backward)


def expected_probabilities(elmo: Elmo, combine: str, *, beta: float, temperature: float) -> dict[str, float]:
    """Compute the formulas word by word and sum the forms of a lemma."""
    (found,) = ContextPredictor(elmo).predict([usage(elmo)])
    assert found.forward is not None and found.backward is not None  # noqa: PT018
    assert elmo.softmax is not None
    lemmas = Lemmatizer("en")
    units = {w: v / np.linalg.norm(v) for w, v in zip(WORDS, elmo.softmax.weight.numpy(), strict=True)}
    total = sum(1 / k for k in range(1, len(WORDS) + 1))

    def vector(word: str) -> Any:
        mean = sum(units[w] for w in WORDS if lemmas(w) == lemmas(word))
        both = units[word] + mean / np.linalg.norm(mean)
        return both / np.linalg.norm(both)

    odds: dict[str, float] = {}
    for row, word in enumerate(WORDS):
        if not word.isalpha() or lemmas(word) == "bank":
            continue
        f, b = (math.exp(float(x[row])) for x in (found.forward, found.backward))
        prior = 1 / (row + 1) / total
        score = {
            "forward": f,
            "backward": b,
            "mean": (f + b) / 2,
            "product": f * b,
            "bcomb": f * b / prior**beta,
            "inject": math.sqrt(f * b) / prior**beta * math.exp(float(vector(word) @ vector("bank")) / temperature),
        }[combine]
        odds[lemmas(word)] = odds.get(lemmas(word), 0.0) + score
    return {lemma: each / sum(odds.values()) for lemma, each in odds.items()}


@pytest.mark.parametrize("combine", ["forward", "backward", "mean", "product", "bcomb", "inject"])
def test_probabilities_follow_the_formulas(elmo: Elmo, combine: Any) -> None:
    found = substitutes(elmo, SENTENCE, combine=combine, n=100, beta=0.7, temperature=0.2)
    expected = expected_probabilities(elmo, combine, beta=0.7, temperature=0.2)
    assert {one.lemma: one.probability for one in found.items} == pytest.approx(expected, rel=1e-4)
    shares = [one.probability for one in found.items]
    assert shares == sorted(shares, reverse=True)
    fewer = substitutes(elmo, SENTENCE, combine=combine, n=2, beta=0.7, temperature=0.2)
    assert fewer.items == found.items[:2]


def test_each_lemma_appears_once_with_its_best_form_without_the_target(elmo: Elmo) -> None:
    found = substitutes(elmo, SENTENCE, n=100, combine="forward").items
    lemmas = [one.lemma for one in found]
    assert len(lemmas) == len(set(lemmas))
    assert "bank" not in lemmas
    assert not {"<S>", "</S>", "<UNK>", ",", "1995"} & {one.word for one in found}
    (river,) = [one for one in found if one.lemma == "river"]
    (place,) = ContextPredictor(elmo).predict([usage(elmo)])
    assert place.forward is not None
    by_form = {form: float(np.exp(place.forward[WORDS.index(form)])) for form in ("river", "rivers")}
    assert river.word == max(by_form, key=lambda form: by_form[form])
    assert river.forward == pytest.approx(by_form[river.word])


def test_numbers_and_punctuation_replace_only_their_kind(elmo: Elmo) -> None:
    years = {one.word for one in substitutes(elmo, "in [[1995]] he", n=100).items}
    assert "1996" in years
    assert not {"1995", ","} & years
    assert "," in {one.word for one in substitutes(elmo, "in [[;]] he", n=100, combine="mean").items}


def test_a_phrase_is_replaced_as_a_whole(elmo: Elmo) -> None:
    found = substitutes(elmo, "in [[New York]] he sat", n=100)
    assert found.usage.word == "New York"
    (place,) = ContextPredictor(elmo).predict([usage(elmo, "in [[the]] he sat")])
    (phrase,) = ContextPredictor(elmo).predict([found.usage])
    np.testing.assert_array_equal(place.forward, phrase.forward)
    np.testing.assert_array_equal(place.backward, phrase.backward)


def test_an_unknown_target_is_ranked_by_context_only(elmo: Elmo, caplog: pytest.LogCaptureFixture) -> None:
    found = substitutes(elmo, "the [[zzxq]] of", n=3, beta=0.0)
    assert "'zzxq' is not in the vocabulary; ranking by context only" in caplog.text
    product = substitutes(elmo, "the [[zzxq]] of", n=3, combine="product")
    assert [one.similarity for one in found.items] == [None] * 3
    assert found.items[0].lemma == product.items[0].lemma


def test_candidates_are_ranked_like_substitutes(elmo: Elmo, caplog: pytest.LogCaptureFixture) -> None:
    found = substitutes(elmo, SENTENCE, n=100)
    given = ["zzxq", "Rivers", "going", "shore", "money shore", "qq ww", "shore-zzxq", "<UNK>"]
    ranked = substitutes(elmo, SENTENCE, candidates=given)
    by_name = {one.candidate: one for one in ranked.items}
    assert set(by_name) == set(given)
    assert [one.candidate for one in ranked.items[-3:]] == ["zzxq", "qq ww", "<UNK>"]
    assert [one.is_known for one in ranked.items] == [True] * 5 + [False] * 3
    assert (
        "ranking these candidates last, because they are not in the vocabulary: 'zzxq', 'qq ww', '<UNK>'" in caplog.text
    )
    order = [one.lemma for one in found.items if one.lemma in ("river", "go", "shore")]
    assert [one.lemma for one in ranked.items if one.candidate in ("Rivers", "going", "shore")] == order
    assert sum(one.probability for one in ranked.items) == pytest.approx(1)
    shares = {one.lemma: one.probability for one in found.items}
    scale = by_name["shore"].probability / shares["shore"]
    mean = math.sqrt(shares["money"] * shares["shore"]) * scale
    assert by_name["money shore"].probability == pytest.approx(mean, rel=1e-4)
    assert by_name["shore-zzxq"].probability == pytest.approx(by_name["shore"].probability)
    with pytest.raises(DataError, match="found the string 'shore'"):
        substitutes(elmo, SENTENCE, candidates="shore")
    with pytest.raises(DataError, match="candidate 2: expected a word"):
        substitutes(elmo, SENTENCE, candidates=["shore", " "])


def test_a_model_with_one_direction_works_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    metadata = {"training": {"directions": "backward"}}
    one_way = Elmo(tiny_model(softmax=True, words=WORDS, metadata=metadata))
    found = substitutes(one_way, SENTENCE, combine="product")
    assert "has only the backward direction" in caplog.text
    assert {one.forward for one in found.items} == {None}
    backward = substitutes(one_way, SENTENCE, combine="backward")
    assert [one.word for one in found.items] == [one.word for one in backward.items]
    with pytest.raises(ConfigError, match="only has the backward direction"):
        substitutes(one_way, SENTENCE, combine="forward")


def test_invalid_arguments_are_rejected(elmo: Elmo) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"combine": "sum"}, "combine must be one of inject"),
        ({"temperature": 0.0}, "temperature above 0"),
        ({"beta": float("nan")}, "beta must be at least 0"),
        ({"n": 0}, "n must be at least 1"),
        ({"start": "carry"}, "start must be zero or warm"),
    ]
    for options, said in refused:
        with pytest.raises(ConfigError, match=said):
            substitutes(elmo, SENTENCE, **options)
    with pytest.raises(ConfigError, match="no softmax"):
        substitutes(Elmo(tiny_model()), SENTENCE)
    with pytest.raises(StateError, match="no warm state"):
        substitutes(Elmo(tiny_model(softmax=True)), SENTENCE, start="warm")
    with pytest.raises(DataError, match="no word is marked"):
        substitutes(elmo, "the bank")
    with pytest.raises(DataError, match="the number of candidate lists must be 1, one per usage; found 0"):
        Substituter(elmo).rank([usage(elmo)], [])


def test_an_unknown_form_has_the_vector_of_its_lemma(elmo: Elmo) -> None:
    table = LemmaTable(elmo, Lemmatizer("en"), ContextPredictor(elmo))
    found = table.similarities(["going"])  # went and go are there
    assert found is not None
    assert {WORDS[k] for k in np.argsort(-found)[:2]} == {"went", "go"}
    own = table.similarities(["BANKS"])
    assert own is not None
    assert own[WORDS.index("banks")] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_substitutes_of_a_chinese_word(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("jieba")
    chinese = Elmo(tiny_model(softmax=True, words=WORDS), tokenizer="zh")
    found = substitutes(chinese, "我坐在[[河岸]]上。", n=100)
    assert found.usage.word == "河岸"
    words = {one.word for one in found.items}
    assert {"银行", "了"} <= words
    assert "河岸" not in words
    assert "rivers" in words or "river" in words  # English forms stay apart: Chinese has no lemmas
    assert "lemmas" not in caplog.text


def test_an_unknown_word_is_reported_once(elmo: Elmo, caplog: pytest.LogCaptureFixture) -> None:
    substituter = Substituter(elmo, language="en")
    usages = [find_marked_usage(elmo.tokenizer, f"the [[zzxq]] {k}") for k in range(5)]
    list(substituter.substitutes(usages, n=1))
    assert caplog.text.count("'zzxq' is not in the vocabulary") == 1
    caplog.clear()
    substituter.rank(usages, [["river", "qqww"]] * 5)
    assert caplog.text.count("not in the vocabulary: 'qqww'") == 1


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    pytest.importorskip("simplemma")
    native.write(tiny_model(softmax=True, words=WORDS), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(cli.command)
    return app


def run_command(app: typer.Typer, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app([*arguments, "--model", "model"], standalone_mode=False)
    return capsys.readouterr().out


def test_the_command_shows_a_table_json_and_a_file(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = run_command(app, capsys, SENTENCE, "the bank", "--word", "bank", "-n", "3").splitlines()
    assert lines[0] == "I sat by the [bank] of the river ."
    assert lines[4:6] == ["", "the [bank]"]
    assert len(lines) == 9
    assert lines[1].split()[0].endswith("%")
    out = tmp_path / "found.tsv"
    values = json.loads(run_command(app, capsys, SENTENCE, "--json", "--out", str(out)))
    rows = [line.split("\t") for line in out.read_text("utf-8").splitlines()]
    assert rows[0][:4] == ["sentence", "target", "rank", "substitute"]
    assert [row[3] for row in rows[1:]] == [one["word"] for one in values[0]["substitutes"]]
    assert values[0]["word"] == "bank"


def test_the_command_ranks_candidates_from_a_list_or_file(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "given.txt").write_text("shores\nzzxq\nriver\n", encoding="utf-8")
    from_file = run_command(app, capsys, SENTENCE, "--candidates", "given.txt")
    assert from_file == run_command(app, capsys, SENTENCE, "--candidates", "shores,zzxq,river")
    lines = from_file.splitlines()
    assert len(lines) == 4
    assert lines[-1].split() == ["unknown", "zzxq"]
    assert any(line.endswith("shore  (shores)") for line in lines)


# --- Lemmas -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_forms_of_a_word_have_one_lemma_in_lower_case() -> None:
    pytest.importorskip("simplemma")
    lemmas = Lemmatizer("en")
    assert lemmas.has_table
    assert {lemmas(form) for form in ("bank", "banks", "Banks", "BANKS")} == {"bank"}
    assert [lemmas(form) for form in ("went", "children", "", "zzxq")] == ["go", "child", "", "zzxq"]
    assert Lemmatizer("de")("Häuser") == "haus"
    assert Lemmatizer("en-GB")("banks") == "bank"


def test_chinese_words_are_unchanged_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo"):
        assert Lemmatizer("zh")("银行们") == "银行们"
    assert not caplog.records


@pytest.mark.parametrize(
    ("language", "message"),
    [("qq", "does not support the language 'qq'"), (None, "the language of the tokenizer is unknown")],
)
def test_an_unsupported_language_is_reported_once(
    caplog: pytest.LogCaptureFixture, language: str | None, message: str
) -> None:
    pytest.importorskip("simplemma")
    lemmas = Lemmatizer(language)
    assert [lemmas(word) for word in ("Banks", "banks")] == ["banks", "banks"]
    assert not lemmas.has_table
    (record,) = caplog.records
    assert message in record.getMessage()


def test_without_simplemma_a_word_is_its_own_lemma(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "simplemma":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    library._import_lemmatize.cache_clear()
    assert Lemmatizer("en")("Banks") == "banks"
    (record,) = caplog.records
    assert "pip install 'pyelmo[lexicon]'" in record.getMessage()


def test_the_language_comes_from_the_tokenizer() -> None:
    model = tiny_model(softmax=True)
    found = [tokenizer_language(Elmo(model, tokenizer=name)) for name in ("en", "zh", "whitespace")]
    assert found == ["en", "zh", None]
    assert tokenizer_language(Elmo(model, tokenizer=str.split)) is None  # pyright: ignore[reportArgumentType]


# --- Substitute vectors -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_elmo() -> Elmo:
    return tiny_elmo(softmax=True)


def usage_of(*tokens: str, at: int = 1) -> Usage:
    return Usage(Tokens.from_words(tokens), at, at + 1)


def test_a_substitute_vector_is_the_mean_of_the_predicted_words(plain_elmo: Elmo) -> None:
    usages = [usage_of("the", "bank", "river"), usage_of("x", "y", "z", at=0)]
    found = embed_substitutes(plain_elmo, usages)
    assert plain_elmo.softmax is not None
    weight = plain_elmo.softmax.weight.numpy()
    units = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    for vector, one in zip(found.vectors, ContextPredictor(plain_elmo).predict(usages), strict=True):
        assert one.forward is not None and one.backward is not None  # noqa: PT018
        odds = np.exp((one.forward + one.backward) / 2) * np.arange(1, len(weight) + 1)
        odds[:3] = 0  # boundaries and the unknown word
        assert np.allclose(vector, odds @ units / odds.sum(), atol=1e-6)


def test_a_substitute_vector_does_not_depend_on_the_word(plain_elmo: Elmo) -> None:
    a, b = embed_substitutes(plain_elmo, [usage_of("the", "bank", "river"), usage_of("the", "Café", "river")]).vectors
    assert np.array_equal(a, b)


def test_many_usages_give_the_same_as_one_by_one(plain_elmo: Elmo) -> None:
    usages = [usage_of("a" * k, "bank", "river") for k in range(1, 140)]
    progress: list[int] = []
    together = embed_substitutes(plain_elmo, usages, on_progress=progress.append).vectors
    assert progress[-1] == len(usages)
    for k in (0, 70, 138):
        assert np.allclose(embed_substitutes(plain_elmo, [usages[k]]).vectors[0], together[k], atol=1e-6)
    assert embed_substitutes(plain_elmo, []).vectors.shape == (0, together.shape[1])


def test_a_model_without_softmax_is_rejected() -> None:
    with pytest.raises(ConfigError, match="has no softmax"):
        embed_substitutes(tiny_elmo(), [usage_of("a", "b")])
