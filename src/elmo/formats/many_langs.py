"""An ELMoForManyLangs folder in, config, weights and dictionaries out.

EFML (HIT-SCIR/ELMoForManyLangs) keeps its training arguments in ``config.json``, which names an architecture
file that most published folders lack, its dictionaries in ``char.dic`` and ``word.dic``, and its weights in
``token_embedder.pkl`` and ``encoder.pkl``, with the softmax in ``classifier.pkl`` where its author saved it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo.config import filters_from_json
from elmo.errors import ConfigError, FormatError, raise_all
from elmo.formats.containers.state_dict import StateDict, open_state_dict
from elmo.formats.files import member, names, read_json, read_lines, shown
from elmo.formats.many_langs_network import (
    CHAR_TABLE,
    WORD_TABLE,
    Architecture,
    inferred,
    mismatches,
    read_weights,
    to_config,
)
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.text.alphabet import UnicodeAlphabet
from elmo.text.vocab import Vocabulary

NAME = "ELMoForManyLangs"
SPECIAL_WORDS = ("<oov>", "<bos>", "<eos>", "<pad>")
_TOKENS, _ENCODER, _CLASSIFIER = "token_embedder.pkl", "encoder.pkl", "classifier.pkl"
_PUBLISHED = (
    "cnn_50_100_512_4096_sample.json"  # EFML's own sample, which its published models were trained with
)
_MAX_TOKENS = 1 << 19  # of a dictionary; EFML's were counted on 20 million words of text
_NEVER_PUBLISHED = "only the 'cnn' token embedder under the 'elmo' encoder was ever published"


def is_here(folder: Path) -> bool:
    """Whether a folder looks like EFML's."""
    return not {_TOKENS, _ENCODER}.isdisjoint(names(folder))


def read(folder: Path) -> Pretrained:
    """The model in an EFML folder."""
    tokens = open_state_dict(member(folder, _TOKENS))
    encoder = open_state_dict(member(folder, _ENCODER))
    if "char_lstm.weight_ih_l0" in tokens.tensors or "encoder.weight_ih_l0" in encoder.tensors:
        raise FormatError(f"{shown(folder)}: {_NEVER_PUBLISHED}, found an LSTM in place of one")
    architecture, origin = _architecture(folder, tokens, encoder)
    n_words, n_characters = _n_rows(tokens, WORD_TABLE), _n_rows(tokens, CHAR_TABLE)
    try:
        # a table that is missing is reported below, by its name
        config = to_config(architecture, n_words=n_words or 1, n_characters=n_characters or 1)
    except ConfigError as error:
        raise FormatError(f"{shown(folder)}: {error}") from error
    raise_all(mismatches(architecture, tokens, encoder), subject=f"{shown(folder)} ({shown(origin)})")

    characters = {name: i for i, name in enumerate(UnicodeAlphabet.SPECIAL)}
    if architecture.char_width:
        characters = _read_dictionary(
            folder, "char.dic", n_rows=n_characters, special=UnicodeAlphabet.SPECIAL
        )
    classifier = None
    if _CLASSIFIER in names(folder):
        classifier = open_state_dict(member(folder, _CLASSIFIER))
    softmax_names = _softmax_names(classifier, architecture)
    n_classes = classifier.shapes[softmax_names[0]][0] if classifier and softmax_names else 0
    ids: dict[str, int] = {}
    if architecture.word_width or n_classes:
        n_rows = n_words if architecture.word_width else n_classes
        ids = _read_dictionary(folder, "word.dic", n_rows=n_rows, special=SPECIAL_WORDS)
    words = sorted(ids, key=ids.__getitem__)
    rows = [ids[word] for word in words]
    softmax = None
    if classifier and softmax_names and rows == list(range(n_classes)):
        weight, bias = softmax_names
        softmax = SoftmaxWeights(classifier.read(weight), classifier.read(bias).flatten())
    return Pretrained(
        config=config,
        weights=read_weights(
            architecture, tokens, encoder, config=config, word_rows=rows if architecture.word_width else None
        ),
        format=NAME,
        vocab=(
            Vocabulary(tuple(words), bos="<bos>", eos="<eos>", unknown="<oov>")
            if architecture.word_width or softmax
            else None
        ),
        characters=characters,
        softmax=softmax,
        metadata={"architecture": origin},
    )


def _architecture(folder: Path, tokens: StateDict, encoder: StateDict) -> tuple[Architecture, str]:
    """The architecture, and where it is from: a file of this folder, or the shapes of its weights.

    EFML would follow ``config_path`` anywhere, and nearly all published folders name a file on their author's
    disk. We follow it inside the folder only, and look for its last part beside ``config.json`` and in
    ``configs``.
    """
    arguments = read_json(member(folder, "config.json"))
    if not isinstance(arguments, dict):
        raise FormatError(
            f"{shown(folder / 'config.json')}: expected an object, found {type(arguments).__name__}"
        )
    path = arguments.get("config_path")
    path = path.replace("\\", "/") if isinstance(path, str) else ""
    name = path.rpartition("/")[2]
    candidates = [] if name in ("", ".", "..") else [name, f"configs/{name}"]
    is_inside = not path.startswith("/") and ":" not in path and ".." not in path.split("/")
    if candidates and is_inside:
        candidates.insert(0, path)
    for candidate in (*candidates, _PUBLISHED, f"configs/{_PUBLISHED}"):
        if candidate != "config.json" and os.path.lexists(folder / candidate):
            return _from_json(read_json(member(folder, candidate)), f"{shown(folder / candidate)}"), candidate
    return inferred(tokens.shapes, encoder.shapes), "inferred from the shapes of the weights"


