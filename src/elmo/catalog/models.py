"""The table of published models: names, properties, addresses.

The table is the file ``models.jsonl`` with one model per line. ``docs/catalogue.md`` is generated from it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from elmo.catalog.languages import LANGUAGES, find_languages
from elmo.errors import ConfigError

_TABLE = Path(__file__).with_name("models.jsonl")

Availability = Literal["download", "hub", "by hand", "copy", "unsupported"]


@dataclass(frozen=True)
class CatalogFile:
    """A file of a published model.

    Args:
        name: Name in the cache.
        urls: Addresses of the same bytes, in the order in which they are tried.
        checksum: What the publisher states, such as "sha1:…"; None if no checksum was published.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None = None


@dataclass(frozen=True)
class NetworkSizes:
    """The sizes of the network of a published model, as its publisher states them.

    Attributes:
        cells: Number of LSTM cells, or of hidden units of a transformer, per layer and direction.
        width: Width of the states of each direction.
        layers: Number of layers above the token layer.
        highway_layers: Number of highway layers in the token layer.
    """

    cells: int
    width: int
    layers: int
    highway_layers: int


@dataclass(frozen=True)
class CatalogModel:
    """A published model.

    Args:
        name: Its name here, such as "nlpl/166".
        publisher: Who published it.
        domains: Kinds of text it was trained on, such as "news".
        corpus: The text it was trained on.
        format: Format of its files, as in ``elmo info``, or the name of another format.
        input: What the model expects as input.
        tokenizer: Name of the tokenizer that fits best.
        language: Code of its language; None if it is not stated.
        aliases: Other names, such as the name in another library.
        tokens: Number of tokens of the corpus, as stated.
        shape: Sizes of the network.
        size_mb: Approximate size of the files in megabytes.
        license: License of the model; None if it is not stated.
        contains: What the files contain in addition to the weights, such as "softmax".
        cite: The publication to cite.
        files: The files and their addresses.
        by_hand: Which files the user has to fetch, and where, if they cannot be downloaded.
        hub: Id on the Hugging Face Hub, if the model is there.
        unsupported: Why elmo cannot read the model; None if it can.
        same_as: Name of the model with the same weights.
        note: Further facts.
    """

    name: str
    publisher: str
    domains: tuple[str, ...]
    corpus: str
    format: str
    input: str
    tokenizer: str
    language: str | None = None
    aliases: tuple[str, ...] = ()
    tokens: str | None = None
    shape: NetworkSizes | None = None
    size_mb: float | None = None
    license: str | None = None
    contains: tuple[str, ...] = ()
    cite: str | None = None
    files: tuple[CatalogFile, ...] = ()
    by_hand: str | None = None
    hub: str | None = None
    unsupported: str | None = None
    same_as: str | None = None
    note: str | None = None

    @property
    def availability(self) -> Availability:
        """How to get the model: from its addresses, from the Hub, by hand, as another model, or not at all."""
        if self.unsupported is not None:
            return "copy" if self.same_as else "unsupported"
        return "hub" if self.hub else "download" if self.files else "by hand"


def find_model(name: str) -> CatalogModel | None:
    """Return the model with this name or alias; None if there is none.

    Args:
        name: The name or an alias.

    Example:
        >>> find_model("allenai/transformer-elmo").format
        'AllenNLP transformer'
        >>> find_model("no such model") is None
        True
    """
    return _by_name().get(name)


def get_model(name: str) -> CatalogModel:
    """Return the model with this name or alias; raise ``ConfigError`` with similar names if there is none."""
    model = find_model(name)
    if model is None:
        similar = similar_names(name, likeness=0.5)
        hint = f"; similar names: {', '.join(similar)}" if similar else ""
        raise ConfigError(f"no published model is called {name[:80]!r}{hint}; 'elmo models' lists all of them")
    return model


def similar_names(name: str, *, likeness: float = 0.8) -> list[str]:
    """Return up to three names and aliases of published models that are similar to a name, the most similar first.

    Args:
        name: The name.
        likeness: Minimum similarity, from 0 to 1.
    """
    return difflib.get_close_matches(name, list(_by_name()), n=3, cutoff=likeness)


def list_models(*, language: str | None = None, domain: str | None = None) -> list[CatalogModel]:
    """List the published models.

    Args:
        language: Code of a language, such as "ru", or its name in English, Chinese or the language itself.
        domain: Kind of the training text, such as "news" or "biomedical".

    Example:
        >>> {model.language for model in list_models(language="Russian")}
        {'ru'}
    """
    models = _read_table()
    if language is not None:
        codes = find_languages(language)
        if not codes:
            known = ", ".join(sorted({model.language for model in models if model.language}))
            raise ConfigError(f"language must be one of {known}, or the name of one; found {language[:40]!r}")
        models = tuple(model for model in models if model.language in codes)
    if domain is not None:
        known = sorted({name for model in _read_table() for name in model.domains})
        if domain.casefold() not in known:
            raise ConfigError(f"domain must be one of {', '.join(known)}; found {domain[:40]!r}")
        models = tuple(model for model in models if domain.casefold() in model.domains)
    return list(models)


@cache
def _read_table() -> tuple[CatalogModel, ...]:
    return tuple(parse_model(json.loads(line)) for line in _TABLE.read_text(encoding="utf-8").splitlines())


@cache
def _by_name() -> Mapping[str, CatalogModel]:
    return {name: model for model in _read_table() for name in (model.name, *model.aliases)}


def parse_model(values: Mapping[str, Any]) -> CatalogModel:
    """Return the model of a line of the table."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    files = [CatalogFile(**{**file, "urls": tuple(file["urls"])}) for file in values.get("files", ())]
    shape = values.get("shape")
    model = CatalogModel(**{**fields, "files": tuple(files), "shape": NetworkSizes(**shape) if shape else None})
    assert model.language is None or model.language in LANGUAGES, model.name  # noqa: S101 -- the table is ours
    return model
