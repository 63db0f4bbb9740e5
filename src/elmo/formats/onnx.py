"""Export models to ONNX, to run them without PyTorch, for example in a browser.

The exported folder has these files; ``docs/onnx.md`` describes how to use them.

- ``model.onnx``: the network. It reads the ids of the tokens of each sentence and adds the boundary tokens. It returns
  the layers of ``Elmo.encode(layers="all")`` and the states from which each token is predicted.
- ``softmax.onnx``: the output layer, if there is one, which computes log-probabilities from these states.
- ``vocab.txt``: one word per line, in id order, if there is a vocabulary.
- ``characters.json``: the id of each character, for a Unicode alphabet.
- ``model.json``: the config, the ids of special characters, the inputs and outputs, and the SHA-256 of each file.

ONNX files are only written, never read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from elmo import __version__
from elmo.config import NORM_EPSILON, BiLmConfig, CharCnnConfig, EncoderConfig, LstmConfig, TransformerConfig
from elmo.errors import ConfigError, OutputError, importing_extra
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, fingerprint
from elmo.storage import atomic, files
from elmo.storage.tensors import Dtype
from elmo.text.ids import Alphabet, Ids, UnicodeAlphabet

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto, NodeProto, TensorProto
    from torch import Tensor

NAME = "elmo-onnx"
VERSION = 1
OPSET, IR_VERSION = 20, 9  # for ONNX Runtime 1.17 and newer
NETWORK, SOFTMAX, DESCRIPTION = "model.onnx", "softmax.onnx", "model.json"
MAX_WEIGHT_BYTES = 2_000_000_000  # per file: a protobuf message is limited to 2 GiB

OnnxDtype = Literal["float32", "float16"]
_DTYPES = ("int8", "float16", "float32")  # of stored matrices, the smallest first
_MIN_INT8_COLUMNS = 8  # below, the scales need more space than float16
_FLOAT, _INT32, _INT64 = 1, 6, 7  # as in onnx.TensorProto


@dataclass(frozen=True)
class OnnxValue:
    """An input or an output of a graph; an axis of any size has a name instead of a number."""

    name: str
    dtype: Literal["int32", "float32"]
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class OnnxGraph:
    """A graph with its inputs and outputs; ``content`` is the content of the file, ``dtypes`` the types of matrices."""

    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    content: bytes
    dtypes: frozenset[str]


def write(model: Pretrained, folder: Path, *, dtype: Dtype | None = None) -> None:
    """Write a model to a new folder, completely or not at all; the bytes are always the same for the same model.

    Args:
        model: The model.
        folder: The folder to create.
        dtype: Precision of the stored weights, float32 or float16; the graphs convert them to float32. Default: the
            smallest type that represents a matrix exactly: int8 with a scale for each row, float16 or float32.
    """
    if dtype not in (None, "float32", "float16"):
        raise ConfigError(f"dtype must be float32 or float16 for ONNX; found {dtype!r:.40}")
    model.check_unaligned("write to ONNX")
    with importing_extra("ONNX export", extra="onnx"):
        import onnx  # noqa: F401  before the folder is created
    alphabet, vocab = model.indexer().alphabet, model.vocab
    is_escaped, sizes, graphs, dtypes = False, dict[str, int](), dict[str, Any](), set[str]()
    with atomic.atomic_folder(folder) as new:

        def write_file(name: str, content: bytes) -> None:
            (new / name).write_bytes(content)
            sizes[name] = len(content)

        def write_graph(name: str, graph: OnnxGraph) -> None:
            write_file(name, graph.content)
            dtypes.update(graph.dtypes)
            graphs[name] = {"inputs": list(map(asdict, graph.inputs)), "outputs": list(map(asdict, graph.outputs))}

        write_graph(NETWORK, build_network(model, dtype=dtype))
        if model.softmax is not None:
            write_graph(SOFTMAX, build_softmax(model.softmax, dtype=dtype))
        if vocab is not None:
            text, is_escaped = native.format_vocabulary(vocab)
            write_file(native.VOCAB, text.encode())
        if isinstance(alphabet, UnicodeAlphabet):
            ids = {character: i + 1 for character, i in alphabet.characters.items()}  # 0 is padding
            write_file(native.CHARACTERS, (json.dumps(ids, indent=0) + "\n").encode())
        values = {
            "format": NAME,
            "format_version": VERSION,
            "library_version": __version__,
            "fingerprint": fingerprint(model),
            "opset": OPSET,
            "dtype": max(dtypes, key=_DTYPES.index),
            "config": model.config.to_json(),
            "tokenizer": str(model.metadata.get("tokenizer", "en")),
            "directions": _trained_directions(model.metadata),
            "alphabet": None if alphabet is None else _describe_alphabet(alphabet, model.config),
            "vocabulary": None if vocab is None else native.describe_vocabulary(vocab, is_escaped=is_escaped),
            "graphs": graphs,
            "files": {
                name: {"bytes": size, "sha256": files.compute_sha256(new / name)} for name, size in sizes.items()
            },
        }
        (new / DESCRIPTION).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8", newline="\n")


def _trained_directions(metadata: Mapping[str, Any]) -> str:
    training = metadata.get("training")
    directions = training.get("directions") if isinstance(training, dict) else None
    return directions if directions in ("forward", "backward") else "both"


def _describe_alphabet(alphabet: Alphabet, config: BiLmConfig) -> dict[str, Any]:
    """Return what a program needs to compute character ids; the ids are those that the graph reads."""
    is_unicode = isinstance(alphabet, UnicodeAlphabet)
    return {
        "kind": config.alphabet,
        "max_characters": alphabet.max_characters,
        "bow": alphabet.bow,
        "eow": alphabet.eow,
        "pad": alphabet.pad,
        "unknown": alphabet.characters["<oov>"] + 1 if is_unicode else None,
    }


def split_scales(array: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
    """Find int8 numbers and a scale for each row whose product in float32 is exactly ``array``.

    Weights that were stored as int8 have such scales, and models do not say how they were stored. The largest number of
    a row is usually 127, so the scale is about the largest value divided by 127.

    Args:
        array: A matrix, or rows of more axes.

    Returns:
        The numbers in the shape of ``array`` and the scales (row,); None if there are none.
    """
    rows = array.reshape(len(array), -1)
    if rows.shape[1] < _MIN_INT8_COLUMNS or not np.isfinite(rows).all():
        return None
    sample = rows[:: max(1, len(rows) // 16)][:16]
    if (_find_scales(sample) < 0).any():
        return None
    scales = np.concatenate([_find_scales(chunk) for chunk in np.array_split(rows, max(1, rows.size >> 22))])
    if (scales < 0).any():
        return None
    numbers = np.rint(rows / np.where(scales, scales, 1)[:, None]).astype(np.int8)
    return numbers.reshape(array.shape), scales


def _find_scales(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scale of each row (row, column), 0 for a row of zeros; -1 if a row has none."""
    highest = np.abs(rows).max(axis=1)
    scales = np.where(highest > 0, np.float32(-1), np.float32(0))
    for largest in (127, 128, *range(126, 0, -1)):
        missing = np.flatnonzero(scales < 0)
        if not len(missing):
            break
        guess = (highest[missing] / np.float64(largest)).astype(np.float32)
        for scale in (guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(0))):
            divisor = np.where(scale > 0, scale, np.float32(1))[:, None]
            numbers = np.clip(np.rint(rows[missing] / divisor), -128, 127)
            is_exact = (numbers * scale[:, None] == rows[missing]).all(axis=1)
            scales[missing[is_exact]] = scale[is_exact]
    return scales


