"""A biLM in, the tensors that a task model's file keeps of it out; and back, with nothing else at hand.

The description (config, tokeniser, the words or characters that it looks up) is JSON in a tensor of bytes: a
vocabulary is too long for the file's header. Weights that the task tuned are among those of its network;
others lie beside it. The softmax is not kept: no task predicts words.

Tensors and a description in, a task model's one file out; and back, both seen to fit each other.

Files of version 1 and 2 are of heads whose LSTMs had their weights under other names.

Examples in, a trained task model out; and back from its one file, without the training data.

The file is safetensors: what was learned, the static vectors in half precision, and a description. A frozen
biLM is not in it but named there, with its fingerprint; one that was fine-tuned, with the task or before on
the task's text, is. Other encoders are named, too.
"""

from __future__ import annotations

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
from elmo.tasks.adapt import Adaptation, adapted, refuse_what_cannot_adapt
from elmo.tasks.data.examples import Example, check_words
from elmo.tasks.features.encoders import ElmoEncoder, match_encoders
from elmo.tasks.features.layer import TaskNetwork, Features
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import Encoder, FeatureCache, FeatureStore
from elmo.tasks.fit import Epoch, FitOptions, check_begun, fit, pieces, predict, run_identity
from elmo.tasks.kinds.registry import task_class
from elmo.text.ids import Vocabulary
from elmo.text.tokenizers import CHOICES

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.train.loop import Report


TUNED = "words.bilm."  # begins the names of the network's own weights
_DESCRIPTION = "bilm.description"
_WEIGHTS = "bilm.weights."
_WARM = "bilm.warm."
_FORMAT = "task"  # as ``Elmo`` names where it came from


def is_own(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file has a biLM of its own."""
    return _DESCRIPTION in tensors


def bilm_tensors(elmo: Elmo, *, start: Start, is_tuned: bool) -> dict[str, Tensor]:
    """All that is needed of a biLM; not its weights, where ``is_tuned``: the network has them."""
    model = elmo.pretrained
    vocab = model.vocab if model.config.words else None
    description = {
        "config": model.config.to_json(),
        "tokenizer": _tokenizer_name(elmo),
        "vocabulary": None if vocab is None else [vocab.bos, vocab.eos, vocab.unknown, *vocab.words],
        "characters": None if model.characters is None else dict(model.characters),
    }
    raw = json.dumps(description, sort_keys=True).encode("ascii")  # lone surrogates are escaped, too
    found = {_DESCRIPTION: torch.frombuffer(bytearray(raw), dtype=torch.uint8)}
    if not is_tuned:
        weights = elmo.bilm.state_dict().items()
        found |= {f"{_WEIGHTS}{name}": one.detach().cpu().float().contiguous() for name, one in weights}
        if start == "warm" and model.warm is not None:
            found |= {f"{_WARM}hidden": model.warm.hidden, f"{_WARM}cell": model.warm.cell}
    return {name: one.contiguous() for name, one in found.items()}


def take_bilm(tensors: dict[str, Tensor]) -> Elmo:
    """The biLM of a file that has one, its tensors taken out; those that the task tuned stay there, too."""
    from elmo.embed.elmo import Elmo

    about: Any = json.loads(tensors.pop(_DESCRIPTION).numpy().tobytes())
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith((_WEIGHTS, _WARM))}
    weights = {name.removeprefix(_WEIGHTS): one for name, one in own.items() if name.startswith(_WEIGHTS)}
    weights = weights or {
        name.removeprefix(TUNED): one.float() for name, one in tensors.items() if name.startswith(TUNED)
    }
    warm = {name.removeprefix(_WARM): one for name, one in own.items() if name.startswith(_WARM)}
    words = about["vocabulary"]
    return Elmo(
        Pretrained(
            config=BiLmConfig.from_json(about["config"]),
            weights=weights,
            format=_FORMAT,
            vocab=None if words is None else Vocabulary(
                tuple(words[3:]), bos=words[0], eos=words[1], unknown=words[2]
            ),
            characters=about["characters"],
            warm=WarmState(**warm) if warm else None,
            metadata={"tokenizer": about["tokenizer"]},
        )
    )  # fmt: skip


def _tokenizer_name(elmo: Elmo) -> str:
    """That of the tokeniser in use, where it is one of ours; else that of the model."""
    name = getattr(elmo.tokenizer, "name", None)
    is_ours = isinstance(name, str) and (name in CHOICES or name.startswith("spacy:"))
    return name if is_ours and name else str(elmo.pretrained.metadata.get("tokenizer", "en"))


FORMAT = "elmo task model"
VERSION = 3
TABLE = "words.static.weight"  # of the network, which the file keeps in the form of the next two
_ABOUT = "elmo"  # under this name the file carries its description as JSON
_STATIC_WORDS, _STATIC_VECTORS = "static.words", "static.vectors"


def write_file(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the one file, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # one entry: the library writes several in any order, and equal models should be equal files
    described = {"format": FORMAT, "version": VERSION, **about}
    try:
        with atomic_file(path) as temporary:
            save_file(dict(tensors), temporary, metadata={_ABOUT: json.dumps(described, sort_keys=True)})
    except SafetensorError as error:
        raise cannot_write(path, error) from error


def read_file(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The tensors, and the description that came with them."""
    from safetensors import SafetensorError, safe_open

    with open_regular(path):  # a typed error for what is no file
        pass
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_ABOUT, "null"))
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise FormatError(f"{format_path(path)}: expected a task model, as elmo task train writes them")
            if about.get("version") != VERSION:
                raise FormatError(f"{format_path(path)}: written by another version of elmo; train it again")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 -- no mapping
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise FormatError(f"{format_path(path)}: no task model, or a damaged one: {error}") from error


