from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import elmo as door
from elmo import Carry, ConfigError, DataError, Elmo, LayerMix, LayerMixes, ShapeError, StateError, similarity
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True, mix=True))


def test_the_door_is_sorted_and_opens_every_name() -> None:
    assert door.__all__ == sorted(door.__all__)
    assert all(getattr(door, name) is not None for name in door.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Elmoo'"):
        door.Elmoo  # noqa: B018


def test_one_string_gives_one_result_and_a_list_keeps_its_order(elmo: Elmo) -> None:
    one = elmo.encode(TEXT)
    assert one.tokens == tuple(TEXT.split())
    assert one.vectors.shape == (9, elmo.width)
    assert one.vectors.dtype == np.float32
    many = elmo.encode([TEXT, ["already", "tokenised"], ""])
    assert [len(encoding) for encoding in many] == [9, 2, 0]
    assert many[1].offsets is None
    assert many[2].vectors.shape == (0, elmo.width)
    np.testing.assert_array_equal(many[0].vectors, one.vectors)
    assert elmo.encode([]) == []
    assert [e.tokens for e in elmo.encode(t for t in ["a b", "c"])] == [("a", "b"), ("c",)]


def test_tokens_come_with_character_offsets(elmo: Elmo) -> None:
    found = elmo.encode("Don't   go, now!")
    assert found.offsets is not None
    assert [found.text[a:b] for a, b in found.offsets] == list(found.tokens)


def test_layers_are_chosen_by_name_number_or_mix(elmo: Elmo) -> None:
    every = elmo.encode(TEXT, layers="all").vectors
    assert every.shape == (3, 9, elmo.width)
    np.testing.assert_allclose(elmo.encode(TEXT).vectors, every.mean(axis=0), atol=1e-7)
    np.testing.assert_array_equal(elmo.encode(TEXT, layers="top").vectors, every[2])
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=1).vectors, every[1])
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=0).vectors[:, :4], every[0, :, 4:])
    concat = elmo.encode(TEXT, layers="concat").vectors
    np.testing.assert_array_equal(concat, np.concatenate(list(every), axis=1))
    mix = LayerMix(3, weights=[0.0, 20.0, 0.0], gamma=2.0, dropout=0.5)
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=np.int64(1)).vectors, every[1])
    np.testing.assert_allclose(elmo.encode(TEXT, layers=mix).vectors, 2 * every[1], atol=1e-5)
    assert mix.training  # left as it was


@pytest.mark.parametrize("layers", ["bottom", 3, -4, True, None, [0, 1], LayerMixes([LayerMix(3)])])
def test_a_layer_that_is_not_there_is_refused_in_one_line(elmo: Elmo, layers) -> None:
    with pytest.raises(ConfigError, match="layer") as caught:
        elmo.encode(TEXT, layers=layers)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("layers", ["top", 1])
def test_one_layer_does_not_keep_the_others_in_memory(elmo: Elmo, layers) -> None:
    vectors = elmo.encode(TEXT, layers=layers).vectors
    assert vectors.base.untyped_storage().nbytes() == vectors.nbytes


def test_tensors_and_other_precisions_on_request(elmo: Elmo) -> None:
    tensor = elmo.encode(TEXT, as_tensor=True).vectors
    assert isinstance(tensor, torch.Tensor)
    (tensor * torch.ones(1, requires_grad=True)).sum().backward()  # usable in a user's own training
    assert elmo.encode(TEXT, dtype="float16").vectors.dtype == np.float16
    assert elmo.encode(TEXT, dtype="bfloat16", as_tensor=True).vectors.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="numpy has no bfloat16"):
        elmo.encode(TEXT, dtype="bfloat16")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        elmo.encode(TEXT, dtype="int7")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        elmo.to(dtype="int7")
    exact = Elmo(tiny_model(), dtype="float64").encode(TEXT)
    assert exact.vectors.dtype == np.float64
    np.testing.assert_allclose(Elmo(tiny_model()).encode(TEXT).vectors, exact.vectors, atol=1e-6)


def test_a_device_that_is_not_there_is_a_config_error(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="device must be one of cpu, cuda, mps, xpu, not 'nowhere'"):
        elmo.to("nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cannot use device cuda"):
            elmo.to("cuda")


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (7, "found int"),
        ([["a", 3]], "sentence 0"),
        ([b"bytes"], "found bytes"),
        ([None], "found NoneType"),
    ],
)
def test_what_is_no_text_is_refused(elmo: Elmo, sentences, message: str) -> None:
    with pytest.raises(DataError, match=message):
        elmo.encode(sentences)


