"""spaCy: the architecture ``elmo.Tok2Vec.v1`` and the pipeline component ``elmo``.

spaCy finds both through the entry points of this package, and imports this file whenever it creates a pipeline.

The tokens are those of spaCy, so there is exactly one vector per token. White space tokens, such as a line break, are
left out of the sentence and get a zero vector. The sentences of a document are read separately if their boundaries are
known.
"""

# spaCy reads the types of arguments at run time, so this file does not postpone the evaluation of annotations.

import copy
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from elmo.embed.elmo import Elmo
from elmo.embed.encoding import LayerChoice, Vectors, layer_selector, similarity
from elmo.errors import ConfigError, DataError, FormatError
from elmo.integrations.requirements import require
from elmo.integrations.token_encoder import TokenEncoder
from elmo.jobs.sharded import compute_fingerprint
from elmo.model.dropout import Dropout
from elmo.storage.files import read_json
from elmo.text.tokenizers import Tokens

require("spacy", extra="spacy", at_least="0")  # any version: an error here would break every pipeline of spaCy

import srsly  # noqa: E402
from spacy.language import Language  # noqa: E402
from spacy.tokens import Doc, Span, Token  # noqa: E402
from spacy.util import minibatch  # noqa: E402
from thinc.api import ArgsKwargs, Model, Optimizer, PyTorchShim  # noqa: E402
from thinc.types import Floats2d  # noqa: E402
from thinc.util import torch2xp, xp2torch  # noqa: E402

STATE, MODEL = "elmo.json", "model"  # what the component writes to its folder


def check_spacy() -> None:
    """Raise ``MissingExtraError`` if spaCy has an unsupported version."""
    require("spacy", extra="spacy", at_least="3.7", below="4")


def sentences_in(doc: Doc) -> list[list[int]]:
    """Return the positions of the tokens of each sentence, without white space.

    A document without sentence boundaries is one sentence.
    """
    spans: Iterable[Span] = doc.sents if doc.has_annotation("SENT_START") else [doc[:]]
    sentences = ([token.i for token in span if not token.is_space] for span in spans)
    return [sentence for sentence in sentences if sentence]


# --- the architecture ------------------------------------------------------------------------------


def build_tok2vec(  # noqa: PLR0917 -- spaCy passes arguments by name
    model: str = "en",
    layers: str | int = "mix",
    tune: bool = False,
    width: int | None = None,
    dropout: float = 0.0,
    cache_mb: int = 512,
) -> Model[list[Doc], list[Floats2d]]:
    """Build the architecture ``elmo.Tok2Vec.v1``, which computes one vector per token for other components.

    Args:
        model: A bundled model, a folder, an archive or a Hub id, as in ``Elmo.from_pretrained``.
        layers: "mix" (a learned weighted sum of layers), "average", "top", "concat" or a layer number.
        tune: Train the network, too. Otherwise it is frozen, and only the mix and the projection are trained.
        width: Width of the vectors, to which a trained linear layer projects them. Default: as in the model.
        dropout: Dropout rate for the vectors in training.
        cache_mb: Memory for the layers of the sentences of a training run, in megabytes, if the network is frozen.
    """
    check_spacy()
    module = Tok2VecModule(model, layers=layers, tune=tune, width=width, dropout=dropout, cache_mb=cache_mb)
    return Model("elmo_tok2vec", run_tok2vec, shims=[Tok2VecShim(module)], dims={"nO": module.width})


