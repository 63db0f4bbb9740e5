"""The main functions of ``elmo.tasks``: train, evaluate and predict from files, and load a model.

``train``, ``evaluate`` and ``predict`` do the work of the ``elmo task`` commands with the same names.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache as cached
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, OutputError, raise_all
from elmo.formats import bundled_models
from elmo.storage.atomic import check_output_file, hold_lock, make_parents
from elmo.storage.files import format_path, user_cache
from elmo.tasks.data.files import Tokenize, require_examples
from elmo.tasks.data.parallel import read_translations
from elmo.tasks.features.layer import ElmoPosition, Features
from elmo.tasks.features.static import MAX_WORDS, StaticVectors, random_static, read_static
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
from elmo.tasks.model import TaskModel, format_scores
from elmo.tasks.output import check_output, write_predictions
from elmo.tasks.scores.translation import ComparedScore
from elmo.text.lines import expand_paths
from elmo.text.tokenizers import Tokenizer, Tokens, load_tokenizer

if TYPE_CHECKING:
    from elmo.train.loop import StepReport

Files = str | Path | Sequence[str | Path]
SUFFIX = ".safetensors"
_HELD_OUT = 10  # hold out one in ten groups; the examples of a group have the same text
_log = logging.getLogger(__name__)

# maps (table, name), as used by --set and by the plans of elmo evidence, to a parameter of ``train``
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


class ReadingOptions(TypedDict, total=False):
    """Options for reading files, which ``train``, ``evaluate`` and ``predict`` accept as keyword arguments.

    Args:
        column: Column of the tags, labels, scores or predicates: a name, or a number from 0; -1 is the last column.
        text_column: Column of the words or the text; for pairs of texts, two columns.
        file_format: File format: columns, conllu, tsv, csv, jsonl, lines, semeval, propbank, conll2005 or conll2012.
            Default: detected from the file.
        header: Whether the first line of a table contains the column names. Default: detected from the file.
        separator: Separator between columns. Default: detected from the first row.
        tokenizer: Tokenizer for raw text: en, zh, whitespace, characters or spacy:xx. Default: in training, the
            tokenizer of the biLM, or en without a biLM; afterwards, the tokenizer used in training.

    Example:
        >>> options: ReadingOptions = {"column": "-1", "file_format": "columns"}
        >>> evaluation = evaluate("tagger.safetensors", "dev.conll", **options)
    """

    column: str | None
    text_column: Sequence[str]
    file_format: str | None
    header: bool | None
    separator: Literal["tab", "space"] | None
    tokenizer: str | None


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
    vector_words: int = MAX_WORDS,
    tune_vectors: bool = False,
    random_vectors: int = 0,
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
    cache: str | Path | None = None,
    no_cache: bool = False,
    cache_limit: float = 20.0,
    on_epoch: Callable[[Epoch], None] | None = None,
    on_adapt: Callable[[StepReport], None] | None = None,
    show_progress: bool = False,
    **reading: Unpack[ReadingOptions],
) -> TaskModel:
    """Train a task model on labeled files and write it to ``out``.

    To resume a training run that was stopped, repeat the call; training continues after the last finished epoch.
    Until the model is written, checkpoints are kept in the folder ``OUT.training``. The model file contains
    everything except a frozen biLM and the models of ``also``, which are stored by name and hash.

    Args:
        kind: Kind of task: tagging, classification, entailment, similarity, answers, roles, coreference or
            translation.
        files: Training files, plain or compressed; for translation, a file of texts, then a file of translations.
        out: Model file to write; its name must end in ``.safetensors``.
        dev: Held-out files, which are scored after each epoch. Default: a tenth of the training examples, which is then
            not used for training.
        overwrite: Replace an existing model file.
        model: The biLM: en or zh (bundled), or a folder, an archive or a Hub id; all published formats are supported.
        elmo: Where the network receives ELMo vectors: at its input, at its output, at both, or not at all (none).
        top_only: Use only the top layer instead of a mix of all layers.
        layer_norm: Normalize each layer before mixing.
        mix_penalty: Penalty on the mix weights; with a large value, the mix is close to the mean of all layers.
        elmo_dropout: Dropout on the ELMo vectors.
        tune_bilm: Train the biLM together with the task (slow).
        adapt: Before training the task, train the biLM as a language model on the training text for this many epochs.
        start: Start state of the LSTMs for each sentence.
        vectors: File with static word vectors: GloVe, word2vec or fastText, or a .npy file with its words in a .parquet
            file.
        vector_words: Number of words to keep from the start of the file of vectors, in addition to the words of the
            training and held-out files; other words of new texts have no static vector.
        tune_vectors: Train the static word vectors together with the task.
        random_vectors: Width of word vectors that start at random and are trained with the task, instead of
            ``vectors``; 0 turns them off.
        characters: Width of character-based word vectors; 0 turns them off.
        also: Folder or Hub id of a transformers model whose vectors are used in addition to ELMo; may be repeated.
        network: Network for classification. Default: biattentive.
        hidden: Width of the hidden states. Default: depends on the kind of task.
        layers: Number of LSTM layers for tagging, roles and translation. Default: depends on the kind of task.
        dropout: Dropout inside the network. Default: depends on the kind of task.
        crf: Use a CRF for tagging. Default: yes if the tags mark spans.
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better score.
        batch_size: Number of examples per batch.
        learning_rate: Learning rate of AdamW. Default: 0.005 for tagging, 0.001 for other kinds.
        seed: Random seed; the same seed gives the same model.
        settings: Any other option, as TABLE.NAME=VALUE; the tables are head (network), fit (training) and words
            (features). For example head.max_span_width=12 or fit.decay=0.3; may be repeated.
        cache: Folder for computed layers. Default: elmo/layers in the user's cache folder.
        no_cache: Do not cache layers; compute them each time they are needed.
        cache_limit: Maximum size of the cache in GB; the least recently used layers are removed first.
        on_epoch: Function to call with the result of each epoch.
        on_adapt: Function to call with each progress report of the adaptation.
        show_progress: Show progress bars.
        reading: How to read the files; see ``ReadingOptions``.

    Example:
        >>> model = train("tagging", "train.conll", dev=["dev.conll"], out="tagger-2.safetensors", epochs=1)
        >>> model.task.kind
        'tagging'
    """
    out, files, dev = Path(out), _as_list(files), _as_list(dev)
    check_kind(kind)  # report mistakes before a large model is loaded
    _remove_finished_run(out)
    check_output_file(out, suffixes=(SUFFIX,), inputs=[*files, *dev], overwrite=overwrite)
    # locals() has the parameters of this function, which _PARAMETERS maps to fields of the options
    head, features, options = _parse_options(kind, settings, locals())
    if random_vectors:
        if vectors is not None:
            raise ConfigError("--vectors and --random-vectors set the same word vectors; use one of them")
        features = replace(features, is_static_tuned=True)
    reader = reader_options(kind, reading)
    tokenizer = reading.get("tokenizer")

    @cached
    def load_elmo() -> Elmo | None:
        return Elmo.from_pretrained(model) if features.has_elmo else None

    @cached
    def get_tokenizer() -> Tokenizer:
        return _choose_tokenizer(tokenizer, None if tokenizer else load_elmo())

    def tokenize(text: str) -> Tokens:
        return get_tokenizer()(text)

    if tokenizer is not None:
        get_tokenizer()  # report an unknown tokenizer before files are read
    train_set = _read(kind, files, tokenize, reader).examples
    if dev:
        dev_set = _read(kind, dev, tokenize, reader).examples
    else:
        train_set, dev_set = hold_out(train_set, seed=options.seed)
    task = build_task(kind, train_set, head)
    store = FeatureStore(
        features,
        load_elmo(),
        _choose_vectors(vectors, random_vectors, train_set, dev_set, n_words=vector_words, seed=options.seed),
        tuple(TransformerEncoder(name) for name in also),
        layer_cache(cache, no_cache=no_cache, limit=cache_limit),
        start,
    )
    if not dev:
        _log.info(
            "holding out %s of %s examples to select the best epoch; use --dev to choose other examples",
            f"{len(dev_set):,}", f"{len(train_set) + len(dev_set):,}",
        )  # fmt: skip
    if tokenizer is not None and kind in PRETOKENIZED:
        _log.warning("ignoring --tokenizer: labeled files for %s are already tokenized", kind)
    folder = training_folder(out)
    make_parents(out)
    with hold_lock(out.with_name(f".{out.name}.lock"), subject=out):
        if folder.exists():
            _log.info("resuming the training run in %s", folder)
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
        # stored so that evaluate and predict read files in the same way
        name = tokenizer if kind in PRETOKENIZED else get_tokenizer().name
        trained.reading = {"tokenizer": name, "options": reader}
        trained.save(out)
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _log.warning("cannot remove the checkpoints in %s; they are no longer needed", folder)
    return trained


def _remove_finished_run(out: Path) -> None:
    """Remove the checkpoints of a run that was killed after it had written its model, which is then the newest file."""
    folder = training_folder(out)
    if not out.is_file() or not folder.is_dir() or folder.is_symlink():
        return
    with suppress(OutputError, OSError), hold_lock(out.with_name(f".{out.name}.lock"), subject=out):
        written = out.stat().st_mtime_ns
        if all(file.lstat().st_mtime_ns <= written for file in folder.rglob("*") if not file.is_dir()):
            shutil.rmtree(folder, ignore_errors=True)


def training_folder(out: Path) -> Path:
    """Return the folder for the checkpoints of the training run that writes ``out``."""
    return out.with_name(f"{out.name}.training")


def load(
    path: str | Path, *, model: str | Path | None = None, also: Sequence[str] = (), cache: FeatureCache | None = None
) -> TaskModel:
    """Load a task model.

    Args:
        path: Model file written by ``train``.
        model: The biLM, if it is not at the location stored in the model file.
        also: The transformers models, if they are not at the locations stored in the model file.
        cache: Cache for computed layers; None computes them each time.

    Example:
        >>> load("tagger.safetensors").task.kind
        'tagging'
    """
    others = [TransformerEncoder(name) for name in also]
    elmo = None if model is None else Elmo.from_pretrained(model)
    return TaskModel.load(path, elmo=elmo, others=others, cache=cache)


@dataclass(frozen=True)
class Evaluation:
    """Scores of a task model on labeled examples.

    Attributes:
        kind: Kind of task, such as "tagging".
        scores: Scores by name, between 0 and 1 (errors and correlations may be outside this range).
        examples: The labeled examples.
        predictions: The prediction for each example.
        left_out: Number of skipped examples, by reason.
        signatures: For translation, the settings of sacrebleu for each score.
        compared: For translation, each score compared with that of another system, if one was passed.
    """

    kind: str
    scores: Mapping[str, float]
    examples: Sequence[Any]
    predictions: Sequence[Any]
    left_out: Mapping[str, int]
    signatures: Mapping[str, str] = field(default_factory=dict)
    compared: Mapping[str, ComparedScore] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Evaluation(kind={self.kind!r}, scores={format_scores(self.scores)}, {len(self.examples):,} examples)"

    @property
    def counts(self) -> dict[str, int]:
        """Number of examples, number of distinct sentences, and number of tokens in these sentences."""
        sentences = {words for example in self.examples for words in example.sentences}
        n_tokens = sum(map(len, sentences))
        return {"examples": len(self.examples), "sentences": len(sentences), "tokens": n_tokens}


def evaluate(
    task_model: str | Path | TaskModel,
    files: Files,
    *,
    out: str | Path | None = None,
    against: str | Path | None = None,
    model: str | Path | None = None,
    also: Sequence[str] = (),
    cache: str | Path | None = None,
    no_cache: bool = False,
    cache_limit: float = 20.0,
    show_progress: bool = False,
    **reading: Unpack[ReadingOptions],
) -> Evaluation:
    """Score a task model on labeled files.

    Files are read with the same options as the training files; options that are passed here override them.

    Args:
        task_model: Model file written by ``train``, or a loaded model.
        files: Labeled files, plain or compressed.
        out: File for the predictions: .jsonl for every kind of task; .conll, .tsv, .json or .txt for some kinds.
        against: For translation, a file with one translation per line from another system, to compare the scores
            with a paired bootstrap.
        model: The biLM, if it is not at the location stored in the model file.
        also: A transformers model, if it is not at the location stored in the model file; may be repeated.
        cache: Folder for computed layers. Default: elmo/layers in the user's cache folder.
        no_cache: Do not cache layers; compute them each time they are needed.
        cache_limit: Maximum size of the cache in GB; the least recently used layers are removed first.
        show_progress: Show progress bars.
        reading: How to read the files; see ``ReadingOptions``.

    Example:
        >>> evaluation = evaluate("tagger.safetensors", "dev.conll")
        >>> 0 <= evaluation.scores["f1"] <= 1
        True
    """
    files = _as_list(files)
    expand_paths([str(file) for file in files])  # report mistakes before a large model is loaded
    layers = layer_cache(cache, no_cache=no_cache, limit=cache_limit)
    loaded = _loaded(task_model, model=model, also=also, cache=layers)
    kind = loaded.task.kind
    if against is not None and kind != "translation":
        raise ConfigError(f"--against compares translations; this model is for {kind}")
    if out is not None:
        check_output(Path(out), kind, inputs=[*_list_inputs(files, task_model), *([against] if against else [])])
    tokenizer = _choose_tokenizer(reading.get("tokenizer") or loaded.reading.get("tokenizer"), loaded.store.elmo)
    options = {**loaded.reading.get("options", {}), **reader_options(kind, reading)}
    labeled = _read(kind, files, tokenizer, options)
    loaded.task.check(labeled.examples)
    if (static := loaded.store.static) is not None:
        words = count_words(labeled.examples)
        n_words = f"{_count_static(static, words):,}", f"{len(words):,}"
        hint = "" if loaded.store.features.is_static_tuned else " (--vector-words keeps more in training)"
        _log.info("the model has static vectors for %s of %s words%s", *n_words, hint)
    other = None if against is None else read_translations(against, n=len(labeled.examples))
    predictions = loaded.predict(labeled.examples, show_progress=show_progress)
    scores = loaded.task.score(labeled.examples, predictions)
    if out is not None:
        write_predictions(Path(out), kind, zip(labeled.examples, predictions, strict=True))
    signatures = loaded.task.signatures(labeled.examples) if kind == "translation" else {}
    compared = {} if other is None else loaded.task.compare(labeled.examples, predictions, other)
    return Evaluation(kind, scores, labeled.examples, predictions, labeled.left_out, signatures, compared)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Pairs (example, prediction), which are computed during iteration; they can be iterated over only once.

    Attributes:
        kind: Kind of task, such as "tagging".
        inputs: Input files, which ``write`` must not replace.
    """

    kind: str
    inputs: tuple[str | Path, ...]
    _pairs: Iterator[tuple[Any, Any]] = field(repr=False)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._pairs

    def write(self, path: str | Path, *, on_prediction: Callable[[Any, Any], None] | None = None) -> None:
        """Write all predictions to a file: .jsonl for every kind of task; .conll, .tsv, .json or .txt for some kinds.

        Args:
            path: The file to write; it appears only when it is complete.
            on_prediction: Function to call with each example and its prediction.
        """
        check_output(Path(path), self.kind, inputs=self.inputs)

        def watched() -> Iterator[tuple[Any, Any]]:
            for pair in self._pairs:
                if on_prediction is not None:
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
    **reading: Unpack[ReadingOptions],
) -> Predictions:
    """Predict tags, labels, scores, answers, roles, clusters or translations for files or texts without labels.

    The result yields (example, prediction) pairs. Files are read while the result is iterated over, so they may be
    larger than memory, except SQuAD files. Call ``write`` on the result to write the predictions to a file.

    Args:
        task_model: Model file written by ``train``, or a loaded model.
        files: Files with text or examples, plain or compressed; - is stdin.
        text: Texts to predict instead of files; two for tasks on pairs; for roles, mark the predicate like [[this]].
        question: Question to answer from ``passage`` (instead of files).
        passage: Text in which to find the answer to ``question``.
        model: The biLM, if it is not at the location stored in the model file.
        also: A transformers model, if it is not at the location stored in the model file; may be repeated.
        reading: How to read the files; see ``ReadingOptions``.

    Example:
        >>> ((example, tags),) = predict("tagger.safetensors", text=["She flew to Paris ."], tokenizer="whitespace")
        >>> len(tags.tags)
        5
    """
    files = _as_list(files)
    if sum(map(bool, (files, text, question))) != 1 or (question is None) != (passage is None):
        raise ConfigError("cannot predict: pass exactly one input: files, text, or a question with its passage")
    if files:
        expand_paths([str(file) for file in files])  # report mistakes before a large model is loaded
    loaded = _loaded(task_model, model=model, also=also, cache=FeatureCache(None))
    kind = loaded.task.kind
    options = reader_options(kind, reading)
    if kind not in PRETOKENIZED:  # files of PRETOKENIZED kinds may be plain text, without columns
        # read the same text columns as in training
        stored = loaded.reading.get("options", {})
        shared = ("text", "first", "second", "source", "has_header", "file_format")  # without label columns
        options = {name: stored[name] for name in shared if name in stored} | options
    tokenizer = _choose_tokenizer(reading.get("tokenizer") or loaded.reading.get("tokenizer"), loaded.store.elmo)
    if files:
        examples = _iter_files(kind, files, tokenizer, options)
    else:
        examples = examples_from_text(kind, text, question=question, passage=passage, tokenize=tokenizer)
    return Predictions(kind, _list_inputs(files, task_model), loaded.predict_stream(examples))


