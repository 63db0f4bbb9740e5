"""``elmo cache``: list the downloaded models, or remove them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.results import print_results

EXAMPLES = opt.examples("elmo cache", "elmo cache --clean", "elmo cache --remove nlpl/166 --remove allenai/small")


def command(
    remove: Annotated[
        list[str] | None, opt.option(metavar="NAME", help="Remove the files of this model; may be repeated.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove unfinished downloads.")] = False,
    forget: Annotated[
        list[str] | None,
        opt.option(
            metavar="NAME",
            help="Also forget the checksums of this model, to accept other files from its publisher; may be repeated.",
        ),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """List the models that were downloaded or added by hand, or remove downloads.

    Files that you have added by hand are never removed.
    """
    from elmo.catalog import cache_folder, list_cached, remove_cached

    n_bytes = 0
    if clean:
        n_bytes += remove_cached([cached.name for cached in list_cached()], unfinished_only=True)
        if not n_bytes:
            logger.info("no unfinished downloads were removed")
    if remove:
        n_bytes += remove_cached(remove)
    if forget:
        n_bytes += remove_cached(forget, forget=True)
    if n_bytes:
        logger.info("freed %s MB", f"{n_bytes / 1e6:,.1f}")
    models = list_cached()
    rows = [f"{m.name:30} {m.state:10} {m.n_bytes / 1e6:9,.1f} MB  {m.folder}" for m in models]
    values = {"folder": cache_folder(), "models": [{**asdict(m), "folder": str(m.folder)} for m in models]}
    print_results(values, rows or [f"no models in {cache_folder()}"], as_json=as_json)
