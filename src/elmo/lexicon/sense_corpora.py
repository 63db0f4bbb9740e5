"""Read corpora whose words are tagged with WordNet senses, and score predicted senses.

Two formats are supported, compressed or not: JSON lines with one sentence per line (SemCor), and the format of
Raganato et al. (2017, "Word Sense Disambiguation: A Unified Evaluation Framework"), which consists of an XML
file and a file of gold keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from elmo.errors import DataError
from elmo.lexicon.usages import Usage
from elmo.lexicon.wordnet import PARTS_OF_SPEECH, Pos, is_key, key_pos
from elmo.text.lines import Line, format_source, read_lines
from elmo.text.tokenizers import Tokens

# Tokens of the Penn Treebank that stand for punctuation.
_ESCAPED = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]"}
_POS: dict[str, Pos] = {"NOUN": "noun", "VERB": "verb", "ADJ": "adj", "ADV": "adv"}
_WORD_DEPTH = 4  # depth of the XML elements wf and instance
_DEPTHS = {"corpus": 1, "text": 2, "sentence": 3, "wf": 4, "instance": 4}


@dataclass(frozen=True)
class Instance:
    """A word or phrase to disambiguate: tokens ``begin`` to ``end`` of its sentence."""

    id: str
    begin: int
    end: int  # exclusive
    lemma: str  # empty if unknown
    pos: Pos | None  # None if unknown
    keys: tuple[str, ...] = ()  # gold sense keys, each of which is correct; empty if unknown


@dataclass(frozen=True)
class SenseSentence:
    """A sentence with instances: words or phrases to disambiguate.

    Attributes:
        tokens: The tokens.
        instances: The words to disambiguate.
        document: Name of the document.
        place: File and line, for messages.
    """

    tokens: Tokens
    instances: tuple[Instance, ...]
    document: str
    place: str

    @classmethod
    def from_usages(cls, usages: Sequence[Usage], *, pos: Pos | None = None) -> Self:
        """Build a sentence from its usages, whose lemmas are unknown."""
        (tokens,) = {id(usage.sentence): usage.sentence for usage in usages}.values()
        instances = (Instance(str(k), usage.begin, usage.end, "", pos) for k, usage in enumerate(usages))
        return cls(tokens, tuple(instances), document="", place=usages[0].place)

    def usage(self, instance: Instance) -> Usage:
        """Return the usage of an instance of this sentence."""
        return Usage(self.tokens, instance.begin, instance.end, self.place)

    def usages(self) -> list[Usage]:
        """Return the usages of all instances of this sentence."""
        return [self.usage(instance) for instance in self.instances]


def read_sense_corpus(path: str | Path, *, gold: str | Path | None = None) -> Iterator[SenseSentence]:
    """Yield the sentences of a sense-tagged corpus in JSON lines or XML.

    ``gold`` is the file of gold keys that belongs to an XML corpus.

    Args:
        path: The file, plain or compressed.
        gold: File of gold keys that belongs to an XML corpus.

    Example:
        >>> [sentence.tokens.tokens for sentence in read_sense_corpus("semcor.jsonl")]
        [('The', 'bank')]
    """
    with closing(read_lines(Path(path))) as lines:  # so that an error closes the file at once
        first = next((line for line in lines if line.text.strip()), None)
        if first is None:
            raise DataError(f"{format_source(Path(path))}: expected sentences in JSON lines or XML, found none")
        if first.text.lstrip().startswith("<"):
            reader = _XmlReader(first.path, {} if gold is None else read_gold(gold), gold)
            yield from _read_xml(chain([first], lines), reader)
        elif gold is not None:
            raise DataError(f"{first.path}: a corpus with a file of gold keys must be XML; found {first.text[:40]!r}")
        else:
            yield from _read_jsonl(chain([first], lines))


def read_gold(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Read the correct sense keys of instances; each line has the id of an instance and its keys."""
    gold: dict[str, tuple[str, ...]] = {}
    with closing(read_lines(Path(path))) as lines:
        for line in lines:
            name, *keys = line.text.split() or [""]
            if not name:
                continue
            if not keys or not all(map(is_key, keys)):
                raise DataError(
                    f"{line.path}:{line.number}: expected the id of an instance and its sense keys, "
                    f"found {line.text[:80]!r}"
                )
            if name in gold:
                raise DataError(f"{line.path}:{line.number}: instance {name[:80]!r} occurs twice")
            gold[name] = tuple(keys)
    if not gold:
        raise DataError(f"{format_source(Path(path))}: expected gold keys, found none")
    return gold