def _from_json(values: Any, subject: str) -> Architecture:
    """An architecture file's values, with every mistake in them reported at once."""
    problems: list[str] = []

    def section(name: str) -> Mapping[str, Any]:
        found = values.get(name) if isinstance(values, dict) else None
        if not isinstance(found, dict):
            problems.append(f"expected an object {name!r}, found none")
            return {}
        return found

    def get(part: Mapping[str, Any], key: str, *kinds: type) -> Any:
        found = part.get(key)
        if key not in part or type(found) not in kinds:
            what = f"{found!r:.40}" if key in part else "none"
            problems.append(f"expected {key} as {' or '.join(kind.__name__ for kind in kinds)}, found {what}")
            return kinds[0]()
        return found

    encoder, tokens = section("encoder"), section("token_embedder")
    for part, expected in ((tokens, "cnn"), (encoder, "elmo")):
        if part and str(part.get("name")).lower() != expected:
            problems.append(
                f"{_NEVER_PUBLISHED}, found {str(part.get('name'))!r:.40} in place of {expected!r}"
            )
    word_width, char_width = get(tokens, "word_dim", int), get(tokens, "char_dim", int)
    filters: tuple[tuple[int, int], ...] = ()
    n_highway, activation = 0, "relu"
    if char_width > 0:
        n_highway, activation = get(tokens, "n_highway", int), get(tokens, "activation", str)
        try:
            filters = filters_from_json(tokens.get("filters"))
        except ConfigError as error:
            problems.append(str(error))
    found = Architecture(
        word_width=max(word_width, 0),
        char_width=max(char_width, 0),
        filters=filters,
        n_highway=n_highway,
        activation=activation,
        max_characters=get(tokens, "max_characters_per_token", int),
        state_width=get(encoder, "projection_dim", int),
        cell_width=get(encoder, "dim", int),
        n_layers=get(encoder, "n_layers", int),
        # EFML does not clip at 0
        cell_clip=get(encoder, "cell_clip", float, int, type(None)) or None,
        state_clip=get(encoder, "proj_clip", float, int, type(None)) or None,
    )
    if not found.word_width and not found.char_width:
        problems.append("expected char_dim or word_dim above 0, found neither")
    raise_all(problems, subject=subject)
    return found


def _read_dictionary(folder: Path, name: str, *, n_rows: int, special: tuple[str, ...]) -> dict[str, int]:
    r"""Tokens and their rows in a table: lines ``token\tid``.

    EFML strips each line, so that U+3000 comes out as nothing and its line as a single field; a single field
    therefore means U+3000, here as there. We strip nothing else: a no-break space stays the token it was in
    training. As in EFML, the table has as many rows as there are tokens, in any order; two tokens may share a
    row, and then some other row is never used.
    """
    path = member(folder, name)
    ids: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(read_lines(path, max_lines=min(n_rows + 1, _MAX_TOKENS)), start=1):
        token, _, digits = line.removesuffix("\r").rpartition("\t")
        token = token or "\u3000"
        row = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
        if not 0 <= row < n_rows:
            problems.append(
                f"line {number}: expected a token, a tab and an id below {n_rows}, found {line!r:.60}"
            )
        elif token in ids:
            problems.append(f"line {number}: {token!r:.40} stands twice")
        ids[token] = row
        if len(problems) > 20:
            break
    missing = [token for token in special if token not in ids]
    if missing and not problems:
        problems.append(f"expected {', '.join(missing)}, found none")
    if len(ids) != n_rows and not problems:
        problems.append(f"expected {n_rows} tokens, one for each row of its table, found {len(ids)}")
    raise_all(problems, subject=shown(path))
    return ids


def _n_rows(tokens: StateDict, table: str) -> int:
    shape = tokens.shapes.get(table, ())
    return shape[0] if shape else 0


def _softmax_names(classifier: StateDict | None, of: Architecture) -> tuple[str, str] | None:
    """Names of weight and bias in EFML's full or sampled softmax; None for any other.

    None too where the softmax is not on the top: EFML's training feeds it from the second LSTM layer, however
    many there are. The sampled softmax's ``oov_column`` is never used: unknown words have a row of their own.
    """
    shapes = classifier.shapes if classifier is not None and of.n_layers == 2 else {}
    for weight, bias in (
        ("hidden2tag.weight", "hidden2tag.bias"),
        ("column_emb.weight", "column_bias.weight"),
    ):
        match shapes.get(weight):
            case (n_rows, of.state_width) if shapes.get(bias) in ((n_rows,), (n_rows, 1)):
                return weight, bias
    return None
