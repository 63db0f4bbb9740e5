"""Embed text with a peer system, driven by JSON lines on standard input.

usage: worker.py allennlp|allennlp_transformer|simple_elmo PEERS MODEL     (with the Python of that peer)

PEERS is the folder of setup.sh, MODEL a folder with options.json and weights.hdf5, or with config.json and weights.th.
Commands and answers:

    {"op": "throughput", "file": F, "batch": 32, "sort": true}    tokens, seconds
    {"op": "latency", "sentence": [...], "repeat": 9}             median seconds
    {"op": "vectors", "file": F, "out": X.npz}                    all layers of every line, from a zero state;
                                                                  the first command, at most 64 lines
    {"op": "memory"}                                              peak resident megabytes

The first answer is {"import": seconds, "load": seconds}. Files have one tokenized sentence per line.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import logging
import os
import resource
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

if TYPE_CHECKING:
    import numpy as np

Embed = Callable[[Sequence[Sequence[str]], int], "list[np.ndarray]"]
THREADS = 2
MAX_LINES = 64
# Modules that AllenNLP imports but ELMo never uses
UNUSED = {
    "nltk", "spacy", "pytorch_pretrained_bert", "pytorch_transformers", "boto3", "botocore", "jsonnet",
    "_jsonnet", "tensorboardX", "sklearn", "scipy", "conllu", "ftfy", "unidecode", "jsonpickle", "matplotlib",
    "sqlparse", "word2number", "numpydoc", "responses", "editdistance", "parsimonious", "flaky", "pytest",
    "flask", "flask_cors", "gevent", "pytz",
}  # fmt: skip


class StubModule(types.ModuleType):
    """A module whose every attribute exists: a class for capitalized names, else a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        stub = type(name, (), {"__init__": lambda *_, **__: None})
        value = MagicMock(name=name) if name[:1].islower() else stub
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a stub for every unused module that is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = StubModule(spec.name)
        module.__path__, module.__file__ = [], "stub"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_allennlp(peers: Path) -> None:
    """Make AllenNLP 0.9 importable without the packages that ELMo does not need."""
    import torch

    torch.set_num_threads(THREADS)
    sys.meta_path.append(StubFinder())
    overrides = types.ModuleType("overrides")
    overrides.overrides = lambda method: method
    sys.modules["overrides"] = overrides
    source = peers / "allennlp-src"
    sys.path.insert(0, str(source))
    commands = types.ModuleType("allennlp.commands")  # its __init__ would import every command
    commands.__path__ = [str(source / "allennlp/commands")]
    import allennlp

    sys.modules["allennlp.commands"] = commands
    assert allennlp


def load_allennlp(peers: Path, model: Path) -> tuple[Embed, float]:
    """Load a model with AllenNLP 0.9; return its embed function and the time at which imports ended."""
    import_allennlp(peers)
    import allennlp.modules.elmo
    import allennlp.modules.elmo_lstm
    from allennlp.commands.elmo import ElmoEmbedder

    allennlp.modules.elmo.cached_path = allennlp.modules.elmo_lstm.cached_path = lambda path, *_, **__: path
    imported = time.perf_counter()
    embedder = ElmoEmbedder(str(model / "options.json"), str(model / "weights.hdf5"))
    return lambda sentences, batch: list(embedder.embed_sentences(sentences, batch)), imported


