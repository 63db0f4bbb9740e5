"""spaCy: the component ``elmo`` and the architecture ``elmo.Tok2Vec.v1`` in real pipelines."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import BiLm, ConfigError, Elmo, FormatError, LayerMix
from elmo.errors import DataError
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("spacy")

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import Adam, Model, fix_random_seed

from elmo.integrations import use_elmo_vectors
from elmo.integrations.spacy import build_tok2vec

# spaCy and its parts start threads and read files in ways that warn in some versions of Python
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning")

EXAMPLES = Path(__file__).parents[2] / "examples" / "spacy"
TEXT = "I sat by the bank  of the river.\n\nThe bank lent money."
SENTENCES = (("She", "flew", "to", "London", "."), ("Paris", "is", "here"), ("Ann", "saw", "Bob", "."))
TAGS = (("O", "O", "O", "B-LOC", "O"), ("B-LOC", "O", "O"), ("B-PER", "O", "B-PER", "O"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spacy") / "model"
    native.write(tiny_model(warm=True), path)
    return str(path)


def pipeline(folder: str, **options: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": folder, **options})
    return nlp


def words_of(doc: Doc) -> list[int]:
    return [token.i for token in doc if not token.is_space]


# --- the component -------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "start"), [("average", "zero"), ("concat", "zero"), (1, "warm")])
def test_each_token_has_the_vector_of_its_sentence(folder: str, layers: Any, start: str) -> None:
    nlp = pipeline(folder, layers=layers, start=start)
    doc, elmo = nlp(TEXT), Elmo.from_pretrained(folder)
    words = [doc[k].text for k in words_of(doc)]
    expected = elmo.encode([words], layers=layers, start=start)[0].vectors
    np.testing.assert_array_equal(doc.tensor[words_of(doc)], expected)
    np.testing.assert_array_equal(
        doc._.elmo[:, words_of(doc)], elmo.encode([words], layers="all", start=start)[0].vectors
    )
    assert not doc.tensor[5].any()  # the second space
    np.testing.assert_array_equal(doc[4].vector, doc.tensor[4])
    np.testing.assert_allclose(doc[3:7].vector, doc.tensor[[3, 4, 6]].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(doc.vector, doc.tensor[words_of(doc)].mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(doc[4]._.elmo, doc._.elmo[:, 4])
    np.testing.assert_allclose(doc[3:7]._.elmo, doc._.elmo[:, [3, 4, 6]].mean(axis=1), rtol=1e-6)
    assert doc[4].has_vector
    assert not doc[5].has_vector


def test_sentences_are_read_separately_if_their_boundaries_are_known(folder: str) -> None:
    nlp = pipeline(folder)
    nlp.add_pipe("sentencizer", first=True)
    first, second = (sentence.as_doc() for sentence in nlp(TEXT).sents)
    whole = nlp(TEXT)
    for sentence, begin in ((first, 0), (second, len(first))):
        alone = pipeline(folder)(Doc(nlp.vocab, words=[token.text for token in sentence]))
        np.testing.assert_array_equal(whole.tensor[begin : begin + len(sentence)], alone.tensor)


def test_similarity_depends_on_the_context_also_with_static_vectors(folder: str) -> None:
    for nlp in (pipeline(folder), pipeline(folder)):
        nlp.vocab.set_vector("bank", np.ones(5, np.float32))
        river, money = nlp("the bank of the river"), nlp("my bank lent money")
        similarity = river[1].similarity(money[1])
        a, b = river.tensor[1], money.tensor[1]
        assert similarity == pytest.approx(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-6)
        assert similarity < 0.9999
        assert river[:2].similarity(money) < 1
        assert river.similarity(river) == pytest.approx(1)
        with pytest.raises(DataError, match="'bank' with 'bank': their vectors have widths 8 and 5; both must come"):
            river[1].similarity(nlp.vocab["bank"])


@pytest.mark.slow
def test_two_processes_give_the_same_documents(folder: str) -> None:
    nlp = pipeline(folder)
    texts = [TEXT, "She ran.", "", "\n"] * 3
    for doc, other in zip(nlp.pipe(texts, n_process=2, batch_size=2), nlp.pipe(texts), strict=True):
        assert doc.text == other.text
        np.testing.assert_array_equal(doc.tensor, other.tensor)
        np.testing.assert_array_equal(doc._.elmo, other._.elmo)
        if len(doc) > 3:
            assert use_elmo_vectors(doc)[1].similarity(other[3]) == other[1].similarity(other[3]) < 1


def test_documents_keep_their_vectors_in_files_except_in_a_docbin(folder: str) -> None:
    nlp = pipeline(folder)
    doc = nlp(TEXT)
    stored = Doc(nlp.vocab).from_bytes(doc.to_bytes(exclude=["user_hooks"]))
    assert use_elmo_vectors(stored)[4].similarity(stored[12]) == doc[4].similarity(doc[12]) < 1
    (packed,) = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
    np.testing.assert_array_equal(packed._.elmo, doc._.elmo)
    with pytest.raises(DataError, match=r"one vector per token in doc\.tensor; found shape \(0,\) for 16 tokens"):
        use_elmo_vectors(packed)


def test_a_saved_pipeline_checks_its_model(folder: str, tmp_path: Path) -> None:
    pipeline(folder, layers="top").to_disk(tmp_path / "nlp")
    expected = pipeline(folder, layers="top")(TEXT).tensor
    np.testing.assert_array_equal(spacy.load(tmp_path / "nlp")(TEXT).tensor, expected)
    native.write(tiny_model(seed=1), tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"must have the fingerprint \w{12}…, as when the pipeline was saved"
    ) as caught:
        spacy.load(tmp_path / "nlp", config={"components": {"elmo": {"model": str(tmp_path / "other")}}})
    assert "\n" not in str(caught.value)
    data = pipeline(folder).to_bytes()
    with pytest.raises(ConfigError, match="must have the fingerprint"):
        pipeline(str(tmp_path / "other")).from_bytes(data)


def test_a_pipeline_can_include_its_model(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model")
    nlp = pipeline(str(tmp_path / "model"), include_model=True)
    tensor = nlp(TEXT).tensor
    for _ in range(2):  # the second call finds the model
        nlp.to_disk(tmp_path / "nlp")
    (tmp_path / "model").rename(tmp_path / "gone")
    np.testing.assert_array_equal(spacy.load(tmp_path / "nlp")(TEXT).tensor, tensor)


def test_bad_options_give_one_line(folder: str) -> None:
    for options, error, match in [
        ({"layers": "topp"}, ConfigError, "layers must be average, top"),
        ({"layers": 7}, ConfigError, r"layers must be a layer number in 0\.\.2; found 7"),
        ({"layers": "all"}, ConfigError, "found all; see doc._.elmo"),
        ({"start": "cold"}, ConfigError, "start must be zero or warm; found 'cold'"),
        ({"model": "/nowhere"}, FormatError, "/nowhere: no such folder"),
    ]:
        with pytest.raises(error, match=match) as caught:
            pipeline(folder, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"layers must be mix, average, top, concat or 0\.\.2; found 'topp'"):
        build_tok2vec(folder, layers="topp")
    with pytest.raises(ConfigError, match=r"^cache_mb must be at least 0; found -1$"):
        build_tok2vec(folder, cache_mb=-1)
    with pytest.raises(FormatError, match=r"^component 'elmo': the saved state is damaged: "):
        pipeline(folder).get_pipe("elmo").from_bytes(b"junk")


# --- the architecture -----------------------------------------------------------------------------


def ner(folder: str, **options: Any) -> tuple[Language, list[Example]]:
    """A recognizer on elmo.Tok2Vec.v1 and its training examples."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": {"@architectures": "elmo.Tok2Vec.v1", "model": folder, **options}})
    width = nlp.get_pipe("tok2vec").model.get_dim("nO")
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": width}
    nlp.add_pipe("ner", config={"model": {"tok2vec": listener, "hidden_width": 16}})
    examples = [
        Example(Doc(nlp.vocab, words=list(words)), Doc(nlp.vocab, words=list(words), ents=list(tags)))
        for words, tags in zip(SENTENCES, TAGS, strict=True)
    ]
    nlp.initialize(lambda: examples)
    return nlp, examples


