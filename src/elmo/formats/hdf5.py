"""A folder of ``options.json`` and HDF5 weights (bilm-tf, AllenNLP, NLPL, SeqVec) in, a model out; and back.

File names vary between publishers: options are ``*options.json``, and weights the HDF5 file that holds
``RNN_0``. A softmax lies in ``*softmax*.hdf5``, as ``softmax/W`` and ``softmax/b`` or as ``W`` and ``b`` at
the root, or as ``softmax/…`` in the weights file itself. A token cache (``embedding``, one row per word of
the vocabulary) is read where a file has no character network, or where the caller names it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import FormatError, OutputError, raise_all
from elmo.formats.options_json import N_CHARACTERS, Options, options_to_json, read_options
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage import files
from elmo.text.ids import MAXTERMID, Vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elmo.config import BiLmConfig
    from elmo.formats.containers.hdf5 import PlainHdf5

NAME = "bilm-tf HDF5"
_SUFFIXES = (".hdf5", ".h5")
_log = logging.getLogger(__name__)

# What must not be left over in a file: a layer more than the options tell of would be silently ignored.
_NUMBERED = ("CNN/W_cnn_#", "CNN/b_cnn_#", "CNN_high_#", "RNN_#", "RNN_0/RNN/MultiRNNCell/Cell#",
             "RNN_1/RNN/MultiRNNCell/Cell#")  # fmt: skip


@dataclass(frozen=True)
class _Sources:
    """The files of one model."""

    options: Path
    weights: Path
    vocab: Path | None = None
    softmax: Path | None = None
    embedding: Path | None = None  # a token cache, to be read in place of the characters
    meta: Path | None = None


def is_here(folder: Path) -> bool:
    """Whether a folder looks like this format: options, and HDF5 weights."""
    names = files.names(folder)
    if not any(name.endswith("options.json") for name in names):
        return False
    hdf5 = [name for name in names if name.endswith(_SUFFIXES)]
    # beside a TensorFlow checkpoint, HDF5 files may be anything
    return any("RNN_0" in _root(folder, name) for name in hdf5) or (
        bool(hdf5) and not any(name.endswith(".index") for name in names)
    )


def read(folder: Path) -> Pretrained:
    """Read a model from its folder; files that have nothing to do with it may lie beside it."""
    names = files.names(folder)
    options = files.member(
        folder, _only_one(folder, [n for n in names if n.endswith("options.json")], "*options.json")
    )
    hdf5 = [name for name in names if name.endswith(_SUFFIXES)]
    roots = {name: _root(folder, name) for name in hdf5}
    holders = [name for name in hdf5 if "RNN_0" in roots[name]]
    if not holders:
        # a file's own fault says more than that nothing was found: the likeliest weights are read for it
        holders = [
            name for name in hdf5 if "weights" in name.lower() and "softmax" not in name.lower()
        ] or hdf5
        holders = holders if len(holders) == 1 else []
    weights = _only_one(folder, holders, "HDF5 file with RNN_0")
    softmax = [name for name in hdf5 if "softmax" in name.lower() and name != weights]
    has_chars = "char_embed" in roots[weights]
    caches = [name for name in hdf5 if "embedding" in roots[name] and name != weights]
    needs_cache = not has_chars and "embedding" not in roots[weights] and bool(caches)
    return _read(
        _Sources(
            options,
            files.member(folder, weights),
            vocab=_vocabulary_file(folder, names),
            softmax=files.member(folder, _only_one(folder, softmax, "softmax file")) if softmax else None,
            embedding=files.member(folder, _only_one(folder, caches, "token cache")) if needs_cache else None,
            meta=files.member(folder, "meta.json") if "meta.json" in names else None,
        )
    )


def read_files(
    options: str | Path,
    weights: str | Path,
    *,
    vocab: str | Path | None = None,
    softmax: str | Path | None = None,
    embedding: str | Path | None = None,
) -> Pretrained:
    """Read a model from files at any place.

    ``embedding`` is a token cache: the model then looks the words of ``vocab`` up there, reads no characters,
    and of ``weights`` only the LSTMs are needed.
    """
    return _read(
        _Sources(
            Path(options),
            Path(weights),
            vocab=None if vocab is None else Path(vocab),
            softmax=None if softmax is None else Path(softmax),
            embedding=None if embedding is None else Path(embedding),
        )
    )


def write(model: Pretrained, folder: Path) -> None:
    """Write a folder that AllenNLP 0.9, bilm-tf and simple_elmo read.

    ``options.json``, ``weights.hdf5``, and as the model has them ``vocab.txt``, ``softmax_weights.h5`` and
    ``meta.json``. (simple_elmo takes any ``*.hdf5`` for the weights, hence the other suffix of the softmax.)
    A forget bias other than TensorFlow's 1 is added to the forget gates, rounded to float32. Warm states,
    mixes and the name of a tokeniser have no place in this format.
    """
    from elmo.formats import bilm_layout
    from elmo.formats.containers.hdf5 import new_hdf5

    _check_expressible(model)
    tokenizer = str(model.metadata.get("tokenizer", "en"))
    lost = {
        "warm state": model.warm is not None,
        "mix": model.mix is not None,
        f"tokenizer ({tokenizer})": tokenizer != "en",
    }
    if any(lost.values()):
        named = " and ".join(name for name, is_there in lost.items() if is_there)
        _log.warning("%s: this format has no place for the model's %s: left out", folder, named)
    parameters = _folded(model)
    training = model.metadata.get("training")
    options = Options(
        model.config.chars, model.config.lstm, training if isinstance(training, Mapping) else {}
    )
    with files.new_folder(folder) as temporary:
        _write_json(temporary / "options.json", options_to_json(options))
        with new_hdf5(temporary / "weights.hdf5") as (file, _):
            for name in bilm_layout.shapes(model.config):
                file[name] = bilm_layout.from_parameters(name, parameters)
            for name, shape in bilm_layout.identities(model.config).items():
                file[name] = bilm_layout.identity(shape)
        if model.vocab is not None:
            text = "".join(f"{word}\n" for word in model.vocab.words)
            (temporary / "vocab.txt").write_bytes(text.encode("utf-8"))
        if model.softmax is not None:
            with new_hdf5(temporary / "softmax_weights.h5") as (file, _):
                file["softmax/W"] = model.softmax.weight.numpy(force=True)
                file["softmax/b"] = model.softmax.bias.numpy(force=True)
        if isinstance(model.metadata.get("meta"), Mapping):
            _write_json(temporary / "meta.json", model.metadata["meta"])


def _read(sources: _Sources) -> Pretrained:
    import torch

    from elmo.formats.containers.hdf5 import PlainHdf5

    options = read_options(sources.options)
    with PlainHdf5(sources.weights) as file:
        if sources.embedding is not None:
            with PlainHdf5(sources.embedding) as cache:
                config = options.config(n_words=_n_words(cache, options))
                parameters = _parameters(cache, config, only="embedding")
            parameters |= _parameters(file, config, only="RNN_")
        else:
            is_words = options.chars is None or (
                "char_embed" not in file.children() and "embedding" in file.children()
            )
            config = options.config(n_words=_n_words(file, options)) if is_words else options.config()
            parameters = _parameters(file, config)
        softmax = _softmax(file, options) if sources.softmax is None and file.children("softmax") else None
    if sources.softmax is not None:
        with PlainHdf5(sources.softmax) as file:
            softmax = _softmax(file, options)
    metadata: dict[str, Any] = {"training": dict(options.training)} if options.training else {}
    return Pretrained(
        config=config,
        weights={name: torch.from_numpy(array) for name, array in parameters.items()},
        format=NAME,
        vocab=None if sources.vocab is None else Vocabulary.from_lines(files.read_lines(sources.vocab)),
        softmax=softmax,
        metadata=metadata | _meta(sources.meta),
    )


def _parameters(file: PlainHdf5, config: BiLmConfig, *, only: str = "") -> dict[str, NDArray[np.float32]]:
    """The parameters that a file's datasets give, of names that begin with ``only``.

    Every header is checked before the first number is read, and all that does not fit is told at once.
    """
    import numpy as np

    from elmo.formats import bilm_layout
    from elmo.formats.containers import hdf5 as plain_dataset

    found: dict[str, plain_dataset.Dataset] = {}
    problems: list[str] = []
    expected = {name: shape for name, shape in bilm_layout.shapes(config).items() if name.startswith(only)}
    identities = {
        name: shape for name, shape in bilm_layout.identities(config).items() if name.startswith(only)
    }
    for name, shape in (expected | identities).items():
        dataset = plain_dataset.describe(file, _stored_name(file, name))
        if dataset is None:
            if name in expected:
                problems.append(f"missing dataset {name} {shape}")
        elif dataset.shape != shape:
            problems.append(f"dataset {name}: expected {shape}, found {dataset.shape}")
        else:
            found[name] = dataset
    problems += _left_over(file, [*expected, *identities], only=only)
    raise_all(problems, subject=f"{files.shown(file.path)} does not fit its options")
    plain_dataset.check_together(file, list(found.values()))
    parameters: dict[str, NDArray[np.float32]] = {}
    for name, dataset in found.items():
        array = plain_dataset.read(file, dataset)
        if name in expected:
            parameters |= bilm_layout.to_parameters(name, array)
        elif not np.array_equal(array, bilm_layout.identity(dataset.shape)):
            file.refuse(
                f"dataset {dataset.name} projects to the same width: AllenNLP applies it, bilm-tf does not; "
                "remove it or make it an identity, as the model was trained"
            )
    return parameters


def _stored_name(file: PlainHdf5, name: str) -> str:
    """Where a dataset is: bilm-tf's ``dump_weights`` writes the cell of a single layer into no MultiRNNCell.

    bilm-tf itself and AllenNLP look for it in one, and cannot read what it wrote.
    """
    is_alone = "LSTMCell" in file.children("RNN_0/RNN")
    return name.replace("/MultiRNNCell/Cell0/", "/") if is_alone else name


def _left_over(file: PlainHdf5, expected: Sequence[str], *, only: str) -> list[str]:
    """Numbered parts of a network that the options do not tell of."""
    problems = []
    known = {name[:end] for name in expected for end in (*_slashes(name), len(name))}
    for pattern in _NUMBERED:
        group, _, form = pattern.rpartition("/")
        if not pattern.startswith(only):
            continue
        for child in file.children(group):
            name = f"{group}/{child}".lstrip("/")
            is_numbered = re.fullmatch(form.replace("#", r"\d+"), child, re.ASCII)
            if is_numbered and name not in known:
                problems.append(f"unexpected {name:.80}")
    return problems


def _slashes(name: str) -> list[int]:
    return [at for at, character in enumerate(name) if character == "/"]


def _n_words(file: PlainHdf5, options: Options) -> int:
    from elmo.formats.containers import hdf5 as plain_dataset

    dataset = plain_dataset.describe(file, "embedding")
    width = options.lstm.state_width
    if dataset is None:
        file.refuse(
            "expected a dataset 'embedding', or char_cnn in the options and 'char_embed', found neither"
        )
    if len(dataset.shape) != 2 or dataset.shape[1] != width:
        file.refuse(f"dataset embedding: expected (words, {width}), found {dataset.shape}")
    return dataset.shape[0]


def _softmax(file: PlainHdf5, options: Options) -> SoftmaxWeights:
    import torch

    from elmo.formats.containers import hdf5 as plain_dataset

    prefix = "softmax/" if file.children("softmax") else ""
    weight, bias = plain_dataset.describe(file, f"{prefix}W"), plain_dataset.describe(file, f"{prefix}b")
    if weight is None or bias is None:
        file.refuse(
            f"expected datasets softmax/W and softmax/b, or W and b, found {file.children(prefix)[:8]}"
        )
    width = options.lstm.state_width
    if len(weight.shape) != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
        file.refuse(
            f"softmax: expected W (words, {width}) and b (words,), found {weight.shape} and {bias.shape}"
        )
    plain_dataset.check_together(file, [weight, bias])
    softmax = SoftmaxWeights(
        torch.from_numpy(plain_dataset.read(file, weight)), torch.from_numpy(plain_dataset.read(file, bias))
    )
    if not (softmax.weight.isfinite().all() and softmax.bias.isfinite().all()):
        file.refuse("softmax: holds values that are not finite")
    return softmax


def _root(folder: Path, name: str) -> list[str]:
    """What lies at the root of an HDF5 file; nothing when it is none, for a folder may hold anything."""
    from elmo.formats.containers.hdf5 import PlainHdf5

    try:
        with PlainHdf5(files.member(folder, name)) as file:
            return file.children()
    except FormatError as error:
        _log.debug("passed over: %s", error)
        return []


def _only_one(folder: Path, names: Sequence[str], what: str) -> str:
    if len(names) != 1:
        found = ", ".join(files.shown(name) for name in names[:8]) or "none"
        raise FormatError(
            f"{files.shown(folder)}: expected one {what}, found {found}"
            + ("; name the files yourself" if names else "")
        )
    return names[0]


def _vocabulary_file(folder: Path, names: Sequence[str]) -> Path | None:
    found = [name for name in names if "vocab" in name.lower() and name.endswith(".txt")]
    if "vocab.txt" in found:
        return files.member(folder, "vocab.txt")
    if len(found) > 1:
        listed = ", ".join(map(files.shown, found[:8]))
        _log.warning("%s: no vocabulary was read, for there are several: %s", files.shown(folder), listed)
    return files.member(folder, found[0]) if len(found) == 1 else None


def _meta(path: Path | None) -> dict[str, Any]:
    """A publisher's notes, which no number depends on: a model loads without them too."""
    if path is None:
        return {}
    try:
        return {"meta": files.read_json(path)}
    except FormatError as error:
        _log.warning("passed over: %s", error)
        return {}


