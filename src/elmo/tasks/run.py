"""The main functions of ``elmo.tasks``: train, evaluate and predict from files, and load a model.

Each function does everything that the ``elmo task`` command of the same name does.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache as cached
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, raise_all
from elmo.formats import bundled_models
from elmo.storage.atomic import check_output_file, hold_lock, make_parents
from elmo.storage.files import format_path
from elmo.tasks.data.files import Tokenize, require_examples
from elmo.tasks.features.layer import ElmoPosition, Features
from elmo.tasks.features.static import StaticVectors, read_static
from elmo.tasks.features.store import FeatureCache, FeatureStore
from elmo.tasks.features.transformers import TransformerEncoder
from elmo.tasks.fit import Epoch, FitOptions
from elmo.tasks.kinds.options import parse_assignments
from elmo.tasks.kinds.registry import (
    KINDS,
    PREDICATE_HINT,
    PRETOKENIZED,
    ExampleSet,
    build_options,
    build_task,
    check_kind,
    examples_from_text,
    iter_examples,
    read_examples,
)
from elmo.tasks.model import TaskModel
from elmo.tasks.output import check_output, write_predictions
from elmo.text.lines import expand_paths
from elmo.text.tokenizers import Tokenizer, Tokens, load_tokenizer

if TYPE_CHECKING:
    from elmo.train.loop import StepReport

Files = str | Path | Sequence[str | Path]
SUFFIX = ".safetensors"
_HELD_OUT = 10  # one in this many groups of examples is held out
_log = logging.getLogger(__name__)

# (table, name) in --set and in plans of elmo evidence -> parameter of ``train``
_PARAMETERS: Mapping[tuple[str, str], str] = {
    ("head", "network"): "network",
    ("head", "hidden_width"): "hidden",
    ("head", "n_layers"): "layers",
    ("head", "dropout"): "dropout",
    ("head", "has_crf"): "crf",
    ("words", "elmo"): "elmo",
    ("words", "top_only"): "top_only",
    ("words", "layer_norm"): "layer_norm",
    ("words", "dropout"): "elmo_dropout",
    ("words", "mix_penalty"): "mix_penalty",
    ("words", "is_bilm_tuned"): "tune_bilm",
    ("words", "is_static_tuned"): "tune_vectors",
    ("words", "characters"): "characters",
    **{("fit", name): name for name in ("epochs", "patience", "batch_size", "learning_rate", "seed")},
}


def train(
    kind: str,
    files: Files,
    *,
    out: str | Path,
    dev: Sequence[str | Path] = (),
    overwrite: bool = False,
    model: str | Path | None = None,
    elmo: ElmoPosition = "input",
    top_only: bool = False,
    layer_norm: bool = False,
    mix_penalty: float = 0.001,
    elmo_dropout: float = 0.5,
    tune_bilm: bool = False,
    adapt: float | None = None,
    start: Literal["zero", "warm"] = "zero",
    vectors: str | Path | None = None,
    tune_vectors: bool = False,
    characters: int = 0,
    also: Sequence[str] = (),
    network: Literal["biattentive", "linear"] | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    dropout: float | None = None,
    crf: bool | None = None,
    epochs: int = 50,
    patience: int = 6,
    batch_size: int = 32,
    learning_rate: float | None = None,
    seed: int = 1,
    settings: Sequence[str] = (),
    column: str | None = None,
    text_column: Sequence[str] = (),
    file_format: str | None = None,
    header: bool | None = None,
    separator: Literal["tab", "space"] | None = None,
    tokenizer: str | None = None,
    cache: str | Path | None = None,
    no_cache: bool = False,
    cache_limit: float = 20.0,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_adapt: Callable[[StepReport], None] | None = None,
    show_progress: bool = False,
) -> TaskModel:
    """Train a task model on labeled files and write it to ``out``.

    If a run was stopped, the same call resumes it after its last epoch: until the model is written,
    checkpoints are in the folder ``OUT.training``. The model file contains everything except a frozen biLM,
    which it refers to.

    Args:
        kind: tagging, classification, entailment, similarity, answers, roles or coreference.
        files: Training files, compressed or not.
        out: The model file to write, ending in ``.safetensors``.
        dev: Files to score after each epoch. Default: a tenth of the training examples.
        overwrite: Replace an existing model file.
        model: The biLM: en or zh (bundled), a folder, an archive or a Hub id, in any published format.
        elmo: Where the network receives ELMo vectors.
        top_only: Use the top layer only instead of a mix of all layers.
        layer_norm: Normalize each layer before mixing.
        mix_penalty: Penalty on the mix weights; a large value makes all layers equally important.
        elmo_dropout: Dropout on the ELMo vectors.
        tune_bilm: Also train the biLM (slow).
        adapt: First train the biLM as a language model on the training text, for this many epochs.
        start: Start state of the LSTMs for each sentence.
        vectors: File of static word vectors: GloVe, word2vec or fastText.
        tune_vectors: Also train the static vectors.
        characters: Width of character-based word vectors; 0 turns them off.
        also: A transformers model whose vectors are used in addition to ELMo; may be repeated.
        network: Network of classification. Default: biattentive.
        hidden: Width of the hidden states. Default: by kind.
        layers: Number of LSTM layers of tagging and roles. Default: by kind.
        dropout: Dropout inside the network. Default: by kind.
        crf: Use a CRF for tagging. Default: if tags mark spans.
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better score.
        batch_size: Examples per batch.
        learning_rate: Learning rate of AdamW. Default: 0.005 for tagging, else 0.001.
        seed: Random seed; the same seed gives the same model.
        settings: Set any other option, as TABLE.NAME=VALUE with the tables head, fit and words of an evidence
            plan, for example head.max_span_width=12 or fit.decay=0.3; may be repeated.
        column: Column of tags, labels, scores or predicates: a name, or a number from 0; -1 is the last.
        text_column: Column of the words or the text; for pairs of texts, give two.
        file_format: File format: columns, conllu, tsv, csv, jsonl, lines, semeval, propbank, conll2005 or conll2012.
            Default: detected from the file.
        header: Whether the first line of a table names its columns. Default: detected from the file.
        separator: What separates columns. Default: detected from the first row.
        tokenizer: Tokenizer for raw text: en, zh, whitespace or spacy:xx. Default: the one of the model, else
            en.
        cache: Folder that keeps computed layers. Default: elmo/layers in the user's cache folder.
        no_cache: Compute layers each time they are needed.
        cache_limit: Maximum size of the cache in GB; the least recently used layers are removed first.
        on_epoch: Called after each epoch.
        on_adapt: Called with each report of the adaptation.
        show_progress: Show progress bars.
    """
    out, files, dev = Path(out), _as_list(files), _as_list(dev)
    check_kind(kind)  # report mistakes before a large model is loaded
    check_output_file(out, suffixes=(SUFFIX,), inputs=[*files, *dev], overwrite=overwrite)
    # the parameters of this function map to option fields through _PARAMETERS
    head, features, options = _parse_options(kind, settings, locals())
    reader = reader_options(kind, column, text_column, file_format, header=header, separator=separator)

    @cached
    def load_elmo() -> Elmo | None:
        return Elmo.from_pretrained(model) if features.has_elmo else None

    get_tokenizer = _lazy_tokenizer(tokenizer, load_elmo)
    train_set = _read(kind, files, get_tokenizer, reader).examples
    if dev:
        dev_set = _read(kind, dev, get_tokenizer, reader).examples
    else:
        train_set, dev_set = hold_out(train_set, seed=options.seed)
    task = build_task(kind, train_set, head)
    store = FeatureStore(
        features,
        load_elmo(),
        None if vectors is None else _read_vectors(Path(vectors), [*train_set, *dev_set]),
        tuple(TransformerEncoder(name) for name in also),
        layer_cache(cache, no_cache=no_cache, limit=cache_limit),
        start,
    )
    if not dev:
        _log.info(
            "holding out %s of %s examples to select the best epoch (use --dev to give other examples)",
            f"{len(dev_set):,}", f"{len(train_set) + len(dev_set):,}",
        )  # fmt: skip
    if tokenizer is not None and kind in PRETOKENIZED:
        _log.warning("ignoring --tokenizer: labeled files for %s are already tokenized", kind)
    folder = training_folder(out)
    make_parents(out)
    with hold_lock(out.with_name(f".{out.name}.lock"), subject=out):
        if folder.exists():
            _log.info("%s: resuming this run", folder)
        trained = TaskModel.train(
            task,
            train_set,
            dev_set,
            store=store,
            options=options,
            adapt=adapt,
            elmo_name=_absolute_name(model) if features.has_elmo else None,
            folder=folder,
            on_epoch=on_epoch,
            on_adapt=on_adapt,
            show_progress=show_progress,
        )
        # evaluate and predict read files in the same way
        name = tokenizer if kind in PRETOKENIZED else get_tokenizer().name
        trained.reading = {"tokenizer": name, "options": reader}
        trained.save(out)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _log.warning("%s: cannot remove this folder of checkpoints; it is no longer needed", folder)
    return trained


def training_folder(out: Path) -> Path:
    """Return the folder of checkpoints of a model file."""
    return out.with_name(f"{out.name}.training")


def load(
    path: str | Path, *, model: str | Path | None = None, also: Sequence[str] = (), cache: FeatureCache | None = None
) -> TaskModel:
    """Load a task model.

    Args:
        path: A model file of ``train``.
        model: The biLM, if it is not where the model file says.
        also: The transformers models, if they are not where the model file says.
        cache: Where computed layers are kept.
    """
    others = [TransformerEncoder(name) for name in also]
    elmo = None if model is None else Elmo.from_pretrained(model)
    return TaskModel.load(path, elmo=elmo, others=others, cache=cache)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a task model on labeled examples.

    Attributes:
        kind: Kind of task.
        scores: The scores, as fractions of 1.
        examples: The examples.
        predictions: The prediction for each example.
        left_out: Number of skipped examples by reason.
    """

    kind: str
    scores: Mapping[str, float]
    examples: Sequence[Any]
    predictions: Sequence[Any]
    left_out: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of examples, of different sentences, and of the tokens of these."""
        sentences = {words for example in self.examples for words in example.sentences}
        n_tokens = sum(map(len, sentences))
        return {"examples": len(self.examples), "sentences": len(sentences), "tokens": n_tokens}


def evaluate(
    task_model: str | Path | TaskModel,
    files: Files,
    *,
    out: str | Path | None = None,
    model: str | Path | None = None,
    also: Sequence[str] = (),
    column: str | None = None,
    text_column: Sequence[str] = (),
    file_format: str | None = None,
    header: bool | None = None,
    separator: Literal["tab", "space"] | None = None,
    tokenizer: str | None = None,
    cache: str | Path | None = None,
    no_cache: bool = False,
    cache_limit: float = 20.0,
    show_progress: bool = False,
) -> Evaluation:
    """Score a task model on labeled files.

    Files are read as the training files were, unless an option says otherwise.

    Args:
        task_model: A model file of ``train``, or a loaded model.
        files: Labeled files, compressed or not.
        out: Write the predictions: .jsonl for every kind; .conll, .tsv or .json for some kinds.
        model: The biLM, if it is not where the model file says.
        also: The transformers models, if they are not where the model file says; may be repeated.
        column: Column of tags, labels, scores or predicates: a name, or a number from 0; -1 is the last.
        text_column: Column of the words or the text; for pairs of texts, give two.
        file_format: File format: columns, conllu, tsv, csv, jsonl, lines, semeval, propbank, conll2005 or conll2012.
            Default: detected from the file.
        header: Whether the first line of a table names its columns. Default: detected from the file.
        separator: What separates columns. Default: detected from the first row.
        tokenizer: Tokenizer for raw text: en, zh, whitespace or spacy:xx. Default: that of the training
            files.
        cache: Folder that keeps computed layers. Default: elmo/layers in the user's cache folder.
        no_cache: Compute layers each time they are needed.
        cache_limit: Maximum size of the cache in GB; the least recently used layers are removed first.
        show_progress: Show progress bars.
    """
    files = _as_list(files)
    expand_paths([str(file) for file in files])  # report mistakes before a large model is loaded
    layers = layer_cache(cache, no_cache=no_cache, limit=cache_limit)
    loaded = _loaded(task_model, model=model, also=also, cache=layers)
    kind = loaded.task.kind
    if out is not None:
        check_output(Path(out), kind, inputs=[*files, *_path_of(task_model)])
    reader = reader_options(kind, column, text_column, file_format, header=header, separator=separator)
    get_tokenizer = _lazy_tokenizer(tokenizer or loaded.reading.get("tokenizer"), lambda: loaded.store.elmo)
    labeled = _read(kind, files, get_tokenizer, {**loaded.reading.get("options", {}), **reader})
    loaded.task.check(labeled.examples)
    predictions = loaded.predict(labeled.examples, show_progress=show_progress)
    scores = loaded.task.score(labeled.examples, predictions)
    if out is not None:
        write_predictions(Path(out), kind, zip(labeled.examples, predictions, strict=True))
    return Evaluation(kind, scores, labeled.examples, predictions, labeled.left_out)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Pairs of an example and its prediction, computed while they are read.

    Attributes:
        kind: Kind of task.
        inputs: Input files, which ``write`` must not replace.
    """

    kind: str
    inputs: tuple[str | Path, ...]
    _pairs: Iterator[tuple[Any, Any]]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs

    def write(
        self, path: str | Path, *, on_prediction: Callable[[Any, Any], None] = lambda example, prediction: None
    ) -> None:
        """Write all predictions: .jsonl for every kind; .conll, .tsv or .json for some kinds.

        Args:
            path: The file to write; it appears when it is complete.
            on_prediction: Called with each example and its prediction.
        """
        check_output(Path(path), self.kind, inputs=self.inputs)

        def watched() -> Iterator[tuple[Any, Any]]:
            for pair in self._pairs:
                on_prediction(*pair)
                yield pair

        write_predictions(Path(path), self.kind, watched())


