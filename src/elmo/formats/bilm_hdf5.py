"""Read and write ``options.json`` with HDF5 weights: the format of bilm-tf, AllenNLP, NLPL and SeqVec.

File names vary between publishers: options are ``*options.json`` (or ``options262.json``), and the weights are the
HDF5 file that contains ``RNN_0``; it may also be called ``*.model``. A softmax is in ``*softmax*.hdf5`` (``softmax/W``
and ``softmax/b``, or ``W`` and ``b`` at the root) or in the weights file (``softmax/…``). A token cache
(``embedding``, one row per word of the vocabulary) is used if there is no character CNN, or if the caller passes it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from elmo.errors import FormatError, OutputError, raise_all
from elmo.formats import bilm_layout
from elmo.formats.bilm_layout import Array, BilmOptions, dataset_shapes, identity_shapes
from elmo.formats.containers.hdf5 import Dataset, Hdf5File, create_hdf5
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage import files
from elmo.storage.atomic import atomic_folder
from elmo.text.ids import MAXTERMID, Vocabulary

if TYPE_CHECKING:
    from elmo.config import BiLmConfig

NAME = "bilm-tf HDF5"
_SUFFIXES = (".hdf5", ".h5")
_OTHER_SUFFIX = ".model"  # of many kinds of files; only those in HDF5 are considered
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OPTIONS = re.compile(r".*options\d{0,4}\.json", re.ASCII | re.DOTALL)
# Numbered parts of the network: one that is in the file but not in the options raises an error.
_NUMBERED = ("CNN/W_cnn_#", "CNN/b_cnn_#", "CNN_high_#", "RNN_#", "RNN_0/RNN/MultiRNNCell/Cell#",
             "RNN_1/RNN/MultiRNNCell/Cell#")  # fmt: skip

logger = logging.getLogger(__name__)


def can_read(folder: Path) -> bool:
    """Return whether the folder contains options and HDF5 weights."""
    names = files.list_names(folder)
    if not any(map(_OPTIONS.fullmatch, names)):
        return False
    hdf5 = _hdf5_names(folder, names)
    # next to a TensorFlow checkpoint, HDF5 files may be unrelated to the model
    return any("RNN_0" in _root_names(folder, name) for name in hdf5) or (
        bool(hdf5) and not any(name.endswith(".index") for name in names)
    )


# --- reading -------------------------------------------------------------------------------------


def read(folder: Path) -> Pretrained:
    """Read the model in a folder, which may contain unrelated files too."""
    names = files.list_names(folder)
    options = _only_one(folder, list(filter(_OPTIONS.fullmatch, names)), "*options.json")
    hdf5 = _hdf5_names(folder, names)
    roots = {name: _root_names(folder, name) for name in hdf5}
    candidates = [name for name in hdf5 if "RNN_0" in roots[name]]
    if not candidates:
        # read the most likely file anyway: its error says more than "nothing found"
        likely = [name for name in hdf5 if "weights" in name.lower() and "softmax" not in name.lower()]
        candidates = likely or hdf5
        candidates = candidates if len(candidates) == 1 else []
    weights = _only_one(folder, candidates, "HDF5 file with RNN_0")
    softmax = [name for name in hdf5 if "softmax" in name.lower() and name != weights]
    caches = [name for name in hdf5 if "embedding" in roots[name] and name != weights]
    needs_cache = caches and not {"char_embed", "embedding"} & set(roots[weights])
    optional = {
        "vocab": _vocabulary_name(folder, names),
        "softmax": _only_one(folder, softmax, "softmax file") if softmax else None,
        "embedding": _only_one(folder, caches, "token cache") if needs_cache else None,
    }
    model = read_files(
        files.find_member(folder, options),
        files.find_member(folder, weights),
        **{part: files.find_member(folder, name) for part, name in optional.items() if name is not None},
    )
    try:
        if "meta.json" in names:
            cast("dict[str, Any]", model.metadata)["meta"] = files.read_json(files.find_member(folder, "meta.json"))
    except FormatError as error:  # notes of the publisher, which the model does not need
        logger.warning("ignored meta.json: %s", error)
    return model


def read_files(
    options: str | Path,
    weights: str | Path,
    *,
    vocab: str | Path | None = None,
    softmax: str | Path | None = None,
    embedding: str | Path | None = None,
) -> Pretrained:
    """Read a model from individual files.

    Args:
        options: The options file.
        weights: The HDF5 file with the weights.
        vocab: The vocabulary, one word per line.
        softmax: The HDF5 file with the output layer.
        embedding: The HDF5 file with a token cache. The model then looks up the words of ``vocab`` in this cache
            instead of reading characters, and ``weights`` only needs the LSTMs.

    Example:
        >>> convert("en", "hdf5", to="hdf5")
        >>> read_files("hdf5/options.json", "hdf5/weights.hdf5").config == elmo.config
        True
    """
    import torch

    bilm = bilm_layout.read_options(Path(options))
    with Hdf5File(Path(weights)) as file:
        if embedding is not None:
            with Hdf5File(Path(embedding)) as cache:
                config = bilm.config(n_words=_n_words(cache, bilm))
                parameters = _read_parameters(cache, config, prefix="embedding")
            parameters |= _read_parameters(file, config, prefix="RNN_")
        else:
            names = file.children()
            has_words = bilm.chars is None or ("char_embed" not in names and "embedding" in names)
            config = bilm.config(n_words=_n_words(file, bilm) if has_words else None)
            parameters = _read_parameters(file, config)
        has_softmax = softmax is None and file.children("softmax")
        output_layer = _read_softmax(file, bilm) if has_softmax else None
    if softmax is not None:
        with Hdf5File(Path(softmax)) as file:
            output_layer = _read_softmax(file, bilm)
    return Pretrained(
        config=config,
        weights={name: torch.from_numpy(array) for name, array in parameters.items()},
        format=NAME,
        vocab=None if vocab is None else Vocabulary.from_lines(files.read_lines(Path(vocab))),
        softmax=output_layer,
        metadata={"training": dict(bilm.training)} if bilm.training else {},
    )


def _read_parameters(file: Hdf5File, config: BiLmConfig, *, prefix: str = "") -> dict[str, Array]:
    """Read the datasets with names that start with ``prefix``, and convert them to parameters of the biLM.

    Every header is checked before the first number is read, and all mismatches are reported at once.
    """
    datasets: dict[str, Dataset] = {}
    problems: list[str] = []
    expected = {name: shape for name, shape in dataset_shapes(config).items() if name.startswith(prefix)}
    identities = {name: shape for name, shape in identity_shapes(config).items() if name.startswith(prefix)}
    for name, shape in (expected | identities).items():
        dataset = file.dataset(_stored_name(file, name))
        if dataset is None:
            if name in expected:
                problems.append(f"missing dataset {name} {shape}")
        elif dataset.shape != shape:
            problems.append(f"dataset {name}: expected {shape}, found {dataset.shape}")
        else:
            datasets[name] = dataset
    problems += _unexpected_parts(file, [*expected, *identities], prefix=prefix)
    raise_all(problems, subject=f"{files.format_path(file.path)} does not match its options")
    file.check_together(list(datasets.values()))
    parameters: dict[str, Array] = {}
    for name, dataset in datasets.items():
        array = file.read(dataset)
        if name in expected:
            parameters |= bilm_layout.to_parameters(name, array)
        elif not np.array_equal(array, bilm_layout.identity(dataset.shape)):
            file.refuse(
                f"dataset {dataset.name} projects to the same width: AllenNLP applies it, bilm-tf does not; "
                "remove it if the model was trained with bilm-tf"
            )
    return parameters


def _stored_name(file: Hdf5File, name: str) -> str:
    """Return the name under which a dataset is stored.

    bilm-tf's ``dump_weights`` writes a single layer without MultiRNNCell, although neither bilm-tf nor
    AllenNLP can read that.
    """
    is_single = "LSTMCell" in file.children("RNN_0/RNN")
    return name.replace("/MultiRNNCell/Cell0/", "/") if is_single else name


def _unexpected_parts(file: Hdf5File, expected: Sequence[str], *, prefix: str) -> list[str]:
    """List the numbered parts of a network that the options do not mention."""
    problems = []
    known = {name[: match.start()] for name in expected for match in re.finditer("/|$", name)}
    for pattern in _NUMBERED:
        if not pattern.startswith(prefix):
            continue
        group, _, form = pattern.rpartition("/")
        for child in file.children(group):
            name = f"{group}/{child}".lstrip("/")
            is_numbered = re.fullmatch(form.replace("#", r"\d+"), child, re.ASCII)
            if is_numbered and name not in known:
                problems.append(f"unexpected {name:.80}")
    return problems


def _n_words(file: Hdf5File, options: BilmOptions) -> int:
    dataset = file.dataset("embedding")
    width = options.lstm.state_width
    if dataset is None:
        file.refuse("expected a dataset 'embedding' (or 'char_embed', with char_cnn in the options), found neither")
    if len(dataset.shape) != 2 or dataset.shape[1] != width:
        file.refuse(f"dataset embedding: expected (words, {width}), found {dataset.shape}")
    return dataset.shape[0]


def _read_softmax(file: Hdf5File, options: BilmOptions) -> SoftmaxWeights:
    import torch

    prefix = "softmax/" if file.children("softmax") else ""
    weight, bias = file.dataset(f"{prefix}W"), file.dataset(f"{prefix}b")
    if weight is None or bias is None:
        file.refuse(f"expected datasets softmax/W and softmax/b, or W and b, found {file.children(prefix)[:8]}")
    width = options.lstm.state_width
    if len(weight.shape) != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
        file.refuse(f"softmax: expected W (words, {width}) and b (words,), found {weight.shape} and {bias.shape}")
    file.check_together([weight, bias])
    return SoftmaxWeights(*(torch.from_numpy(file.read(dataset)) for dataset in (weight, bias)))


def _hdf5_names(folder: Path, names: Sequence[str]) -> list[str]:
    """List the HDF5 files in a folder, judging by their names, or by their first bytes if the name is ambiguous."""
    return [
        name
        for name in names
        if name.endswith(_SUFFIXES) or (name.endswith(_OTHER_SUFFIX) and _has_signature(folder, name))
    ]


def _has_signature(folder: Path, name: str) -> bool:
    try:
        with files.open_regular(files.find_member(folder, name)) as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except (FormatError, OSError):
        return False


def _root_names(folder: Path, name: str) -> list[str]:
    """List the names at the root of an HDF5 file; return an empty list if the file cannot be read."""
    try:
        with Hdf5File(files.find_member(folder, name)) as file:
            return file.children()
    except FormatError as error:
        logger.debug("ignored an HDF5 file: %s", error)
        return []


def _only_one(folder: Path, names: Sequence[str], what: str) -> str:
    if len(names) != 1:
        listed = ", ".join(files.format_path(name) for name in names[:8]) or "none"
        hint = "; use Elmo.from_files to choose" if names else ""
        raise FormatError(f"{files.format_path(folder)}: expected one {what}, found {listed}{hint}")
    return names[0]


def _vocabulary_name(folder: Path, names: Sequence[str]) -> str | None:
    candidates = [name for name in names if "vocab" in name.lower() and name.endswith(".txt")]
    if "vocab.txt" in candidates:
        return "vocab.txt"
    if len(candidates) > 1:
        message = "%s: found several vocabulary files and used none: %s; keep one, or name it vocab.txt"
        logger.warning(message, files.format_path(folder), ", ".join(map(files.format_path, candidates[:8])))
    return candidates[0] if len(candidates) == 1 else None


# --- writing -------------------------------------------------------------------------------------


def write(model: Pretrained, folder: Path) -> None:
    """Write a folder that AllenNLP 0.9, bilm-tf and simple_elmo can read.

    The files are ``options.json`` and ``weights.hdf5`` and, if the model has them, ``vocab.txt``,
    ``softmax_weights.h5`` and ``meta.json``. The softmax file ends in ``.h5`` because simple_elmo takes any ``*.hdf5``
    file for the weights.

    Readers of this format always add a forget bias of 1. If the model has another forget bias, the difference is
    added to the stored biases of the forget gates and rounded to float32. The format cannot store a warm state, a
    mix, an alignment or the name of the tokenizer.
    """
    _check_writable(model)
    tokenizer = str(model.metadata.get("tokenizer", "en"))
    lost = {
        "warm state": model.warm is not None,
        "mix": model.mix is not None,
        "alignment": model.alignment is not None,
        f"tokenizer ({tokenizer})": tokenizer != "en",
    }
    if any(lost.values()):
        parts = " and ".join(name for name, is_lost in lost.items() if is_lost)
        logger.warning("%s: the hdf5 format cannot store the model's %s", folder, parts)
    parameters = _with_standard_forget_bias(model)
    training = model.metadata.get("training")
    options = BilmOptions(model.config.chars, model.config.lstm, training if isinstance(training, Mapping) else {})
    with atomic_folder(folder) as temporary:
        _write_json(temporary / "options.json", bilm_layout.format_options(options))
        with create_hdf5(temporary / "weights.hdf5") as (file, _):
            for name in dataset_shapes(model.config):
                file[name] = bilm_layout.from_parameters(name, parameters)
            for name, shape in identity_shapes(model.config).items():
                file[name] = bilm_layout.identity(shape)
        if model.vocab is not None:
            text = "".join(f"{word}\n" for word in model.vocab.words)
            (temporary / "vocab.txt").write_bytes(text.encode("utf-8"))
        if model.softmax is not None:
            with create_hdf5(temporary / "softmax_weights.h5") as (file, _):
                file["softmax/W"] = model.softmax.weight.numpy(force=True)
                file["softmax/b"] = model.softmax.bias.numpy(force=True)
        if isinstance(model.metadata.get("meta"), Mapping):
            _write_json(temporary / "meta.json", model.metadata["meta"])


def _check_writable(model: Pretrained) -> None:
    """Raise ``OutputError`` if the format cannot represent the model."""
    config, problems = model.config, []
    if config.encoder_name != "lstm":
        problems.append(f"it has {config.encoder_name} layers, but the format supports only LSTMs")
    if config.chars and config.chars.has_norm:
        problems.append("it normalizes its token vectors (has_norm), which the format does not support")
    if config.chars and config.chars.highway_width is not None:
        problems.append(
            "it projects the features before the highway layers (highway_width), which the format does not support"
        )
    if config.alphabet == "unicode":
        problems.append("it reads Unicode characters, but the format supports only bytes")
    if config.alphabet == "simplified":
        problems.append("it simplifies Chinese characters before reading them, which the format does not support")
    if config.chars and config.words:
        problems.append("it reads words and characters, but the format supports only one of them")
    if config.alphabet == "bytes" and config.chars and config.chars.n_characters != bilm_layout.N_CHARACTERS:
        problems.append(
            f"it has {config.chars.n_characters} characters, but the format supports {bilm_layout.N_CHARACTERS}"
        )
    if model.vocab is not None:
        if (model.vocab.bos, model.vocab.eos, model.vocab.unknown) != ("<S>", "</S>", "<UNK>"):
            problems.append("the special words of its vocabulary are not <S>, </S> and <UNK>")
        for word in model.vocab.words:
            has_surrogates = any("\ud800" <= character <= "\udfff" for character in word)
            if "\n" in word or word.endswith("\r") or word == MAXTERMID or has_surrogates:
                problems.append(f"its word {word!r:.40} cannot be written as a line of vocab.txt")
                break
    raise_all(problems, subject="cannot write this model as bilm-tf HDF5", kind=OutputError)


def _with_standard_forget_bias(model: Pretrained) -> dict[str, Array]:
    """Return the weights, adjusted to the forget bias of 1 that every reader of the format adds."""
    arrays = {name: weight.numpy(force=True) for name, weight in model.weights.items()}
    excess, cell = model.config.lstm.forget_bias - 1.0, model.config.lstm.cell_width
    if excess != 0:
        for name in [name for name in arrays if name.endswith(".bias") and "_stack." in name]:
            bias = arrays[name].astype(np.float64)
            bias[cell : 2 * cell] += excess  # the second gate is f
            arrays[name] = bias.astype(np.float32)
    return arrays


def _write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
