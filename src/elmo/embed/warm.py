"""Add a warm state to a model on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elmo.embed.elmo import Elmo
from elmo.formats import native
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import read_sentences


def add_warm_state(
    model: str | Path,
    texts: str | Sequence[str],
    *,
    out: Path | None = None,
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    tokenizer: str | None = None,
    device: str = "cpu",
    show_progress: bool = False,
) -> Path:
    """Compute a warm state from running text and store it with the model; return the folder of the model.

    Args:
        model: A name as in ``Elmo.from_pretrained``.
        texts: Files, globs or folders of running text; "-" is stdin.
        out: New folder for a copy of the model in elmo's native format. Default: the state is added to the
            model itself or, if its format cannot store a state, to a copy NAME-warm in the current folder.
        split: Split lines of text into sentences. Default: if they are paragraphs.
        errors: What to do with bytes that are not UTF-8: stop ("strict"), replace them, skip the line, or keep them
            as surrogate escapes.
        tokenizer: Tokenizer to use instead of that of the model.
        device: Device of the network.
        show_progress: Show a progress bar on stderr.

    Example:
        >>> add_warm_state("en", "corpus.txt", out=Path("warm")).name
        'warm'
        >>> warm = Elmo.from_pretrained("warm").encode("Yes.", start="warm")
    """
    folder = Path(model)
    out = native.choose_copy(folder, out, suffix="warm")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    texts = [texts] if isinstance(texts, str) else texts
    sentences = read_sentences(texts, tokenizer=elmo.tokenizer, split=split, errors=errors)
    warm = elmo.warm_up((sentence.tokens for sentence in sentences), show_progress=show_progress)
    if out is None:
        native.add_warm(folder, warm)
    else:
        elmo.save_pretrained(out)
    return out or folder
