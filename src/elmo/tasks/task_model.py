"""Examples in, a trained task model out; and back from its one file, without the training data.

The file is safetensors: what was learned, the static vectors in half precision, and a description. A frozen
biLM is not in it but named there, with its fingerprint; a fine-tuned one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elmo.embed.atomic import cannot_write, replacing
from elmo.errors import ConfigError, ElmoError, FormatError, raise_all
from elmo.formats.files import open_regular, shown
from elmo.tasks.data.examples import Example, check_words
from elmo.tasks.fit import Epoch, FitOptions, check_begun, fit, predict, run_identity
from elmo.tasks.kinds.by_name import task_class
from elmo.tasks.network import TaskNetwork
from elmo.tasks.vectors.encoders import ElmoEncoder
from elmo.tasks.vectors.layer_cache import Encoder, LayerCache
from elmo.tasks.vectors.static import StaticVectors
from elmo.tasks.vectors.word_vectors import VectorChoice
from elmo.tasks.word_sources import WordSources

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

FORMAT = "elmo task model"
VERSION = 1
_ABOUT = "elmo"  # under this name the file carries its description as JSON
_STATIC_WORDS, _STATIC_VECTORS = "static.words", "static.vectors"
_EXTRA = (_STATIC_WORDS, _STATIC_VECTORS)
_TABLE = "words.static.weight"


@dataclass(eq=False)
class TaskModel:
    """A task, the network that has learned it, and where its words' vectors come from."""

    task: Any
    network: TaskNetwork
    sources: WordSources
    epochs: Sequence[Epoch] = ()
    elmo_name: str | None = None  # where the biLM came from, as it was named
    reading: Mapping[str, Any] = field(default_factory=dict)  # how the examples were read: tokeniser, columns

    @classmethod
    def train(
        cls,
        task: Any,
        train: Sequence[Any],
        dev: Sequence[Any],
        *,
        sources: WordSources,
        options: FitOptions | None = None,
        elmo_name: str | None = None,
        folder: Path | None = None,
        on_epoch: Callable[[Epoch], None] = lambda epoch: None,
        show_progress: bool = False,
    ) -> TaskModel:
        """Learn ``task`` from ``train``, watching ``dev``; ``folder`` keeps checkpoints to go on from."""
        options = options or FitOptions()
        check_words([*train, *dev])
        task.check(dev)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            words = sources.network()
            network = TaskNetwork(words, task.head(words.widths))
        found = cls(task, network, sources, elmo_name=elmo_name)
        identity = found._identity(train, dev)
        if folder is not None:
            check_begun(folder, run_identity(options, identity))
        source = sources.of(_sentences([*train, *dev]), show_progress=show_progress)
        found.epochs = fit(
            task,
            train,
            dev,
            network=network,
            source=source,
            options=options,
            folder=folder,
            identity=identity,
            on_epoch=on_epoch,
            show_progress=show_progress,
        )
        return found

    def predict(self, examples: Sequence[Any], *, show_progress: bool = False) -> list[Any]:
        """What the model says of each example."""
        check_words(examples)
        source = self.sources.of(_sentences(examples), show_progress=show_progress)
        return predict(self.task, examples, network=self.network, source=source, show_progress=show_progress)

    def evaluate(self, examples: Sequence[Any], *, show_progress: bool = False) -> dict[str, float]:
        """The scores of the model on examples whose answers are known."""
        self.task.check(examples)
        return self.task.scores(examples, self.predict(examples, show_progress=show_progress))

    def save(self, path: str | Path) -> None:
        """Write the one file, whole or not at all."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        tensors = {
            name: tensor.contiguous() for name, tensor in self.network.state_dict().items() if name != _TABLE
        }
        static = self.sources.static
        if static is not None:
            table = self.network.state_dict()[_TABLE]
            raw = json.dumps(static.words, ensure_ascii=False).encode("utf-8", "surrogatepass")
            tensors[_STATIC_WORDS] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
            halved = table.half()
            is_exact = self.sources.choice.is_static_tuned or not torch.isfinite(halved).all()
            tensors[_STATIC_VECTORS] = table if is_exact else halved
        # one entry: the library writes several in any order, and equal models should be equal files
        about = {"format": FORMAT, "version": VERSION, **self._description()}
        try:
            with replacing(path) as temporary:
                save_file(tensors, temporary, metadata={_ABOUT: json.dumps(about, sort_keys=True)})
        except SafetensorError as error:
            raise cannot_write(path, error) from error

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        elmo: Elmo | None = None,
        others: Sequence[Encoder] = (),
        cache: LayerCache | None = None,
    ) -> TaskModel:
        """Read the one file; ``elmo`` in place of the biLM that it names, and ``others`` that it wants."""
        path = Path(path)
        tensors, about = _read(path)
        try:
            task = task_class(about["kind"]).from_json(about["task"])
            choice = VectorChoice(**about["vectors"])
            static = _static(tensors)
            epochs = [Epoch(**epoch) for epoch in about["epochs"]]
            reading = dict(about["reading"])
            named = dict(about.get("elmo") or {})
            if choice.elmo != "none":
                elmo = _elmo(named, elmo, start=about["start"], path=path)
            sources = WordSources(
                choice, elmo, static, tuple(others), cache or LayerCache(None), about["start"]
            )
            _check_others(sources, about["others"], path)
            if static is not None:
                tensors[_TABLE] = torch.from_numpy(np.concatenate([_first_rows(tensors), static.vectors]))
            network = _network(task, sources, tensors, path=path)
        except ElmoError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{shown(path)}: a task model that cannot be read: {reason}") from error
        return cls(task, network, sources, epochs, named.get("name"), reading)

    def _description(self) -> dict[str, Any]:
        sources = self.sources
        about: dict[str, Any] = {
            "kind": self.task.kind,
            "task": self.task.to_json(),
            "vectors": asdict(sources.choice),
            "start": sources.start,
            "others": [one.key for one in sources.others],
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "reading": dict(self.reading),
        }
        if sources.elmo is not None and sources.choice.elmo != "none":
            encoder = ElmoEncoder(sources.elmo, start=sources.start)
            about["elmo"] = {"name": self.elmo_name, "fingerprint": encoder.fingerprint}
        return about

    def _identity(self, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
        """All that a run's result depends on."""
        import hashlib

        digest = hashlib.sha256()
        for example in (*train, *dev):  # wherever their file lies
            digest.update(repr(replace(example, place=None)).encode("utf-8", "surrogatepass"))
        static = self.sources.static
        if static is not None:
            digest.update(repr(static.words).encode("utf-8", "surrogatepass") + static.vectors.tobytes())
        digest.update(b"halved" if self.sources.cache.folder else b"")
        description = self._description()
        del description["epochs"], description["reading"]
        return {**description, "data": digest.hexdigest(), "sizes": [len(train), len(dev)]}


