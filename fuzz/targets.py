"""The readers, as data: what is read, and which inputs are mutated.

Each target has a function that writes example inputs (``python -m fuzz --write-corpora`` keeps them in ``corpora/``)
and a function that prepares a folder and returns the reader of one input. Where a checksum would refuse nearly every
mutation, the reader gets a correct checksum, as a hostile author would write it.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import math
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.formats import hostile_pickles, many_langs_folder, write_allennlp, write_bilm, write_bundle, write_published
from tests.formats.test_allennlp import sound_model
from tests.formats.tiny import tiny_model
from tests.lexicon.test_wordnet import SENSES, write_wordnet

from elmo.formats import native, pretrained
from elmo.formats.alignment import Alignment, alignment_shapes
from elmo.formats.similarity import LEVELS, SimilarityStatistics
from elmo.lexicon.wordnet import WordNet, key_pos
from elmo.storage.files import CHECKSUMS_NAME, format_checksums
from fuzz.watch import ERRORS

Read = Callable[[bytes], None]
CORPORA = Path(__file__).with_name("corpora")


@dataclass(frozen=True)
class Target:
    """A reader."""

    name: str
    seeds: Callable[[], list[bytes]]  # example inputs
    prepare: Callable[[Path], Read]  # prepare an empty folder and return the reader of an input
    n_short: int = 1500  # inputs of a short run
    accepted: tuple[type[Exception], ...] = ERRORS


# --- whole models: one file of a folder is replaced -----------------------------------------------------


def _write_native(folder: Path) -> None:
    model = tiny_model("both", alphabet="unicode", softmax=True, warm=True, mix=True, metadata={"language": "en"})
    native.write(model, folder)
    (folder / CHECKSUMS_NAME).unlink()


def _write_hdf5(folder: Path) -> None:
    write_published.publish(folder, words=("<S>", "</S>", "<UNK>", "a", "b", "c", "d", "e", "f"))


def _write_tf(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_bilm.write_training_folder(folder, tiny_model(vocab=True))


def _write_many_langs(folder: Path) -> None:
    many_langs_folder.write_folder(folder)


def _write_allennlp(folder: Path) -> None:
    write_allennlp.write_folder(folder, sound_model(has_norm=True))


def _write_hub(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_bilm.write_hub_folder(folder, tiny_model(mix=True))


def _write_aligned(folder: Path) -> None:
    model = tiny_model(softmax=True, warm=True)
    shapes = alignment_shapes(model.config)
    alignment = Alignment(torch.ones(shapes["layers"]), torch.ones(shapes["sense"]), ("0" * 64,))
    levels = tuple(k / 1000 for k in range(len(LEVELS)))
    similarity = SimilarityStatistics(levels, {"bank": levels})
    native.write(replace(model, alignment=alignment, similarity=similarity), folder)
    (folder / CHECKSUMS_NAME).unlink()


def folder_target(
    name: str, write: Callable[[Path], None], file: str, read_folder: Callable[[Path], Any], n_short: int = 250,
    mend: Callable[[Path], None] = lambda folder: None,
) -> Target:  # fmt: skip
    """Return a target that reads a folder in which one file is mutated."""

    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory(prefix="elmo-") as scratch:
            write(Path(scratch) / "model")
            return [(Path(scratch) / "model" / file).read_bytes()]

    def prepare(folder: Path) -> Read:
        shutil.rmtree(folder / "model", ignore_errors=True)
        write(folder / "model")
        path = folder / "model" / file

        def read(data: bytes) -> None:
            path.write_bytes(data)
            mend(folder / "model")
            read_folder(folder / "model")

        return read

    return Target(name, seeds, prepare, n_short)


def _load_model(folder: Path) -> None:
    model = pretrained.load(folder)
    weights = list(model.weights.values())
    if model.softmax is not None:  # read on first use
        weights += [model.softmax.weight, model.softmax.bias]
    if model.warm is not None:
        weights += [model.warm.hidden, model.warm.cell]
    if model.alignment is not None:
        weights += model.alignment.tensors().values()
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise AssertionError("loaded values that are not finite")


def model_target(name: str, write: Callable[[Path], None], file: str, n_short: int = 250) -> Target:
    """Return a target that loads a whole model in which one file is mutated."""
    return folder_target(name, write, file, _load_model, n_short)


# --- single files ---------------------------------------------------------------------------------------


def file_target(
    name: str, file: str, seeds: Callable[[], list[bytes]], read_file: Callable[[Path], Any], n_short: int = 1500,
    mend: Callable[[bytes], bytes] = lambda data: data,
) -> Target:  # fmt: skip
    """Return a target that reads one file; an iterator is read to its end."""

    def prepare(folder: Path) -> Read:
        path = folder / file

        def read(data: bytes) -> None:
            path.write_bytes(mend(data))
            result = read_file(path)
            if hasattr(result, "__next__"):
                for _ in result:
                    pass

        return read

    return Target(name, seeds, prepare, n_short)


def _texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


def _json(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value, ensure_ascii=False).encode() for value in values]


def _read_hdf5(path: Path) -> None:
    from elmo.formats.containers.hdf5 import Hdf5File

    with Hdf5File(path) as file:
        datasets, todo = [], [""]
        while todo and len(datasets) < 200:
            group = todo.pop()
            for child in file.children(group)[:50]:
                full = f"{group}/{child}" if group else child
                if full.count("/") < 4 and file.children(full):
                    todo.append(full)
                elif (dataset := file.dataset(full)) is not None:
                    datasets.append(dataset)
        file.check_together(datasets)
        for dataset in datasets:
            file.read(dataset)


def _hdf5_seeds() -> list[bytes]:
    import h5py

    found = []
    for options in ({}, {"chunks": (2, 2), "compression": "gzip", "shuffle": True}, {"chunks": (3, 2)}):
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            file.create_dataset("a/b", data=np.arange(12, dtype="f4").reshape(3, 4), **options)
            file.create_dataset("c", data=np.ones((2, 2), dtype="f8"))
        found.append(buffer.getvalue())
    return found


def _safetensors_seeds() -> list[bytes]:
    from safetensors.torch import save

    values = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}
    kinds = (torch.float32, torch.float16)
    return [save({name: value.to(kind) for name, value in values.items()}, {"format": "pt"}) for kind in kinds]


def _read_safetensors(path: Path) -> None:
    from elmo.storage import tensors

    tensors.read(path, {"a": (2, 3), "b": (4,)}, is_mapped=False)


def _tf_entries() -> list[tuple[bytes, bytes]]:
    """Return the entries of a bundle whose data is 64 zero bytes: a tensor, a partitioned one, and the header."""

    def entry(shape: tuple[int, ...], offset: int) -> bytes:
        size = 4 * math.prod(shape)
        crc = write_bundle.mask_crc(write_bundle.crc32c(bytes(size)))
        return write_bundle.entry("float32", shape, shard=0, offset=offset, size=size, crc=crc)

    boxes = [((0, 2), (0, None)), ((2, 2), (0, None))]
    pairs = [(b"", write_bundle.header()), (b"a", entry((2, 2), 0)), (b"b/Adagrad", entry((3,), 16))]
    pairs += [(b"c", write_bundle.entry("float32", (4, 2), slices=boxes))]
    return pairs + sorted((write_bundle.slice_key("c", box), entry((2, 2), 28 + 16 * k)) for k, box in enumerate(boxes))


def _tf_index_seeds() -> list[bytes]:
    entries = sorted(_tf_entries())
    return [write_bundle.table(entries), write_bundle.table(entries, snappy=True), write_bundle.table(entries[:2])]


def _tf_block_seeds() -> list[bytes]:
    entries = sorted(_tf_entries())
    return [write_bundle.block(entries), write_bundle.block(entries, restart_every=1), write_bundle.block(entries[:3])]


def _wrap_block(data: bytes) -> bytes:
    """Return a table with one block and correct checksums."""
    stored = write_bundle.stored(data)
    index = write_bundle.block([(b"z", write_bundle.varint(0) + write_bundle.varint(len(data)))], restart_every=1)
    return write_bundle.with_footer(stored, index)


def _wrap_snappy(data: bytes) -> bytes:
    """Return a table with one compressed block and correct checksums."""
    stored = write_bundle.stored(data, compression=1)
    index = write_bundle.block([(b"z", write_bundle.varint(0) + write_bundle.varint(len(data)))], restart_every=1)
    return write_bundle.with_footer(stored, index)


def _read_bundle(path: Path) -> None:
    from elmo.formats.containers.tf_checkpoint import read_index

    data = path.with_name("x.data-00000-of-00001")
    if not data.exists():
        data.write_bytes(bytes(64))
    bundle = read_index(path.parent, "x")
    for name in bundle.names[:20]:
        bundle.read(name)


def _state_dict_seeds() -> list[bytes]:
    found = []
    for is_zipped in (False, True):
        buffer = io.BytesIO()
        values = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float64)}
        torch.save(values, buffer, _use_new_zipfile_serialization=is_zipped)
        found.append(buffer.getvalue())
    return found


def _read_state_dict(path: Path) -> None:
    from elmo.formats.containers.state_dict import open_state_dict

    values = open_state_dict(path)
    for name in list(values.shapes)[:50]:
        values.read(name)


def _pickle_seeds() -> list[bytes]:
    values = {"a": [1, 2.5, None, True, "x", (1, 2)], "b": {"c": -(10**20)}}
    found = [pickle.dumps(values, protocol) for protocol in range(5)]
    found += [hostile_pickles.state_dict(a=hostile_pickles.tensor()), *hostile_pickles.payloads(Path("/x")).values()]
    return [data for data in found if len(data) < 5000]


def _pickle_target() -> Target:
    from elmo.formats.containers.state_dict import read_pickle

    def read(data: bytes) -> None:
        read_pickle(data, 0, subject="data.pkl")

    return Target("pickle", _pickle_seeds, lambda folder: read, 4000)


def _zip_seeds() -> list[bytes]:
    found = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("model/config.json", "{}")
            archive.writestr("model/vocab.txt", "a\nb\n" * 20)
        found.append(buffer.getvalue())
    return found


def _tar_seeds() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz"):
        for kind in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode=mode, format=kind) as archive:
                for name, data in (("m/config.json", b"{}"), ("m/" + "x" * 120 + "/vocab.txt", b"a\n")):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
            found.append(buffer.getvalue().rstrip(b"\0") + bytes(1024) if mode == "w" else buffer.getvalue())
    return found


def _unpack(path: Path) -> None:
    from elmo.formats.archive import unpacked

    with unpacked(path):
        pass


def _matrix_seeds() -> list[bytes]:
    values = np.arange(9, dtype="<f4").reshape(3, 3)
    found = []
    for value in (torch.from_numpy(values), values, np.asfortranarray(values.astype("<f8"))):
        for is_zipped in (False, True):
            buffer = io.BytesIO()
            torch.save(value, buffer, _use_new_zipfile_serialization=is_zipped)
            found.append(buffer.getvalue())
    return found


def _read_matrix(path: Path) -> None:
    from elmo.formats.containers.torch_matrix import read_matrix

    read_matrix(path)


def _read_options(path: Path) -> Any:
    from elmo.formats.bilm_layout import read_options

    return read_options(path).config(n_words=9)


# --- text and data of tasks -----------------------------------------------------------------------------

CONLL = "-DOCSTART- -X- O O\n\nThe DT B-NP O\nBank NN I-NP B-ORG\n. . O O\n\nLondon NNP B-NP S-LOC\n"
CONLLU = (
    "# text = The banks\n1\tThe\tthe\tDET\tDT\tDefinite=Def\t2\tdet\t_\t_\n"
    "2-3\tbanksare\t_\t_\t_\t_\t_\t_\t_\t_\n2\tbanks\tbank\tNOUN\tNNS\tNumber=Plur\t0\troot\t_\t_\n"
    "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
)
COREFERENCE = (
    "#begin document (d); part 000\n" + "d 0 0 The DT - - - - s1 * (1\nd 0 1 bank NN - - - - s1 * 1)\n"
    "d 0 2 it PRP - - - - s1 * (1)\n\n" + "#end document\n"
)
ROLES = "They\tP\tthey\t-\t(ARG0*)\nlent\tV\tlend\tlend.01\t(V*)\nmoney\tN\tmoney\t-\t(ARG1*)\n.\t.\t.\t-\t*\n\n"
SQUAD = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{
    "context": "In 1919, Egypt's movement began. It ended in 1922.",
    "qas": [{"id": "1", "question": "When?", "answers": [{"text": "1919", "answer_start": 3}]},
            {"id": "2", "question": "Who?", "is_impossible": True, "answers": []}]}]}]}  # fmt: skip
XML = (
    '<?xml version="1.0"?><corpus lang="en"><text id="d0"><sentence id="s0"><wf lemma="the" pos="DET">The</wf>'
    '<instance id="t0" lemma="bank" pos="NOUN">bank</instance></sentence></text></corpus>'
)
SEMCOR = {
    "doc": "d",
    "s": "0",
    "toks": [{"w": "The"}, {"w": "bank", "pos": "NN", "lemma": "bank", "sk": ["bank%1:14:00::"]}],
}
PLAN = (
    '[defaults]\nseeds = 2\n[defaults.fit]\nepochs = 2\n[ner]\nkind = "tagging"\ntrain = "a.conll"\ndev = "b.conll"\n'
)
TABLE = 'label\ttext\ngood\tthe river is fine\nbad\t"a broke bank"\n'
PAIRS = "gold_label\tsentence1\tsentence2\nneutral\tA man .\tA dog .\nentailment\tx y\tz\n"
PARALLEL_JSON = (
    '{"source": "the river", "target": "der Fluss"}\n{"source": ["a", "b"], "target": "c", "id": 7}\n'
    '{"source": "", "target": "x"}\n'
)
MINIMAL_JSON = '{"sentence_good": "They see themselves.", "sentence_bad": "They see itself.", "UID": "anaphor"}\n'
MINIMAL_TSV = "sentence_good\tsentence_bad\tphenomenon\nA b.\tA c.\tx\n"
USES = "lemma\tgrouping\tcontext_tokenized\tindexes_target_token_tokenized\tidentifier\nbank_nn\t1\tthe bank .\t1\tu1\n"
GLOVE = "3 2\nthe 0.5 1.0\nbank -1e-3 0.25\n河岸 0.1 7\n"
_STEP = {"n_steps": 20, "n_tokens": 640, "epoch": 0}
_STEPS = ({"step": 10, "loss": 8.5}, {"step": 20, "heldout_forward": 50.0})
LOG = "".join(json.dumps({**_STEP, **step}) + "\n" for step in _STEPS)


def _word2vec_seeds() -> list[bytes]:
    rows = [word.encode() + b" " + np.array([0.5, -1.0], "<f4").tobytes() for word in ("the", "河岸")]
    return [b"2 2\n" + b"".join(rows), b"2 2\n" + b"\n".join(rows)]


def _tagged(path: Path) -> Any:
    from elmo.tasks.data.tagging import read_tagged

    return read_tagged([str(path)])


def _squad(path: Path) -> Any:
    from elmo.tasks.data.squad import read_squad

    return read_squad([str(path)])


def _coreference(path: Path) -> Any:
    from elmo.tasks.data.coreference import read_coreference

    return read_coreference([str(path)])


def _parallel(path: Path) -> Any:
    from elmo.tasks.data.parallel import read_parallel

    return list(read_parallel([str(path), str(path)], file_format="lines"))


def _parallel_table(path: Path) -> Any:
    from elmo.tasks.data.parallel import read_parallel

    return list(read_parallel([str(path)]))


def _roles(path: Path) -> Any:
    from elmo.tasks.data.roles import read_roles

    return read_roles([str(path)])


def _table(path: Path) -> Any:
    from elmo.tasks.data.texts import read_texts

    return read_texts([str(path)])


def _pairs(path: Path) -> Any:
    from elmo.tasks.data.texts import read_pairs

    return read_pairs([str(path)])


def _static(path: Path) -> Any:
    from elmo.tasks.features.static import read_static

    return read_static(path)


def _senses(path: Path) -> Any:
    from elmo.lexicon.sense_corpora import read_sense_corpus

    return read_sense_corpus(path)


def _sense_xml(path: Path) -> Any:
    from elmo.lexicon.sense_corpora import read_sense_corpus

    gold = path.with_name("gold.txt")
    gold.write_text("t0 bank%1:14:00::\n")
    return read_sense_corpus(path, gold=gold)


def _gold(path: Path) -> Any:
    from elmo.lexicon.sense_corpora import read_gold

    return read_gold(path)


def _plan(path: Path) -> Any:
    from elmo.evidence.plan import read_plan

    for name in ("a.conll", "b.conll"):
        path.with_name(name).write_text(CONLL)
    return read_plan(path)


def _minimal_pairs(path: Path) -> Any:
    from elmo.predict import read_minimal_pairs

    return read_minimal_pairs(path)


def _dictionary(path: Path) -> Any:
    from elmo.lexicon.align import read_dictionary

    return read_dictionary(path)


def _uses(path: Path) -> Any:
    from elmo.lexicon.usages import read_uses

    return read_uses(path.parent)


def _labels(path: Path) -> Any:
    from elmo.lexicon.probe import read_labels

    return read_labels(path, "feats:Number" if path.suffix == ".conllu" else "2")


def _vocabulary(path: Path) -> Any:
    from elmo.train.vocabulary import read_vocabulary

    return read_vocabulary(path)


def _training_text(path: Path) -> Any:
    from elmo.train import CorpusOptions, build_corpus

    shutil.rmtree(path.with_name("corpus"), ignore_errors=True)
    return build_corpus(path, path.with_name("corpus"), CorpusOptions(processes=1))


def _wordnet(folder: Path) -> None:
    wordnet = WordNet(folder)
    for key, *_ in SENSES:
        wordnet.gloss(key)
        wordnet.senses(key.partition("%")[0], key_pos(key))
    for word in ("geese", "lent", "banks", "take place", "better"):
        wordnet.base_forms(word, "noun")


def _word_pairs(path: Path) -> Any:
    from elmo.lexicon.word_pairs import read_pairs

    return read_pairs(path)


def _sentences(path: Path) -> Any:
    from elmo.text.reader import read_sentences
    from elmo.text.tokenizers import load_tokenizer

    return read_sentences([str(path)], tokenizer=load_tokenizer("whitespace"))


def _conllu_sentences(path: Path) -> Any:
    from elmo.text.reader import read_sentences
    from elmo.text.tokenizers import load_tokenizer

    return read_sentences([str(path)], tokenizer=load_tokenizer("whitespace"), input_format="conllu")


def _compressed(compress: Callable[[bytes], bytes]) -> Callable[[], list[bytes]]:
    return lambda: [compress("The river bank .\ncafé 河岸\n".encode() * 5), compress(b""), compress(b"a" * 3000)]


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


# --- files that elmo writes -----------------------------------------------------------------------------


def _job_manifest(path: Path) -> Any:
    from elmo.jobs.manifest import read_manifest

    return read_manifest(path)


def _job_manifest_seeds() -> list[bytes]:
    shard = {"file": "v-00000.npz", "sha256": "0" * 64, "first": 0, "sentences": 4, "tokens": 11, "input": "1" * 64}
    values = {"version": 1, "out": "v.npz", "model": "m", "options": {"layers": "all"}, "shards": [shard],
              "is_complete": True, "sha256": "2" * 64}  # fmt: skip
    return [json.dumps(values, indent=1).encode()]


def _corpus_manifest(path: Path) -> Any:
    from elmo.train.corpus import read_manifest

    return read_manifest(path.parent)


def _corpus_seeds() -> list[bytes]:
    from elmo.train import CorpusOptions, build_corpus

    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        (Path(folder) / "t.txt").write_text("a b c\nb c d\n" * 20)
        build_corpus(Path(folder) / "t.txt", Path(folder) / "c", CorpusOptions())
        return [next((Path(folder) / "c").glob("*.json")).read_bytes()]


def _mend_manifest(data: bytes) -> bytes:
    """Write the correct checksum into the manifest of a corpus."""
    try:
        values = json.loads(data)
        values.pop("sha256", None)
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        return json.dumps({**values, "sha256": digest}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data


def _shard_seeds(suffix: str) -> Callable[[], list[bytes]]:
    def make() -> list[bytes]:
        from elmo.embed.elmo import Elmo
        from elmo.jobs import EmbedJob, embed_corpus

        with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
            (Path(folder) / "t.txt").write_text("The river bank .\n\na b\n")
            out = Path(folder) / f"v{suffix}"
            embed_corpus(EmbedJob((str(Path(folder) / "t.txt"),), out), Elmo(tiny_model(), tokenizer="whitespace"))
            return [out.read_bytes()]

    return make


def _embeddings(path: Path) -> Any:
    from elmo.jobs import read_embeddings

    return read_embeddings(path, verify=False)


def _log(path: Path) -> Any:
    from elmo.train.log import read_log

    return read_log(path)


def _tagger() -> bytes:
    from tests.tasks import test_fit

    from elmo.embed.elmo import Elmo
    from elmo.tasks.features.layer import Features
    from elmo.tasks.features.static import StaticVectors
    from elmo.tasks.features.store import FeatureStore
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.tagging import TaggingOptions

    static = StaticVectors(("a", "Q"), np.array([[0.5, 1.0], [-1.0, 0.25]], np.float32))
    task = test_fit.Tagging.from_examples(test_fit.TRAIN, TaggingOptions(hidden_width=2))
    store = FeatureStore(Features(elmo="both", characters=2, is_bilm_tuned=True), Elmo(tiny_model()), static)
    model = test_fit.TaskModel.train(
        task, test_fit.TRAIN[:8], test_fit.DEV[:4], store=store, options=FitOptions(epochs=1), elmo_name="tiny"
    )
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        model.save(Path(folder) / "m.safetensors")
        return (Path(folder) / "m.safetensors").read_bytes()


def _translator() -> bytes:
    from elmo.embed.elmo import Elmo
    from elmo.tasks.data.examples import SourceText
    from elmo.tasks.features.layer import Features
    from elmo.tasks.features.store import FeatureStore
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.translation import Translation, TranslationOptions
    from elmo.tasks.model import TaskModel

    pairs = [SourceText(("Two", "men", "walk"), "Zwei Männer gehen."), SourceText(("A", "man"), "Ein Mann geht.")] * 2
    task = Translation.from_examples(pairs, TranslationOptions(hidden_width=2, n_units=24, max_units=9))
    store = FeatureStore(Features(elmo="input"), Elmo(tiny_model()))
    model = TaskModel.train(task, pairs, pairs, store=store, options=FitOptions(epochs=1), elmo_name="tiny")
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        model.save(Path(folder) / "m.safetensors")
        return (Path(folder) / "m.safetensors").read_bytes()


def _load_task(path: Path) -> None:
    from elmo.embed.elmo import Elmo
    from elmo.tasks.data.examples import SourceText, TaggedSentence
    from elmo.tasks.model import TaskModel

    model = TaskModel.load(path, elmo=Elmo(tiny_model()))
    words = ("a", "Q")
    if model.task.kind == "tagging":
        model.predict([TaggedSentence(words, None)])
    if model.task.kind == "translation":
        model.predict([SourceText(words, None)])
        model.task.units.encode("Zwei Männer gehen.")


def _split_task(data: bytes) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors and the description of a task model."""
    from safetensors.torch import load

    n_bytes = int.from_bytes(data[:8], "little")
    return load(data), json.loads(data[8 : 8 + n_bytes])["__metadata__"]["elmo"]


