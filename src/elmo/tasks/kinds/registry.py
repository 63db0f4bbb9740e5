"""The kinds of tasks by name, and how their examples are read from files or from text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from elmo.embed.find import parse_mark
from elmo.errors import ConfigError, DataError
from elmo.tasks.data.coreference import read_coreference
from elmo.tasks.data.examples import Document, LabeledText, Location, Predicate, Question, TaggedSentence, TextPair
from elmo.tasks.data.files import WHITESPACE, Tokenize, split_tokens, split_words
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
    "tagging": (read_tagged, frozenset({"words", "tags", "separator", "file_format", "tokenize"})),
    "classification": (read_texts, _TABLE | {"text", "label"}),
    "entailment": (read_pairs, _TABLE | {"first", "second", "label"}),
    "similarity": (read_pairs, _TABLE | {"first", "second", "score"}),
    "answers": (read_squad, frozenset({"tokenize"})),
    "roles": (read_roles, frozenset({"file_format", "target"})),
    "coreference": (read_coreference, frozenset({"tokenize"})),
}
PREDICATE_HINT = (
    "roles belong to a predicate: mark it in the text, as in --text 'They [[lent]] money .', or use a file with the "
    "columns word, tag, lemma and roleset, with - as the roleset of words that are not predicates"
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
        raise ConfigError(f"kind of task must be one of {', '.join(KINDS)}, found {kind[:40]!r}")


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
    is_labeled: bool = True,
    tokenize: Tokenize = WHITESPACE,
    options: Mapping[str, Any] | None = None,
) -> ExampleSet:
    """Read the examples of files.

    Args:
        kind: Kind of task, such as "tagging".
        paths: Files, compressed or not.
        is_labeled: Whether the files have gold labels.
        tokenize: Splits raw text into tokens; not used for files with one word per line.
        options: Options of the reader, such as columns and file format.
    """
    left_out: Counter[str] = Counter()
    values = _reader_options(kind, tokenize=tokenize, options=options)
    if kind in _COUNTED:
        values["left_out"] = left_out
    reader, _ = _READERS[kind]
    return ExampleSet(list(reader(list(paths), is_labeled=is_labeled, **values)), left_out)


def iter_examples(
    kind: str, paths: Sequence[str | Path], *, tokenize: Tokenize = WHITESPACE, options: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """Read examples without labels one at a time; only SQuAD files are read into memory as a whole."""
    values = _reader_options(kind, tokenize=tokenize, options=options)
    reader, _ = _READERS[kind]
    return reader(list(paths), is_labeled=False, **values)


def _reader_options(kind: str, *, tokenize: Tokenize, options: Mapping[str, Any] | None) -> dict[str, Any]:
    check_kind(kind)
    _, known = _READERS[kind]
    values = {name: value for name, value in (options or {}).items() if value is not None}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"the reader of {kind} has no option {unknown[0]!r}; it has: {', '.join(sorted(known - {'tokenize'}))}"
        )
    return values | ({"tokenize": tokenize} if "tokenize" in known else {})


def examples_from_text(
    kind: str, texts: Sequence[str], *, question: str | None, passage: str | None, tokenize: Tokenize
) -> list[Any]:
    """Return unlabeled examples from raw text; ``question`` and ``passage`` are for answers."""

    def words(text: str, number: int, tokenize: Tokenize = tokenize) -> tuple[str, ...]:
        return split_words(text, tokenize, what="text", location=Location("--text", number))

    numbered = list(enumerate(texts, start=1))
    if (kind == "answers") != (question is not None):
        inputs = "--question and --passage" if kind == "answers" else "--text or FILE"
        raise ConfigError(f"a model for {kind} needs {inputs}")
    if question is not None and passage is not None:
        return [_question(question, passage, tokenize)]
    if kind in ("entailment", "similarity"):
        if len(texts) != 2:
            raise ConfigError(f"a model for {kind} needs two texts, found {len(texts)}; give --text twice")
        return [TextPair(words(texts[0], 1), words(texts[1], 2), None)]
    if kind == "roles":
        return [_marked_predicate(text, number, tokenize) for number, text in numbered]
    if kind == "coreference":
        sentences = {n: [words(text[i:j], n) for i, j in split_sentences(text)] for n, text in numbered}
        return [Document(f"text {n}", tuple(sentences[n]) or (words(text, n),), None) for n, text in numbered]
    if kind == "classification":
        return [LabeledText(words(text, n, keep_markers(tokenize)), None) for n, text in numbered]
    return [TaggedSentence(words(text, n), None) for n, text in numbered]


def _question(question: str, passage: str, tokenize: Tokenize) -> Question:
    location = Location("--passage", 1)
    split_words(passage, tokenize, what="passage", location=location)
    tokens = split_tokens(passage, tokenize)
    if tokens.offsets is None:
        raise ConfigError(
            "--tokenizer: expected a tokenizer that does not change the characters of the passage, found one that does"
        )
    words = split_words(question, tokenize, what="question", location=Location("--question", 1))
    return Question("1", words, tokens.tokens, passage, tokens.offsets, (), (), location)


def _marked_predicate(text: str, number: int, tokenize: Tokenize) -> Predicate:
    """Return a sentence whose predicate is marked like ``[[this]]``."""
    plain, span = parse_mark(text, number)
    tokens = split_tokens(plain, tokenize)
    offsets = enumerate(tokens.offsets or ())
    inside = [k for k, (begin, end) in offsets if span and begin < span[1] and end > span[0]]
    if not inside:
        raise DataError(f"text {number}: expected a marked predicate, found none; {PREDICATE_HINT}")
    return Predicate(tokens.tokens, inside[0], None)
