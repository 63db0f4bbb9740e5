"""A biLM and a task's training sentences in, the biLM after it went on as a language model on them out.

It keeps its vocabulary, learns as ``elmo train --from`` does, and is taken where it predicted a few sentences
best that were left out of these (Howard and Ruder 2018, "Universal Language Model Fine-tuning"; section 3.4
of Peters et al. 2018). A run that was killed goes on from the checkpoints in its folder, to the same weights.
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
    from elmo.train.loop import Report

FOLDER = "adapt"  # beside the task's own checkpoints
_IDENTITY, _TEXT, _BEFORE, _AFTER = "identity.json", "text.txt", "before", "after"
_ROWS, _STEPS = 32, 20  # of a window: fewer rows than usual, for a task has little text
_WARM_SENTENCES = 2000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adaptation:
    """What is asked for."""

    epochs: float
    seed: int = 1
    start: Start = "zero"  # with "warm", the mean state is taken anew


def refuse_what_cannot_adapt(elmo: Elmo | None, epochs: float) -> None:
    """``ConfigError`` for a biLM that cannot go on as a language model; to be asked before anything else."""
    from elmo.train.start_from import refuse_what_cannot_be_trained

    if not 0 < epochs < math.inf:
        raise ConfigError(f"the epochs on the task's text must be a positive number, found {epochs}")
    if elmo is None:
        raise ConfigError("ELMo is at none: there is no biLM that could be trained on the task's text")
    model = elmo.pretrained
    refuse_what_cannot_be_trained(model)
    missing = [name for name, part in (("softmax", model.softmax), ("vocabulary", model.vocab)) if not part]
    if missing:
        raise ConfigError(
            f"this {model.format} model has no {' and no '.join(missing)}: it cannot go on as a language "
            "model on the task's text; give one first: elmo train TEXT --from MODEL --out NEW"
        )


def adapted(
    elmo: Elmo,
    sentences: Iterable[Words],
    *,
    asked: Adaptation,
    folder: Path | None = None,
    on_report: Callable[[Report], None] | None = None,
) -> Elmo:
    """The biLM after ``asked.epochs`` of the sentences, each counted once; ``folder`` keeps checkpoints."""
    from elmo.embed.elmo import Elmo

    wanted = list(dict.fromkeys(sentences))
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-adapt-")))
        model = _trained(elmo, wanted, asked=asked, place=folder / FOLDER, on_report=on_report)
    found = Elmo(model, device=elmo.device, dtype=elmo.precision, tokenizer=elmo.tokenizer)
    if asked.start == "warm":
        found.warm_up(list(words) for words in islice(wanted, _WARM_SENTENCES))
    return found


def _trained(
    elmo: Elmo,
    sentences: list[Words],
    *,
    asked: Adaptation,
    place: Path,
    on_report: Callable[[Report], None] | None,
) -> Pretrained:
    from elmo.train.run import train_bilm

    place = place.absolute()  # a run that goes on may do so from another folder
    lines = (" ".join(map(_without_space, words)) for words in sentences)
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    _begin(place, _identity(elmo, text, asked))
    before, after = place / _BEFORE, place / _AFTER
    if not after.exists():
        n_tokens = sum(len(words) + 1 for words in sentences)
        _log.info(
            "the biLM first reads the training text: %d sentences, %d tokens, epochs: %g",
            len(sentences), n_tokens, asked.epochs,
        )  # fmt: skip
        if not (place / _TEXT).exists():  # by whose time of change a run knows its text again
            with atomic_file(place / _TEXT) as temporary:
                temporary.write_bytes(text)
        if not before.exists():
            elmo.save_pretrained(before)
        # each row reads whole sentences, of which some are held out
        n_rows = max(1, min(_ROWS, n_tokens // (10 * _STEPS), len(sentences) // 2))
        n_windows = math.ceil(asked.epochs * n_tokens / (n_rows * _STEPS))
        with torch.random.fork_rng(devices=[]):  # the user's own random numbers are left alone
            train_bilm(
                place / _TEXT,
                after,
                start=before,
                epochs=asked.epochs,
                corpus_options={"input_format": "tokens", "processes": 1, "seed": asked.seed},
                on_report=on_report,
                n_rows=n_rows,
                seed=asked.seed,
                # a tenth of so short a run; Adam's first steps would shake the model
                optimisation={"warm_up_steps": min(100, math.ceil(n_windows / 10)), "decay": "linear"},
            )
    model = native.read(after, is_mapped=False)  # the folder goes when the task is learned
    for name in (_BEFORE, f"{_AFTER}.training"):
        shutil.rmtree(place / name, ignore_errors=True)
    return replace(model, metadata={**model.metadata, **_tokenizer(elmo)})


def _without_space(word: str) -> str:
    """A word of a corpus may hold a space (10 000), which would part it in two."""
    return re.sub(r"[ \t\r\n]", "\N{NO-BREAK SPACE}", word)


def _tokenizer(elmo: Elmo) -> dict[str, Any]:
    """That of the model: the text was cut before, which is no choice for other text."""
    return {"tokenizer": elmo.pretrained.metadata.get("tokenizer", "en")}


def _begin(place: Path, identity: dict[str, Any]) -> None:
    """Make the folder, or find that it is of the same run."""
    path = place / _IDENTITY
    if path.exists():
        if read_json(path) != identity:
            raise ConfigError(
                f"{format_path(place)}: was begun with other data or options; remove it, or name another place"
            )
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(place, error) from error
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(identity, indent=1) + "\n", encoding="ascii")


def _identity(elmo: Elmo, text: bytes, asked: Adaptation) -> dict[str, Any]:
    """All that the result depends on: the whole language model, the text, and what is asked for."""
    model = elmo.pretrained
    digest = hashlib.sha256(fingerprint(replace(model, weights=elmo.bilm.state_dict())).encode())
    if model.vocab is not None and model.softmax is not None:
        digest.update("\n".join(model.vocab.words).encode("utf-8", "surrogatepass"))
        for part in (model.softmax.weight, model.softmax.bias):
            digest.update(part.detach().float().contiguous().numpy().tobytes())
    return {"bilm": digest.hexdigest(), "text": hashlib.sha256(text).hexdigest(), **asdict(asked)}
