"""The table of published models: complete, consistent, searchable, and the page that is made from it."""

from __future__ import annotations

import csv
import json
import re
import runpy
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elmo.catalog import find_model, list_models
from elmo.catalog.languages import LANGUAGES, find_languages
from elmo.catalog.models import get_model
from elmo.errors import ConfigError
from elmo.formats import hub
from elmo.formats.archive import SUFFIXES, is_model_file
from elmo.formats.pretrained import _readers, bundled_models
from elmo.text import languages
from elmo.text.tokenizers import is_tokenizer_name
from tests.shared import SHARED

ROOT = Path(__file__).parents[2]
MODELS = list_models()
SURVEY = SHARED / "catalogue.tsv"


def test_there_are_143_models_with_unique_names() -> None:
    names = [name for model in MODELS for name in (model.name, *model.aliases)]
    assert len(MODELS) == 143
    assert len(names) == len(set(names))
    assert not {*names} & {*bundled_models()}
    for model in MODELS:
        assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9.-]+", model.name), model.name  # also the name of a folder
        assert find_model(model.name) is model
        assert all(find_model(alias) is model for alias in model.aliases)


@pytest.mark.skipif(not SURVEY.is_file(), reason=f"the survey is not at {SURVEY}")
def test_the_table_has_every_model_of_the_survey_and_none_of_its_sentences() -> None:
    with SURVEY.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["name"] for row in rows] == [model.name for model in MODELS]
    ours = {model.name: json.dumps([model.note, model.input, model.by_hand, model.corpus]) for model in MODELS}
    for row in rows:
        for sentence in re.split(r"(?<=[.;]) ", row["notes"]):
            if len(sentence.split()) > 5:
                assert sentence.rstrip(".") not in ours[row["name"]]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_an_entry_is_consistent(model) -> None:
    assert model.publisher
    assert model.domains
    assert model.corpus
    assert model.input
    assert model.language is None or model.language in LANGUAGES
    assert is_tokenizer_name(model.tokenizer)
    if model.input == "tokenized text":
        assert model.tokenizer == (model.language if model.language in languages.LANGUAGES else "en")
    ways = [bool(model.files), bool(model.hub), bool(model.by_hand), bool(model.unsupported)]
    assert any(ways)
    if model.unsupported or model.hub:
        assert sum(ways) == 1
    else:
        assert model.format in {reader.NAME for reader in _readers()}
    assert model.hub is None or hub.split_id(model.hub)
    assert (model.same_as is None) or (get_model(model.same_as).unsupported is None)
    assert len({file.name for file in model.files}) == len(model.files)
    for file in model.files:
        assert re.fullmatch(r"[\w.-]+", file.name)
        is_archive = file.name.endswith(SUFFIXES) or ".tgz.part-" in file.name
        assert is_archive or is_model_file(file.name) or file.name.endswith(".meta")
        assert file.urls
        assert len(set(file.urls)) == len(file.urls)
        for url in file.urls:
            assert urlsplit(url).scheme in ("http", "https")
            assert " " not in url
        assert file.checksum is None or re.fullmatch(r"(md5:[0-9a-f]{32}|sha1:[0-9a-f]{40})", file.checksum)


def test_names_of_other_libraries_are_known() -> None:
    expected = {
        "flair:pubmed": "allenai/pubmed",
        "flair:5.5B": "allenai/original-5.5b",
        "flair:portuguese": "allenai/pt",
        "hit/zhs": "hit/zhs",
        "efml:zht": "nlpl/179",
        "hit/nn": "nlpl/166",
        "tfhub:google/elmo/3": "google/elmo-3",
        "https://tfhub.dev/google/elmo/2": "google/elmo-2",
        "seqvec": "seqvec/uniref50",
        "norlm:norelmo30": "nlpl/217",
    }
    assert {alias: getattr(find_model(alias), "name", None) for alias in expected} == expected


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("ru", {"ru"}),
        ("Russian", {"ru"}),
        ("русский", {"ru"}),
        ("俄语", {"ru"}),
        ("zh", {"zh", "zh-Hans", "zh-Hant"}),
        ("中文", {"zh", "zh-Hans", "zh-Hant"}),
        ("chinese", {"zh", "zh-Hans", "zh-Hant"}),
        ("ZH-HANT", {"zh-Hant"}),
        ("繁體中文", {"zh-Hant"}),
        ("norsk", {"no", "nb", "nn"}),
        ("klingon", set()),
    ],
)
def test_languages_are_found_by_code_and_by_name(text: str, codes: set[str]) -> None:
    assert find_languages(text) == codes


def test_models_are_found_by_language_and_domain() -> None:
    assert {m.name for m in list_models(language="zh")} == {
        "nlpl/179",
        "hit/zhs",
        "paddle/zh-baike",
        "paddle/zh-baike-3.8g",
    }
    names = {model.name for model in list_models(language="en", domain="biomedical")}
    assert {"allenai/pubmed", "bioelmo/pubmed", "noc-lab/clinical-mimic-wiki"} <= names
    assert list_models(language="ru", domain="biomedical") == []
    with pytest.raises(ConfigError, match=r"language must be one of ar, bg, .*; found 'xx'"):
        list_models(language="xx")
    with pytest.raises(ConfigError, match=r"domain must be one of biomedical, .*; found 'poetry'"):
        list_models(domain="poetry")
    with pytest.raises(ConfigError, match=r"similar names: allenai/original"):
        get_model("allenai/orginal")


def test_the_page_is_made_from_the_table() -> None:
    script = ROOT / "recipes" / "write_catalogue_page.py"
    page = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(script))["render"]() == page, f"run: python {script.relative_to(ROOT)}"
    assert [model.name for model in MODELS if f"`{model.name}`" not in page] == []
