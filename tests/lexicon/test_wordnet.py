"""WordNet's files: a small database written here, and the real one where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.errors import DataError
from elmo.lexicon.wordnet import WordNet, find_wordnet, is_key, key_pos

# key, sense number, count, gloss; the senses of bank are not in the order of their keys
SENSES = (
    ("bank%1:14:00::", 2, 20, 'a financial institution; "he cashed a check at the bank"'),
    ("bank%1:17:01::", 1, 25, "sloping land beside water"),
    ("bank%2:38:00::", 1, 2, "tip laterally"),
    ("good%3:00:01::", 1, 9, "having desirable qualities"),
    ("good%5:00:00:able:00", 2, 1, "with skill"),
    ("goose%1:05:00::", 1, 1, "a web-footed bird"),
    ("lend%2:40:00::", 1, 3, "give temporarily"),
    ("money%1:21:00::", 1, 30, "the most common medium of exchange"),
    ("river%1:17:00::", 1, 40, "a large natural stream of water"),
    ("take_place%2:30:00::", 1, 5, "come to pass"),
    ("well%4:02:00::", 1, 8, "in a good manner"),
)
EXCEPTIONS = {"noun": "geese goose\n", "verb": "lent lend\ntook take\n", "adj": "better good\n", "adv": "better well\n"}


def write_wordnet(folder: Path) -> Path:
    """A database of eleven senses."""
    folder.mkdir(parents=True, exist_ok=True)
    data = dict.fromkeys(EXCEPTIONS, "  1 This line is as those of the licence.  \n")
    index = []
    for key, number, count, gloss in SENSES:
        pos = key_pos(key)
        offset = len(data[pos].encode())
        data[pos] += f"{offset:08d} 03 {pos[0]} 01 {key.partition('%')[0]} 0 000 | {gloss}  \n"
        index.append(f"{key} {offset:08d} {number} {count}\n")
    (folder / "index.sense").write_text("".join(index))
    for pos, text in data.items():
        (folder / f"data.{pos}").write_text(text)
        (folder / f"{pos}.exc").write_text(EXCEPTIONS[pos])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_wordnet(tmp_path / "dict")


def test_senses_are_sorted_by_frequency_for_each_part_of_speech(folder: Path) -> None:
    wordnet = WordNet(folder)
    assert [sense.key for sense in wordnet.senses("bank", "noun")] == ["bank%1:17:01::", "bank%1:14:00::"]
    assert [sense.count for sense in wordnet.senses("Bank", "noun")] == [25, 20]
    assert wordnet.first_sense("bank", "verb") == "bank%2:38:00::"
    assert wordnet.first_sense("take place", "verb") == "take_place%2:30:00::"
    assert wordnet.first_sense("ban", "noun") is None
    assert wordnet.first_sense("zzz", "adv") is None


def test_satellite_adjectives_are_adjectives(folder: Path) -> None:
    assert [sense.number for sense in WordNet(folder).senses("good", "adj")] == [1, 2]


def test_a_gloss_has_examples_and_a_definition_has_none(folder: Path) -> None:
    wordnet = WordNet(folder)
    assert wordnet.gloss("bank%1:14:00::") == 'a financial institution; "he cashed a check at the bank"'
    assert wordnet.definition("bank%1:14:00::") == "a financial institution"
    with pytest.raises(DataError, match=r"index\.sense: unknown sense 'bank%1:99:00::'"):
        wordnet.gloss("bank%1:99:00::")


@pytest.mark.parametrize(
    ("word", "pos", "lemmas"),
    [
        ("banks", "noun", ("bank",)),
        ("Banks", "noun", ("bank",)),
        ("banking", "verb", ("bank",)),
        ("geese", "noun", ("goose",)),
        ("lent", "verb", ("lend",)),
        ("better", "adj", ("good",)),
        ("better", "adv", ("well",)),
        ("took place", "verb", ("take_place",)),
        ("taking_places", "verb", ("take_place",)),
        ("bank", "noun", ("bank",)),
        ("bas", "noun", ()),
        ("", "noun", ()),
    ],
)
def test_base_forms(folder: Path, word: str, pos: str, lemmas: tuple[str, ...]) -> None:
    assert WordNet(folder).base_forms(word, pos) == lemmas  # pyright: ignore[reportArgumentType]


def test_an_unsorted_index_is_read(folder: Path) -> None:
    path = folder / "index.sense"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert WordNet(folder).first_sense("river", "noun") == "river%1:17:00::"
    assert WordNet(folder).definition("river%1:17:00::") == "a large natural stream of water"


@pytest.mark.parametrize(
    "line", ["bank%1:14:00:: 00000042 2", "bank%1:14:00:: x 2 20", "bank 1 2 3", "bank%1:14:00:: 1 2 3 4", ""]
)
def test_an_error_in_the_index_names_its_line(folder: Path, line: str) -> None:
    path = folder / "index.sense"
    lines = path.read_text().splitlines()
    lines[3] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"index\.sense:4: expected a sense key, offset"):
        WordNet(folder).senses("bank", "noun")


def test_a_missing_and_an_extra_field_are_detected(folder: Path) -> None:
    path = folder / "index.sense"
    lines = path.read_text().splitlines()
    lines[1], lines[5] = lines[1].rpartition(" ")[0], "25 " + lines[5]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"index\.sense:2: "):
        WordNet(folder).first_sense("river", "noun")


def test_errors_in_exceptions_and_data_are_reported(folder: Path) -> None:
    (folder / "noun.exc").write_text("geese goose\nmice\n")
    with pytest.raises(DataError, match=r"noun\.exc:2: expected a form and its base forms, found 'mice'"):
        WordNet(folder).base_forms("geese", "noun")
    (folder / "data.noun").write_text("something else\n" * 100)
    with pytest.raises(DataError, match=r"data\.noun: expected the synset of bank%1:17:01:: at byte \d+"):
        WordNet(folder).gloss("bank%1:17:01::")
    (folder / "index.sense").write_bytes(b"bank%1:14:00:: 00000042 2 1\nb\xff\n")
    with pytest.raises(DataError, match=r"index\.sense:2: expected UTF-8"):
        WordNet(folder).senses("bank", "noun")


def test_it_is_found_by_the_environment_variables_of_wordnet(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WNSEARCHDIR", raising=False)
    monkeypatch.setenv("WNHOME", str(tmp_path))
    assert find_wordnet() == folder
    monkeypatch.setenv("WNSEARCHDIR", str(folder))
    monkeypatch.setenv("WNHOME", "elsewhere")
    assert WordNet().first_sense("river", "noun") == "river%1:17:00::"


def test_a_missing_wordnet_is_reported_with_install_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"\$WNSEARCHDIR.*apt install wordnet-base wordnet-sense-index"):
        WordNet()
    monkeypatch.delenv("WNSEARCHDIR")
    monkeypatch.delenv("WNHOME", raising=False)
    monkeypatch.setattr("elmo.lexicon.wordnet._SYSTEM_FOLDERS", (tmp_path,))
    with pytest.raises(DataError, match=r"WordNet is not installed; install .* with --wordnet, or set WNHOME"):
        WordNet()


def test_sense_keys_are_recognized() -> None:
    assert is_key("'s_gravenhage%1:15:00::")
    assert is_key("past%5:00:00:recent(a):00")
    assert not is_key("bank")
    assert not is_key("bank%6:00:00::")
    with pytest.raises(DataError, match="expected a sense key such as bank"):
        key_pos("bank")


def test_the_real_database_is_read() -> None:
    folder = Path("/usr/share/wordnet")
    if not (folder / "index.sense").is_file() or not (folder / "data.noun").is_file():
        pytest.skip("WordNet is not installed")
    wordnet = WordNet(folder)
    assert [sense.number for sense in wordnet.senses("bank", "noun")] == list(range(1, 11))
    assert wordnet.definition("bank%1:17:01::").startswith("sloping land")
    assert wordnet.base_forms("mice", "noun") == ("mouse",)
    assert wordnet.base_forms("ran into", "verb") == ("run_into",)