def _description_target(name: str, seed: str) -> Target:
    """Return a target that mutates the description of a task model, whose weights stay the same."""
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}

    def mend(data: bytes) -> bytes:
        if not tensors:
            tensors.update(_split_task((CORPORA / "task-model" / seed).read_bytes())[0])
        return save(tensors, metadata={"elmo": data.decode("utf-8", "replace")})

    def seeds() -> list[bytes]:
        return [_split_task((CORPORA / "task-model" / seed).read_bytes())[1].encode()]

    return file_target(name, "x.safetensors", seeds, _load_task, 40, mend=mend)


def _sense_seeds() -> list[bytes]:
    from elmo.lexicon.wsd import SenseCentroids

    keys = [["bank%1:14:00::"], ["bank%1:17:01::"], ["bank%1:14:00::", "river%1:17:00::"]]
    senses = SenseCentroids.from_usages(keys, np.ones((3, 4), np.float32), model="0" * 64, layers="sense")
    found = []
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        for value in (senses, senses.compact()):
            value.save(Path(folder) / "s.safetensors")
            found.append((Path(folder) / "s.safetensors").read_bytes())
    return found


def _sense_centroids(path: Path) -> Any:
    from elmo.lexicon.wsd import SenseCentroids

    return SenseCentroids.load(path)


