"""Documents in CoNLL-2012 columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import DataError, OutputError
from elmo.tasks.data.coreference import read_coreference, write_coreference
from elmo.tasks.data.examples import Document, Location, Span
from tests.tasks.data.corpora import DATA, needs_data, write_file


def read(*args: Any, **options: Any) -> list[Document]:
    return list(read_coreference(*args, **options))


def conll(*cells: str, name: str = "(d); part 000") -> str:
    """Build a document with one word per cell of the last column; "" ends a sentence."""
    rows = [f"d 0 {k} w{k} - - - - - - * {cell}" if cell else "" for k, cell in enumerate(cells)]
    return "\n".join([f"#begin document {name}", *rows, "#end document", ""])


def clusters(folder: Path, *cells: str) -> list[list[tuple[int, int]]]:
    (document,) = read([write_file(folder, conll(*cells))])
    return [[(span.start, span.end) for span in spans] for spans in document.clusters or ()]


def test_a_document_has_sentences_and_clusters_counted_from_its_beginning(tmp_path: Path) -> None:
    path = write_file(tmp_path, conll("(0", "0)", "-", "", "(1)", "(0)", "_", name="(bc/cctv_1); part 002"))
    assert read([path]) == [
        Document(
            "bc/cctv_1; part 002",
            (("w0", "w1", "w2"), ("w4", "w5", "w6")),
            ((Span(0, 2), Span(4, 5)), (Span(3, 4),)),
            None,
            Location(str(path), 1),
        )
    ]


def test_brackets_nest_and_share_tokens(tmp_path: Path) -> None:
    assert clusters(tmp_path, "(0|(1)", "(2", "2)|0)|(1)") == [[(0, 1), (2, 3)], [(0, 3)], [(1, 3)]]
    assert clusters(tmp_path, "(0|(0", "0)", "0)") == [[(0, 2), (0, 3)]]  # the last to open is the first to end
    assert clusters(tmp_path, "(0", "0)|(0", "0)") == [[(0, 2), (1, 3)]]
    assert clusters(tmp_path, "-", "*") == []


@pytest.mark.parametrize("cells", [("-", "(0)|(1)"), ("(0|(1", "0)|1)")])
def test_a_mention_in_two_clusters_raises_an_error(tmp_path: Path, cells: tuple[str, str]) -> None:
    with pytest.raises(
        DataError,
        match=r"train\.conll:3: expected each mention in one cluster; found the same mention in the clusters '0'",
    ):
        clusters(tmp_path, *cells)
    assert clusters(tmp_path, "(0)|(0)", "(0)") == [[(0, 1), (1, 2)]]  # twice in its own does no harm


def test_an_empty_last_column_and_speakers_are_read(tmp_path: Path) -> None:
    rows = ["d\t0\t0\tHi\t-\t-\t-\t-\t-\tAnn B\t*\t", "d\t0\t1\t#\t-\t-\t-\t-\t-\t-\t*\t(7)"]
    path = write_file(tmp_path, "\n".join(["#begin document (d)", *rows, "#end document", ""]) * 2)
    first, second = read([path])
    assert first.text == (("Hi", "#"),)
    assert first.speakers == ("Ann B", "-")
    assert first.clusters == ((Span(1, 2),),)
    assert (first.name, second.location) == ("d", Location(str(path), 5))


def test_without_labels_there_are_no_clusters_and_text_is_a_document(tmp_path: Path) -> None:
    columns = write_file(tmp_path, conll("(0", "5)|", name="(d); part 000"))
    assert [one.clusters for one in read([columns], is_labeled=False)] == [None]
    text = tmp_path / "text.txt"
    text.write_text("She came .\n\nHe left\n", encoding="utf-8")
    assert read([text], is_labeled=False) == [
        Document(str(text), (("She", "came", "."), ("He", "left")), None, None, Location(str(text), 1))
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.conll: expected examples; found an empty file"),
        (conll("(0", "1)"), r":3: expected an opening bracket '\(1' before '1\)'; found none"),
        (conll("(0", "-"), r":2: expected the mention '\(0' to end in the same sentence; found no '0\)'"),
        (conll("-", "(3", "", "3)"), r":3: expected the mention '\(3' to end in the same sentence"),
        (conll("(0||0)"), r":2: expected brackets such as .* found '\(0\|\|0\)'"),
        (conll("0"), r":2: expected brackets such as .* found '0'"),
        (conll("(0)", name=""), r":1: expected '#begin document \(name\); part 000'; found"),
        (conll(), r":1: expected sentences in document 'd'; found none"),
        (conll("(0)").replace("#end document", ""), r":1: expected #end document; found the end"),
        (
            conll("(0)").replace("#end document", "") + conll("-"),
            r":4: expected #end document for the document in line 1; found",
        ),
        ("d 0 0 w - - - - - - * -\n", r":1: expected '#begin document \(name\); part 000'; found 'd 0"),
        ("#end document\n", r":1: expected #begin document before #end document"),
        (conll("-", "- -"), r":3: expected 12 columns separated by spaces, as in line 2; found 13"),
        (conll("-").replace(" - - -", ""), r":2: expected at least 12 columns; found "),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read([write_file(tmp_path, text)])
    assert "\n" not in str(caught.value)


def bare(document: Document) -> Document:
    return replace(document, location=None)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Draw a document that brackets can express: mentions of one cluster do not cross."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    text = tuple(tuple(draw(st.sampled_from(["a", "#", "b c", "\u4e2d"])) for _ in range(n)) for n in lengths)
    mentions: list[Span] = []
    at = 0
    for n in lengths:
        mentions += (Span(at + i, at + j) for i in range(n) for j in range(i + 1, n + 1))
        at += n
    chosen = draw(st.lists(st.tuples(st.sampled_from(mentions), st.integers(0, 3)), unique_by=lambda one: one[0]))
    found: dict[int, list[Span]] = {}
    for span, id_ in chosen:
        others = found.setdefault(id_, [])
        if not any(a.start < b.start < a.end - 1 < b.end - 1 for o in others for a, b in ((o, span), (span, o))):
            others.append(span)
    name = draw(st.sampled_from(["x", "a/b; part 003", "a (b)"]))
    speakers = draw(st.sampled_from([None, tuple(f"s {k % 2}" for k in range(sum(lengths)))]))
    return Document(name, text, tuple(sorted(tuple(sorted(spans)) for spans in found.values())), speakers)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(written=st.lists(documents(), min_size=1, max_size=2))
def test_documents_survive_a_round_trip(written: list[Document], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("round") / "out.conll"
    write_coreference(written, path)
    assert [bare(one) for one in read([path])] == written


def test_twelve_columns_are_written(tmp_path: Path) -> None:
    path = tmp_path / "out.conll"
    write_coreference([Document("d", (("a", "b"),), ((Span(0, 2), Span(1, 2)),))], str(path))
    assert path.read_text(encoding="utf-8").split("\n") == [
        "#begin document (d); part 000",
        "d\t0\t0\ta\t-\t-\t-\t-\t-\t-\t-\t(0",
        "d\t0\t1\tb\t-\t-\t-\t-\t-\t-\t-\t0)|(0)",
        "",
        "#end document",
        "",
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            Document("d", (("a", "b"),), ((Span(0, 3),),)),
            r"d: mentions must be inside one sentence; found tokens 0 to 3 in cluster 0",
        ),
        (Document("d", (("a",), ("b",)), ((Span(0, 2),),)), r"inside one sentence; found tokens 0 to 2"),
        (Document("d", (("a",),), ((Span(-1, 1),),)), r"inside one sentence"),
        (
            Document("d", (("a",) * 6,), ((Span(0, 3), Span(1, 5)),)),
            r"mentions must not cross another mention of the same cluster; found tokens 1 to 5 in cluster 0",
        ),
        (
            Document("d", (("a",) * 6,), ((Span(0, 3), Span(4, 5)), (Span(0, 3),))),
            r"d: mentions must occur once \(this one is also in cluster 0\); found tokens 0 to 3 in cluster 1",
        ),
        (
            Document("d", (("a",) * 6,), ((Span(2, 3), Span(2, 3)),)),
            r"occur once \(this one is also in cluster 0\); found tokens 2 to 3 in cluster 0",
        ),
        (
            Document("d", (("a\tb",),), ()),
            r"must not be blank or contain tabs, line breaks or lone surrogates; found 'a\\tb'",
        ),
        (Document("d", (("",),), ()), r"words, speakers and names must not"),
        (Document("d", (("\ud800",),), ()), r"words, speakers and names must not"),
        (Document("d\n", (("a",),), ()), r"words, speakers and names must not"),
    ],
)
def test_a_failed_write_keeps_the_old_file(tmp_path: Path, document: Document, message: str) -> None:
    path = write_file(tmp_path, "old")
    with pytest.raises(OutputError, match=message) as caught:
        write_coreference([Document("good", (("a",),), ()), document], path)
    assert "\n" not in str(caught.value)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@needs_data
def test_published_litbank_survives_a_round_trip(tmp_path: Path) -> None:
    dev = read([DATA / "coref-litbank" / "dev.txt.xz"])
    assert len(dev) == 10
    assert sum(len(words) for one in dev for words in one.text) == 20839
    assert sum(len(spans) for one in dev for spans in one.clusters or ()) == 2807
    write_coreference(dev, tmp_path / "dev.conll")
    assert [bare(one) for one in read([tmp_path / "dev.conll"])] == [bare(one) for one in dev]
