"""Perplexity: sums of the scores, unknown words, and the same numbers as in training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, OutputError
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, convert
from elmo.model.bilm import BiLm
from elmo.model.softmax import Softmax
from elmo.predict.evaluate import perplexity
from elmo.predict.scores import Means, score_sentences
from elmo.train import CorpusOptions, build_corpus
from elmo.train.corpus import TypeIds
from elmo.train.evaluation import evaluate
from elmo.train.objective import BiLmObjective
from tests.formats.tiny import tiny_model

TEXT = [["the", "dog", "sat"], ["the", "dog"], ["河岸", "bank"], ["café"]]


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return tiny_model(softmax=True, warm=True)


def test_perplexity_is_computed_from_the_scores(model: Pretrained) -> None:
    result = perplexity(model, TEXT, start="all")
    assert list(result.by_start) == ["zero", "warm", "carry"]
    assert (result.n_sentences, result.n_tokens, result.n_unknown) == (4, 8, 3)
    for start, both in result.by_start.items():
        by_sentence = list(score_sentences(model, TEXT, start=start))
        for name in ("forward", "backward"):
            each = np.concatenate([getattr(one, name) for one in by_sentence]).astype(np.float64)
            assert len(each) == both.with_unknown.n_predictions == 12
            assert getattr(both.with_unknown, name) == pytest.approx(np.exp(-each.mean()), rel=1e-12)
            # dog, sat and dog again are left out; both boundaries of every sentence are not
            unknown = (1, 2, 5) if name == "forward" else (2, 3, 6)
            known = np.delete(each, unknown)
            assert getattr(both.without_unknown, name) == pytest.approx(np.exp(-known.mean()), rel=1e-12)
        assert both.without_unknown.n_predictions == 9
        assert result[start] is both.with_unknown


def test_unknown_words_are_listed_by_frequency(model: Pretrained) -> None:
    result = perplexity(model, [*TEXT, ["a", "a", "dog"]], start="zero")
    assert result.unknown_words == (("dog", 3), ("a", 2), ("sat", 1))
    assert result.unknown_rate == 6 / 11
    assert perplexity(model, [["dog"]], start="zero", n_unknown_words=0).unknown_words == ()


def test_unknown_words_are_counted_in_bounded_memory(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.predict.evaluate._MAX_COUNTED_WORDS", 8)
    text = [["frequent", f"rare{k}"] for k in range(50)]
    result = perplexity(model, text, start="zero")
    assert result.n_unknown == 100
    assert result.unknown_words[0] == ("frequent", 50)
    assert len(result.unknown_words) <= 9


def test_means_of_both_directions() -> None:
    means = Means(forward_nats=6.0, backward_nats=12.0, n_predictions=3, n_characters=18)
    assert means.forward == pytest.approx(math.exp(2))
    assert means.backward == pytest.approx(math.exp(4))
    assert means.arithmetic_mean == pytest.approx((math.exp(2) + math.exp(4)) / 2)
    assert means.geometric_mean == pytest.approx(math.exp(3))
    assert means.nats_per_token == pytest.approx(3)
    assert means.nats_per_character == pytest.approx(0.5)
    assert means.bits_per_character == pytest.approx(0.5 / math.log(2))
    one = Means(forward_nats=6.0, backward_nats=None, n_predictions=3, n_characters=18)
    assert (one.backward, one.arithmetic_mean) == (None, one.forward)
    infinite = Means(forward_nats=1e6, backward_nats=1e6, n_predictions=1, n_characters=0)
    assert infinite.forward == math.inf
    assert json.loads(json.dumps(infinite.to_json(), allow_nan=False))["geometric_mean"] is None


def test_characters_include_one_boundary_after_each_word(model: Pretrained) -> None:
    both = perplexity(model, TEXT, start="zero").by_start["zero"]
    as_lines = "the dog sat\nthe dog\n河岸 bank\ncafé\n"
    assert both.with_unknown.n_characters == len(as_lines)
    assert both.without_unknown.n_characters == len("the the 河岸 bank café ")
    blank = perplexity(model, [[], ["the"]], start="zero", blank_lines=True)
    assert blank["zero"].n_characters == len("\nthe\n")
    assert (blank["zero"].n_predictions, blank.n_tokens, blank.n_sentences) == (3, 1, 2)


def test_one_direction_can_be_selected_and_is_the_default_if_only_one_was_trained(model: Pretrained) -> None:
    both = perplexity(model, TEXT, start="zero")["zero"]
    forward = perplexity(model, TEXT, start="zero", directions="forward")["zero"]
    assert (forward.forward, forward.backward) == (both.forward, None)
    assert forward.geometric_mean == pytest.approx(both.forward)
    trained = tiny_model(softmax=True, metadata={"training": {"directions": "backward"}})
    backward = perplexity(trained, TEXT, start="zero")["zero"]
    assert (backward.forward, backward.backward) == (None, both.backward)


def test_progress_reaches_the_end_of_the_text(model: Pretrained) -> None:
    reported: list[tuple[int, int]] = []
    perplexity(model, [*TEXT, [], []], on_progress=lambda *counts: reported.append(counts))
    assert reported == sorted(reported)
    assert reported[-1] == (6, 8)


def test_the_model_can_be_a_folder(model: Pretrained, tmp_path: Path) -> None:
    Elmo(model).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("the dog sat\n", encoding="utf-8")
    result = elmo.perplexity(tmp_path / "model", tmp_path / "text.txt", start=("carry", "zero"))
    assert list(result.by_start) == ["carry", "zero"]
    assert result == elmo.perplexity(Elmo(model), "the dog sat", start=["carry", "zero"])


def test_published_formats_predict_the_same(model: Pretrained, tmp_path: Path) -> None:
    Elmo(model).save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "published", to="hdf5")
    assert perplexity(tmp_path / "published", TEXT)["zero"] == perplexity(model, TEXT)["zero"]


@pytest.mark.parametrize(
    "config",
    [
        BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 5))), None, LstmConfig(2, 6, 4, 0.9, 0.5)),
        BiLmConfig(None, WordConfig(9, 4), LstmConfig(1, 6, 4), alphabet=None),
    ],
    ids=["characters", "words"],
)
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_training_computes_the_same_perplexity(config: BiLmConfig, batch_size: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    words = ["the", "bank", "of", "河岸", "café", "money", "a-very-long-word" * 9, "has", "rare", "rarer"]
    words += ["<S>", "</S>", "<UNK>"]  # which are words in a text
    lines = [" ".join(chance.choice(words, size=chance.integers(1, 30))) for _ in range(60)]
    for name, part in (("train.txt", lines[:20]), ("heldout.txt", lines[20:])):
        (tmp_path / name).write_text("".join(line + "\n" for line in part), encoding="utf-8")
    options = CorpusOptions(input_format="tokens", heldout_file=tmp_path / "heldout.txt")
    corpus = build_corpus(tmp_path / "train.txt", tmp_path / "corpus", options)
    n_vocab = 9
    objective = BiLmObjective(BiLm.from_config(config), Softmax(n_words=n_vocab, width=config.lstm.state_width))
    expected = evaluate(objective, TypeIds(corpus, config, n_vocab), corpus.heldout, batch_size=batch_size, window=7)
    softmax = objective.softmax
    trained = Pretrained(
        config,
        {name: weight.detach() for name, weight in objective.bilm.state_dict().items()},
        "trained",
        vocab=corpus.vocab(n_vocab),
        softmax=SoftmaxWeights(softmax.word_weights.detach(), softmax.bias.detach()),
    )
    result = perplexity(trained, tmp_path / "heldout.txt", start="carry", batch_size=batch_size, input_format="tokens")[
        "carry"
    ]
    assert result.n_predictions == expected.n_predictions
    assert result.forward == pytest.approx(expected.forward, rel=1e-5)
    assert result.backward == pytest.approx(expected.backward, rel=1e-5)
    assert result.geometric_mean == pytest.approx(expected.geometric_mean, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "options", "kind", "part"),
    [
        ([], {}, DataError, "no sentence"),
        ([[], []], {}, DataError, "no sentence"),
        ("", {}, DataError, "no sentence"),
        (TEXT, {"start": ()}, ConfigError, "start"),
        (TEXT, {"start": ("zero", "zero")}, ConfigError, "start"),
        (TEXT, {"directions": "sideways"}, ConfigError, "sideways"),
        (TEXT, {"out": "scores.doc"}, OutputError, r"scores\.doc"),
        (TEXT, {"out": "scores.tsv", "by": "letter"}, ConfigError, "letter"),
    ],
)
def test_invalid_text_and_options_are_errors(
    model: Pretrained, text: Any, options: Any, kind: Any, part: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=part):
        perplexity(model, text, **options)
    assert list(tmp_path.iterdir()) == []
