"""Alignment across languages: the matrices, CSLS, the evaluation, and what an aligned model can and cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo import Elmo, perplexity, similarities, similarity, train_bilm
from elmo.embed.comparison import compare
from elmo.embed.inside import look_inside
from elmo.errors import ChecksumError, ConfigError, DataError, FormatError
from elmo.formats import native, onnx
from elmo.formats.alignment import Alignment
from elmo.formats.pretrained import Pretrained, fingerprint
from elmo.integrations.token_encoder import TokenEncoder
from elmo.lexicon import Explainer, find_substitutes, sharpen_model
from elmo.lexicon.align import (
    AlignOptions,
    Anchors,
    SplitDictionary,
    align_anchors,
    align_models,
    apply_matrices,
    compute_anchors,
    fit_orthogonal,
    match_width,
    measure_precision,
    nearest_by_csls,
    read_dictionary,
    split_dictionary,
)
from elmo.lexicon.usages import find_marked_usage
from elmo.tasks import Features, FeatureStore
from elmo.tasks.adapt import check_adaptable
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import WORDS, tiny_model

SENTENCES = [["the", "river", "bank"], ["a", "bank"], ["river"]]
LAYERS: tuple[Any, ...] = ("average", "top", "all", "concat", 0, 1, 2, "sense")


def rotation(width: int, seed: int) -> np.ndarray[Any, Any]:
    """Return a random orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


def pair(seed: int = 0) -> tuple[Elmo, Elmo]:
    """Return a model, and the same with random orthogonal matrices."""
    before = Elmo(tiny_model(softmax=True, warm=True, seed=seed))
    layers = np.stack([rotation(before.width, k) for k in range(before.n_layers)])
    target = Elmo(tiny_model(softmax=True, seed=seed + 10))
    return before, Elmo(apply_matrices(before, target, layers, rotation(before.width, 9)))


def random_anchors(elmo: Elmo, n_words: int, prefix: str, vectors: np.ndarray[Any, Any]) -> Anchors:
    units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    names = (*map(str, range(elmo.n_layers)), "sense")
    return Anchors(tuple(f"{prefix}{k}" for k in range(n_words)), names, units.astype(np.float32), 1000)


# --- laws ---------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_lengths_and_cosines_within_the_language_stay_the_same(seed: int) -> None:
    before, after = pair(seed % 3)
    chance = np.random.default_rng(seed)
    text = [list(chance.choice(["the", "river", "bank", "x"], size=chance.integers(1, 6))) for _ in range(3)]
    for layers in (0, 1, "top", "concat", "sense"):  # the mean of layers that have different matrices is another mean
        a, b = (
            np.concatenate([np.asarray(x.vectors, np.float64) for x in elmo.encode(text, layers=layers)])
            for elmo in (before, after)
        )
        np.testing.assert_allclose(np.linalg.norm(b, axis=1), np.linalg.norm(a, axis=1), rtol=1e-5)
        np.testing.assert_allclose(similarities(b, b), similarities(a, a), atol=1e-5)


def test_vectors_are_those_of_the_model_multiplied_by_the_matrices() -> None:
    before, after = pair()
    alignment = after.pretrained.alignment
    assert alignment is not None
    assert alignment.sense is not None
    for raw, mapped in zip(*(e.encode(SENTENCES, layers="all") for e in (before, after)), strict=True):
        expected = np.einsum("lvw,ltw->ltv", alignment.layers.numpy(), raw.vectors)
        np.testing.assert_allclose(mapped.vectors, expected, atol=1e-5)
    for raw, mapped in zip(*(e.encode(SENTENCES, layers="sense") for e in (before, after)), strict=True):
        np.testing.assert_allclose(mapped.vectors, raw.vectors @ alignment.sense.numpy().T, atol=1e-5)


@pytest.mark.parametrize("layers", LAYERS)
def test_identity_matrices_change_nothing(layers: Any) -> None:
    before, _ = pair()
    identity = np.eye(before.width)
    after = Elmo(apply_matrices(before, before, np.stack([identity] * 3), identity))
    for a, b in zip(before.encode(SENTENCES, layers=layers), after.encode(SENTENCES, layers=layers), strict=True):
        np.testing.assert_allclose(b.vectors, a.vectors, rtol=1e-6)