# --- Scores --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SenseScore:
    """Precision, recall and F1 of predicted senses.

    Attributes:
        n_instances: Number of instances.
        n_answered: Number of instances with a prediction.
        n_right: Number of instances with a correct prediction.
    """

    n_instances: int
    n_answered: int
    n_right: int

    @property
    def precision(self) -> float:
        """Fraction of the predictions that are correct."""
        return self.n_right / self.n_answered if self.n_answered else 0.0

    @property
    def recall(self) -> float:
        """Fraction of all instances that have a correct prediction."""
        return self.n_right / self.n_instances if self.n_instances else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0

    def to_json(self) -> dict[str, float]:
        """Return the result as a dictionary of JSON values."""
        return {**asdict(self), "precision": self.precision, "recall": self.recall, "f1": self.f1}


def score_senses(predictions: Mapping[str, str | None], instances: Iterable[Instance]) -> dict[str, SenseScore]:
    """Score predicted sense keys like the scorer of Raganato et al. (2017).

    Args:
        predictions: Predicted sense keys by id of the instance; None, or a missing id, means no prediction.
        instances: Instances with their gold keys. If there are several gold keys, each of them is correct.

    Returns:
        Scores over all instances ("all") and by part of speech.

    Example:
        >>> instances = [instance for sentence in read_sense_corpus("semcor.jsonl") for instance in sentence.instances]
        >>> score_senses({instances[0].id: "bank%1:17:01::"}, instances)["all"].f1
        1.0
    """
    tallies: dict[str, list[int]] = {}
    for instance in instances:
        if not instance.keys:
            raise DataError(f"instance {instance.id[:80]!r} has no gold key; add the file of gold keys")
        key = predictions.get(instance.id)
        for name in ("all", str(instance.pos)):
            tally = tallies.setdefault(name, [0, 0, 0])
            tally[0] += 1
            tally[1] += key is not None
            tally[2] += key in instance.keys
    names = [name for name in ("all", *PARTS_OF_SPEECH) if name in tallies]
    return {name: SenseScore(*tallies[name]) for name in names}


# --- Readers ----------------------------------------------------------------------------------------


@dataclass
class _SentenceBuilder:
    """Collects the tokens and instances of a sentence; a word with _ becomes several tokens."""

    document: str
    place: str
    tokens: list[str] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)

    def add(self, word: str) -> tuple[int, int]:
        """Add a word of the corpus, and return the span of its tokens."""
        parts = [part for part in word.replace("_", " ").split() if part] or [word]
        begin = len(self.tokens)
        self.tokens += [_ESCAPED.get(part, part) for part in parts]
        return begin, len(self.tokens)

    def build(self) -> SenseSentence:
        return SenseSentence(
            Tokens.from_words(self.tokens), tuple(self.instances), document=self.document, place=self.place
        )


def _read_jsonl(lines: Iterator[Line]) -> Iterator[SenseSentence]:
    seen: set[str] = set()
    for line in lines:
        if not line.text.strip():
            continue
        place = f"{line.path}:{line.number}"
        try:
            values = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: expected a sentence in JSON, found {line.text[:80]!r}") from error
        sentence = _parse_json(values, place, line.number)
        for instance in sentence.instances:
            if instance.id in seen:
                raise DataError(f"{place}: instance {instance.id[:40]!r} occurs twice; number the sentences with 's'")
            seen.add(instance.id)
        yield sentence


def _parse_json(values: Any, place: str, line: int) -> SenseSentence:
    words = values.get("toks") if isinstance(values, dict) else None
    if not isinstance(words, list):
        raise DataError(f"{place}: expected an object with a list 'toks', found {str(values)[:80]!r}")
    document, number = str(values.get("doc", "")), str(values.get("s", f"line{line}"))
    builder = _SentenceBuilder(document, place)
    for k, word in enumerate(words):
        if not isinstance(word, dict) or not isinstance(word.get("w"), str) or not word["w"].strip():
            raise DataError(f"{place}: token {k}: expected an object with a word 'w', found {str(word)[:80]!r}")
        begin, end = builder.add(word["w"])
        # Names are tagged with their class (such as group or person), which is not a sense of the word.
        if "sk" not in word or "pn" in word:
            continue
        keys, lemma = word["sk"], word.get("lemma")
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and is_key(key) for key in keys):
            raise DataError(f"{place}: token {k}: expected sense keys 'sk', found {str(keys)[:80]!r}")
        if not isinstance(lemma, str) or not lemma:
            raise DataError(f"{place}: token {k}: expected a 'lemma' next to 'sk', found {str(lemma)[:80]!r}")
        name = f"{document}.s{number}.t{k}"
        builder.instances.append(Instance(name, begin, end, lemma.lower(), key_pos(keys[0]), tuple(keys)))
    return builder.build()