def predict(
    task_model: str | Path | TaskModel,
    files: Files = (),
    *,
    text: Sequence[str] = (),
    question: str | None = None,
    passage: str | None = None,
    model: str | Path | None = None,
    also: Sequence[str] = (),
    column: str | None = None,
    text_column: Sequence[str] = (),
    file_format: str | None = None,
    header: bool | None = None,
    separator: Literal["tab", "space"] | None = None,
    tokenizer: str | None = None,
) -> Predictions:
    """Predict unlabeled files or texts, with probabilities.

    The result is an iterator of (example, prediction); files of any size are read as predictions are needed.
    Use its method ``write`` to write a file.

    Args:
        task_model: A model file of ``train``, or a loaded model.
        files: Text or examples, compressed or not; - is stdin.
        text: Texts instead of files; for pairs, give two; for roles, mark a [[predicate]].
        question: A question about ``passage``, instead of files.
        passage: The text that contains the answer.
        model: The biLM, if it is not where the model file says.
        also: The transformers models, if they are not where the model file says; may be repeated.
        column: Column of tags, labels, scores or predicates: a name, or a number from 0; -1 is the last.
        text_column: Column of the words or the text; for pairs of texts, give two.
        file_format: File format: columns, conllu, tsv, csv, jsonl, lines, semeval, propbank, conll2005 or conll2012.
            Default: detected from the file.
        header: Whether the first line of a table names its columns. Default: detected from the file.
        separator: What separates columns. Default: detected from the first row.
        tokenizer: Tokenizer for raw text: en, zh, whitespace or spacy:xx. Default: that of the training
            files.
    """
    files = _as_list(files)
    if sum(map(bool, (files, text, question))) != 1 or (question is None) != (passage is None):
        raise ConfigError("expected files, text, or question and passage as input, found none or more than one of them")
    if files:
        expand_paths([str(file) for file in files])  # report mistakes before a large model is loaded
    loaded = _loaded(task_model, model=model, also=also, cache=FeatureCache(None))
    kind = loaded.task.kind
    reader = reader_options(kind, column, text_column, file_format, header=header, separator=separator)
    if kind not in PRETOKENIZED:  # tables have the columns of the training files; text files have none
        remembered = loaded.reading.get("options", {})
        shared = ("text", "first", "second", "has_header", "file_format")  # not of labels
        reader = {name: remembered[name] for name in shared if name in remembered} | reader
    get_tokenizer = _lazy_tokenizer(tokenizer or loaded.reading.get("tokenizer"), lambda: loaded.store.elmo)
    examples: Iterable[Any]
    if files:
        examples = _iter_files(kind, files, get_tokenizer, reader)
    else:
        tokenize = _tokenize_with(get_tokenizer)
        examples = examples_from_text(kind, text, question=question, passage=passage, tokenize=tokenize)
    return Predictions(kind, (*files, *_path_of(task_model)), loaded.predict_stream(examples))


