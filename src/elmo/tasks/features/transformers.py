"""Word vectors from Hugging Face transformers, used in addition to ELMo."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, importing_extra
from elmo.tasks.data.examples import Words

if TYPE_CHECKING:
    from elmo.tasks.features.store import FrozenEncoder

_BATCH_SIZE = 32  # number of windows


class TransformerEncoder:
    """Encoder that averages the last hidden states of a transformers model over the pieces of each word.

    A sentence that exceeds the maximum length of the model is split into windows that do not overlap.

    Example:
        >>> encoder = TransformerEncoder("bert-base-uncased")  # doctest: +SKIP
    """

    n_layers = 1

    def __init__(self, source: str) -> None:
        """Load ``source``, a folder or a Hub id with safetensors weights; code from the Hub is never executed."""
        with importing_extra("a transformers model", extra="transformers"):
            from transformers import AutoModel, AutoTokenizer  # pyright: ignore[reportMissingImports]
        path = Path(source)
        self.name = str(path.resolve()) if path.exists() else source  # absolute path or Hub id
        if (path / "0_Transformer").is_dir():  # old layout of sentence-transformers
            source = str(path / "0_Transformer")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True, trust_remote_code=False)
            model = AutoModel.from_pretrained(source, use_safetensors=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"cannot load {source} as a transformers model with safetensors weights: {reason}"
            ) from error
        self._model = model.eval()
        self.width = int(model.config.hidden_size)
        longest = getattr(model.config, "max_position_embeddings", 512) - _first_position(model)
        self._n_special = int(self._tokenizer.num_special_tokens_to_add())
        self._longest = min(int(self._tokenizer.model_max_length), int(longest)) - self._n_special
        self._digest = _digest(model, self._tokenizer, self._longest)

    @property
    def key(self) -> str:
        """Name of the folder of this encoder in the cache: a hash of the weights and of the tokenizer."""
        return f"transformer-{self._digest[:24]}"

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """Compute vectors (1, time, width) for each sentence."""
        windows = [(k, *window) for k, words in enumerate(sentences) for window in self._windows(words)]
        windows.sort(key=lambda window: window[2] - window[1])  # less padding
        layers = [np.zeros((1, len(words), self.width), np.float32) for words in sentences]
        for first in range(0, len(windows), _BATCH_SIZE):
            batch = windows[first : first + _BATCH_SIZE]
            states = self._states([sentences[k][begin:end] for k, begin, end in batch])
            for (k, begin, end), vectors in zip(batch, states, strict=True):
                layers[k][0, begin:end] = vectors
        return layers

    def _windows(self, words: Words) -> Iterator[tuple[int, int]]:
        """Yield the begin and end of each window of words whose pieces fit into the model."""
        pieces = self._tokenizer(list(words), is_split_into_words=True, add_special_tokens=False, verbose=False)
        counts = Counter(word for word in pieces.word_ids(0) if word is not None)
        begin = n_pieces = 0
        for index in range(len(words)):
            if n_pieces + counts[index] > self._longest and index > begin:
                yield begin, index
                begin, n_pieces = index, 0
            n_pieces += counts[index]
        if words:
            yield begin, len(words)

    def _states(self, windows: Sequence[Words]) -> Iterator[NDArray[Any]]:
        """Compute vectors (time, width) for each window: the mean over the pieces of each word (zeros if none)."""
        import torch

        batch = self._tokenizer(
            [list(words) for words in windows],
            is_split_into_words=True,
            truncation=True,  # a single word may have more pieces than fit
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


def match_encoders(
    expected: Sequence[tuple[str, str | None]], encoders: Sequence[FrozenEncoder], *, subject: str
) -> tuple[FrozenEncoder, ...]:
    """Return the encoders that a task model was trained with.

    Args:
        expected: Key and name of each encoder that the model was trained with.
        encoders: The encoders to check; if there are none, they are loaded by name.
        subject: Name of the model file, for error messages.

    Raises:
        ConfigError: An encoder is missing or has changed.
    """
    names = [name for _, name in expected]
    if not encoders and None not in names:
        encoders = [_load_encoder(str(name), subject) for name in names]
    if len(encoders) != len(expected):
        listed = f" ({', '.join(map(str, names))})" if expected and None not in names else ""
        raise ConfigError(
            f"{subject}: number of encoders must be {len(expected)}, as in training{listed}; found {len(encoders)}"
        )
    for (key, name), encoder in zip(expected, encoders, strict=True):
        if encoder.key != key:
            raise ConfigError(
                f"{subject}: encoder must be {name or 'an encoder'} with the hash {_short(key)}, as in training; found "
                f"{getattr(encoder, 'name', None) or 'another encoder'} with the hash {_short(encoder.key)}; "
                "use --also to pass the original encoder"
            )
    return tuple(encoders)


def _load_encoder(name: str, subject: str) -> TransformerEncoder:
    try:
        return TransformerEncoder(name)
    except ConfigError as error:
        raise ConfigError(
            f"{subject}: cannot load an encoder that the model was trained with: {error}; use --also to pass it"
        ) from error


def _short(key: str) -> str:
    return f"{key.rpartition('-')[2][:12]}…"


def _first_position(model: Any) -> int:
    """Return the number of unused position embeddings: RoBERTa counts positions from the padding index."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def _digest(model: Any, tokenizer: Any, longest: int) -> str:
    """Hash everything that the vectors depend on; call this before the tokenizer is used, which changes it."""
    config = model.config.to_diff_dict()  # defaults change with the version of transformers
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        config.pop(name, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    pieces = json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else backend.to_str()
    digest.update(f"{longest} {pieces}".encode("utf-8", "surrogatepass"))
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()
