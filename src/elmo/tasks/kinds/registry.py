"""The kinds of tasks by name, and how their examples are read from files or from text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from elmo.embed.find import parse_mark
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.coreference import each_document
from elmo.tasks.data.examples import (
    Document,
    LabelledText,
    Place,
    Predicate,
    Question,
    TaggedSentence,
    TextPair,
)
from elmo.tasks.data.files import WHITESPACE, Tokenize, tokens_of, words_of
from elmo.tasks.data.roles import each_predicate
from elmo.tasks.data.squad import each_question
from elmo.tasks.data.tagging import each_tagged
from elmo.tasks.data.texts import each_pair, each_text, with_marks
from elmo.tasks.kinds.answers import Answers, AnswersOptions
from elmo.tasks.kinds.classification import Classification, ClassificationOptions
from elmo.tasks.kinds.coreference import Coreference, CoreferenceOptions
from elmo.tasks.kinds.entailment import Entailment, EntailmentOptions
from elmo.tasks.kinds.roles import Roles, RolesOptions
from elmo.tasks.kinds.similarity import Similarity, SimilarityOptions
from elmo.tasks.kinds.tagging import Tagging, TaggingOptions
from elmo.text.sentences import split_sentences

KINDS: dict[str, tuple[type[Any], type[Any]]] = {  # the class of the task, and that of its options
    Tagging.kind: (Tagging, TaggingOptions),
    Classification.kind: (Classification, ClassificationOptions),
    Entailment.kind: (Entailment, EntailmentOptions),
    Similarity.kind: (Similarity, SimilarityOptions),
    Answers.kind: (Answers, AnswersOptions),
    Roles.kind: (Roles, RolesOptions),
    Coreference.kind: (Coreference, CoreferenceOptions),
}
PRETOKENIZED = ("tagging", "roles", "coreference")  # labeled files have one word per line
_TABLE = frozenset({"file_format", "has_header", "tokenize"})
_READERS: dict[str, tuple[Callable[..., Iterator[Any]], frozenset[str]]] = {  # and the options of the reader
    "tagging": (each_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (each_text, _TABLE | {"text", "label"}),
    "entailment": (each_pair, _TABLE | {"first", "second", "label"}),
    "similarity": (each_pair, _TABLE | {"first", "second", "score"}),
    "answers": (each_question, frozenset({"tokenize"})),
    "roles": (each_predicate, frozenset({"file_format", "target"})),
    "coreference": (each_document, frozenset({"tokenize"})),
}
PREDICATE_HINT = (
    "roles belong to a predicate: mark it, --text 'They [[lent]] money .', or give columns word, tag, "
    "lemma, roleset with - for words that are not predicates"
)
_COUNTED = ("entailment", "similarity", "answers")  # their readers count the examples that they skip


@dataclass(frozen=True)
class ExampleSet:
    """Examples, and the number of skipped examples by reason."""

    examples: list[Any]
    left_out: Mapping[str, int] = field(default_factory=dict)


def check_kind(kind: str) -> None:
    """Raise ``ConfigError`` for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError(f"kind of task: expected one of {', '.join(KINDS)}, found {kind[:40]!r}")


def build_task(kind: str, examples: Sequence[Any], options: Any = None) -> Any:
    """Create the task of a kind that these training examples define."""
    check_kind(kind)
    return KINDS[kind][0].from_examples(examples, options)


def build_options(kind: str, values: Mapping[str, Any]) -> Any:
    """Create the head options of a kind; a value of None means the default."""
    check_kind(kind)
    options = KINDS[kind][1]
    known = {entry.name for entry in fields(options)}
    chosen = {name: value for name, value in values.items() if value is not None}
    if unknown := sorted(set(chosen) - known):
        raise ConfigError(f"{kind} has no option {unknown[0]!r}; it has: {', '.join(sorted(known))}")
    return options(**chosen)