def _read_xml(lines: Iterable[Line], reader: _XmlReader) -> Iterator[SenseSentence]:
    """Yield each sentence as soon as it is complete, without keeping the tree in memory."""
    from xml.parsers import expat

    for text in chain((f"{line.text}\n" for line in lines), [""]):
        try:
            reader.parser.Parse(text, not text)  # an empty text is the end of the file
        except expat.ExpatError as error:
            reason = str(error).partition(":")[0]
            raise DataError(f"{reader.path}:{error.lineno}: cannot parse the XML: {reason}") from error
        yield from reader.take_sentences()
    if missing := [name for name in reader.gold if name not in reader.seen]:
        raise DataError(
            f"{format_source(Path(reader.gold_path or ''))}: all instances must be in {reader.path}; found "
            f"{len(missing)} that are not, such as {missing[0][:80]!r}; check that the files belong together"
        )


class _XmlReader:
    """Builds sentences from the events of an XML parser; rejects unknown elements and DTDs."""

    def __init__(self, path: str, gold: Mapping[str, tuple[str, ...]], gold_path: str | Path | None) -> None:
        from xml.parsers import expat

        self.path = path
        self.seen: set[str] = set()
        self.gold, self.gold_path = gold, gold_path
        self._complete: list[SenseSentence] = []
        self._stack: list[str] = []
        self._document = ""
        self._builder: _SentenceBuilder | None = None
        self._attributes: dict[str, str] = {}
        self._text: list[str] = []
        self.parser = expat.ParserCreate("utf-8")  # the encoding of the lines, even if the XML declares another
        self.parser.StartDoctypeDeclHandler = self._reject_doctype
        self.parser.EntityDeclHandler = self._reject_doctype
        self.parser.StartElementHandler = self._start_element
        self.parser.EndElementHandler = self._end_element
        self.parser.CharacterDataHandler = self._add_text

    def take_sentences(self) -> list[SenseSentence]:
        """Return the sentences that were completed since the last call."""
        complete, self._complete = self._complete, []
        return complete

    @property
    def _place(self) -> str:
        return f"{self.path}:{self.parser.CurrentLineNumber}"

    def _reject_doctype(self, *_: Any) -> NoReturn:
        raise DataError(f"{self._place}: expected XML without a DTD, found a DTD; remove it")

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._stack.append(name)
        depth = len(self._stack)
        if _DEPTHS.get(name) != depth:
            above = "/".join(self._stack[-_WORD_DEPTH - 1 : -1])
            raise DataError(
                f"{self._place}: expected corpus > text > sentence > wf or instance, "
                f"found <{name[:40]}> in {above[:80] or 'the file'}"
            )
        if name == "text":
            self._document = attributes.get("id", "")
        elif name == "sentence":
            self._builder = _SentenceBuilder(self._document, self._place)
        self._attributes, self._text = attributes, []

    def _add_text(self, text: str) -> None:
        if len(self._stack) == _WORD_DEPTH:
            self._text.append(text)
        elif text.strip():
            raise DataError(f"{self._place}: expected text only in <wf> and <instance>, found {text.strip()[:40]!r}")

    def _end_element(self, name: str) -> None:
        self._stack.pop()
        if name == "sentence":
            self._complete.append(cast("_SentenceBuilder", self._builder).build())
            self._builder = None
        elif name in ("wf", "instance"):
            self._add_word("".join(self._text), is_instance=name == "instance")

    def _add_word(self, word: str, *, is_instance: bool) -> None:
        builder = cast("_SentenceBuilder", self._builder)
        if not word.strip():
            raise DataError(f"{self._place}: expected a word, found none")
        begin, end = builder.add(word)
        if not is_instance:
            return
        name, lemma, pos = (self._attributes.get(key, "") for key in ("id", "lemma", "pos"))
        if not name or not lemma or pos not in _POS:
            raise DataError(
                f"{self._place}: expected an instance with id, lemma and pos {', '.join(_POS)}, "
                f"found {str(self._attributes)[:80]}"
            )
        if name in self.seen:
            raise DataError(f"{self._place}: instance {name[:80]!r} occurs twice")
        self.seen.add(name)
        keys = self.gold.get(name, ())
        if self.gold_path is not None and not keys:
            raise DataError(
                f"{format_source(Path(self.gold_path))}: expected a key for the instance {name[:80]!r} "
                f"({self._place}), found none"
            )
        builder.instances.append(Instance(name, begin, end, lemma.lower(), _POS[pos], keys))