def test_spans_phrases_and_sentences_pool_true_tokens(elmo: Elmo) -> None:
    text = "She flew to New York, then to York."
    found = elmo.encode(text)
    at = found.tokens.index("New")
    expected = found.vectors[at : at + 2]
    np.testing.assert_array_equal(found.phrase("New York"), expected.mean(axis=0))
    begin = text.index("New York")
    np.testing.assert_array_equal(found.characters(begin, begin + 8), expected.mean(axis=0))
    np.testing.assert_array_equal(
        found.characters(begin + 1, begin + 5), expected.mean(axis=0)
    )  # cuts both tokens
    np.testing.assert_array_equal(found.span(at, at + 2, pooling="max"), expected.max(axis=0))
    np.testing.assert_array_equal(found.span(at, at + 2, pooling="ends"), expected.reshape(-1))
    np.testing.assert_array_equal(
        found.word("York", occurrence=1), found.vectors[found.tokens.index("York", at + 2)]
    )
    np.testing.assert_array_equal(found.sentence(), found.vectors.mean(axis=0))
    given = elmo.encode([["to", "New", "York"]], as_tensor=True, layers="all")[0]
    assert torch.equal(given.phrase("New York"), given.vectors[:, 1:].mean(dim=1))
    assert torch.equal(given.phrase("New York", pooling="ends"), given.vectors[:, 1:].flatten(1))
    assert torch.equal(given.span(1, 3, pooling="max"), given.vectors[:, 1:].amax(dim=1))


def test_a_phrase_is_sought_as_whole_words_first(elmo: Elmo) -> None:
    found = elmo.encode("the king is in town")
    np.testing.assert_array_equal(found.phrase("in"), found.vectors[3])
    chinese = elmo.encode(["我在北京大学读书"])[0]
    np.testing.assert_array_equal(chinese.phrase("北京"), chinese.characters(2, 4))
    trees = elmo.encode(Tokens.cut("苹果树下的苹果", [(0, 3), (3, 4), (4, 5), (5, 7)]))
    np.testing.assert_array_equal(trees.phrase("苹果"), trees.vectors[3])
    np.testing.assert_array_equal(trees.phrase("果树"), trees.vectors[0])
    with pytest.raises(DataError, match="'tow' is not in the sentence"):
        found.phrase("tow")


def test_a_phrase_of_a_text_that_its_tokens_do_not_spell_is_sought_in_the_tokens(elmo: Elmo) -> None:
    found = elmo.encode(Tokens("du pain", ("de", "le", "pain"), None))
    np.testing.assert_array_equal(found.phrase("le pain"), found.span(1, 3))


def test_white_space_in_a_phrase_stands_for_any(elmo: Elmo) -> None:
    found = elmo.encode("in New\n York now")
    np.testing.assert_array_equal(found.phrase("New York"), found.span(1, 3))


def test_an_empty_sentence_pools_to_zero(elmo: Elmo) -> None:
    assert not elmo.encode("").sentence().any()
    assert elmo.encode("").sentence("ends").shape == (2 * elmo.width,)
    assert elmo.encode("", layers="all", as_tensor=True).sentence().shape == (3, elmo.width)
    with pytest.raises(ConfigError, match="pooling must be"):
        elmo.encode("").sentence("median")


def test_spans_that_are_not_there_are_named(elmo: Elmo) -> None:
    found, given = elmo.encode(TEXT), elmo.encode([["a", "b"]])[0]
    with pytest.raises(DataError, match=r"a span within 0\.\.9 tokens, found 3\.\.12"):
        found.span(3, 12)
    with pytest.raises(DataError, match="'money' is not in the sentence: 'I sat by"):
        found.phrase("money")
    with pytest.raises(DataError, match=r"occurrence must lie in 0\.\.1 for 'the', found 2"):
        found.word("the", occurrence=2)
    with pytest.raises(DataError, match="is not in the sentence") as caught:
        elmo.encode([["a\nb"]])[0].word("c")
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match="given as tokens and has no character offsets"):
        given.characters(0, 1)
    with pytest.raises(DataError, match=r"no token overlaps characters 1\.\.2"):
        found.characters(1, 2)
    for nothing in (given, found):
        with pytest.raises(DataError, match="'' is not in the sentence"):
            nothing.phrase("")
    with pytest.raises(ConfigError, match="pooling must be"):
        found.sentence("median")


def test_similarity_is_the_cosine() -> None:
    assert similarity(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(0.5**0.5)
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=np.float16)
    np.testing.assert_allclose(similarity(rows, rows), [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert similarity(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])) == pytest.approx(1.0)
    assert similarity(rows, np.array([3.0, 0.0])).shape == (3,)
    with pytest.raises(ShapeError, match="one width"):
        similarity(np.zeros(3), np.zeros(4))


