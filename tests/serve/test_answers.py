"""What the service answers, compared with the library: vectors to the last bit, and the results of every route."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import Elmo, LayerMix, similarity
from tests.serve.conftest import RunningServer, StartServer

pytestmark = pytest.mark.slow

TEXTS = ["I sat by the bank of the river.", "The bank lent her money 💰 twice.", "Yes", ""]
TOKENS = ["a", "list", "of", "tokens", "with", "<S>", "and", "naïve"]
LAYERS: list[Any] = ["average", "top", "all", "concat", 0, 1, 2, [0, 2], {"weights": [0.5, -1.0, 2.0], "gamma": 1.5}]


@pytest.fixture(scope="module")
def model() -> Elmo:
    return Elmo.from_pretrained()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with both bundled models and an index."""
    from elmo.lexicon import IndexJob, build_index

    folder = tmp_path_factory.mktemp("serve")
    lines = [
        "She sat on the bank of the river .",
        "The bank of the stream was wet .",
        "He went to the bank for money .",
        "The bank lent him money .",
        "A river runs here .",
    ]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    build_index(IndexJob((str(folder / "text.txt"),), folder / "usages"), Elmo.from_pretrained())
    server = RunningServer(folder / "server.log", "en", "zh", "--index", str(folder / "usages"))
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def library_layers(layers: Any) -> Any:
    if isinstance(layers, dict):
        return LayerMix(3, weights=layers["weights"], gamma=layers["gamma"])
    return "all" if isinstance(layers, list) else layers


def expected(model: Elmo, layers: Any, dtype: str) -> list[Any]:
    encodings = model.encode([*TEXTS, TOKENS], layers=library_layers(layers), dtype=dtype)
    vectors = [np.asarray(encoding.vectors) for encoding in encodings]
    return [v[layers] for v in vectors] if isinstance(layers, list) else vectors


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_vectors_have_the_bits_of_the_library(served: RunningServer, model: Elmo, layers: Any, dtype: str) -> None:
    wanted = expected(model, layers, dtype)
    request = {"inputs": [*TEXTS, TOKENS], "layers": layers, "dtype": dtype}
    in_base64 = served.post("/v1/words", {**request, "encoding": "base64"}).json["results"]
    in_json = served.post("/v1/words", request).json["results"]
    archive = np.load(io.BytesIO(served.post("/v1/words", {**request, "encoding": "npy"}).body))
    for result, numbers, array in zip(in_base64, in_json, wanted, strict=True):
        assert result["shape"] == numbers["shape"] == list(array.shape)
        assert base64.b64decode(result["vectors"]) == array.tobytes()
        assert np.array_equal(np.array(numbers["vectors"], dtype=dtype).reshape(array.shape), array)
    assert np.array_equal(archive["vectors"], np.concatenate(wanted, axis=-2))
    assert [r["shape"] for r in json.loads(archive["reply.json"])["results"]] == [list(a.shape) for a in wanted]


def test_tokens_and_offsets_are_those_of_the_tokenizer(served: RunningServer, model: Elmo) -> None:
    reply = served.words(TEXTS[1], TOKENS, offsets="utf16").json
    text = TEXTS[1]
    encoding = model.encode(text)
    assert tuple(reply["results"][0]["tokens"]) == encoding.tokens
    units = text.encode("utf-16-le")
    spans = reply["results"][0]["offsets"]
    assert [units[2 * a : 2 * b].decode("utf-16-le") for a, b in spans] == list(encoding.tokens)
    code_points = served.words(text).json["results"][0]["offsets"]
    assert [text[a:b] for a, b in code_points] == list(encoding.tokens)
    assert reply["results"][1]["offsets"] is None
    assert reply["usage"] == {"inputs": 2, "tokens": len(encoding.tokens) + len(TOKENS)}


