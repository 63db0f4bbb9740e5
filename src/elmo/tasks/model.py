"""A trained task model: train it from examples, predict, evaluate, save it to one file, load it.

The file is in safetensors format: the learned weights, the static vectors in half precision, and a JSON
description. It does not contain a frozen biLM or other encoders, only their names and fingerprints. A biLM
that was tuned with the task or adapted to its text is part of the file.
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
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import format_path, open_regular
from elmo.tasks.adapt import Adaptation, adapt_bilm, check_adaptable
from elmo.tasks.data.examples import Document, Example, Words, check_words
from elmo.tasks.features.layer import Features, TaskNetwork
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import ElmoEncoder, FeatureCache, FeatureEncoder, FeatureStore
from elmo.tasks.features.transformers import match_encoders
from elmo.tasks.fit import Epoch, FitOptions, check_resumable, fit, predict, run_identity
from elmo.tasks.kinds.registry import KINDS, check_kind
from elmo.tasks.kinds.task import count_tokens, example_key
from elmo.text.ids import Vocabulary
from elmo.text.tokenizers import TOKENIZERS

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.train.loop import StepReport

CHUNK_EXAMPLES = 512  # enough to find examples of similar size, which need little padding
CHUNK_TOKENS = 50_000
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class TaskModel:
    """A task, its trained network, and the store of its word features.

    Attributes:
        task: The task with its labels and options, such as ``Tagging``.
        network: The trained network.
        store: Where word features are looked up.
        epochs: The epochs of the training run.
        elmo_name: Name or path of the biLM.
        reading: How the training files were read: tokenizer and options of the reader.
        adapted_epochs: Epochs that the biLM was adapted to the text of the task; None if it was not.
        first_fingerprint: Fingerprint of the biLM before it was tuned or adapted; None if it is unchanged.
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
        on_epoch: Callable[[Epoch], None] = lambda epoch: None,
        on_adapt: Callable[[StepReport], None] | None = None,
        show_progress: bool = False,
    ) -> TaskModel:
        """Train a model on examples.

        Args:
            task: The task that the training examples define, such as ``Tagging.from_examples(train)``.
            train: Training examples.
            dev: Held-out examples, which select the best epoch.
            store: Where word features are looked up.
            options: How to train; None for the defaults of the kind of task.
            adapt: First train the biLM as a language model on the text of ``train`` for this many epochs.
            elmo_name: Name or path of the biLM, which a saved model refers to.
            folder: Keeps checkpoints, from which the same call resumes.
            on_epoch: Called after each epoch.
            on_adapt: Called with each report of the adaptation.
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

    @property
    def has_own_bilm(self) -> bool:
        """Whether the biLM was tuned or adapted, so that it is part of the model file."""
        return self.store.features.is_bilm_tuned or self.adapted_epochs is not None

    @property
    def best_epoch(self) -> Epoch:
        """The epoch whose weights the model has."""
        return next(epoch for epoch in reversed(self.epochs) if epoch.is_best)

    def predict(self, examples: Sequence[Any], *, show_progress: bool = False) -> list[Any]:
        """Predict all examples."""
        check_words(examples)
        lookup = self.store.prepare(_sentences(examples), show_progress=show_progress)
        return predict(self.task, examples, network=self.network, lookup=lookup, show_progress=show_progress)

    def predict_stream(self, examples: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each example with its prediction; only a few hundred are in memory at a time."""
        for chunk in split_chunks(examples):
            yield from zip(chunk, self.predict(chunk), strict=True)

    def evaluate(self, examples: Sequence[Any], *, show_progress: bool = False) -> dict[str, float]:
        """Compute the scores on labeled examples."""
        self.task.check(examples)
        return self.task.score(examples, self.predict(examples, show_progress=show_progress))

    def save(self, path: str | Path) -> None:
        """Write the model file; it appears when it is complete."""
        weights = self.network.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in weights.items() if name != _TABLE}
        store = self.store
        if store.static is not None:
            is_exact = store.features.is_static_tuned
            tensors |= _static_tensors(store.static, weights[_TABLE], is_exact=is_exact)
        if self.has_own_bilm and store.elmo is not None:
            tensors |= _bilm_tensors(store.elmo, start=store.start, is_tuned=store.features.is_bilm_tuned)
        _write_file(Path(path), tensors, self._description())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        elmo: Elmo | None = None,
        others: Sequence[FeatureEncoder] = (),
        cache: FeatureCache | None = None,
    ) -> TaskModel:
        """Load a model file.

        Args:
            path: The file.
            elmo: The biLM, if it is not where the file says.
            others: The other encoders, if they are not where the file says.
            cache: Where layers of frozen encoders are kept.
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
                elmo, first_fingerprint = _own_bilm(tensors, elmo, path=path), bilm["fingerprint"]
            elif features.has_elmo:
                elmo = _named_bilm(bilm, elmo, start=about["start"], path=path)
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
            # a tuned biLM is identified by what it was before
            fingerprint = self.first_fingerprint or ElmoEncoder(store.used_elmo, start=store.start).fingerprint
            about["elmo"] = {"name": self.elmo_name, "fingerprint": fingerprint}
        return about

    def _identity(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        """Return everything that the result of a run depends on."""
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


def split_chunks(examples: Iterable[Any]) -> Iterator[list[Any]]:
    """Split examples into chunks of some hundred, fewer if they are long; a document is a chunk by itself."""
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
    """Build the network of a description and load its weights.

    It is built on the meta device, so that no memory is allocated before the sizes of the description are
    compared with the weights.
    """
    with torch.device("meta"):
        layer = store.build_layer()
        network = TaskNetwork(layer, task.build_head(layer.widths))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    problems = [f"missing tensor {name}" for name in shapes if name not in tensors]
    problems += [f"unknown tensor {name}" for name in tensors if name not in shapes]
    problems += [
        f"{name}: expected shape {shape}, found {tuple(tensors[name].shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    raise_all(problems, subject=format_path(path))
    network.load_state_dict(dict(tensors), assign=True)
    return network.eval()


FORMAT = "elmo task model"
VERSION = 3  # versions 1 and 2 had other names for the weights of LSTMs
_ABOUT = "elmo"  # metadata entry of the JSON description
_TABLE = "words.static.weight"  # stored as the next two tensors
_STATIC_WORDS, _STATIC_VECTORS = "static.words", "static.vectors"


def _write_file(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # one entry: the library writes several in random order, but equal models must be equal files
    described = {"format": FORMAT, "version": VERSION, **about}
    try:
        with atomic_file(path) as temporary:
            save_file(dict(tensors), temporary, metadata={_ABOUT: json.dumps(described, sort_keys=True)})
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def _read_file(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Read the tensors and the description of a model file."""
    from safetensors import SafetensorError, safe_open

    with open_regular(path):  # raises a typed error if it is not a regular file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise FormatError(
                    f"{format_path(path)}: expected a task model written by elmo task train, found another file"
                )
            if about.get("version") != VERSION:
                raise FormatError(
                    f"{format_path(path)}: another version of elmo wrote this file "
                    f"(expected format version {VERSION}, found {about.get('version')!r:.20}); train it again"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 -- not a mapping
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FormatError(f"{format_path(path)} is not a task model, or it is damaged: {error}") from error


def _static_tensors(static: StaticVectors, table: Tensor, *, is_exact: bool) -> dict[str, Tensor]:
    """Return the words and vectors of ``table`` (row, width), in half precision unless ``is_exact``."""
    raw = json.dumps(static.words, ensure_ascii=False).encode("utf-8", "surrogatepass")
    halved = table.half()
    is_exact = is_exact or not torch.isfinite(halved).all()
    return {
        _STATIC_WORDS: torch.frombuffer(bytearray(raw), dtype=torch.uint8),
        _STATIC_VECTORS: table if is_exact else halved,
    }


def _take_static(tensors: dict[str, Tensor]) -> StaticVectors | None:
    """Replace the result of ``_static_tensors`` in ``tensors`` by the table of the network."""
    if _STATIC_WORDS not in tensors:
        return None
    words = json.loads(tensors.pop(_STATIC_WORDS).numpy().tobytes().decode("utf-8", "surrogatepass"))
    vectors = tensors.pop(_STATIC_VECTORS).float().numpy()
    # the first two rows are for padding and for words without a vector
    if not isinstance(words, list) or vectors.ndim != 2 or len(vectors) != len(words) + 2:
        raise ValueError(f"expected one vector per word, found {len(words)} words and vectors of shape {vectors.shape}")
    tensors[_TABLE] = torch.from_numpy(np.ascontiguousarray(vectors))
    return StaticVectors(tuple(map(str, words)), vectors[2:])


_DESCRIPTION = "bilm.description"  # JSON as bytes: a vocabulary is too long for the header of the file
_WEIGHTS, _WARM = "bilm.weights.", "bilm.warm."
_TUNED = "words.bilm."  # weights of a tuned biLM are part of the network


def _bilm_tensors(elmo: Elmo, *, start: Start, is_tuned: bool) -> dict[str, Tensor]:
    """Return everything that a task needs of a biLM: no softmax, and no weights if the network has them."""
    model = elmo.pretrained
    vocab = model.vocab if model.config.words else None
    name = getattr(elmo.tokenizer, "name", None)
    is_known = isinstance(name, str) and (name in TOKENIZERS or name.startswith("spacy:"))
    description = {
        "config": model.config.to_json(),
        "tokenizer": name if is_known else str(model.metadata.get("tokenizer", "en")),
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


def _own_bilm(tensors: dict[str, Tensor], elmo: Elmo | None, *, path: Path) -> Elmo:
    """Take the biLM of a model file out of ``tensors``; tuned weights stay there, too."""
    try:
        own = _take_bilm(tensors)
    except ElmoError as error:
        raise FormatError(f"{format_path(path)}: cannot read the biLM of this task model: {error}") from error
    if elmo is not None:
        _log.warning("%s contains its own biLM; ignoring the given one", format_path(path))
    return own


def _take_bilm(tensors: dict[str, Tensor]) -> Elmo:
    from elmo.embed.elmo import Elmo

    about: Any = json.loads(tensors.pop(_DESCRIPTION).numpy().tobytes())
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith((_WEIGHTS, _WARM))}
    weights = _with_prefix(own, _WEIGHTS) or {
        name: tensor.float() for name, tensor in _with_prefix(tensors, _TUNED).items()
    }
    warm = _with_prefix(own, _WARM)
    words = about["vocabulary"]
    return Elmo(
        Pretrained(
            config=BiLmConfig.from_json(about["config"]),
            weights=weights,
            format="task",
            vocab=None if words is None else Vocabulary(
                tuple(words[3:]), bos=words[0], eos=words[1], unknown=words[2]
            ),
            characters=about["characters"],
            warm=WarmState(**warm) if warm else None,
            metadata={"tokenizer": about["tokenizer"]},
        )
    )  # fmt: skip


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _named_bilm(about: Mapping[str, Any], elmo: Elmo | None, *, start: Start, path: Path) -> Elmo:
    """Load the biLM that a model file refers to, unless ``elmo`` is given, and compare fingerprints."""
    from elmo.embed.elmo import Elmo

    try:
        elmo = elmo or Elmo.from_pretrained(about["name"])
    except (ConfigError, FormatError) as error:
        raise ConfigError(f"{error}; use --model to give the biLM that {format_path(path)} was trained with") from error
    fingerprint = ElmoEncoder(elmo, start=start).fingerprint
    if fingerprint != about["fingerprint"]:
        raise ConfigError(
            f"{format_path(path)}: this model was trained with the biLM {about['name']} "
            f"({str(about['fingerprint'])[:12]}…), found another one ({fingerprint[:12]}…); "
            "use --model to give the original biLM"
        )
    return elmo
