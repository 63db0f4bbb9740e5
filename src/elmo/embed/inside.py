"""Look inside the network: the intermediate values of one token, from its characters to the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmo.embed.elmo import Elmo, as_tokens
from elmo.errors import DataError
from elmo.text.ids import ByteAlphabet, UnicodeAlphabet
from elmo.text.tokenizers import Tokens

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SpelledCharacter:
    """A character of a token, and the ids that the network reads for it; special characters have names like <eow>."""

    character: str
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FilterGroup:
    """The convolution filters of one width: the maximum of each over the positions, and where it was found.

    Attributes:
        width: Width of the filters, in character ids.
        values: Maximum of each filter after the activation, (filter,).
        positions: First position of the window with the maximum, (filter,).
    """

    width: int
    values: Floats
    positions: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Inside:
    """The intermediate values of a network for one sentence, and for one of its tokens.

    Attributes:
        sentence: The tokens of the sentence.
        token: Number of the token whose vector is shown in steps.
        characters: The characters of the token; empty for a model without characters.
        filters: The convolution filters by width; empty for a model without characters.
        highways: The features before the first and after each highway layer, (step, filter).
        token_vector: The context-independent vector of the token, (width / 2,).
        layers: All layers of all tokens, (layer, time, width): the forward half, then the backward half.
    """

    sentence: Tokens
    token: int
    characters: tuple[SpelledCharacter, ...]
    filters: tuple[FilterGroup, ...]
    highways: tuple[Floats, ...]
    token_vector: Floats
    layers: Floats

    def to_json(self) -> dict[str, Any]:
        """Return the values as a dictionary; arrays stay NumPy arrays."""
        return {
            "tokens": self.sentence.tokens,
            "token": self.token,
            "characters": [{"character": item.character, "ids": item.ids} for item in self.characters],
            "filters": [
                {"width": group.width, "n": len(group.values), "values": group.values, "positions": group.positions}
                for group in self.filters
            ],
            "highways": list(self.highways),
            "token_vector": self.token_vector,
            "layers": self.layers,
        }


@torch.inference_mode()
def look_inside(elmo: Elmo, sentence: str | list[str], *, token: int = 0) -> Inside:
    """Compute the intermediate values of a sentence.

    Args:
        elmo: The model.
        sentence: A sentence, as text or as a list of tokens.
        token: Number of the token whose vector is shown in steps, from 0.

    Example:
        >>> inside = look_inside(elmo, "The bank gave her a loan.", token=1)
        >>> len(inside.token_vector) == elmo.width // 2  # before it is doubled for the two directions
        True
    """
    tokens = as_tokens(sentence, elmo.tokenizer, subject="the sentence")
    if not len(tokens):
        raise DataError("the sentence must have at least one token; found none")
    if not 0 <= token < len(tokens):
        raise DataError(f"token must be in 0..{len(tokens) - 1}; found {token}")
    layers = cast("Floats", elmo.unaligned().encode(tokens, layers="all", dtype="float32").vectors)
    batch = elmo.batch([[tokens.tokens[token]]])
    position = 1  # after the start of the sentence
    cnn = elmo.bilm.token_layer.cnn
    characters: tuple[SpelledCharacter, ...] = ()
    filters: list[FilterGroup] = []
    steps: list[Tensor] = []
    if cnn is not None and batch.char_ids is not None:
        ids = torch.as_tensor(np.asarray(batch.char_ids))[0, position]
        characters = _describe_characters(elmo, tokens.tokens[token], ids.tolist())
        embedded = cnn.char_embed(ids.to(elmo.device)[None]).transpose(1, 2)  # (1, char_width, char)
        for convolution in cnn.convolutions:
            values, positions = convolution(embedded)[0].max(dim=1)
            width = cast("nn.Conv1d", convolution).kernel_size[0]
            filters.append(FilterGroup(width, _array(cnn.activation(values)), positions.cpu().numpy()))
            steps.append(cnn.activation(values))
        steps = [torch.cat(steps)[None]]
        for highway in cnn.highways:
            steps.append(highway(steps[-1]))
    half = layers.shape[2] // 2
    # layer 0 of both directions is the vector of the token layer
    return Inside(
        tokens, token, characters, tuple(filters), tuple(_array(step[0]) for step in steps), layers[0, token, :half],
        layers,
    )  # fmt: skip


def _array(values: Tensor) -> Floats:
    return values.float().cpu().numpy()


def _describe_characters(elmo: Elmo, token: str, ids: list[int]) -> tuple[SpelledCharacter, ...]:
    """Assign the ids of a row to the characters of the token."""
    alphabet = elmo.indexer.alphabet
    spelled = alphabet.lookup_form(token) if alphabet is not None else token
    is_bytes = isinstance(alphabet, ByteAlphabet)
    n_special = {name: getattr(alphabet, name) for name in ("bow", "eow", "pad")} if alphabet is not None else {}
    items: list[SpelledCharacter] = []
    if isinstance(alphabet, UnicodeAlphabet):
        first, last = "<eow>", "<bow>"  # ELMoForManyLangs swaps the boundaries of words
    else:
        first, last = "<bow>", "<eow>"
    items.append(SpelledCharacter(first, (ids[0],)))
    position = 1
    for character in spelled:
        size = len(character.encode("utf-8", "ignore")) if is_bytes else 1
        if not size or position + size >= len(ids):
            break
        items.append(SpelledCharacter(character, tuple(ids[position : position + size])))
        position += size
    if position < len(ids):
        items.append(SpelledCharacter(last, (ids[position],)))
    n_padding = sum(value == n_special.get("pad") for value in ids[position + 1 :])
    if n_padding:
        items.append(SpelledCharacter("<pad>", tuple(ids[-n_padding:])))
    return tuple(items)
