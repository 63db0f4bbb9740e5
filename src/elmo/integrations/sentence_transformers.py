"""sentence-transformers: ELMo as the input module of a ``SentenceTransformer``.

The module turns text into token vectors; ``Pooling`` and the other modules of sentence-transformers follow it. It is
saved in a subfolder, together with the model in elmo's native format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch

from elmo.embed.elmo import Elmo, as_tokens
from elmo.errors import ConfigError, ElmoError, FormatError
from elmo.integrations.requirements import require
from elmo.integrations.token_encoder import Output, TokenEncoder
from elmo.model.mix import LayerMix
from elmo.storage.files import format_error, format_path, read_json
from elmo.text.tokenizers import Tokenizer, Tokens

require("sentence-transformers", extra="sentence-transformers", at_least="6.0")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import InputModule, Module  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from sentence_transformers.util import import_from_string  # noqa: E402

PoolingMode = Literal["mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
_MODEL = "model"  # subfolder of the model
_SUBFOLDER = re.compile(r"(?:\w[\w.-]*)?", re.ASCII)  # of a module; empty for the folder itself


class ElmoModule(InputModule):
    """The first module of a ``SentenceTransformer``: tokenizes text and computes the vectors of the tokens.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from sentence_transformers.sentence_transformer.modules import Pooling
        >>> module = ElmoModule("en")
        >>> model = SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())])
        >>> model.encode(["The bank of the river."]).shape == (1, elmo.width)
        True
    """

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
        if max_seq_length is not None and (type(max_seq_length) is not int or max_seq_length < 1):
            raise ConfigError(f"max_seq_length must be at least 1, or None; found {max_seq_length!r:.40}")
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
        tokens = as_tokens((prompt or "") + text, self.elmo.tokenizer, subject="text")
        return tokens.tokens[: self.max_seq_length]

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
        subject = format_path(Path(folder) / cls.config_file_name)
        if not isinstance(values, dict) or not {*cls.config_keys, "mix"} <= values.keys():
            raise FormatError(f"{subject}: expected the options of an ElmoModule")
        module = cls(Path(folder) / _MODEL, **{key: values[key] for key in cls.config_keys})
        if module.encoder.mix is not None:
            _load_mix(module.encoder.mix, values["mix"], subject)
        return module


def _load_mix(mix: LayerMix, values: Any, subject: str) -> None:
    match values:
        case {"w": [*weights], "gamma": gamma} if len(weights) == mix.n_layers:
            if all(type(value) in (int, float) for value in (*weights, gamma)):
                with torch.no_grad():
                    mix.w.copy_(torch.tensor(weights))
                    mix.gamma.fill_(gamma)
                return
    raise FormatError(f"{subject}: mix must have {mix.n_layers} numbers w and a number gamma; found {values!r:.80}")


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

    Example:
        >>> model = build_sentence_transformer("en")
        >>> model.encode(["The bank of the river."]).shape == (1, elmo.width)
        True
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

    Args:
        folder: Folder that ``SentenceTransformer.save`` has written.

    Example:
        >>> build_sentence_transformer("en").save("encoder")
        >>> load_sentence_transformer("encoder").encode(["Yes."]).shape == (1, elmo.width)
        True
    """
    folder = Path(folder)
    entries, options = read_json(folder / "modules.json"), read_json(folder / "config_sentence_transformers.json")
    if not isinstance(entries, list) or not isinstance(options, dict):
        raise FormatError(f"{format_path(folder)}: expected a saved SentenceTransformer, found other values")
    modules = [_load_module(folder, entry) for entry in entries]
    known: Any = {name: options.get(name) for name in ("prompts", "default_prompt_name", "similarity_fn_name")}
    return SentenceTransformer(modules=modules, device="cpu", **known)


def _load_module(folder: Path, entry: Any) -> torch.nn.Module:
    """Load a module from the subfolder that its entry in ``modules.json`` names."""
    match entry:
        case {"type": str(kind), "path": str(path)} if _SUBFOLDER.fullmatch(path):
            pass
        case _:
            raise FormatError(
                f"{format_path(folder)}: expected a type and a subfolder of a module, found {entry!r:.80}"
            )
    cls: Any = None
    if kind == f"{ElmoModule.__module__}.{ElmoModule.__name__}":
        cls = ElmoModule
    elif kind.startswith("sentence_transformers."):
        with suppress(ImportError):
            cls = import_from_string(kind)
    if not (
        isinstance(cls, type) and issubclass(cls, Module)
    ):  # a package has other names, too, such as that of pickle
        raise FormatError(
            f"{format_path(folder)}: expected modules of elmo and sentence-transformers, found {kind!r:.80}"
        )
    try:
        return cls.load(str(folder), subfolder=path, local_files_only=True)
    except ElmoError:
        raise
    except Exception as error:  # of any type: sentence-transformers does not check its files
        raise FormatError(f"cannot load {format_path(folder / path)} as {kind:.80}: {format_error(error)}") from error