def weights_of(nlp: Language) -> dict[str, torch.Tensor]:
    module = nlp.get_pipe("tok2vec").model.shims[0].module
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("tune", [False, True])
def test_spacys_recognizer_learns_and_is_saved(folder: str, tmp_path: Path, *, tune: bool) -> None:
    fix_random_seed(1)
    nlp, examples = ner(folder, tune=tune, width=12)
    before = weights_of(nlp)
    optimizer = nlp.resume_training(sgd=Adam(0.02))
    losses = [nlp.update(examples, sgd=optimizer)["ner"] for _ in range(150)]
    assert losses[-1] < (0.2 if tune else 0.7) * losses[0]  # the frozen vectors of a random model say little
    after = weights_of(nlp)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"encoder.mix.w", "encoder.mix.gamma", "projection.weight"} <= changed
    assert any(name.startswith("encoder.bilm.") for name in changed) == tune
    if tune:
        assert [(ent.text, ent.label_) for ent in nlp(" ".join(SENTENCES[0])).ents] == [("London", "LOC")]
    nlp.to_disk(tmp_path / "nlp")
    loaded = spacy.load(tmp_path / "nlp")
    for words in SENTENCES:
        doc, other = nlp(" ".join(words)), loaded(" ".join(words))
        np.testing.assert_array_equal(doc.tensor, other.tensor)
        assert [(ent.text, ent.label_) for ent in doc.ents] == [(ent.text, ent.label_) for ent in other.ents]
    native.write(tiny_model(seed=1), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"must have the fingerprint \w{12}…, as when the pipeline was saved"):
        spacy.load(tmp_path / "nlp", config={"components": {"tok2vec": {"model": {"model": str(tmp_path / "other")}}}})