def _as_list(files: Files) -> list[str | Path]:
    return [files] if isinstance(files, str | Path) else list(files)


def _loaded(
    task_model: str | Path | TaskModel, *, model: str | Path | None, also: Sequence[str], cache: FeatureCache
) -> TaskModel:
    if isinstance(task_model, TaskModel):
        return task_model
    return load(task_model, model=model, also=also, cache=cache)


def _path_of(task_model: str | Path | TaskModel) -> list[str | Path]:
    return [] if isinstance(task_model, TaskModel) else [task_model]


def _parse_options(
    kind: str, settings: Sequence[str], parameters: Mapping[str, Any]
) -> tuple[Any, Features, FitOptions]:
    """Create the options of the head, the features and the training from the parameters of ``train``."""
    tables: dict[str, type[Any]] = {"head": KINDS[kind][1], "fit": FitOptions, "words": Features}
    assigned: dict[str, dict[str, Any]] = {table: {} for table in tables}
    if settings:
        assigned, problems = parse_assignments(settings, tables)
        for (table, name), parameter in _PARAMETERS.items():
            default = None if table == "head" or name == "learning_rate" else getattr(tables[table], name)
            if name in assigned[table] and parameters[parameter] != default:
                problems.append(f"{table}.{name} and {_flag(parameter)} set the same option; use one of them")
        raise_all(problems, subject="--set", kind=ConfigError)
    values: dict[str, dict[str, Any]] = {table: {} for table in tables}
    for (table, name), parameter in _PARAMETERS.items():
        if parameters[parameter] is not None and name not in assigned[table]:
            values[table][name] = parameters[parameter]
    known = {entry.name for entry in fields(tables["head"])}
    for name in values["head"]:
        if name not in known:
            has = [_flag(flag) for (table, other), flag in _PARAMETERS.items() if table == "head" and other in known]
            raise ConfigError(f"{kind} has no option {_flag(_PARAMETERS['head', name])}; it has: {', '.join(has)}")
    values = {table: values[table] | assigned[table] for table in tables}
    return (
        build_options(kind, values["head"]),
        Features(**values["words"]),
        FitOptions.for_kind(kind, **values["fit"]),
    )


