"""Adapt a biLM to a task: continue its training as a language model on the sentences of the task.

The biLM keeps its vocabulary and is trained as with ``elmo train --from``. The checkpoint with the best perplexity on
a few held-out sentences is used (Howard and Ruder 2018, "Universal Language Model Fine-tuning"; Peters et al. 2018,
section 3.4). An interrupted run resumes from the checkpoints in its folder and gives the same weights.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from elmo.errors import ConfigError
from elmo.formats import native
from elmo.formats.pretrained import fingerprint
from elmo.storage.atomic import atomic_file, make_folder, temporary_folder
from elmo.storage.files import format_path, read_json
from elmo.tasks.data.examples import Words

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.train.loop import StepReport

FOLDER = "adapt"  # in the folder with the checkpoints of the task
_IDENTITY, _TEXT, _BEFORE, _AFTER = "identity.json", "text.txt", "before", "after"
_BATCH_SIZE, _WINDOW = 32, 20  # a smaller batch than usual, because tasks have little text
_WARM_SENTENCES = 2000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adaptation:
    """Options for the adaptation of a biLM.

    Args:
        epochs: Number of passes over the sentences.
        seed: Random seed.
        start: Start state of the LSTMs; if it is "warm", the warm state is computed again after training.
    """

    epochs: float
    seed: int = 1
    start: Start = "zero"


def check_adaptable(elmo: Elmo | None, epochs: float) -> None:
    """Raise ``ConfigError`` if a biLM cannot be trained as a language model, or if ``epochs`` is not positive."""
    from elmo.train.initial_weights import check_trainable

    if not 0 < epochs < math.inf:
        raise ConfigError(f"adapt must be a number of epochs above 0; found {epochs}")
    if elmo is None:
        raise ConfigError("cannot adapt the biLM: elmo is 'none'; set elmo to input, output or both")
    model = elmo.pretrained
    model.check_unaligned("adapt")
    check_trainable(model)
    missing = [name for name, part in (("softmax", model.softmax), ("vocabulary", model.vocab)) if not part]
    if missing:
        raise ConfigError(
            f"cannot adapt this {model.format} model: it has no {' and no '.join(missing)}; "
            "train them first: elmo train TEXT --from MODEL --out NEW"
        )


def adapt_bilm(
    elmo: Elmo,
    sentences: Iterable[Words],
    *,
    options: Adaptation,
    folder: Path | None = None,
    on_report: Callable[[StepReport], None] | None = None,
) -> Elmo:
    """Return a copy of the biLM that was trained further on ``sentences``, without duplicates.

    Args:
        elmo: The biLM; it is not changed.
        sentences: Sentences of the task.
        options: Options for the adaptation.
        folder: Folder for checkpoints; None uses a temporary folder.
        on_report: Function to call with each progress report.
    """
    from elmo.embed.elmo import Elmo
    from elmo.train.run import TRANSFORMER_WINDOW, train_bilm

    unique = list(dict.fromkeys(sentences))
    lines = (" ".join(map(_replace_spaces, words)) for words in unique)
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(temporary_folder("elmo-adapted-", subject="adapt the biLM"))
        folder = folder.absolute() / FOLDER  # a run may be resumed from another working directory
        _open_folder(folder, _identity(elmo, text, options))
        before, after = folder / _BEFORE, folder / _AFTER
        if not after.exists():
            n_tokens = sum(len(words) + 1 for words in unique)
            _log.info(
                "adapting the biLM to the training text: %d sentences, %d tokens, %g epochs",
                len(unique), n_tokens, options.epochs,
            )  # fmt: skip
            if not (folder / _TEXT).exists():  # do not write it again: a resumed run checks its modification time
                with atomic_file(folder / _TEXT) as temporary:
                    temporary.write_bytes(text)
            if not before.exists():
                elmo.save_pretrained(before)
            # every row of the batch needs whole sentences, and some sentences are held out
            is_transformer = elmo.config.encoder_name == "transformer"
            window = TRANSFORMER_WINDOW if is_transformer else _WINDOW
            most = _BATCH_SIZE * _WINDOW // window
            batch_size = max(1, min(most, n_tokens // (10 * window), len(unique) // 2))
            n_steps = math.ceil(options.epochs * n_tokens / (batch_size * window))
            with torch.random.fork_rng(devices=[]):  # keep the random state of the caller
                train_bilm(
                    folder / _TEXT,
                    after,
                    input_format="tokens",
                    heldout_seed=options.seed,
                    init_from=before,
                    epochs=options.epochs,
                    # warm up for a tenth of this short run, because the first steps of Adam are large
                    warmup=min(100, math.ceil(n_steps / 10)),
                    decay="linear",
                    batch_size=batch_size,
                    seed=options.seed,
                    processes=1,
                    on_report=on_report,
                )
        model = native.read(after, is_mapped=False)  # not mapped: the folder is removed after training
        for name in (_BEFORE, f"{_AFTER}.training"):
            shutil.rmtree(folder / name, ignore_errors=True)
    # the text of the task was already tokenized; keep the tokenizer of the original model
    metadata = {**model.metadata, "tokenizer": elmo.pretrained.metadata.get("tokenizer", "en")}
    model = replace(model, metadata=metadata)
    adapted = Elmo(model, device=elmo.device, dtype=elmo.precision, tokenizer=elmo.tokenizer)
    if options.start == "warm":
        adapted.warm_up(list(words) for words in islice(unique, _WARM_SENTENCES))
    return adapted


def _replace_spaces(word: str) -> str:
    """Replace white space inside a word, such as "10 000", by no-break spaces, so that the word is not split."""
    return re.sub(r"[ \t\r\n]", "\N{NO-BREAK SPACE}", word)


def _open_folder(folder: Path, identity: dict[str, Any]) -> None:
    """Create the folder of an adaptation, or check that it belongs to the same adaptation."""
    path = folder / _IDENTITY
    if path.exists():
        if read_json(path) != identity:
            raise ConfigError(
                f"cannot resume {format_path(folder)}: the run was started with other data or options; "
                "remove the folder or choose another output"
            )
        return
    make_folder(folder)
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(identity, indent=1) + "\n", encoding="ascii")


def _identity(elmo: Elmo, text: bytes, options: Adaptation) -> dict[str, Any]:
    """Return everything that the adapted biLM depends on: hashes of the language model and text, and the options."""
    model = elmo.pretrained
    digest = hashlib.sha256(fingerprint(replace(model, weights=elmo.bilm.state_dict())).encode())
    if model.vocab is not None and model.softmax is not None:
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
        for part in (model.softmax.weight, model.softmax.bias):
            digest.update(part.detach().float().contiguous().numpy().tobytes())
    return {"bilm": digest.hexdigest(), "text": hashlib.sha256(text).hexdigest(), **asdict(options)}
