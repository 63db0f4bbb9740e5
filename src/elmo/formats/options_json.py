"""A published ``options.json`` (bilm-tf, AllenNLP, NLPL, SeqVec) in, configs out; and the way back.

Published option names stop here: ``lstm.dim`` is our ``cell_width``, ``lstm.projection_dim`` our
``state_width``, ``lstm.proj_clip`` our ``state_clip``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from elmo.config import (
    MAX_CHARACTERS,
    MAX_FILTERS,
    MAX_LAYERS,
    MAX_WIDTH,
    BiLmConfig,
    CharCnnConfig,
    LstmConfig,
    WordConfig,
)
from elmo.errors import OutputError, raise_all
from elmo.storage.files import read_json, shown

N_CHARACTERS = 261  # rows of char_embed: 256 bytes and 5 special characters, the mask not counted
_MAX_CLIP = 3e38


@dataclass(frozen=True)
class Options:
    """What an options file says: the network's parts, and what only its training needed."""

    chars: CharCnnConfig | None
    lstm: LstmConfig
    training: Mapping[str, Any] = field(
        default_factory=dict
    )  # top-level keys as they stood, unknown ones too

    def config(self, *, n_words: int | None = None) -> BiLmConfig:
        """The whole network; ``n_words`` says that it reads a table of words in place of characters."""
        if n_words is None:
            return BiLmConfig(
                chars=self.chars, words=None, lstm=self.lstm, alphabet="bytes" if self.chars else None
            )
        words = WordConfig(n_words, self.lstm.state_width)
        return BiLmConfig(chars=None, words=words, lstm=self.lstm, alphabet=None)


def read_options(path: Path) -> Options:
    """Read an options file; every fault in it is named in one ``FormatError``."""
    return options_from_json(read_json(path), subject=shown(path))


def options_from_json(values: Any, *, subject: str) -> Options:
    """From the values of an options file; keys that mean nothing here are kept aside, not refused."""
    problems: list[str] = []
    top = _Fields(values, "", problems)
    if top.values.get("bidirectional") is False:
        problems.append("bidirectional is false: only models of both directions are read")
    lstm = _lstm(top.part("lstm"))
    chars = _char_cnn(top.part("char_cnn")) if top.values.get("char_cnn") is not None else None
    raise_all(problems, subject=subject)
    return Options(
        chars, lstm, {key: value for key, value in top.values.items() if key not in ("lstm", "char_cnn")}
    )


def options_to_json(options: Options) -> dict[str, Any]:
    """As AllenNLP 0.9, bilm-tf and simple_elmo read it: they count 262 characters, the mask among them."""
    chars, lstm = options.chars, options.lstm
    if chars is not None and chars.n_characters != N_CHARACTERS:
        raise OutputError(f"options.json: expected {N_CHARACTERS} characters, found {chars.n_characters}")
    values: dict[str, Any] = {
        key: v for key, v in options.training.items() if key not in ("lstm", "char_cnn")
    }
    values["lstm"] = {
        "dim": lstm.cell_width,
        "projection_dim": lstm.state_width,
        "n_layers": lstm.n_layers,
        "cell_clip": lstm.cell_clip,
        "proj_clip": lstm.state_clip,
        "use_skip_connections": lstm.has_skip,
    }
    if chars is not None:
        values["char_cnn"] = {
            "activation": chars.activation,
            "embedding": {"dim": chars.char_width},
            "filters": [list(pair) for pair in chars.filters],
            "n_highway": chars.n_highway,
            "n_characters": N_CHARACTERS + 1,
            "max_characters_per_token": chars.max_characters,
        }
    return values