def _flag(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


_LABEL_COLUMNS = {
    "tagging": "tags",
    "classification": "label",
    "entailment": "label",
    "similarity": "score",
    "roles": "target",
}
_TEXT_COLUMNS = {
    "tagging": ("words",),
    "classification": ("text",),
    "entailment": ("first", "second"),
    "similarity": ("first", "second"),
}


def reader_options(
    kind: str,
    column: str | None,
    text_column: Sequence[str],
    file_format: str | None,
    *,
    header: bool | None,
    separator: str | None,
) -> dict[str, Any]:
    """Return the options of the reader for a kind of task, by their names in the reader."""
    options: dict[str, Any] = {}
    if column is not None:
        if kind not in _LABEL_COLUMNS:
            raise ConfigError(f"--column: files for {kind} have fixed columns; remove this option")
        if kind == "roles" and not isinstance(_parse_column(column), int):
            raise ConfigError(
                f"--column must be a number for roles, because these files have no header, found {column[:40]!r}"
            )
        options[_LABEL_COLUMNS[kind]] = _parse_column(column)
    if text_column:
        names = _TEXT_COLUMNS.get(kind, ())
        if len(text_column) != len(names):
            raise ConfigError(f"--text-column: expected {len(names)} for {kind}, found {len(text_column)}")
        options |= {name: _parse_column(value) for name, value in zip(names, text_column, strict=True)}
    others = {
        "file_format": file_format,
        "has_header": header,
        "separator": None if separator is None else {"tab": "\t", "space": " "}[separator],
    }
    return options | {name: value for name, value in others.items() if value is not None}


def _parse_column(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 6 else text


def _lazy_tokenizer(name: str | None, load_elmo: Callable[[], Elmo | None]) -> Callable[[], Tokenizer]:
    """Return a function that builds the tokenizer; without a name, it loads the model for its tokenizer."""

    @cached
    def get() -> Tokenizer:
        elmo = None if name is not None else load_elmo()
        return elmo.tokenizer if elmo is not None else load_tokenizer(name or "en")

    if name is not None:
        get()  # report a mistake before files are read
    return get


def _tokenize_with(get_tokenizer: Callable[[], Tokenizer]) -> Tokenize:
    def tokenize(text: str) -> Tokens:
        return get_tokenizer()(text)

    return tokenize


def _read(
    kind: str, files: Sequence[str | Path], get_tokenizer: Callable[[], Tokenizer], options: Mapping[str, Any]
) -> ExampleSet:
    """Read at least one labeled example; warn about skipped ones."""
    labeled = read_examples(kind, files, tokenize=_tokenize_with(get_tokenizer), options=options)
    names = ", ".join(map(str, files))[:200]
    for reason, n in labeled.left_out.items():
        _log.warning("%s: skipped %s examples: %s", names, f"{n:,}", reason)
    if not labeled.examples:
        raise DataError(f"{names}: expected examples for {kind}, found none")
    return labeled


def _iter_files(
    kind: str, files: Sequence[str | Path], get_tokenizer: Callable[[], Tokenizer], options: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield at least one example; for roles, explain how predicates are marked."""
    examples = iter_examples(kind, files, tokenize=_tokenize_with(get_tokenizer), options=options)
    none = f"{', '.join(map(str, files))[:200]}: expected examples for {kind}, found none"
    try:
        yield from require_examples(examples, none)
    except DataError as error:
        if kind != "roles":
            raise
        raise DataError(f"{error}; {PREDICATE_HINT}") from error


def hold_out(examples: Sequence[Any], *, seed: int) -> tuple[list[Any], list[Any]]:
    """Hold out a random tenth of the examples; those with the same sentence or passage stay together."""
    groups = list(dict.fromkeys(example.sentences[0] for example in examples))
    if len(groups) < 2:
        raise DataError("expected at least two different examples to hold one out, found one; use --dev")
    order = np.random.default_rng((seed, len(groups))).permutation(len(groups))
    held_out = {groups[k] for k in order[: max(1, round(len(groups) / _HELD_OUT))]}
    parts: tuple[list[Any], list[Any]] = ([], [])
    for example in examples:
        parts[example.sentences[0] in held_out].append(example)
    return parts


def _read_vectors(path: Path, examples: Sequence[Any]) -> StaticVectors:
    words = {word for example in examples for sentence in example.sentences for word in sentence}
    static = read_static(path, words=words)
    n_found = sum(static.row(word) >= 0 for word in words)
    _log.info("%s: vectors for %s of %s words", format_path(path), f"{n_found:,}", f"{len(words):,}")
    return static


def layer_cache(folder: str | Path | None, *, no_cache: bool, limit: float) -> FeatureCache:
    """Return the cache in a folder, by default in the user's cache folder; ``limit`` is in GB."""
    if no_cache:
        return FeatureCache(None)
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(home) if home else Path.home() / ".cache") / "elmo" / "layers"
    return FeatureCache(folder, limit=int(limit * (1 << 30)))


def _absolute_name(model: str | Path | None) -> str | None:
    """Return an absolute path for a model on disk; a bundled model or a Hub id as it is."""
    if model is None or (isinstance(model, str) and model in bundled_models()) or not Path(model).exists():
        return None if model is None else str(model)
    return str(Path(model).resolve())