def _write_index(folder: Path) -> None:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon import IndexJob, build_index

    folder.parent.mkdir(parents=True, exist_ok=True)
    text = folder.with_name("index.txt")
    text.write_text("I sat by the bank .\nThe bank lent money .\n")
    build_index(IndexJob((str(text),), folder), Elmo(tiny_model(), tokenizer="whitespace"))


def _read_index(folder: Path) -> None:
    from elmo.lexicon import Index

    index = Index(folder)
    for word in list(index.words)[:5]:
        index.usages(word)
    for number in range(min(len(index), 5)):
        index.usage(number)
    if len(index):
        index.nearest(index.vectors([0]), 3)


def _write_checkpoint(folder: Path) -> None:
    from elmo.train.checkpoint import Checkpoints, Snapshot

    tensors = {"weights": {"a": torch.ones(2, 3)}, "optimizer": {"0.sum": torch.zeros(2, 3)}}
    Checkpoints(folder).save(Snapshot(tensors, {"step": 3, "best": 9.5}), step=3, is_best=True)


def _load_checkpoint(folder: Path) -> None:
    from elmo.train.checkpoint import Checkpoints

    checkpoints = Checkpoints(folder)
    checkpoints.best()
    checkpoints.load(3)


def _mend_checkpoint(folder: Path) -> None:
    """Write the correct checksums into a checkpoint."""
    step = folder / "step-000000003"
    names = sorted(path.name for path in step.iterdir() if path.name != CHECKSUMS_NAME)
    sums = {name: hashlib.sha256((step / name).read_bytes()).hexdigest() for name in names}
    (step / CHECKSUMS_NAME).write_text(format_checksums(sums, names))


