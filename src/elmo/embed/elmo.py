"""``Elmo``: load a pretrained model, and compute a contextual vector for every token of a text."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast, overload

import numpy as np

from elmo.embed.encoding import DTYPES, Encoding, LayerChoice, Vectors, layer_selector, vector_converter
from elmo.embed.finite import Overflow, check_finite, not_finite
from elmo.embed.start import Carry, Start, compute_warm_state, warm_start
from elmo.engine.batches import BATCH_TOKENS, MAX_TOKENS, split_batches, track_progress
from elmo.errors import ConfigError, DataError, SentenceTooLongError, StateError
from elmo.formats.pretrained import Pretrained, WarmState
from elmo.text.ids import IdBatch
from elmo.text.tokenizers import Tokenizer, Tokens, load_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from elmo.embed.sense import SenseView
    from elmo.engine.bilm import EngineOutput, PreparedWeights
    from elmo.engine.matmul import Kernels
    from elmo.formats.hub_upload import HubUpload
    from elmo.model.bilm import BiLmState
    from elmo.model.mix import LayerMix
    from elmo.storage.tensors import Dtype

Sentence = str | Sequence[str] | Tokens
DEVICES = ("cpu", "cuda", "mps", "xpu")
PRECISIONS = (*DTYPES, "int8", "auto")  # the last two are for the network only, not for the vectors
CARRY_BATCH_SIZE = 256  # default batch size with a Carry, as in bilm-tf


class EncodeOptions(TypedDict, total=False):
    """The options of ``Elmo.encode`` except ``as_tensor``, for type checkers."""

    layers: LayerChoice | int | LayerMix
    start: Start
    batch_size: int | None
    dtype: str | None
    overflow: Overflow
    device: str | torch.device | None
    max_tokens: int | None
    show_progress: bool


class Elmo:
    """A pretrained ELMo model that encodes text.

    >>> import elmo
    >>> model = elmo.Elmo.from_pretrained()
    >>> bank = model.encode("I sat by the bank of the river.").word("bank")

    Several threads may use one model, and a process may fork while they do. A call uses the weights from its start
    until its end, also if another thread changes the precision or the device meanwhile.

    Attributes:
        bilm: The network, an ``nn.Module`` that can be trained as part of another model.
        config: The architecture of the network.
        vocab: The vocabulary of the softmax; None if the model has no vocabulary.
        softmax: The weights of the softmax; None if the model has no softmax.
        pretrained: The model as it was loaded, with its metadata and warm state.
        source: The name or the absolute path that ``from_pretrained`` loaded; None for a model from elsewhere.
        tokenizer: The tokenizer that splits text into tokens.
        n_layers: Number of layers, including the token layer.
        width: Number of values per token in one layer.
    """

    def __init__(
        self,
        model: Pretrained,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenizer: str | Tokenizer | Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Build the network of a loaded model.

        Args:
            model: The model, as ``elmo.formats.load`` returns it.
            device: Device of the network, as in ``from_pretrained``.
            dtype: Precision of the network, as in ``from_pretrained``.
            tokenizer: Tokenizer to use instead of that of the model.
        """
        import torch

        from elmo.engine.bilm import Engine
        from elmo.model.bilm import BiLm

        if not isinstance(model, Pretrained):
            raise ConfigError(f"model must be a Pretrained; found {type(model).__name__}; use Elmo.from_pretrained")
        self.pretrained = model
        self.source: str | None = None
        self.config = model.config
        self.n_layers, self.width = model.config.n_layers, model.config.width
        self.vocab = model.vocab
        self.softmax = model.softmax
        tokenizer = tokenizer or str(model.metadata.get("tokenizer", "en"))
        self._tokenizer_name = tokenizer if isinstance(tokenizer, str) else None  # saved with the model
        self.tokenizer = cast("Tokenizer", load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer)
        with torch.device("meta"):
            self.bilm = BiLm.from_config(model.config)
        self.bilm.load_state_dict(dict(model.weights), strict=True, assign=True)
        self.bilm.eval().requires_grad_(False)
        self.indexer = model.indexer()
        self._engine = Engine(self.bilm, self.indexer)
        self._full_weights = model.weights  # the weights before they were rounded; see convert_weights
        self._sense_view: SenseView | None = None  # for layers="sense", created on first use
        self.to(device, dtype=dtype)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenizer: str | Tokenizer | Callable[[str], Sequence[str]] | None = None,
    ) -> Self:
        """Load a model in any published format.

        Args:
            source: A bundled model ("en" or "zh"), a published model ("allenai/original"; ``elmo.catalog`` lists them),
                a folder, an archive or a Hub id. Default: "en".
            device: "cpu", "cuda", "mps" or "xpu".
            dtype: Precision of the network: "float32", "float64", "bfloat16", "float16" or "int8"; or "auto", the
                fastest of float32, bfloat16 and int8 whose relative error on this CPU is at most 1%.
            tokenizer: The name of a tokenizer ("en", "zh", "whitespace", "characters", "spacy:LANG"), or a function
                that splits a string into a list of tokens. Default: the tokenizer of the model.
        """
        from elmo.formats.pretrained import absolute_source, load

        elmo = cls(load(source), device=device, dtype=dtype, tokenizer=tokenizer)
        elmo.source = absolute_source(source)
        return elmo

    @classmethod
    def from_files(
        cls,
        options: str | Path,
        weights: str | Path,
        *,
        vocab: str | Path | None = None,
        softmax: str | Path | None = None,
        embedding: str | Path | None = None,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenizer: str | Tokenizer | Callable[[str], Sequence[str]] | None = None,
    ) -> Self:
        """Load a model from AllenNLP or bilm-tf files.

        Args:
            options: The options file (JSON).
            weights: The weights file (HDF5).
            vocab: The vocabulary file.
            softmax: The file of the softmax weights.
            embedding: A file of precomputed token embeddings for the words of ``vocab``.
            device: As in ``from_pretrained``.
            dtype: As in ``from_pretrained``.
            tokenizer: As in ``from_pretrained``.
        """
        from elmo.formats.bilm_hdf5 import read_files

        extra = {"vocab": vocab, "softmax": softmax, "embedding": embedding}
        paths = {name: None if path is None else Path(path) for name, path in extra.items()}
        model = read_files(Path(options), Path(weights), **paths)
        return cls(model, device=device, dtype=dtype, tokenizer=tokenizer)

    def save_pretrained(self, folder: str | Path, *, dtype: Dtype = "float32") -> None:
        """Write the model with its current weights to a folder, in elmo's native format.

        Args:
            folder: The folder to write.
            dtype: Data type of the stored weights: "float32", "float16", "bfloat16", or "int8" with a scale for each
                row of a matrix.
        """
        from elmo.formats import native

        native.write(self.as_pretrained(), Path(folder), dtype=dtype)

    def push_to_hub(self, repo_id: str, options: HubUpload | None = None) -> str:
        """Upload the model with its current weights to the Hugging Face Hub, with a model card.

        Returns the address of the commit. ``Elmo.from_pretrained(repo_id)`` loads the model again.

        Args:
            repo_id: The id of the model, such as "org/name". It is created if it does not exist.
            options: Branch, access, and the metadata and scores of the model card.
        """
        from elmo.formats.hub_upload import HubUpload, upload

        return upload(self.as_pretrained(), repo_id, options or HubUpload())

    def as_pretrained(self) -> Pretrained:
        """Return the model with its current weights, and with the name of its tokenizer in the metadata."""
        weights = {name: weight.cpu().float() for name, weight in self._engine.weights().items()}
        metadata = dict(self.pretrained.metadata)
        if self._tokenizer_name not in (None, metadata.get("tokenizer", "en")):
            metadata["tokenizer"] = self._tokenizer_name
        return replace(self.pretrained, weights=weights, metadata=metadata)

    def snapshot(self) -> Self:
        """Return a model with the current weights, which does not follow later calls of ``to`` on this model.

        Use it for work that takes several calls, which must all use the same weights. Both models share their memory,
        so that training one of them changes the other.
        """
        other = copy.copy(self)
        with self._engine.converting():
            other._full_weights, other._engine = self._full_weights, self._engine.snapshot()
        other.bilm = other._engine.bilm
        return other

    def unaligned(self) -> Self:
        """Return the same model without its alignment: its vectors in their own coordinates.

        Both models share their memory. A model without an alignment returns itself.
        """
        if self.pretrained.alignment is None:
            return self
        other = copy.copy(self)
        metadata = {name: value for name, value in self.pretrained.metadata.items() if name != "aligned"}
        other.pretrained = replace(self.pretrained, alignment=None, metadata=metadata)
        return other

    def coordinates(self) -> frozenset[str]:
        """Return the fingerprints of the models whose coordinates the vectors have: its own and that of its target.

        The vectors of two models can be compared if the results have a common element.
        """
        from elmo.formats.pretrained import fingerprint

        alignment = self.pretrained.alignment
        exact = self.snapshot().to(dtype="float32")  # rounded weights have the same coordinates
        own = fingerprint(replace(self.pretrained, weights=exact.bilm.state_dict()))
        return frozenset({own, *(alignment.targets if alignment else ())})

    def __repr__(self) -> str:
        return f"Elmo({self.pretrained.format}, {self.n_layers} layers, {self.width} wide, on {self.device})"

    @property
    def device(self) -> torch.device:
        """The device on which the network runs."""
        return next(self.bilm.parameters()).device

    @property
    def precision(self) -> str:
        """The precision of the network: the name of a torch dtype, or "int8"."""
        return self._engine.precision

    @property
    def kernels(self) -> Kernels:
        """The matrix multiplication kernels that are used on this machine, and the reason for this choice."""
        return self._engine.kernels

    def engine(self) -> dict[str, str]:
        """Describe the kernels, the precision and the threads that compute the network."""
        return self._engine.describe()

    def to(self, device: str | torch.device | None = None, *, dtype: str | None = None) -> Self:
        """Move the network to another device or change its precision; None leaves the current value.

        All weights change at once: a call in another thread that has already started ends with the weights from before.

        A lower precision rounds the weights of ``bilm``. The full weights stay in the memory of the CPU, mapped from
        the file of the model if its format allows, so a higher precision has the original numbers again, bit for bit.
        Weights that were trained or replaced in the meantime are not restored, but converted as they are.

        Args:
            device: As in ``from_pretrained``.
            dtype: As in ``from_pretrained``.
        """
        import torch

        from elmo.engine.matmul import choose_kernels

        if dtype is not None and dtype not in PRECISIONS:
            raise ConfigError(f"dtype must be one of {', '.join(PRECISIONS)}; found {dtype!r:.40}")
        if device is not None and str(device).partition(":")[0] not in DEVICES:
            raise ConfigError(f"device must be one of {', '.join(DEVICES)}; found {str(device)!r:.40}")
        if dtype == "auto":
            from elmo.embed.precision import choose_dtype

            exact = self.snapshot().to(device, dtype="float32")
            dtype = choose_dtype(exact._engine, None if self.vocab is None else self.vocab.words)
        # the engine rounds int8 weights from float32
        torch_dtype = None if dtype is None else getattr(torch, "float32" if dtype == "int8" else dtype)
        try:
            torch_device = None if device is None else torch.empty(0, device=device).device  # with its number
            if self._is_on(torch_device, torch_dtype) and dtype in (None, self._engine.precision):
                return self
            from elmo.embed.precision import convert_weights

            with self._engine.converting():
                is_int8 = self._engine.is_int8 if dtype is None else dtype == "int8"
                if is_int8:  # raise an error before anything is moved
                    is_cpu = (torch_device or self.device).type == "cpu"
                    choose_kernels(torch.empty(0, device="cpu" if is_cpu else "meta"), is_int8=True)
                weights, self._full_weights = convert_weights(
                    self._engine.weights(), self._full_weights, device=torch_device, dtype=torch_dtype
                )
                self._engine.replace_weights(weights, is_int8=is_int8)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"cannot use device {device!s}: {reason}") from error
        return self

    def _is_on(self, device: torch.device | None, dtype: torch.dtype | None) -> bool:
        """Whether all weights have this device and this type; None is any."""
        return all(
            (device is None or weight.device == device) and (dtype is None or weight.dtype == dtype)
            for weight in self.bilm.parameters()
        )

    @overload
    def encode(
        self, sentences: str | Tokens, *, as_tensor: Literal[False] = False, **options: Unpack[EncodeOptions]
    ) -> Encoding: ...
    @overload
    def encode(
        self, sentences: str | Tokens, *, as_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Encoding[Tensor]: ...
    @overload
    def encode(
        self, sentences: str | Tokens, *, as_tensor: bool, **options: Unpack[EncodeOptions]
    ) -> Encoding[Any]: ...
    @overload
    def encode(
        self, sentences: Iterable[Sentence], *, as_tensor: Literal[False] = False, **options: Unpack[EncodeOptions]
    ) -> list[Encoding]: ...
    @overload
    def encode(
        self, sentences: Iterable[Sentence], *, as_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> list[Encoding[Tensor]]: ...
    @overload
    def encode(
        self, sentences: Iterable[Sentence], *, as_tensor: bool, **options: Unpack[EncodeOptions]
    ) -> list[Encoding[Any]]: ...

    def encode(
        self,
        sentences: str | Tokens | Iterable[Sentence],
        *,
        layers: LayerChoice | int | LayerMix = "average",
        start: Start = "zero",
        batch_size: int | None = None,
        as_tensor: bool = False,
        dtype: str | None = None,
        overflow: Overflow = "warn",
        device: str | torch.device | None = None,
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Encoding[Any] | list[Encoding[Any]]:
        """Compute a vector for every token.

        For a single string, the result is one ``Encoding``; for an iterable, it is a list in the same order.
        The vectors of a sentence do not depend on the other sentences, unless ``start`` is a ``Carry``.

        Args:
            sentences: A string, or an iterable of strings and lists of tokens. Strings are tokenized.
            layers: "average", "top", "concat", "all" (layer, time, width), a layer number or a ``LayerMix``; or
                "sense", for comparing usages of words (see docs/vectors.md).
            start: State at the start of a sentence: "zero", "warm" (stored with the model) or a ``Carry``.
            batch_size: Number of sentences per batch. Default: as many as fit into 16,384 tokens.
            as_tensor: Return tensors instead of NumPy arrays.
            dtype: Data type of the returned vectors. Default: the precision of the network.
            overflow: What to do if numbers are too large for ``dtype="float16"``: "saturate" (use the largest number in
                float16), "warn" (the same, with a warning) or "error" (raise ``NotFiniteError``).
            device: Device to which the model is moved first.
            max_tokens: Maximum number of tokens in a sentence. A value below 16,384 also limits the default size of
                batches. Default: 100,000.
            show_progress: Show a progress bar on stderr.
        """
        is_single = isinstance(sentences, str | Tokens)
        items = [sentences] if is_single else _as_list(sentences)
        limit = MAX_TOKENS if max_tokens is None else max_tokens
        tokenized = [self._tokenize(item, index, max_tokens=limit) for index, item in enumerate(items)]
        if device is not None:
            self.to(device)
        view = self._view(layers)
        convert = vector_converter(as_tensor=as_tensor, dtype=dtype, overflow=overflow)
        batches = self._run(
            tokenized, start=start, batch_size=batch_size, max_tokens=limit, show_progress=show_progress
        )
        encodings: list[Encoding[Any]] = []
        with np.errstate(all="ignore"):
            for batch, output in batches:
                for number, (tokens, vectors) in enumerate(zip(batch, view(batch, output), strict=True)):
                    converted = convert(vectors)
                    if converted is None:
                        raise not_finite(tokens.tokens, output.layers[number], vectors, precision=self.precision)
                    encodings.append(Encoding(tokens.tokens, converted, tokens.text, tokens.offsets))
        return encodings[0] if is_single else encodings

    def _view(
        self, layers: LayerChoice | int | LayerMix
    ) -> Callable[[Sequence[Tokens], EngineOutput], Iterable[Tensor]]:
        """Return a function that computes the vectors of each sentence of a batch."""
        alignment = self.pretrained.alignment
        if not isinstance(layers, str) or layers != "sense":
            select = layer_selector(layers, self.n_layers)
            if alignment is None:
                return lambda batch, output: map(select, output.layers)
            return lambda batch, output: (select(alignment.map_layers(states)) for states in output.layers)
        if self._sense_view is None:
            from elmo.embed.sense import SenseView

            self._sense_view = SenseView(self.vocab, self.softmax, self.indexer)
        sense_view, run_tasks = self._sense_view, self._engine.run_tasks

        def view(batch: Sequence[Tokens], output: EngineOutput) -> Iterable[Tensor]:
            vectors = sense_view([tokens.tokens for tokens in batch], output, run_tasks)
            return vectors if alignment is None else map(alignment.map_sense, vectors)

        return view

    def _tokenize(self, sentence: Any, index: int, *, max_tokens: int | None = None) -> Tokens:
        tokens = as_tokens(sentence, self.tokenizer, subject=f"sentence {index}")
        if max_tokens is not None and len(tokens) > max_tokens:
            raise SentenceTooLongError(
                f"sentence {index} must have at most {max_tokens} tokens; found {len(tokens)}; split it, or increase "
                "max_tokens"
            )
        return tokens

    def _run(
        self,
        tokenized: Sequence[Tokens],
        *,
        start: Start,
        batch_size: int | None = None,
        max_tokens: int = MAX_TOKENS,
        show_progress: bool = False,
    ) -> Iterator[tuple[list[Tokens], EngineOutput]]:
        """Run the network; yield the sentences of each batch with their layers, in order."""
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1; found {batch_size}")
        prepared = self._engine.prepare()  # for all batches
        carry = start if isinstance(start, Carry) else None
        state = None if isinstance(start, Carry) else self._fixed_start(start, prepared)
        if batch_size is None and carry is not None:
            batch_size = CARRY_BATCH_SIZE
        batches = list(split_batches(tokenized, batch_size=batch_size, max_tokens=min(max_tokens, BATCH_TOKENS)))
        for batch in track_progress(batches, "Embedding", is_shown=show_progress):
            if carry is not None:
                state = carry.rows(len(batch), prepared.zero)
            try:
                output = self._engine.run([tokens.tokens for tokens in batch], start=state, prepared=prepared)
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                longest = max(len(tokens) for tokens in batch)
                raise SentenceTooLongError(
                    f"cannot encode a batch of {len(batch)} sentences with up to {longest} tokens: not enough memory; "
                    f"use a smaller batch_size, or split sentences of more than {longest // 2} tokens"
                ) from error
            if carry is not None:
                carry.update(output.state)
            yield batch, output

    def _fixed_start(self, start: str, prepared: PreparedWeights) -> BiLmState | None:
        if start == "zero":
            return None
        if start == "warm":
            return warm_start(self.pretrained.warm, prepared.zero)
        if start == "carry":
            raise StateError(
                "start must be 'zero', 'warm' or a Carry; found 'carry'; create one Carry() and pass it to every call"
            )
        value = repr(start) if isinstance(start, str) else type(start).__name__
        raise ConfigError(f"start must be 'zero', 'warm' or a Carry(); found {value[:40]}")

    def outputs(
        self,
        sentences: Iterable[Sentence] | None = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        lengths: Sequence[int] | None = None,
        start: Start = "zero",
    ) -> dict[str, Vectors]:
        """Compute the outputs of TF-Hub's ELMo module, under the same names.

        The result has ``word_emb`` (batch, time, width / 2), the token layer; ``lstm_outputs1`` and
        ``lstm_outputs2`` (batch, time, width), the LSTM layers; ``elmo`` (batch, time, width), the weighted sum
        of all layers, with the published weights if the model has them; and ``default`` (batch, width), the
        mean of ``elmo`` over the tokens. Shorter sentences are padded with zeros.

        Args:
            sentences: Strings, which are split at spaces, as the module does.
            tokens: Lists of tokens; use either this or ``sentences``.
            lengths: Number of tokens in each row of ``tokens``; the rest of a row is padding.
            start: As in ``encode``.
        """
        from elmo.embed.tfhub import build_outputs, read_rows

        if self.config.encoder_name != "lstm":
            raise ConfigError(
                f"outputs are those of LSTM layers; found {self.config.encoder_title} layers; use encode()"
            )
        self.pretrained.check_unaligned("compute the outputs of TF-Hub's module with")  # word_emb has half the width
        rows = [
            self._tokenize(row, index, max_tokens=MAX_TOKENS)
            for index, row in enumerate(read_rows(sentences, tokens, lengths))
        ]
        layers = (states for _, output in self._run(rows, start=start) for states in output.layers)
        with np.errstate(all="ignore"):
            outputs = build_outputs(layers, [len(row) for row in rows], self.config, self.pretrained.mix)
        for name, values in outputs.items():
            check_finite(values, f"the values of {name!r}", precision=self.precision)
        return outputs

    def warm_up(self, text: Iterable[Sentence], *, show_progress: bool = False) -> WarmState:
        """Compute a warm state from running text and store it in this object, for ``start="warm"``.

        Args:
            text: Sentences in their original order. Only the first 2,048 are used.
            show_progress: Show a progress bar on stderr.
        """
        items = [text] if isinstance(text, str) else text
        sentences = (self._tokenize(item, index, max_tokens=MAX_TOKENS).tokens for index, item in enumerate(items))
        warm = compute_warm_state(self._engine, sentences, show_progress=show_progress)
        self.pretrained = replace(self.pretrained, warm=warm)
        return warm

    def clear_cache(self) -> None:
        """Free the memory of the cached token vectors, which are kept for up to 50,000 words."""
        self._engine.clear_cache()

    def batch(self, sentences: Iterable[Sentence]) -> IdBatch:
        """Return the padded ids of sentences with their boundary tokens, as input for ``bilm``."""
        return self.indexer.batch(
            [self._tokenize(item, index).tokens for index, item in enumerate(_as_list(sentences))]
        )


def _as_list(sentences: Any) -> list[Any]:
    if isinstance(sentences, str | bytes | bytearray | Tokens):
        return [sentences]
    if isinstance(sentences, Iterable):
        return list(cast("Iterable[Any]", sentences))
    raise DataError(f"sentences must be a string or an iterable of sentences; found {type(sentences).__name__}")


def as_tokens(sentence: Any, tokenizer: Tokenizer, *, subject: str) -> Tokens:
    """Return the tokens of a sentence, which is a string or a list of tokens; ``subject`` is for error messages."""
    if isinstance(sentence, Tokens):
        return sentence
    if isinstance(sentence, str):
        tokens: Any = tokenizer(sentence)  # a function of the caller, such as str.split, returns a list
        return tokens if isinstance(tokens, Tokens) else Tokens.from_words(tokens)
    if not isinstance(sentence, Sequence) or isinstance(sentence, bytes | bytearray):
        raise DataError(f"{subject} must be text or a list of tokens; found {type(sentence).__name__}")
    try:
        return Tokens.from_words(cast("Sequence[str]", sentence))
    except DataError as error:
        raise DataError(f"{subject}: {error}") from error


def _is_out_of_memory(error: MemoryError | RuntimeError) -> bool:
    """Return whether memory ran out; torch and oneDNN raise a RuntimeError, so the message is searched."""
    message = str(error)
    return isinstance(error, MemoryError) or "memory" in message or "could not create a primitive" in message
