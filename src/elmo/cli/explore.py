"""``elmo explore``: see words in context in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger

EXAMPLES = opt.examples(
    "elmo explore",
    "elmo explore path/to/model --index usages",
    "elmo explore --corpus 1850s=old.txt --corpus 1950s=new.txt",
    "elmo explore en --export site",
    "elmo explore en --export page.html",
)


def command(
    models: Annotated[
        list[str] | None,
        opt.argument(
            metavar="[MODEL]...",
            help=f"Models to explore; default: those of the indexes, or en and zh. {opt.MODEL_HELP}",
        ),
    ] = None,
    *,
    index: Annotated[
        list[Path] | None,
        opt.option("--index", metavar="FOLDER", help="Index written by 'elmo index'; may be repeated."),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        opt.option("--corpus", metavar="NAME=FILE", help="A period and its text, in order of time; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0: a free port.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the default browser.")] = True,
    export: Annotated[
        Path | None,
        opt.option(
            "--export", metavar="FOLDER|FILE.html",
            help="Write a static site that needs no server, as a folder or as a single file, and exit.",
        ),
    ] = None,
    words: Annotated[
        int, typer.Option(min=1, metavar="N", help="Words of a corpus to export.")
    ] = 100,
    onnxruntime: Annotated[
        Path | None,
        opt.option(
            "--onnxruntime", metavar="FOLDER",
            help="npm package onnxruntime-web for --export; default: from node_modules, or downloaded.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """See words in context in a browser, with typed sentences or a corpus."""
    import webbrowser

    from elmo.serve import ServeOptions, default_models, serve

    corpora = tuple(_parse_corpus(value) for value in corpus or ())
    if len(corpora) == 1:
        raise typer.BadParameter("--corpus: two or more periods are needed; found one")
    chosen = tuple(models or _find_models(index) or default_models())
    if export is not None:
        from elmo.serve.export import ExportOptions, export_site

        contents = ExportOptions(
            models=chosen, indexes=tuple(index or ()), corpora=corpora, n_words=words,
            onnxruntime=onnxruntime,
        )  # fmt: skip
        site = export_site(export, contents)
        page = export / "index.html" if export.is_dir() else export
        logger.info("wrote %s: %.1f MB; to see it, open %s in a browser", export, site.n_bytes / 1e6, page)
        return

    def open_page(url: str) -> None:
        logger.info("the explorer is at %s/explore/; press Ctrl-C to stop", url)
        if browser:
            webbrowser.open(f"{url}/explore/")

    options = ServeOptions(
        models=chosen,
        indexes=tuple(index or ()),
        corpora=corpora,
        port=port,
        max_wait=30.0,  # for one person, waiting is better than an error; the page cancels outdated requests
        access_log=False,
    )
    serve(options, on_ready=open_page)


def _find_models(indexes: list[Path] | None) -> tuple[str, ...]:
    """Return the models that the indexes were built with."""
    if not indexes:
        return ()
    from elmo.lexicon.index import find_models

    return find_models(indexes)


def _parse_corpus(value: str) -> tuple[str, Path]:
    name, separator, path = value.partition("=")
    if not separator or not name or not path:
        raise typer.BadParameter(f"--corpus: expected NAME=FILE, found {value[:60]!r}")
    if not Path(path).exists():
        raise typer.BadParameter(f"--corpus: no such file: {path}")
    return name, Path(path)