def _as_list(files: Files) -> list[str | Path]:
    return [files] if isinstance(files, str | Path) else list(files)


def _loaded(
    task_model: str | Path | TaskModel, *, model: str | Path | None, also: Sequence[str], cache: FeatureCache
) -> TaskModel:
    if isinstance(task_model, TaskModel):
        return task_model
    return load(task_model, model=model, also=also, cache=cache)


def _list_inputs(files: Sequence[str | Path], task_model: str | Path | TaskModel) -> tuple[str | Path, ...]:
    return tuple(files) if isinstance(task_model, TaskModel) else (*files, task_model)


def _parse_options(
    kind: str, settings: Sequence[str], parameters: Mapping[str, Any]
) -> tuple[Any, Features, FitOptions]:
    """Create the options for the head, the features and the training from the parameters of ``train``."""
    tables: dict[str, type[Any]] = {"head": KINDS[kind][1], "fit": FitOptions, "words": Features}
    values, problems = parse_assignments(settings, tables) if settings else ({table: {} for table in tables}, [])
    known = {entry.name for entry in fields(tables["head"])}
    for (table, name), parameter in _PARAMETERS.items():
        value = parameters[parameter]
        if name in values[table]:  # also set by ``settings``
            default = None if table == "head" or name == "learning_rate" else getattr(tables[table], name)
            if value != default:
                problems.append(f"{table}.{name} and {_flag(parameter)} set the same option; use one of them")
        elif value is not None and table == "head" and name not in known:
            has = [_flag(flag) for (table, other), flag in _PARAMETERS.items() if table == "head" and other in known]
            raise ConfigError(f"the network for {kind} has no option {_flag(parameter)}; it has: {', '.join(has)}")
        elif value is not None:
            values[table][name] = value
    if problems:
        raise_all(problems, subject="--set", kind=ConfigError)
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
    "translation": "target",
}
_TEXT_COLUMNS = {
    "tagging": ("words",),
    "classification": ("text",),
    "entailment": ("first", "second"),
    "similarity": ("first", "second"),
    "translation": ("source",),
}


