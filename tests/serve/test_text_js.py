"""The tokenizers and character ids of ``text.js``, compared with Python.

The texts are the examples of the tokenizer tests, sentences and generated hostile strings. To compare many more, set
``ELMO_TEXT_JS_CORPORA`` to a folder with text corpora: folders of ``*.txt.xz``, one sentence or paragraph a line.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.errors import ConfigError, FormatError
from elmo.serve import export_text
from elmo.text.ids import Alphabet, ByteAlphabet, SimplifiedAlphabet, TokenIndexer, UnicodeAlphabet
from elmo.text.tokenizers import load_tokenizer
from tests.text.hostile import PIECES
from tests.text.test_chinese import EXAMPLES as CHINESE_EXAMPLES
from tests.text.test_english import EXAMPLES as ENGLISH_EXAMPLES

pytest.importorskip("opencc", reason="opencc is not installed")
pytest.importorskip("jieba", reason="jieba is not installed")
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

STATIC = Path(export_text.__file__).parent / "static"
DATA = Path(__file__).parents[1] / "data"
CORPORA = os.environ.get("ELMO_TEXT_JS_CORPORA")
N_SENTENCES = 12_000  # for each tokenizer, from the corpora
N_SENTENCES_PER_FILE = 3_000
N_HOSTILE = 4_000 if CORPORA else 400
N_CHARACTERS = 100_000
TOKENIZERS = ("en", "zh", "whitespace", "de", "fr")
Run = Callable[[Sequence[tuple[str, str]], Sequence[Alphabet]], list[dict[str, Any]]]

# Reads cases and data files, and writes tokens, offsets, digests of the ids, and the processor time of each case.
SCRIPT = """
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
const [module, input, output, ...files] = process.argv.slice(1);
const { readTextData, makeTokenizer, characterIds, lookupForm } = await import(module);
const { cases, configs } = JSON.parse(readFileSync(input, "utf8"));
const data = {};
for (const file of files) {
  const contents = await readTextData(readFileSync(file));
  data[contents.tokenizer] = contents;
}
const names = ["whitespace", ...Object.keys(data)];
const tokenizers = Object.fromEntries(names.map((name) => [name, makeTokenizer(name, data[name])]));
const processorSeconds = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1e6; };
const digest = (bytes) => createHash("sha256").update(bytes).digest("hex");
const results = cases.map(([name, text]) => {
  const start = processorSeconds();
  const { tokens, offsets } = tokenizers[name].tokenize(text);
  const seconds = processorSeconds() - start;
  const ids = configs.map((config) => {
    const options = { data: data.zh, type: "int64" };
    return digest(new Uint8Array(characterIds(tokens, config, options).buffer));
  });
  const forms = configs.map((config) => {
    const words = tokens.map((token) => lookupForm(token, config, data.zh));
    return digest(Buffer.from(words.join(" "), "utf16le"));
  });
  return { tokens, ...offsets, ids, forms, seconds };
});
writeFileSync(output, JSON.stringify(results));
"""


SPECIAL = {name: k for k, name in enumerate(UnicodeAlphabet.SPECIAL)}
CHARACTERS = {character: k for k, character in enumerate("aeiou中文發👍 \u0301", start=len(SPECIAL))}
ALPHABETS = [ByteAlphabet(), SimplifiedAlphabet(), ByteAlphabet(5), UnicodeAlphabet(SPECIAL | CHARACTERS, 12)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("text")
    return [path for name in TOKENIZERS if (path := export_text.write_text_data(folder, name)) is not None]


@pytest.fixture
def run(files: list[Path], tmp_path: Path) -> Run:
    """Tokenize ``(tokenizer, text)`` pairs with ``text.js``, all in one process."""

    def run_cases(cases: Sequence[tuple[str, str]], alphabets: Sequence[Alphabet]) -> list[dict[str, Any]]:
        configs = [export_text.build_ids_config(alphabet) for alphabet in alphabets]
        (tmp_path / "cases.json").write_text(json.dumps({"cases": cases, "configs": configs}))
        module = (STATIC / "text.js").as_uri()
        arguments = [module, str(tmp_path / "cases.json"), str(tmp_path / "results.json"), *map(str, files)]
        command = [str(NODE), "--input-type=module", "-e", SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads((tmp_path / "results.json").read_text(encoding="utf-8", errors="surrogatepass"))

    return run_cases


def expected_result(tokenizer: str, text: str, alphabets: Sequence[Alphabet]) -> dict[str, Any]:
    found = load_tokenizer(tokenizer)(text)
    offsets = found.offsets or ()
    ids, forms = [], []
    for alphabet in alphabets:
        batch = TokenIndexer(alphabet, None).batch([found.tokens])
        assert batch.char_ids is not None
        ids.append(hashlib.sha256(batch.char_ids[0].tobytes()).hexdigest())
        words = " ".join(alphabet.lookup_form(token) for token in found.tokens)
        forms.append(hashlib.sha256(words.encode("utf-16-le", "surrogatepass")).hexdigest())
    units = np.concatenate([[0], np.cumsum([1 + (character > "\uffff") for character in text], dtype=int)])
    return {
        "tokens": list(found.tokens),
        "codepoints": [list(span) for span in offsets],
        "utf16": [[int(units[start]), int(units[end])] for start, end in offsets],
        "ids": ids,
        "forms": forms,
    }


def join_surrogates(text: str) -> str:
    """Return the text as JavaScript reads it: two surrogates that form a pair are one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


