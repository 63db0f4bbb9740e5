"""A word's senses: found, named by the words around, shown by typical sentences; and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from elmo import ConfigError, DataError
from elmo.lexicon.senses import (
    Senses,
    context_names,
    embed_by,
    find_senses,
    make_names_distinct,
    name_by_substitutes,
    select_distinct,
    senses_in_corpus,
)
from elmo.lexicon.usages import Usage, Usages, entry_key, find_usages, respell
from elmo.text.reader import read_sentences
from elmo.text.tokenizers import Tokens

pytest.importorskip("sklearn")
from elmo.cli import senses as cli_senses
from elmo.cli.console import Console
from elmo.embed.elmo import Elmo
from elmo.formats import native
from elmo.lexicon.indexing import IndexJob, build_index
from tests.formats.tiny import WORDS, tiny_model

MONEY = ("the bank lent us money at once {}", "money is in the bank , {}", "a loan of money by the bank {}")
RIVER = ("the bank of the river was green {}", "we sat on the river bank {}", "the river broke its bank {}")


def usage(text: str, word: str = "bank", place: str = "") -> Usage:
    tokens = tuple(text.split())
    return Usage(Tokens(None, tokens, None), tokens.index(word), tokens.index(word) + 1, place)


def banks(n_money: int = 24, n_river: int = 12) -> Usages:
    """Usages in two clouds, each with its sentences; the last words differ."""
    chance = np.random.default_rng(0)
    texts = [MONEY[k % 3].format(f"m{k}") for k in range(n_money)]
    texts += [RIVER[k % 3].format(f"r{k}") for k in range(n_river)]
    rows = 5 + chance.normal(size=(n_money + n_river, 10))
    rows[n_money:, 0] += 8
    return Usages(tuple(usage(text, place=f"f:{k}") for k, text in enumerate(texts)), rows.astype(np.float32))


@pytest.fixture(scope="module")
def found() -> Senses:
    return find_senses(banks(), max_clusters=4)


def test_senses_have_shares_members_and_names_from_context(found: Senses) -> None:
    assert found.word == "bank"
    assert [sense.number for sense in found.items] == [1, 2]
    assert [sense.share for sense in found.items] == [2 / 3, 1 / 3]
    assert [set(sense.members) for sense in found.items] == [set(range(24)), set(range(24, 36))]
    assert found.items[0].name[0] == "money"
    assert found.items[1].name[0] == "river"
    assert "the" not in found.items[0].name + found.items[1].name  # as frequent here as there
    assert found.labels.tolist() == [1] * 24 + [2] * 12


def test_examples_are_distinct_and_nearest_to_the_center(found: Senses) -> None:
    for sense in found.items:
        near = found.similarities[list(sense.members)]
        assert near.tolist() == sorted(near, reverse=True)
        assert sense.examples[0] == found.usages.items[sense.members[0]]
        assert len({example.sentence.tokens for example in sense.examples}) == 3
    same = [usage("the bank here"), usage("The bank here".replace("The", "the")), usage("a bank there")]
    assert [one.sentence.tokens[0] for one in select_distinct(same, 5)] == ["the", "a"]


def test_data_without_clusters_is_one_sense_without_a_name() -> None:
    given = banks(40, 1)
    one = find_senses(Usages(given.items[:40], given.vectors[:40]))
    assert (len(one), one.items[0].name, one.items[0].share, one.items[0].label) == (1, (), 1.0, "1")


def test_a_callable_names_senses_by_their_usages() -> None:
    seen: list[int] = []

    def name_of(usages: object) -> list[str]:
        seen.append(len(usages))  # pyright: ignore[reportArgumentType]
        return [f"of {len(usages)}"]  # pyright: ignore[reportArgumentType]

    named = find_senses(banks(), n_clusters=2, name_of=name_of)
    assert seen == [24, 12]
    assert [sense.label for sense in named.items] == ["1: of 24", "2: of 12"]


def test_senses_with_the_same_name_get_a_word_that_distinguishes_them() -> None:
    usages = banks()
    names = [sense.name for sense in find_senses(usages, n_clusters=2, name_of=lambda _: ["shore", "fund"]).items]
    assert [name[:2] for name in names] == [("shore", "fund")] * 2
    assert len({name[2] for name in names}) == 2
    groups = [usages.items[:1], usages.items[:1], usages.items[:1]]
    same = [("shore", "fund"), ("fund", "shore"), ()]
    assert make_names_distinct(same, groups) == [("shore", "fund"), ("fund", "shore", "(2)"), ()]


def test_names_of_senses_keep_the_capitals_of_names_and_german_nouns() -> None:
    german = [
        usage(text, "Bank") for text in ("Geld liegt auf der Bank im Park", "zur Bank geht das Geld", "Bank und Geld")
    ]
    parks = [usage(text, "Bank") for text in ("eine Bank im Park", "im Park die Bank", "Park mit Bank")]
    assert context_names([german[1:], parks]) == [("Geld",), ("Park", "im")]
    assert make_names_distinct([("geld",), ("Geld",)], [german, german]) == [("geld",), ("Geld", "(2)")]
    model = tiny_model(softmax=True, words=("<S>", "</S>", "<UNK>", "Banken", "Bank", "London", "Läufe", "However",
                                            "however", "UNO", "schnell"), metadata={"tokenizer": "de"})  # fmt: skip
    names = name_by_substitutes(Elmo(model), n_words=10)
    assert names is not None
    found = set(names([usage("eine große Parkbank dort", "Parkbank")]))
    assert found >= {"Bank", "London", "Lauf", "however", "UNO", "schnell"}


def test_names_exclude_the_word_itself_punctuation_and_rare_words() -> None:
    groups = [[usage("bank , , money bank x"), usage("bank , money y")], [usage("bank river"), usage("a river bank")]]
    assert context_names(groups) == [("money",), ("river",)]
    assert context_names(groups[:1]) == [()]
    assert context_names([[usage("bank")], [usage("bank")]]) == [(), ()]


def test_contexts_of_a_single_word_give_no_names() -> None:
    items = [Usage(Tokens.from_words(words), k, k + 1) for k, words in ((1, ["the", "bank"]), (0, ["bank", "the"]))]
    assert context_names([items[:1] * 5, items[1:] * 5]) == [(), ()]


def test_json_and_rows_contain_all_usages(found: Senses) -> None:
    values = json.loads(json.dumps(found.to_json()))
    assert values["usages"] == 36
    assert [sense["usages"] for sense in values["senses"]] == [24, 12]
    assert values["senses"][1]["examples"][0]["word"] == "bank"
    rows = list(found.rows())
    assert len(rows) == 36
    assert rows[-1][:2] == ("2", ", ".join(found.items[1].name))
    assert rows[-1][3:6] == ("f:35", "the river broke its ", "bank")


def test_no_usages_and_wrong_numbers_are_rejected() -> None:
    with pytest.raises(DataError, match="'bank': expected usages to cluster, found none"):
        find_senses(Usages((), np.zeros((0, 4))), word="bank")
    with pytest.raises(ConfigError, match="n_examples must be at least 0"):
        find_senses(banks(), n_examples=-1)


def test_the_figure_shows_names_shares_and_sentences(tmp_path: Path, found: Senses) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    from elmo.plots.senses import draw_senses

    with rc_context({"svg.fonttype": "none"}):
        for name in "ab":
            draw_senses(found, tmp_path / f"{name}.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for part in ("2 senses in 36 usages", "(67%, 24 usages)", "2: river", "[bank]"):
        assert part in text, part
    assert text == (tmp_path / "b.svg").read_text(encoding="utf-8")


def test_a_map_of_many_usages_is_reproducible_and_that_of_one_is_a_point() -> None:
    from elmo.plots.senses import project

    many = banks(40, 30).vectors
    places, caption = project(many, seed=1)
    assert places.shape == (70, 2)
    assert "t-SNE" in caption
    assert np.array_equal(places, project(many, seed=1)[0])
    centers = places[:40].mean(axis=0), places[40:].mean(axis=0)
    assert np.linalg.norm(centers[0] - centers[1]) > places[:40].std()
    one, caption = project(many[:1])
    assert one.tolist() == [[0, 0]]
    assert "principal components" in caption


@pytest.mark.parametrize("n_senses", [1, 2, 8])
def test_the_figure_labels_the_usages_whose_sentences_it_shows(monkeypatch: pytest.MonkeyPatch, n_senses: int) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    from elmo.plots import senses as senses_picture

    figures: list[Figure] = []

    def keep(_: Path, build: Callable[[], Figure]) -> None:
        figures.append(build())

    monkeypatch.setattr(senses_picture, "draw_figure", keep)
    found = find_senses(banks(), n_clusters=n_senses)
    senses_picture.draw_senses(found, "x.png")
    axes = figures[0].axes[0]
    assert "principal components" in axes.get_xlabel()
    points, _ = senses_picture.project(found.usages.vectors)
    wanted = {
        f"{sense.number}{letter}": points[found.usages.items.index(usage)].tolist()
        for sense in found.items
        for letter, usage in zip("abc" if n_senses < 5 else "a", sense.examples, strict=False)
    }
    marks = [text for text in axes.texts if isinstance(text, Annotation)]
    assert {text.get_text(): list(text.xy) for text in marks} == wanted
    below = [text.get_text() for text in figures[0].texts]
    assert all(any(line.startswith(f"{name}  ") for line in below) for name in wanted)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    lines = [text.format(k) for k in range(6) for text in (*MONEY, *RIVER)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n河岸 café\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command("senses")(cli_senses.command)
    app.callback()(lambda: None)
    return app


def run(app: typer.Typer, *arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, list(arguments), obj=Console())
    return done.exit_code, done.stdout, done.exception


def test_the_command_prints_writes_and_draws(app: typer.Typer) -> None:
    given = ("senses", "bank", "corpus.txt", "--model", "model", "--clusters", "2", "--out", "b.tsv")
    code, out, error = run(app, *given)
    assert (code, error) == (0, None)
    assert out.startswith("bank: 2 senses in 36 usages (agglomerative)\n")
    assert "[bank]" in out
    table = Path("b.tsv").read_text(encoding="utf-8").splitlines()
    assert table[0] == "sense\tname\tsimilarity\tplace\tbefore\tword\tafter"
    assert len(table) == 37
    code, out, _ = run(app, "senses", "BANK", "corpus.txt", "--model", "model", "--limit", "8", "--json")
    assert (code, json.loads(out)["usages"]) == (0, 8)


def test_one_call_finds_the_senses_of_a_word_in_a_corpus(app: typer.Typer) -> None:
    elmo = Elmo.from_pretrained("model")
    sentences = list(read_sentences(["corpus.txt"], tokenizer=elmo.tokenizer))
    found = senses_in_corpus(elmo, sentences, "Bank", n_clusters=2, limit=30, seed=1, layers="top")
    items = find_usages(sentences, ["Bank"], key=entry_key(elmo), limit=30, seed=1)["Bank"]
    vectors = embed_by(elmo, [respell(usage, "Bank") for usage in items], layers="top").vectors
    assert found.usages.items == tuple(items)
    assert np.array_equal(found.usages.vectors, vectors)
    parts = find_senses(Usages(tuple(items), vectors), n_clusters=2, name_of=name_by_substitutes(elmo), seed=1)
    assert found.items == parts.items
    as_written = senses_in_corpus(elmo, sentences, "Bank", n_clusters=2, is_as_written=True, layers="top")
    assert not np.array_equal(as_written.usages.vectors[: len(vectors)], vectors)
    with pytest.raises(DataError, match="'tree' does not occur in the text; check its spelling and the tokenizer"):
        senses_in_corpus(elmo, sentences, "tree")


def test_senses_are_named_by_substitutes_if_the_model_has_a_softmax(app: typer.Typer) -> None:
    given = ("senses", "bank", "corpus.txt", "--clusters", "2", "--json", "--model")
    named = json.loads(run(app, *given, "model")[1])["senses"]
    assert all(one["name"] and {*one["name"][:3]} <= {*WORDS} for one in named)
    native.write(tiny_model(), Path("plain"))  # no softmax: by the words around
    around = json.loads(run(app, *given, "plain")[1])["senses"]
    words = set(Path("corpus.txt").read_text("utf-8").lower().split())
    assert all(set(one["name"]) <= words for one in around)
    assert [one["name"] for one in around] != [one["name"] for one in named]


def test_usages_can_be_compared_by_their_substitutes(app: typer.Typer) -> None:
    given = ("senses", "bank", "corpus.txt", "--model", "model", "--json", "--by", "substitutes")
    code, out, error = run(app, *given)
    assert (code, error) == (0, None)
    assert json.loads(out)["usages"] == 36


def test_an_index_can_replace_the_text(app: typer.Typer) -> None:
    elmo = Elmo.from_pretrained("model")
    build_index(IndexJob(("corpus.txt",), Path("usages"), dtype="float32"), elmo)
    given = ("--model", "model", "--clusters", "2", "--json", "--as-written")
    found = [json.loads(run(app, "senses", "bank", source, *given)[1]) for source in ("corpus.txt", "usages")]
    sizes = [[one["usages"] for one in values["senses"]] for values in found]
    assert sizes[0] == sizes[1]


def test_a_word_that_does_not_occur_is_an_error(app: typer.Typer) -> None:
    _, out, error = run(app, "senses", "tree", "corpus.txt", "--model", "model")
    assert out == ""
    assert isinstance(error, DataError)
    assert "'tree' does not occur in the text" in str(error)
    _, _, error = run(app, "senses", "café", "corpus.txt", "--model", "model", "--clusters", "2")
    assert "'café': expected at least 2 usages for 2 senses, found 1" in str(error)
