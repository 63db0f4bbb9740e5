"""Raw text in, a folder with a model that ``Elmo.from_pretrained`` loads out: the whole way in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.embed.engine import Engine
from elmo.embed.start import mean_state
from elmo.errors import ConfigError, OutputError
from elmo.formats import native
from elmo.formats.files import shown
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.model.bilm import BiLm
from elmo.text.alphabet import ByteAlphabet
from elmo.text.batch import TokenIndexer
from elmo.train.corpus import Corpus, build
from elmo.train.loop import Report, Trainer, TrainOptions
from elmo.train.word_types import EOS

_FILTERS = CharCnnConfig.filters
PRESETS: dict[str, BiLmConfig] = {
    "tiny": BiLmConfig(CharCnnConfig(filters=_FILTERS[:3]), None, LstmConfig(cell_width=256, state_width=64)),
    "mini": BiLmConfig(
        CharCnnConfig(filters=_FILTERS[:5]), None, LstmConfig(cell_width=512, state_width=128)
    ),
    "small": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=1024, state_width=128)),
    "medium": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=2048, state_width=256)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2), None, LstmConfig(cell_width=4096, state_width=512)),
}


def train_bilm(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    preset: str | BiLmConfig = "small",
    epochs: float = 10,
    tokenizer: str = "en",
    corpus_options: dict[str, Any] | None = None,
    on_report: Callable[[Report], None] | None = None,
    **options: Any,
) -> Path:
    """Train a biLM on text and write it, with softmax, vocabulary and warm state, to the new folder ``out``.

    Corpus, checkpoints and log are kept in ``OUT.training`` beside it: the same call again goes on after the
    last checkpoint. ``corpus_options`` go to ``corpus.build``, ``options`` to ``TrainOptions``. What is
    written is the checkpoint that predicted the held-out text best.
    """
    out = Path(out)
    if isinstance(preset, str) and preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)} or a BiLmConfig, not {preset!r:.40}")
    if not (math.isfinite(epochs) and epochs > 0):
        raise ConfigError(f"epochs must be a positive number, not {epochs!r:.40}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{shown(out)}: exists already; name a new folder, or remove it first")
    config = PRESETS[preset] if isinstance(preset, str) else preset
    work = out.with_name(f"{out.name}.training")
    corpus = build(inputs, work / "corpus", tokenizer=tokenizer, **(corpus_options or {}))
    trainer = Trainer(corpus, config, _fitted(corpus, epochs, options), work)
    trainer.run(on_report)
    native.write(finished(trainer, tokenizer=tokenizer), out)
    return out


def finished(trainer: Trainer, *, tokenizer: str) -> Pretrained:
    """The best checkpoint of a run as a model, with a warm state from the held-out text."""
    step = trainer.checkpoints.best()
    weights = trainer.checkpoints.load(trainer.step if step is None else step).tensors["weights"]
    bilm_weights = {
        name.removeprefix("bilm."): value for name, value in weights.items() if name.startswith("bilm.")
    }
    bilm = BiLm.from_config(trainer.config).eval().requires_grad_(False)
    bilm.load_state_dict(bilm_weights)
    vocab = trainer.corpus.vocab(trainer.n_vocab)
    chars = trainer.config.chars
    indexer = TokenIndexer(
        ByteAlphabet(chars.max_characters) if chars else None, vocab if trainer.config.words else None
    )
    return Pretrained(
        config=trainer.config,
        weights=bilm_weights,
        format=native.NAME,
        vocab=vocab,
        softmax=SoftmaxWeights(weights["softmax.weight"], weights["softmax.bias"]),
        warm=mean_state(Engine(bilm, indexer), _sentences(trainer.corpus)),
        metadata={
            "tokenizer": tokenizer,
            "training": {
                "tokens": trainer.corpus.n_tokens,
                "steps": trainer.step,
                "best_step": step,
                "heldout_perplexity": trainer.best,
            },
        },
    )


def _fitted(corpus: Corpus, epochs: float, options: dict[str, Any]) -> TrainOptions:
    """The options, with what was not given chosen by the size of the corpus."""
    unfitted = TrainOptions(**{"n_windows": 1, **options})
    # Streams of a batch should be longer than a few windows, or the state carried on is worth nothing.
    longest = max(1, min(corpus.n_sentences, len(corpus.train) // (10 * unfitted.n_steps)))
    n_rows = options.get("n_rows", min(unfitted.n_rows, longest))
    per_epoch = len(corpus.train) / (n_rows * unfitted.n_steps)
    n_windows = options.get("n_windows", max(1, math.ceil(epochs * per_epoch)))
    every = max(1, min(1000, n_windows // 10))
    intervals = {"evaluate_every": every, "checkpoint_every": every, "log_every": max(1, min(50, every))}
    intervals = {name: options.get(name, value) for name, value in intervals.items()}
    return replace(unfitted, n_rows=n_rows, n_windows=n_windows, **intervals)


def _sentences(corpus: Corpus) -> list[list[str]]:
    """The held-out sentences as words, the first few thousand of them."""
    stream = np.asarray(corpus.heldout[: 1 << 18], dtype=np.int64)
    ends = np.flatnonzero(stream == EOS)
    pieces = np.split(stream, ends + 1)[: len(ends)]
    return [corpus.types.spellings(piece[:-1]) for piece in pieces]