def static_tensors(static: StaticVectors, table: Tensor, *, is_exact: bool) -> dict[str, Tensor]:
    """Words and vectors of ``table`` (word, width), halved where nothing is lost that matters."""
    raw = json.dumps(static.words, ensure_ascii=False).encode("utf-8", "surrogatepass")
    halved = table.half()
    is_exact = is_exact or not torch.isfinite(halved).all()
    return {
        _STATIC_WORDS: torch.frombuffer(bytearray(raw), dtype=torch.uint8),
        _STATIC_VECTORS: table if is_exact else halved,
    }


def take_static(tensors: dict[str, Tensor]) -> StaticVectors | None:
    """What ``static_tensors`` made, taken out of ``tensors``; the network's table comes in its place."""
    if _STATIC_WORDS not in tensors:
        return None
    words = json.loads(tensors.pop(_STATIC_WORDS).numpy().tobytes().decode("utf-8", "surrogatepass"))
    vectors = tensors.pop(_STATIC_VECTORS).float().numpy()
    # the first two rows are of padding and of words without a vector
    if not isinstance(words, list) or vectors.ndim != 2 or len(vectors) != len(words) + 2:
        raise ValueError(f"{len(words)} words with vectors of shape {vectors.shape}")
    tensors[TABLE] = torch.from_numpy(np.ascontiguousarray(vectors))
    return StaticVectors(tuple(map(str, words)), vectors[2:])


_log = logging.getLogger(__name__)


class LostBilmError(ConfigError):
    """The biLM that a task model names cannot be loaded; another place of it can be given."""


