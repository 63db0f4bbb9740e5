"""A model in, the text of its card out: the ``README.md`` that the Hugging Face Hub shows."""

from __future__ import annotations

import re
from typing import Any

from elmo.config import n_parameters
from elmo.formats.pretrained import Pretrained

_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,40}")


def model_card(model: Pretrained, *, dtype: str) -> str:
    """Front matter for the Hub, sizes and an example; language and licence where the metadata tell."""
    config, lstm = model.config, model.config.lstm
    token_layer = {
        (True, False): "characters", (False, True): "words", (True, True): "words and characters",
    }[config.chars is not None, config.words is not None]  # fmt: skip
    front = [
        "library_name: pyelmo",
        "pipeline_tag: feature-extraction",
        "tags:",
        "- elmo",
        "- bilm",
        "- word-embeddings",
    ]
    meta = model.metadata.get("meta")  # NLPL's notes
    notes = {**(meta if isinstance(meta, dict) else {}), **model.metadata}
    for key, names in (("language", ("language", "languages")), ("license", ("license", "licence"))):
        found = [tag for name in names for tag in _tags(notes.get(name))]
        if len(found) == 1:
            front.append(f'{key}: "{found[0]}"')
        elif found and key == "language":
            front += [f"{key}:", *(f'- "{tag}"' for tag in found)]
    rows = [
        ("Parameters", f"{n_parameters(config):,}"),
        ("Token layer", f"{token_layer}" + (f" ({config.alphabet})" if config.alphabet else "")),
        ("Layers", f"{config.n_layers}: the token layer and {lstm.n_layers} of LSTMs"),
        ("Width of a vector", f"{config.width}"),
        ("LSTM cells", f"{lstm.cell_width} in each direction"),
        ("Vocabulary", "none" if model.vocab is None else f"{len(model.vocab):,} words"),
        ("Output layer (softmax)", "yes" if model.softmax else "no"),
        ("Numbers", dtype),
    ]
    origin = model.metadata.get("converted_from", model.format)
    if origin != "elmo":  # one of our own was not converted
        rows.append(("Converted from", str(origin)))
    if "sharpened" in model.metadata:
        rows.append(("Vectors", "turned by `elmo sharpen`, so that their angles tell senses apart"))
    return "\n".join([
        "---", *front, "---", "",
        "# ELMo: word vectors in context", "",
        "A bidirectional language model ([Peters et al. 2018](https://arxiv.org/abs/1802.05365)).", "",
        "```python",
        "from elmo import Elmo  # pip install pyelmo", "",
        'elmo = Elmo.from_pretrained("path/to/this/folder")  # or its Hub id',
        'vectors = elmo.encode("I sat by the bank of the river .").vectors  # (time, width)',
        "```", "",
        "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows), "",
        "`sha256sum -c SHA256SUMS` checks the files; so does loading.", "",
    ])  # fmt: skip


def _tags(value: Any) -> list[str]:
    """What can stand in front matter: short tags, nothing that could end it."""
    values = value if isinstance(value, list | tuple) else [value]
    return [tag for tag in values if isinstance(tag, str) and _TAG.fullmatch(tag)]


def _cell(value: str) -> str:
    """Text as one cell of a table; a lone surrogate could not be written."""
    return " ".join(value.replace("|", "\\|").split()).encode("utf-8", "replace").decode()[:200]