def test_targets_select_words_and_spans_of_characters(served: RunningServer, model: Elmo) -> None:
    text = "The 💰 of New York is by the bank"
    begin = len("The 💰 of ".encode("utf-16-le")) // 2
    targets = ["bank", "New York", [begin, begin + 3]]
    reply = served.words(text, TOKENS, targets=[targets, None], offsets="utf16").json["results"]
    encoding = model.encode(text)
    vectors = np.frombuffer(base64.b64decode(reply[0]["vectors"]), dtype="<f4").reshape(reply[0]["shape"])
    assert np.array_equal(vectors[0], encoding.word("bank"))
    assert np.array_equal(vectors[1], encoding.phrase("New York"))
    assert np.array_equal(vectors[2], encoding.word("New"))
    assert [target["text"] for target in reply[0]["targets"]] == ["bank", "New York", "New"]
    assert reply[1]["shape"] == [len(TOKENS), model.width]


def test_an_input_that_fails_fails_alone(served: RunningServer) -> None:
    reply = served.words("a river", "a bank", targets=[["bank"], ["bank"]])
    assert reply.status == 200
    assert "cannot find 'bank'" in reply.json["results"][0]["error"]["message"]
    assert reply.json["results"][1]["shape"] == [1, 320]
    marked = served.post("/v1/substitutes", {"inputs": ["no mark", "a [[bank]]"], "n": 2}).json["results"]
    assert "error" in marked[0]
    assert len(marked[1]["substitutes"]) == 2


def test_chinese_is_served_like_english(served: RunningServer) -> None:
    text = "他每天吃一個蘋果。"
    encoding = Elmo.from_pretrained("zh").encode(text)
    result = served.words(text, model="zh").json["results"][0]
    assert tuple(result["tokens"]) == encoding.tokens
    assert base64.b64decode(result["vectors"]) == np.asarray(encoding.vectors).tobytes()


def test_similarity_substitutes_and_scores_are_those_of_the_library(served: RunningServer, model: Elmo) -> None:
    from elmo.embed import compare
    from elmo.lexicon import find_substitutes
    from elmo.predict import predict_expectations, score_sentences

    compared = served.post("/v1/similarity", {"word": "bank", "sentences": TEXTS[:2]}).json
    assert compared["similarities"] == compare(model, "bank", TEXTS[:2]).to_json()["similarities"]
    marked = "I sat by the [[bank]] of the river ."
    answer = served.post("/v1/substitutes", {"inputs": marked, "n": 5}).json["results"][0]
    assert answer == find_substitutes(model, [marked], n=5)[0].to_json()
    scored = served.post("/v1/score", {"inputs": TEXTS[:3]}).json["results"]
    for result, scores in zip(scored, score_sentences(model, TEXTS[:3]), strict=True):
        assert np.array_equal(np.array(result["forward"], dtype="float32"), scores.forward)
        assert np.array_equal(np.array(result["backward"], dtype="float32"), scores.backward)
    expectations = served.post("/v1/expectations", {"inputs": TEXTS[0], "n": 3}).json["results"][0]
    library = predict_expectations(model, [TEXTS[0]], n=3)[0].to_json()
    assert expectations["forward"] == library["forward"]
    assert expectations["backward_log_probability"] == library["backward_log_probability"]
    scores = scored[0]
    assert np.allclose(expectations["forward_log_probability"], scores["forward"][:-1], atol=1e-5)
    assert np.allclose(expectations["backward_log_probability"], scores["backward"][1:], atol=1e-5)


def test_sentence_vectors_of_the_compatible_routes(served: RunningServer, model: Elmo) -> None:
    vector = np.asarray(model.encode(TEXTS[0]).sentence())
    openai = served.post("/v1/embeddings", {"input": TEXTS[0], "model": "en", "encoding_format": "base64"}).json
    assert base64.b64decode(openai["data"][0]["embedding"]) == vector.tobytes()
    plain = served.post("/v1/embeddings", {"input": [TEXTS[0]]}).json
    assert np.array_equal(np.array(plain["data"][0]["embedding"], dtype="float32"), vector)
    normalized = np.array(served.post("/embed", {"inputs": TEXTS[0]}).json[0])
    assert np.allclose(normalized, vector / np.linalg.norm(vector), atol=1e-6)
    all_tokens = served.post("/embed_all", {"inputs": TEXTS[0]}).json[0]
    assert np.array_equal(np.array(all_tokens, dtype="float32"), model.encode(TEXTS[0]).vectors)


