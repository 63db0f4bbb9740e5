"""Tokenize English text as in the Penn Treebank, without changing a character.

The 1 Billion Word corpus, on which ELMo was trained, is tokenized this way: ``do n't``, ``it 's``, ``$ 5``,
``50 %``, hyphenated words as one token. In other scripts, each Han character is a token (use the ``zh``
tokenizer for words), and runs of kana, Thai, Arabic, Hangul, … are one token each. Marks and format
characters belong to the token of the character before them (Unicode Standard Annex 29, rule WB4).

One regular expression matches all tokens. Its repeats are possessive or bounded, and no branch reads far ahead
before it fails, so the time is linear in the length of any text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from elmo.text.tokenizers import Tokens

HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
KANA = "\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001b000-\U0001b16f"
_PICTOGRAPH = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001fbff]"
)
_SKIN_TONE = "[\U0001f3fb-\U0001f3ff]"
_FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"
_ZERO_WIDTH_SPACE = "\u200b"  # a format character that separates words

# Abbreviations that keep their period: TITLES and ABBREVIATIONS always, BEFORE_NUMBERS only before a number (in
# "No. 5", but not in the sentence "No.").
TITLES = frozenset(
    """Mr Mrs Ms Mx Messrs Dr Drs Prof Gen Col Sgt Capt Cpt Cmdr Lt Maj Adm Brig Rep Reps Sen Sens Gov Rev Hon
    Pres Supt Insp St Ste Mt Ft Fr Mme Mlle vs Vs""".split()  # noqa: SIM905 -- easier to read than quotes
)
ABBREVIATIONS = frozenset(
    """Jr Sr Inc INC Corp CORP Ltd LTD Co Cos Pvt Bros Assn Assoc Dept Univ Ave Blvd Rd Hwy Sts Jan Feb Aug
    Sept Oct Nov Dec etc Etc al cf viz ca approx ext Ala Ariz Calif Colo Conn Fla Ga La Mass Md Mich Minn
    Okla Pa Tenn Tex Va Wash Wis""".split()  # noqa: SIM905
)
BEFORE_NUMBERS = frozenset(
    """No Nos no nos Fig Figs fig figs Eq Eqs Vol Vols vol vols Sec Art Ch ch p pp Pp Mar Apr Jun Jul
    Sep""".split()  # noqa: SIM905
)

_TOP_DOMAINS = (
    "(?i:com|org|net|edu|gov)|mil|info|biz|int|io|ai|tv|eu|uk|de|fr|nl|ru|cn|jp|au|ca|ch|es|pl|br|kr|tw|hk|"
    "txt|pdf|docx?|xlsx?|html?|jpe?g|png|gif|zip|exe|js|py"
)


@dataclass(frozen=True)
class LanguageRules:
    """What distinguishes another language with spaces from English.

    Attributes:
        abbreviations: Words that keep their period and do not end a sentence, without the period.
        last_words: Abbreviations that may end a sentence before a capital.
        last_after_numbers: Abbreviations that may do so only after a number, as in "1990 г. Он", not in "г. Москва".
        elided: Pattern of the words that are elided before a vowel and end in an apostrophe, as in l'homme.
        has_ordinals: Whether ordinal numbers are written with a period, as in 3. Mai.
    """

    abbreviations: frozenset[str] = frozenset()
    last_words: frozenset[str] = frozenset()
    last_after_numbers: frozenset[str] = frozenset()
    elided: str = "(?!)"
    has_ordinals: bool = False


@cache
def build_extenders() -> str:
    """Return the Unicode marks and format characters, as ranges for a character class of a regular expression."""
    ranges: list[list[int]] = []
    for block in (range(0xAD, 0x1F000), range(0xE0000, 0xE0200)):  # Unicode has no marks or format characters elsewhere
        for code in block:
            character = chr(code)
            if unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf") and character != _ZERO_WIDTH_SPACE:
                if ranges and ranges[-1][1] == code - 1:
                    ranges[-1][1] = code
                else:
                    ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@cache
def build_pattern(rules: LanguageRules | None = None) -> re.Pattern[str]:
    """Return the pattern whose successive matches are the tokens of a text; English without ``rules``."""
    extend = f"[{build_extenders()}]"
    no_letter = rf"(?![^\W_{HAN}{KANA}])"
    apostrophe = "['’]"
    clitic = rf"(?:[sSmMdD]|ll|LL|re|RE|ve|VE){no_letter}"
    negation = rf"[nN]{apostrophe}[tT]{no_letter}"
    abbreviations = TITLES | ABBREVIATIONS
    others: list[str] = []
    if rules is not None:
        clitic = negation = "(?!)"  # never matches
        abbreviations = rules.abbreviations
        others = [
            rf"(?<!\w)(?:{rules.elided}){apostrophe}(?=\w)",
            # z. B. and т. е.: each letter keeps its period
            r"(?<!\w)[^\W\d_]\.(?=\s[^\W\d_]\.)|(?<=[^\W\d_]\.\s)(?<!\w[^\W\d_]\.\s)[^\W\d_]\.",
        ]
        if rules.has_ordinals:
            others.append(r"(?<![\w.,:/])\d{1,2}\.(?=\s[^\W\d_])")

    number = r"\d++(?:[.,:/]\d++)*+"
    part = rf"(?:{number}|[^\W\d_{HAN}{KANA}]++|{extend}++)++"
    word = rf"{part}(?:(?:[-‐‑&·׳״]|_++|{apostrophe}(?!{clitic})){part})*+"

    solid = rf"[^\s<>\"'`(){{}}\[\]|\\^*.,;:!?…、。，；：！？（）「」『』《》【】“”‘’{HAN}{KANA}]"
    rest_of_url = rf"(?:\([^\s()]{{0,200}}\)|[.,:;!?'*(]{{0,8}}+{solid}++)++"
    label = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}+\."
    letter = "[A-Za-zÀ-ÖØ-öø-ɏЀ-ӿ]"
    capital = "[A-ZÀ-ÖØ-ÞА-Я]"
    emoji = f"{_PICTOGRAPH}{_SKIN_TONE}?{extend}*+"

    branches = [
        *others,
        # the most frequent tokens first: a plain word before white space or punctuation, punctuation, Han
        r"[A-Za-z]++(?![^\s,;!?\")])",
        r"[\"()\[\]{}“”「」『』（）《》【】]|[,，。、](?![,，。、])",
        f"[{HAN}]",
        # URLs, e-mail addresses, domains
        rf"(?:[hH][tT][tT][pP][sS]?|[fF][tT][pP]|file)://{rest_of_url}",
        rf"[wW]{{3}}\d?\.{rest_of_url}",
        r"[A-Za-z0-9][\w.+-]{0,63}+@(?:[A-Za-z0-9-]{1,63}+\.){1,8}[A-Za-z]{2,24}+",
        rf"(?:{label}){{1,6}}(?:{_TOP_DOMAINS}){no_letter}(?![.@-]\w)(?:/(?:{rest_of_url})?)?",
        rf"[a-z]{{2,20}}+(?:\.[a-z][a-z0-9-]{{0,62}}+){{2,8}}+{no_letter}",  # newsgroups, Python modules
        r"(?<![\w@#])@\w++",
        r"(?<![\w@#&])#\d{0,8}[^\W\d_]\w*+",
        # markup, and the brackets of treebanks
        r"</?[A-Za-z][A-Za-z0-9]{0,15}/?>",
        r"&(?:[A-Za-z]{2,8}|#\d{1,7});",
        r"-[LR][RSC]B-",
        # emoticons and emoji
        r"[:;]-?\)++|(?<!\w)(?:[:;=][-^o']?(?:[)(\]\[|*]++|[/\\](?![/\\])|[DPpOo3](?!\w))|<3(?!\w))",
        f"{_FLAG_LETTER}{{2}}",
        r"[0-9#*]\ufe0f?\u20e3",
        rf"{emoji}(?:(?<=\u200d){emoji})*+",
        # contractions
        rf"[A-Za-z]{{1,12}}?(?={negation})",
        negation,
        rf"{apostrophe}{clitic}",
        rf"{apostrophe}(?:\d0s|em|til|tis|twas|n['’]?){no_letter}",
        rf"{apostrophe}\d\d(?![\w'’])",
        # abbreviations
        rf"(?:{letter}\.){{2,30}}+(?:{letter}{no_letter})?+(?!\.\.)(?:[-‐‑]{part})*+",
        rf"{letter}\.{letter}{no_letter}(?!\.(?!\.))",
        r"Ph\.D\.?s?|[BM]\.?Sc\.",
        rf"(?:{'|'.join(map(re.escape, sorted(abbreviations, reverse=True))) or '(?!)'})\.(?!\.\.)",
        rf"(?:{'|'.join(sorted(BEFORE_NUMBERS))})\.(?=\s?\d)",
        rf"(?!I){capital}\.(?=[ \t\u00a0]{{1,2}}{capital}|{capital}[a-z])",
        # words that end or start with a sign
        r"(?:US|HK|NZ|AU|CA|[CAS])\$(?=\s?\d)",
        r"(?:[CF]#|[Cc]\+\+)(?!\w)",
        rf"°[CF]{no_letter}",
        r"(?:[wW]/o|[wW]/|[cC]/o|b/c|[nN]/[aA])" + no_letter,
        r"(?<![\w.])\.\d++(?![.\d])",
        # words and numbers; kana
        word,
        f"[{KANA}]++",
        # the rest: runs of one sign ("...", "--", "''"), mixed "?!", single characters
        r"[!?！？]++",
        r"(?P<sign>[^\w\s\"()\[\]{}“”‘’«»「」『』（）《》【】]|_)(?P=sign)++",
        r"\S",
    ]
    return re.compile(f"(?:{'|'.join(branches)}){extend}*+")


class EnglishTokenizer:
    """Tokenizer for English. Text in other languages keeps all its characters, but is split less accurately."""

    name = "en"

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        return Tokens.from_offsets(text, (match.span() for match in build_pattern().finditer(text)))
