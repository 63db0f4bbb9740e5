"""``elmo download``: download published models into the cache."""

from __future__ import annotations

from typing import Annotated, Any

from elmo.cli import options as opt
from elmo.cli.generate import options_from
from elmo.cli.results import print_results

EXAMPLES = opt.examples("elmo download allenai/original", "elmo download nlpl/166 hit/zhs --max-gb 2")


@options_from("elmo.formats.pretrained:fetch")
def command(
    names: Annotated[
        list[str], opt.argument(metavar="NAME", help="Names of published models (see 'elmo models'), or Hub ids.")
    ],
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Download published models, verify their checksums, and print their folders.

    A download that was interrupted continues. All commands find the models by their names, without the network.
    """
    from elmo.formats import fetch

    folders = {name: str(fetch(name, **options)) for name in names}
    print_results(folders, folders.values(), as_json=as_json)
