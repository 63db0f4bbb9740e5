"""Detect the language of a text, and tokenize languages whose words are separated by spaces.

Tokenizers follow the rules of ``english``, with the abbreviations, elided articles and ordinal numbers of the language
instead of English contractions. Languages are detected by py3langid, which takes about a second to load; a model stores
its language, so this happens only when a model is trained.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from elmo.text.english import LanguageRules, build_pattern
from elmo.text.tokenizers import Tokens

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_MAX_CHARACTERS = 20_000  # number of characters from which a language is detected
_MIN_LETTERS = 20  # shorter texts do not have a clear language

# Languages with words separated by spaces that simplemma can lemmatize, by ISO 639 code
LANGUAGES = frozenset(
    """bg ca cs cy da de el en es et fi fr ga gl he hi hr hu hy id is it ka lb lt lv mk ms nb nl nn pl pt ro
    ru sk sl sq sr sv sw tl tr uk""".split()  # noqa: SIM905 -- easier to read than quotes
)
_OTHERS = ("zh", "ja", "ko", "th", "vi", "ar", "fa", "bs")  # so that such text is not taken for one of LANGUAGES
_LABELS = {"no": "nb"}  # codes of py3langid that differ


def detect_language(text: str) -> str | None:
    """Return the ISO 639 code of the language of a text; None if the text is too short."""
    sample = text[:_MAX_CHARACTERS]
    if sum(map(str.isalpha, sample)) < _MIN_LETTERS:
        return None
    label = str(_load_identifier().classify(sample)[0])
    return _LABELS.get(label, label)


@cache
def _load_identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    codes = {*LANGUAGES, *_OTHERS, *_LABELS}
    identifier.set_languages(sorted(codes & set(map(str, identifier.labels))))
    return identifier


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations that keep their period and do not end a sentence, and articles and pronouns that are elided before a
# vowel. In languages with ordinals, a number of one or two digits with a period is an ordinal, as in "am 3. Mai".
RULES = {
    "de": LanguageRules(
        _words("""Abb Abs Abt Apr Art Aufl Aug Bd Bde Bsp bspw bzgl bzw ca Dez dgl Dipl Dr ebd etc evtl Feb Fr Frl
        geb gest ggf Hbf Hr Hrn Hrsg hrsg Ing inkl insb Jan Jh Jhd Kap lat max Mio Mrd min Nov Nr Okt Prof resp rd Sa
        Sept sog Sp St Std Str Tel Tsd usf usw vgl vs Vgl zit zzgl"""),
        last_words=_words("Art etc usf usw"),
        has_ordinals=True,
    ),
    "fr": LanguageRules(
        _words("av bd chap éd env etc ex fig janv févr avr juil sept oct nov déc M MM Mgr no p pp St Ste vol"),
        last_words=_words("etc sept"),
        elided=r"[cdjlmnstCDJLMNST]|[Qq]u|[Jj]usqu|[Ll]orsqu|[Pp]uisqu|[Qq]uoiqu",
    ),
    "it": LanguageRules(
        _words(
            "art cap dott Dott dr Dr ecc ing pag prof Prof sig Sig vol gen feb mar apr mag giu lug ago sett ott dic"
        ),
        last_words=_words("ecc"),
        elided=r"[cdlmnstvCDLMNSTV]|[DdNn]ell|[AaDd]all|[Aa]ll|[Ss]ull|[Uu]n|[Qq]u(?:est|ell)|[Aa]nch|[Dd]egl|[Cc]om",
    ),
    "ca": LanguageRules(
        _words("art cap dr Dr etc núm pàg Sr Sra vol"), last_words=_words("etc"), elided=r"[dlmnstDLMNST]"
    ),
    "es": LanguageRules(
        _words("Sr Sra Srta Dr Dra D Dª etc pág págs núm art cap ed vol Av Avda Ud Uds EE UU"), last_words=_words("etc")
    ),
    "pt": LanguageRules(_words("Sr Sra Dr Dra Prof Profa etc pág núm art cap ed vol av Av"), last_words=_words("etc")),
    "nl": LanguageRules(
        _words("bijv blz bv ca dhr dr Dr drs enz etc evt incl mevr Mevr Mr nl nr ong prof Prof resp"),
        last_words=_words("enz etc"),
    ),
    "sv": LanguageRules(
        _words("bl bl.a ca dr Dr el etc ev exkl fr inkl jfr kl kr nr osv prof st t.ex tel"),
        last_words=_words("etc kr osv"),
    ),
    "da": LanguageRules(
        _words("bl ca dr Dr etc ev evt fx hr inkl jf kl kr nr osv prof"),
        last_words=_words("etc kr osv"),
        has_ordinals=True,
    ),
    "nb": LanguageRules(
        _words("bl ca dr Dr etc evt f eks inkl jf kl kr nr osv prof"),
        last_words=_words("etc kr osv"),
        has_ordinals=True,
    ),
    "nn": LanguageRules(
        _words("bl ca dr Dr etc inkl jf kl kr nr osv prof"), last_words=_words("etc kr osv"), has_ordinals=True
    ),
    "fi": LanguageRules(
        _words("esim jne kpl ks mm n noin nro prof tri vrt ym yms"), last_words=_words("jne ym yms"), has_ordinals=True
    ),
    "et": LanguageRules(_words("dr jne jt lk nr nt prof sh vt"), last_words=_words("jne"), has_ordinals=True),
    "cs": LanguageRules(
        _words("apod atd cca č čl dr Ing kap např mj napr prof resp str tj tzv"),
        last_words=_words("apod atd"),
        has_ordinals=True,
    ),
    "sk": LanguageRules(
        _words("apod atď cca č čl dr Ing kap napr prof resp str t tzv"),
        last_words=_words("apod atď"),
        has_ordinals=True,
    ),
    "sl": LanguageRules(_words("dr Dr gl ipd itd npr oz prof št tj"), last_words=_words("ipd itd"), has_ordinals=True),
    "hr": LanguageRules(_words("br dr Dr itd npr odn prof sl str tj"), last_words=_words("itd"), has_ordinals=True),
    "hu": LanguageRules(_words("dr Dr kb ld pl prof stb ún"), last_words=_words("stb"), has_ordinals=True),
    "tr": LanguageRules(_words("Dr Prof vb vs yy"), last_words=_words("vb vs"), has_ordinals=True),
    "pl": LanguageRules(
        _words("al dr godz im inż itd itp m in np nr pl pol prof por r red str tj tzn tzw ul zob zł"),
        last_words=_words("itd itp r"),
    ),
    "ru": LanguageRules(
        _words("г гг др им коп млн млрд напр обл проф руб см ст стр т тыс ул"), last_after_numbers=_words("г гг")
    ),
    "uk": LanguageRules(_words("вул грн ім млн млрд напр обл проф ст стор тис")),
}


def build_language_pattern(language: str) -> re.Pattern[str]:
    """Return the pattern whose successive matches are the tokens of a text in a language other than English."""
    return build_pattern(RULES.get(language, LanguageRules()))


class LanguageTokenizer:
    """Tokenizer for a language other than English whose words are separated by spaces."""

    def __init__(self, language: str) -> None:
        self.name = language

    def __call__(self, text: str) -> Tokens:
        """Tokenize a text."""
        pattern = build_language_pattern(self.name)
        return Tokens.from_offsets(text, (match.span() for match in pattern.finditer(text)))