def test_outputs_have_the_hub_modules_names_and_shapes(elmo: Elmo) -> None:
    found = elmo.outputs(["the cat is on the mat", "dogs are in  the fog .", ""])
    every = elmo.encode([["the", "cat", "is", "on", "the", "mat"]], layers="all")[0].vectors
    assert {name: value.shape for name, value in found.items()} == {
        "word_emb": (3, 6, 4),
        "lstm_outputs1": (3, 6, 8),
        "lstm_outputs2": (3, 6, 8),
        "elmo": (3, 6, 8),
        "default": (3, 8),
    }
    np.testing.assert_array_equal(found["word_emb"][0], every[0, :, :4])
    np.testing.assert_array_equal(found["lstm_outputs2"][0], every[2])
    shares = np.exp([0.0, 0.5, 1.0]) / np.exp([0.0, 0.5, 1.0]).sum()  # the tiny model's own mix, γ 1.25
    np.testing.assert_allclose(found["elmo"][0], 1.25 * np.einsum("l,ltw->tw", shares, every), atol=1e-6)
    np.testing.assert_allclose(found["default"][0], found["elmo"][0].mean(axis=0), atol=1e-6)
    assert not found["default"][2].any()


def test_outputs_for_tokens_use_the_lengths_and_never_the_padding(elmo: Elmo) -> None:
    rows = [["the", "cat", "is", "on", "the", "mat"], ["dogs", "are", "in", "the", "fog", ""]]
    found = elmo.outputs(tokens=rows, lengths=[6, 5])
    again = elmo.outputs([" ".join(rows[0]), "dogs are in the fog"])
    for name, value in found.items():
        np.testing.assert_array_equal(value, again[name])
    assert not found["elmo"][1, 5].any()
    with pytest.raises(DataError, match="row 1 has 6 tokens, but its length is given as 7"):
        elmo.outputs(tokens=rows, lengths=[6, 7])
    with pytest.raises(DataError, match="a length for each of 2 rows"):
        elmo.outputs(tokens=rows, lengths=[6])
    with pytest.raises(DataError, match="row 0: expected a list of tokens, found one string"):
        elmo.outputs(tokens=["the cat"], lengths=[2])
    with pytest.raises(DataError, match="either sentences, or tokens"):
        elmo.outputs()


# --- state ------------------------------------------------------------------------------------------


def test_a_warm_start_changes_vectors_and_still_depends_on_nothing_else(elmo: Elmo) -> None:
    sentences = [TEXT, "a b c", ["x"]]
    warm = elmo.encode(sentences, start="warm", layers="all")
    assert not np.array_equal(warm[0].vectors, elmo.encode(TEXT, layers="all").vectors)
    for k, sentence in enumerate(sentences):
        alone = elmo.encode([sentence], start="warm", layers="all")[0]
        assert alone.vectors.tobytes() == warm[k].vectors.tobytes()


def test_a_model_without_a_warm_state_names_the_command_that_makes_one() -> None:
    elmo = Elmo(tiny_model())
    with pytest.raises(StateError, match="elmo warm MODEL TEXT"):
        elmo.encode(TEXT, start="warm")
    state = elmo.warm_up([TEXT, "another line of text", "and one more"] * 5)
    assert state.hidden.shape == (2, 2, 4)
    assert elmo.encode(TEXT, start="warm").vectors.shape == (9, 8)


def test_the_warm_state_is_the_mean_of_what_running_text_leaves_behind() -> None:
    elmo = Elmo(tiny_model())
    lines = [[f"w{i}"] for i in range(32)]  # one line in each of the streams: each starts from zero
    left = elmo._engine.run(lines).state
    warm = elmo.warm_up(lines)
    torch.testing.assert_close(warm.hidden, left.hidden.mean(dim=2))
    torch.testing.assert_close(warm.cell, left.cell.mean(dim=2))
    with pytest.raises(DataError, match="no sentence with a token"):
        elmo.warm_up(["", ""])


def test_a_carried_state_is_handed_on_by_batch_row(elmo: Elmo) -> None:
    first, second = [["a", "b"], ["c"]], [["d"], ["e", "f"]]
    carry = Carry()
    elmo.encode(first, start=carry)
    carried = elmo.encode(second, start=carry)
    assert not np.array_equal(carried[0].vectors, elmo.encode(second)[0].vectors)
    one_call, at_once = Carry(), elmo.encode(first + second, start=(whole := Carry()), batch_size=2)
    del one_call
    np.testing.assert_array_equal(at_once[3].vectors, carried[1].vectors)
    np.testing.assert_array_equal(whole.state.cell, carry.state.cell)


