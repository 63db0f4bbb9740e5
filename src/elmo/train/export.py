"""A run that has ended in, its best checkpoint as a model out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from elmo.embed.engine import Engine
from elmo.embed.start import mean_state
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.model.bilm import BiLm
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus_folder import Corpus
from elmo.train.loop import Trainer
from elmo.train.word_types import EOS

_WARM_TOKENS = 1 << 18  # of the held-out text that the warm state is a mean over
_log = logging.getLogger(__name__)


def finished(trainer: Trainer, *, tokenizer: str) -> Pretrained:
    """The checkpoint that predicted the held-out text best, with a warm state from that text.

    A direction that was not trained is all zeros: its half of every vector then says nothing.
    """
    step = trainer.checkpoints.best()
    kept = trainer.checkpoints.load(trainer.step if step is None else step).tensors["weights"]
    directions = trainer.options.directions
    bilm_weights = _below_the_softmax(kept, directions)
    bilm = BiLm.from_config(trainer.config).eval().requires_grad_(False)
    bilm.load_state_dict(bilm_weights)
    model = Pretrained(
        config=trainer.config,
        weights=bilm_weights,
        format=native.NAME,
        vocab=trainer.corpus.vocab(trainer.n_vocab),
        softmax=_softmax({name: value.float() for name, value in kept.items()}),
        metadata={
            "tokenizer": tokenizer,
            "training": {
                "tokens": trainer.corpus.n_tokens,
                "steps": trainer.step,
                "best_step": step,
                "heldout_perplexity": trainer.best,
                "directions": directions,
            },
        },
    )
    return replace(model, warm=mean_state(Engine(bilm, model.indexer()), _sentences(trainer.corpus)))


def is_finished(model: Pretrained, checkpoints: Checkpoints) -> bool:
    """Whether these are the checkpoints of a run that has ended, and the model is what it wrote."""
    found = checkpoints.latest()
    if found is None or found[0] != found[1].progress["options"]["n_windows"]:
        return False
    step, snapshot = found
    best = checkpoints.best()
    kept = snapshot if best in (None, step) else checkpoints.load(best)
    expected = _below_the_softmax(kept.tensors["weights"], snapshot.progress["options"]["directions"])
    return expected.keys() == model.weights.keys() and all(
        torch.equal(weight, model.weights[name]) for name, weight in expected.items()
    )


def _below_the_softmax(weights: Mapping[str, Tensor], directions: str) -> dict[str, Tensor]:
    """Those that give vectors, by the names of a model."""
    found = {
        name.removeprefix("bilm."): value.float()
        for name, value in weights.items()
        if name.startswith("bilm.")
    }
    for stack in {"forward": ["backward_stack."], "backward": ["forward_stack."]}.get(directions, []):
        found |= {name: torch.zeros_like(value) for name, value in found.items() if name.startswith(stack)}
    return found


def _softmax(weights: dict[str, Tensor]) -> SoftmaxWeights | None:
    bias = weights.get("softmax.bias")
    if bias is None:
        _log.warning("an adaptive softmax is not part of a model folder: this model cannot predict words")
        return None
    own = weights.get("softmax.weight")
    tied = weights.get("bilm.token_layer.word_embed.weight")
    if own is None and tied is not None:
        own = tied[1:].clone()
    return None if own is None else SoftmaxWeights(own, bias)


def _sentences(corpus: Corpus) -> list[list[str]]:
    """The held-out sentences as words, the first few thousand of them."""
    stream = np.asarray(corpus.heldout[:_WARM_TOKENS], dtype=np.int64)
    ends = np.flatnonzero(stream == EOS)
    pieces = np.split(stream, ends + 1)[: len(ends)]
    return [corpus.types.spellings(piece[:-1]) for piece in pieces]