def read_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    is_labelled: bool = True,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> ExampleSet:
    """Read the examples of files.

    Args:
        kind: Kind of task, such as "tagging".
        paths: Files, compressed or not.
        is_labelled: Whether the files have gold labels.
        tokenize: Splits raw text into tokens; not used for files with one word per line.
        options: Options of the reader, such as columns and file format.
    """
    left_out: Counter[str] = Counter()
    values = _reader_options(kind, tokenize=tokenize, options=options)
    if kind in _COUNTED:
        values["left_out"] = left_out
    reader, _ = _READERS[kind]
    return ExampleSet(list(reader(list(paths), is_labelled=is_labelled, **values)), left_out)


def iter_examples(
    kind: str,
    paths: Sequence[str | Path],
    *,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Read examples without labels one at a time; only SQuAD files are read into memory as a whole."""
    values = _reader_options(kind, tokenize=tokenize, options=options)
    reader, _ = _READERS[kind]
    return reader(list(paths), is_labelled=False, **values)


def _reader_options(kind: str, *, tokenize: Tokenize, options: Mapping[str, Any] | None) -> dict[str, Any]:
    check_kind(kind)
    _, known = _READERS[kind]
    values = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"the reader of {kind} has no option {unknown[0]!r}; "
            f"it has: {', '.join(sorted(known - {'tokenize'}))}"
        )
    return values | ({"tokenize": tokenize} if "tokenize" in known else {})


def examples_from_text(
    kind: str, texts: Sequence[str], *, question: str | None, passage: str | None, tokenize: Tokenize
) -> list[Any]:
    """Return unlabeled examples from raw text; ``question`` and ``passage`` are for answers."""

    def words(text: str, number: int, tokenize: Tokenize = tokenize) -> tuple[str, ...]:
        return words_of(text, tokenize, what="text", place=Place("--text", number))

    numbered = list(enumerate(texts, start=1))
    if (kind == "answers") != (question is not None):
        inputs = "--question and --passage" if kind == "answers" else "--text or FILE"
        raise ConfigError(f"a model of {kind} needs {inputs}")
    if question is not None and passage is not None:
        return [_question(question, passage, tokenize)]
    if kind in ("entailment", "similarity"):
        if len(texts) != 2:
            raise ConfigError(f"a model of {kind} needs two texts, found {len(texts)}; give --text twice")
        return [TextPair(words(texts[0], 1), words(texts[1], 2), None)]
    if kind == "roles":
        return [_marked_predicate(text, number, tokenize) for number, text in numbered]
    if kind == "coreference":
        sentences = {n: [words(text[i:j], n) for i, j in split_sentences(text)] for n, text in numbered}
        return [Document(f"text {n}", tuple(sentences[n]) or (words(text, n),), None) for n, text in numbered]
    if kind == "classification":
        return [LabelledText(words(text, n, with_marks(tokenize)), None) for n, text in numbered]
    return [TaggedSentence(words(text, n), None) for n, text in numbered]


def _question(question: str, passage: str, tokenize: Tokenize) -> Question:
    place = Place("--passage", 1)
    words_of(passage, tokenize, what="passage", place=place)
    tokens = tokens_of(passage, tokenize)
    if tokens.offsets is None:
        raise ConfigError("--tokenizer: expected a tokenizer that does not change characters of the passage")
    words = words_of(question, tokenize, what="question", place=Place("--question", 1))
    return Question("1", words, tokens.tokens, passage, tokens.offsets, (), (), place)


def _marked_predicate(text: str, number: int, tokenize: Tokenize) -> Predicate:
    """Return a sentence whose predicate is marked like ``[[this]]``."""
    plain, span = parse_mark(text, number)
    tokens = tokens_of(plain, tokenize)
    offsets = enumerate(tokens.offsets or ())
    inside = [k for k, (begin, end) in offsets if span and begin < span[1] and end > span[0]]
    if not inside:
        raise DataError(f"text {number}: expected a marked predicate, found none; {PREDICATE_HINT}")
    return Predicate(tokens.tokens, inside[0], None)
