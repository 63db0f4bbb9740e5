"""The explorer as a static site: its files, its answers in Node compared with those of the service, and its page."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from elmo import Elmo
from elmo.embed.inside import look_inside
from elmo.errors import ConfigError, OutputError
from elmo.lexicon import IndexJob, build_concordance, build_index
from elmo.lexicon.index import Index
from elmo.serve.export import RUNTIME_VARIABLE, STATIC, ExportedSite, ExportOptions, export_site, find_runtime
from elmo.serve.service import LoadedModel
from tests.serve.test_explorer import CHROMIUM, FLAGS, READY

pytest.importorskip("orjson", reason="needs the extra serve")
pytest.importorskip("onnx", reason="needs the extra onnx")
ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
HAS_RUNTIME = RUNTIME_VARIABLE in os.environ or (ROOT / "node_modules" / "onnxruntime-web").is_dir()
needs_runtime = pytest.mark.skipif(
    not HAS_RUNTIME, reason=f"needs the npm package onnxruntime-web in node_modules or in {RUNTIME_VARIABLE}"
)
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
MAX_BYTES = 35_000_000  # of a site with one model and its substitutes
MAX_ERROR = 1e-5  # of vectors, compared with ``Elmo.encode``
SENTENCES = [
    "I went to the bank to deposit money.", "She opened an account at the bank.", "I sat by the bank of the river.",
    "They walked along the bank of the stream.", "Hello", "", " \t ", "New York, 5 o'clock: \"It's £3.50!\"",
    "The zxqvbn florbled 😀 happily…", "naïve café — déjà vu", "他每天早上吃一个苹果。", "مرحبا bank", "<S> </S> <UNK>",
    "a" * 80, "word " * 60, "A.B. c-d e_f http://example.org/?q=1#x @me", "\u202ebank\u202c \u0000 x\u0301",
    "I can't, won't and shouldn't've.", "ﬁne ½ ² ①", "The\u00a0end\u2028.",
]  # fmt: skip
MARKED = [
    "I went to the [[bank]] to deposit money.", "I sat by the [[bank]] of the river.", "He was [[running]] fast.",
    "The [[bailiffs]] came.", "He paid [[$5]] for it.", "[[New York]] is big 😀.", "The [[zxqvbn]] is here.",
]  # fmt: skip
CORPUS = [
    "I went to the bank to deposit money .", "The bank raised its interest rates .", "She works at a bank downtown .",
    "The bank refused to lend us money .", "They sat on the bank of the river .", "The boat reached the other bank .",
    "The river flooded its bank again .", "Trees grow along the bank of the stream .",
]  # fmt: skip

# Answers requests, [[path, body], …], with the files of a site; vectors are written in base64.
SCRIPT = """
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const [folder, input, output, code, runtimeFile] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(path).href);
const { Engine } = await load(`${code}/local-engine.js`);
const { gunzip } = await load(`${code}/local-network.js`);
const { decodeText } = await load(`${code}/local.js`);
const read = async (path) => {
  let bytes = null;
  const script = new Function("elmoFile", readFileSync(`${folder}/${path}.js`, "utf16le"));
  script((name, nBytes, text) => { if (name === path) bytes = decodeText(text, nBytes); });
  return bytes;
};
const config = JSON.parse(new TextDecoder().decode(await read("config.json")));
const ort = async () => {
  const runtime = await load(runtimeFile);
  Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary: await gunzip(await read(config.runtime.binary)) });
  return runtime;
};
const engine = new Engine(config, { ort, read });
const answers = [];
for (const [path, body] of JSON.parse(readFileSync(input, "utf8"))) {
  try {
    answers.push(await engine.answer(path, body));
  } catch (error) {
    answers.push({ error: error.message, code: error.code ?? error.stack });
  }
}
const toBase64 = ({ buffer, byteOffset, byteLength }) => Buffer.from(buffer, byteOffset, byteLength).toString("base64");
const replacer = (key, value) => (value instanceof Float32Array ? toBase64(value) : value);
writeFileSync(output, JSON.stringify(answers, replacer));
"""


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return LoadedModel("en", Elmo.from_pretrained("en"))


def checksums(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def site(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> ExportedSite:
    """A site with the bundled English model and a small index, exported twice into the same folder."""
    work = tmp_path_factory.mktemp("export")
    (work / "corpus.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    build_index(IndexJob((str(work / "corpus.txt"),), work / "index", input_format="tokens"), model.elmo)
    options = ExportOptions(indexes=(work / "index",), n_words=3, n_usages=50)
    (work / "site").mkdir()
    export_site(work / "site", options)
    before = checksums(work / "site")
    (work / "site" / "stale.txt").write_text("of an earlier export", encoding="utf-8")
    second = export_site(work / "site", options)
    assert checksums(work / "site") == before
    return second


Ask = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def ask(site: ExportedSite, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Answer requests with the files of the site, in Node."""
    work = tmp_path_factory.mktemp("node")

    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        (work / "in.json").write_text(json.dumps(calls), encoding="utf-8")
        runtime = work / "ort.mjs"
        runtime.write_bytes(find_runtime().module)
        files = [str(site.path), str(work / "in.json"), str(work / "out.json"), str(STATIC), str(runtime)]
        script = work / "script.mjs"
        script.write_text(SCRIPT, encoding="utf-8")
        result = subprocess.run(
            [str(NODE), str(script), *files], capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stderr
        return json.loads((work / "out.json").read_text(encoding="utf-8"))

    return ask


def difference(a: Any, b: Any) -> float:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert x.shape == y.shape
    return float(np.abs(x - y).max(initial=0.0))


# --- Files ---------------------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputError, match=r"exists and is not an exported site; choose a new folder"):
        export_site(tmp_path)
    (tmp_path / "config.json").write_text('{"format": "something else"}', encoding="utf-8")
    with pytest.raises(OutputError, match=r"is not an exported site"):
        export_site(tmp_path)
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "years of work"
    with pytest.raises(OutputError, match=r"is not an exported site"):
        export_site(tmp_path / "thesis.txt")


def test_a_folder_without_the_runtime_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expected the npm package onnxruntime-web 1\.x; found none; run: npm install"
    ):
        find_runtime(tmp_path)
    with pytest.raises(ConfigError, match="found none"):
        export_site(tmp_path / "site", ExportOptions(onnxruntime=tmp_path))
    assert not (tmp_path / "site").exists()


