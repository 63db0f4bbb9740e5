"""Load the compiled kernels of ``kernels.c`` and pack weights for them.

``build_kernels.py`` compiles the C file once for each instruction set when the package is built. This module
loads the best variant for the CPU. Where none was built or none fits, the engine computes with torch alone.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import platform
import struct
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.engine.buffers import new_buffer

VARIABLE = "ELMO_KERNELS"  # environment variable: "0" disables compiled kernels, a variant's name selects it
VERSION = 1  # of the functions and structures in kernels.c
VARIANTS = ("avx512bf16", "avx512", "avx2", "neon")  # best first
TYPES = {"float32": 0, "bfloat16": 1, "int8": 2}
GROUPS = (1, 2, 4)  # number of inputs whose weights are adjacent, for each type
_GATES = 4
_log = logging.getLogger(__name__)


class CompiledError(Exception):
    """Compiled kernels are not available; the text says why. Handled inside the engine."""


def _declare(kind: type, names: str) -> list[tuple[str, type]]:
    """Declare fields of one type of a C structure."""
    return [(name, kind) for name in names.split()]


class Weight(Structure):
    """``struct weight``: a packed weight matrix."""

    _fields_ = [*_declare(c_int64, "type n_in n_out n_panels"), *_declare(c_void_p, "data scale offset")]


class CharCnnWeights(Structure):
    """``struct char_cnn``: the filters and character vectors of a character CNN."""

    _fields_ = [
        ("filters", Weight),
        *_declare(c_void_p, "bias widths characters"),
        *_declare(c_int64, "char_width widest is_relu"),
    ]


class LstmWeights(Structure):
    """``struct lstm``: the weights of one layer of one direction."""

    _fields_ = [
        ("inputs", Weight),
        ("states", Weight),
        ("projection", Weight),
        *_declare(c_void_p, "bias"),
        *_declare(c_int64, "n_in width n_cells has_projection"),
        *_declare(c_float, "cell_clip state_clip"),
    ]


class LstmWindow(Structure):
    """``struct lstm_window``: a window of training, its intermediate results and gradients."""

    _fields_ = [
        *_declare(c_int64, "type time batch n_in width n_cells has_projection"),
        *_declare(c_float, "forget_bias cell_clip state_clip"),
        *_declare(c_void_p, "input_weight state_weight bias projection inputs keep factors outputs gates"),
        *_declare(c_void_p, "free_cells free_hidden hidden d_hidden d_state d_cells d_bias d_gates d_free_hidden"),
    ]


class CnnWindow(Structure):
    """``struct cnn_window``: the words of a training window, their maxima and gradients."""

    _fields_ = [
        *_declare(c_int64, "n_words n_chars n_filters char_width widest is_relu"),
        *_declare(c_void_p, "char_ids n_starts widths characters filters bias y best d_y d_filters d_bias"),
    ]


class HighwayWindow(Structure):
    """``struct highway``: the activations of a highway layer and their gradients."""

    _fields_ = [
        *_declare(c_int64, "type n_words width"),
        *_declare(c_void_p, "products bias x d_y gate transformed y d_x d_products d_bias"),
    ]


class SoftmaxWindow(Structure):
    """``struct softmax``: the states and words of a training window, and their odds."""

    _fields_ = [
        *_declare(c_int64, "type n_tokens n_words width n_hits"),
        *_declare(c_void_p, "states rows bias extra hit_token hit_word odds sums highest d_bias"),
    ]


class Range(Structure):
    """``struct range``: a part of a weight, or some of its rows."""

    _fields_ = [("rows", c_void_p), ("width", c_int64), ("begin", c_int64), ("end", c_int64)]


class Update(Structure):
    """``struct update``: the settings of one optimizer step."""

    _fields_ = [
        ("is_adagrad", c_int64),
        *_declare(c_float, "rate scale beta1 beta2 epsilon decay correction1 correction2"),
    ]


class Schedule(Structure):
    """``struct schedule``: the arrays of a ``BatchSchedule``."""

    _fields_ = [
        *_declare(c_int64, "n_steps"),
        *_declare(
            c_void_p, "batch_sizes offsets first_sentence last_sentence changes change_slot change_ended change_started"
        ),
    ]


class States(Structure):
    """``struct states``: the first and last states of all sentences."""

    _fields_ = [
        *_declare(c_void_p, "start_hidden start_cell"),
        *_declare(c_int64, "hidden_stride cell_stride"),
        *_declare(c_void_p, "last_hidden last_cell"),
    ]


_SIGNATURES = {
    "elmo_linear": [
        POINTER(Weight), c_void_p, c_int64, c_void_p, c_int64, c_int64, c_float, c_void_p, c_int64,
    ],
    "elmo_highway": [POINTER(Weight), c_void_p, c_int64, c_void_p, c_int64, c_void_p],
    "elmo_char_cnn": [POINTER(CharCnnWeights), c_int64, c_int64, c_void_p, c_void_p, c_void_p],
    "elmo_collect": [
        c_int64, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p,
    ],
    "elmo_cnn_forward": [POINTER(CnnWindow), c_int64, c_int64],
    "elmo_cnn_backward": [POINTER(CnnWindow), c_int64, c_int64, c_void_p],
    "elmo_highway_forward": [POINTER(HighwayWindow), c_int64, c_int64],
    "elmo_highway_backward": [POINTER(HighwayWindow), c_int64, c_int64],
    "elmo_softmax": [POINTER(SoftmaxWindow)],
    "elmo_update": [POINTER(Update), POINTER(Range), c_void_p, c_void_p, c_void_p, c_void_p],
    "elmo_lstm_forward": [POINTER(LstmWindow)],
    "elmo_lstm_backward": [POINTER(LstmWindow)],
    "elmo_lstm": [POINTER(LstmWeights), POINTER(Schedule), POINTER(States), c_void_p, c_void_p],
}  # fmt: skip


class Library:
    """A loaded variant of the kernels; ctypes releases the GIL during each call."""

    def __init__(self, path: Path) -> None:
        if _is_truncated(path):  # the process would crash when it reaches the missing part
            raise CompiledError("the file is incomplete")
        library = ctypes.CDLL(str(path))
        for name in ("elmo_version", "elmo_vector_length", "elmo_max_slots", "elmo_types"):
            getattr(library, name).restype = c_int64
        if library.elmo_version() != VERSION:
            raise CompiledError(f"{path.name} was built for another version of elmo; install elmo again")
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.elmo_sum_squares.argtypes, library.elmo_sum_squares.restype = [c_void_p, POINTER(Range)], c_double
        self._library = library
        self.variant = path.stem.removeprefix("kernels.")
        self.vector_length: int = library.elmo_vector_length()
        self.panel = _GATES * self.vector_length  # number of outputs that are summed together
        self.max_slots: int = library.elmo_max_slots()
        types: int = library.elmo_types()
        self.precisions = [name for name, number in TYPES.items() if types >> number & 1]

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library; it reports only that memory is short."""
        if getattr(self._library, name)(*arguments):
            raise MemoryError("not enough memory to encode these sentences")

    def sum_squares(self, array: Tensor, part: Range) -> float:
        """Compute the sum of the squares of a part of an array."""
        return self._library.elmo_sum_squares(array.data_ptr(), part)