def test_predictions_stay_the_same_to_the_last_digit() -> None:
    before, after = pair()
    assert perplexity(before, SENTENCES) == perplexity(after, SENTENCES)
    text = ["the [[bank]] the"]
    assert find_substitutes(before, text) == find_substitutes(after, text)
    assert np.array_equal(look_inside(before, "the bank").layers, look_inside(after, "the bank").layers)


def test_a_sentence_does_not_depend_on_the_others() -> None:
    _, after = pair()
    alone = [after.encode([sentence], layers="all")[0].vectors for sentence in SENTENCES]
    for a, b in zip(alone, after.encode(SENTENCES, layers="all"), strict=True):
        assert np.array_equal(a, b.vectors)


def test_a_trainable_network_has_the_same_vectors() -> None:
    _, after = pair()
    tokens = [Tokens.from_words(sentence) for sentence in SENTENCES]
    frozen, _ = TokenEncoder(after, layers="average")(tokens)
    trained, _ = TokenEncoder(after, layers="average", trainable=True)(tokens)
    torch.testing.assert_close(trained.detach(), frozen, atol=1e-5, rtol=1e-5)


# --- the matrices ---------------------------------------------------------------------------------------


def test_procrustes_recovers_a_rotation() -> None:
    x, matrix = np.random.default_rng(0).normal(size=(50, 8)), rotation(8, 1)
    found = fit_orthogonal(x, x @ matrix.T)
    np.testing.assert_allclose(found, matrix, atol=1e-6)


def test_directions_without_word_pairs_are_not_rotated() -> None:
    x = np.zeros((5, 4))
    x[:, 0] = 1
    np.testing.assert_allclose(fit_orthogonal(x, x), np.eye(4), atol=1e-9)


def slow_csls(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], k: int = 10) -> np.ndarray[Any, Any]:
    """Compute all scores by the definition (Conneau et al. 2018, Eq. 5 and 6)."""
    cosines = np.array([[np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for b in y] for a in x])
    near_x = [np.mean(sorted(row)[-k:]) for row in cosines]
    near_y = [np.mean(sorted(column)[-k:]) for column in cosines.T]
    return np.array([[2 * cosines[i, j] - near_x[i] - near_y[j] for j in range(len(y))] for i in range(len(x))])


@pytest.mark.parametrize(("n", "m"), [(12, 30), (30, 12), (3, 4)])
def test_csls_is_that_of_its_definition(n: int, m: int) -> None:
    chance = np.random.default_rng(n)
    x, y = chance.normal(size=(n, 5)), chance.normal(size=(m, 5))
    expected = slow_csls(x, y)
    found = nearest_by_csls(x, y, k=3)
    assert np.array_equal(found.numbers, np.argsort(-expected, axis=1)[:, :3])
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.numbers, axis=1), atol=1e-5)
    plain = nearest_by_csls(x, y, is_plain=True).numbers[:, 0]
    assert np.array_equal(plain, similarities(x, y).argmax(axis=1))


def test_anchors_are_the_means_of_the_vectors_of_a_word() -> None:
    elmo, _ = pair()
    corpus = [Tokens.from_words(words) for words in (["the", "bank"], ["The", "river", "the"], ["."], ["the"] * 101)]
    anchors = compute_anchors(elmo, corpus, n_words=2)
    assert anchors.words == ("the", "bank")
    assert anchors.layers == ("0", "1", "2", "sense")
    rows = [
        e.vectors[:, k] for e, k in zip(elmo.encode(corpus[:2] + corpus[1:2], layers="all"), (0, 0, 2), strict=True)
    ]
    mean = np.mean(rows, axis=0)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(anchors.vectors[:3, 0], expected, atol=1e-5)
    assert compute_anchors(elmo, corpus, max_tokens=2).n_tokens == 2


def test_precision_counts_any_translation_among_the_nearest() -> None:
    y = np.eye(12, dtype=np.float32)
    assert measure_precision(y, y, {0: (5, 0), 1: (1,), 2: (3,)}, is_plain=True).at_1 == pytest.approx(2 / 3)
    assert np.isnan(measure_precision(y, y, {}).at_1)