def test_an_index_answers_neighbors_concordance_senses_and_maps(served: RunningServer) -> None:
    query = {"inputs": ["We walked along the [[bank]] of the river ."], "k": 2, "among": "same"}
    neighbors = served.post("/v1/neighbors", query).json["results"][0]["neighbors"]
    assert len(neighbors) == 2
    assert neighbors[0]["parts"][2] == " of the river ."
    lines = served.post("/v1/concordance", {"word": "bank", "sort": "right"}).json
    assert lines["total"] == 4
    assert [line["after"].split()[0] for line in lines["lines"]] == ["for", "lent", "of", "of"]
    assert all("/" not in line["place"] for line in lines["lines"])
    similar = served.post("/v1/concordance", {"word": "bank", "sort": "similarity", "to": lines["lines"][0]["number"]})
    assert similar.json["lines"][0]["number"] == lines["lines"][0]["number"]
    senses = served.post("/v1/senses", {"word": "bank", "n_clusters": 2}).json
    assert len(senses["labels"]) == 4
    drawn = served.post("/v1/map", {"word": "bank", "n_clusters": 2}).json
    assert [line["sense"] for line in drawn["lines"]] == senses["labels"]
    assert drawn == served.post("/v1/map", {"word": "bank", "n_clusters": 2}).json
    missing = served.post("/v1/concordance", {"word": "zebra"})
    assert missing.status == 400
    assert "does not occur" in missing.json["error"]["message"]


def test_the_inside_of_the_network_agrees_with_its_layers(served: RunningServer, model: Elmo) -> None:
    inside = served.post("/v1/inside", {"input": TEXTS[0], "token": 4}).json
    layers = np.asarray(model.encode(TEXTS[0], layers="all").vectors)
    assert np.array_equal(np.array(inside["layers"], dtype="float32"), layers)
    assert "".join(item["character"] for item in inside["characters"][1:5]) == "bank"
    features = np.array(inside["highways"][-1])
    projection = model.bilm.token_layer.projection
    assert projection is not None
    projected = features @ projection.weight.detach().numpy().T + projection.bias.detach().numpy()
    assert similarity(projected, layers[0, 4, :160]) == pytest.approx(1.0, abs=1e-6)
    assert sum(group["n"] for group in inside["filters"]) == len(features)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/words", {}, 400, "inputs is required"),
        ("/v1/words", {"inputs": 3}, 400, "inputs must be a string or a list; found 3"),
        ("/v1/words", {"inputs": ["a"], "layer": 1}, 400, "unknown field 'layer'"),
        ("/v1/words", {"inputs": ["a"], "layers": 9}, 400, "layers must be in 0..2; found 9"),
        ("/v1/words", {"inputs": ["a"], "layers": {"weights": [1, 2]}}, 400, "must have 3 values"),
        ("/v1/words", {"inputs": ["a"], "layers": True}, 400, "found true"),
        ("/v1/words", {"inputs": ["a"], "targets": []}, 400, "targets must have one item per input"),
        ("/v1/words", {"inputs": ["a"], "model": "../../etc/passwd"}, 404, "unknown model"),
        ("/v1/words", {"inputs": ["a"] * 3000}, 413, "at most 2,048 inputs"),
        ("/v1/words", {"inputs": ["a " * 200_000]}, 413, "at most 100,000 tokens"),
        ("/v1/words", {"inputs": ["a " * 40_000], "layers": "all"}, 413, "the reply would have about"),
        ("/v1/words", b"{", 400, "the body must be JSON"),
        ("/v1/words", b'{"inputs": "\\ud800"}', 400, "the body must be JSON"),
        ("/v1/words", b"[" * 100_000, 400, "the body must be JSON"),
        ("/v1/words", b"[]", 400, "the body must be a JSON object"),
        ("/v1/embeddings", {"input": [[1, 2]]}, 400, "token ids are not supported"),
        ("/v1/embeddings", {"input": "a", "dimensions": 7}, 400, "dimensions must be 320"),
        ("/v1/nothing", {}, 404, "no such route"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_a_clear_error(
    served: RunningServer, path: str, body: Any, status: int, message: str
) -> None:
    reply = served.post(path, body)
    assert reply.status == status
    assert message in reply.json["error"]["message"]


def test_every_documented_route_exists_and_every_route_is_documented(served: RunningServer) -> None:
    from elmo.serve.app import App
    from elmo.serve.options import ServeOptions

    document = served.get("/openapi.json").json
    documented = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    routes = App(ServeOptions()).routes
    pages = {"/"} | {path for path in routes if path.startswith("/explore/")}
    assert documented == {(path, method) for path, methods in routes.items() if path not in pages for method in methods}
    for path, method in documented:
        example = document["paths"][path][method.lower()].get("requestBody", {}).get("content", {})
        if example:
            body = example["application/json"].get("example")
            if body is not None:
                assert served.post(path, body).status == 200, path
        else:
            assert served.get(path).status in ((404,) if path == "/v1/periods" else (200,)), path


def test_the_document_states_the_limits_of_the_options_and_models(served: RunningServer) -> None:
    document = served.get("/openapi.json").json
    properties = document["paths"]["/v1/words"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "properties"
    ]
    numbers = [part["maximum"] for part in properties["layers"]["anyOf"] if part["type"] == "integer"]
    (n_layers,) = {item["n_layers"] for item in served.get("/v1/models").json["data"]}
    assert numbers == [n_layers - 1]
    assert [part["maxItems"] for part in properties["inputs"]["anyOf"] if part["type"] == "array"] == [2048]


def test_the_document_states_the_inputs_of_every_route(start_server: StartServer) -> None:
    server = start_server("--max-inputs", "7")
    paths = server.get("/openapi.json").json["paths"]
    for path, name in (("/v1/words", "inputs"), ("/v1/embeddings", "input"), ("/embed", "inputs")):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][name]
        assert [part["maxItems"] for part in schema["anyOf"] if part["type"] == "array"] == [7]
        assert server.post(path, {name: ["a"] * 7}).status == 200
        assert server.post(path, {name: ["a"] * 8}).status == 413