def load_allennlp_transformer(peers: Path, model: Path) -> tuple[Embed, float]:
    """Load a transformer with the modules of AllenNLP 0.9, put together as its ``LanguageModel`` does."""
    import_allennlp(peers)
    import torch
    from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
    from allennlp.modules.seq2seq_encoders.bidirectional_language_model_transformer import (
        BidirectionalLanguageModelTransformer,
    )
    from allennlp.modules.seq2vec_encoders.cnn_highway_encoder import CnnHighwayEncoder
    from allennlp.modules.token_embedders import Embedding, TokenCharactersEncoder
    from allennlp.nn.util import remove_sentence_boundaries

    imported = time.perf_counter()
    options = json.loads((model / "config.json").read_text())["model"]
    (embedder,) = options["text_field_embedder"]["token_embedders"].values()
    sizes = {key: value for key, value in embedder["encoder"].items() if key != "type"}
    characters = TokenCharactersEncoder(Embedding(**embedder["embedding"]), CnnHighwayEncoder(**sizes))
    sizes = {key: value for key, value in options["contextualizer"].items() if key != "type"}
    transformer = BidirectionalLanguageModelTransformer(**sizes, return_all_layers=True)
    weights = torch.load(model / "weights.th")
    for module, prefix in (
        (characters, "_text_field_embedder.token_embedder_token_characters."),
        (transformer, "_contextualizer."),
    ):
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        module.load_state_dict(own)
        module.eval()
    mapper = ELMoCharacterMapper()

    @torch.no_grad()
    def embed_batch(sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        ids = [[mapper.convert_word_to_char_ids(word) for word in ("<S>", *words, "</S>")] for words in sentences]
        longest = max(map(len, ids))
        padded = torch.tensor([row + [[0] * 50] * (longest - len(row)) for row in ids])
        mask = (padded > 0).any(dim=2).long()
        tokens = characters(padded)
        layers = [torch.cat([tokens, tokens], dim=2), *transformer(tokens, mask)]
        states = torch.stack([remove_sentence_boundaries(layer, mask)[0] for layer in layers], dim=1).numpy()
        return [states[k, :, : len(words)] for k, words in enumerate(sentences)]

    def embed(sentences: Sequence[Sequence[str]], batch: int) -> list[np.ndarray]:
        groups = [sentences[first : first + batch] for first in range(0, len(sentences), batch)]
        return [vectors for group in groups for vectors in embed_batch(group)]

    return embed, imported


def load_simple_elmo(peers: Path, model: Path) -> tuple[Embed, float]:
    """Load a model with simple_elmo; return its embed function and the time at which imports ended."""
    del peers
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    from simple_elmo import ElmoModel, elmo_helpers

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    imported = time.perf_counter()
    elmo = ElmoModel()
    elmo.logger.setLevel(logging.ERROR)
    elmo.load(str(model), max_batch_size=128)
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS)
    session = tf.compat.v1.Session(config=config)  # by default it creates a session for each call
    elmo.elmo_sentence_input = elmo_helpers.weight_layers("input", elmo.sentence_embeddings_op, use_layers="all")
    session.run(tf.compat.v1.global_variables_initializer())

    def embed(sentences: Sequence[Sequence[str]], batch: int) -> list[np.ndarray]:
        elmo.batch_size = batch
        vectors = elmo.get_elmo_vectors(sentences, warmup=False, layers="all", session=session)
        return [vectors[i, :, : len(sentence)] for i, sentence in enumerate(sentences)]

    return embed, imported


class Worker:
    """Executes commands with one embed function."""

    def __init__(self, embed: Embed) -> None:
        self.embed = embed
        self.has_run = False

    def throughput(self, command: dict[str, Any]) -> dict[str, Any]:
        self._run_once()
        sentences = read_sentences(command["file"])
        begin = time.perf_counter()
        if command.get("sort"):  # as a careful user of a system with padding does
            sentences.sort(key=len, reverse=True)
        self.embed(sentences, command["batch"])
        return {"tokens": sum(map(len, sentences)), "seconds": time.perf_counter() - begin}

    def latency(self, command: dict[str, Any]) -> dict[str, Any]:
        self._run_once()
        times = []
        for _ in range(command.get("repeat", 9)):
            begin = time.perf_counter()
            self.embed([command["sentence"]], 1)
            times.append(time.perf_counter() - begin)
        return {"seconds": statistics.median(times)}

    def vectors(self, command: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        sentences = read_sentences(command["file"])
        if self.has_run or len(sentences) > MAX_LINES:  # both peers carry their state from call to call
            sys.exit(f"vectors must be the first command, with at most {MAX_LINES} lines")
        self.has_run = True
        np.savez(command["out"], *map(np.asarray, self.embed(sentences, MAX_LINES)))
        return {"written": command["out"]}

    def memory(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    def _run_once(self) -> None:
        """Exclude the cost of the first call from all measurements."""
        if not self.has_run:
            self.embed([["warm", "up", "."]], 1)
            self.has_run = True


def read_sentences(path: str) -> list[list[str]]:
    """Read one tokenized sentence per line."""
    with Path(path).open(encoding="utf-8") as file:
        return [line.split() for line in file if line.strip()]


def main() -> None:
    """Load the model, then answer one command per line."""
    started = time.perf_counter()
    loaders = {
        "allennlp": load_allennlp,
        "allennlp_transformer": load_allennlp_transformer,
        "simple_elmo": load_simple_elmo,
    }
    if len(sys.argv) != 4 or sys.argv[1] not in loaders:
        sys.exit(__doc__)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the peers print to stdout

    def answer(values: dict[str, Any]) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    embed, imported = loaders[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    answer({"import": imported - started, "load": time.perf_counter() - imported})
    worker = Worker(embed)
    operations = {
        "throughput": worker.throughput,
        "latency": worker.latency,
        "vectors": worker.vectors,
        "memory": worker.memory,
    }
    for line in sys.stdin:
        command = json.loads(line)
        answer(operations[command["op"]](command))


if __name__ == "__main__":
    main()