@pytest.mark.parametrize("pairs", ["dictionary", "identical", "frequency"])
@pytest.mark.parametrize("centered", [False, True])
def test_a_rotated_language_is_found_and_the_shuffled_control_finds_nothing(pairs: Any, centered: bool) -> None:
    elmo, _ = pair()
    n = 300
    x = np.random.default_rng(0).normal(size=(4, n, elmo.width)) + 0.3
    y = np.stack([part @ rotation(elmo.width, k).T for k, part in enumerate(x)])
    source = random_anchors(elmo, n, "w", x)
    target = random_anchors(elmo, n, "w", y)
    dictionary = [(word, word) for word in source.words]
    options = AlignOptions(pairs=pairs, centered=centered, refinements=1, n_test=60)
    result = align_anchors(elmo, elmo, (source, target), dictionary, options)
    assert (result.n_test, len(result.scores)) == (60, 4)
    assert result.n_pairs == (240 if pairs == "dictionary" else 300)
    for scores in result.scores:
        assert scores.nearest.at_1 == scores.csls.at_1 == 1.0
        assert scores.shuffled.at_1 < 0.1
    alignment = result.model.alignment
    assert alignment is not None
    for k, matrix in enumerate(alignment.layers.numpy()):
        np.testing.assert_allclose(matrix, rotation(elmo.width, k), atol=1e-4)


def test_no_held_out_word_is_learned_and_all_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmo.lexicon.align.TEST_RANK", 30)
    elmo, _ = pair()
    vectors = np.ones((4, 100, elmo.width))
    source, target = (random_anchors(elmo, 100, prefix, vectors) for prefix in "ab")
    dictionary = [(f"A{k}", f"b{j}") for k in range(100) for j in (k, 99 - k)]
    split = split_dictionary(dictionary, (source, target), (str.lower, str.lower), n_test=20)
    assert len(split.test) == 20
    assert max(split.test) < 30
    assert not {a for a, _ in split.train} & split.test.keys()
    assert len(split.train) == 160
    assert split.test[min(split.test)] == (min(split.test), 99 - min(split.test))
    other = split_dictionary(dictionary, (source, target), (str.lower, str.lower), n_test=20, seed=1)
    assert isinstance(other, SplitDictionary)
    assert other.test.keys() != split.test.keys()


def test_models_are_aligned_by_their_corpora() -> None:
    elmo, _ = pair()
    words = [f"w{k}" for k in range(40)]
    corpus = [Tokens.from_words(words)]
    result = align_models(elmo, elmo, (corpus, corpus), [(word, word) for word in words])
    a, b = (e.encode(SENTENCES, layers="all") for e in (elmo, Elmo(result.model)))
    for before, after in zip(a, b, strict=True):
        np.testing.assert_allclose(after.vectors, before.vectors, atol=1e-3)
    assert result.to_json()["layers"].keys() == {"0", "1", "2", "sense"}


def test_words_without_pairs_are_reported_before_the_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    elmo, _ = pair()
    monkeypatch.setattr(Elmo, "encode", None)
    corpus = [Tokens.from_words([f"w{k}" for k in range(40)])]
    with pytest.raises(DataError, match=r"at least 20 pairs of the dictionary, which has 1, .* found 0; .* 40 and 40"):
        align_models(elmo, elmo, (corpus, corpus), [("other", "words")])
    with pytest.raises(DataError, match="at least 20 different words in each corpus; found 19"):
        align_models(elmo, elmo, (corpus, corpus), options=AlignOptions(pairs="frequency", n_words=19))


@pytest.mark.parametrize("name", ["refinements", "n_words", "n_test", "max_tokens", "seed"])
def test_options_that_are_too_small_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least [01]; found -1"):
        AlignOptions(**{name: -1})


# --- files ----------------------------------------------------------------------------------------------