HOSTILE_PIECES = [
    *PIECES,
    *(
        "長",
        "憑藉",
        "乾隆",
        "頭髮",
        "⿰",
        "⿲",
        "⿾",
        "\ufa0b",
        "\U0002f800",
        "\u9fd6",
        "𠮷",
        "卡拉OK",
        "T恤",
        "ＡＢＣ１２",
        "㍿",
    ),
    *(
        "的",
        "北京大学",
        "b超",
        "3D",
        "x" * 70,
        "中" * 30,
        "1" * 25,
        "<a href='x'>",
        "https://例え.jp/a_(b)?q=1#f",
        "&#20013;",
    ),
    *(
        "ſ",
        "İ",
        "ı",
        "K",
        "ß",
        "ﬁ",
        "١٢",
        "²",
        "Ⅷ",
        "_",
        "ーー",
        "\u1680",
        "\u180e",
        "\u202f",
        "\ufffe",
        "\x1f",
        "\x7f",
    ),
    *(
        "com",
        "x.COM",
        "org.KIT",
        "مرحبا",
        "שלום",
        "ה״ל",
        "〇",
        "々",
        "\u2e80",
        "=",
        ":",
        "/",
        "-",
        "'",
        ".",
        ",",
        "*",
        "^",
    ),
]

LONG_UNITS = [
    "a",
    "的",
    "發財 http://x",
    "a中",
    "1.",
    "a.",
    "'",
    "(",
    ":)",
    "\u0301",
    "👍🏽",
    "⿰",
    "a@",
    "#",
    "- ",
    "word ",
]


def hostile_texts(n: int) -> list[str]:
    generator = random.Random(0)
    texts = []
    for k in range(n):
        if k % 4 == 0:  # any characters, from a few random blocks
            blocks = [generator.randrange(0x110000 >> 7) << 7 for _ in range(2)] + [0, 0x4E00, 0x2000]
            codes = (generator.choice(blocks) + generator.randrange(128) for _ in range(generator.randrange(60)))
            texts.append("".join(map(chr, codes)))
        elif k % 4 == 1:  # random ASCII
            codes = (generator.randrange(128) for _ in range(generator.randrange(60)))
            texts.append("".join(map(chr, codes)))
        elif k % 4 == 2:  # random Han characters, traditional and rare ones included
            codes = (generator.choice((0x4E00, 0x3400, 0xF900)) + generator.randrange(0x200) for _ in range(20))
            texts.append("".join(map(chr, codes)) + chr(generator.randrange(0x4E00, 0xA000)) * 3)
        else:
            texts.append("".join(generator.choices(HOSTILE_PIECES, k=generator.randrange(1, 25))))
    return [join_surrogates(text) for text in texts]


def first_lines(path: Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in islice(lines, N_SENTENCES_PER_FILE)]


