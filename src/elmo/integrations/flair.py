"""Flair: ``ElmoEmbeddings``, a replacement for ``flair.embeddings.ELMoEmbeddings``, which needs AllenNLP 0.9.

Import this class before a saved Flair model is loaded: Flair looks it up by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, cast

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError
from elmo.integrations.requirements import require
from elmo.jobs.sharded import compute_fingerprint

require("flair", extra="flair", at_least="0.15", below="0.16")

import flair  # noqa: E402  # pyright: ignore[reportMissingImports]
from flair.data import Sentence  # noqa: E402  # pyright: ignore[reportMissingImports]
from flair.embeddings import TokenEmbeddings  # noqa: E402  # pyright: ignore[reportMissingImports]
from flair.embeddings.base import register_embeddings  # noqa: E402  # pyright: ignore[reportMissingImports]

Mode = Literal["all", "top", "average"]
LAYERS = {"all": "concat", "top": "top", "average": "average"}
OLD_NAMES = ("original", "small", "medium", "large", "5.5B", "pt", "portuguese", "pubmed")


@register_embeddings
class ElmoEmbeddings(TokenEmbeddings):
    """Contextual word embeddings of an ELMo model, for Flair's taggers and classifiers.

    The arguments are those of Flair's ``ELMoEmbeddings``. The state of the LSTMs is not carried from one batch to the
    next, so the vectors of a sentence are always the same.

    Example:
        >>> from flair.data import Sentence  # doctest: +SKIP
        >>> sentence = Sentence("The bank of the river")  # doctest: +SKIP
        >>> ElmoEmbeddings("en").embed(sentence)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | Path = "en",
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        embedding_mode: Mode = "all",
        *,
        start: Literal["zero", "warm"] = "zero",
    ) -> None:
        """Load a model.

        Args:
            model: A bundled model, a folder, an archive or a Hub id, as in ``Elmo.from_pretrained``.
            options_file: Options file of an AllenNLP model; use it together with ``weight_file``.
            weight_file: Weights file of an AllenNLP model.
            embedding_mode: "all" (the layers, concatenated), "top" or "average".
            start: State at the start of a sentence: "zero" or "warm".
        """
        if embedding_mode not in LAYERS:
            raise ConfigError(f"embedding_mode must be all, top or average; found {embedding_mode!r:.40}")
        if (options_file is None) != (weight_file is None):
            raise ConfigError("options_file and weight_file must be passed together")
        self.params = {
            "model": str(model),
            "options_file": None if options_file is None else str(options_file),
            "weight_file": None if weight_file is None else str(weight_file),
            "embedding_mode": embedding_mode,
            "start": start,
        }
        if options_file is not None and weight_file is not None:
            self.elmo = Elmo.from_files(options_file, weight_file)
        elif model in OLD_NAMES and not Path(model).exists():
            raise ConfigError(
                f"model {model!r} is a name of Flair's old ELMoEmbeddings; download its files and pass options_file "
                "and weight_file, or pass a bundled model (en, zh), a folder or a Hub id"
            )
        else:
            self.elmo = Elmo.from_pretrained(model)
        self.name = f"elmo-{options_file or model}-{embedding_mode}"
        self.static_embeddings = True
        self._layers: Any = LAYERS[embedding_mode]
        super().__init__()
        self._length = cast("int", self.elmo.encode([[]], layers=self._layers, start=start)[0].vectors.shape[-1])
        self.eval()

    @property
    def embedding_length(self) -> int:
        """Number of values per token."""
        return self._length

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> list[Sentence]:
        words = [[token.text for token in sentence] for sentence in sentences]
        encodings = self.elmo.encode(words, layers=self._layers, start=self.params["start"], as_tensor=True)
        for sentence, encoding in zip(sentences, encodings, strict=True):
            for token, vector in zip(sentence, encoding.vectors, strict=True):
                token.set_embedding(self.name, cast("Any", vector).to(flair.device))
        return sentences

    def extra_repr(self) -> str:
        """Describe the embeddings in the printed form of a Flair model."""
        return f"model={self.params['model']!r}, embedding_mode={self.params['embedding_mode']!r}"

    def to_params(self) -> dict[str, Any]:
        """Return the arguments and the fingerprint of the model, which are saved with a Flair model."""
        return {**self.params, "fingerprint": compute_fingerprint(self.elmo, start=str(self.params["start"]))}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Self:
        """Load the model again; raise ``ConfigError`` if it is another one."""
        arguments = {name: value for name, value in params.items() if name != "fingerprint"}
        embeddings, expected = cls(**arguments), params.get("fingerprint")
        found = compute_fingerprint(embeddings.elmo, start=str(embeddings.params["start"]))
        if expected != found:
            raise ConfigError(
                f"model {embeddings.params['model']!r:.100} must have the fingerprint {str(expected)[:12]}…, as when "
                f"the Flair model was saved; found {found[:12]}…; restore the other model, or train again"
            )
        return embeddings

    def __getstate__(self) -> dict[str, Any]:
        return {"params": self.to_params()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = self.from_params(state["params"]).__dict__
