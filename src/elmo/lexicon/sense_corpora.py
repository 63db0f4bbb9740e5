"""Texts whose words are marked with WordNet senses in, sentences with these marks out; answers scored.

Two formats are read, compressed or not: JSON lines as SemCor comes in, a sentence a line, and the XML with a
file of gold keys of Raganato et al. 2017 (Word Sense Disambiguation: A Unified Evaluation Framework).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from elmo.errors import DataError
from elmo.lexicon.usages import Usage
from elmo.lexicon.wordnet import PARTS_OF_SPEECH, Pos, is_key, key_pos
from elmo.text.lines import Line, format_source, read_lines
from elmo.text.tokenizers import Tokens

# What corpora of the Penn Treebank's kind write for signs that other text has as they are.
_ESCAPED = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]"}
_POS: dict[str, Pos] = {"NOUN": "noun", "VERB": "verb", "ADJ": "adj", "ADV": "adv"}
_MOST_DEPTH = 4  # corpus, text, sentence, word
_DEPTHS = {"corpus": 1, "text": 2, "sentence": 3, "wf": 4, "instance": 4}


@dataclass(frozen=True)
class Instance:
    """A word, or a phrase, that has a sense: tokens ``begin``..``end`` of its sentence."""

    id: str
    begin: int
    end: int  # exclusive
    lemma: str  # empty where it is not known
    pos: Pos | None  # None where it is not known
    keys: tuple[str, ...] = ()  # the right senses, any of them; none where they are not known


@dataclass(frozen=True)
class SenseSentence:
    """A sentence and those of its words that have a sense."""

    tokens: Tokens
    instances: tuple[Instance, ...]
    document: str
    place: str  # file:line

    def word(self, instance: Instance) -> str:
        """An instance as it is spelled here."""
        return " ".join(self.tokens.tokens[instance.begin : instance.end])

    @classmethod
    def of_usages(cls, usages: Sequence[Usage], *, pos: Pos | None = None) -> Self:
        """A sentence by the uses of words in it, whose lemmas are not known."""
        (tokens,) = {id(usage.sentence): usage.sentence for usage in usages}.values()
        found = (Instance(str(k), usage.begin, usage.end, "", pos) for k, usage in enumerate(usages))
        return cls(tokens, tuple(found), document="", place=usages[0].place)

    def usages(self) -> list[Usage]:
        """The instances as uses of words, in their order."""
        return [Usage(self.tokens, each.begin, each.end, self.place) for each in self.instances]


def read_senses(path: str | Path, *, gold: str | Path | None = None) -> Iterator[SenseSentence]:
    """The sentences of a file of either format; ``gold`` holds the keys that go with XML."""
    lines = read_lines(Path(path))
    for line in lines:
        if not (start := line.text.lstrip()):
            continue
        if start.startswith("<"):
            yield from _read_xml(_with_first(line, lines), {} if gold is None else read_gold(gold), gold)
            return
        if gold is not None:
            raise DataError(f"{line.path}: expected XML, which gold keys go with, found {line.text[:40]!r}")
        yield from _read_jsonl(_with_first(line, lines))
        return
    raise DataError(f"{format_source(Path(path))}: expected sentences in JSON lines or XML, found none")


def read_gold(path: str | Path) -> dict[str, tuple[str, ...]]:
    """The right sense keys of each instance, by its id: a line of a gold file has the id, then the keys."""
    found: dict[str, tuple[str, ...]] = {}
    for line in read_lines(Path(path)):
        name, *keys = line.text.split() or [""]
        if not name:
            continue
        if not keys or not all(map(is_key, keys)):
            raise DataError(
                f"{line.path}:{line.number}: expected an instance's id and its sense keys, "
                f"found {line.text[:80]!r}"
            )
        if name in found:
            raise DataError(f"{line.path}:{line.number}: {name[:80]!r} stands twice")
        found[name] = tuple(keys)
    if not found:
        raise DataError(f"{format_source(Path(path))}: expected gold keys, found none")
    return found


# --- the score --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """How many instances were answered, and how many of the answers are right."""

    n_instances: int
    n_answered: int
    n_right: int

    @property
    def precision(self) -> float:
        """Right answers among the answers."""
        return self.n_right / self.n_answered if self.n_answered else 0.0

    @property
    def recall(self) -> float:
        """Right answers among all instances."""
        return self.n_right / self.n_instances if self.n_instances else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def score(answers: Mapping[str, str | None], instances: Iterable[Instance]) -> dict[str, Score]:
    """Scores over all and by part of speech, as the Scorer of the unified framework counts them.

    ``answers`` has a sense key by instance id; None, or none at all, is no answer. Any of several gold keys
    is right.
    """
    tallies: dict[str, list[int]] = {}
    for each in instances:
        if not each.keys:
            raise DataError(f"the instance {each.id[:80]!r} has no gold key; give the file of gold keys, too")
        answer = answers.get(each.id)
        for name in ("all", str(each.pos)):
            tally = tallies.setdefault(name, [0, 0, 0])
            tally[0] += 1
            tally[1] += answer is not None
            tally[2] += answer in each.keys
    names = [name for name in ("all", *PARTS_OF_SPEECH) if name in tallies]
    return {name: Score(*tallies[name]) for name in names}


def _with_first(first: Line, rest: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from rest


@dataclass
class _Draft:
    """A sentence that is being read; words joined by _ are tokens of their own."""

    document: str
    place: str
    tokens: list[str] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)

    def add(self, word: str) -> tuple[int, int]:
        """Add a word of a corpus; where its tokens stand."""
        parts = [part for part in word.replace("_", " ").split() if part] or [word]
        begin = len(self.tokens)
        self.tokens += [_ESCAPED.get(part, part) for part in parts]
        return begin, len(self.tokens)

    def whole(self) -> SenseSentence:
        return SenseSentence(
            Tokens.from_words(self.tokens), tuple(self.instances), document=self.document, place=self.place
        )


# --- JSON lines -------------------------------------------------------------------------------------


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
        sentence = _json_sentence(values, place, line.number)
        for instance in sentence.instances:
            if instance.id in seen:
                raise DataError(
                    f"{place}: the word {instance.id[:40]!r} is there already; number sentences by 's'"
                )
            seen.add(instance.id)
        yield sentence


def _json_sentence(values: Any, place: str, line: int) -> SenseSentence:
    words = values.get("toks") if isinstance(values, dict) else None
    if not isinstance(words, list):
        raise DataError(f"{place}: expected an object with a list 'toks', found {str(values)[:80]!r}")
    document, number = str(values.get("doc", "")), str(values.get("s", f"line{line}"))
    draft = _Draft(document, place)
    for k, word in enumerate(words):
        if not isinstance(word, dict) or not isinstance(word.get("w"), str) or not word["w"].strip():
            raise DataError(
                f"{place}: token {k}: expected an object with a word 'w', found {str(word)[:80]!r}"
            )
        begin, end = draft.add(word["w"])
        # A name is marked with what it is a name of (group, person), which is no sense of its words.
        if "sk" not in word or "pn" in word:
            continue
        keys, lemma = word["sk"], word.get("lemma")
        if (
            not isinstance(keys, list)
            or not keys
            or not all(isinstance(key, str) and is_key(key) for key in keys)
        ):
            raise DataError(f"{place}: token {k}: expected sense keys 'sk', found {str(keys)[:80]!r}")
        if not isinstance(lemma, str) or not lemma:
            raise DataError(f"{place}: token {k}: expected a 'lemma' beside 'sk', found {str(lemma)[:80]!r}")
        name = f"{document}.s{number}.t{k}"
        draft.instances.append(Instance(name, begin, end, lemma.lower(), key_pos(keys[0]), tuple(keys)))
    return draft.whole()


# --- XML --------------------------------------------------------------------------------------------


def _read_xml(
    lines: Iterator[Line], gold: Mapping[str, tuple[str, ...]], gold_path: str | Path | None
) -> Iterator[SenseSentence]:
    """Sentences as soon as they are whole: nothing of the tree is kept."""
    from xml.parsers import expat

    reader = None
    for line in lines:
        reader = reader or _XmlReader(line.path, gold, gold_path)
        try:
            reader.parser.Parse(f"{line.text}\n", False)
        except expat.ExpatError as error:
            raise DataError(f"{line.path}:{error.lineno}: expected XML, found {_said(error)}") from error
        yield from reader.take()
    if reader is None:
        return
    try:
        reader.parser.Parse("", True)
    except expat.ExpatError as error:
        raise DataError(f"{reader.path}:{error.lineno}: expected XML, found {_said(error)}") from error
    if gold_path is not None and (missing := [name for name in gold if name not in reader.seen]):
        raise DataError(
            f"{format_source(Path(gold_path))}: has keys of {len(missing)} instances that {reader.path} has not, "
            f"such as {missing[0][:80]!r}; do the files belong together?"
        )


def _said(error: Exception) -> str:
    return str(error).partition(":")[0]


class _XmlReader:
    """Events of a parser in, sentences out. Only the five elements are read; a DTD is refused, unread."""

    def __init__(self, path: str, gold: Mapping[str, tuple[str, ...]], gold_path: str | Path | None) -> None:
        from xml.parsers import expat

        self.path = path
        self.seen: set[str] = set()
        self._gold, self._gold_path = gold, gold_path
        self._whole: list[SenseSentence] = []
        self._stack: list[str] = []
        self._document = ""
        self._draft: _Draft | None = None
        self._attributes: dict[str, str] = {}
        self._text: list[str] = []
        self.parser = expat.ParserCreate("utf-8")  # as the lines are, whatever is declared
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.EntityDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def take(self) -> list[SenseSentence]:
        """What has become whole since the last time."""
        whole, self._whole = self._whole, []
        return whole

    @property
    def _place(self) -> str:
        return f"{self.path}:{self.parser.CurrentLineNumber}"

    def _refuse_doctype(self, *_: Any) -> NoReturn:
        raise DataError(f"{self._place}: expected XML without a DTD, found one; take it out")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._stack.append(name)
        depth = len(self._stack)
        if _DEPTHS.get(name) != depth:
            above = "/".join(self._stack[-_MOST_DEPTH - 1 : -1])
            raise DataError(
                f"{self._place}: expected corpus, text, sentence, wf and instance, each in the one before, "
                f"found <{name[:40]}> in {above[:80] or 'the file'}"
            )
        if name == "text":
            self._document = attributes.get("id", "")
        elif name == "sentence":
            self._draft = _Draft(self._document, self._place)
        self._attributes, self._text = attributes, []

    def _characters(self, text: str) -> None:
        if len(self._stack) == _MOST_DEPTH:
            self._text.append(text)
        elif text.strip():
            raise DataError(f"{self._place}: expected text within words only, found {text.strip()[:40]!r}")

    def _end(self, name: str) -> None:
        self._stack.pop()
        if name == "sentence":
            self._whole.append(cast("_Draft", self._draft).whole())
            self._draft = None
        elif name in ("wf", "instance"):
            self._word(cast("_Draft", self._draft), "".join(self._text), is_instance=name == "instance")

    def _word(self, draft: _Draft, word: str, *, is_instance: bool) -> None:
        if not word.strip():
            raise DataError(f"{self._place}: expected a word, found none")
        begin, end = draft.add(word)
        if not is_instance:
            return
        name, lemma, pos = (self._attributes.get(key, "") for key in ("id", "lemma", "pos"))
        if not name or not lemma or pos not in _POS:
            raise DataError(
                f"{self._place}: expected an instance with id, lemma and pos {', '.join(_POS)}, "
                f"found {str(self._attributes)[:80]}"
            )
        if name in self.seen:
            raise DataError(f"{self._place}: the instance {name[:80]!r} stands twice")
        self.seen.add(name)
        keys = self._gold.get(name, ())
        if self._gold_path is not None and not keys:
            raise DataError(
                f"{format_source(Path(self._gold_path))}: has no key of the instance {name[:80]!r} ({self._place})"
            )
        draft.instances.append(Instance(name, begin, end, lemma.lower(), _POS[pos], keys))