def _recipe_seeds() -> list[bytes]:
    from elmo.train.recipe import FILE_NAME, Recipe

    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        values = {"preset": tiny_model().config, "epochs": 2.0, "cells": None, "seed": 3}
        Recipe.create(("a.txt",), values).write(Path(folder))
        return [(Path(folder) / FILE_NAME).read_bytes()]


def _recipe(path: Path) -> Any:
    from elmo.train.recipe import Recipe

    return Recipe.read(path.parent)


def _download_record(path: Path) -> Any:
    from elmo.catalog.cache import read_record

    return read_record(path)


def _checksums(path: Path) -> Any:
    from elmo.storage.files import read_checksums

    return read_checksums(path.parent, ("config.json", "model.safetensors"))


# --- requests -------------------------------------------------------------------------------------------


def _request_seeds() -> list[bytes]:
    from tests.serve.fuzz import POSTS

    from elmo.serve.schemas import REQUESTS

    return [path.encode() + b"\n" + json.dumps(body).encode() for path, bodies in POSTS.items() for body in bodies
            if path in REQUESTS]  # fmt: skip


def _prepare_requests(folder: Path) -> Read:
    import orjson

    from elmo.serve.schemas import REQUESTS, RequestError, check

    def read(data: bytes) -> None:
        path, _, body = data.partition(b"\n")
        schema = REQUESTS.get(path.decode("latin-1")) or REQUESTS["/v1/words"]
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError("not JSON") from error
        check(value, schema)

    return read


