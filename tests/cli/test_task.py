"""elmo task: train, evaluate and predict with every kind of task on tiny data; errors are one line."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elmo.tasks import model as task_model
from elmo.tasks.data.roles import read_roles
from elmo.tasks.data.tagging import read_tagged
from elmo.tasks.data.texts import read_texts
from elmo.tasks.kinds.classification import ClassificationOptions
from elmo.tasks.kinds.registry import read_examples
from elmo.tasks.model import TaskModel
from elmo.tasks.output import write_predictions
from tests.cli.conftest import Outcome, Run, assert_fails
from tests.cli.task_files import FAST, SENTENCES, TEXTS, train, train_translator, write_files
from tests.cli.test_help import examples


@pytest.fixture
def data(here: Path) -> Path:
    write_files(here)
    return here


@pytest.fixture
def ner(data: Path, run: Run) -> Path:
    """A tagger, trained with the model of the same folder."""
    assert train(run, "tagging", "train.conll", "--dev", "dev.conll").code == 0
    return data / "ner.safetensors"


def test_a_tagger_is_trained_evaluated_and_used(run: Run, data: Path) -> None:
    outcome = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--elmo", "both")
    assert outcome.code == 0, outcome.err
    lines = outcome.err.splitlines()
    assert re.fullmatch(r"elmo: epoch 1: loss [\d.]+, f1 [\d.]+%, precision .*, best so far", lines[0])
    assert lines[-1] == "elmo: wrote ner.safetensors"
    assert "best epoch" in outcome.out
    for place in ("input", "output"):
        assert re.search(rf"layer weights at the {place}: 0: 0.3\d, 1: 0.3\d, 2: 0.3\d; gamma \d", outcome.out)
    assert sorted(path.name for path in data.glob("*ner*")) == ["ner.safetensors"]  # no checkpoints any more

    measured = run("task", "evaluate", "ner.safetensors", "dev.conll", "--no-cache", "--json", "--out", "p.jsonl")
    assert measured.code == 0, measured.err
    values = json.loads(measured.out)
    assert (values["examples"], values["tokens"], values["kind"]) == (5, 18, "tagging")
    best = max(epoch.scores["f1"] for epoch in TaskModel.load(data / "ner.safetensors").epochs)
    assert values["scores"]["f1"] == best
    rows = [json.loads(line) for line in (data / "p.jsonl").read_text().splitlines()]
    assert rows[0]["gold"] == ["O", "B-ORG", "O", "O"]
    table = run("task", "evaluate", "ner.safetensors", "dev.conll", "--no-cache").out.splitlines()
    assert f"{'f1':20}{best:9.2%}" in table

    (data / "plain.txt").write_text("The Bank lends.\n\nLondon\n")
    shown = run("task", "predict", "ner.safetensors", "plain.txt")
    assert re.search(r"(?m)^Bank   \S+ +[\d.]+%$", shown.out), shown
    assert shown.out.count("\n\n") == 2
    written = run("task", "predict", "ner.safetensors", "plain.txt", "--out", "tagged.conll")
    assert (written.code, written.out) == (0, "")
    found = list(read_tagged(data / "tagged.conll"))
    assert [one.words for one in found] == [("The", "Bank", "lends", "."), ("London",)]
    again = run("task", "predict", "ner.safetensors", "dev.conll", "--json")  # a file as it was learned from
    assert json.loads(again.out.splitlines()[0])["words"] == ["The", "Bank", "lends", "."]
    one = json.loads(run("task", "predict", "ner.safetensors", "--text", "London lends", "--json").out)
    assert one["words"] == ["London", "lends"]
    assert len(one["tags"]) == len(one["confidences"]) == 2


def test_a_classifier_is_trained_evaluated_and_used(run: Run, data: Path) -> None:
    outcome = train(run, "classification", "texts.tsv", "--dev", "texts.tsv", out="c.safetensors")
    assert outcome.code == 0, outcome.err
    measured = run("task", "evaluate", "c.safetensors", "texts.tsv", "--no-cache", "--out", "p.tsv")
    assert re.search(r"(?m)^accuracy +\d+\.\d\d%$", measured.out), measured
    assert next(read_texts(data / "p.tsv")).words == ("the", "river", "is", "fine")
    shown = run("task", "predict", "c.safetensors", "--text", "a fine river", "--text", "broke")
    assert [re.sub(r"[\d.]+%", "%", line).split()[1:] for line in shown.out.splitlines()] == [
        ["%", "a", "fine", "river"],
        ["%", "broke"],
    ]


def test_roles_are_trained_evaluated_and_used(run: Run, data: Path) -> None:
    outcome = train(run, "roles", "roles.tsv", "--dev", "roles.tsv", "--layers", "1", out="r.safetensors")
    assert outcome.code == 0, outcome.err
    measured = run("task", "evaluate", "r.safetensors", "roles.tsv", "--no-cache", "--out", "p.conll")
    assert "precision" in measured.out
    assert [(one.words[0], one.predicate) for one in read_roles(data / "p.conll")] == [("They", 1), ("Banks", 1)]
    shown = run("task", "predict", "r.safetensors", "--text", "Banks [[lend]] money .")
    assert "[[lend]]" in shown.out, shown
    (data / "asked.tsv").write_text("Banks\tN\tbank\t-\nlend\tV\tlend\tlend.01\n")
    assert "[[lend]]" in run("task", "predict", "r.safetensors", "asked.tsv").out
    for given in (("corpus.txt",), ("--text", "Banks lend money .")):
        assert_fails(
            run("task", "predict", "r.safetensors", *given),
            "mark the predicate whose roles you want, as in --text 'They [[lent]] money .'",
        )


@contextmanager
def interrupted(at: str) -> Iterator[None]:
    """Press Ctrl-C right after a log line with this beginning."""

    def press(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith(at):
            raise KeyboardInterrupt
        return True

    logging.getLogger("elmo.cli").addFilter(press)
    try:
        yield
    finally:
        logging.getLogger("elmo.cli").removeFilter(press)


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_model(run: Run, data: Path) -> None:
    more = ("--dev", "dev.conll", "--epochs", "3")
    assert train(run, "tagging", "train.conll", *more, out="whole.safetensors").code == 0
    with interrupted("epoch 2"):
        stopped = train(run, "tagging", "train.conll", *more)
    assert stopped.code == 130
    said = "elmo: interrupted; run the same command again to resume after the last epoch"
    assert stopped.err.splitlines()[-1] == said
    assert not (data / "ner.safetensors").exists()
    other = train(run, "tagging", "train.conll", *more, "--seed", "2")
    assert other.code == 1
    assert "was started with other data or options" in other.err
    again = train(run, "tagging", "train.conll", *more)
    assert again.code == 0, again.err
    assert [line[:13] for line in again.err.splitlines() if "loss" in line] == ["elmo: epoch 3"]
    assert "resuming the training run in" in again.err
    assert not (data / "ner.safetensors.training").exists()
    assert (data / "whole.safetensors").read_bytes() == (data / "ner.safetensors").read_bytes()


def test_a_run_stopped_before_its_first_epoch_says_that_it_starts_again(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskModel, "train", _ctrl_c)
    stopped = train(run, "tagging", "train.conll", "--dev", "dev.conll")
    assert stopped.code == 130
    said = "elmo: interrupted; no epoch was finished, so the same command starts from the beginning"
    assert stopped.err.splitlines()[-1] == said


def _ctrl_c(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_text_that_is_not_utf8_is_reported_without_an_unknown_option(run: Run, data: Path, ner: Path) -> None:
    (data / "latin1.txt").write_bytes("Le café .\n".encode("latin-1"))
    refused = run("task", "predict", ner, "latin1.txt")
    assert_fails(refused, "latin1.txt:1: byte 7 of the line (0xe9) is not UTF-8; convert the file to UTF-8")
    assert "--errors" not in refused.err


def test_without_dev_a_tenth_is_held_out_and_sentences_stay_together(run: Run, data: Path) -> None:
    outcome = train(run, "tagging", "train.conll", "--json")
    assert outcome.code == 0, outcome.err
    assert (
        "elmo: holding out 1 of 5 examples to select the best epoch; use --dev to choose other examples" in outcome.err
    )
    values = json.loads(outcome.out)
    assert (values["train"], values["dev"], len(values["epochs"])) == (4, 1, 2)
    from elmo.tasks.run import hold_out

    pairs = [*read_roles(data / "roles.tsv"), *read_roles(data / "roles.tsv")]
    learned, held = hold_out(pairs, seed=3)
    assert len(held) == len(learned) == 2
    assert not {one.words for one in learned} & {one.words for one in held}
    assert [hold_out(pairs, seed=seed) for seed in (3, 3)] == [(learned, held)] * 2


def test_an_existing_model_is_kept_without_overwrite(run: Run, ner: Path) -> None:
    before = ner.read_bytes()
    assert_fails(train(run, "tagging", "train.conll"), "ner.safetensors already exists; pass --overwrite")
    assert ner.read_bytes() == before
    assert train(run, "tagging", "train.conll", "--overwrite", "--seed", "4").code == 0
    assert ner.read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("parsing train.conll", "kind of task must be one of tagging, classification"),
        ("tagging empty.conll", "empty.conll: expected examples; found an empty file"),
        ("tagging nothing.conll", "nothing.conll"),
        ("tagging train.conll --column 5", "train.conll:1: expected tags in column 5 (from 0)"),
        ("tagging uneven.conll", "uneven.conll:2: expected 2 columns"),
        ("tagging train.conll --network linear", "the network for tagging has no option --network; it has: --hidden"),
        ("classification texts.tsv --column x", "expected a column 'x'; found 'label', 'text'"),
        ("classification texts.tsv --layers 2", "the network for classification has no option --layers"),
        ("entailment texts.tsv --text-column 1", "number of --text-column options must be 2 for entailment; found 1"),
        ("answers texts.tsv --column 1", "cannot choose a column for answers"),
        ("roles roles.tsv --column x", "--column must be a number for roles"),
        ("tagging train.conll --header", "the reader of tagging has no option 'has_header'"),
        ("tagging train.conll --dev other.conll", "unknown label 'PER'"),
        ("tagging train.conll --dev dev.conll --elmo none", "a task needs word vectors at its input"),
        ("tagging train.conll --model nowhere", "nowhere"),
        ("tagging train.conll --vectors nowhere.txt", "nowhere.txt"),
        ("tagging train.conll --elmo-dropout 2", "dropout of the ELMo vectors must be at least 0 and below 1"),
        ("tagging train.conll --elmo none --layer-norm", "cannot use layer_norm: elmo is 'none'"),
        ("tagging train.conll --out x.bin", "the output name must end in .safetensors; found x.bin"),
        ("tagging train.conll --out v/x.safetensors", "v is a file"),
        ("tagging train.conll --picture x.doc", "the output name must end in .png or .pdf or .svg; found x.doc"),
        ("tagging train.conll --tokenizer x", "tokenizer must be one of en"),
        ("tagging one.conll", "cannot hold out examples: all examples have the same text"),
    ],
)
def test_training_errors_are_one_line(run: Run, data: Path, arguments: str, message: str) -> None:
    if "x.doc" in arguments:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (data / "empty.conll").write_text("\n")
    (data / "one.conll").write_text("The O\nBank B-ORG\n")
    (data / "uneven.conll").write_text("The O\nBank B-ORG x\n")
    (data / "other.conll").write_text("Ann S-PER\n\nBob B-PER\n\n")
    before = sorted(path.name for path in data.iterdir())
    assert_fails(train(run, *arguments.split()), message)
    assert sorted(path.name for path in data.iterdir()) == before


@pytest.mark.slow
def test_evaluation_and_prediction_errors_are_one_line(run: Run, ner: Path) -> None:
    here = ner.parent
    (here / "other.conll").write_text("Ann B-PER\n\n")
    (here / "empty.conll").write_text("")
    (here / "some.bin").write_bytes(b"abc")
    evaluate, predict = ("task", "evaluate"), ("task", "predict")
    assert_fails(run(*evaluate, "nothing.safetensors", "dev.conll"), "nothing.safetensors")
    assert_fails(run(*evaluate, "some.bin", "dev.conll"), "some.bin is not a task model, or is damaged")
    assert_fails(run(*evaluate, ner, "nothing.conll"), "nothing.conll")
    assert_fails(run(*evaluate, ner, "empty.conll", "--no-cache"), "found an empty file")
    assert_fails(run(*evaluate, ner, "other.conll", "--no-cache"), "unknown label 'PER'; this model knows: LOC, O")
    assert_fails(
        run(*evaluate, ner, "dev.conll", "--out", "x.json"),
        "of tagging must end in .jsonl, .conll, .tsv; found '.json'",
    )
    assert_fails(run(*evaluate, ner, "dev.conll", "--out", "new/x.json"), "new/x.json: the file name for predictions")
    assert_fails(run(*evaluate, ner, "dev.conll", "--out", "some.bin/x.tsv"), "some.bin is a file")
    assert not (here / "new").exists()
    assert_fails(run(*evaluate, ner, "dev.conll", "--out", "dev.conll"), "dev.conll is one of the inputs")
    assert_fails(run(*predict, ner, "empty.conll"), "found an empty file")
    assert_fails(run(*predict, ner, "--text", " "), "--text:1: expected words in the text")
    assert_fails(run(*predict, ner, "--question", "who", "--passage", "I"), "a model for tagging needs --text or FILE")
    assert_fails(run(*predict, ner), "expected either FILE, --text", code=2)
    assert_fails(run(*predict, ner, "corpus.txt", "--text", "x"), "found FILE, --text", code=2)
    (here / "mixed.conll").write_text("Ann B-PER\nLondon B-LOC\n\n")
    message = run(*evaluate, ner, "mixed.conll", "--no-cache")
    assert message.code == 0
    assert "mixed.conll:1: 1 of " in message.err
    assert " labels were not seen in training and are never predicted" in message.err
    assert train(run, "tagging", "train.conll", "--dev", "dev.conll", out="own.safetensors").code == 0
    (here / "model").rename(here / "moved")
    moved = run(*predict, "own.safetensors", "--text", "Bank")
    assert_fails(moved, "model: no such folder", "; use --model to pass the biLM that")
    assert run(*predict, "own.safetensors", "--text", "Bank", "--model", "moved").code == 0


def test_a_missing_bilm_is_reported_for_any_name(run: Run, data: Path) -> None:
    """The message about the biLM starts with the name of the task model."""
    own, bilm = data / "own.safetensors", data / "own.safetensors.bilm"
    (data / "model").rename(bilm)
    found = run("task", "train", "tagging", "train.conll", "--out", own, "--model", bilm, *FAST)
    assert found.code == 0
    bilm.rename(data / "moved")
    lost = run("task", "predict", own, "--text", "Bank")
    assert_fails(lost, "own.safetensors.bilm: no such folder", "; use --model to pass the biLM that")
    own.write_bytes(own.read_bytes()[:-9])  # it is the file itself now
    damaged = run("task", "predict", own, "--text", "Bank")
    assert_fails(damaged, "own.safetensors is not a task model, or is damaged")
    assert "--model" not in damaged.err


def test_layers_are_cached_in_the_chosen_folder(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("task", "train", "tagging", "train.conll", "-m", "model", "--epochs", "1", "--hidden", "4")
    assert run(*command, "--out", "a.safetensors", "--cache", "here").code == 0
    assert list(data.glob("here/elmo-*/*.block"))
    monkeypatch.setenv("ELMO_CACHE", str(data / "there"))
    outcome = run(*command, "--out", "b.safetensors")
    assert f"computing the layers of 5 of 5 sentences, which are not in the cache {data / 'there'}" in outcome.err
    assert list(data.glob("there/elmo-*/*.block"))
    monkeypatch.delenv("ELMO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(data / "home"))
    assert run("task", "evaluate", "b.safetensors", "dev.conll").code == 0
    assert list(data.glob("home/elmo/layers/elmo-*/*.block"))


def test_static_vectors_and_characters_need_no_bilm(run: Run, data: Path) -> None:
    arguments = ("--elmo", "none", "--vectors", "v", "--characters", "4", "--picture", "mix.png")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outcome = run("task", "train", "tagging", "train.conll", "--out", "x.safetensors", *FAST, *arguments)
    assert outcome.code == 0, outcome.err
    kept = "keeping these and those of the first 200,000 words of the file"
    assert f"v: found vectors for 6 of 6 words; {kept}" in outcome.err
    assert "cannot draw mix.png: a model without ELMo has no layer weights" in outcome.err
    assert run("task", "predict", "x.safetensors", "--text", "Bank").code == 0


def test_words_beyond_the_limit_have_no_static_vector_and_are_counted(run: Run, data: Path) -> None:
    words = sorted({word for path in ("train.conll", "dev.conll") for word, _ in rows_of(data / path)})
    lines = [f"{word} 1 2\n" for word in ("the", "rare", *words)]
    (data / "many").write_text("".join(lines), encoding="utf-8")
    (data / "new.conll").write_text("rare O\nthe O\nunseen O\n\n")
    for limit, n in (("1", 1), ("2", 2)):
        arguments = ("--elmo", "none", "--vectors", "many", "--vector-words", limit, "--out", f"{limit}.safetensors")
        outcome = run("task", "train", "tagging", "train.conll", "--dev", "dev.conll", *FAST, *arguments)
        assert outcome.code == 0, outcome.err
        assert f"those of the first {limit} words of the file" in outcome.err
        measured = run("task", "evaluate", f"{limit}.safetensors", "new.conll")
        assert f"the model has static vectors for {n} of 3 words (--vector-words keeps more" in measured.err
    arguments = ("--elmo", "none", "--random-vectors", "3", "--out", "random.safetensors")
    assert run("task", "train", "tagging", "train.conll", "--dev", "dev.conll", *FAST, *arguments).code == 0
    measured = run("task", "evaluate", "random.safetensors", "new.conll")
    assert measured.err.endswith(" of 3 words\n")  # --vector-words has no effect on these


def rows_of(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def test_a_model_remembers_how_its_examples_were_read(run: Run, data: Path) -> None:
    rows = "".join(f"{text}\tx\t{label}\n" for label, text in (row.split("\t") for row in TEXTS))
    (data / "odd.tsv").write_text(rows)
    options = ("--column", "2", "--text-column", "0", "--tokenizer", "whitespace")
    outcome = train(run, "classification", "odd.tsv", "--dev", "odd.tsv", *options, out="c.safetensors")
    assert outcome.code == 0, outcome.err
    assert run("task", "evaluate", "c.safetensors", "odd.tsv", "--no-cache").code == 0
    shown = run("task", "predict", "c.safetensors", "--text", "it's fine.", "--json")
    assert json.loads(shown.out)["words"] == ["it's", "fine."]


@pytest.mark.slow
def test_folders_of_an_output_are_created(run: Run, ner: Path) -> None:
    here = ner.parent
    assert train(run, "tagging", "train.conll", out="new/models/ner.safetensors").code == 0
    for command, file, out in (
        ("evaluate", "dev.conll", "new/a/dev.jsonl"),
        ("predict", "corpus.txt", "new/b/c.conll"),
    ):
        outcome = run("task", command, "new/models/ner.safetensors", file, "--out", out)
        assert outcome.code == 0, outcome.err
        assert (here / out).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("command", [(), ("train",), ("evaluate",), ("predict",)])
def test_every_example_of_the_help_runs(
    run: Run, ner: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("ELMO_CACHE", str(ner.parent / "cache"))
    monkeypatch.setenv("ELMO_MODEL", "model")  # a tiny one in the place of the bundled
    shown = run("task", *command, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert max(map(len, shown.out.splitlines())) <= 80
    lines = examples(shown.out)
    assert len(lines) >= 2
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    assert train_translator(run).code == 0
    for line in lines:
        words = shlex.split(line)
        assert len(line) <= 78, line
        short = ["--epochs", "1", "--hidden", "4"] if "train" in words else []
        outcome = run(*words[1:], *short)
        assert outcome.code == 0, (line, outcome.err)
        if "--out" in words:
            assert (ner.parent / words[words.index("--out") + 1]).exists(), line


PAIRS = """sentence1\tsentence2\tlabel\tscore
the river\ta bank\tno\t1
fine\tfine .\tyes\t5
a bank\tBank\tyes\t4
"""
PASSAGE = "The Bank lends. London lends."
QUESTIONS = [
    {"id": k, "question": f"{k} lends?", "answers": [{"text": text, "answer_start": at}]}
    for k, text, at in (("Who", "The Bank", 0), ("What", "London", 16))
]
SQUAD = {"data": [{"paragraphs": [{"context": PASSAGE, "qas": QUESTIONS}]}]}
DOCUMENT = tuple(
    f"d\t0\t{k}\t{word}\t-\t-\t-\t-\t-\t-\t-\t{mark}\n"
    for k, (word, mark) in enumerate([("Ann", "(0)"), ("lends", "-"), ("her", "(0)"), ("money", "-")])
)
COREFERENCE = "#begin document (d); part 000\n" + "".join(DOCUMENT) + "\n#end document\n"


@pytest.mark.parametrize(
    ("kind", "score", "written", "asked", "said"),
    [
        ("entailment", "accuracy", "p.tsv", ("--text", "a", "--text", "b c"), r"(yes|no) +[\d.]+%  a \| b c\n"),
        ("similarity", "pearson", "p.tsv", ("--text", "a", "--text", "b c"), r"[1-5]\.\d\d  a \| b c\n"),
        (
            "answers",
            "exact match",
            "p.json",
            ("--question", "Who?", "--passage", PASSAGE),
            r"Who \?\n(  +[\d.]+%  .+\n)+",
        ),
        ("coreference", "conll", "p.conll", ("--text", "Ann lends. She is kind."), r"text 1: \d+ clusters\n(?s:.*)"),
    ],
)
def test_every_other_kind_is_trained_evaluated_and_used(
    run: Run, here: Path, kind: str, score: str, written: str, asked: tuple[str, ...], said: str
) -> None:
    files = {
        "entailment": ("x.tsv", PAIRS),
        "similarity": ("x.tsv", PAIRS),
        "answers": ("x.json", json.dumps(SQUAD)),
        "coreference": ("x.conll", COREFERENCE),
    }
    name, text = files[kind]
    (here / name).write_text(text)
    outcome = train(run, kind, name, "--dev", name, out="x.safetensors")
    assert outcome.code == 0, outcome.err
    measured = run("task", "evaluate", "x.safetensors", name, "--no-cache", "--out", written)
    assert measured.code == 0, measured.err
    assert re.search(rf"(?m)^{score} +-?\d+\.\d\d%$", measured.out)
    assert (here / written).stat().st_size
    if kind == "similarity":
        assert re.search(r"(?m)^mean squared error +\d+\.\d{4}$", measured.out)
    shown = run("task", "predict", "x.safetensors", *asked)
    assert re.fullmatch(said, shown.out), shown


def test_settings_reach_the_head_the_features_and_the_training(run: Run, data: Path) -> None:
    command = ("task", "train", "classification", "texts.tsv", "--out", "m.safetensors", "--model", "model")
    more = ("head.network=linear", "head.use_max=true", "words.elmo=output", "words.characters=3", "fit.epochs=1")
    found = run(*command, "--no-cache", *(part for one in more for part in ("--set", one)))
    assert found.code == 0, found.err
    model = TaskModel.load(data / "m.safetensors")
    assert model.task.options == ClassificationOptions(network="linear", use_max=True)
    assert (model.store.features.elmo, model.store.features.characters) == ("output", 3)
    assert len(model.epochs) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--set head.width=3", "--set: [head] has no option 'width'; it has: hidden_width, n_layers, dropout, has_crf"),
        ("--set head.n_layers=0", "option n_layers must be an integer from 1 to 64; found 0"),
        ("--set fit.decay=2", "decay must be a number above 0 and at most 1; found 2"),
        ("--set words.dropout=x", "--set: [words] dropout must be a number; found 'x'"),
        ("--set epochs=3", "--set: each setting must be TABLE.NAME=VALUE, with one of the tables head, fit, words"),
        ("--set fit.epochs=3", "--set: fit.epochs and --epochs set the same option; use one of them"),
        (
            "--set head.dropout=0 --dropout 0.1",
            "--set: head.dropout and --dropout set the same option; use one of them",
        ),
        ("--set words.dropout=0 --elmo-dropout 0.1", "words.dropout and --elmo-dropout set the same option"),
        ("--set words.layer_norm=true --elmo none", "cannot use layer_norm: elmo is 'none'"),
    ],
)
def test_invalid_settings_are_one_line(run: Run, data: Path, arguments: str, message: str) -> None:
    assert_fails(train(run, "tagging", "train.conll", *arguments.split()), message)
    assert not list(data.glob("*.safetensors*"))


LM_STEP = "step 2 of"


def test_a_tuned_model_needs_no_other_bilm(run: Run, data: Path) -> None:
    outcome = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--tune-bilm")
    assert outcome.code == 0, outcome.err
    before = run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json")
    (data / "model").rename(data / "moved")
    assert run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json") == before
    given = run("task", "predict", "ner.safetensors", "--text", "The Bank", "--json", "-m", "moved")
    assert given.out == before.out
    assert "ner.safetensors contains a biLM; ignoring the biLM that was passed" in given.err


@pytest.mark.slow
def test_a_stopped_adaptation_resumes_to_the_same_model(run: Run, data: Path) -> None:
    more = ("--dev", "dev.conll", "--adapt", "4")
    whole = train(run, "tagging", "train.conll", *more, out="whole.safetensors")
    assert whole.code == 0, whole.err
    lines = whole.err.splitlines()
    assert lines[0] == ("elmo: adapting the biLM to the training text: 5 sentences, 23 tokens, 4 epochs")
    assert any(line.startswith(f"elmo: {LM_STEP}") and "held-out perplexity" in line for line in lines)
    with interrupted(LM_STEP):
        stopped = train(run, "tagging", "train.conll", *more)
    assert stopped.code == 130
    other = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--adapt", "2")
    assert other.code == 1
    assert "was started with other data or options" in other.err
    again = train(run, "tagging", "train.conll", *more)
    assert again.code == 0, again.err
    assert not any("step 1 of" in line for line in again.err.splitlines())
    assert (data / "whole.safetensors").read_bytes() == (data / "ner.safetensors").read_bytes()
    assert sorted(path.name for path in data.glob("*ner*")) == ["ner.safetensors"]
    shutil.rmtree(data / "model")
    asked = run("task", "evaluate", "ner.safetensors", "dev.conll", "--no-cache", "--json")
    assert json.loads(asked.out)["scores"]["f1"] == max(
        epoch.scores["f1"] for epoch in TaskModel.load(data / "ner.safetensors").epochs
    )


def test_adaptation_errors_are_one_line(run: Run, data: Path) -> None:
    from elmo.formats import native
    from tests.formats.tiny import tiny_model

    native.write(tiny_model(), data / "bare")
    command = ("task", "train", "tagging", "train.conll", "--dev", "dev.conll", "--out", "x.safetensors")
    assert_fails(run(*command, "-m", "bare", "--adapt", "1"), "no softmax and no vocabulary", "elmo train TEXT --from")
    assert_fails(run(*command, "-m", "model", "--adapt", "-1"), "must be a number of epochs above 0; found -1")
    assert not list(data.glob("x.safetensors*"))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".conll"])
def test_a_corpus_predicted_in_chunks_gives_the_same_bytes(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    assert train(run, "tagging", "train.conll", "--dev", "dev.conll").code == 0
    (data / "long.txt").write_text("".join(f"{one}\n" for one in SENTENCES * 5))
    model = TaskModel.load(data / "ner.safetensors")
    examples = read_examples("tagging", ["long.txt"], is_labeled=False).examples
    write_predictions(data / f"whole{suffix}", "tagging", zip(examples, model.predict(examples), strict=True))
    monkeypatch.setattr(task_model, "CHUNK_EXAMPLES", 2)
    command = ("task", "predict", "ner.safetensors", "long.txt", "--out", f"p{suffix}")
    found = run(*command, "--json")
    assert found.code == 0, found.err
    assert (data / f"p{suffix}").read_bytes() == (data / f"whole{suffix}").read_bytes()
    assert len(found.out.splitlines()) == len(examples)
    assert found.out == run(*command[:-2], "--json").out
    # an error far below leaves what was there before
    before = (data / f"p{suffix}").read_bytes()
    with (data / "long.txt").open("ab") as file:
        file.write(b"\xff\n")
    assert_fails(run(*command), "long.txt:26", "UTF-8")
    assert (data / f"p{suffix}").read_bytes() == before
    assert not list(data.glob(".p*"))


def assert_last_line(outcome: Outcome, line: str) -> None:
    """Check the last line: transformers prints progress bars before it."""
    assert outcome.code == 1
    assert re.fullmatch(line, outcome.err.splitlines()[-1]), outcome.err


@pytest.mark.slow
def test_another_encoder_is_loaded_by_name_and_checked(run: Run, data: Path) -> None:
    from tests.tasks.features.test_transformers import make_bert

    make_bert(data / "bert", seed=1)
    outcome = train(run, "tagging", "train.conll", "--dev", "dev.conll", "--also", "bert")
    assert outcome.code == 0, outcome.err
    ask = ("task", "predict", "ner.safetensors", "--text", "The Bank", "--json")
    found = run(*ask)
    assert found.code == 0, found.err
    (data / "bert").rename(data / "moved")
    message = r"elmo: ner\.safetensors: cannot load an encoder that the model was trained with: .*bert.*; use --also .*"
    assert_last_line(run(*ask), message)
    assert run(*ask, "--also", "moved").out == found.out
    twice = run(*ask, "--also", "moved", "--also", "moved")
    assert_last_line(twice, r"elmo: ner\.safetensors: number of encoders must be 1, as in training .*; found 2")
    make_bert(data / "bert", seed=2)
    assert_last_line(
        run(*ask), r"elmo: ner\.safetensors: encoder must be .*, as in training; found .* with the hash .*"
    )
