"""Write the data that ``static/text.js`` needs to split text and to look up character ids in a browser.

The tokenizers of ``elmo.text`` are patterns of regular expressions, the dictionary of jieba and the tables of
OpenCC. JavaScript has other regular expressions and other Unicode tables than Python, so the patterns are exported
as Python parses them: a tree of nodes, whose character sets list *character classes*. A character class is a set of
characters that no set of the pattern distinguishes; there are about a hundred of them. ``text-pattern.js`` matches
the tree.

A data file is a gzip file with a JSON header and arrays:

======================  ================================================================================
bytes                   contents
======================  ================================================================================
0..7                    ``ELMOTEXT``
8..11                   length of the header, as a little-endian integer
12..                    the header, padded with spaces: ``{"values": …, "arrays": {name: [type, offset, length]}}``
next multiple of 8      the arrays, little-endian, each at a multiple of 8; offsets count from here
======================  ================================================================================
"""

from __future__ import annotations

import gzip
import importlib
import json
import math
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, FormatError
from elmo.storage.atomic import atomic_file
from elmo.text import chinese, english
from elmo.text.ids import Alphabet, ByteAlphabet, SimplifiedAlphabet, UnicodeAlphabet
from elmo.text.languages import LANGUAGES, build_language_pattern

_TOKENIZERS = ("en", "zh", "whitespace")
_Ranges = tuple[tuple[int, int], ...]  # a set of characters: ranges (first, last + 1), in order
_MAGIC = b"ELMOTEXT"
_ALIGNMENT = 8
_N_CODE_POINTS = 0x110000
_MAX_CLASSES = 255  # 255 marks the end of the text


def write_text_data(folder: str | Path, tokenizer: str) -> Path | None:
    """Write ``text-<tokenizer>.bin.gz``, the data of a tokenizer for ``text.js``.

    Args:
        folder: Existing folder for the file.
        tokenizer: ``en``, ``zh``, ``whitespace`` or one of ``elmo.text.languages.LANGUAGES``.

    Returns:
        Path of the file; None for ``whitespace``, which needs no data.
    """
    check_browser_tokenizer(tokenizer)
    if tokenizer == "whitespace":
        return None
    path = Path(folder) / f"text-{tokenizer}.bin.gz"
    contents = build_text_data(tokenizer)
    with atomic_file(path) as temporary:
        temporary.write_bytes(contents)
    return path


def check_browser_tokenizer(tokenizer: str) -> None:
    """Raise ``ConfigError`` if ``text.js`` does not have the tokenizer."""
    if tokenizer not in _TOKENIZERS and tokenizer not in LANGUAGES:
        raise ConfigError(
            f"tokenizer must be one of {', '.join(_TOKENIZERS)} and the codes of other languages, such as de, in a "
            f"browser; found {tokenizer[:40]!r}"
        )


def build_text_data(tokenizer: str) -> bytes:
    """Return the contents of the data file of a tokenizer; not for ``whitespace``, which needs no data."""
    values: dict[str, Any] = {"tokenizer": tokenizer}
    arrays: dict[str, NDArray[Any]] = {}
    if tokenizer in LANGUAGES:
        pattern = english.build_pattern() if tokenizer == "en" else build_language_pattern(tokenizer)
        values["pattern"] = export_pattern(pattern.pattern)
    else:
        values["pattern"] = export_pattern(chinese._build_pattern().pattern)
        values["simplifier"] = _export_opencc()
        values["dictionary_characters"], trie = _export_dictionary()
        values["hmm_characters"], hmm = _export_hmm()
        arrays = trie | hmm
    return _pack(values, arrays)


def build_ids_config(alphabet: Alphabet) -> dict[str, Any]:
    """Return the configuration of ``characterIds`` in ``text.js`` for the alphabet of a model, as a JSON object."""
    config: dict[str, Any] = {"max_characters": alphabet.max_characters}
    config |= {name: getattr(alphabet, name) for name in ("bos", "eos", "bow", "eow", "pad")}
    match alphabet:
        case SimplifiedAlphabet():
            return {"alphabet": "simplified", **config}
        case ByteAlphabet():
            return {"alphabet": "bytes", **config}
        case UnicodeAlphabet():
            oov = alphabet.characters["<oov>"] + 1
            characters = {name: i + 1 for name, i in alphabet.characters.items() if len(name) == 1}
            return {"alphabet": "unicode", **config, "oov": oov, "characters": characters}
    raise ConfigError(f"alphabet must be bytes, simplified or unicode; found {type(alphabet).__name__}")