def _is_truncated(path: Path) -> bool:
    """Return whether an ELF file ends before its table of sections, which is at its end."""
    with path.open("rb") as file:
        header, size = file.read(64), file.seek(0, os.SEEK_END)
    if not header.startswith(b"\x7fELF\x02\x01"):  # 64 bits, little-endian; other formats are checked by the system
        return False
    if len(header) < 64:
        return True
    (offset,), (entry_size, n_entries) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    return offset + entry_size * n_entries > size


def load_library() -> Library:
    """Load the best variant for this CPU, or raise ``CompiledError`` with the reason why none can be used."""
    choice = os.environ.get(VARIABLE)
    if choice == "0":
        raise CompiledError(f"disabled by {VARIABLE}=0")
    result = _load_library(choice)
    if isinstance(result, str):
        raise CompiledError(result)
    return result


def find_library(precision: str, *arrays: Tensor) -> Library | None:
    """Return the library if it has ``precision`` and can process these arrays, whose last axis is in vectors."""
    if any(array.dtype != torch.float32 or array.device.type != "cpu" for array in arrays):
        return None
    try:
        library = load_library()
    except CompiledError:
        return None
    fits = all(array.size(-1) % library.vector_length == 0 for array in arrays)
    return library if fits and precision in library.precisions else None


@functools.cache  # so that a problem is reported once
def _load_library(choice: str | None) -> Library | str:
    try:
        supported = _supported_variants()
    except Exception as error:  # torch has no public functions for this
        return _warn(f"the instruction sets of this CPU are unknown: {_describe(error)}")
    if not supported:
        return f"there are no compiled kernels for this CPU ({platform.machine()})"
    if choice not in {None, *supported}:
        return f"{VARIABLE}={choice}: this CPU supports {', '.join(supported)}"
    folder = Path(__file__).parent
    problem = None
    for variant in supported if choice is None else (choice,):
        path = folder / f"kernels.{variant}.so"
        if path.is_file():
            try:
                return Library(path)
            except Exception as error:  # damaged, or built for another system or version
                problem = problem or _warn(f"{path.name} cannot be used: {_describe(error)}")
    return (
        problem
        or "this installation has no compiled kernels; a C compiler is needed when elmo is installed from source"
    )


def _warn(problem: str) -> str:
    _log.warning("%s; computing without it, which may be slower; install elmo again to repair it", problem)
    return problem


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:100] or type(error).__name__