@dataclass(eq=False)
class TaskModel:
    """A task, the network that has learned it, and where its words' vectors come from."""

    task: Any
    network: TaskNetwork
    sources: FeatureStore
    epochs: Sequence[Epoch] = ()
    elmo_name: str | None = None  # where the biLM came from, as it was named
    reading: Mapping[str, Any] = field(default_factory=dict)  # how the examples were read: tokeniser, columns
    adapted_epochs: float | None = None  # that the biLM went on for on the task's text; None: it did not
    first_fingerprint: str | None = None  # of the biLM before it was fine-tuned; None: it is as it was

    @classmethod
    def train(
        cls,
        task: Any,
        train: Sequence[Any],
        dev: Sequence[Any],
        *,
        sources: FeatureStore,
        options: FitOptions | None = None,
        adapt: float | None = None,
        elmo_name: str | None = None,
        folder: Path | None = None,
        on_epoch: Callable[[Epoch], None] = lambda epoch: None,
        on_adapt: Callable[[Report], None] | None = None,
        show_progress: bool = False,
    ) -> TaskModel:
        """Learn ``task`` from ``train``, watching ``dev``; ``folder`` keeps checkpoints to go on from.

        With ``adapt`` the biLM first goes on as a language model for so many epochs of the text of ``train``.
        """
        options = options or FitOptions.for_kind(task.kind)
        check_words([*train, *dev])
        task.check(dev)
        network = _new_network(task, sources, seed=options.seed)
        found = cls(task, network, sources, elmo_name=elmo_name, adapted_epochs=adapt)
        elmo = sources.elmo if sources.choice.elmo != "none" else None
        if adapt is not None:
            refuse_what_cannot_adapt(elmo, adapt)
        identity = found._identity(train, dev)
        if folder is not None:
            check_begun(folder, run_identity(options, identity))
        if found.has_own_bilm:
            found.first_fingerprint = identity["elmo"]["fingerprint"]
        if elmo is not None and adapt is not None:
            asked = Adaptation(adapt, options.seed, sources.start)
            new = adapted(elmo, _sentences(train), asked=asked, folder=folder, on_report=on_adapt)
            found.sources = sources = replace(sources, elmo=new)
            found.network = network = _new_network(task, sources, seed=options.seed)
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

    @property
    def has_own_bilm(self) -> bool:
        """Whether the biLM is none that can be found elsewhere."""
        return self.sources.choice.is_bilm_tuned or self.adapted_epochs is not None

    def predict(self, examples: Sequence[Any], *, show_progress: bool = False) -> list[Any]:
        """What the model says of each example."""
        check_words(examples)
        source = self.sources.of(_sentences(examples), show_progress=show_progress)
        return predict(self.task, examples, network=self.network, source=source, show_progress=show_progress)

    def predict_each(self, examples: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Each example with what the model says of it; no more than some hundred are held at a time."""
        for piece in pieces(examples):
            yield from zip(piece, self.predict(piece), strict=True)

    def evaluate(self, examples: Sequence[Any], *, show_progress: bool = False) -> dict[str, float]:
        """The scores of the model on examples whose answers are known."""
        self.task.check(examples)
        return self.task.scores(examples, self.predict(examples, show_progress=show_progress))

    def save(self, path: str | Path) -> None:
        """Write the one file, whole or not at all."""
        weights = self.network.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in weights.items() if name != TABLE}
        sources = self.sources
        if sources.static is not None:
            is_exact = sources.choice.is_static_tuned
            tensors |= static_tensors(sources.static, weights[TABLE], is_exact=is_exact)
        if self.has_own_bilm and sources.elmo is not None:
            is_tuned = sources.choice.is_bilm_tuned
            tensors |= bilm_tensors(sources.elmo, start=sources.start, is_tuned=is_tuned)
        write_file(Path(path), tensors, self._description())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        elmo: Elmo | None = None,
        others: Sequence[Encoder] = (),
        cache: FeatureCache | None = None,
    ) -> TaskModel:
        """Read the one file; ``elmo`` and ``others`` in place of the biLM and the encoders that it names."""
        path = Path(path)
        tensors, about = read_file(path)
        try:
            task = task_class(about["kind"]).from_json(about["task"])
            choice = Features(**about["vectors"])
            static = take_static(tensors)
            epochs = [Epoch(**epoch) for epoch in about["epochs"]]
            reading = dict(about["reading"])
            named = dict(about.get("elmo") or {})
            first = None
            if is_own(tensors):
                elmo, first = _own(tensors, elmo, path=path), named["fingerprint"]
            elif choice.elmo != "none":
                elmo = _elmo(named, elmo, start=about["start"], path=path)
            names = about.get("other_names") or [None] * len(about["others"])
            wanted = list(zip(about["others"], names, strict=True))
            beside = match_encoders(wanted, others, subject=format_path(path))
            sources = FeatureStore(choice, elmo, static, beside, cache or FeatureCache(None), about["start"])
            network = _loaded(task, sources, tensors, path=path)
        except ElmoError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{format_path(path)}: a task model that cannot be read: {reason}") from error
        return cls(task, network, sources, epochs, named.get("name"), reading, about.get("adapted"), first)

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
        if sources.others:
            about["other_names"] = [getattr(one, "name", None) for one in sources.others]
        if self.adapted_epochs is not None:
            about["adapted"] = self.adapted_epochs
        if sources.elmo is not None and sources.choice.elmo != "none":
            # what was fine-tuned is known by what it was before
            found = self.first_fingerprint or ElmoEncoder(sources.elmo, start=sources.start).fingerprint
            about["elmo"] = {"name": self.elmo_name, "fingerprint": found}
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
            if self.sources.choice.is_static_tuned and static.is_met is not None:
                digest.update(static.is_met.tobytes())  # whose vectors are tuned
        digest.update(b"halved" if self.sources.cache.folder else b"")
        description = self._description()
        for name in ("epochs", "reading", "other_names"):
            description.pop(name, None)
        return {**description, "data": digest.hexdigest(), "sizes": [len(train), len(dev)]}


def _sentences(examples: Sequence[Example]) -> list[tuple[str, ...]]:
    return [sentence for example in examples for sentence in example.sentences]


def _new_network(task: Any, sources: FeatureStore, *, seed: int) -> TaskNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        words = sources.network()
        return TaskNetwork(words, task.head(words.widths))


def _loaded(
    task: Any, sources: FeatureStore, tensors: Mapping[str, torch.Tensor], *, path: Path
) -> TaskNetwork:
    """The network that the description tells of, with these weights.

    It is laid out without memory first, so that no size in a description is believed before the weights
    were seen to have it.
    """
    with torch.device("meta"):
        words = sources.network()
        network = TaskNetwork(words, task.head(words.widths))
    wanted = {name: tuple(one.shape) for name, one in network.state_dict().items()}
    problems = [f"no {name}" for name in wanted if name not in tensors]
    problems += [f"unknown {name}" for name in tensors if name not in wanted]
    problems += [
        f"{name} of shape {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    raise_all(problems, subject=format_path(path))
    network.load_state_dict(dict(tensors), assign=True)
    return network.eval()


def _own(tensors: dict[str, torch.Tensor], given: Elmo | None, *, path: Path) -> Elmo:
    """The biLM of the file itself."""
    try:
        found = take_bilm(tensors)
    except ElmoError as error:
        raise FormatError(f"{format_path(path)}: a task model whose biLM cannot be read: {error}") from error
    if given is not None:
        _log.warning("%s: has a biLM of its own; the one that was given is not used", format_path(path))
    return found


def _elmo(about: Mapping[str, Any], given: Elmo | None, *, start: Start, path: Path) -> Elmo:
    from elmo.embed.elmo import Elmo

    try:
        elmo = given or Elmo.from_pretrained(about["name"])
    except (ConfigError, FormatError) as error:
        raise LostBilmError(str(error)) from error
    found = ElmoEncoder(elmo, start=start).fingerprint
    if found != about["fingerprint"]:
        raise ConfigError(
            f"{format_path(path)}: learned with the biLM {str(about['fingerprint'])[:12]}…, but {about['name']} is "
            f"{found[:12]}…; name that model"
        )
    return elmo
