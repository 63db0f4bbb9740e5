"""English tokens: a table of examples, hostile text, and long input."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from hypothesis import given, settings

from elmo.text.tokenizers import load_tokenizer
from tests.text.hostile import assert_sound, texts

# A text, and the same text with "|" between its tokens.
EXAMPLES = [
    ("I don't know.", "I|do|n't|know|."),
    ("It's we'll I'm you're they've he'd", "It|'s|we|'ll|I|'m|you|'re|they|'ve|he|'d"),
    ("DON'T IT'S", "DO|N'T|IT|'S"),
    ("can’t won’t it’s", "ca|n’t|wo|n’t|it|’s"),
    ("ca n't it 's", "ca|n't|it|'s"),
    ("She shouldn't've", "She|should|n't|'ve"),
    ("cannot gonna", "cannot|gonna"),
    ("Tom's dogs' toys", "Tom|'s|dogs|'|toys"),
    ("O'Neill's o'clock rock'n'roll", "O'Neill|'s|o'clock|rock'n'roll"),
    ("the '90s, class of '99, get 'em", "the|'90s|,|class|of|'99|,|get|'em"),
    ("'Hello,' he said", "'|Hello|,|'|he|said"),
    ('"Why?" she asked.', '"|Why|?|"|she|asked|.'),
    ("“Why?” ‘so’", "“|Why|?|”|‘|so|’"),
    ("``quoted''", "``|quoted|''"),
    ("state-of-the-art F-16 e-mail COVID-19", "state-of-the-art|F-16|e-mail|COVID-19"),
    ("a 15-year-old, pre- and post-war", "a|15-year-old|,|pre|-|and|post-war"),
    ("yes--no -- never – ever—done", "yes|--|no|--|never|–|ever|—|done"),
    ("Wait... what… no....", "Wait|...|what|…|no|...."),
    ("What?! No!!!", "What|?!|No|!!!"),
    ("Mr. and Mrs. Smith vs. Dr. No", "Mr.|and|Mrs.|Smith|vs.|Dr.|No"),
    ("J. R. Smith and J.K. Rowling", "J.|R.|Smith|and|J.K.|Rowling"),
    ("So do I. He does.", "So|do|I|.|He|does|."),
    ("in the U.S. and the U.K., U.S.-led", "in|the|U.S.|and|the|U.K.|,|U.S.-led"),
    ("e.g. this, i.e., that at 5 p.m. etc.", "e.g.|this|,|i.e.|,|that|at|5|p.m.|etc."),
    ("etc... U.S... Inc..", "etc|...|U.S|...|Inc.|."),
    ("a Ph.D. from MIT", "a|Ph.D.|from|MIT"),
    ("Apple Inc. of Calif., No. 5. No. Yes", "Apple|Inc.|of|Calif.|,|No.|5|.|No|.|Yes"),
    ("Jan. 5, Mar. 3 on planet Mar.", "Jan.|5|,|Mar.|3|on|planet|Mar|."),
    ("3.14 1,000,000 10:30 1/2/2020 .5 2:1", "3.14|1,000,000|10:30|1/2/2020|.5|2:1"),
    ("1990s 3rd 10am 4x4 v1.2.3", "1990s|3rd|10am|4x4|v1.2.3"),
    ("$5.50, €10, £3m, US$7, 50%", "$|5.50|,|€|10|,|£|3m|,|US$|7|,|50|%"),
    ("-5 +3 20°C", "-|5|+|3|20|°C"),
    ("1. First", "1|.|First"),
    ("2020-01-31 555-1234", "2020-01-31|555-1234"),
    ("AT&T R&D this & that", "AT&T|R&D|this|&|that"),
    ("and/or w/o N/A", "and|/|or|w/o|N/A"),
    ("See http://a.com/x?y=1&z=2#f, or", "See|http://a.com/x?y=1&z=2#f|,|or"),
    ("(http://en.wikipedia.org/wiki/A_(b)).", "(|http://en.wikipedia.org/wiki/A_(b)|)|."),
    ("HTTPS://X.org! www.x.co.uk/a.", "HTTPS://X.org|!|www.x.co.uk/a|."),
    ("Try google.com or notes.txt.", "Try|google.com|or|notes.txt|."),
    ("It ended.Then it began.", "It|ended|.|Then|it|began|."),
    ("mail me@x.co.uk or a.b+c@d.com.", "mail|me@x.co.uk|or|a.b+c@d.com|."),
    ("@handle #tag #2pac # 1 #1", "@handle|#tag|#2pac|#|1|#|1"),
    ("os.path.join snake_case _emphasis_", "os.path.join|snake_case|_|emphasis|_"),
    ("C++ and C#", "C++|and|C#"),
    ("f(g(x)) [[1]] {a}", "f|(|g|(|x|)|)|[|[|1|]|]|{|a|}"),
    ("<S> is a word, </S> too; <br/> &amp; x<y", "<S>|is|a|word|,|</S>|too|;|<br/>|&amp;|x|<|y"),
    ("-LRB- x -RRB-", "-LRB-|x|-RRB-"),
    ("Thanks :-) ;) :D <3 =(", "Thanks|:-)|;)|:D|<3|=("),
    ("note: ratio 3:D", "note|:|ratio|3|:|D"),
    ("======== ****", "========|****"),
    ("👩‍👩‍👧‍👦👍🏽🇫🇷🇩🇪", "👩‍👩‍👧‍👦|👍🏽|🇫🇷|🇩🇪"),
    ("1️⃣ ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿!", "1️⃣|❤️|🏴󠁧󠁢󠁥󠁮󠁧󠁿|!"),
    ("ok👍ok", "ok|👍|ok"),
    ("cafe\u0301 nai\u0308ve", "cafe\u0301|nai\u0308ve"),
    ("!\u0301 a\u0301'b", "!\u0301|a\u0301'b"),
    ("Привет, мир!", "Привет|,|мир|!"),
    ("हिन्दी में। क्षत्रिय", "हिन्दी|में|।|क्षत्रिय"),
    ("مرحبا، می‌خواهم ١٢٫٥", "مرحبا|،|می‌خواهم|١٢|٫|٥"),
    ("שָׁלוֹם\u200f צה״ל", "שָׁלוֹם\u200f|צה״ל"),
    ("ภาษาไทย 한국어 ελληνικά", "ภาษาไทย|한국어|ελληνικά"),
    ("中文iPhone手机。", "中|文|iPhone|手|机|。"),
    ("繁體，全形　空格！", "繁|體|，|全|形|空|格|！"),
    ("カタカナと日本", "カタカナと|日|本"),
    ("a\u00a0b\u2028c\u0085d\u3000e", "a|b|c|d|e"),
    ("a\x00b \x00\x00 \ud800\ud800", "a|\x00|b|\x00\x00|\ud800\ud800"),
    ("\ufeffa b\u200bc", "\ufeffa|b|\u200b|c"),
    ("", ""),
    (" \t\n", ""),
]


@pytest.mark.parametrize(("text", "cut"), EXAMPLES)
def test_examples_are_tokenized_as_in_a_treebank(text: str, cut: str) -> None:
    assert load_tokenizer("en")(text).tokens == tuple(cut.split("|") if cut else ())


@given(texts)
@settings(max_examples=300, deadline=None)
def test_tokens_cover_every_text(text: str) -> None:
    assert_sound(load_tokenizer("en")(text), text)


@given(texts)
@settings(deadline=None)
def test_no_token_contains_white_space(text: str) -> None:
    assert not any(any(map(str.isspace, token)) for token in load_tokenizer("en")(text).tokens)


@pytest.mark.parametrize("unit", ["a", ".", "1", "'", "-", "\u0301", "中", "\x00"])
def test_ten_megabytes_of_one_character_are_tokenized(unit: str) -> None:
    n = 10_000_000 if unit != "中" else 200_000
    found = load_tokenizer("en")(unit * n)
    assert len(found) == (n if unit == "中" else 1)


UNITS = [
    "a.",
    "a-",
    "a--",
    "a@",
    "#1",
    "a'",
    "http://a(",
    "1,",
    "aa.bb.",
    "👩\u200d",
    "Mr. ",
    "<a",
    ":-",
    "n't",
    "(",
    "x" * 63 + ".",
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("end", ["", ".."])
def test_repeated_pieces_are_tokenized_in_linear_time(unit: str, end: str) -> None:
    text = unit * (120_000 // len(unit)) + end
    begin = time.process_time()
    found = load_tokenizer("en")(text)
    assert time.process_time() - begin < 15  # a linear pattern needs one second, a quadratic one minutes
    assert_sound(found, text)


def test_the_pattern_is_built_on_first_use() -> None:
    code = "import sys, elmo.text.tokenizers; sys.exit('elmo.text.english' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
