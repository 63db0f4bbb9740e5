"""Adapt a biLM to a task: continue its training as a language model on the sentences of the task.

The biLM keeps its vocabulary and is trained as by ``elmo train --from``; the checkpoint with the best
perplexity on a few held-out sentences is used (Howard and Ruder 2018, "Universal Language Model Fine-tuning";
Peters et al. 2018, section 3.4). A run that is killed resumes from the checkpoints in its folder and gives
the same weights.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
import tempfile
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
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import format_path, read_json
from elmo.tasks.data.examples import Words

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.formats.pretrained import Pretrained
    from elmo.train.loop import StepReport

FOLDER = "adapt"  # next to the checkpoints of the task
_IDENTITY, _TEXT, _BEFORE, _AFTER = "identity.json", "text.txt", "before", "after"
_BATCH_SIZE, _WINDOW = 32, 20  # a smaller batch than usual, because tasks have little text
_WARM_SENTENCES = 2000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adaptation:
    """Options of the adaptation.

    Args:
        epochs: Number of passes over the sentences.
        seed: Random seed.
        start: With "warm", the mean state is computed again.
    """

    epochs: float
    seed: int = 1
    start: Start = "zero"


def check_adaptable(elmo: Elmo | None, epochs: float) -> None:
    """Raise ``ConfigError`` for a biLM that cannot be trained as a language model; call this first."""
    from elmo.train.initial_weights import check_trainable

    if not 0 < epochs < math.inf:
        raise ConfigError(f"adapt must be a number of epochs above 0, found {epochs}")
    if elmo is None:
        raise ConfigError("cannot adapt the biLM, because elmo is 'none'; set elmo to input, output or both")
    model = elmo.pretrained
    check_trainable(model)
    missing = [name for name, part in (("softmax", model.softmax), ("vocabulary", model.vocab)) if not part]
    if missing:
        raise ConfigError(
            f"cannot adapt this {model.format} model, because it has no {' and no '.join(missing)}; "
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
    """Train the biLM on the unique sentences and return the new one; ``folder`` keeps checkpoints."""
    from elmo.embed.elmo import Elmo

    unique = list(dict.fromkeys(sentences))
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-adapt-")))
        model = _train(elmo, unique, options=options, folder=folder / FOLDER, on_report=on_report)
    adapted = Elmo(model, device=elmo.device, dtype=elmo.precision, tokenizer=elmo.tokenizer)
    if options.start == "warm":
        adapted.warm_up(list(words) for words in islice(unique, _WARM_SENTENCES))
    return adapted


def _train(
    elmo: Elmo,
    sentences: list[Words],
    *,
    options: Adaptation,
    folder: Path,
    on_report: Callable[[StepReport], None] | None,
) -> Pretrained:
    from elmo.train.run import train_bilm

    folder = folder.absolute()  # a run may be resumed from another working directory
    lines = (" ".join(map(_replace_spaces, words)) for words in sentences)
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    _open_folder(folder, _identity(elmo, text, options))
    before, after = folder / _BEFORE, folder / _AFTER
    if not after.exists():
        n_tokens = sum(len(words) + 1 for words in sentences)
        _log.info(
            "adapting the biLM to the training text: %d sentences, %d tokens, %g epochs",
            len(sentences), n_tokens, options.epochs,
        )  # fmt: skip
        if not (folder / _TEXT).exists():  # a run recognizes its text by the modification time
            with atomic_file(folder / _TEXT) as temporary:
                temporary.write_bytes(text)
        if not before.exists():
            elmo.save_pretrained(before)
        # each row reads whole sentences, some of which are held out
        batch_size = max(1, min(_BATCH_SIZE, n_tokens // (10 * _WINDOW), len(sentences) // 2))
        n_steps = math.ceil(options.epochs * n_tokens / (batch_size * _WINDOW))
        with torch.random.fork_rng(devices=[]):  # keep the random state of the caller
            train_bilm(
                folder / _TEXT,
                after,
                input_format="tokens",
                heldout_seed=options.seed,
                init_from=before,
                epochs=options.epochs,
                # the first steps of Adam are large: warm up for a tenth of this short run
                warmup=min(100, math.ceil(n_steps / 10)),
                decay="linear",
                batch_size=batch_size,
                seed=options.seed,
                processes=1,
                on_report=on_report,
            )
    model = native.read(after, is_mapped=False)  # the folder is removed when the task is trained
    for name in (_BEFORE, f"{_AFTER}.training"):
        shutil.rmtree(folder / name, ignore_errors=True)
    # keep the tokenizer of the model: the text of the task was already tokenized
    return replace(model, metadata={**model.metadata, "tokenizer": elmo.pretrained.metadata.get("tokenizer", "en")})


def _replace_spaces(word: str) -> str:
    """Replace the white space inside a word such as "10 000" by no-break spaces, so that the word is not split."""
    return re.sub(r"[ \t\r\n]", "\N{NO-BREAK SPACE}", word)


def _open_folder(folder: Path, identity: dict[str, Any]) -> None:
    """Create the folder of a run, or check that it belongs to the same run."""
    path = folder / _IDENTITY
    if path.exists():
        if read_json(path) != identity:
            raise ConfigError(
                f"{format_path(folder)}: this run was started with other data or options; "
                "remove the folder, or choose another output"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(identity, indent=1) + "\n", encoding="ascii")


def _identity(elmo: Elmo, text: bytes, options: Adaptation) -> dict[str, Any]:
    """Return everything that the result depends on: the language model, the text and the options."""
    model = elmo.pretrained
    digest = hashlib.sha256(fingerprint(replace(model, weights=elmo.bilm.state_dict())).encode())
    if model.vocab is not None and model.softmax is not None:
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
        for part in (model.softmax.weight, model.softmax.bias):
            digest.update(part.detach().float().contiguous().numpy().tobytes())
    return {"bilm": digest.hexdigest(), "text": hashlib.sha256(text).hexdigest(), **asdict(options)}