def test_only_messages_about_the_input_reach_a_client(tmp_path: Path) -> None:
    from elmo.errors import DataError, EncodingError, FormatError
    from elmo.serve.app import App
    from elmo.serve.options import ServeOptions

    app = App(ServeOptions(indexes=(tmp_path / "usages",)))
    assert app.public_message(DataError("'a/b' does not occur in the index")) == "'a/b' does not occur in the index"
    assert app.public_message(DataError(f"{tmp_path / 'usages'}: the text is damaged; build the index again")) is None
    for error in (FormatError("weights: damaged"), EncodingError("not UTF-8"), ValueError("x"), OSError("y")):
        assert app.public_message(error) is None


def test_the_current_folder_has_its_own_name_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elmo.serve.service import _free_name

    (tmp_path / "mine" / "child").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine" / "child")
    assert [_free_name(source, {}) for source in (".", "./", "..", "../child", "/")] == [
        "child", "child", "mine", "child", "model",
    ]  # fmt: skip


def test_periods_with_the_same_name_are_refused() -> None:
    from elmo.errors import ConfigError
    from elmo.serve.options import ServeOptions

    with pytest.raises(ConfigError, match="the names of the periods must differ; found 1850s, 1850s"):
        ServeOptions(corpora=(("1850s", Path("old.txt")), ("1850s", Path("new.txt"))))


@pytest.mark.skipif(sys.platform == "win32", reason="needs the users of a POSIX system")
def test_a_user_without_a_home_folder_can_run_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    from elmo.errors import DataError
    from elmo.serve.app import App
    from elmo.serve.options import ServeOptions

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)  # has no entry in /etc/passwd
    with pytest.raises(RuntimeError):
        Path.home()
    assert App(ServeOptions()).public_message(DataError("no such word")) == "no such word"


def test_the_page_of_the_api_loads_nothing_from_other_hosts(served: RunningServer) -> None:
    page = served.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert b"http://127.0.0.1:8000/v1/words" in page.body
    assert b"<script" not in page.body
    assert b'src="' not in page.body


def test_a_path_outside_of_the_page_is_not_found(served: RunningServer) -> None:
    for path in ("/explore/../app.py", "/explore/%2e%2e/app.py", "/explore//etc/passwd", "/explore/..%2fapp.py"):
        assert served.get(path).status == 404, path
    assert served.get("/").status == 307