def _request_target() -> Target:
    from elmo.serve.schemas import RequestError

    return Target("request", _request_seeds, _prepare_requests, 3000, (*ERRORS, RequestError))


def all_targets() -> tuple[Target, ...]:
    """Return all targets."""
    return (
        file_target("hdf5", "x.hdf5", _hdf5_seeds, _read_hdf5),
        file_target("safetensors", "x.safetensors", _safetensors_seeds, _read_safetensors),
        file_target("tf-table", "x.index", _tf_index_seeds, _read_bundle),
        file_target("tf-block", "x.index", _tf_block_seeds, _read_bundle, mend=_wrap_block),
        file_target("tf-snappy", "x.index", lambda: [write_bundle.packed(seed) for seed in _tf_block_seeds()],
                    _read_bundle, mend=_wrap_snappy),
        file_target("state-dict", "x.pkl", _state_dict_seeds, _read_state_dict),
        _pickle_target(),
        file_target("zip", "x.zip", _zip_seeds, _unpack, 600),
        file_target("tar", "x.tar", _tar_seeds, _unpack, 600),
        file_target("options", "options.json", _json(write_published.options()), _read_options, 3000),
        model_target("model-hdf5", _write_hdf5, "weights.hdf5"),
        model_target("model-config", _write_native, "config.json"),
        model_target("model-safetensors", _write_native, "model.safetensors"),
        model_target("model-vocabulary", _write_native, "vocab.txt"),
        model_target("model-characters", _write_native, "characters.json"),
        model_target("model-tf-data", _write_tf, "model.ckpt-7.data-00000-of-00001"),
        model_target("model-tf-checkpoint", _write_tf, "checkpoint"),
        model_target("model-many-langs", _write_many_langs, "encoder.pkl"),
        model_target("model-dictionary", _write_many_langs, "word.dic"),
        model_target("model-allennlp-config", _write_allennlp, "config.json", 60),
        model_target("model-allennlp-weights", _write_allennlp, "weights.th", 60),
        model_target("model-allennlp-words", _write_allennlp, "vocabulary/tokens.txt", 60),
        model_target("model-hub-index", _write_hub, "variables/variables.index", 60),
        model_target("model-similarity", _write_aligned, "similarity.json", 60),
        model_target("model-alignment", _write_aligned, "alignment.safetensors", 60),
        model_target("model-softmax", _write_aligned, "softmax.safetensors", 60),
        model_target("model-warm", _write_aligned, "warm.safetensors", 60),
        file_target("matrix", "x.pth", _matrix_seeds, _read_matrix, 500),
        file_target("checksums", "SHA256SUMS", _texts(f"{'0' * 64}  config.json\n{'1' * 64}  model.safetensors\n"),
                    _checksums),
        file_target("conll", "x.conll", _texts(CONLL, CONLLU), _tagged),
        file_target("conllu", "x.conllu", _texts(CONLLU), _conllu_sentences),
        file_target("squad", "x.json", _json(SQUAD), _squad),
        file_target("coreference", "x.conll", _texts(COREFERENCE, COREFERENCE.replace(" 1)", " " + "1" * 6000 + ")")),
                    _coreference),
        file_target("roles", "x.tsv", _texts(ROLES), _roles),
        file_target("parallel", "x.txt", _texts("the river bank .\n\nZwei Männer .\n"), _parallel),
        file_target("parallel-json", "x.jsonl", _texts(PARALLEL_JSON), _parallel_table, 500),
        file_target("parallel-csv", "x.csv", _texts('source,target\na b,"c ""d"" e"\nf,g\n'), _parallel_table, 500),
        file_target("table", "x.tsv", _texts(TABLE), _table),
        file_target("pairs", "x.tsv", _texts(PAIRS), _pairs),
        file_target("static-vectors", "x.txt", _texts(GLOVE, f"1 {2**64}\na 1\n", f"1 {'1' * 5000}\na 1\n"), _static),
        file_target("static-binary", "x.bin", _word2vec_seeds, _static, 500),
        file_target("sense-json", "x.jsonl", lambda: [json.dumps(SEMCOR).encode() + b"\n"], _senses),
        file_target("sense-xml", "x.xml", _texts(XML), _sense_xml),
        file_target("sense-gold", "x.txt", _texts("t0 bank%1:14:00::\nt1 river%1:17:00:: bank%1:17:01::\n"), _gold),
        file_target("word-pairs", "x.data.txt", _texts("bank\tN\t1-3\tthe bank lent\tI sat by bank\n"), _word_pairs),
        file_target("minimal-pairs", "x.jsonl", _texts(MINIMAL_JSON, MINIMAL_TSV), _minimal_pairs, 500),
        file_target("dictionary", "x.txt", _texts("bank\tBank\nriver Fluss\n", "a b\tc\nd\te\n"), _dictionary, 500),
        file_target("uses", "x.uses.csv", _texts(USES), _uses, 500),
        file_target("labels", "x.tsv", _texts("banks\tNOUN\nlend\tVERB\n\none\tNUM\n"), _labels, 500),
        file_target("labels-conllu", "x.conllu", _texts(CONLLU), _labels, 500),
        file_target("vocabulary", "x.txt", _texts("<S>\n</S>\n<UNK>\nbank\n河岸\n", "bank\t7\n"), _vocabulary,
                    500),
        file_target("training-text", "x.txt", _texts("a b c\nb c d\n" * 20, "河岸 a\n\n" * 30), _training_text, 10),
        folder_target("wordnet-index", write_wordnet, "index.sense", _wordnet, 100),
        folder_target("wordnet-exceptions", write_wordnet, "noun.exc", _wordnet, 100),
        folder_target("wordnet-data", write_wordnet, "data.noun", _wordnet, 100),
        file_target("plan", "plan.toml", _texts(PLAN), _plan),
        file_target("text", "x.txt", _texts("The river bank .\n\ncafé 河岸 😀\n"), _sentences),
        file_target("text-gz", "x.txt.gz", _compressed(gzip.compress), _sentences),
        file_target("text-bz2", "x.txt.bz2", _compressed(bz2.compress), _sentences),
        file_target("text-xz", "x.txt.xz", _compressed(lzma.compress), _sentences),
        file_target("text-zst", "x.txt.zst", _compressed(_zstd), _sentences),
        file_target("job-manifest", "v.manifest.json", _job_manifest_seeds, _job_manifest),
        file_target("corpus-manifest", "manifest.json", _corpus_seeds, _corpus_manifest, mend=_mend_manifest),
        *(file_target(f"vectors{suffix}", f"v{suffix}", _shard_seeds(suffix), _embeddings, 400)
          for suffix in (".npz", ".safetensors", ".jsonl", ".hdf5", ".parquet")),
        file_target("log", "log.jsonl", _texts(LOG), _log),
        file_target("task-model", "x.safetensors", lambda: [_tagger(), _translator()], _load_task, 20),
        _description_target("task-tagging", "00"),
        _description_target("task-translation", "01"),
        file_target("sense-centroids", "x.safetensors", _sense_seeds, _sense_centroids, 300),
        folder_target("index-manifest", _write_index, "index.json", _read_index, 60),
        folder_target("index-words", _write_index, "words.tsv", _read_index, 60),
        folder_target("index-shard", _write_index, "usages.safetensors", _read_index, 60),
        folder_target("checkpoint-weights", _write_checkpoint, "step-000000003/weights.safetensors", _load_checkpoint,
                      60, mend=_mend_checkpoint),
        folder_target("checkpoint-progress", _write_checkpoint, "step-000000003/progress.json", _load_checkpoint, 60,
                      mend=_mend_checkpoint),
        file_target("recipe", "recipe.json", _recipe_seeds, _recipe, 500),
        file_target("download-record", "166.json", _json({"format_version": 1, "model": "nlpl/166", "files": {
            "166.zip": {"size": 12, "sha256": "0" * 64}}}), _download_record, 500),
        _request_target(),
    )  # fmt: skip
