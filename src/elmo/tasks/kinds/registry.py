"""Look up kinds of tasks by name, and read their examples from files or from text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from elmo.embed.find import parse_mark
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.coreference import read_coreference
from elmo.tasks.data.examples import (
    Document,
    LabeledText,
    Location,
    Predicate,
    Question,
    SourceText,
    TaggedSentence,
    TextPair,
)
from elmo.tasks.data.files import WHITESPACE, Tokenize, split_tokens, split_words
from elmo.tasks.data.parallel import read_parallel
from elmo.tasks.data.roles import read_roles
from elmo.tasks.data.squad import read_squad
from elmo.tasks.data.tagging import read_tagged
from elmo.tasks.data.texts import keep_markers, read_pairs, read_texts
from elmo.tasks.kinds.answers import Answers, AnswersOptions
from elmo.tasks.kinds.classification import Classification, ClassificationOptions
from elmo.tasks.kinds.coreference import Coreference, CoreferenceOptions
from elmo.tasks.kinds.entailment import Entailment, EntailmentOptions
from elmo.tasks.kinds.roles import Roles, RolesOptions
from elmo.tasks.kinds.similarity import Similarity, SimilarityOptions
from elmo.tasks.kinds.tagging import Tagging, TaggingOptions
from elmo.tasks.kinds.translation import Translation, TranslationOptions
from elmo.text.sentences import split_sentences

KINDS: dict[str, tuple[type[Any], type[Any]]] = {  # class of the task, class of its options
    Tagging.kind: (Tagging, TaggingOptions),
    Classification.kind: (Classification, ClassificationOptions),
    Entailment.kind: (Entailment, EntailmentOptions),
    Similarity.kind: (Similarity, SimilarityOptions),
    Answers.kind: (Answers, AnswersOptions),
    Roles.kind: (Roles, RolesOptions),
    Coreference.kind: (Coreference, CoreferenceOptions),
    Translation.kind: (Translation, TranslationOptions),
}
PRETOKENIZED = ("tagging", "roles", "coreference")  # kinds whose labeled files have one word per line
_TABLE = frozenset({"file_format", "has_header", "tokenize"})
_READERS: dict[str, tuple[Callable[..., Iterator[Any]], frozenset[str]]] = {  # reader, names of its options
    "tagging": (read_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (read_texts, _TABLE | {"text", "label"}),
    "entailment": (read_pairs, _TABLE | {"first", "second", "label"}),
    "similarity": (read_pairs, _TABLE | {"first", "second", "score"}),
    "answers": (read_squad, frozenset({"tokenize"})),
    "roles": (read_roles, frozenset({"file_format", "target"})),
    "coreference": (read_coreference, frozenset({"tokenize"})),
    "translation": (read_parallel, _TABLE | {"source", "target"}),
}
PREDICATE_HINT = (
    "mark the predicate whose roles you want, as in --text 'They [[lent]] money .', or use a file with the "
    "columns word, tag, lemma and roleset, with - as the roleset of words that are not predicates"
)
_COUNTED = (
    "entailment",
    "similarity",
    "answers",
    "translation",
)  # kinds whose readers count the examples that they skip


@dataclass(frozen=True)
class ExampleSet:
    """Examples that were read from files, and the number of skipped examples for each reason.

    Attributes:
        examples: The examples.
        left_out: Number of skipped examples for each reason.
    """

    examples: list[Any]
    left_out: Mapping[str, int] = field(default_factory=dict)


def check_kind(kind: str) -> None:
    """Raise ``ConfigError`` for an unknown kind of task."""
    if kind not in KINDS:
        raise ConfigError(f"kind of task must be one of {', '.join(KINDS)}; found {kind[:40]!r}")


def build_task(kind: str, examples: Sequence[Any], options: Any = None) -> Any:
    """Create a task of the given kind, with the labels of its training examples."""
    check_kind(kind)
    return KINDS[kind][0].from_examples(examples, options)


def build_options(kind: str, values: Mapping[str, Any]) -> Any:
    """Create the head options for a kind of task; a value of None means the default."""
    check_kind(kind)
    options = KINDS[kind][1]
    return options(**_choose(values, {entry.name for entry in fields(options)}, owner=f"the head for {kind}"))


def read_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    is_labeled: bool = True,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> ExampleSet:
    """Read all examples of files into memory.

    Args:
        kind: Kind of task, such as "tagging".
        paths: Files to read; they may be compressed.
        is_labeled: Whether the files have gold labels.
        tokenize: Function that splits raw text into tokens; not used for files with one word per line.
        options: Options of the reader, such as columns and file format.

    Example:
        >>> len(read_examples("tagging", ["train.conll"]).examples)
        8
    """
    left_out: Counter[str] = Counter()
    read = _find_reader(kind, tokenize=tokenize, options=options)
    counts = {"left_out": left_out} if kind in _COUNTED else {}
    return ExampleSet(list(read(list(paths), is_labeled=is_labeled, **counts)), left_out)


def iter_examples(
    kind: str, paths: Sequence[str | Path], *, tokenize: Tokenize = WHITESPACE, options: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """Yield examples without labels one at a time; only SQuAD files are read into memory as a whole."""
    return _find_reader(kind, tokenize=tokenize, options=options)(list(paths), is_labeled=False)


def _find_reader(kind: str, *, tokenize: Tokenize, options: Mapping[str, Any] | None) -> Callable[..., Iterator[Any]]:
    """Return the function that reads the files of a kind of task, with its options applied."""
    check_kind(kind)
    reader, known = _READERS[kind]
    values = _choose(options or {}, known - {"tokenize"}, owner=f"the reader of {kind}")
    if "tokenize" in known:
        values["tokenize"] = tokenize
    return partial(reader, **values)


def _choose(values: Mapping[str, Any], known: Set[str], *, owner: str) -> dict[str, Any]:
    """Return the values that are not None; raise ``ConfigError`` for a name that is not known."""
    chosen = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(chosen.keys() - known):
        raise ConfigError(f"{owner} has no option {unknown[0]!r}; it has: {', '.join(sorted(known))}")
    return chosen


def examples_from_text(
    kind: str, texts: Sequence[str], *, question: str | None, passage: str | None, tokenize: Tokenize
) -> list[Any]:
    """Create examples without labels from raw text; question answering uses ``question`` and ``passage``."""

    def words(text: str, number: int, tokenize: Tokenize = tokenize) -> tuple[str, ...]:
        return split_words(text, tokenize, what="text", location=Location("--text", number))

    numbered = list(enumerate(texts, start=1))
    if (kind == "answers") != (question is not None):
        inputs = "--question and --passage" if kind == "answers" else "--text or FILE"
        raise ConfigError(f"a model for {kind} needs {inputs} as input")
    if question is not None and passage is not None:
        return [_question(question, passage, tokenize)]
    if kind in ("entailment", "similarity"):
        if len(texts) != 2:
            raise ConfigError(f"a model for {kind} needs two texts; found {len(texts)}; use --text twice")
        return [TextPair(words(texts[0], 1), words(texts[1], 2), None)]
    if kind == "roles":
        return [_marked_predicate(text, number, tokenize) for number, text in numbered]
    if kind == "coreference":
        sentences = {n: [words(text[i:j], n) for i, j in split_sentences(text)] for n, text in numbered}
        return [Document(f"text {n}", tuple(sentences[n]) or (words(text, n),), None) for n, text in numbered]
    if kind == "translation":
        return [SourceText(split_tokens(text, tokenize).tokens, None) for text in texts]
    if kind == "classification":
        return [LabeledText(words(text, n, keep_markers(tokenize)), None) for n, text in numbered]
    return [TaggedSentence(words(text, n), None) for n, text in numbered]


def _question(question: str, passage: str, tokenize: Tokenize) -> Question:
    location = Location("--passage", 1)
    split_words(passage, tokenize, what="passage", location=location)
    tokens = split_tokens(passage, tokenize)
    if tokens.offsets is None:
        raise ConfigError("the tokenizer must not change the characters of the passage; use another --tokenizer")
    words = split_words(question, tokenize, what="question", location=Location("--question", 1))
    return Question("1", words, tokens.tokens, passage, tokens.offsets, (), (), location)


def _marked_predicate(text: str, number: int, tokenize: Tokenize) -> Predicate:
    """Create an example from a sentence with a marked predicate, such as ``They [[lent]] money .``."""
    plain, span = parse_mark(text, number)
    tokens = split_tokens(plain, tokenize)
    offsets = enumerate(tokens.offsets or ())
    inside = [k for k, (begin, end) in offsets if span and begin < span[1] and end > span[0]]
    if not inside:
        raise DataError(f"text {number} must have a marked predicate; found none; {PREDICATE_HINT}")
    return Predicate(tokens.tokens, inside[0], None)
