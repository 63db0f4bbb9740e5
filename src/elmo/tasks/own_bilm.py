"""A biLM in, the tensors that a task model's file keeps of it out; and back, with nothing else at hand.

The description (config, tokeniser, the words or characters that it looks up) is JSON in a tensor of bytes: a
vocabulary is too long for the file's header. Weights that the task tuned are among those of its network;
others lie beside it. The softmax is not kept: no task predicts words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.formats.pretrained import Pretrained, WarmState
from elmo.text.tokens import CHOICES
from elmo.text.vocab import Vocabulary

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

TUNED = "words.bilm."  # begins the names of the network's own weights
_DESCRIPTION = "bilm.description"
_WEIGHTS = "bilm.weights."
_WARM = "bilm.warm."
_FORMAT = "task"  # as ``Elmo`` names where it came from


def is_own(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file has a biLM of its own."""
    return _DESCRIPTION in tensors


def bilm_tensors(elmo: Elmo, *, start: Start, is_tuned: bool) -> dict[str, Tensor]:
    """All that is needed of a biLM; not its weights, where ``is_tuned``: the network has them."""
    model = elmo.pretrained
    vocab = model.vocab if model.config.words else None
    description = {
        "config": model.config.to_json(),
        "tokenizer": _tokenizer_name(elmo),
        "vocabulary": None if vocab is None else [vocab.bos, vocab.eos, vocab.unknown, *vocab.words],
        "characters": None if model.characters is None else dict(model.characters),
    }
    raw = json.dumps(description, sort_keys=True).encode("ascii")  # lone surrogates are escaped, too
    found = {_DESCRIPTION: torch.frombuffer(bytearray(raw), dtype=torch.uint8)}
    if not is_tuned:
        weights = elmo.bilm.state_dict().items()
        found |= {f"{_WEIGHTS}{name}": one.detach().cpu().float().contiguous() for name, one in weights}
        if start == "warm" and model.warm is not None:
            found |= {f"{_WARM}hidden": model.warm.hidden, f"{_WARM}cell": model.warm.cell}
    return {name: one.contiguous() for name, one in found.items()}


def take_bilm(tensors: dict[str, Tensor]) -> Elmo:
    """The biLM of a file that has one, its tensors taken out; those that the task tuned stay there, too."""
    from elmo.embed.elmo import Elmo

    about: Any = json.loads(tensors.pop(_DESCRIPTION).numpy().tobytes())
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith((_WEIGHTS, _WARM))}
    weights = {name.removeprefix(_WEIGHTS): one for name, one in own.items() if name.startswith(_WEIGHTS)}
    weights = weights or {
        name.removeprefix(TUNED): one.float() for name, one in tensors.items() if name.startswith(TUNED)
    }
    warm = {name.removeprefix(_WARM): one for name, one in own.items() if name.startswith(_WARM)}
    words = about["vocabulary"]
    return Elmo(
        Pretrained(
            config=BiLmConfig.from_json(about["config"]),
            weights=weights,
            format=_FORMAT,
            vocab=None if words is None else Vocabulary(
                tuple(words[3:]), bos=words[0], eos=words[1], unknown=words[2]
            ),
            characters=about["characters"],
            warm=WarmState(**warm) if warm else None,
            metadata={"tokenizer": about["tokenizer"]},
        )
    )  # fmt: skip


def _tokenizer_name(elmo: Elmo) -> str:
    """That of the tokeniser in use, where it is one of ours; else that of the model."""
    name = getattr(elmo.tokenizer, "name", None)
    is_ours = isinstance(name, str) and (name in CHOICES or name.startswith("spacy:"))
    return name if is_ours and name else str(elmo.pretrained.metadata.get("tokenizer", "en"))
