"""Split text into sentences, with rules for full stops, abbreviations, quotes and blank lines.

In doubtful cases, the sentence continues, because joining two sentences harms a biLM less than cutting one in two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elmo.text.english import ABBREVIATIONS, BEFORE_NUMBERS, HAN, TITLES
from elmo.text.languages import LANGUAGES, RULES
from elmo.text.tokenizers import skip_space, strip_span

# These characters end a sentence in any language.
_STRONG = frozenset("。！？｡؟۔।॥։።။។")
_CHINESE_ONLY = "；"  # in Chinese, separates clauses that are often as long as sentences
_PATTERN = re.compile(
    r"(?P<blank>\n[^\S\n]*+\n|\u2029)"
    r"|(?P<marks>[.!?…。！？｡؟۔।॥։።။។；]++)"
    # “ ‘ « ‹ close a quote („Nein.“ »Nein.«) only before a space; elsewhere they open the next one (。“).
    # » may follow a space (« Non. »).
    r"(?P<closers>(?:[\"'”’»›)\]}）】」』》〉］｝〗〕]|[“‘«‹]++(?=[ \t\r\n]|\Z)|[ \u00a0\u202f]»(?=[\s,;:.]|\Z))*+)"
)
_HAN_BEFORE = re.compile(f"[{HAN}][\"'”’)）」』]?\\Z")
_HAN_AFTER = re.compile(f"[\"'“‘(（「『《]?[{HAN}]")
_CONTINUES = frozenset(",，、;；:：)）].!?…")
_LAST_WORD = re.compile(r"[^\s\"'“‘(\[]+\Z")
_NEXT_WORD = re.compile(r"[\"'“‘(\[«]{0,3}([^\W_]{0,20})")
_LETTER_BEFORE = re.compile(r"(?<![^\W_])[^\W\d_]\.\s?\Z")  # of abbreviations such as z. B. and т. е.
_LETTER_AFTER = re.compile(r"\s?[^\W\d_]\.")
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_ELLIPSIS = re.compile(r"\.{2,}|…+\.?")

_STARTERS = frozenset(
    """The A An He She It We They I You This That These Those There Here In On At But And Or So If When While
    As For After Before However His Her Their Its Our My Your What Who Why How Where Then Now Not Yes Also
    Although Another By Despite During Each Every From Many Most One Other Since Some Such To Under Until
    With""".split()  # noqa: SIM905 -- easier to read than quotes
)
_NEVER_LAST = frozenset(("e.g", "i.e", "eg", "ie", "cf", "viz", "approx", "ca", *TITLES))
_LAST_BEFORE_A_CAPITAL = frozenset(("etc", "Etc", "al", "a.m", "p.m", "A.M", "P.M", "Jr", "Sr"))


SPLIT_SAMPLE = 1 << 16  # number of characters from which choose_split decides
_MIN_SENTENCES = 1.5  # mean number of sentences in a line from which on lines are split
_MIN_WIDTH = 60  # mean width of a paragraph from which on lines are split; a Chinese character counts as three
_HAN_CHARACTER = re.compile(f"[{HAN}]")
# Ends inside lines that are one sentence: of clauses, and of quotes within a Chinese sentence (“你去哪？”他问。)
_UNCLEAR_END = re.compile("(?:；|[。！？!?…][\"'”’」』]+)\\Z")


@dataclass(frozen=True)
class SplitChoice:
    """Whether to split the lines of a text into sentences.

    Attributes:
        is_split: Whether to split them.
        n_lines: Number of lines of the sample that have text.
        n_sentences: Number of sentences in these lines, if they are split.
        is_whole: Whether the sample is the whole text.
    """

    is_split: bool
    n_lines: int
    n_sentences: int
    is_whole: bool

    @property
    def sentences_per_line(self) -> float:
        """Mean number of sentences in a line of the sample."""
        return self.n_sentences / max(1, self.n_lines)

    def __str__(self) -> str:
        """Return one line for the log, if the lines are split."""
        lines = f"{self.n_lines:,} line{'s' * (self.n_lines != 1)}"
        return (
            f"{lines if self.is_whole else f'first {lines}'}, paragraphs: splitting into "
            f"{self.n_sentences:,} sentences; --no-split keeps lines"
        )


def choose_split(sample: str, language: str = "en") -> SplitChoice:
    """Decide whether the lines of a text are paragraphs, which are split, or sentences. All commands use this rule.

    Lines are split if they have at least 1.5 sentences on average in the beginning of the text, and at least the width
    of 60 letters or 20 Chinese characters. Ends that may be inside a Chinese sentence, at ``；`` and after a quote, are
    not counted.

    Args:
        sample: The first ``SPLIT_SAMPLE`` characters of the text, or more; the others are not used.
        language: As for ``iter_sentences``.
    """
    lines = [line for line in sample[:SPLIT_SAMPLE].split("\n") if line.strip()]
    n_sentences = n_clear = 0
    for line in lines:
        ends = [end for _, end in iter_sentences(line, language)]
        n_sentences += len(ends)
        n_clear += len(ends) - sum(_is_unclear_end(line, end) for end in ends[:-1])
    n_lines = max(1, len(lines))
    width = sum(len(line) + 2 * len(_HAN_CHARACTER.findall(line)) for line in lines)
    is_split = n_clear >= _MIN_SENTENCES * n_lines and width >= _MIN_WIDTH * n_lines
    return SplitChoice(is_split, len(lines), n_sentences, len(sample) <= SPLIT_SAMPLE)


def _is_unclear_end(line: str, end: int) -> bool:
    """Return whether the end of a sentence may be inside a longer Chinese sentence."""
    is_unclear = _UNCLEAR_END.search(line[max(0, end - 4) : end]) is not None
    return is_unclear and _HAN_CHARACTER.match(line, skip_space(line, end)) is not None


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return the start and end of each sentence, as ``iter_sentences`` finds them."""
    return list(iter_sentences(text, language))


