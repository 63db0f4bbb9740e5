"""``elmo models``, ``elmo download`` and ``elmo cache``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.catalog import transfer
from elmo.catalog.models import get_model
from elmo.formats import pretrained
from tests.catalog.file_server import FileServer, serving, status
from tests.cli.conftest import Run, assert_fails
from tests.formats import packaging

NAME = "nlpl/166"


@pytest.fixture(autouse=True)
def server(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A mirror with one model, and a folder of downloads."""
    for name in ("ELMO_OFFLINE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.001)
    packaging.many_langs(here / "efml")
    with serving({f"{NAME}/166.zip": packaging.zipped(here / "efml")}) as running:
        monkeypatch.setenv("ELMO_MIRROR", running.address)
        monkeypatch.setenv("ELMO_DOWNLOADS", str(here / "downloads"))
        pretrained._announce.cache_clear()
        yield running


def test_models_are_listed_by_language_and_domain(run: Run) -> None:
    lines = run("models").out.splitlines()
    assert len(lines) == 144
    assert max(map(len, lines)) <= 145
    for language in ("zh", "中文", "Chinese"):
        lines = run("models", "--language", language).out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == [
            "nlpl/179",
            "hit/zhs",
            "paddle/zh-baike",
            "paddle/zh-baike-3.8g",
        ]
    values = json.loads(run("models", "--language", "ru", "--domain", "news", "--json").out)
    assert values[0]["name"] == "deeppavlov/ru-news"
    assert {value["language"] for value in values} == {"ru"}
    keys = {
        "language",
        "domains",
        "size_mb",
        "format",
        "license",
        "tokenizer",
        "input",
        "cite",
        "availability",
        "files",
    }
    assert keys <= values[0].keys()


def test_one_model_is_described_by_any_of_its_names(run: Run) -> None:
    shown = run("models", NAME).out
    for line in (
        "Norwegian Nynorsk",
        "ELMoForManyLangs",
        "not stated for the model; the code is MIT",
        "Che et al. 2018",
    ):
        assert line in shown
    for label in ("language", "domain", "size", "format", "license", "tokenizer", "input", "cite", "get it by"):
        assert any(row.startswith(f"{label} ") for row in shown.splitlines()), label
    assert run("models", "hit/nn").out == shown
    assert json.loads(run("models", NAME, "--json").out)["name"] == NAME
    assert f"putting it into {Path('downloads/by-hand/ratsgo/ko')}" in run("models", "ratsgo/ko").out.replace(
        str(Path.cwd()) + "/", ""
    )
    assert "loading allenai/small, which has the same weights" in run("models", "gluonnlp/small").out


def test_misuse_is_one_line(run: Run) -> None:
    assert_fails(run("models", "nlpl/1666"), "similar names: nlpl/166")
    assert_fails(run("models", "--language", "xx"), "language must be one of ar, bg")
    assert_fails(run("models", NAME, "--language", "nn"), "cannot be combined", code=2)
    assert_fails(run("download", "flair:nonsense"), "expected the name of a published model or a Hub id")
    assert_fails(run("download", "ratsgo/ko"), "fetch the zip file with the Google Drive id")
    assert_fails(run("download", "gluonnlp/small"), "load allenai/small")
    assert_fails(run("cache", "--remove", "nlpl/1666"), "no published model is called")


def test_a_model_is_downloaded_used_listed_and_removed(run: Run, server: FileServer, here: Path) -> None:
    folder = here / "downloads" / "nlpl" / "166"
    assert run("cache").out == f"no models in {here / 'downloads'}\n"
    outcome = run("download", NAME)
    assert (outcome.code, outcome.out) == (0, f"{folder}\n")
    assert outcome.err == f"elmo: downloading {NAME} to {folder}\n"
    assert run("download", "hit/nn", "--quiet").err == ""
    shown = run("info", NAME)
    assert "format      ELMoForManyLangs" in shown.out
    assert f"tokenizer   {get_model('nlpl/166').tokenizer}" in shown.out
    (here / "words.txt").write_text("Eg les ei bok .\n")
    assert run("embed", "words.txt", "--model", "efml:nn").code == 0
    assert len(server.requests) == 1
    (model,) = json.loads(run("cache", "--json").out)["models"]
    assert (model["name"], model["state"], model["folder"]) == (NAME, "complete", str(folder))
    outcome = run("cache", "--remove", NAME)
    assert outcome.out == f"no models in {here / 'downloads'}\n"
    assert outcome.err.startswith("elmo: freed 0.0 MB")
    assert not folder.exists()


def test_what_a_model_expects_is_stated_once(run: Run, server: FileServer) -> None:
    server.files["nlpl/160/160.zip"] = server.files[f"{NAME}/166.zip"]
    outcome = run("info", "hit/ja")
    assert "elmo: warning: nlpl/160 expects Japanese words separated by spaces (tokenizer: whitespace)" in outcome.err
    assert "expects" not in run("info", "hit/ja").err


def test_an_unfinished_download_is_listed_and_cleaned(run: Run, server: FileServer) -> None:
    content = server.files[f"{NAME}/166.zip"]
    server.faults[f"{NAME}/166.zip"] = [lambda request: request.send_file(n_bytes=len(content) // 2), status(404)]
    assert_fails_after_log(run("download", NAME))
    (model,) = json.loads(run("cache", "--json").out)["models"]
    assert model["state"] == "unfinished"
    assert run("cache", "--clean").out.startswith("no models in ")


def assert_fails_after_log(outcome) -> None:
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 2
    assert "HTTP status 404" in outcome.err


def test_limits_and_offline_mode_are_options(run: Run, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run("download", NAME, "--max-gb", "0.000001")
    assert "expected at most 1,000 bytes" in outcome.err
    monkeypatch.setenv("ELMO_OFFLINE", "1")
    assert_fails(run("download", NAME), "ELMO_OFFLINE is set")
    assert_fails(run("embed", "corpus.txt", "--model", NAME), "ELMO_OFFLINE is set")


def test_a_changed_file_is_refused_until_it_is_forgotten(run: Run, server: FileServer, here: Path) -> None:
    run("download", NAME)
    run("cache", "--remove", NAME)
    server.files[f"{NAME}/166.zip"] += b"x"
    outcome = run("download", NAME)
    assert outcome.code == 1
    assert f"if you trust the new one, run 'elmo cache --forget {NAME}'" in outcome.err
    run("cache", "--forget", NAME)
    assert run("download", NAME).code == 0