def test_a_dictionary_is_separated_by_tabs_or_spaces(tmp_path: Path) -> None:
    path = tmp_path / "d.txt"
    path.write_text("\ufeff银行\tbank\n\n河岸 bank\n纽约\tNew York\n", encoding="utf-8")
    assert read_dictionary(path) == [("银行", "bank"), ("河岸", "bank")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file"),
        ("a b\tc\n", r"found only phrases \(lines: 1\)"),
        ("a b c\n", "d.txt:1: expected a word and its translation"),
        ("a\tb\n\tc\n", "d.txt:2: expected"),
    ],
)
def test_a_bad_dictionary_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_dictionary(tmp_path / "d.txt")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("has_sense", [True, False])
def test_an_aligned_model_is_stored_and_read(tmp_path: Path, dtype: Any, has_sense: bool) -> None:
    _, aligned = pair()
    model = aligned.pretrained
    assert model.alignment is not None
    if not has_sense:
        model = replace(model, alignment=replace(model.alignment, sense=None))
    native.write(model, tmp_path / "model", dtype=dtype)
    found = native.read(tmp_path / "model")
    assert found.alignment is not None
    assert torch.equal(found.alignment.layers, model.alignment.layers)
    assert (found.alignment.sense is not None) == has_sense
    assert found.alignment.targets == model.alignment.targets
    assert '"format_version": 3' in (tmp_path / "model" / "config.json").read_text()
    if dtype == "float32":
        assert fingerprint(found) == fingerprint(model)


def test_damaged_matrices_are_refused(tmp_path: Path) -> None:
    _, aligned = pair()
    native.write(aligned.pretrained, tmp_path / "model")
    path = tmp_path / "model" / "alignment.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ChecksumError):
        native.read(tmp_path / "model")
    path.unlink()
    with pytest.raises(FormatError, match=r"alignment\.safetensors"):
        native.read(tmp_path / "model")


def test_matrices_that_do_not_fit_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(FormatError, match=r"alignment layers: expected shape \(3, 8, 8\), found \(2, 8, 8\)"):
        replace(model, alignment=Alignment(torch.zeros(2, 8, 8), None, ()))
    with pytest.raises(FormatError, match="alignment sense contains values that are not finite"):
        replace(model, alignment=Alignment(torch.zeros(3, 8, 8), torch.full((8, 8), torch.nan), ()))


# --- commands -------------------------------------------------------------------------------------------


def test_the_fingerprint_of_an_aligned_model_differs() -> None:
    before, after = pair()
    assert fingerprint(before.pretrained) != fingerprint(after.pretrained)
    assert fingerprint(after.unaligned().pretrained) == fingerprint(before.pretrained)
    assert before.unaligned() is before


def test_usages_of_two_languages_are_compared() -> None:
    before, after = pair()
    target = Elmo(tiny_model(softmax=True, seed=10))
    result = compare(target, "bank", ["the bank"], other=after, other_sentences=["[[café]] the"])
    vectors = [e.encode(s, layers="sense").vectors[k] for e, s, k in ((target, "the bank", 1), (after, "café the", 0))]
    assert result.matrices["sense"][0, 1] == pytest.approx(similarity(*vectors), abs=1e-6)
    assert not result.ranks
    with pytest.raises(ConfigError, match="neither is aligned to the other"):
        compare(target, "bank", ["the bank"], other=before, other_sentences=["[[café]] the"])
    with pytest.raises(ConfigError, match="must be passed together"):
        compare(target, "bank", ["the bank", "bank"], other=after)


def test_gradients_explain_the_aligned_vectors() -> None:
    before, after = pair()
    usage = find_marked_usage(before.tokenizer, "the [[bank]] of the river")
    a, b = (Explainer(elmo, method="gradient", layers="top").explain(usage) for elmo in (before, after))
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-4)


def tune(elmo: Elmo) -> None:
    FeatureStore(Features(is_bilm_tuned=True), elmo)


@pytest.mark.parametrize(
    "use",
    [
        lambda elmo: sharpen_model(elmo, []),
        lambda elmo: check_adaptable(elmo, 1),
        lambda elmo: onnx.write(elmo.pretrained, Path("new")),
        tune,
    ],
)
def test_what_would_lose_the_matrices_is_refused(use: Any) -> None:
    _, after = pair()
    with pytest.raises(ConfigError, match="an aligned model; use the model from which 'elmo align' made it"):
        use(after)