def _lstm(lstm: _Fields) -> LstmConfig:
    n_problems = len(lstm.problems)
    dim = lstm.integer("dim", 1, MAX_WIDTH)
    projection_dim = lstm.integer("projection_dim", 1, MAX_WIDTH)
    if projection_dim > dim and len(lstm.problems) == n_problems:
        lstm.problems.append(
            f"lstm.projection_dim {projection_dim} must not exceed lstm.dim {dim}: its layers would not stack"
        )
    return LstmConfig(
        n_layers=lstm.integer("n_layers", 1, MAX_LAYERS, default=1),
        cell_width=dim,
        state_width=projection_dim,
        cell_clip=lstm.clip("cell_clip"),
        state_clip=lstm.clip("proj_clip"),
        has_skip=lstm.boolean("use_skip_connections"),
        forget_bias=1.0,  # TensorFlow's LSTMCell adds it as it runs, and AllenNLP as it loads
    )


def _char_cnn(cnn: _Fields) -> CharCnnConfig:
    # 261 in files that training wrote, 262 in those for inference, which count the mask too
    cnn.integer("n_characters", N_CHARACTERS, N_CHARACTERS + 1, default=N_CHARACTERS + 1)
    max_characters = cnn.integer("max_characters_per_token", 3, MAX_CHARACTERS, default=50)
    activation: Literal["relu", "tanh"] = "tanh" if cnn.values.get("activation") == "tanh" else "relu"
    if cnn.values.get("activation") != activation:
        cnn.problems.append(
            f"char_cnn.activation: expected 'relu' or 'tanh', found {cnn.values.get('activation')!r:.40}"
        )
    return CharCnnConfig(
        n_characters=N_CHARACTERS,
        char_width=cnn.part("embedding").integer("dim", 1, MAX_WIDTH),
        filters=_filters(cnn, max_characters),
        n_highway=cnn.integer("n_highway", 0, MAX_LAYERS, default=0),
        activation=activation,
        max_characters=max_characters,
    )


def _filters(cnn: _Fields, max_characters: int) -> tuple[tuple[int, int], ...]:
    pairs = cnn.values.get("filters")
    is_list = isinstance(pairs, list) and 0 < len(pairs) <= MAX_FILTERS
    found: list[tuple[int, int]] = []
    for pair in pairs if isinstance(pairs, list) and is_list else ():
        match pair:
            case [int(width), int(count)] if 1 <= width <= max_characters and 1 <= count <= MAX_WIDTH:
                found.append((width, count))
            case _:
                is_list = False
    if not is_list or sum(count for _, count in found) > MAX_WIDTH:
        cnn.problems.append(
            f"char_cnn.filters: expected 1..{MAX_FILTERS} pairs [width, count] of at most {max_characters} "
            f"characters and {MAX_WIDTH} filters together, found {pairs!r:.80}"
        )
    return tuple(found)


class _Fields:
    """An object of the options file: each look-up gives a value of the right type, or notes a problem."""

    def __init__(self, values: Any, where: str, problems: list[str]) -> None:
        self.where = where
        self.problems = problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        if not isinstance(values, dict):
            problems.append(f"{where.rstrip('.') or 'the file'}: expected an object, found {values!r:.40}")
            self.problems = []  # that its keys are missing too says nothing more

    def part(self, key: str) -> _Fields:
        """An object in this object."""
        return _Fields(self.values.get(key), f"{self.where}{key}.", self.problems)

    def integer(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        """A whole number in a range; a key that is not there, or null, gives the default, if there is one."""
        value = default if self.values.get(key) is None else self.values[key]
        if type(value) is int and low <= value <= high:
            return value
        shown_value = f"{value!r:.40}" if key in self.values else "none"
        self.problems.append(
            f"{self.where}{key}: expected a whole number in {low}..{high}, found {shown_value}"
        )
        return low

    def clip(self, key: str) -> float | None:
        """A bound for values, or none."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_CLIP:
            return float(value)
        self.problems.append(f"{self.where}{key}: expected a positive number or null, found {value!r:.40}")
        return None

    def boolean(self, key: str) -> bool:
        """True or false; false when it is not there."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{self.where}{key}: expected true or false, found {value!r:.40}")
        return False
