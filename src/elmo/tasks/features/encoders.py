"""A model of words in context in, an encoder that the cache can keep out: ELMo, or one of transformers'."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.embed.start import Carry, Start
from elmo.errors import ConfigError, MissingExtraError
from elmo.tasks.data.examples import Words

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.tasks.features.store import Encoder

_WINDOWS = 32  # of a batch


class ElmoEncoder:
    """All layers of a frozen biLM."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if isinstance(start, Carry):
            raise ConfigError("a task's vectors start from zero or warm: a carried state follows the order")
        self.elmo = elmo
        self.start: Literal["zero", "warm"] = start

    @cached_property
    def fingerprint(self) -> str:
        """Of the weights, and of a warm start; hashed when it is asked for, since that takes time."""
        from elmo.jobs.run import fingerprint_now

        return fingerprint_now(self.elmo, start=self.start)

    @property
    def key(self) -> str:
        """The model's fingerprint, its precision and where its sentences start."""
        return f"elmo-{self.fingerprint[:24]}-{self.elmo.precision}-{self.start}"

    @property
    def n_layers(self) -> int:
        """Layers of the biLM."""
        return self.elmo.n_layers

    @property
    def width(self) -> int:
        """Of each layer."""
        return self.elmo.width

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each sentence."""
        found = self.elmo.encode([list(words) for words in sentences], layers="all", start=self.start)
        return [np.asarray(one.vectors) for one in found]


class TransformerEncoder:
    """The last hidden states of a transformers or sentence-transformers model, pieces averaged to words.

    A sentence longer than the model reads is read in windows that do not overlap.
    """

    n_layers = 1

    def __init__(self, source: str) -> None:
        """``source`` is a folder or a Hub id; safetensors weights are read, and no code that came along."""
        try:
            from transformers import AutoModel, AutoTokenizer  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError("a model of transformers'", extra="transformers") from error
        place = Path(source)
        # as it is known from every folder; a Hub id as it is
        self.name = str(place.resolve()) if place.exists() else source
        if (place / "0_Transformer").is_dir():  # how sentence-transformers once laid its models out
            source = str(place / "0_Transformer")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True, trust_remote_code=False)
            model = AutoModel.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"{source}: no model of transformers' with safetensors weights: {reason}"
            ) from error
        self._model = model.eval()
        self.width = int(model.config.hidden_size)
        longest = getattr(model.config, "max_position_embeddings", 512) - _first_position(model)
        self._n_special = int(self._tokenizer.num_special_tokens_to_add())
        self._longest = min(int(self._tokenizer.model_max_length), int(longest)) - self._n_special
        self._digest = _digest(model, self._tokenizer, self._longest)

    @property
    def key(self) -> str:
        """A hash of the weights and of the tokeniser."""
        return f"transformer-{self._digest[:24]}"

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(1, time, width) for each sentence."""
        windows = [(k, *window) for k, words in enumerate(sentences) for window in self._windows(words)]
        windows.sort(key=lambda window: window[2] - window[1])  # little padding
        found = [np.zeros((1, len(words), self.width), np.float32) for words in sentences]
        for at in range(0, len(windows), _WINDOWS):
            batch = windows[at : at + _WINDOWS]
            states = self._states([sentences[k][begin:end] for k, begin, end in batch])
            for (k, begin, end), vectors in zip(batch, states, strict=True):
                found[k][0, begin:end] = vectors
        return found

    def _windows(self, words: Words) -> Iterator[tuple[int, int]]:
        """Runs of words, begin and end, whose pieces the model can read at once."""
        pieces = self._tokenizer(
            list(words), is_split_into_words=True, add_special_tokens=False, verbose=False
        )
        counts = Counter(word for word in pieces.word_ids(0) if word is not None)
        begin = n_pieces = 0
        for place in range(len(words)):
            if n_pieces + counts[place] > self._longest and place > begin:
                yield begin, place
                begin, n_pieces = place, 0
            n_pieces += counts[place]
        if words:
            yield begin, len(words)

    def _states(self, windows: Sequence[Words]) -> Iterator[NDArray[Any]]:
        """(time, width) for each: the mean of a word's pieces, zeros for a word without any."""
        import torch

        batch = self._tokenizer(
            [list(words) for words in windows],
            is_split_into_words=True,
            truncation=True,  # of a single word with more pieces than the model reads
            max_length=self._longest + self._n_special,
            padding=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = self._model(**batch).last_hidden_state.float().numpy()  # (window, piece, width)
        for k, words in enumerate(windows):
            owners = [(piece, word) for piece, word in enumerate(batch.word_ids(k)) if word is not None]
            sums = np.zeros((len(words), self.width), np.float32)
            counts = np.zeros((len(words), 1), np.float32)
            for piece, word in owners:
                sums[word] += states[k, piece]
                counts[word] += 1
            yield sums / np.maximum(counts, 1)


def other_encoders(
    wanted: Sequence[tuple[str, str | None]], given: Sequence[Encoder], *, subject: str
) -> tuple[Encoder, ...]:
    """The encoders whose keys are ``wanted``: those ``given``, or where there are none, by their names.

    Another one than was learned with, or none where it was, is told in one line.
    """
    names = [name for _, name in wanted]
    if not given and None not in names:
        given = [_found(str(name), subject) for name in names]
    if len(given) != len(wanted):
        of_these = f" ({', '.join(map(str, names))})" if wanted and None not in names else ""
        raise ConfigError(
            f"{subject}: learned with {len(wanted)} other encoders beside ELMo{of_these}; give the same "
            f"ones, found {len(given)}"
        )
    for (key, name), one in zip(wanted, given, strict=True):
        if one.key != key:
            now = getattr(one, "name", None) or "what was given"
            raise ConfigError(
                f"{subject}: learned with the encoder {name or 'beside ELMo'} as {_short(key)}, but {now} is "
                f"{_short(one.key)}, another one or changed since; --also names the one that it was"
            )
    return tuple(given)


def _found(name: str, subject: str) -> TransformerEncoder:
    try:
        return TransformerEncoder(name)
    except ConfigError as error:
        raise ConfigError(
            f"{subject}: the encoder beside ELMo that it was learned with cannot be loaded; --also names "
            f"where it is: {error}"
        ) from error


def _short(key: str) -> str:
    """Enough of a key to tell two apart."""
    return f"{key.rpartition('-')[2][:12]}…"


def _first_position(model: Any) -> int:
    """Rows of the table of positions that no piece is given: RoBERTa and its kin count from padding's on."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def _digest(model: Any, tokenizer: Any, longest: int) -> str:
    """Of all that vectors depend on; before the tokeniser is used, which notes in itself how it was used."""
    config = model.config.to_diff_dict()  # defaults are the reader's, and come and go with its versions
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(name, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    pieces = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    digest.update(f"{longest} {pieces}".encode("utf-8", "surrogatepass"))
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()