def run_tok2vec(
    model: Model[list[Doc], list[Floats2d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """Compute the vectors (time, width) of each document, and return them with their backpropagation."""
    begins = np.cumsum([0, *map(len, docs)]).tolist()
    sentences = [(doc, begin, rows) for doc, begin in zip(docs, begins, strict=False) for rows in sentences_in(doc)]
    words = [Tokens.from_words([doc[k].text for k in rows]) for doc, _, rows in sentences]
    places = [begin + k for _, begin, rows in sentences for k in rows]
    inputs = ArgsKwargs((words,), {"places": places, "n_tokens": begins[-1]})
    vectors, backpropagate = model.shims[0](inputs, is_train)
    flat: Any = torch2xp(vectors.detach(), ops=model.ops)

    def backprop(gradients: list[Floats2d]) -> list[Doc]:
        if vectors.requires_grad:  # false if nothing is trained, as with layers = "average"
            gradient = xp2torch(model.ops.xp.concatenate(gradients), device=vectors.device)
            backpropagate(ArgsKwargs(((vectors,),), {"grad_tensors": (gradient,)}))
        return []

    return [flat[begin:end] for begin, end in pairwise(begins)], backprop


class Tok2VecModule(nn.Module):
    """The network of ``elmo.Tok2Vec.v1``: from the words of sentences to the vectors of all tokens.

    Attributes:
        encoder: The pretrained model with its mix of layers.
        projection: The linear layer; None if the vectors have the width of the model.
        fingerprint: Fingerprint of the pretrained model.
        width: Width of the vectors.
    """

    def __init__(
        self, model: str, *, layers: Any, tune: bool, width: int | None, dropout: float, cache_mb: int
    ) -> None:
        super().__init__()
        if width is not None and width < 1:
            raise ConfigError(f"width must be at least 1; found {width}")
        if cache_mb < 0:
            raise ConfigError(f"cache_mb must be at least 0; found {cache_mb}")
        self.source = model
        self.encoder = CachingEncoder(model, layers=layers, trainable=tune, cache_mb=cache_mb)
        self.fingerprint = compute_fingerprint(self.encoder.elmo, start="zero")  # before training
        self.projection = None if width is None else nn.Linear(self.encoder.width, width)
        self.dropout = Dropout(dropout)
        self.width = width or self.encoder.width

    def forward(self, sentences: Sequence[Tokens], *, places: Sequence[int], n_tokens: int) -> Tensor:
        """Return the vectors of all tokens, (time, width), which are zero except at ``places``."""
        if not sentences:
            return torch.zeros(n_tokens, self.width, device=self.encoder.elmo.device)
        vectors, mask = self.encoder(sentences)
        if self.projection is not None:
            vectors = self.projection(vectors)
        rows = self.dropout(vectors[mask])  # (word, width)
        index = torch.as_tensor(places, dtype=torch.int64, device=rows.device)
        return rows.new_zeros(n_tokens, self.width).index_copy(0, index, rows)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the weights to save: all of them, except those of a frozen network."""
        weights = self.state_dict()
        return {name: weight for name, weight in weights.items() if self._is_saved(name)}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load weights that ``to_tensors`` returned."""
        expected = {name: weight.shape for name, weight in self.to_tensors().items()}
        found = {name: weight.shape for name, weight in tensors.items()}
        if expected != found:
            name = min(name for name in expected | found if expected.get(name) != found.get(name))
            raise FormatError(
                f"elmo.Tok2Vec.v1: the saved weights do not fit the config: {name} must have "
                f"shape {_shape(expected.get(name))}; found {_shape(found.get(name))}"
            )
        self.load_state_dict(tensors, strict=False)

    def _is_saved(self, name: str) -> bool:
        return self.encoder.trainable or not name.startswith("encoder.bilm.")


def _shape(shape: torch.Size | None) -> str:
    return "none" if shape is None else str(tuple(shape))


class CachingEncoder(TokenEncoder):
    """A ``TokenEncoder`` that keeps the layers of sentences of a training run, in which each is read many times."""

    def __init__(self, model: str, *, layers: Any, trainable: bool, cache_mb: int) -> None:
        super().__init__(model, layers=layers, trainable=trainable)
        self.max_bytes = 0 if trainable else cache_mb << 20
        self.n_bytes, self.is_used = 0, False
        self.cache: OrderedDict[tuple[str, ...], Tensor] = OrderedDict()

    def forward(self, sentences: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Return the vectors of sentences (batch, time, width), padded with zeros, and a mask (batch, time)."""
        self.is_used |= self.training and torch.is_grad_enabled()  # from the first training step on
        return super().forward(sentences)

    def _encode(self, sentences: Sequence[Tokens], layers: LayerChoice | int) -> tuple[Tensor, Tensor]:
        if not (self.is_used and self.max_bytes):
            return super()._encode(sentences, layers)
        missing = list({s.tokens: s for s in sentences if s.tokens not in self.cache}.values())
        if missing:
            vectors, mask = super()._encode(missing, layers)
            for sentence, padded, is_token in zip(missing, vectors, mask, strict=True):
                self.cache[sentence.tokens] = copied = padded[is_token]
                self.n_bytes += copied.nbytes
        rows = [self.cache[sentence.tokens] for sentence in sentences]
        for sentence in sentences:
            self.cache.move_to_end(sentence.tokens)
        while self.n_bytes > self.max_bytes:
            self.n_bytes -= self.cache.popitem(last=False)[1].nbytes
        lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
        mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        return pad_sequence(rows, batch_first=True), mask


class Tok2VecShim(PyTorchShim):
    """The connection between a ``Tok2VecModule`` and thinc: prediction, training and serialization."""

    @property
    def module(self) -> Tok2VecModule:
        """The network."""
        return self._model

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the weights; thinc's optimizers cannot update a scalar such as γ, so weights are passed as vectors."""
        for name, weight in self.module.named_parameters():
            if weight.grad is None:
                continue
            value, gradient = (torch2xp(part.reshape(-1).clone()) for part in (weight.data, weight.grad))
            updated, _ = optimizer((self.id, name), cast("Any", value), cast("Any", gradient))
            # not in place: Language.update calls this method between the forward and the backward pass
            weight.data = xp2torch(updated, device=weight.device).reshape(weight.shape)
            weight.grad = None

    def copy(self) -> Self:
        """Copy everything that is trained; copies of a frozen network share it."""
        encoder = self.module.encoder
        shared = [] if encoder.trainable else [encoder.elmo, encoder.bilm]
        copied = copy.deepcopy(self.module, {id(part): part for part in shared} | {id(encoder.cache): OrderedDict()})
        copied.encoder.n_bytes = 0  # the cache of the copy is empty
        return type(self)(copied)

    def to_bytes(self) -> bytes:
        """Serialize the trained weights and the fingerprint of the pretrained model."""
        module = self.module
        weights = {name: weight.detach().cpu().contiguous() for name, weight in module.to_tensors().items()}
        return srsly.msgpack_dumps({"elmo": module.fingerprint, "weights": save(weights)})

    def from_bytes(self, bytes_data: bytes) -> Self:
        """Load what ``to_bytes`` returned; raise ``ConfigError`` if it belongs to another pretrained model."""
        try:
            values: Any = srsly.msgpack_loads(bytes_data)
            fingerprint, weights = values["elmo"], load(values["weights"])
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise FormatError(f"elmo.Tok2Vec.v1: the saved weights are damaged: {str(error)[:100]}") from error
        check_fingerprint(fingerprint, self.module.fingerprint, source=self.module.source)
        self.module.load_tensors(weights)
        return self


def check_fingerprint(expected: str, found: str, *, source: str) -> None:
    """Raise ``ConfigError`` if a pipeline was saved with another model than the one that was loaded."""
    if expected != found:
        raise ConfigError(
            f"model {source!r:.100} must have the fingerprint {str(expected)[:12]}…, as when the pipeline was saved; "
            f"found {found[:12]}…; load the other model, or train the pipeline again"
        )


# --- the component ---------------------------------------------------------------------------------


class ElmoPipe:
    """The component ``elmo``, which gives each token a vector that depends on its sentence.

    For each document, it sets ``doc.tensor`` (time, width) and ``doc._.elmo`` (layer, time, width), all layers. The
    vectors and similarities of tokens, spans and documents are computed from ``doc.tensor``.
    """

    def __init__(
        self,
        name: str = "elmo",
        *,
        model: str = "en",
        layers: str | int = "average",
        start: str = "zero",
        keep_layers: bool = True,
        include_model: bool = False,
    ) -> None:
        """Build the component.

        Args:
            name: Name of the component in the pipeline.
            model: A bundled model, a folder, an archive or a Hub id, as in ``Elmo.from_pretrained``.
            layers: "average", "top", "concat" or a layer number.
            start: State at the start of a sentence, "zero" or "warm".
            keep_layers: Set ``doc._.elmo``.
            include_model: Write the model to the folder of the pipeline. Otherwise, the pipeline contains its name
                and its fingerprint.
        """
        self.name, self.model = name, model
        self.layers: Any = layers  # checked below
        self.start: Any = start
        self.keep_layers, self.include_model = keep_layers, include_model
        self._elmo: Elmo | None = None
        if layers == "all":
            raise ConfigError("layers must be average, top, concat or a layer number; found all; see doc._.elmo")
        if start not in ("zero", "warm"):
            raise ConfigError(f"start must be zero or warm; found {start!r:.40}")
        if not include_model:  # otherwise, the model may exist only in the folder of the pipeline
            layer_selector(self.layers, self.elmo.n_layers)

    @property
    def elmo(self) -> Elmo:
        """The model, which is loaded on first use."""
        if self._elmo is None:
            self._elmo = Elmo.from_pretrained(self.model)
        return self._elmo

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_elmo": None}  # another process loads the model again

    def __call__(self, doc: Doc) -> Doc:
        """Set the vectors of a document."""
        return self._annotate([doc])[0]

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 64) -> Iterator[Doc]:
        """Set the vectors of many documents, in batches."""
        for docs in minibatch(stream, size=batch_size):
            yield from self._annotate(list(docs))

    def _annotate(self, docs: list[Doc]) -> list[Doc]:
        sentences = [(number, rows) for number, doc in enumerate(docs) for rows in sentences_in(doc)]
        words = [Tokens.from_words([docs[number][k].text for k in rows]) for number, rows in sentences]
        select = layer_selector(self.layers, self.elmo.n_layers)
        layers = [np.zeros((self.elmo.n_layers, len(doc), self.elmo.width), np.float32) for doc in docs]
        encodings = self.elmo.encode(words, layers="all", start=self.start, dtype="float32")
        for (number, rows), encoding in zip(sentences, encodings, strict=True):
            layers[number][:, rows] = cast("Vectors", encoding.vectors)
        for doc, states in zip(docs, layers, strict=True):
            doc.tensor = select(torch.from_numpy(states)).numpy()
            if self.keep_layers:
                doc._.elmo = states
            if multiprocessing.parent_process() is None:  # hooks cannot be sent to another process
                use_elmo_vectors(doc)
        return docs

    def to_bytes(self, *, exclude: Sequence[str] = ()) -> bytes:
        """Serialize the name and the fingerprint of the model."""
        del exclude
        return srsly.msgpack_dumps(self._state())

    def from_bytes(self, bytes_data: bytes, *, exclude: Sequence[str] = ()) -> Self:
        """Load what ``to_bytes`` returned; raise ``ConfigError`` if it belongs to another model."""
        del exclude
        try:
            state = srsly.msgpack_loads(bytes_data)
        except (ValueError, TypeError) as error:
            raise FormatError(f"component {self.name!r:.40}: the saved state is damaged: {str(error)[:100]}") from error
        self._check(state)
        return self

    def to_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> None:
        """Write a folder with the name and the fingerprint of the model, and with the model if requested."""
        del exclude
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if self.include_model and not self._is_written(folder / MODEL):
            self.elmo.save_pretrained(folder / MODEL)
        srsly.write_json(folder / STATE, self._state())

    def from_disk(self, path: str | Path, *, exclude: Sequence[str] = ()) -> Self:
        """Read what ``to_disk`` wrote; raise ``ConfigError`` if it belongs to another model."""
        del exclude
        folder = Path(path)
        if self.include_model:
            self._elmo = Elmo.from_pretrained(folder / MODEL)
        self._check(read_json(folder / STATE))
        return self

    def _is_written(self, folder: Path) -> bool:
        """Whether a folder already contains this model, as in a pipeline that is saved after each evaluation."""
        if not folder.is_dir():
            return False
        written = compute_fingerprint(Elmo.from_pretrained(folder), start=self.start)
        return written == compute_fingerprint(self.elmo, start=self.start)

    def _state(self) -> dict[str, Any]:
        return {"model": self.model, "fingerprint": compute_fingerprint(self.elmo, start=self.start)}

    def _check(self, state: Any) -> None:
        expected = state.get("fingerprint") if isinstance(state, dict) else None
        if not isinstance(expected, str):
            raise FormatError(f"component {self.name!r:.40}: the saved state has no fingerprint")
        check_fingerprint(expected, compute_fingerprint(self.elmo, start=self.start), source=self.model)


@Language.factory(
    "elmo",
    assigns=["doc.tensor", "doc._.elmo", "token.vector"],
    default_config={
        "model": "en", "layers": "average", "start": "zero", "keep_layers": True, "include_model": False,
    },
)  # fmt: skip
def build_elmo_pipe(  # noqa: PLR0917 -- spaCy passes arguments by name
    nlp: Language, name: str, model: str, layers: str | int, start: str, keep_layers: bool, include_model: bool
) -> ElmoPipe:
    """Build the component ``elmo``; see ``ElmoPipe`` for the options."""
    check_spacy()
    del nlp
    return ElmoPipe(name, model=model, layers=layers, start=start, keep_layers=keep_layers, include_model=include_model)


# --- vectors and similarities ----------------------------------------------------------------------


def use_elmo_vectors(doc: Doc) -> Doc:
    """Compute the vectors and similarities of a document, its spans and its tokens from ``doc.tensor``.

    The component ``elmo`` calls this function. Call it for documents that come from another process
    (``nlp.pipe(n_process=2)``) or from a file, because spaCy does not store these hooks. Without them, spaCy prefers
    static vectors, and the similarity of two uses of the same word is always 1.

    Args:
        doc: A document that the component ``elmo`` has processed.

    Example:
        >>> import spacy
        >>> nlp = spacy.blank("en")
        >>> _ = nlp.add_pipe("elmo")
        >>> doc = use_elmo_vectors(nlp("The bank of the river."))
        >>> doc[1].vector.shape == (elmo.width,)
        True
    """
    if len(doc.tensor) != len(doc):
        raise DataError(
            f"the document must have one vector per token in doc.tensor; found shape {doc.tensor.shape} for {len(doc)} "
            "tokens; process it with a pipeline that has the component elmo (a DocBin does not store doc.tensor)"
        )
    doc.user_hooks |= {"vector": _doc_vector, "has_vector": _has_vector, "similarity": _similarity}
    doc.user_span_hooks |= {"vector": _span_vector, "has_vector": _has_vector, "similarity": _similarity}
    doc.user_token_hooks |= {"vector": _token_vector, "has_vector": _has_vector, "similarity": _similarity}
    return doc


def _token_vector(token: Token) -> Vectors:
    return token.doc.tensor[token.i]


def _span_vector(span: Span | Doc) -> Vectors:
    """The mean over all tokens that are not white space."""
    words = [token.i for token in span if not token.is_space]
    tensor = cast("Vectors", span.doc.tensor)
    return tensor[words].mean(axis=0) if words else np.zeros(tensor.shape[-1], tensor.dtype)


_doc_vector = _span_vector  # doc.doc is doc


def _has_vector(item: Doc | Span | Token) -> bool:
    return bool(np.any(cast("Vectors", item.vector)))


def _similarity(item: Doc | Span | Token, other: Any) -> float:
    a, b = cast("Vectors", item.vector), cast("Vectors", other.vector)
    if a.shape != b.shape:
        raise DataError(
            f"cannot compare {item.text[:40]!r} with {other.text[:40]!r}: their vectors have widths {a.shape[-1]} and "
            f"{b.shape[-1]}; both must come from a pipeline with the same elmo component"
        )
    return similarity(a, b)


def _token_layers(token: Token) -> Vectors | None:
    """All layers of a token, (layer, width)."""
    layers = token.doc._.elmo
    return None if layers is None else layers[:, token.i]


def _span_layers(span: Span) -> Vectors | None:
    """The mean of all layers over the tokens of a span, (layer, width)."""
    layers, words = span.doc._.elmo, [token.i for token in span if not token.is_space]
    return None if layers is None or not words else layers[:, words].mean(axis=1)


def _add_extensions() -> None:
    if not Doc.has_extension("elmo"):
        Doc.set_extension("elmo", default=None)
    if not Token.has_extension("elmo"):
        Token.set_extension("elmo", getter=_token_layers)
    if not Span.has_extension("elmo"):
        Span.set_extension("elmo", getter=_span_layers)


_add_extensions()