def sentences() -> list[tuple[str, str]]:
    """Return pairs of a tokenizer and a sentence."""
    cases = [("en", text) for text, _ in ENGLISH_EXAMPLES] + [("zh", text) for text, _ in CHINESE_EXAMPLES]
    for tokenizer in ("en", "zh"):
        rows = (DATA / f"senses.{tokenizer}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        cases += [(tokenizer, row.split("\t")[-1]) for row in rows]
        paths = sorted(Path(CORPORA).glob(f"lm-{tokenizer}*/*.txt.xz")) if CORPORA else []
        lines = chain.from_iterable(map(first_lines, paths))
        cases += [(tokenizer, line) for line in islice(lines, N_SENTENCES)]
    return cases


def assert_equal(run: Run, cases: Sequence[tuple[str, str]], alphabets: Sequence[Alphabet]) -> None:
    results = run(cases, alphabets)
    assert len(results) == len(cases)
    for (tokenizer, text), result in zip(cases, results, strict=True):
        for key, value in expected_result(tokenizer, text, alphabets).items():
            assert result[key] == value, (tokenizer, text[:300], key)
        assert result["seconds"] < 1, (tokenizer, text[:300])


@pytest.mark.slow
def test_sentences_have_the_same_tokens_offsets_and_ids_as_in_python(run: Run) -> None:
    cases = sentences()
    cases += [({"en": "zh", "zh": "en"}[tokenizer], text) for tokenizer, text in cases[:: 10 if CORPORA else 1]]
    cases += [("whitespace", text) for _, text in cases[::10]]
    cases += [("de", text) for text in ("Am 3. Mai z. B. kam Dr. Müller, vgl. S. 5.", "Er wohnt i. d. Hauptstr. 7.")]
    cases += [("fr", text) for text in ("L’homme qu’il a vu n'est pas M. Dupont.", "Aujourd'hui, c'est l'été.")]
    assert_equal(run, cases, ALPHABETS)


@pytest.mark.slow
def test_hostile_texts_have_the_same_tokens_offsets_and_ids_as_in_python(run: Run) -> None:
    cases = [(tokenizer, text) for text in hostile_texts(N_HOSTILE) for tokenizer in TOKENIZERS]
    assert_equal(run, cases, ALPHABETS)


@pytest.mark.slow
def test_every_character_is_in_the_same_class_as_in_python(run: Run) -> None:
    last = 0x110000 if CORPORA else 0x3000
    blocks = [range(first, min(first + 0x800, last)) for first in range(0, last, 0x800)]
    rows = [[f"a{chr(c)}b {chr(c)}{chr(c)}中{chr(c)}1" for c in block if not 0xD800 <= c < 0xE000] for block in blocks]
    assert_equal(run, [(tokenizer, " ".join(row)) for row in rows for tokenizer in ("en", "zh")], [])


@pytest.mark.slow
def test_long_texts_are_split_as_in_python_in_less_than_a_second(run: Run) -> None:
    texts = [unit * (N_CHARACTERS // len(unit)) for unit in (LONG_UNITS if CORPORA else LONG_UNITS[:3])]
    assert_equal(run, [(tokenizer, text) for text in texts for tokenizer in ("en", "zh")], [])


@pytest.mark.slow
def test_python_and_javascript_reject_what_they_cannot_read(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer must be one of en, zh, whitespace and the codes"):
        export_text.write_text_data(tmp_path, "spacy:de")
    with pytest.raises(FormatError, match="cannot match MAX_REPEAT"):
        export_text.export_pattern("(?:ab)*c")
    script = """
    import { readFileSync } from "node:fs";
    const [module, file] = process.argv.slice(1);
    const { readTextData, makeTokenizer, characterIds } = await import(module);
    const english = await readTextData(readFileSync(file));
    const config = { alphabet: "simplified", max_characters: 50 };
    const messages = [];
    for (const call of [
      () => makeTokenizer("zh", english),
      () => makeTokenizer("en"),
      () => makeTokenizer("spacy:de", english),
      () => characterIds(["a"], config, { data: english }),
      () => readTextData(new Uint8Array([1, 2, 3])),
    ]) {
      try { await call(); messages.push("no error"); } catch (error) { messages.push(error.message); }
    }
    console.log(JSON.stringify(messages));
    """
    command = [str(NODE), "--input-type=module", "-e", script, (STATIC / "text.js").as_uri(), str(files[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        "tokenizer zh needs the data of text-zh.bin.gz; found that of en",
        "tokenizer en needs the data of text-en.bin.gz; found that of none",
        'tokenizer must be whitespace or a language code, such as en; found "spacy:de"',
        "alphabet simplified needs the data of text-zh.bin.gz; pass it as data",
        "text data must start with ELMOTEXT; found 3 bytes of another format",
    ]
