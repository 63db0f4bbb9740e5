"""A model in, one SHA-256 out that names it: the same in every format that keeps its numbers."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from elmo.formats.pretrained import Pretrained

if TYPE_CHECKING:
    from torch import Tensor


def fingerprint(model: Pretrained, *, with_warm: bool = False) -> str:
    """SHA-256 over all that a model's layers depend on: config, alphabet, word table and weights.

    The softmax, a published mix and the metadata leave the layers alone and are not counted; neither is the
    warm state, unless asked for: it matters only to what starts from it.
    """
    digest = hashlib.sha256()
    config = model.config.to_json()
    # 3 and 3.0 are one clip, however a publisher wrote it
    config["lstm"] |= {key: float(value) for key, value in config["lstm"].items() if type(value) is int}
    _add(digest, "config", config)
    if model.characters is not None:
        _add(digest, "characters", dict(model.characters))
    if model.config.words and model.vocab:
        vocab = model.vocab
        _add(digest, "words", [vocab.bos, vocab.eos, vocab.unknown, *vocab.words])
    tensors = dict(model.weights)
    if with_warm and model.warm:
        tensors |= {"warm.hidden": model.warm.hidden, "warm.cell": model.warm.cell}
    for name in sorted(tensors):
        _add(digest, name, list(tensors[name].shape))
        digest.update(_raw(tensors[name]))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, value: Any) -> None:
    line = json.dumps([name, value], sort_keys=True)  # one line whatever it holds: parts cannot run together
    digest.update(line.encode() + b"\n")


def _raw(tensor: Tensor) -> Any:
    import torch

    array = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array.astype("<f4", copy=False).reshape(-1).view("u1")  # as bytes, not copied