def test_a_smaller_batch_leaves_the_other_carried_rows_alone_and_a_larger_one_adds_rows_from_zero(
    elmo: Elmo,
) -> None:
    carry = Carry()
    elmo.encode([["a"], ["b"]], start=carry)
    kept = carry.state.cell[:, :, 1].clone()
    elmo.encode([["c"]], start=carry)
    assert torch.equal(carry.state.cell[:, :, 1], kept)
    found = elmo.encode([["c"], ["d"], ["e"]], start=carry)
    np.testing.assert_array_equal(found[2].vectors, elmo.encode([["e"]])[0].vectors)
    with pytest.raises(ShapeError, match="another shape"):
        Elmo(tiny_model(n_layers=1)).encode([["a"]], start=carry)


def test_carry_is_an_object_and_other_starts_are_refused(elmo: Elmo) -> None:
    with pytest.raises(StateError, match=r"start=Carry\(\)"):
        elmo.encode(TEXT, start="carry")
    with pytest.raises(ConfigError, match="start must be"):
        elmo.encode(TEXT, start="lukewarm")
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        elmo.encode(TEXT, batch_size=0)


# --- saving, and building models ------------------------------------------------------------------------


def test_a_saved_model_loads_to_the_same_bits(elmo: Elmo, tmp_path) -> None:
    elmo.save_pretrained(tmp_path / "model")
    again = Elmo.from_pretrained(tmp_path / "model")
    for start in ("zero", "warm"):
        before, after = (e.encode(TEXT, layers="all", start=start).vectors for e in (elmo, again))
        np.testing.assert_array_equal(before, after)


def test_a_saved_model_remembers_the_tokeniser_that_was_named(tmp_path) -> None:
    named = Elmo(tiny_model(), tokenizer="whitespace")
    named.save_pretrained(tmp_path / "named")
    again = Elmo.from_pretrained(tmp_path / "named")
    assert again.encode("don't").tokens == ("don't",)
    Elmo.from_pretrained(tmp_path / "named", tokenizer="en").save_pretrained(tmp_path / "english")
    assert Elmo.from_pretrained(tmp_path / "english").encode("don't").tokens == ("do", "n't")
    Elmo(tiny_model(), tokenizer=again.tokenizer).save_pretrained(tmp_path / "own")  # an object has no name
    assert Elmo.from_pretrained(tmp_path / "own").tokenizer.name == "en"


def test_the_network_trains_inside_a_users_own_model() -> None:
    elmo = Elmo(tiny_model())
    batch = elmo.batch([["good", "film"], ["bad"]])
    mix, head = LayerMix(elmo.n_layers), torch.nn.Linear(elmo.width, 1)
    elmo.bilm.requires_grad_(True)
    optimizer = torch.optim.Adam([*elmo.bilm.parameters(), *mix.parameters(), *head.parameters()], lr=0.05)
    losses = []
    for _ in range(30):
        layers = elmo.bilm(torch.from_numpy(batch.char_ids), lengths=torch.from_numpy(batch.lengths)).layers
        score = head(mix(layers).sum(dim=1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, torch.tensor([1.0, 0.0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_a_model_and_a_sentence_show_themselves_in_one_line(elmo: Elmo) -> None:
    assert repr(elmo) == "Elmo(tiny, 3 layers, 8 wide, on cpu)"
    assert repr(elmo.encode("a b")) == "Encoding('a b', 2 tokens, vectors (2, 8))"
    with pytest.raises(ConfigError, match=r"found str; use Elmo\.from_pretrained"):
        Elmo("path/to/model")  # pyright: ignore[reportArgumentType]


def test_a_function_that_gives_a_list_of_strings_is_a_tokenizer() -> None:
    found = Elmo(tiny_model(), tokenizer=str.split).encode("a  b c")
    assert (found.tokens, found.offsets) == (("a", "b", "c"), None)


_LITTLE_MEMORY = """
import resource
import elmo.engine.bilm, torch
from elmo import Elmo, SentenceTooLongError
from tests.formats.tiny import tiny_model
elmo = Elmo(tiny_model(state_width=500, cell_width=500))
elmo.encode("what threads and kernels reserve once is reserved before the limit is set")
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), -1))
try:
    elmo.encode([["word"] * 90_000])
except SentenceTooLongError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_what_does_not_fit_in_memory_is_a_typed_error_that_names_a_limit() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", _LITTLE_MEMORY], capture_output=True, text=True, env=environment, check=False
    )
    assert "longest of 90000 tokens, does not fit in memory" in done.stdout, done.stderr
    assert done.stdout.endswith("below a limit of 45000\n")