# --- building graphs -----------------------------------------------------------------------------


class GraphBuilder:
    """A list of ONNX nodes and weights under construction.

    Every method that adds something returns the name of a value, which is the input of later nodes.
    """

    def __init__(self, *, prefix: str = "", dtype: OnnxDtype | None = None) -> None:
        self._prefix, self._dtype = prefix, dtype
        self._dtypes: set[str] = set()
        self._nodes: list[NodeProto] = []
        self._weights: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._n_bytes = 0

    def node(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""
        return self.nodes(operator, *inputs, names=(name,), **attributes)[0]

    def nodes(self, operator: str, *inputs: str, names: tuple[str | None, ...], **attributes: Any) -> list[str]:
        """Add a node with several outputs; names that are None are generated, and an empty name omits an output."""
        from onnx import helper

        label = f"{self._prefix}{operator}_{len(self._nodes)}"
        outputs = [f"{label}_{k}" if name is None else name for k, name in enumerate(names)]
        self._nodes.append(helper.make_node(operator, list(inputs), outputs, name=label, **attributes))
        return outputs

    def constant(self, value: Any, dtype: type[np.generic] = np.int64) -> str:
        """Add a small constant; equal constants are stored once."""
        array = np.asarray(value, dtype)
        key = array.dtype.name, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self._store(f"{self._prefix}constant_{len(self._constants)}", array)
        return self._constants[key]

    def weight(self, name: str, array: NDArray[np.float32], *, is_transposed: bool = False) -> str:
        """Add a weight; a matrix is stored in a small type if possible, and nodes convert it to float32.

        ``Cast`` and ``Mul`` give the same numbers as ``DequantizeLinear``. ONNX Runtime computes them once, when it
        loads the file, and ``DequantizeLinear`` in every call.

        Args:
            name: Name of the value.
            array: The weight.
            is_transposed: Whether the value is the transposed matrix.
        """
        if array.ndim == 1:
            return self._store(name, array)
        if self._dtype is None and (split := split_scales(array)):
            self._dtypes.add("int8")
            numbers, scales = split
            columns = scales.reshape(-1, *[1] * (array.ndim - 1))
            if is_transposed:
                numbers, columns = numbers.T, columns.T
            rounded = self.node("Cast", self._store(f"{name}.int8", numbers), to=_FLOAT)
            return self.node("Mul", rounded, self._store(f"{name}.scale", columns), name=name)
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        is_half = bool((half == array).all()) if self._dtype is None else self._dtype == "float16"
        self._dtypes.add("float16" if is_half else "float32")
        if not is_half:
            return self._store(name, array.T if is_transposed else array)
        if not np.isfinite(half).all():
            raise OutputError(f"cannot store the weights as float16: {name} has values out of range; use float32")
        stored = self._store(f"{name}.float16", half.T if is_transposed else half)
        return self.node("Cast", stored, name=name, to=_FLOAT)

    def _store(self, name: str, array: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._n_bytes += array.nbytes
        if self._n_bytes > MAX_WEIGHT_BYTES:
            advice = "use float16" if self._dtype == "float32" else "convert the model to another format"
            raise OutputError(f"an ONNX file must have at most {MAX_WEIGHT_BYTES:,} bytes; found more; {advice}")
        self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def slice(self, x: str, begin: int, end: int | str, *, axis: int) -> str:
        """Take ``x[begin:end]`` along an axis; ``end`` is a number or the name of a value (1,)."""
        last = end if isinstance(end, str) else self.constant([end])
        return self.node("Slice", x, self.constant([begin]), last, self.constant([axis]))

    def graph(self, name: str, inputs: list[OnnxValue], outputs: list[OnnxValue]) -> GraphProto:
        """Return the graph."""
        from onnx import helper

        types = {"int32": _INT32, "float32": _FLOAT}

        def describe(values: list[OnnxValue]) -> list[Any]:
            return [helper.make_tensor_value_info(v.name, types[v.dtype], v.shape) for v in values]

        return helper.make_graph(self._nodes, name, describe(inputs), describe(outputs), list(self._weights.values()))

    def finish(self, name: str, inputs: list[OnnxValue], outputs: list[OnnxValue]) -> OnnxGraph:
        """Return the complete model."""
        from onnx import helper

        proto = helper.make_model(
            self.graph(name, inputs, outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="pyelmo",
            producer_version=__version__,
        )
        content = proto.SerializeToString(deterministic=True)
        return OnnxGraph(tuple(inputs), tuple(outputs), content, frozenset(self._dtypes))


# --- the network ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sentences:
    """Names of the values that describe the sentences of a batch.

    A sentence of n tokens has n + 2 positions, because of its boundary tokens.
    """

    positions: str  # (position,): 0, 1, 2, …
    n_tokens: str  # (batch, 1, 1)
    n_positions: str  # (batch,)


def build_network(model: Pretrained, *, dtype: OnnxDtype | None = None) -> OnnxGraph:
    """Build the graph of the network, which computes the same as ``BiLm.forward`` with a zero start state.

    Tensors are time-major inside the graph. The padding of a row comes last in both directions, so it cannot affect the
    states of tokens; only the outputs are masked.
    """
    graph, config = GraphBuilder(dtype=dtype), model.config
    inputs = [OnnxValue("lengths", "int32", ("batch",))]
    if config.words:
        inputs.insert(0, OnnxValue("word_ids", "int32", ("batch", "time")))
    if config.chars:
        inputs.insert(0, OnnxValue("char_ids", "int32", ("batch", "time", config.chars.max_characters)))
    outputs = [
        OnnxValue("layers", "float32", ("batch", config.n_layers, "time", config.width)),
        OnnxValue("prediction_states", "float32", ("batch", 2, "position", config.encoder.state_width)),
    ]
    sentences = _build_sentences(graph, inputs[0].name)

    def reverse(x: str) -> str:
        """Reverse the positions of each sentence, and leave its padding at the end."""
        return graph.node("ReverseSequence", x, sentences.n_positions, batch_axis=1, time_axis=0)

    def stack(parts: list[str]) -> str:
        """Combine parts (position, batch, width) to (batch, part, position, width)."""
        expanded = [graph.node("Unsqueeze", part, graph.constant([2])) for part in parts]
        return graph.node("Transpose", graph.node("Concat", *expanded, axis=2), perm=[1, 2, 0, 3])

    def mask(x: str, is_kept: str, *, name: str) -> str:
        """Set ``x`` (batch, part, position, width) to zero where ``is_kept`` (batch, part, position) is False."""
        condition = graph.node("Unsqueeze", is_kept, graph.constant([3]))
        return graph.node("Where", condition, x, graph.constant(0, np.float32), name=name)

    tokens = _build_token_layer(graph, model, sentences)  # (position, batch, state)
    if config.encoder_name == "transformer":
        inputs_above, build_stack = _add_positions(graph, config.encoder, tokens, sentences), _build_transformers
    else:
        inputs_above, build_stack = tokens, _build_lstms
    forward = build_stack(graph, model, "forward_stack", inputs_above)
    backward = [reverse(states) for states in build_stack(graph, model, "backward_stack", reverse(inputs_above))]

    pairs = [(tokens, tokens), *zip(forward, backward, strict=True)]
    layers = stack([graph.node("Concat", *pair, axis=2) for pair in pairs])  # (batch, layer, position, width)
    is_token = graph.node("Less", graph.slice(sentences.positions, 0, -2, axis=0), sentences.n_tokens)
    mask(graph.slice(layers, 1, -1, axis=2), is_token, name=outputs[0].name)

    # A position is predicted from the forward state of the previous one and the backward state of the next one.
    first = graph.slice(tokens, 0, 1, axis=0)
    empty = graph.node("Sub", first, first)  # zeros, (1, batch, state)
    before = graph.node("Concat", empty, graph.slice(forward[-1], 0, -1, axis=0), axis=0)
    after = graph.node("Concat", graph.slice(backward[-1], 1, np.iinfo(np.int64).max, axis=0), empty, axis=0)
    last = graph.node("Add", sentences.n_tokens, graph.constant([[[1], [0]]]))  # (batch, direction, 1)
    has_context = graph.node("LessOrEqual", sentences.positions, last)  # (batch, direction, position)
    mask(stack([before, after]), has_context, name=outputs[1].name)
    return graph.finish("elmo", inputs, outputs)


def _build_sentences(graph: GraphBuilder, ids: str) -> _Sentences:
    """Compute the positions of each sentence; ``ids`` is an input (batch, time, …)."""
    lengths = graph.node("Cast", "lengths", to=_INT64)
    time = graph.node("Squeeze", graph.node("Shape", ids, start=1, end=2))
    end = graph.node("Add", time, graph.constant(2))
    return _Sentences(
        positions=graph.node("Range", graph.constant(0), end, graph.constant(1)),
        n_tokens=graph.node("Unsqueeze", lengths, graph.constant([1, 2])),
        n_positions=graph.node("Add", lengths, graph.constant(2)),
    )


def _build_token_layer(graph: GraphBuilder, model: Pretrained, sentences: _Sentences) -> str:
    """Compute the token vectors (position, batch, state), including those of the boundary tokens.

    Each distinct token of the batch is computed once.
    """
    config, indexer = model.config, model.indexer()
    position = graph.node("Unsqueeze", sentences.positions, graph.constant([1]))  # (position, 1)
    is_begin = graph.node("Equal", position, graph.constant(0))  # (position, 1)
    is_after = graph.node("Greater", position, sentences.n_tokens)  # (batch, position, 1)

    def add_boundaries(ids: str, edges: Ids) -> str:
        """Add boundary tokens, whose ids are ``edges`` (2, id), to ids (batch, time, id).

        Padding gets the ids of the last boundary token, so that it adds no distinct token.
        """
        ids = graph.node("Pad", graph.node("Cast", ids, to=_INT64), graph.constant([0, 1, 0, 0, 1, 0]))
        ids = graph.node("Where", is_begin, graph.constant(edges[0]), ids)
        return graph.node("Where", is_after, graph.constant(edges[1]), ids)  # (batch, position, id)

    kinds: list[str] = []
    edges = indexer.boundaries()
    if edges.word_ids is not None:
        word_ids = graph.node("Unsqueeze", "word_ids", graph.constant([2]))
        kinds.append(add_boundaries(word_ids, edges.word_ids[:, None]))
    if edges.char_ids is not None:
        kinds.append(add_boundaries("char_ids", edges.char_ids))
    ids = graph.node("Concat", *kinds, axis=2)  # (batch, position, id)
    n_word_ids = 1 if config.words else 0
    n_ids = n_word_ids + (config.chars.max_characters if config.chars else 0)
    rows = graph.node("Reshape", ids, graph.constant([-1, n_ids]))
    distinct, _, inverse = graph.nodes("Unique", rows, names=(None, "", None), axis=0)  # (token, id); (row,)

    parts: list[str] = []
    if config.words:
        table = _add_weight(graph, model, "token_layer.word_embed.weight")
        column = graph.node("Squeeze", graph.slice(distinct, 0, 1, axis=1), graph.constant([1]))
        parts.append(graph.node("Gather", table, column))  # (token, word_width)
    if config.chars and indexer.alphabet:
        char_ids = graph.slice(distinct, n_word_ids, n_ids, axis=1)
        parts.append(_build_char_cnn(graph, model, config.chars, char_ids, pad=indexer.alphabet.pad))
    x = graph.node("Concat", *parts, axis=1)
    if config.has_token_projection:
        x = _build_linear(graph, model, "token_layer.projection", x)
    if config.chars and config.chars.has_norm:
        x = _build_norm(graph, model, "token_layer.norm", x)
    shape = graph.node("Shape", ids, start=0, end=2)
    index = graph.node("Transpose", graph.node("Reshape", inverse, shape), perm=[1, 0])  # (position, batch)
    return graph.node("Gather", x, index)


def _build_char_cnn(graph: GraphBuilder, model: Pretrained, chars: CharCnnConfig, char_ids: str, *, pad: int) -> str:
    """Compute character features (token, width) from ``char_ids`` (token, char), padded with ``pad``."""
    name = "token_layer.cnn"
    # Most characters are padding. All windows of padding have the same features, so one window is enough.
    is_padding = graph.node("Equal", char_ids, graph.constant(pad))
    ends = graph.constant(np.arange(1, chars.max_characters + 1))
    n_used = graph.node("ReduceMax", graph.node("Where", is_padding, graph.constant(0), ends), keepdims=0)
    n_read = graph.node("Add", n_used, graph.constant([max(width for width, _ in chars.filters)]))
    char_ids = graph.slice(char_ids, 0, n_read, axis=1)
    table = _add_weight(graph, model, f"{name}.char_embed.weight")
    characters = graph.node("Transpose", graph.node("Gather", table, char_ids), perm=[0, 2, 1])
    pooled = []
    for i in range(len(chars.filters)):
        kernel, bias = (_add_weight(graph, model, f"{name}.convolutions.{i}.{part}") for part in ("weight", "bias"))
        windows = graph.node("Conv", characters, kernel, bias)  # (token, filter, window)
        pooled.append(graph.node("ReduceMax", windows, graph.constant([2]), keepdims=0))
    x = graph.node("Relu" if chars.activation == "relu" else "Tanh", graph.node("Concat", *pooled, axis=1))
    if chars.highway_width is not None:
        x = _build_linear(graph, model, f"{name}.projection", x)
    for i in range(chars.n_highway):
        gate = graph.node("Sigmoid", _build_linear(graph, model, f"{name}.highways.{i}.gate", x))
        changed = graph.node("Relu", _build_linear(graph, model, f"{name}.highways.{i}.transform", x))
        kept = graph.node("Sub", graph.constant(1, np.float32), gate)
        x = graph.node("Add", graph.node("Mul", gate, changed), graph.node("Mul", kept, x))
    return x


def _build_linear(graph: GraphBuilder, model: Pretrained, name: str, x: str) -> str:
    weight, bias = (_add_weight(graph, model, f"{name}.{part}") for part in ("weight", "bias"))
    return graph.node("Gemm", x, weight, bias, transB=1)


def _add_weight(graph: GraphBuilder, model: Pretrained, name: str) -> str:
    return graph.weight(name, _to_array(model.weights[name]))


def _to_array(weight: Tensor) -> NDArray[np.float32]:
    return weight.detach().cpu().float().numpy()


def _build_lstms(graph: GraphBuilder, model: Pretrained, name: str, tokens: str) -> list[str]:
    """Compute the states (position, batch, state) of each layer of one direction."""
    lstm, layers = model.config.lstm, list[str]()
    batch = graph.node("Shape", tokens, start=1, end=2)

    def zeros(width: int) -> str:
        shape = graph.node("Concat", batch, graph.constant([width]), axis=0)
        return graph.node("Expand", graph.constant(0, np.float32), shape)

    start = zeros(lstm.state_width), zeros(lstm.cell_width)
    x = tokens
    for k in range(lstm.n_layers):
        at = f"{name}.{k}"
        input_weight, state_weight, bias = (
            _order_gates(model.weights[f"{at}.{part}"]) for part in ("input_weight", "state_weight", "bias")
        )
        bias[lstm.cell_width : 2 * lstm.cell_width] += np.float32(lstm.forget_bias)
        product = graph.node("MatMul", x, graph.weight(f"{at}.input_weight", input_weight, is_transposed=True))
        gates = graph.node("Add", product, graph.weight(f"{at}.bias", bias))  # (position, batch, 4 · cell)
        state_name, projection = graph.weight(f"{at}.state_weight", state_weight, is_transposed=True), None
        if lstm.has_projection:
            matrix = _to_array(model.weights[f"{at}.projection"])
            projection = graph.weight(f"{at}.projection", matrix, is_transposed=True)
        body = _build_lstm_step(lstm, prefix=f"{at}.", state_weight=state_name, projection=projection)
        *_, states = graph.nodes("Scan", *start, gates, names=(None, None, None), body=body, num_scan_inputs=1)
        x = graph.node("Add", states, x) if lstm.has_skip and k > 0 else states
        layers.append(x)
    return layers


def _order_gates(weight: Tensor) -> NDArray[np.float32]:
    """Change the order of the gates from i, f, j, o to i, f, o, j, so that one node computes all sigmoids."""
    i, f, j, o = np.split(_to_array(weight), 4)
    return np.concatenate([i, f, o, j])


def _build_lstm_step(lstm: LstmConfig, *, prefix: str, state_weight: str, projection: str | None) -> GraphProto:
    """Build the body of a ``Scan``, which reads one token of each row; the weights are values of the outer graph."""
    step, cell_width = GraphBuilder(prefix=prefix), lstm.cell_width
    hidden, cell, gates = (f"{prefix}{name}" for name in ("hidden", "cell", "gates"))

    def clip(x: str, limit: float | None) -> str:
        bounds = () if limit is None else (step.constant(-limit, np.float32), step.constant(limit, np.float32))
        return step.node("Clip", x, *bounds) if bounds else x

    total = step.node("Gemm", hidden, state_weight, gates)  # (batch, 4 · cell)
    rates, candidate = step.nodes(
        "Split", total, step.constant([3 * cell_width, cell_width]), names=(None, None), axis=1
    )
    i, f, o = step.nodes("Split", step.node("Sigmoid", rates), names=(None, None, None), axis=1, num_outputs=3)
    added = step.node("Mul", i, step.node("Tanh", candidate))
    new_cell = clip(step.node("Add", step.node("Mul", f, cell), added), lstm.cell_clip)
    new_hidden = step.node("Mul", o, step.node("Tanh", new_cell))
    if projection is not None:
        new_hidden = clip(step.node("MatMul", new_hidden, projection), lstm.state_clip)
    results = [new_hidden, new_cell, step.node("Identity", new_hidden)]

    def value(name: str, width: int) -> OnnxValue:
        return OnnxValue(name, "float32", ("batch", width))

    widths = (lstm.state_width, cell_width)
    return step.graph(
        f"{prefix}step",
        [*map(value, (hidden, cell), widths), value(gates, 4 * cell_width)],
        [*map(value, results, (*widths, lstm.state_width))],
    )


def _add_positions(graph: GraphBuilder, encoder: EncoderConfig, tokens: str, sentences: _Sentences) -> str:
    """Add the positions of tokens (position, batch, state), as ``encode_positions`` computes them."""
    import torch

    even = torch.arange(0, encoder.state_width, 2).float()
    rates = torch.exp(even * (-math.log(10000.0) / encoder.state_width)).numpy()
    position = graph.node("Unsqueeze", graph.node("Cast", sentences.positions, to=_FLOAT), graph.constant([1]))
    angles = graph.node(
        "Unsqueeze", graph.node("Mul", position, graph.constant(rates, np.float32)), graph.constant([2])
    )
    pairs = graph.node("Concat", graph.node("Sin", angles), graph.node("Cos", angles), axis=2)
    encoded = graph.node("Reshape", pairs, graph.constant([-1, 1, encoder.state_width]))  # (position, 1, state)
    return graph.node("Add", tokens, encoded)


def _build_transformers(graph: GraphBuilder, model: Pretrained, name: str, tokens: str) -> list[str]:
    """Compute the states (position, batch, state) of each layer of one direction.

    A token attends to itself and to the tokens before it. Padding comes last, so no token attends to it.
    """
    transformer = cast("TransformerConfig", model.config.encoder)
    width, n_heads = transformer.state_width, transformer.n_heads
    n_positions = graph.node("Squeeze", graph.node("Shape", tokens, start=0, end=1))
    position = graph.node("Range", graph.constant(0), n_positions, graph.constant(1))
    is_earlier = graph.node("LessOrEqual", position, graph.node("Unsqueeze", position, graph.constant([1])))

    def linear(at: str, x: str) -> str:
        weight = graph.weight(f"{at}.weight", _to_array(model.weights[f"{at}.weight"]), is_transposed=True)
        return graph.node("Add", graph.node("MatMul", x, weight), _add_weight(graph, model, f"{at}.bias"))

    def split_heads(x: str, *, axes: list[int]) -> str:
        heads = graph.node("Reshape", x, graph.constant([0, 0, n_heads, width // n_heads]))
        return graph.node("Transpose", heads, perm=axes)  # from (position, batch, head, head width)

    x, layers = tokens, list[str]()
    for k in range(transformer.n_layers):
        at = f"{name}.{k}"
        y = _build_norm(graph, model, f"{at}.attention_norm", x)
        query, value = (split_heads(linear(f"{at}.{part}", y), axes=[1, 2, 0, 3]) for part in ("query", "value"))
        key = split_heads(linear(f"{at}.key", y), axes=[1, 2, 3, 0])
        scale = graph.constant(1 / math.sqrt(width // n_heads), np.float32)
        scores = graph.node("Mul", graph.node("MatMul", query, key), scale)  # (batch, head, position, position)
        scores = graph.node("Where", is_earlier, scores, graph.constant(-math.inf, np.float32))
        context = graph.node("MatMul", graph.node("Softmax", scores, axis=3), value)
        context = graph.node(
            "Reshape", graph.node("Transpose", context, perm=[2, 0, 1, 3]), graph.constant([0, 0, width])
        )
        x = graph.node("Add", x, linear(f"{at}.context", context))
        hidden = graph.node("Relu", linear(f"{at}.hidden", _build_norm(graph, model, f"{at}.feed_forward_norm", x)))
        x = graph.node("Add", x, linear(f"{at}.output", hidden))
        layers.append(x)
    layers[-1] = _build_norm(graph, model, f"{name}.{transformer.n_layers - 1}.output_norm", x)
    return layers


def _build_norm(graph: GraphBuilder, model: Pretrained, name: str, x: str) -> str:
    """Compute ``LayerNorm`` over the last axis."""
    last = graph.constant([-1])
    centered = graph.node("Sub", x, graph.node("ReduceMean", x, last))
    variance = graph.node("ReduceMean", graph.node("Mul", centered, centered), last)
    deviation = graph.node("Add", graph.node("Sqrt", variance), graph.constant(NORM_EPSILON, np.float32))
    gamma, beta = (_add_weight(graph, model, f"{name}.{part}") for part in ("gamma", "beta"))
    return graph.node("Add", graph.node("Mul", gamma, graph.node("Div", centered, deviation)), beta)


# --- the output layer ----------------------------------------------------------------------------


def build_softmax(softmax: SoftmaxWeights, *, dtype: OnnxDtype | None = None) -> OnnxGraph:
    """Build the graph of the output layer: log-probabilities of all words, and the weights as another output."""
    graph, (n_words, width) = GraphBuilder(dtype=dtype), softmax.weight.shape
    weight, bias = graph.weight("weight", _to_array(softmax.weight)), graph.weight("bias", _to_array(softmax.bias))
    graph.node("Identity", weight, name="word_vectors")
    logits = graph.node("Gemm", "states", weight, bias, transB=1)
    graph.node("LogSoftmax", logits, name="log_probabilities", axis=1)
    return graph.finish(
        "softmax",
        [OnnxValue("states", "float32", ("row", width))],
        [
            OnnxValue("log_probabilities", "float32", ("row", n_words)),
            OnnxValue("word_vectors", "float32", (n_words, width)),
        ],
    )