@pytest.mark.slow
@needs_runtime
def test_the_site_is_small_and_replaces_an_earlier_export(site: ExportedSite) -> None:
    assert site.n_bytes == sum(path.stat().st_size for path in site.path.rglob("*") if path.is_file())
    assert site.n_bytes < MAX_BYTES
    assert not (site.path / "stale.txt").exists()
    assert [path.name for path in site.path.parent.iterdir() if path.name.startswith(".")] == []
    page = (site.path / "index.html").read_text(encoding="utf-8")
    assert 'content="browser"' in page
    assert "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'" in page
    licenses = (site.path / "licenses.txt").read_text(encoding="utf-8")
    assert all(name in licenses for name in ("preact", "htm", "onnxruntime-web"))


@pytest.fixture(scope="module")
def single(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> ExportedSite:
    """The bundled English model as a single file, which replaces an earlier export."""
    path = tmp_path_factory.mktemp("single") / "page 1 #%.html"
    export_site(path)
    before = path.read_bytes()
    exported = export_site(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    return exported


@pytest.mark.slow
@needs_runtime
def test_a_single_file_is_small_and_its_policy_allows_only_its_own_script(single: ExportedSite) -> None:
    assert single.n_bytes == single.path.stat().st_size < MAX_BYTES
    page = single.path.read_bytes().decode("utf-16")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    script = page[page.rindex("<script>") + len("<script>") : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}' 'wasm-unsafe-eval';" in policy[1]
    assert "connect-src" not in policy[1]  # default-src 'none' forbids all requests
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)[\w/.]""", page[: page.index('<div id="app">')])


def test_another_html_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "thesis.html"
    path.write_text("<p>years of work</p>", encoding="utf-8")
    with pytest.raises(OutputError, match=r"thesis.html exists and is not an exported page; choose a new name"):
        export_site(path)
    assert path.read_text(encoding="utf-8") == "<p>years of work</p>"
    (tmp_path / "x.html").mkdir()
    with pytest.raises(OutputError, match=r"expected a file name, found a folder"):
        export_site(tmp_path / "x.html")


@pytest.mark.slow
@needs_runtime
@pytest.mark.parametrize("name", ["site", "page.html"])
def test_a_full_disk_or_an_interrupt_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    import resource

    command = [sys.executable, "-m", "elmo", "explore", "en", "--export", str(tmp_path / "out" / name)]

    def limit() -> None:  # files of more than 5 MB cannot be written, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))

    full = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, preexec_fn=limit)
    assert full.returncode == 1
    assert re.fullmatch(rf"elmo: cannot write \S*{name}: [^\n]*\n", full.stderr), full.stderr
    assert list((tmp_path / "out").iterdir()) == []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        stop = time.monotonic() + 60
        while not any((tmp_path / "out").iterdir()) and time.monotonic() < stop:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
    assert (process.returncode, message) == (130, "elmo: interrupted\n")
    assert list((tmp_path / "out").iterdir()) == []


# --- Answers -------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_runtime
@needs_node
def test_vectors_and_tokens_are_those_of_encode(ask: Ask, model: LoadedModel) -> None:
    (reply,) = ask(("/v1/words", {"inputs": SENTENCES, "layers": "all"}))
    encodings = model.elmo.encode(SENTENCES, layers="all")
    for encoding, result in zip(encodings, reply["results"], strict=True):
        assert result["tokens"] == list(encoding.tokens)
        vectors = np.frombuffer(base64.b64decode(result["vectors"]), "<f4").reshape(result["shape"])
        assert difference(vectors, encoding.vectors) < MAX_ERROR


@pytest.mark.slow
@needs_runtime
@needs_node
def test_substitutes_are_those_of_the_service(ask: Ask, model: LoadedModel) -> None:
    combines = ("inject", "bcomb", "product", "mean", "forward", "backward")
    replies = ask(
        *(("/v1/substitutes", {"inputs": [*MARKED, "no mark"], "n": 8, "combine": name}) for name in combines)
    )
    for name, reply in zip(combines, replies, strict=True):
        request = {"word": None, "n": 8, "candidates": None, "combine": name, "start": "zero"}
        for expected, result in zip(model.substitutes(request, MARKED), reply["results"], strict=False):
            assert [result[part] for part in ("before", "word", "after")] == [
                expected[part] for part in ("before", "word", "after")
            ]
            for a, b in zip(expected["substitutes"], result["substitutes"], strict=True):
                assert (a["word"], a["lemma"]) == (b["word"], b["lemma"])
                for field in ("probability", "forward", "backward", "similarity"):
                    assert a[field] == pytest.approx(b[field], abs=1e-5)
        assert reply["results"][-1]["error"]["code"] == "invalid_input"


@pytest.mark.slow
@needs_runtime
@needs_node
def test_scores_expectations_explanations_and_steps_are_those_of_the_service(ask: Ask, model: LoadedModel) -> None:
    text, first, second = SENTENCES[2], MARKED[0], MARKED[1]
    score, expected, explanation, pair, inside, similarity = ask(
        ("/v1/score", {"inputs": [text, ""]}),
        ("/v1/expectations", {"inputs": [text], "n": 5}),
        ("/v1/explain", {"input": first}),
        ("/v1/explain", {"input": first, "other": second, "layers": 1}),
        ("/v1/inside", {"input": text, "token": 4}),
        ("/v1/similarity", {"sentences": [first, second]}),
    )
    tokens = [model.tokenize(sentence) for sentence in (text, "")]
    for result, wanted in zip(score["results"], model.score({"start": "zero"}, tokens), strict=True):
        assert difference(result["forward"], wanted["forward"]) < 1e-3
        assert difference(result["backward"], wanted["backward"]) < 1e-3
        assert result["is_unknown"] == wanted["is_unknown"]
        assert result["perplexity"] == pytest.approx(wanted["perplexity"], rel=1e-4)
    wanted = model.expect(tokens[:1], 5)[0].to_json()
    for direction in ("forward", "backward"):
        rows = zip(expected["results"][0][direction], wanted[direction], strict=True)
        assert all([item["word"] for item in a] == [item["word"] for item in b] for a, b in rows)
    request = {"input": first, "word": None, "other": None, "method": "leave-out", "layers": "average"}
    alone = model.explain(request)
    assert difference(explanation["scores"], alone["scores"]) < 1e-6
    assert (explanation["target"], explanation["scope"]) == (alone["target"], alone["scope"])
    both = model.explain({**request, "other": second, "layers": 1})
    assert pair["similarity"] == pytest.approx(both["similarity"], abs=1e-6)
    assert difference(pair["scores"], both["scores"]) < 1e-6
    assert difference(pair["other"]["scores"], both["other"]["scores"]) < 1e-6
    steps = look_inside(model.elmo, text, token=4)
    assert [item["character"] for item in inside["characters"]] == [item.character for item in steps.characters]
    for group, wanted_group in zip(inside["filters"], steps.filters, strict=True):
        assert difference(group["values"], wanted_group.values) < MAX_ERROR
        assert group["positions"] == wanted_group.positions.tolist()
    assert difference(inside["highways"], steps.highways) < MAX_ERROR
    assert difference(inside["token_vector"], steps.token_vector) < MAX_ERROR
    matrices = model.compare({"sentences": [first, second], "word": None, "layers": "all", "start": "zero"})
    for layer, matrix in matrices["similarities"].items():
        assert difference(similarity["similarities"][layer], matrix) < MAX_ERROR


@pytest.mark.slow
@needs_runtime
@needs_node
def test_the_usages_of_an_index_are_arranged_sorted_and_searched(
    ask: Ask, site: ExportedSite, model: LoadedModel
) -> None:
    usages_index = Index(site.path.parent / "index")
    usages, left, near, neighbors, missing = ask(
        ("/v1/map", {"word": "Bank", "to": "We rowed to the [[bank]] of the river ."}),
        ("/v1/concordance", {"word": "bank", "sort": "left"}),
        ("/v1/concordance", {"word": "bank", "sort": "similarity", "to": "We rowed to the [[bank]] of the river ."}),
        ("/v1/neighbors", {"inputs": ["We rowed to the [[bank]] of the river ."], "k": 3, "among": "same"}),
        ("/v1/map", {"word": "unheard"}),
    )
    assert usages["total"] == len(usages["lines"]) == len(CORPUS)
    assert sum(sense["usages"] for sense in usages["senses"]) == len(CORPUS)
    assert [line["before"].split()[-1].lower() for line in left["lines"]] == sorted(
        line["before"].split()[-1].lower() for line in left["lines"]
    )
    sentences = [line["before"] + line["word"] + line["after"] for line in near["lines"]]
    assert sorted(sentences) == sorted(CORPUS)
    assert {CORPUS.index(sentence) for sentence in sentences[:3]} <= {4, 5, 6, 7}  # the banks of rivers
    found = ["".join(item["parts"]) for item in neighbors["results"][0]["neighbors"]]
    assert found == sentences[:3]
    assert usages_index.layers == "sense"  # the default, which the page computes itself
    query = "We rowed to the [[bank]] of the river ."
    wanted = build_concordance(usages_index, "bank", elmo=model.elmo, sort="similarity", to=query)
    wanted_lines = {line.number: line.similarity for line in wanted.lines}
    for line in near["lines"]:
        assert line["similarity"] == pytest.approx(wanted_lines[line["number"]], abs=0.003)
    assert "is not among the 2 words" in missing["error"]


@pytest.mark.slow
@needs_runtime
@needs_node
def test_bad_requests_have_an_error_with_a_code(ask: Ask) -> None:
    replies = ask(
        ("/v1/words", {"inputs": ["x"], "model": "none"}),
        ("/v1/words", {"inputs": ["x"], "layers": 7}),
        ("/v1/words", {"inputs": ["word " * 20_000]}),
        ("/v1/inside", {"input": "x", "token": 3}),
        ("/v1/explain", {"input": "[[x]] y", "method": "gradient"}),
        ("/v1/periods", {}),
        ("/v1/unknown", {}),
    )
    codes = [reply["code"] for reply in replies]
    assert codes == [
        "model_not_found", "invalid_request", "too_large", "invalid_request", "invalid_request", "periods_not_found",
        "not_found",
    ]  # fmt: skip


# --- The page ------------------------------------------------------------------------------------------


def wait_for_port(port: int, seconds: float = 30.0) -> None:
    stop = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < stop
            time.sleep(0.05)


@pytest.fixture(scope="module")
def address(site: ExportedSite) -> Iterator[str]:
    """The site on ``python -m http.server``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", "-d", str(site.path), "--bind", "127.0.0.1", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Chromium and the package playwright",
)
# Keeps the worker of the page, so that a test can ask it for vectors.
KEEP_WORKER = "const Original = Worker; window.Worker = class extends Original {\
  constructor(...args) { super(...args); window.keptWorker = this; }\
};"
ASK_WORKER = """inputs => new Promise((resolve) => {
  keptWorker.addEventListener("message", ({ data }) => {
    if (data.id !== "test") return;
    resolve(data.value.results.map(({ tokens, shape, vectors }) => [tokens, shape, [...vectors]]));
  });
  keptWorker.postMessage({ id: "test", path: "/v1/words", body: { inputs, layers: "all" } });
})"""


