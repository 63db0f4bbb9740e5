"""``Elmo``: text or tokens in, a vector for every word in its context out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack, cast, overload

from elmo.embed.encoding import DTYPES, Encoding, LayerChoice, Vectors, check_dtype, finisher, layer_taker
from elmo.embed.start import Carry, Start, mean_state
from elmo.engine.batches import MAX_TOKENS, PIECE_TOKENS, pieces, tracked
from elmo.errors import ConfigError, DataError, SentenceTooLongError, StateError
from elmo.formats.pretrained import Pretrained, WarmState
from elmo.text.ids import CharBatch
from elmo.text.tokenizers import Tokenizer, Tokens
from elmo.text.tokenizers import tokenizer as tokenizer_by_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from elmo.engine.matmul import Kernels
    from elmo.model.bilm import BiLmState
    from elmo.model.mix import LayerMix
    from elmo.storage.tensors import Dtype

Sentence = str | Sequence[str] | Tokens
DEVICES = ("cpu", "cuda", "mps", "xpu")
PRECISIONS = (*DTYPES, "int8")  # of the network; vectors have no int8
CARRIED_ROWS = 256  # sentences of a batch when states are carried from row to row, as bilm-tf's batches did


class EncodeOptions(TypedDict, total=False):
    """The options of ``Elmo.encode``."""

    layers: LayerChoice | int | LayerMix
    start: Start
    batch_size: int | None
    as_tensor: bool
    dtype: str | None
    device: str | torch.device | None
    max_tokens: int | None
    show_progress: bool


class Elmo:
    """A pretrained biLM, ready to read.

    ``bilm`` is the network, an ``nn.Module`` for those who train with it; ``config``, ``vocab`` and
    ``softmax`` are what came with it.
    """

    def __init__(
        self,
        model: Pretrained,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenizer: str | Tokenizer | None = None,
    ) -> None:
        """Build the network from ``model``; ``tokenizer`` names a tokeniser, or is one."""
        import torch

        from elmo.engine.bilm import Engine
        from elmo.model.bilm import BiLm

        check_dtype(dtype, PRECISIONS)
        if not isinstance(model, Pretrained):
            raise ConfigError(
                f"expected a model that has been read, found {type(model).__name__}; use Elmo.from_pretrained"
            )
        self.pretrained = model
        self.config = model.config
        self.vocab = model.vocab
        self.softmax = model.softmax
        chosen = tokenizer or str(model.metadata.get("tokenizer", "en"))
        self.tokenizer: Tokenizer = tokenizer_by_name(chosen) if isinstance(chosen, str) else chosen
        self._tokenizer_name = chosen if isinstance(chosen, str) else None  # that a saved model remembers
        with torch.device("meta"):
            self.bilm = BiLm.from_config(model.config)
        self.bilm.load_state_dict(dict(model.weights), strict=True, assign=True)
        self.bilm.eval().requires_grad_(False)
        self.indexer = model.indexer()
        self._engine = Engine(self.bilm, self.indexer)
        self.to(device, dtype=dtype)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenizer: str | Tokenizer | None = None,
    ) -> Self:
        """Load a model of any published format from a folder, an archive or a Hub id."""
        from elmo.formats.load import load

        return cls(load(source), device=device, dtype=dtype, tokenizer=tokenizer)

    @classmethod
    def from_files(
        cls,
        options: str | Path,
        weights: str | Path,
        *,
        vocab: str | Path | None = None,
        softmax: str | Path | None = None,
        embedding: str | Path | None = None,
        **settings: Any,
    ) -> Self:
        """Load AllenNLP or bilm-tf files by name; ``embedding`` is a token cache that goes with ``vocab``."""
        from elmo.formats.hdf5 import read_files

        extra = {"vocab": vocab, "softmax": softmax, "embedding": embedding}
        paths = {name: None if path is None else Path(path) for name, path in extra.items()}
        return cls(read_files(Path(options), Path(weights), **paths), **settings)

    def save_pretrained(self, folder: str | Path, *, dtype: Dtype = "float32") -> None:
        """Write the model, as its weights are now, in elmo's own format; a named tokeniser goes with it."""
        from elmo.formats import native

        native.write(self.as_pretrained(), Path(folder), dtype=dtype)

    def as_pretrained(self) -> Pretrained:
        """The model as its weights are now, whatever it was loaded from; a named tokeniser goes with it."""
        from dataclasses import replace

        weights = {name: weight.detach().cpu().float() for name, weight in self.bilm.state_dict().items()}
        metadata = dict(self.pretrained.metadata)
        if self._tokenizer_name not in (None, metadata.get("tokenizer", "en")):
            metadata["tokenizer"] = self._tokenizer_name
        return replace(self.pretrained, weights=weights, metadata=metadata)

    def __repr__(self) -> str:
        return f"Elmo({self.pretrained.format}, {self.n_layers} layers, {self.width} wide, on {self.device})"

    @property
    def n_layers(self) -> int:
        """Layers of a word's vector: the token layer and each LSTM layer."""
        return self.config.n_layers

    @property
    def width(self) -> int:
        """Width of one layer."""
        return self.config.width

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.bilm.parameters()).device

    @property
    def precision(self) -> str:
        """The type that the network is computed in: one of torch's, or int8."""
        dtype = next(self.bilm.parameters()).dtype
        return "int8" if self._engine.is_int8 else str(dtype).removeprefix("torch.")

    @property
    def kernels(self) -> Kernels:
        """What products the network is computed with on this machine, and why."""
        return self._engine.kernels

    def engine(self) -> dict[str, str]:
        """How this machine computes the network, and why so, in words."""
        return self._engine.description()

    def to(self, device: str | torch.device | None = None, *, dtype: str | None = None) -> Self:
        """Move the network to a device, or compute in another precision."""
        import torch

        from elmo.engine.matmul import choose

        check_dtype(dtype, PRECISIONS)
        if device is not None and str(device).partition(":")[0] not in DEVICES:
            raise ConfigError(f"device must be one of {', '.join(DEVICES)}, not {str(device)!r:.40}")
        is_int8 = self._engine.is_int8 if dtype is None else dtype == "int8"
        like = next(self.bilm.parameters())
        if is_int8:  # refused before anything is moved
            is_cpu = str(like.device if device is None else device).partition(":")[0] == "cpu"
            choose(torch.empty(0, device="cpu" if is_cpu else "meta"), is_int8=True)
        before = like.device, like.dtype, self._engine.is_int8
        kept = "float32" if dtype == "int8" else dtype  # int8 is rounded from float32, and only in products
        try:
            self.bilm.to(
                device=device, dtype=None if kept is None else cast("torch.dtype", getattr(torch, kept))
            )
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"cannot use device {device!s}: {reason}") from error
        like = next(self.bilm.parameters())
        if (like.device, like.dtype, is_int8) != before:
            self._engine.forget(is_int8=is_int8)
        return self

    @overload
    def encode(self, sentences: str | Tokens, **options: Unpack[EncodeOptions]) -> Encoding: ...
    @overload
    def encode(self, sentences: Iterable[Sentence], **options: Unpack[EncodeOptions]) -> list[Encoding]: ...

    def encode(
        self,
        sentences: str | Tokens | Iterable[Sentence],
        *,
        layers: LayerChoice | int | LayerMix = "average",
        start: Start = "zero",
        batch_size: int | None = None,
        as_tensor: bool = False,
        dtype: str | None = None,
        device: str | torch.device | None = None,
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Encoding | list[Encoding]:
        """A vector for every token; one string gives one ``Encoding``, an iterable a list in its order.

        A string is tokenised, a list of strings inside the iterable is taken as tokens. ``layers`` is
        "average", "top", "all" (layer, time, width), "concat", a layer's number or a ``LayerMix``;
        ``dtype`` is that of the vectors given back. No sentence may have more than ``max_tokens``, and no
        more are read at once; ``batch_size`` counts sentences instead. The vectors of a sentence depend on
        that sentence alone, whatever either is, unless ``start`` is a ``Carry``.
        """
        is_one = isinstance(sentences, str | Tokens)
        items = [sentences] if is_one else _as_list(sentences)
        limit = MAX_TOKENS if max_tokens is None else max_tokens
        tokenised = [self._tokens(item, place, max_tokens=limit) for place, item in enumerate(items)]
        if device is not None:
            self.to(device)
        take = layer_taker(layers, self.n_layers)
        finish = finisher(as_tensor=as_tensor, dtype=dtype)
        found: list[Encoding] = []
        for tokens, states in self._layers(
            tokenised, start=start, batch_size=batch_size, max_tokens=limit, show_progress=show_progress
        ):
            found.append(Encoding(tokens.tokens, finish(take(states)), tokens.text, tokens.offsets))
        return found[0] if is_one else found

    def outputs(
        self,
        sentences: Iterable[Sentence] | None = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        lengths: Sequence[int] | None = None,
        start: Start = "zero",
    ) -> dict[str, Vectors]:
        """The outputs of the TF-Hub module, by its names, padded with zeros to the longest sentence.

        Give ``sentences`` as strings, which are split on spaces as the module does, or ``tokens`` with the
        ``lengths`` of the rows. ``word_emb`` (batch, time, width / 2) is the token layer, ``lstm_outputs1``
        and ``lstm_outputs2`` (batch, time, width) are the LSTM layers, ``elmo`` their weighted sum (with
        the model's own weights where its publisher gave some), ``default`` its mean over true tokens.
        """
        from elmo.embed.encoding import outputs, true_tokens

        found = enumerate(true_tokens(sentences, tokens, lengths))
        rows = [self._tokens(row, place, max_tokens=MAX_TOKENS) for place, row in found]
        layers = (states for _, states in self._layers(rows, start=start))
        return outputs(layers, [len(row) for row in rows], self.config, self.pretrained.mix)

    def warm_up(self, text: Iterable[Sentence], *, show_progress: bool = False) -> WarmState:
        """Read running text and keep the mean state, so that ``start="warm"`` works from now on.

        Text in its order, a sentence an item; the first two thousand sentences are enough, and are all
        that is read.
        """
        from dataclasses import replace

        items = [text] if isinstance(text, str) else text
        tokenised = (
            self._tokens(item, place, max_tokens=MAX_TOKENS).tokens for place, item in enumerate(items)
        )
        warm = mean_state(self._engine, tokenised, show_progress=show_progress)
        self.pretrained = replace(self.pretrained, warm=warm)
        return warm

    def clear_cache(self) -> None:
        """Let go of the words' vectors that are remembered for the next call: 50,000 words at most."""
        self._engine.forget_words()

    def batch(self, sentences: Iterable[Sentence]) -> CharBatch:
        """Padded ids of sentences with their boundaries, as ``bilm`` reads them."""
        return self.indexer.batch(
            [self._tokens(item, i).tokens for i, item in enumerate(_as_list(sentences))]
        )

    # --- inside -------------------------------------------------------------------------------------

    def _tokens(self, sentence: Any, place: int, *, max_tokens: int | None = None) -> Tokens:
        if isinstance(sentence, str):
            found = self.tokenizer(sentence)
            if not isinstance(found, Tokens):  # a function of the user's own, such as str.split
                found = Tokens.given(found)
        elif isinstance(sentence, Tokens):
            found = sentence
        elif isinstance(sentence, Sequence) and not isinstance(sentence, bytes | bytearray):
            try:
                found = Tokens.given(cast("Sequence[str]", sentence))
            except DataError as error:
                raise DataError(f"sentence {place}: {error}") from error
        else:
            raise DataError(
                f"sentence {place}: expected text or a list of tokens, found {type(sentence).__name__}"
            )
        if max_tokens is not None and len(found) > max_tokens:
            raise SentenceTooLongError(
                f"sentence {place} has {len(found)} tokens, but the limit is {max_tokens}; "
                "split it, or raise max_tokens"
            )
        return found

    def _layers(
        self,
        tokenised: Sequence[Tokens],
        *,
        start: Start,
        batch_size: int | None = None,
        max_tokens: int = MAX_TOKENS,
        show_progress: bool = False,
    ) -> Iterator[tuple[Tokens, Tensor]]:
        """Each sentence with all its layers (layer, time, width), in order."""
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
        fixed = None if isinstance(start, Carry) else self._fixed_start(start)
        if batch_size is None and isinstance(start, Carry):
            batch_size = CARRIED_ROWS
        chunks = list(pieces(tokenised, batch_size=batch_size, max_tokens=min(max_tokens, PIECE_TOKENS)))
        for chunk in tracked(chunks, "Embedding", is_shown=show_progress):
            state = fixed
            if isinstance(start, Carry):
                state = start.rows(len(chunk), self.bilm.zero_state(1))
            try:
                result = self._engine.run([tokens.tokens for tokens in chunk], start=state)
            except (MemoryError, RuntimeError) as error:
                if not _is_memory_short(error):
                    raise
                longest = max(len(tokens) for tokens in chunk)
                raise SentenceTooLongError(
                    f"a batch of {len(chunk)} sentences, the longest of {longest} tokens, does not fit in "
                    f"memory; give a smaller batch_size, or split sentences below a limit of {longest // 2}"
                ) from error
            if isinstance(start, Carry):
                start.update(result.state)
            yield from zip(chunk, result.layers, strict=True)

    def _fixed_start(self, start: str) -> BiLmState | None:
        from elmo.model.bilm import BiLmState

        if start == "zero":
            return None
        if start == "warm":
            warm = self.pretrained.warm
            if warm is None:
                raise StateError("this model has no warm state; make one with: elmo warm MODEL TEXT")
            zero = self.bilm.zero_state(1)
            return BiLmState(warm.hidden[:, :, None].to(zero.hidden), warm.cell[:, :, None].to(zero.cell))
        if start == "carry":
            raise StateError(
                "a carried state is an object that you hold: give start=Carry() to each call in turn"
            )
        found = repr(start) if isinstance(start, str) else type(start).__name__
        raise ConfigError(f"start must be 'zero', 'warm' or a Carry(), not {found[:40]}")


def _as_list(sentences: Any) -> list[Any]:
    if isinstance(sentences, str | bytes | bytearray | Tokens):
        return [sentences]
    if isinstance(sentences, Iterable):
        return list(cast("Iterable[Any]", sentences))
    raise DataError(f"expected text, or sentences in a list, found {type(sentences).__name__}")


def _is_memory_short(error: MemoryError | RuntimeError) -> bool:
    """Torch says so in words; oneDNN only that it could not create a primitive or a memory object."""
    said = str(error)
    return isinstance(error, MemoryError) or "memory" in said or "could not create a primitive" in said
