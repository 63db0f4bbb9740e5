"""``TaskModel``: train a task model on examples, use it for prediction and evaluation, save and load it.

A model file is a safetensors file with the learned weights, the static vectors (in half precision unless they were
trained) and a JSON description. It does not contain a frozen biLM or other frozen encoders, only their names and
fingerprints. A biLM that was tuned with the task, or adapted to its text, is part of the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, ElmoError, FormatError, raise_all
from elmo.formats.pretrained import Pretrained, WarmState
from elmo.storage.atomic import atomic_file
from elmo.storage.files import format_path, open_regular
from elmo.tasks.adapt import Adaptation, adapt_bilm, check_adaptable
from elmo.tasks.data.examples import Document, Example, Words, check_words
from elmo.tasks.features.layer import Features, TaskNetwork
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import ElmoEncoder, FeatureCache, FeatureStore, FrozenEncoder
from elmo.tasks.features.transformers import match_encoders
from elmo.tasks.fit import Epoch, FitOptions, check_resumable, fit, predict, run_identity
from elmo.tasks.kinds.registry import KINDS, check_kind
from elmo.tasks.kinds.task import count_tokens, example_key
from elmo.text.ids import Vocabulary
from elmo.text.tokenizers import is_tokenizer_name

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.train.loop import StepReport

CHUNK_EXAMPLES = 512  # large enough to form batches of similar sentence length, which need little padding
CHUNK_TOKENS = 50_000
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class TaskModel:
    """A trained model for a task, with everything that it needs for prediction.

    Attributes:
        task: The task with its labels and options, for example a ``Tagging`` object.
        network: The trained network.
        store: The feature store, which looks up the features of words.
        epochs: The results of all training epochs.
        elmo_name: Name or path of the biLM.
        reading: How the training files were read: the tokenizer and the options of the reader.
        adapted_epochs: Number of epochs for which the biLM was adapted to the training text; None if it was not.
        first_fingerprint: Fingerprint of the biLM before it was tuned or adapted; None if it was not changed.
        n_train: Number of training examples; 0 for a loaded model.
        n_dev: Number of held-out examples; 0 for a loaded model.
    """

    task: Any
    network: TaskNetwork
    store: FeatureStore
    epochs: Sequence[Epoch] = ()
    elmo_name: str | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    adapted_epochs: float | None = None
    first_fingerprint: str | None = None
    n_train: int = 0
    n_dev: int = 0

    @classmethod
    def train(
        cls,
        task: Any,
        train: Sequence[Any],
        dev: Sequence[Any],
        *,
        store: FeatureStore,
        options: FitOptions | None = None,
        adapt: float | None = None,
        elmo_name: str | None = None,
        folder: Path | None = None,
        on_epoch: Callable[[Epoch], None] | None = None,
        on_adapt: Callable[[StepReport], None] | None = None,
        show_progress: bool = False,
    ) -> TaskModel:
        """Train a model on examples.

        Args:
            task: The task, created from the training examples, for example ``Tagging.from_examples(train)``.
            train: Training examples.
            dev: Held-out examples; their score selects the best epoch.
            store: The feature store, which looks up the features of words.
            options: Training options; None uses the defaults for the kind of task.
            adapt: Number of epochs for which the biLM is first trained as a language model on the text of ``train``;
                None does not adapt it.
            elmo_name: Name or path of the biLM to store in the model file.
            folder: Folder for checkpoints; repeating the call resumes from the last one.
            on_epoch: Function to call with the result of each epoch.
            on_adapt: Function to call with each progress report of the adaptation.
            show_progress: Show progress bars.
        """
        options = options or FitOptions.for_kind(task.kind)
        check_words([*train, *dev])
        task.check(dev)
        network = _build_network(task, store, seed=options.seed)
        model = cls(task, network, store, elmo_name=elmo_name, adapted_epochs=adapt, n_train=len(train), n_dev=len(dev))
        elmo = store.used_elmo
        if adapt is not None:
            check_adaptable(elmo, adapt)
        identity = model._identity(train, dev)
        if folder is not None:
            check_resumable(folder, run_identity(options, identity))
        if model.has_own_bilm:
            model.first_fingerprint = identity["elmo"]["fingerprint"]
        if elmo is not None and adapt is not None:
            adaptation = Adaptation(adapt, options.seed, store.start)
            adapted = adapt_bilm(elmo, _sentences(train), options=adaptation, folder=folder, on_report=on_adapt)
            model.store = store = replace(store, elmo=adapted)
            model.network = network = _build_network(task, store, seed=options.seed)
        model.epochs = fit(
            task,
            train,
            dev,
            network=network,
            lookup=store.prepare(_sentences([*train, *dev]), show_progress=show_progress),
            options=options,
            folder=folder,
            identity=identity,
            on_epoch=on_epoch,
            show_progress=show_progress,
        )
        return model

    def __repr__(self) -> str:
        best = ""
        if self.epochs:
            scores = format_scores(self.best_epoch.scores)
            best = f", best_epoch={self.best_epoch.epoch} of {len(self.epochs)}, scores={scores}"
        return f"TaskModel(kind={self.task.kind!r}, elmo={self.elmo_name!r}{best})"

    @property
    def has_own_bilm(self) -> bool:
        """Whether the biLM was tuned or adapted and is therefore part of the model file."""
        return self.store.features.is_bilm_tuned or self.adapted_epochs is not None

    @property
    def best_epoch(self) -> Epoch:
        """The epoch with the best score; the model has the weights of this epoch."""
        return next(epoch for epoch in reversed(self.epochs) if epoch.is_best)

    def predict(self, examples: Sequence[Any], *, show_progress: bool = False) -> list[Any]:
        """Return a prediction for each example."""
        check_words(examples)
        lookup = self.store.prepare(_sentences(examples), show_progress=show_progress)
        return predict(self.task, examples, network=self.network, lookup=lookup, show_progress=show_progress)

    def predict_stream(self, examples: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each example with its prediction; only a few hundred examples are in memory at a time."""
        for chunk in split_chunks(examples):
            yield from zip(chunk, self.predict(chunk), strict=True)

    def evaluate(self, examples: Sequence[Any], *, show_progress: bool = False) -> dict[str, float]:
        """Compute the scores of the model on labeled examples."""
        self.task.check(examples)
        return self.task.score(examples, self.predict(examples, show_progress=show_progress))

    def save(self, path: str | Path) -> None:
        """Write the model to a file; the file appears only when it is complete."""
        from safetensors.torch import save

        weights = self.network.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in weights.items() if name != _TABLE}
        store = self.store
        if store.static is not None:
            is_exact = store.features.is_static_tuned
            tensors |= _static_tensors(store.static, weights[_TABLE], is_exact=is_exact)
        if self.has_own_bilm and store.elmo is not None:
            tensors |= _bilm_tensors(store.elmo, start=store.start, is_tuned=store.features.is_bilm_tuned)
        # a single metadata entry: safetensors writes several in random order, but equal models must give equal files
        about = json.dumps({"format": FORMAT, "version": VERSION, **self._description()}, sort_keys=True)
        # ``save_file`` would leave its own temporary file behind if it is killed
        with atomic_file(Path(path)) as temporary, temporary.open("xb") as file:
            file.write(save(tensors, metadata={_ABOUT: about}))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        elmo: Elmo | None = None,
        others: Sequence[FrozenEncoder] = (),
        cache: FeatureCache | None = None,
    ) -> TaskModel:
        """Load a model file.

        Args:
            path: The model file.
            elmo: The biLM, if it is not at the location stored in the file.
            others: The other encoders, if they are not at the locations stored in the file.
            cache: Cache for the layers of frozen encoders; None computes them each time.
        """
        path = Path(path)
        tensors, about = _read_file(path)
        try:
            check_kind(about["kind"])
            task = KINDS[about["kind"]][0].from_json(about["task"])
            features = Features(**about["vectors"])
            static = _take_static(tensors)
            epochs = [Epoch(**epoch) for epoch in about["epochs"]]
            reading = dict(about["reading"])
            bilm = dict(about.get("elmo") or {})
            first_fingerprint = None
            if _DESCRIPTION in tensors:
                if elmo is not None:
                    _log.warning("%s contains a biLM; ignoring the biLM that was passed", format_path(path))
                elmo, first_fingerprint = _take_bilm(tensors, path=path), bilm["fingerprint"]
            elif features.has_elmo:
                elmo, is_same = _named_bilm(bilm, elmo, start=about["start"], path=path)
                if not is_same:  # it may be for another language
                    reading["tokenizer"] = None
            names = about.get("other_names") or [None] * len(about["others"])
            expected = list(zip(about["others"], names, strict=True))
            encoders = match_encoders(expected, others, subject=format_path(path))
            store = FeatureStore(features, elmo, static, encoders, cache or FeatureCache(None), about["start"])
            network = _restore_network(task, store, tensors, path=path)
        except ElmoError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{format_path(path)}: cannot read this task model: {problem}") from error
        return cls(task, network, store, epochs, bilm.get("name"), reading, about.get("adapted"), first_fingerprint)

    def _description(self) -> dict[str, Any]:
        store = self.store
        about: dict[str, Any] = {
            "kind": self.task.kind,
            "task": self.task.to_json(),
            "vectors": asdict(store.features),
            "start": store.start,
            "others": [encoder.key for encoder in store.others],
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "reading": dict(self.reading),
        }
        if store.others:
            about["other_names"] = [getattr(encoder, "name", None) for encoder in store.others]
        if self.adapted_epochs is not None:
            about["adapted"] = self.adapted_epochs
        if store.used_elmo is not None:
            # a tuned or adapted biLM is identified by its fingerprint before training
            fingerprint = self.first_fingerprint or ElmoEncoder(store.used_elmo, start=store.start).fingerprint
            about["elmo"] = {"name": self.elmo_name, "fingerprint": fingerprint}
            if (alignment := store.used_elmo.pretrained.alignment) is not None:
                about["elmo"]["targets"] = list(alignment.targets)
        return about

    def _identity(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        """Return a description of everything that the result of training depends on."""
        digest = hashlib.sha256()
        for example in (*train, *dev):
            digest.update(example_key(example))
        static = self.store.static
        if static is not None:
            digest.update(repr(static.words).encode("utf-8", "surrogatepass") + static.vectors.tobytes())
            if self.store.features.is_static_tuned and static.is_used is not None:
                digest.update(static.is_used.tobytes())  # these vectors are tuned
        digest.update(b"halved" if self.store.cache.folder else b"")
        description = self._description()
        for name in ("epochs", "reading", "other_names"):
            description.pop(name, None)
        return {**description, "data": digest.hexdigest(), "sizes": [len(train), len(dev)]}


def format_scores(scores: Mapping[str, float]) -> str:
    """Format scores for a ``repr``, rounded to four digits."""
    return str({name: round(score, 4) for name, score in scores.items()})


def split_chunks(examples: Iterable[Any]) -> Iterator[list[Any]]:
    """Split examples into chunks of a few hundred, or fewer if they are long; each document is a separate chunk."""
    chunk: list[Any] = []
    n_tokens = 0
    for example in examples:
        chunk.append(example)
        n_tokens += count_tokens(example)
        if len(chunk) >= CHUNK_EXAMPLES or n_tokens >= CHUNK_TOKENS or isinstance(example, Document):
            yield chunk
            chunk, n_tokens = [], 0
    if chunk:
        yield chunk


def _sentences(examples: Sequence[Example]) -> list[Words]:
    return [sentence for example in examples for sentence in example.sentences]


def _build_network(task: Any, store: FeatureStore, *, seed: int) -> TaskNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = store.build_layer()
        return TaskNetwork(layer, task.build_head(layer.widths))


def _restore_network(task: Any, store: FeatureStore, tensors: Mapping[str, Tensor], *, path: Path) -> TaskNetwork:
    """Build the network of a task model and load its weights from ``tensors``.

    The network is built on the meta device, so that no memory is allocated before its shapes are compared with
    those of the weights.
    """
    with torch.device("meta"):
        layer = store.build_layer()
        network = TaskNetwork(layer, task.build_head(layer.widths))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    problems = [f"missing tensor {name}" for name in shapes if name not in tensors]
    problems += [f"unknown tensor {name}" for name in tensors if name not in shapes]
    problems += [
        f"{name}: expected shape {shape}; found {tuple(tensors[name].shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    raise_all(problems, subject=format_path(path))
    network.load_state_dict(dict(tensors), assign=True)
    return network.eval()


FORMAT = "elmo task model"
VERSION = 3  # versions 1 and 2 had other names for the weights of LSTMs
_ABOUT = "elmo"  # metadata entry of the JSON description
_TABLE = "words.static.weight"  # this weight of the network is stored as the next two tensors
_STATIC_WORDS, _STATIC_VECTORS = "static.words", "static.vectors"


def _read_file(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read the tensors and the JSON description of a model file."""
    from safetensors import SafetensorError, safe_open

    with open_regular(path):  # raises FormatError if it is not a regular file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise FormatError(
                    f"{format_path(path)}: expected a task model written by elmo task train; found another file"
                )
            if about.get("version") != VERSION:
                raise FormatError(
                    f"{format_path(path)}: format version of the task model must be {VERSION}; "
                    f"found {about.get('version')!r:.20}; train the model again"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 -- not a mapping
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FormatError(f"{format_path(path)} is not a task model, or is damaged: {error}") from error


def _static_tensors(static: StaticVectors, table: Tensor, *, is_exact: bool) -> dict[str, Tensor]:
    """Return tensors with the words and with the vectors of ``table`` (row, width).

    Vectors are stored in half precision, unless ``is_exact`` is true or a value exceeds the range of half precision.
    """
    raw = json.dumps(static.words, ensure_ascii=False).encode("utf-8", "surrogatepass")
    halved = table.half()
    is_exact = is_exact or not torch.isfinite(halved).all()
    return {
        _STATIC_WORDS: torch.frombuffer(bytearray(raw), dtype=torch.uint8),
        _STATIC_VECTORS: table if is_exact else halved,
    }


def _take_static(tensors: dict[str, Tensor]) -> StaticVectors | None:
    """Replace the two tensors of ``_static_tensors`` by the weight ``_TABLE``, and return the static vectors."""
    if _STATIC_WORDS not in tensors:
        return None
    words = json.loads(tensors.pop(_STATIC_WORDS).numpy().tobytes().decode("utf-8", "surrogatepass"))
    vectors = tensors.pop(_STATIC_VECTORS).float().numpy()
    # the first two rows are for padding and for words without a vector
    if not isinstance(words, list) or vectors.ndim != 2 or len(vectors) != len(words) + 2:
        raise ValueError(f"static vectors must have {len(words) + 2} rows; found shape {vectors.shape}")
    tensors[_TABLE] = torch.from_numpy(np.ascontiguousarray(vectors))
    return StaticVectors(tuple(map(str, words)), vectors[2:])


_DESCRIPTION = "bilm.description"  # a tensor with JSON: a vocabulary is too long for the header of the file
_WEIGHTS, _WARM = "bilm.weights.", "bilm.warm."
_TUNED = "words.bilm."  # the weights of a tuned biLM are part of the network


def _bilm_tensors(elmo: Elmo, *, start: Start, is_tuned: bool) -> dict[str, Tensor]:
    """Return the tensors of a biLM for a model file, without the softmax.

    The weights of a tuned biLM are not included, because they are part of the network.
    """
    model = elmo.pretrained
    vocab = model.vocab if model.config.words else None
    name = getattr(elmo.tokenizer, "name", None)
    description = {
        "config": model.config.to_json(),
        "tokenizer": name if is_tokenizer_name(name) else str(model.metadata.get("tokenizer", "en")),
        "vocabulary": None if vocab is None else [vocab.bos, vocab.eos, vocab.unknown, *vocab.words],
        "characters": None if model.characters is None else dict(model.characters),
    }
    raw = json.dumps(description, sort_keys=True).encode("ascii")  # lone surrogates are escaped
    tensors = {_DESCRIPTION: torch.frombuffer(bytearray(raw), dtype=torch.uint8)}
    if not is_tuned:
        weights = elmo.bilm.state_dict().items()
        tensors |= {f"{_WEIGHTS}{name}": tensor.detach().cpu().float() for name, tensor in weights}
        if start == "warm" and model.warm is not None:
            tensors |= {f"{_WARM}hidden": model.warm.hidden, f"{_WARM}cell": model.warm.cell}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _take_bilm(tensors: dict[str, Tensor], *, path: Path) -> Elmo:
    """Remove the biLM from ``tensors`` and return it; tuned weights are not removed, as the network needs them."""
    from elmo.embed.elmo import Elmo

    about: Any = json.loads(tensors.pop(_DESCRIPTION).numpy().tobytes())
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith((_WEIGHTS, _WARM))}
    weights = _with_prefix(own, _WEIGHTS) or {
        name: tensor.float() for name, tensor in _with_prefix(tensors, _TUNED).items()
    }
    warm = _with_prefix(own, _WARM)
    words = about["vocabulary"]
    vocab = None if words is None else Vocabulary(tuple(words[3:]), bos=words[0], eos=words[1], unknown=words[2])
    try:
        return Elmo(
            Pretrained(
                config=BiLmConfig.from_json(about["config"]),
                weights=weights,
                format="task",
                vocab=vocab,
                characters=about["characters"],
                warm=WarmState(**warm) if warm else None,
                metadata={"tokenizer": about["tokenizer"]},
            )
        )
    except ElmoError as error:
        raise FormatError(f"{format_path(path)}: cannot read the biLM of this task model: {error}") from error


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _named_bilm(about: Mapping[str, Any], elmo: Elmo | None, *, start: Start, path: Path) -> tuple[Elmo, bool]:
    """Return ``elmo``, or load the biLM that a model file names, and return whether it is the one of the training.

    Raises ``ConfigError`` if its vectors have other coordinates.
    """
    from elmo.embed.elmo import Elmo

    try:
        elmo = elmo or Elmo.from_pretrained(about["name"])
    except (ConfigError, FormatError) as error:
        raise ConfigError(f"{error}; use --model to pass the biLM that {format_path(path)} was trained with") from error
    fingerprint, alignment = ElmoEncoder(elmo, start=start).fingerprint, elmo.pretrained.alignment
    # an aligned model may replace its target, another one that is aligned to the same target, and the reverse
    coordinates = {fingerprint, *(alignment.targets if alignment else ())}
    if coordinates.isdisjoint({about["fingerprint"], *about.get("targets", ())}):
        raise ConfigError(
            f"{format_path(path)}: biLM must be {about['name'] or 'the bundled model'} with the fingerprint "
            f"{str(about['fingerprint'])[:12]}…, as in training; found {fingerprint[:12]}…; "
            "use --model to pass the biLM that was used in training"
        )
    return elmo, fingerprint == about["fingerprint"]