@pytest.mark.parametrize("layers", ["mix", "average", "concat", 1])
def test_gradients_are_those_of_bilm_and_layer_mix(folder: str, layers: Any) -> None:
    model: Model[Any, Any] = build_tok2vec(folder, layers=layers, tune=True)
    docs = [Doc(spacy.blank("en").vocab, words=list(words)) for words in ((*SENTENCES[0], "\n"), SENTENCES[1])]
    outputs, backprop = model(docs, is_train=True)
    gradients = [np.random.default_rng(k).normal(size=out.shape).astype(np.float32) for k, out in enumerate(outputs)]
    backprop(gradients)

    elmo = Elmo.from_pretrained(folder)
    bilm: BiLm = elmo.bilm.requires_grad_(True)
    ids = elmo.batch([SENTENCES[0], SENTENCES[1]])
    states = bilm(torch.as_tensor(ids.char_ids)).layers.without_boundaries()
    mix = LayerMix(elmo.n_layers)
    vectors = {
        "mix": lambda: mix(states),
        "average": lambda: states.states.mean(1),
        "concat": lambda: states.states.transpose(1, 2).flatten(2),
        1: lambda: states.states[:, 1],
    }[layers]()
    loss = sum(
        (vectors[k, : len(words)] * torch.as_tensor(gradients[k][: len(words)])).sum()
        for k, words in enumerate(SENTENCES[:2])
    )
    loss.backward()
    module = model.shims[0].module
    np.testing.assert_allclose(outputs[1], vectors[1, :3].detach(), atol=1e-6)
    assert not outputs[0][-1].any()  # white space
    expected = {f"encoder.bilm.{name}": weight.grad for name, weight in bilm.named_parameters()}
    if layers == "mix":
        expected |= {f"encoder.mix.{name}": weight.grad for name, weight in mix.named_parameters()}
    for name, weight in module.named_parameters():
        if expected[name] is None:  # a layer that is not used
            assert weight.grad is None or not weight.grad.any()
        else:
            torch.testing.assert_close(weight.grad, expected[name], atol=1e-5, rtol=1e-4)


def test_the_cache_of_a_frozen_network_changes_nothing_and_is_limited(folder: str) -> None:
    vocab = spacy.blank("en").vocab
    docs = [Doc(vocab, words=list(words)) for words in (*SENTENCES, SENTENCES[0], ())]
    plain, cached = build_tok2vec(folder, cache_mb=0), build_tok2vec(folder)
    encoder = cached.shims[0].module.encoder
    encoder.max_bytes = 4 * 8 * 3 * 9  # nine tokens of three layers
    for _ in range(3):
        for some in (docs, docs[:2], docs[2:]):
            for a, b in zip(plain(some, is_train=True)[0], cached(some, is_train=True)[0], strict=True):
                np.testing.assert_array_equal(a, b)
            assert encoder.n_bytes == sum(rows.nbytes for rows in encoder.cache.values()) <= encoder.max_bytes
    assert encoder.cache
    assert build_tok2vec(folder).predict(docs)[4].shape == (0, 8)
    assert cached.predict([docs[4]])[0].shape == (0, 8)


def test_copies_share_a_frozen_network_and_not_a_trained_one(folder: str) -> None:
    for tune in (False, True):
        model = build_tok2vec(folder, tune=tune)
        docs = [Doc(spacy.blank("en").vocab, words=list(SENTENCES[0]))]
        before = model(docs, is_train=True)[0]
        copy = model.copy()
        np.testing.assert_allclose(copy.predict(docs)[0], before[0], atol=1e-6)
        one, two = (m.shims[0].module.encoder for m in (model, copy))
        assert one.mix.w is not two.mix.w
        assert (one.elmo is two.elmo) == (not tune)
        assert two.bilm is two.elmo.bilm
        assert two.n_bytes == sum(rows.nbytes for rows in two.cache.values())


@pytest.mark.slow
def test_the_examples_run(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n\n"
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(rows * 4)
        sys.argv[1:], arguments = [str(tmp_path / f"{name}.{kind}") for kind in ("conll", "spacy")], sys.argv[1:]
        runpy.run_path(str(EXAMPLES / "convert.py"))
        sys.argv[1:] = arguments
    command = [sys.executable, "-m", "spacy", "train", EXAMPLES / "ner.cfg", "--output", tmp_path / "ner"]
    options = {"paths.train": tmp_path / "train.spacy", "paths.dev": tmp_path / "dev.spacy", "training.max_steps": 20}
    options |= {"training.eval_frequency": 10, "components.tok2vec.model.embed.model": folder}
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert spacy.load(tmp_path / "ner" / "model-last")("She flew to London .").tensor.shape == (5, 96)
    runpy.run_path(str(EXAMPLES / "similarity.py"))
    same, other = (float(line.split()[-1]) for line in reversed(capsys.readouterr().out.splitlines()))
    assert other < same
