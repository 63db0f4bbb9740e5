"""``Elmo``: text or tokens in, a vector for every word in its context out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast, overload

from elmo.embed.encoding import Encoding, Vectors
from elmo.embed.progress import tracked
from elmo.embed.start import Carry, Start, mean_state
from elmo.errors import ConfigError, DataError, StateError
from elmo.formats.pretrained import Pretrained, WarmState
from elmo.text.alphabet import ByteAlphabet, UnicodeAlphabet
from elmo.text.batch import CharBatch, TokenIndexer
from elmo.text.tokens import Tokenizer, Tokens, tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from elmo.formats.containers.safetensors_file import Dtype
    from elmo.model.bilm import BiLmState
    from elmo.model.mix import LayerMix

Sentence = str | Sequence[str] | Tokens
LayerChoice = Literal["average", "top", "all", "concat"]
DTYPES = ("float32", "float64", "bfloat16", "float16")
DEFAULT_BATCH_SIZE = 256


class EncodeOptions(TypedDict, total=False):
    """The options of ``Elmo.encode``."""

    layers: LayerChoice | int | LayerMix
    start: Start
    batch_size: int
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
        tokenize: str | Tokenizer | None = None,
    ) -> None:
        """Build the network from ``model``; ``tokenize`` names a tokeniser, or is one."""
        import torch

        from elmo.embed.engine import Engine
        from elmo.model.bilm import BiLm

        if dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
        self.pretrained = model
        self.config = model.config
        self.vocab = model.vocab
        self.softmax = model.softmax
        chosen = tokenize or str(model.metadata.get("tokenizer", "en"))
        self.tokenize: Tokenizer = tokenizer(chosen) if isinstance(chosen, str) else chosen
        with torch.device("meta"):
            self.bilm = BiLm.from_config(model.config)
        self.bilm.load_state_dict(dict(model.weights), strict=True, assign=True)
        self.bilm.eval().requires_grad_(False)
        self.indexer = _indexer(model)
        self._engine = Engine(self.bilm, self.indexer)
        self.to(device, dtype=dtype)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        tokenize: str | Tokenizer | None = None,
    ) -> Self:
        """Load a model of any published format from a folder, an archive or a Hub id."""
        from elmo.formats.detect import load

        return cls(load(source), device=device, dtype=dtype, tokenize=tokenize)

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
        """Write the model, as its weights are now, in elmo's own format."""
        from dataclasses import replace

        from elmo.formats import native

        weights = {name: weight.detach().cpu().float() for name, weight in self.bilm.state_dict().items()}
        native.write(replace(self.pretrained, weights=weights), Path(folder), dtype=dtype)

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

    def to(self, device: str | torch.device | None = None, *, dtype: str | None = None) -> Self:
        """Move the network to a device, or compute in another precision."""
        import torch

        try:
            self.bilm.to(
                device=device, dtype=None if dtype is None else cast("torch.dtype", getattr(torch, dtype))
            )
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"cannot use device {device!s}: {reason}") from error
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
        batch_size: int = DEFAULT_BATCH_SIZE,
        as_tensor: bool = False,
        dtype: str | None = None,
        device: str | torch.device | None = None,
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Encoding | list[Encoding]:
        """A vector for every token; one string gives one ``Encoding``, an iterable a list in its order.

        A string is tokenised, a list of strings inside the iterable is taken as tokens. ``layers`` is
        "average", "top", "all" (layer, time, width), "concat", a layer's number or a ``LayerMix``;
        ``dtype`` is that of the vectors given back. The vectors of a sentence depend on that sentence
        alone, whatever ``batch_size`` is, unless ``start`` is a ``Carry``.
        """
        is_one = isinstance(sentences, str | Tokens)
        items = [sentences] if is_one else _as_list(sentences)
        tokenised = [self._tokens(item, place) for place, item in enumerate(items)]
        if device is not None:
            self.to(device)
        take = self._layer_taker(layers)
        finish = _finisher(as_tensor=as_tensor, dtype=dtype)
        found: list[Encoding] = []
        for tokens, states in self._layers(
            tokenised, start=start, batch_size=batch_size, max_tokens=max_tokens, show_progress=show_progress
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
        from elmo.embed.hub_outputs import outputs, true_tokens

        rows = [self._tokens(row, k) for k, row in enumerate(true_tokens(sentences, tokens, lengths))]
        layers = (states for _, states in self._layers(rows, start=start))
        return outputs(layers, [len(row) for row in rows], self.config, self.pretrained.mix)

    def warm_up(self, text: Iterable[Sentence], *, show_progress: bool = False) -> WarmState:
        """Read running text and keep the mean state, so that ``start="warm"`` works from now on.

        Text in its order, a sentence an item; the first two thousand sentences are enough, and are all
        that is read.
        """
        from dataclasses import replace

        items = [text] if isinstance(text, str) else text
        tokenised = (self._tokens(item, place).tokens for place, item in enumerate(items))
        warm = mean_state(self._engine, tokenised, show_progress=show_progress)
        self.pretrained = replace(self.pretrained, warm=warm)
        return warm

    def batch(self, sentences: Iterable[Sentence]) -> CharBatch:
        """Padded ids of sentences with their boundaries, as ``bilm`` reads them."""
        return self.indexer.batch(
            [self._tokens(item, i).tokens for i, item in enumerate(_as_list(sentences))]
        )

    # --- inside -------------------------------------------------------------------------------------

    def _tokens(self, sentence: Any, place: int) -> Tokens:
        if isinstance(sentence, str):
            return self.tokenize(sentence)
        if isinstance(sentence, Tokens):
            return sentence
        if isinstance(sentence, Sequence) and not isinstance(sentence, bytes | bytearray):
            try:
                return Tokens.given(cast("Sequence[str]", sentence))
            except DataError as error:
                raise DataError(f"sentence {place}: {error}") from error
        raise DataError(
            f"sentence {place}: expected text or a list of tokens, found {type(sentence).__name__}"
        )

    def _layers(
        self,
        tokenised: Sequence[Tokens],
        *,
        start: Start,
        batch_size: int = DEFAULT_BATCH_SIZE,
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> Iterator[tuple[Tokens, Tensor]]:
        """Each sentence with all its layers (layer, time, width), in order."""
        from elmo.embed.engine import DEFAULT_MAX_TOKENS

        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, found {batch_size}")
        fixed = None if isinstance(start, Carry) else self._fixed_start(start)
        begins = range(0, len(tokenised), batch_size)
        for begin in tracked(begins, "Embedding", is_shown=show_progress):
            chunk = tokenised[begin : begin + batch_size]
            state = fixed
            if isinstance(start, Carry):
                state = start.rows(len(chunk), self.bilm.zero_state(1))
            result = self._engine.run(
                [tokens.tokens for tokens in chunk], start=state, max_tokens=max_tokens or DEFAULT_MAX_TOKENS
            )
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
        raise ConfigError(f"start must be 'zero', 'warm' or a Carry(), not {start!r}")

    def _layer_taker(self, layers: LayerChoice | int | LayerMix) -> Callable[[Tensor], Tensor]:
        """A function from all layers (layer, time, width) to the vectors asked for."""
        import torch

        from elmo.model.layers import Layers
        from elmo.model.mix import LayerMix

        if isinstance(layers, LayerMix):
            mix = layers

            def mixed(states: Tensor) -> Tensor:
                mask = torch.ones(1, states.size(1), dtype=torch.bool, device=states.device)
                was_training = mix.training
                mix.eval()  # no dropout here
                try:
                    with torch.inference_mode():
                        return mix(Layers(states[None], mask, has_boundaries=False))[0]
                finally:
                    mix.train(was_training)

            return mixed
        if isinstance(layers, int) and not isinstance(layers, bool):
            if not -self.n_layers <= layers < self.n_layers:
                raise ConfigError(f"layer must lie in 0..{self.n_layers - 1}, found {layers}")
            return lambda states: states[layers]
        named: dict[str, Callable[[Tensor], Tensor]] = {
            "average": lambda states: states.mean(dim=0),
            "top": lambda states: states[-1],
            "all": lambda states: states,
            "concat": lambda states: states.transpose(0, 1).flatten(start_dim=1),
        }
        if layers not in named:
            choices = ", ".join(named)
            raise ConfigError(
                f"layers must be {choices}, 0..{self.n_layers - 1} or a LayerMix, not {layers!r}"
            )
        return named[layers]


def _indexer(model: Pretrained) -> TokenIndexer:
    chars = model.config.chars
    alphabet = None
    if chars is not None:
        if model.config.alphabet == "unicode":
            alphabet = UnicodeAlphabet(model.characters or {}, chars.max_characters)
        else:
            alphabet = ByteAlphabet(chars.max_characters)
    return TokenIndexer(alphabet, model.vocab if model.config.words else None)


def _as_list(sentences: Any) -> list[Any]:
    if isinstance(sentences, str | bytes | bytearray | Tokens):
        return [sentences]
    if isinstance(sentences, Iterable):
        return list(cast("Iterable[Any]", sentences))
    raise DataError(f"expected text, or sentences in a list, found {type(sentences).__name__}")


def _finisher(*, as_tensor: bool, dtype: str | None) -> Callable[[Tensor], Any]:
    """A function that brings vectors into the form and precision asked for."""
    import torch

    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if dtype == "bfloat16" and not as_tensor:
        raise ConfigError("numpy has no bfloat16; ask for tensors with as_tensor=True, or for float16")

    def finish(vectors: Tensor) -> Any:
        if dtype is not None:
            vectors = vectors.to(getattr(torch, dtype))
        if as_tensor:
            # a tensor made in inference mode could not be used in a user's own training
            return vectors.clone() if vectors.is_inference() else vectors
        if vectors.dtype == torch.bfloat16:
            vectors = vectors.float()
        return vectors.cpu().contiguous().numpy()

    return finish