def _supported_variants() -> list[str]:
    """The variants that this CPU can run, best first."""
    machine = platform.machine().lower()
    if machine in {"aarch64", "arm64"}:
        return ["neon"]
    if machine not in {"x86_64", "amd64"}:
        return []
    capability = torch.backends.cpu.get_cpu_capability()
    has_avx512 = capability == "AVX512"
    return [
        variant
        for variant, is_supported in (
            ("avx512bf16", has_avx512 and torch.cpu._is_avx512_bf16_supported() and torch.cpu._is_vnni_supported()),
            ("avx512", has_avx512),
            ("avx2", has_avx512 or capability == "AVX2"),
        )
        if is_supported
    ]


class PackedWeight:
    """A copy of a weight matrix (out, in), arranged in panels and rounded to a type."""

    def __init__(self, library: Library, weight: Tensor, precision: str) -> None:
        kind, panel = TYPES[precision], library.panel
        group = GROUPS[kind]
        n_out, n_in = weight.shape
        n_panels = -(-n_out // panel)
        full = F.pad(weight.detach().float(), (0, -n_in % group, 0, n_panels * panel - n_out))
        self._scale = self._offset = None
        if precision == "int8":
            self._scale = (full.abs().amax(dim=1) / 127).clamp_min_(torch.finfo(torch.float32).tiny)
            full = (full / self._scale[:, None]).round_().clamp_(-127, 127)
            self._offset = (full.sum(dim=1) * -128).to(torch.int32)
            full = full.to(torch.int8)
        elif precision == "bfloat16":
            full = full.bfloat16()
        panels = full.view(n_panels, panel, -1, group).transpose(1, 2)
        self._data = new_buffer(tuple(panels.shape), panels).copy_(panels)
        self.struct = Weight(
            kind, full.size(1), n_out, n_panels, self._data.data_ptr(), _address(self._scale), _address(self._offset)
        )

    def pad(self, values: Tensor | None) -> Tensor:
        """Pad one number per output with zeros, to whole panels; zeros by default."""
        n_padded = self.struct.n_panels * self._data.size(2)
        if values is None:
            return torch.zeros(n_padded)
        return F.pad(values.detach().float(), (0, n_padded - len(values))).contiguous()


class CompiledProduct:
    """Computes x · weightᵀ + bias for any number of rows."""

    def __init__(
        self, library: Library, weight: Tensor, bias: Tensor | None, precision: str, *, with_tanh: bool = False
    ) -> None:
        self._library = library
        self._weight = PackedWeight(library, weight, precision)
        self._bias = self._weight.pad(bias)
        self._with_tanh = with_tanh

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Map (row, in) to (row, out), plus ``added`` (row, out)."""
        x = x.float().contiguous()
        weight = self._weight.struct
        y = torch.empty(len(x), weight.n_out)
        self._library.call(
            "elmo_linear", weight, self._bias.data_ptr(), len(x), x.data_ptr(), x.size(1), x.size(1), math.inf,
            y.data_ptr(), weight.n_out,
        )  # fmt: skip
        y = y if added is None else y.add_(added)
        return y.tanh_() if self._with_tanh else y


class CompiledHighway:
    """A highway layer: y = g · relu(t) + (1 − g) · x."""

    def __init__(
        self, library: Library, *, transform: tuple[Tensor, Tensor], gate: tuple[Tensor, Tensor], precision: str
    ) -> None:
        """Take the weight and the bias of the transform and of the gate."""
        self._library = library
        # Half a panel of the transform, then the same outputs of the gate, halved: σ(x) = ½ tanh(½x) + ½.
        half = library.panel // 2
        joined = [
            torch.stack([_split(t.detach().float(), half), _split(g.detach().float() * 0.5, half)], dim=1).flatten(0, 2)
            for t, g in zip(transform, gate, strict=True)
        ]
        self._weight = PackedWeight(library, joined[0], precision)
        self._bias = self._weight.pad(joined[1])

    def __call__(self, x: Tensor) -> Tensor:
        """Map (row, width) to (row, width)."""
        y = torch.empty_like(x)
        self._library.call(
            "elmo_highway", self._weight.struct, self._bias.data_ptr(), len(x), x.data_ptr(), x.size(1), y.data_ptr()
        )
        return y


def _split(outputs: Tensor, size: int) -> Tensor:
    """Split the first axis into parts of ``size``, the last one padded with zeros."""
    padding = (*(0, 0) * (outputs.dim() - 1), 0, -len(outputs) % size)
    return F.pad(outputs, padding).unflatten(0, (-1, size))


def join_gates(library: Library, gates: Tensor) -> Tensor:
    """Arrange gates (4 · cell, …) so that a panel holds the four gates of the same cells."""
    parts = [_split(part, library.vector_length) for part in gates.detach().float().chunk(_GATES)]
    return torch.stack(parts, dim=1).flatten(0, 2)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