def _sentences(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    return [sentence for example in examples for sentence in example.sentences]


def _read(path: Path) -> tuple[dict[str, torch.Tensor], Mapping[str, Any]]:
    from safetensors import SafetensorError, safe_open

    with open_regular(path):  # a typed error for what is no file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise FormatError(f"{shown(path)}: expected a task model, as elmo task train writes them")
            if about.get("version") != VERSION:
                raise FormatError(f"{shown(path)}: written by another version of elmo; train it again")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 -- no mapping
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FormatError(f"{shown(path)}: no task model, or a damaged one: {error}") from error


def _network(
    task: Any, sources: WordSources, tensors: Mapping[str, torch.Tensor], *, path: Path
) -> TaskNetwork:
    """The network that the description tells of, with these weights.

    It is laid out without memory first, so that no size in a description is believed before the weights
    were seen to have it.
    """
    with torch.device("meta"):
        words = sources.network()
        network = TaskNetwork(words, task.head(words.widths))
    wanted = {name: tuple(one.shape) for name, one in network.state_dict().items()}
    given = {name: one for name, one in tensors.items() if name not in _EXTRA}
    problems = [f"no {name}" for name in wanted if name not in given]
    problems += [f"unknown {name}" for name in given if name not in wanted]
    problems += [
        f"{name} of shape {tuple(given[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    raise_all(problems, subject=shown(path))
    network.load_state_dict(given, assign=True)
    return network.eval()


def _static(tensors: Mapping[str, torch.Tensor]) -> StaticVectors | None:
    if _STATIC_WORDS not in tensors:
        return None
    words = json.loads(tensors[_STATIC_WORDS].numpy().tobytes().decode("utf-8", "surrogatepass"))
    vectors = tensors[_STATIC_VECTORS].float().numpy()
    if not isinstance(words, list) or vectors.shape[0] != len(words) + 2:
        raise ValueError(f"{len(words)} words with {vectors.shape[0]} vectors")
    return StaticVectors(tuple(map(str, words)), vectors[2:])


def _first_rows(tensors: Mapping[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    """Of padding and of words without a vector."""
    return tensors[_STATIC_VECTORS][:2].float().numpy()


def _elmo(about: Mapping[str, Any], given: Elmo | None, *, start: Start, path: Path) -> Elmo:
    from elmo.embed.elmo import Elmo

    elmo = given or Elmo.from_pretrained(about["name"])
    found = ElmoEncoder(elmo, start=start).fingerprint
    if found != about["fingerprint"]:
        raise ConfigError(
            f"{shown(path)}: learned with the biLM {str(about['fingerprint'])[:12]}…, but {about['name']} is "
            f"{found[:12]}…; name that model"
        )
    return elmo


def _check_others(sources: WordSources, wanted: Sequence[str], path: Path) -> None:
    found = [one.key for one in sources.others]
    if found != list(wanted):
        raise ConfigError(
            f"{shown(path)}: learned with {len(wanted)} other encoders beside ELMo; give the same ones, "
            f"found {len(found)}"
        )