def _pack(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    body, directory = bytearray(), {}
    for name, array in arrays.items():
        directory[name] = [str(array.dtype), len(body), array.size]
        body += array.astype(array.dtype.newbyteorder("<")).tobytes()
        body += bytes(-len(body) % _ALIGNMENT)
    header = json.dumps({"values": values, "arrays": directory}, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-(len(_MAGIC) + 4 + len(header)) % _ALIGNMENT)
    packed = _MAGIC + len(header).to_bytes(4, "little") + header + bytes(body)
    return gzip.compress(packed, compresslevel=9, mtime=0)


# Patterns


def export_pattern(pattern: str) -> dict[str, Any]:
    """Return a regular expression as a JSON object for ``text-pattern.js``.

    The keys are ``tree`` (the nodes, described in ``text-pattern.js``), ``sets`` (the character classes of each set
    of characters), ``ends`` and ``classes`` (the class of all code points before each end), and ``groups`` (the
    numbers of the named groups).
    """
    return _PatternExport().export(pattern)


@dataclass
class _PatternExport:
    """Converts the tree of Python's parser, and collects the sets of characters in it."""

    sets: dict[_Ranges, int] = field(default_factory=dict)  # the number of each set

    def export(self, pattern: str) -> dict[str, Any]:
        parsed = _parser().parse(pattern)
        tree = self._sequence(parsed, flags=parsed.state.flags, is_atomic=False)
        ends, classes, members = _divide_characters(list(self.sets))
        return {"tree": tree, "sets": members, "ends": ends, "classes": classes, "groups": parsed.state.groupdict}

    def _sequence(self, nodes: Iterable[tuple[Any, Any]], *, flags: int, is_atomic: bool) -> list[Any]:
        children = [self._node(operator, value, flags=flags, is_atomic=is_atomic) for operator, value in nodes]
        return children[0] if len(children) == 1 else ["sequence", children]

    def _node(self, operator: Any, value: Any, *, flags: int, is_atomic: bool) -> list[Any]:
        """Convert a node. Inside an atomic group, there must be no group: ``text-pattern.js`` would not reset it."""
        match str(operator), value:
            case (("LITERAL" | "NOT_LITERAL" | "IN"), _):
                ranges = _find_ranges(operator, tuple(value) if isinstance(value, list) else value, flags)
                return ["set", self.sets.setdefault(ranges, len(self.sets))]
            case "BRANCH", (None, branches):
                return ["or", [self._sequence(branch, flags=flags, is_atomic=is_atomic) for branch in branches]]
            case "SUBPATTERN", (number, add_flags, del_flags, nodes) if number is None or not is_atomic:
                child = self._sequence(nodes, flags=(flags | add_flags) & ~del_flags, is_atomic=is_atomic)
                return child if number is None else ["group", number, child]
            case (("MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT"), (low, high, nodes)):
                kind = {"MAX": "greedy", "MIN": "lazy", "POSSESSIVE": "possessive"}[
                    str(operator).removesuffix("_REPEAT")
                ]
                is_possessive = kind == "possessive"
                child = self._sequence(nodes, flags=flags, is_atomic=is_atomic or is_possessive)
                is_unbounded = high == _parser().MAXREPEAT
                if child[0] == "set" or is_possessive or not is_unbounded:
                    return ["repeat", kind, int(low), None if is_unbounded else int(high), child]
            case (("ASSERT" | "ASSERT_NOT"), (direction, nodes)):
                low, high = nodes.getwidth()
                child = self._sequence(nodes, flags=flags, is_atomic=True)
                if direction > 0 or low == high:
                    return ["look", 0 if direction > 0 else int(low), str(operator) == "ASSERT_NOT", child]
            case "FAILURE", _:  # (?!)
                return ["look", 0, True, ["sequence", []]]
            case "ATOMIC_GROUP", nodes:
                return ["atomic", self._sequence(nodes, flags=flags, is_atomic=True)]
            case "GROUPREF", number if not flags & _parser().SRE_FLAG_IGNORECASE:
                return ["same", number]
            case _:
                pass
        raise FormatError(f"pattern: text-pattern.js cannot match {operator}: {value!r:.80}; rewrite the pattern")


def _parser() -> Any:
    """Return the parser of ``re``, which has no type information."""
    return importlib.import_module("re._parser")


@cache
def _all_characters() -> str:
    return "".join(map(chr, range(_N_CODE_POINTS)))


@cache
def _find_ranges(operator: Any, value: Any, flags: int) -> _Ranges:
    """Return the characters that match a node for one character, as Python's matcher finds them."""
    parser, compiler = _parser(), importlib.import_module("re._compiler")
    if operator is parser.LITERAL and not flags & parser.SRE_FLAG_IGNORECASE:
        return ((value, value + 1),)
    state = parser.State()
    one = parser.SubPattern(state, [(operator, list(value) if isinstance(value, tuple) else value)])
    run = parser.SubPattern(state, [(parser.MAX_REPEAT, (1, parser.MAXREPEAT, one))])
    return tuple(match.span() for match in compiler.compile(run, flags).finditer(_all_characters()))


def _divide_characters(sets: Sequence[_Ranges]) -> tuple[list[int], list[int], list[list[int]]]:
    """Divide all code points into classes that no set distinguishes.

    Returns:
        The ends of ranges of code points, in order; the class of each range; the classes in each set.
    """
    ends = sorted(({end for ranges in sets for span in ranges for end in span} | {_N_CODE_POINTS}) - {0})
    is_member = np.zeros((len(ends), len(sets)), dtype=bool)
    for number, ranges in enumerate(sets):
        for first, last in ranges:
            is_member[bisect_right(ends, first) : bisect_right(ends, last), number] = True
    numbers: dict[bytes, int] = {}
    classes = [numbers.setdefault(row.tobytes(), len(numbers)) for row in is_member]
    if len(numbers) > _MAX_CLASSES:
        raise FormatError(f"pattern must have at most {_MAX_CLASSES} classes of characters; found {len(numbers)}")
    members = [sorted({classes[k] for k in np.flatnonzero(column)}) for column in is_member.T]
    return ends, classes, members


# OpenCC


def _export_opencc() -> dict[str, Any]:
    """Return the tables of the conversion from traditional to simplified Chinese.

    The text is converted from left to right, in two steps: normalization of characters, then the longest phrase or
    a character. Versions of OpenCC differ: some stop at NUL, others do not convert descriptions of a character, such as
    ⿰長長.
    """
    chinese.check_opencc()
    share = _opencc_folder() / "share" / "opencc"
    config = json.loads((share / "t2s.json").read_text(encoding="utf-8"))
    steps = [_read_tables(share, step["dict"]) for step in config["conversion_chain"]]
    normalizations = [_read_tables(share, step["dict"]) for step in config.get("normalization", [])]
    if len(steps) != 1 or len(normalizations) > 1:
        raise FormatError(f"OpenCC's t2s.json must have one conversion and at most one normalization; found {config}")
    normalization, conversion = _merge_tables(normalizations[0] if normalizations else []), _merge_tables(steps[0])
    if any(len(key) > 1 for key in normalization):
        raise FormatError("OpenCC's normalization must convert single characters; found a phrase")
    characters = {key: value for key, value in conversion.items() if len(key) == 1}
    phrases = {key: value for key, value in conversion.items() if len(key) > 1}
    described = "\u2ff0長長"
    before_nul = "長\0長"
    return {
        "normalization": ["".join(normalization), "".join(normalization.values())],
        "characters": ["".join(characters), "".join(characters.values())],
        "phrases": [" ".join(phrases), " ".join(phrases.values())],
        "keeps_descriptions": chinese._convert(described) == described,
        "stops_at_nul": len(chinese._convert(before_nul)) < len(before_nul),
    }


def _opencc_folder() -> Path:
    return Path(str(importlib.import_module("opencc").__file__)).parent / "clib"


def _read_tables(share: Path, entry: Mapping[str, Any]) -> list[dict[str, str]]:
    """Read the dictionaries of an entry of ``t2s.json``, in order of priority."""
    if entry["type"] == "group":
        return [table for child in entry["dicts"] for table in _read_tables(share, child)]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "dictionary.txt"
        source = share / entry["file"]
        program = _opencc_folder() / "bin" / "opencc_dict"
        command = [program, "-i", source, "-f", entry["type"], "-o", text, "-t", "text"]
        try:
            subprocess.run(command, check=True, capture_output=True)  # noqa: S603 -- OpenCC's own program
        except (OSError, subprocess.CalledProcessError) as error:
            raise FormatError(f"OpenCC's opencc_dict cannot read {source.name}: {error}") from error
        lines = text.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return [{key: values.split(" ")[0] for key, values in sorted(pairs)}]


def _merge_tables(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Merge dictionaries; the first has priority, and it alone may have phrases, which are longer than characters."""
    merged: dict[str, str] = {}
    for number, table in enumerate(tables):
        for key, value in table.items():
            if len(key) != len(value) or (number > 0 and len(key) > 1):
                raise FormatError(f"OpenCC's tables must convert characters one by one; found {key!r} to {value!r}")
            merged.setdefault(key, value)
    return merged


# jieba


def _export_dictionary() -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the characters of the dictionary of jieba, and its words as a trie in level order.

    The children of a node are in the order of their characters, and the nodes in the order of their parents. Frequent
    characters come first, so that the differences between siblings are small numbers. The arrays:

    - ``trie_children``: the number of children of the root and of each node
    - ``trie_labels``: the number of each node's character, minus that of its previous sibling
    - ``trie_weights``: the number of each node's weight; 0 is a node that is only the start of longer words
    - ``weights``: the distinct weights, ``log(frequency) - log(total)``; number 0 is that of unknown characters

    All but ``weights`` are variable-length integers: seven bits a byte, the lowest first.
    """
    jieba = chinese._load_jieba()
    frequencies: dict[str, int] = jieba.FREQ
    characters = _by_frequency(word[-1] for word in frequencies)
    number = {character: k for k, character in enumerate(characters)}
    ranks = {ord(character): k for k, character in enumerate(characters)}
    nodes = sorted(frequencies, key=lambda word: (len(word), word.translate(ranks)))
    n_children = Counter(word[:-1] for word in nodes)
    labels = [number[word[-1]] for word in nodes]
    steps = [
        label - (labels[k - 1] if k and nodes[k - 1][:-1] == nodes[k][:-1] else 0) for k, label in enumerate(labels)
    ]
    distinct = [0, *_by_frequency(frequency for frequency in frequencies.values() if frequency)]
    weight_of = {frequency: k for k, frequency in enumerate(distinct)}
    log_total = math.log(jieba.total)
    return "".join(characters), {
        "trie_children": _pack_integers([n_children[word] for word in ("", *nodes)]),
        "trie_labels": _pack_integers(steps),
        "trie_weights": _pack_integers([weight_of[frequencies[word]] for word in nodes]),
        "weights": np.array([math.log(frequency or 1) - log_total for frequency in distinct]),
    }


def _export_hmm() -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the characters that jieba's hidden Markov model knows, and its log-probabilities.

    The states are in the order B, E, M, S: begin, end and middle of a word, and a word of a single character. The
    arrays:

    - ``hmm_start``: (state,)
    - ``hmm_transitions``: (state, next state)
    - ``hmm_emissions``: (state, character), numbers of values; 0 is that of unknown characters
    - ``hmm_values``: the values
    """
    finalseg = importlib.import_module("jieba.finalseg")
    impossible, states = finalseg.MIN_FLOAT, "BEMS"
    characters = sorted(set().union(*(finalseg.emit_P[state] for state in states)))
    emissions = [finalseg.emit_P[state].get(character, impossible) for state in states for character in characters]
    distinct = [impossible, *sorted(set(emissions) - {impossible})]
    number = {value: k for k, value in enumerate(distinct)}
    return "".join(characters), {
        "hmm_start": np.array([finalseg.start_P[state] for state in states]),
        "hmm_transitions": np.array([finalseg.trans_P[a].get(b, impossible) for a in states for b in states]),
        "hmm_emissions": np.array([number[value] for value in emissions], dtype=np.uint16),
        "hmm_values": np.array(distinct),
    }


def _by_frequency(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, the most frequent first; equally frequent ones in ascending order."""
    counts = Counter(values)
    return sorted(counts, key=lambda value: (-counts[value], value))


def _pack_integers(values: Iterable[int]) -> NDArray[np.uint8]:
    packed = bytearray()
    for value in values:
        rest = value
        while rest >= 128:
            packed.append(rest & 127 | 128)
            rest >>= 7
        packed.append(rest)
    return np.frombuffer(bytes(packed), dtype=np.uint8)
