"""``Client`` and ``AsyncClient`` against a real ``elmo serve``: the same results as in this process, bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import AsyncClient, Client, DataError, Elmo, Encoding, LayerMix, SentenceTooLongError, ServiceError
from elmo.embed import compare
from elmo.lexicon import IndexJob, build_index, find_neighbors, find_substitutes
from elmo.predict import score_sentences
from elmo.text.tokenizers import Tokens
from tests.serve.conftest import RunningServer

pytestmark = pytest.mark.slow

SENTENCES: dict[str, list[Any]] = {
    "en": [
        "I sat by the bank of the river.", "", ["already", "tokenized", "don't", ""], "naïve 😀 café — “quoted”",
        Tokens.from_offsets("New York", [(0, 3), (4, 8)]), "word " * 600,
    ],
    "zh": ["我昨天去银行取钱。", "", ["他", "喜欢", "蘋果"], "小船靠在河岸边，𠮷野家也在那里。",
           "very mixed 文字 text"],
}  # fmt: skip
MARKED = ["He put the money in the [[bank]] .", "She sat on the [[bank]] of the river ."]
CORPUS = ["the bank lent money .", "the bank of the river .", "money in the bank .", "a river with a steep bank ."]


@pytest.fixture(scope="module")
def models() -> dict[str, Elmo]:
    return {name: Elmo.from_pretrained(name) for name in ("en", "zh")}


@pytest.fixture(scope="module")
def running(models: dict[str, Elmo], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    folder: Path = tmp_path_factory.mktemp("client")
    (folder / "corpus.txt").write_text("\n".join(CORPUS))
    build_index(IndexJob((str(folder / "corpus.txt"),), folder / "usages"), models["en"])
    server = RunningServer(folder / "server.log", "en", "zh", "--index", str(folder / "usages"))
    try:
        server.wait_until_ready(120)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def url(running: RunningServer) -> str:
    return f"http://127.0.0.1:{running.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as opened:
        yield opened


def assert_same(remote: list[Encoding], local: list[Encoding]) -> None:
    for a, b in zip(remote, local, strict=True):
        assert (a.tokens, a.text, a.offsets) == (b.tokens, b.text, b.offsets)
        assert isinstance(a.vectors, np.ndarray)
        assert isinstance(b.vectors, np.ndarray)
        assert (a.vectors.dtype, a.vectors.shape) == (b.vectors.dtype, b.vectors.shape)
        assert a.vectors.tobytes() == b.vectors.tobytes()


@pytest.mark.parametrize("name", ["en", "zh"])
@pytest.mark.parametrize("layers", ["average", "top", "all", "concat", 0, 1, -1, "mix"])
def test_vectors_have_the_bits_of_a_local_model(models: dict[str, Elmo], url: str, name: str, layers: Any) -> None:
    choice = LayerMix(3, weights=[0.1, -0.7, 2.3], gamma=1.7, dropout=0.5) if layers == "mix" else layers
    with Client(url, model=name) as client:
        for start in ("zero", "warm"):
            for dtype in (None, "float16"):
                remote = client.encode(SENTENCES[name], layers=choice, start=start, dtype=dtype)
                local = models[name].encode(SENTENCES[name], layers=choice, start=start, dtype=dtype)
                assert_same(remote, local)
        assert (client.n_layers, client.width) == (models[name].n_layers, models[name].width)


def test_an_input_of_many_requests_has_the_same_bits(models: dict[str, Elmo], url: str, client: Client) -> None:
    texts = [f"Sentence {k} has {'very ' * (k % 7)}few words." for k in range(2500)]
    local = models["en"].encode(texts)
    assert_same(client.encode(texts), local)

    async def encode() -> list[Encoding]:
        async with AsyncClient(url) as remote:
            return await remote.encode(texts)

    assert_same(asyncio.run(encode()), local)


def test_other_methods_return_the_results_of_the_library(models: dict[str, Elmo], client: Client) -> None:
    en = models["en"]
    remote, local = client.compare("bank", MARKED), compare(en, "bank", MARKED)
    assert remote.uses == local.uses
    assert list(remote.matrices) == list(local.matrices)
    for layer, matrix in local.matrices.items():
        np.testing.assert_allclose(remote.matrices[layer], matrix, rtol=0, atol=1e-6)
    for one, other in zip(client.score(MARKED), score_sentences(en, MARKED), strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_array_equal(one.forward, other.forward)
        np.testing.assert_array_equal(one.backward, other.backward)
        np.testing.assert_array_equal(one.is_unknown, other.is_unknown)
        assert one.perplexity == other.perplexity
    expected = [result.to_json() for result in find_substitutes(en, MARKED, n=5)]
    assert [[item["word"] for item in result["substitutes"]] for result in client.substitutes(MARKED, n=5)] == [
        [item["word"] for item in result["substitutes"]] for result in expected
    ]
    ranked = client.substitutes(MARKED, candidates=["shore", "lender"])
    assert {item["candidate"] for item in ranked[1]["substitutes"]} == {"shore", "lender"}


def test_methods_for_an_index_search_it(models: dict[str, Elmo], running: RunningServer, client: Client) -> None:
    folder = running.log.parent / "usages"
    local = [result.to_json() for result in find_neighbors(models["en"], folder, MARKED, k=3)]
    for one, other in zip(client.neighbors(MARKED, k=3), local, strict=True):
        assert [item["parts"] for item in one["neighbors"]] == [item["parts"] for item in other["neighbors"]]
    assert client.concordance("bank")["total"] == 4
    assert sum(sense["usages"] for sense in client.senses("bank", n_clusters=2)["senses"]) == 4


def test_an_explanation_has_a_score_per_token(client: Client) -> None:
    explanation = client.explain(MARKED[1])
    assert len(explanation["scores"]) == len(explanation["tokens"])


def test_errors_of_the_service_are_errors_of_the_library(client: Client) -> None:
    with pytest.raises(SentenceTooLongError, match="sentence 1"):
        client.encode(["short", "x " * 100_001])
    with pytest.raises(DataError, match="cannot find 'river' in sentence 2"):
        client.compare("river", ["the river", "the bank"])
    with pytest.raises(DataError, match="sentence 70"):
        client.substitutes([*MARKED[:1] * 69, "no mark"])
    with pytest.raises(ServiceError, match="unknown index") as caught:
        client.concordance("bank", index="other")
    assert (caught.value.status, caught.value.code) == (404, "index_not_found")


def test_a_service_with_a_key_and_low_limits_can_be_used(models: dict[str, Elmo], start_server: Any) -> None:
    key = "a-key-that-is-long-enough"
    server = start_server("--max-inputs", "7", "--max-tokens", "60", environment={"ELMO_API_KEY": key})
    url = f"http://127.0.0.1:{server.port}"
    with Client(url) as stranger, pytest.raises(ServiceError) as caught:
        stranger.encode("x")
    assert (caught.value.status, caught.value.code) == (401, "unauthorized")
    texts = [f"This is sentence {k} of a long list ." for k in range(40)]
    with Client(url, api_key=key) as client:
        assert_same(client.encode(texts), models["en"].encode(texts))