def iter_sentences(text: str, language: str = "en") -> Iterator[tuple[int, int]]:
    """Find the start and end of each sentence, without the white space around it.

    A blank line always ends a sentence; a single line break never does. ``language`` is a language code or
    the name of a tokenizer; in Chinese (``zh``), sentences also end at ``；``.
    """
    code = language.removeprefix("spacy:").split("-")[0]
    begin = 0
    for match in _PATTERN.finditer(text):
        if match["blank"] is not None or _is_end(text, match, begin=begin, language=code):
            if span := strip_span(text, begin, match.end()):
                yield span
            begin = match.end()
    if span := strip_span(text, begin, len(text)):
        yield span


def _is_end(text: str, match: re.Match[str], *, begin: int, language: str) -> bool:
    """Return whether the sentence that starts at ``begin`` ends with the matched punctuation marks."""
    marks, has_closers, is_chinese = match["marks"], bool(match["closers"]), language == "zh"
    end = match.end()
    after = skip_space(text, end)
    following = text[after : after + 24]
    if not following:
        return True
    if any(mark in _STRONG for mark in marks) or (is_chinese and _CHINESE_ONLY in marks):
        return following[0] not in _CONTINUES
    if _CHINESE_ONLY in marks:
        return False
    is_ellipsis = _ELLIPSIS.fullmatch(marks) is not None
    if after == end:
        # No white space: Chinese with ASCII punctuation, or not an end at all (3.14, a.b, 好吧……算了).
        if is_ellipsis:
            return False
        before = text[max(0, match.start() - 2) : match.start()]
        return bool(_HAN_BEFORE.search(before) and _HAN_AFTER.match(following))
    next_word = _NEXT_WORD.match(following)
    next_word = next_word[1] if next_word else ""
    if following[0] in _CONTINUES:
        return False
    if is_ellipsis:
        return not next_word[:1].islower()
    if "!" in marks or "?" in marks:
        # no end in: "Stop!" he said. The company Yahoo! grew.
        is_name = text.endswith("Yahoo", 0, match.start()) and marks == "!"
        return not (next_word[:1].islower() and (has_closers or is_name))
    return _is_full_stop_end(text, match, begin=begin, next_word=next_word, language=language)


def _is_full_stop_end(text: str, match: re.Match[str], *, begin: int, next_word: str, language: str) -> bool:
    """Return whether an ASCII full stop, followed by white space, ends a sentence."""
    last_word = _LAST_WORD.search(text[max(begin, match.start() - 24) : match.start()])
    if last_word is None:
        return True
    word = last_word[0]
    if language in LANGUAGES and language != "en" and len(word) == 1 and word.isalpha():
        if _LETTER_AFTER.match(text, match.end()):
            return False
        if _LETTER_BEFORE.search(text[max(begin, match.start() - 8) : match.start() - 1]):
            return next_word[:1].isupper() and language != "de"  # German nouns are capitalized
    if rules := RULES.get(language):
        if rules.has_ordinals and word.isdigit() and len(word) <= 2 and next_word[:1].isalpha():
            return False
        if word in rules.last_after_numbers and text[begin : match.start() - len(word)].rstrip()[-1:].isdigit():
            return next_word[:1].isupper()
        if word in rules.last_words:
            return next_word[:1].isupper()
        if word in rules.abbreviations:
            return False
    if word in _NEVER_LAST:
        return False
    if word in BEFORE_NUMBERS and next_word[:1].isdigit():
        return False
    if word in _LAST_BEFORE_A_CAPITAL:
        return next_word[:1].isupper()
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    if is_initial or word in ABBREVIATIONS or _DOTTED.fullmatch(word):
        return next_word in _STARTERS
    is_list_number = word.isdigit() and text[begin : match.start()].strip() == word  # "1. First"
    return not is_list_number
