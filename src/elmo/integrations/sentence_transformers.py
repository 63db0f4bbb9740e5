"""sentence-transformers: ELMo as the input module of a ``SentenceTransformer``.

The module turns text into token vectors; ``Pooling`` and the other modules of sentence-transformers follow it. It is
saved in a subfolder, together with the model in elmo's native format.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch

from elmo.embed.elmo import Elmo
from elmo.errors import FormatError
from elmo.integrations.requirements import require
from elmo.integrations.token_encoder import Output, TokenEncoder
from elmo.storage.files import format_path, read_json
from elmo.text.tokenizers import Tokenizer, Tokens

require("sentence-transformers", extra="sentence-transformers", at_least="6.0")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import InputModule  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from sentence_transformers.util import import_from_string  # noqa: E402

PoolingMode = Literal["mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_MODEL = "model"  # subfolder of the model


class ElmoModule(InputModule):
    """The first module of a ``SentenceTransformer``: tokenizes text and computes the vectors of the tokens."""

    save_in_root = False  # our config.json would be taken for that of a transformers model
    config_file_name = "elmo_module.json"
    config_keys = ["layers", "trainable", "max_seq_length"]  # noqa: RUF012 -- as in the base class

    def __init__(
        self,
        model: Elmo | str | Path | None = None,
        *,
        layers: Output | int = "average",
        trainable: bool = False,
        max_seq_length: int | None = None,
    ) -> None:
        """Build the module.

        Args:
            model: A loaded model, or a name as in ``Elmo.from_pretrained``.
            layers: "average", "top", "concat", a layer number, or "mix", a learned weighted sum of layers.
            trainable: Train the network, not only the modules after it and the mix.
            max_seq_length: Number of tokens after which a text is cut off. Default: no limit.
        """
        super().__init__()
        self.encoder = TokenEncoder(model, layers=layers, trainable=trainable)
        self.max_seq_length = max_seq_length

    @property
    def elmo(self) -> Elmo:
        """The model."""
        return self.encoder.elmo

    @property
    def layers(self) -> Output | int:
        """Layers of the vectors."""
        return cast("Output | int", self.encoder.layers)

    @property
    def trainable(self) -> bool:
        """Whether training changes the network."""
        return self.encoder.trainable

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride] -- not one of transformers
        """The tokenizer of the model."""
        return self.elmo.tokenizer

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Split texts into tokens."""
        rows = [Tokens.from_words(self._tokens(text, prompt)) for text in inputs]
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(max(1, int(lengths.max()))) < lengths[:, None]
        # The trainer recognizes an input by the name input_ids; the values are not used.
        return {"tokens": rows, "input_ids": mask.long(), "attention_mask": mask.long()}

    def _tokens(self, text: str, prompt: str | None) -> tuple[str, ...]:
        tokens = self.elmo.tokenizer((prompt or "") + text)
        words = tokens.tokens if isinstance(tokens, Tokens) else tuple(tokens)
        return tuple(words[: self.max_seq_length])

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add the vectors of the tokens (batch, time, width) to the features."""
        vectors, mask = self.encoder(features["tokens"])
        if not vectors.size(1):  # no text has a token: one masked position, so that the mean is zero
            vectors, mask = vectors.new_zeros(len(mask), 1, self.encoder.width), mask.new_zeros(len(mask), 1)
        return {**features, "token_embeddings": vectors, "attention_mask": mask.long()}

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return self.encoder.width

    def get_config_dict(self) -> dict[str, Any]:
        """Return the options of the module, and the learned mix."""
        mix = self.encoder.mix
        learned = None if mix is None else {"w": mix.w.tolist(), "gamma": mix.gamma.item()}
        return super().get_config_dict() | {"mix": learned}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the model and the options of the module to a folder."""
        self.elmo.save_pretrained(Path(output_path) / _MODEL)
        self.save_config(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Load the module from a local folder or from the Hub."""
        hub = {name: options.get(name) for name in ("token", "cache_folder", "revision", "local_files_only")}
        folder = cls.load_dir_path(model_name_or_path, subfolder, **cast("Any", hub))
        if folder is None:
            raise FormatError(f"{format_path(model_name_or_path)}: expected a folder {subfolder!r:.40}, found none")
        values = read_json(Path(folder) / cls.config_file_name)
        if not isinstance(values, dict) or not {*cls.config_keys, "mix"} <= values.keys():
            raise FormatError(
                f"{format_path(Path(folder) / cls.config_file_name)}: expected the options of an ElmoModule"
            )
        module = cls(Path(folder) / _MODEL, **{key: values[key] for key in cls.config_keys})
        if module.encoder.mix is not None:
            with torch.no_grad():
                module.encoder.mix.w.copy_(torch.tensor(values["mix"]["w"]))
                module.encoder.mix.gamma.fill_(values["mix"]["gamma"])
        return module


def build_sentence_transformer(
    model: Elmo | str | Path | None = None,
    *,
    layers: Output | int = "average",
    trainable: bool = False,
    pooling: PoolingMode = "mean",
    max_seq_length: int | None = None,
) -> SentenceTransformer:
    """Build a ``SentenceTransformer`` that pools the token vectors of a model.

    Args:
        model: A loaded model, or a name as in ``Elmo.from_pretrained``.
        layers: "average", "top", "concat", a layer number, or "mix", a learned weighted sum of layers.
        trainable: Train the network, not only the mix.
        pooling: How to pool the vectors of the tokens.
        max_seq_length: Number of tokens after which a text is cut off. Default: no limit.
    """
    module = ElmoModule(model, layers=layers, trainable=trainable, max_seq_length=max_seq_length)
    return SentenceTransformer(
        modules=[module, Pooling(module.get_embedding_dimension(), pooling_mode=pooling)],
        device=str(module.elmo.device),
    )


def load_sentence_transformer(folder: str | Path) -> SentenceTransformer:
    """Load a saved ``SentenceTransformer`` whose modules are from elmo and sentence-transformers only.

    ``SentenceTransformer(folder)`` needs ``trust_remote_code=True`` for every module that is not its own, and may then
    run code from the folder. This function never does.
    """
    folder = Path(folder)
    ours = f"{ElmoModule.__module__}.{ElmoModule.__name__}"
    entries, options = read_json(folder / "modules.json"), read_json(folder / "config_sentence_transformers.json")
    modules: list[torch.nn.Module] = []
    for entry in entries:
        kind = entry["type"]
        if kind != ours and not kind.startswith("sentence_transformers."):
            raise FormatError(
                f"{format_path(folder)}: expected modules of elmo and sentence-transformers, found {kind!r:.80}"
            )
        cls: Any = ElmoModule if kind == ours else import_from_string(kind)
        modules.append(cls.load(str(folder), subfolder=entry["path"], local_files_only=True))
    known = ("prompts", "default_prompt_name", "similarity_fn_name")
    return SentenceTransformer(modules=modules, device="cpu", **{name: options.get(name) for name in known})
