"""Keras 3 with the torch backend: ``ElmoLayer``, the successor of the ELMo layers of TF-Hub tutorials.

Keras tensors contain no text, so ``ElmoLayer.prepare`` first converts texts to ids. A saved Keras model contains the
weights and everything else that the layer needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray

from elmo.config import BiLmConfig, parameter_shapes
from elmo.embed.elmo import Elmo, as_tokens
from elmo.errors import ConfigError, DataError
from elmo.formats.pretrained import Pretrained
from elmo.integrations.requirements import require
from elmo.integrations.token_encoder import Output, TokenEncoder
from elmo.text.ids import Vocabulary

require("keras", extra="keras", at_least="3.8")
if "keras" not in sys.modules:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # the default of Keras is TensorFlow


def _backend_error(backend: str) -> ConfigError:
    return ConfigError(
        f"the backend of Keras must be torch; found {backend:.40}; set the environment variable "
        "KERAS_BACKEND=torch before Keras is imported"
    )


try:
    import keras
except ImportError as error:  # Keras is installed, but not its backend
    raise _backend_error(os.environ.get("KERAS_BACKEND", "tensorflow")) from error
if keras.config.backend() != "torch":
    raise _backend_error(keras.config.backend())

SequencePooling = Literal["mean", "max"]


@keras.saving.register_keras_serializable(package="elmo")
class ElmoLayer(keras.layers.Layer):
    """Computes the vectors of tokens, or of whole texts, from ids.

    >>> import keras
    >>> layer = ElmoLayer("en", pooling="mean")
    >>> model = keras.Sequential([layer, keras.layers.Dense(2, activation="softmax")])
    >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> history = model.fit(layer.prepare(["A good film.", "Not for me."]), np.array([1, 0]), verbose=0)
    """

    encoder: TokenEncoder

    def __init__(
        self,
        model: Elmo | str | Path | None = None,
        *,
        layers: Output | int = "mix",
        pooling: SequencePooling | None = None,
        train_bilm: bool = False,
        **options: Any,
    ) -> None:
        """Build the layer.

        Args:
            model: A loaded model, or a name as in ``Elmo.from_pretrained``.
            layers: "mix" (a learned weighted sum of layers), "average", "top", "concat" or a layer number.
            pooling: "mean" or "max" of the tokens of a text; None for one vector per token.
            train_bilm: Train the network, not only the mix.
            **options: Options of every Keras layer, such as ``name``.
        """
        super().__init__(**options)
        if pooling not in (None, "mean", "max"):
            raise ConfigError(f"pooling must be 'mean', 'max' or None; found {pooling!r:.40}")
        self.pooling, self.supports_masking = pooling, True
        # Keras would wrap a module that is set as an attribute; its parameters are tracked below instead.
        object.__setattr__(self, "encoder", TokenEncoder(model, layers=layers, trainable=train_bilm))
        self.elmo.pretrained.check_unaligned("use in a Keras layer")
        for parameter in self.encoder.parameters():  # a variable of Keras shares the memory of the parameter
            variable = keras.Variable(cast("Any", parameter), trainable=parameter.requires_grad)
            self._track_variable(variable)
        self.built = True

    @property
    def elmo(self) -> Elmo:
        """The model."""
        return self.encoder.elmo

    @property
    def shares(self) -> list[float]:
        """The share of each layer in the mix."""
        if self.encoder.mix is None:
            raise ConfigError(f"only layers='mix' has shares; found layers={self.encoder.layers!r}")
        return self.encoder.mix.shares.tolist()

    @property
    def n_ids(self) -> int:
        """Number of ids per token."""
        config = self.elmo.config
        return (config.chars.max_characters if config.chars else 0) + (config.words is not None)

    def prepare(self, texts: Iterable[str | Sequence[str]], *, max_tokens: int | None = None) -> NDArray[np.int32]:
        """Convert texts, or lists of tokens, to ids (text, time, id), the input of the layer.

        Args:
            texts: Texts, which are tokenized, or lists of tokens.
            max_tokens: Number of tokens after which a text is cut off. Default: no limit.
        """
        if isinstance(texts, str):
            raise DataError("texts must be a list of texts; found one string")
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, or None; found {max_tokens}")
        tokens = [as_tokens(text, self.elmo.tokenizer, subject=f"text {n}").tokens for n, text in enumerate(texts)]
        rows = [words[:max_tokens] for words in tokens]
        batch = self.elmo.batch(rows)
        parts = [batch.char_ids] if batch.char_ids is not None else []
        if batch.word_ids is not None:
            parts.append(batch.word_ids[:, :, None])
        ids = np.concatenate(parts, axis=2).astype(np.int32)
        is_token = np.arange(ids.shape[1]) < np.asarray(batch.lengths)[:, None]
        ids[~is_token] = -1  # so that the layer recognizes padding in every alphabet
        return ids

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Compute the vectors (text, time, width), or (text, width) with pooling."""
        vectors, mask = self._run(inputs)
        if self.pooling is None:
            return vectors
        if self.pooling == "mean" or not vectors.size(1):  # without tokens, the vector of a text is zero
            return vectors.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        least = torch.finfo(vectors.dtype).min
        pooled = torch.where(mask[:, :, None], vectors, least).amax(dim=1)
        return torch.where(mask.any(dim=1, keepdim=True), pooled, 0)

    def _run(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = ids.long()
        lengths = (ids[:, :, 0] >= 0).sum(dim=1)
        ids = ids.clamp(min=0)
        n_chars = ids.size(2) - (self.elmo.config.words is not None)
        chars = ids[:, :, :n_chars] if self.elmo.config.chars else None
        words = ids[:, :, -1] if self.elmo.config.words else None
        return self.encoder.run_ids(chars, words, lengths)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return which positions are tokens (text, time); None with pooling."""
        return None if self.pooling else (inputs[:, 2:, 0] >= 0)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Return the shape of the vectors."""
        batch, time = input_shape[:2]
        if self.pooling:
            return batch, self.encoder.width
        return batch, None if time is None else time - 2, self.encoder.width  # without the boundary tokens

    def save_own_variables(self, store: Any) -> None:
        """Save all weights, also those that are not trained."""
        for name, weight in self.encoder.state_dict().items():
            store[name] = weight.detach().cpu().numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load all weights."""
        names = self.encoder.state_dict()
        self.encoder.load_state_dict({name: torch.from_numpy(np.asarray(store[name])) for name in names})

    def get_config(self) -> dict[str, Any]:
        """Return the options of the layer, and the parts of the model that are not weights."""
        model = self.elmo.as_pretrained()
        vocab = model.vocab if model.config.words else None
        return super().get_config() | {
            "layers": self.encoder.layers,
            "pooling": self.pooling,
            "train_bilm": self.encoder.trainable,
            "bilm": model.config.to_json(),
            "tokenizer": str(model.metadata.get("tokenizer", "en")),
            "characters": None if model.characters is None else dict(model.characters),
            "vocabulary": None if vocab is None else [list(vocab.words), vocab.bos, vocab.eos, vocab.unknown],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the layer; its weights are zero until they are loaded."""
        options = dict(config)
        bilm = BiLmConfig.from_json(options.pop("bilm"))
        vocab = options.pop("vocabulary")
        pretrained = Pretrained(
            config=bilm,
            weights={name: torch.zeros(shape) for name, shape in parameter_shapes(bilm).items()},
            format="keras",
            vocab=None if vocab is None else Vocabulary(tuple(vocab[0]), bos=vocab[1], eos=vocab[2], unknown=vocab[3]),
            characters=options.pop("characters"),
            metadata={"tokenizer": options.pop("tokenizer")},
        )
        return cls(Elmo(pretrained), **options)