@pytest.mark.slow
@needs_runtime
@needs_browser
@pytest.mark.parametrize("place", ["server", "folder", "file"])
def test_the_page_runs_from_a_server_and_from_disk_and_loads_only_its_own_files(
    place: str, site: ExportedSite, single: ExportedSite, address: str, model: LoadedModel
) -> None:
    from playwright.sync_api import sync_playwright

    start = {
        "server": f"http://{address}/", "folder": (site.path / "index.html").as_uri(), "file": single.path.as_uri(),
    }[place]  # fmt: skip
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(locale="en-US", offline=place != "server")
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.add_init_script(KEEP_WORKER)

        def check(request: Any) -> None:
            url = urlsplit(request.url)
            own = ("http", address) if place == "server" else ("file", "")
            if url.scheme not in ("data", "blob") and (url.scheme, url.netloc) != own:
                problems.append(request.url)

        page.on("request", check)
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(start)
        page.wait_for_selector("[data-figure=compare-matrix]")
        page.wait_for_function("() => document.querySelectorAll('.substitute').length > 8")
        groups = page.inner_text("[data-figure=compare-map]")
        assert "A, B" in groups
        assert "C, D" in groups
        for encoding, (tokens, shape, values) in zip(
            model.elmo.encode(SENTENCES, layers="all"), page.evaluate(ASK_WORKER, SENTENCES), strict=True
        ):
            assert tokens == list(encoding.tokens)
            assert difference(np.reshape(values, shape), encoding.vectors) < MAX_ERROR
        page.fill("#sentences", "The bank closed.\nThe bank of the river is steep.\nThe bank lent me money.")
        page.wait_for_timeout(100)
        page.wait_for_function(READY)
        assert page.locator("[data-figure=compare-matrix] .cell").count() >= 3
        page.click("#tab-sentence")
        page.wait_for_selector(".view-sentence svg.chart")
        page.click("#tab-inside")
        page.wait_for_selector(".view-inside svg.chart")
        shared = page.url
        page.goto("about:blank")
        page.goto(shared)
        page.wait_for_selector(".view-inside svg.chart")
        if place != "file":  # the single file has no index
            page.click("#tab-corpus")
            page.fill("#word", "bank")
            page.press("#word", "Enter")
            page.wait_for_selector("[data-figure=corpus-map] [data-mark]")
        browser.close()
    assert not problems, problems


@pytest.mark.slow
@needs_runtime
@needs_browser
def test_a_missing_file_of_a_site_is_named(site: ExportedSite, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    copy = tmp_path / "site"
    shutil.copytree(site.path, copy)
    (copy / "models" / "en" / "model.onnx.js").unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(locale="en-US")
        page.goto((copy / "index.html").as_uri())
        page.wait_for_selector("text=the file models/en/model.onnx.js of this page cannot be loaded")
        browser.close()
