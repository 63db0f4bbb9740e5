"""``elmo serve``: serve models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import options_from

EXAMPLES = opt.examples(
    "elmo serve",
    "elmo serve en zh --port 9000 --workers 2",
    "elmo serve path/to/model --index usages",
    "ELMO_API_KEY=… elmo serve --host 0.0.0.0",
)


@options_from(
    "elmo.serve.options:ServeOptions",
    skip=("models", "indexes", "corpora", "allowed_hosts", "cors_origins", "dtype"),
    metavars={"host": "ADDRESS", "api_key_file": "FILE"},
    panels={
        "Access": ("api_key_file", "allow_anonymous"),
        "Limits": ("max_body_mb", "max_inputs", "max_tokens", "max_reply_mb", "max_memory_mb", "max_wait", "timeout"),
    },
)
def command(
    models: Annotated[
        list[str] | None, opt.argument(
            metavar="[MODEL]...",
            help=f"Models to serve; default: those of the indexes, or en. {opt.MODEL_HELP}",
        ),
    ] = None,
    *,
    index: Annotated[
        list[Path] | None,
        opt.option("--index", metavar="FOLDER", help="Index written by 'elmo index'; may be repeated."),
    ] = None,
    precision: opt.Precision = "float32",
    allowed_host: Annotated[
        list[str] | None,
        opt.option(
            metavar="NAME", rich_help_panel="Access",
            help="Another host name that requests may use; may be repeated.",
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        opt.option(
            metavar="ORIGIN", rich_help_panel="Access",
            help="Origin, such as https://example.org, whose web pages may use the service; may be repeated.",
        ),
    ] = None,
    **options: Any,
) -> None:  # fmt: skip
    """Serve words in context over HTTP."""
    from elmo.serve import ServeOptions, serve

    if index and not models:
        from elmo.lexicon.index import find_models

        models = list(find_models(index))

    serve(
        ServeOptions(
            models=tuple(models or ("en",)), indexes=tuple(index or ()), dtype=precision,
            allowed_hosts=tuple(allowed_host or ()), cors_origins=tuple(cors_origin or ()), **options,
        ),
        on_ready=lambda url: logger.info("serving at %s; press Ctrl-C to stop", url),
    )  # fmt: skip
