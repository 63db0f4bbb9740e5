"""``elmo models``: list the published models, or describe one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.results import print_results

if TYPE_CHECKING:
    from elmo.catalog import CatalogModel

EXAMPLES = opt.examples("elmo models --language ru", "elmo models --domain biomedical --json", "elmo models nlpl/166")

_HEADER = ("name", "language", "domain", "format", "license", "get it by")
_AVAILABILITY = {
    "download": "download",
    "hub": "download",
    "by hand": "hand",
    "copy": "using {same_as}",
    "unsupported": "(cannot be read)",
}
_MAX_LICENSE = 16  # characters in the list


def command(
    name: Annotated[
        str | None, opt.argument(metavar="NAME", help="Describe the model with this name in place of the list.")
    ] = None,
    language: Annotated[
        str | None, opt.option(metavar="LANGUAGE", help="Only models of a language: a code such as ru, or its name.")
    ] = None,
    domain: Annotated[
        str | None, opt.option(metavar="DOMAIN", help="Only models of a kind of text, such as news or biomedical.")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """List the published models that can be used by name, or describe one."""
    from elmo.catalog.models import get_model, list_models

    if name is not None:
        if language is not None or domain is not None:
            raise typer.BadParameter("NAME cannot be combined with --language or --domain")
        model = get_model(name)
        rows = _describe(model)
        width = max(len(label) for label, _ in rows)
        print_results(_values(model), [f"{label:{width}}  {text}".rstrip() for label, text in rows], as_json=as_json)
        return
    models = list_models(language=language, domain=domain)
    print_results([_values(model) for model in models], _table(models), as_json=as_json)


def _values(model: CatalogModel) -> dict[str, Any]:
    return {**asdict(model), "availability": model.availability}


def _table(models: list[CatalogModel]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEADER]
    for model in models:
        license_name = model.license or "not stated"
        short = license_name if len(license_name) <= _MAX_LICENSE else "see the model"
        how = _AVAILABILITY[model.availability].format(same_as=model.same_as)
        rows.append((model.name, model.language or "–", ", ".join(model.domains), model.format, short, how))
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEADER))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _describe(model: CatalogModel) -> list[tuple[str, str]]:
    from elmo.catalog.cache import ModelCache
    from elmo.catalog.languages import LANGUAGES, language_name

    code = model.language
    names = [language_name(code)] if code is None else [code, *dict.fromkeys(LANGUAGES[code])]
    shape = model.shape
    rows = [
        ("name", model.name),
        ("other names", ", ".join(model.aliases)),
        ("publisher", model.publisher),
        ("language", ", ".join(names)),
        ("domain", ", ".join(model.domains)),
        ("corpus", model.corpus + (f"; {model.tokens} tokens" if model.tokens else "")),
        ("format", model.format),
        ("network", shape and f"{shape.layers} layers, {shape.cells:,} cells, states {shape.width} wide"),
        ("also has", ", ".join(model.contains)),
        ("size", f"{model.size_mb:,g} MB" if model.size_mb else "not stated"),
        ("license", model.license or "not stated"),
        ("input", model.input),
        ("tokenizer", model.tokenizer),
        ("cite", model.cite or f"{model.publisher} (no publication is stated)"),
        ("get it by", _how(model, str(ModelCache(model).by_hand))),
        ("note", model.note),
    ]
    listed = [(label, text) for label, text in rows if text]
    files = [f"{file.name}  {url}" for file in model.files for url in file.urls]
    return listed + [("files" if k == 0 else "", line) for k, line in enumerate(files)]


def _how(model: CatalogModel, folder: str) -> str:
    match model.availability:
        case "download":
            return f"elmo download {model.name}"
        case "hub":
            return f"elmo download {model.name} (from the Hugging Face Hub: {model.hub})"
        case "by hand":
            return f"fetching {model.by_hand}, and putting it into {folder}"
        case "copy":
            return f"loading {model.same_as}, which has the same weights; this is {model.unsupported}"
        case _:
            return f"not supported: elmo cannot read {model.unsupported}"