def reader_options(kind: str, reading: ReadingOptions) -> dict[str, Any]:
    """Return the keyword arguments of the reader function for a kind of task."""
    column, text_column, separator = reading.get("column"), reading.get("text_column"), reading.get("separator")
    options: dict[str, Any] = {}
    if column is not None:
        if kind not in _LABEL_COLUMNS:
            raise ConfigError(f"cannot choose a column for {kind}: the format of its files is fixed; remove --column")
        if kind == "roles" and not isinstance(_parse_column(column), int):
            raise ConfigError(
                f"--column must be a number for roles, because these files have no header; found {column[:40]!r}"
            )
        options[_LABEL_COLUMNS[kind]] = _parse_column(column)
    if text_column:
        names = _TEXT_COLUMNS.get(kind, ())
        if len(text_column) != len(names):
            raise ConfigError(
                f"number of --text-column options must be {len(names)} for {kind}; found {len(text_column)}"
            )
        options |= {name: _parse_column(value) for name, value in zip(names, text_column, strict=True)}
    others = {
        "file_format": reading.get("file_format"),
        "has_header": reading.get("header"),
        "separator": None if separator is None else {"tab": "\t", "space": " "}[separator],
    }
    return options | {name: value for name, value in others.items() if value is not None}


def _parse_column(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 6 else text


def _choose_tokenizer(name: str | None, elmo: Elmo | None) -> Tokenizer:
    """Return the tokenizer ``name``; if it is None, that of the biLM, or the English tokenizer without a biLM."""
    return elmo.tokenizer if name is None and elmo is not None else load_tokenizer(name or "en")


def _read(kind: str, files: Sequence[str | Path], tokenize: Tokenize, options: Mapping[str, Any]) -> ExampleSet:
    """Read labeled examples and warn about skipped ones; raise ``DataError`` if there are no examples."""
    labeled = read_examples(kind, files, tokenize=tokenize, options=options)
    for reason, n in labeled.left_out.items():
        _log.warning("%s: skipped %s %s", _join_names(files), f"{n:,}", reason)
    if not labeled.examples:
        raise DataError(_no_examples(kind, files))
    return labeled


def _iter_files(
    kind: str, files: Sequence[str | Path], tokenize: Tokenize, options: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield examples without labels; raise ``DataError`` if there are none."""
    examples = iter_examples(kind, files, tokenize=tokenize, options=options)
    try:
        yield from require_examples(examples, _no_examples(kind, files))
    except DataError as error:
        if kind != "roles":
            raise
        raise DataError(f"{error}; {PREDICATE_HINT}") from error


def _no_examples(kind: str, files: Sequence[str | Path]) -> str:
    return f"{_join_names(files)}: expected examples for {kind}; found none"


def _join_names(files: Sequence[str | Path]) -> str:
    return ", ".join(map(str, files))[:200]


def hold_out(examples: Sequence[Any], *, seed: int) -> tuple[list[Any], list[Any]]:
    """Split examples into training examples and a held-out tenth, at random.

    Examples with the same sentence or passage stay together.
    """
    groups = list(dict.fromkeys(example.sentences[0] for example in examples))
    if len(groups) < 2:
        raise DataError("cannot hold out examples: all examples have the same text; pass held-out files with --dev")
    order = np.random.default_rng((seed, len(groups))).permutation(len(groups))
    held_out = {groups[k] for k in order[: max(1, round(len(groups) / _HELD_OUT))]}
    parts: tuple[list[Any], list[Any]] = ([], [])
    for example in examples:
        parts[example.sentences[0] in held_out].append(example)
    return parts


def _choose_vectors(
    path: str | Path | None, width: int, train: Sequence[Any], dev: Sequence[Any], *, n_words: int, seed: int
) -> StaticVectors | None:
    """Return random vectors of this width, the vectors of a file, or None if neither is chosen."""
    if width:
        return random_static(count_words(train), width=width, seed=seed)
    return None if path is None else _read_vectors(Path(path), [*train, *dev], n_words=n_words)


def count_words(examples: Sequence[Any]) -> Counter[str]:
    """Count the words of all sentences of examples."""
    return Counter(word for example in examples for sentence in example.sentences for word in sentence)


def _read_vectors(path: Path, examples: Sequence[Any], *, n_words: int) -> StaticVectors:
    words = count_words(examples)
    static = read_static(path, words=words, max_words=n_words)
    _log.info(
        "%s: found vectors for %s of %s words; keeping these and those of the first %s words of the file",
        format_path(path), f"{_count_static(static, words):,}", f"{len(words):,}", f"{n_words:,}",
    )  # fmt: skip
    return static


def _count_static(static: StaticVectors, words: Collection[str]) -> int:
    return sum(static.row(word) >= 0 for word in words)


def layer_cache(folder: str | Path | None, *, no_cache: bool, limit: float) -> FeatureCache:
    """Return the feature cache in ``folder``, by default in the user's cache folder; ``limit`` is in GB."""
    if no_cache:
        return FeatureCache(None)
    folder = user_cache() / "layers" if folder is None else folder
    return FeatureCache(folder, limit=int(limit * (1 << 30)))


def _absolute_name(model: str | Path | None) -> str | None:
    """Return the name to store for a biLM: an absolute path for a folder or file, otherwise the name itself."""
    if model is None:
        return None
    is_path = model not in bundled_models() and Path(model).exists()
    return str(Path(model).resolve() if is_path else model)