def _check_expressible(model: Pretrained) -> None:
    """Refuse what bilm-tf's files have no words for."""
    config, problems = model.config, []
    if config.alphabet == "unicode":
        problems.append("it reads Unicode characters, where this format has bytes")
    if config.alphabet == "simplified":
        problems.append("it simplifies Chinese characters before it reads them, where this format does not")
    if config.chars and config.words:
        problems.append("it reads words and characters, where this format has one of them")
    if config.alphabet == "bytes" and config.chars and config.chars.n_characters != N_CHARACTERS:
        problems.append(
            f"it has {config.chars.n_characters} characters, where this format has {N_CHARACTERS}"
        )
    if model.vocab is not None:
        if (model.vocab.bos, model.vocab.eos, model.vocab.unknown) != ("<S>", "</S>", "<UNK>"):
            problems.append("its vocabulary does not name its special words <S>, </S> and <UNK>")
        for word in model.vocab.words:
            if "\n" in word or word.endswith("\r") or word == MAXTERMID or not _is_utf8(word):
                problems.append(f"its word {word!r:.40} cannot stand on a line of vocab.txt")
                break
    raise_all(problems, subject="this model cannot be written as bilm-tf HDF5", kind=OutputError)


def _is_utf8(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _folded(model: Pretrained) -> dict[str, NDArray[np.float32]]:
    """The weights as arrays, with a forget bias of exactly 1, which every reader adds, left out of them."""
    import numpy as np

    arrays = {name: weight.numpy(force=True) for name, weight in model.weights.items()}
    rest, cell = model.config.lstm.forget_bias - 1.0, model.config.lstm.cell_width
    if rest != 0:
        for name in [name for name in arrays if name.endswith(".bias") and "_stack." in name]:
            bias = arrays[name].astype(np.float64)
            bias[cell : 2 * cell] += rest  # the second gate is f
            arrays[name] = bias.astype(np.float32)
    return arrays


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