def test_outputs_and_training_refuse_an_aligned_model(tmp_path: Path) -> None:
    _, after = pair()
    with pytest.raises(ConfigError, match="cannot compute the outputs of TF-Hub's module with an aligned model"):
        after.outputs(["the river"])
    native.write(after.pretrained, tmp_path / "aligned")
    (tmp_path / "text.txt").write_text("the river\n" * 20, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot train an aligned model"):
        train_bilm(tmp_path / "text.txt", tmp_path / "new", init_from=str(tmp_path / "aligned"))


def test_a_model_without_its_matrices_is_not_called_aligned() -> None:
    _, after = pair()
    assert "aligned" in after.pretrained.metadata
    assert "aligned" not in after.unaligned().pretrained.metadata


def test_coordinates_do_not_depend_on_the_precision() -> None:
    before, after = pair()
    expected = before.coordinates(), after.coordinates()
    assert (before.to(dtype="bfloat16").coordinates(), after.to(dtype="bfloat16").coordinates()) == expected
    assert before.precision == "bfloat16"


def test_skipped_sentences_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    before, _ = pair()
    anchors = compute_anchors(before, [Tokens.from_words(["river"] * n) for n in (101, 3, 200)])
    assert anchors.n_tokens == 3
    assert "skipped 2 sentences of more than 100 tokens; --split splits lines" in caplog.text


def test_an_aligned_model_is_no_target() -> None:
    before, after = pair()
    with pytest.raises(ConfigError, match="cannot align to an aligned model"):
        apply_matrices(before, after, np.zeros((3, 8, 8)), None)


@pytest.mark.parametrize("token", ["chars", "words", "both"])
def test_wider_vectors_end_in_zeros_and_are_otherwise_the_same(token: Any) -> None:
    before = Elmo(tiny_model(token, softmax=True, warm=True, cell_width=7))
    after = match_width(before, Elmo(tiny_model(softmax=True, state_width=6, cell_width=7)))
    assert (before.width, after.width) == (8, 12)
    kept = [*range(4), *range(6, 10)]
    for start in ("zero", "warm"):
        for layers in LAYERS[:2] + LAYERS[4:]:
            for a, b in zip(
                *(elmo.encode(SENTENCES, layers=layers, start=start) for elmo in (before, after)), strict=True
            ):
                np.testing.assert_allclose(b.vectors[:, kept], a.vectors, atol=1e-6)
                assert not np.delete(b.vectors, kept, axis=1).any()
    texts = [" ".join(words) for words in SENTENCES]
    first, second = (perplexity(elmo, texts, input_format="tokens")["zero"].geometric_mean for elmo in (before, after))
    assert second == pytest.approx(first, rel=1e-6)
    assert match_width(after, before) is after


def test_a_model_is_aligned_to_one_with_wider_vectors() -> None:
    letters = tuple("abcdefghijklmnopqrstuvwxyz")
    source, target = (
        Elmo(tiny_model(softmax=True, state_width=width, cell_width=7, words=(*WORDS[:3], *letters)))
        for width in (4, 6)
    )
    corpus = [Tokens.from_words(letters)]
    aligned = Elmo(align_models(source, target, (corpus, corpus), options=AlignOptions(pairs="identical")).model)
    assert aligned.width == target.width
    assert aligned.encode(SENTENCES)[0].vectors.shape == (3, 12)
    assert aligned.coordinates() & target.coordinates()
    with pytest.raises(ConfigError, match="cannot align vectors of width 12 to vectors of width 8"):
        apply_matrices(target, source, np.zeros((3, 8, 8)), None)
    with pytest.raises(ConfigError, match="call match_width first"):
        apply_matrices(source, target, np.zeros((3, 8, 8)), None)


@pytest.mark.parametrize(
    "model",
    [
        tiny_model(is_transformer=True),
        tiny_model(cell_width=5),
        tiny_model(cell_width=4),
        tiny_model(has_norm=True, cell_width=7, filters=((1, 3), (2, 4))),
    ],
    ids=["transformer", "as many cells", "no projection", "normalized"],
)
def test_vectors_that_cannot_be_widened_are_refused_in_one_line(model: Pretrained) -> None:
    with pytest.raises(ConfigError, match=r"^cannot pad the vectors of a \w+.* from width 8 to 10$"):
        match_width(Elmo(model), Elmo(tiny_model(state_width=5, cell_width=7)))


def test_a_model_without_softmax_has_no_matrix_for_sense_vectors() -> None:
    model: Pretrained = tiny_model()
    elmo = Elmo(model)
    corpus = [Tokens.from_words(WORDS[3:8])]
    assert compute_anchors(elmo, corpus).layers == ("0", "1", "2")
    aligned = Elmo(apply_matrices(elmo, elmo, np.stack([np.eye(8)] * 3), None))
    with pytest.raises(ConfigError, match="layers must not be 'sense' for this aligned model"):
        aligned.encode(SENTENCES, layers="sense")
