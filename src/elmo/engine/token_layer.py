"""Vectors through one highway layer, as ``model.char_cnn.Highway`` maps them, only faster.

What is saved: autograd sees one operation instead of ten, and each number between the matrix products is read
and written where it lies.

Character ids of distinct words in, their vectors out, as ``model.char_cnn.CharCnn`` gives them, faster.

A word of few characters is mostly padding, and a window that lies in the padding altogether gives the same
numbers wherever it lies: one such window is enough for the max. So words of like length go together, each
group only as long as it needs, and all filters are one matrix product over the widest filter's windows.

Ids of tokens in, their context-free vectors out: ``model.token_layer.TokenLayer``, fast.

A word of few characters is mostly padding, and a window of characters that lies in the padding altogether
gives the same numbers wherever it lies: one such window is enough for the max. So words are sorted, the
longest first, and fewer and fewer of them are left as the windows move on; all filters are one product.

Words in, a vector for each distinct one out: computed once, and remembered for the next call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmo.engine.matmul import Kernels, Product, add_matmul, write_matmul, state_dtype
from elmo.engine.threads import UNPOOLED, BufferPool
from elmo.model.token_layer import CharCnn, Highway, TokenLayer
from elmo.text.ids import TokenIds, TokenIndexer

ROWS = 32  # words whose gates are worked on together: few enough for a processor's cache


def run_highway(
    highway: Highway, x: Tensor, *, has_bf16_products: bool = False, buffers: BufferPool = UNPOOLED
) -> Tensor:
    """Map (word, width) to (word, width).

    With ``buffers`` of one's own, gradients may be taken once only: what they need is given back then.
    """
    gate, transform = highway.gate, highway.transform
    weights = (gate.weight, gate.bias, transform.weight, transform.bias)
    rounded = torch.bfloat16 if has_bf16_products else x.dtype
    return _Layer.apply(x, *weights, rounded, buffers, torch.is_grad_enabled())  # pyright: ignore


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any,
        x: Tensor,
        gate_weight: Tensor,
        gate_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        rounded: torch.dtype,
        buffers: BufferPool,
        is_kept: bool,
    ) -> Tensor:
        factors = x.to(rounded)
        gate, transformed = buffers.take(x.shape, x), buffers.take(x.shape, x)
        write_matmul(gate, factors, gate_weight.to(rounded).t())
        write_matmul(transformed, factors, weight.to(rounded).t())
        y = torch.empty_like(x)
        for t, g, from_, to in _by_rows(transformed, gate, x, y):
            g.add_(gate_bias).sigmoid_()
            t.add_(bias).relu_()
            torch.sub(t, from_, out=to).mul_(g).add_(from_)  # g · t + (1 − g) · x
        ctx.rounded, ctx.buffers = rounded, buffers
        ctx.save_for_backward(x, gate_weight, weight, gate, transformed)
        if not is_kept:
            buffers.release(gate, transformed)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (d_y,) = gradients
        x, gate_weight, weight, gate, transformed = ctx.saved_tensors
        rounded, buffers = ctx.rounded, ctx.buffers
        d_gate, d_transformed = buffers.take(x.shape, x), buffers.take(x.shape, x)
        d_x = torch.empty_like(x)
        d_gate_bias, d_bias = torch.zeros_like(weight[0]), torch.zeros_like(weight[0])
        for t, g, from_, d_to, d_t, d_g, d_from in _by_rows(
            transformed, gate, x, d_y, d_transformed, d_gate, d_x
        ):
            torch.mul(d_to, g, out=d_t)
            torch.sub(d_to, d_t, out=d_from)  # (1 − g) · d_y
            torch.sub(t, from_, out=d_g).mul_(d_to)
            torch.ops.aten.sigmoid_backward.grad_input(d_g, g, grad_input=d_g)
            torch.ops.aten.threshold_backward.grad_input(d_t, t, 0, grad_input=d_t)
            d_gate_bias += d_g.sum(dim=0)
            d_bias += d_t.sum(dim=0)
        factors = x.to(rounded)
        d_weights = []
        for d_out, matrix in ((d_gate, gate_weight), (d_transformed, weight)):
            d_factors = d_out.to(rounded)
            add_matmul(d_x, d_factors, matrix.to(rounded))
            d_weights.append((d_factors.t() @ factors).to(x.dtype))
        buffers.release(gate, transformed, d_gate, d_transformed)
        return d_x, d_weights[0], d_gate_bias, d_weights[1], d_bias, None, None, None


def _by_rows(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of each, few enough for a processor's cache."""
    return zip(*(tensor.split(ROWS) for tensor in tensors), strict=True)


GROUP = 64  # words that are convolved together: few enough for a processor's cache


def run_char_cnn(
    cnn: CharCnn, char_ids: Tensor, *, has_bf16_products: bool = False, buffers: BufferPool = UNPOOLED
) -> Tensor:
    """Map ``char_ids`` (word, char) to (word, width).

    With ``has_bf16_products`` the highway layers, the better part of the work, multiply in bfloat16. With
    ``buffers`` of one's own, gradients may be taken once only: what they need is given back then.
    """
    weights = [
        cast("Tensor", convolution.weight) for convolution in cnn.convolutions
    ]  # (filter, width, char)
    widths = [weight.size(2) for weight in weights]
    # (filter, window position · char_width + character dimension); narrow filters end in zeros
    filters = torch.cat(
        [F.pad(weight, (0, max(widths) - weight.size(2))).transpose(1, 2).flatten(1) for weight in weights]
    )
    bias = torch.cat([cast("Tensor", convolution.bias) for convolution in cnn.convolutions])
    n_places = [char_ids.size(1) - width + 1 for width in widths]  # where a window may start
    groups = list(_groups(char_ids, n_most=max(n_places)))
    fits = [(n, len(weight)) for n, weight in zip(n_places, weights, strict=True)]
    rules = _Rules(fits, cnn.activation is torch.relu, buffers, torch.is_grad_enabled())
    x = _Highest.apply(cnn.char_embed.weight, filters, bias, groups, len(char_ids), rules)  # pyright: ignore
    for highway in cnn.highways:
        x = run_highway(cast("Highway", highway), x, has_bf16_products=has_bf16_products, buffers=buffers)
    return x


@dataclass(frozen=True)
class _Group:
    """Words of like length."""

    words: Tensor  # which ones
    char_ids: Tensor  # (word, char), to the longest one's end and the widest filter's behind it
    n_starts: int  # of windows


def _groups(char_ids: Tensor, n_most: int) -> Iterator[_Group]:
    lengths = _lengths(char_ids)
    order = lengths.argsort(stable=True)
    rising = lengths[order].tolist()
    begin = 0
    for end in range(1, len(rising) + 1):
        is_full = end - begin == GROUP
        if end == len(rising) or is_full or rising[end] > rising[begin] * 1.25 + 2:
            words = order[begin:end]
            yield _Group(words, char_ids[words], min(rising[end - 1] + 1, n_most))
            begin = end


def _lengths(char_ids: Tensor) -> Tensor:
    """Characters of each word (word, char) before it only repeats its last one, which is padding mostly."""
    differs = char_ids != char_ids[:, -1:]
    place = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * place).amax(dim=1)


@dataclass(frozen=True)
class _Rules:
    fits: list[tuple[int, int]]  # at how many places each width of filter may start, and how many such
    is_relu: bool  # else tanh
    buffers: BufferPool
    is_kept: bool  # for gradients, until they are taken

    def activate_(self, x: Tensor) -> Tensor:
        """In place."""
        return x.relu_() if self.is_relu else x.tanh_()

    def deactivate_(self, gradient: Tensor, y: Tensor) -> Tensor:
        """In place: the gradient of what was activated to ``y``."""
        if self.is_relu:
            return torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)
        return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)


class _Highest(torch.autograd.Function):
    """The highest response of each filter, activated: characters of words to (word, filter)."""

    @staticmethod
    def forward(  # noqa: PLR0917 (autograd takes tensors by position)
        ctx: Any,
        characters: Tensor,
        filters: Tensor,
        bias: Tensor,
        groups: list[_Group],
        n_words: int,
        rules: _Rules,
    ) -> Tensor:
        n_filters, char_width = len(filters), characters.size(1)
        activated = filters.new_empty(n_words, n_filters)
        windows_of: list[Tensor] = []
        # how far each response lies below the highest; of all groups together, for a group's size varies more
        n_windows = sum(group.n_starts * len(group.words) for group in groups)
        below = rules.buffers.take((n_windows, n_filters), filters)
        below_of = below.split([group.n_starts * len(group.words) for group in groups])
        for group, responses in zip(groups, below_of, strict=True):
            windows = _windows(characters, group, filters.size(1) // char_width)
            torch.mm(windows, filters.t(), out=responses)
            by_start = responses.view(group.n_starts, -1, n_filters)
            _leave_out(by_start, rules.fits)
            highest = by_start.amax(dim=0)
            by_start -= highest
            # the same bias everywhere does not change which window is highest
            activated[group.words] = rules.activate_(highest.add_(bias))
            windows_of.append(windows)
        if rules.is_kept:
            ctx.save_for_backward(characters, filters, activated, *windows_of)
            ctx.groups, ctx.below, ctx.rules = groups, below, rules
        else:
            rules.buffers.release(below)
        return activated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (d_activated,) = gradients
        characters, filters, activated, *windows_of = ctx.saved_tensors
        rules: _Rules = ctx.rules
        d_characters, d_filters = torch.zeros_like(characters), torch.zeros_like(filters)
        d_bias = torch.zeros_like(filters[:, 0])
        below_of = ctx.below.split([len(windows) for windows in windows_of])
        for group, windows, below in zip(ctx.groups, windows_of, below_of, strict=True):
            gradient = rules.deactivate_(d_activated[group.words], activated[group.words])
            d_bias += gradient.sum(dim=0)
            _keep_highest(below.view(group.n_starts, -1, len(filters)), gradient)
            d_filters.addmm_(below.t(), windows)
            _add_windows(d_characters, group, below @ filters)
        rules.buffers.release(ctx.below)
        d_characters[0] = 0  # the mask's, which is not learned
        return d_characters, d_filters, d_bias, None, None, None


def _keep_highest(below: Tensor, left: Tensor) -> None:
    """In place, of (start, word, filter): how far each response lies below the highest, to its gradient.

    Of several that are highest, the first has it all: they are windows of padding, one like the other.
    """
    least = torch.finfo(left.dtype).smallest_normal
    for of_start in below:
        # hardtanh's gradient, the quickest way to say: where the difference is zero, else nothing
        torch.ops.aten.hardtanh_backward.grad_input(left, of_start, -least, least, grad_input=of_start)
        left -= of_start


def _windows(characters: Tensor, group: _Group, widest: int) -> Tensor:
    """What the widest filter reads, beyond a word's end zeros: (start · word, position · char_width)."""
    n_chars = group.n_starts + widest - 1
    read = F.embedding(group.char_ids[:, :n_chars], characters).transpose(0, 1)  # (char, word, char_width)
    read = F.pad(read, (0, 0, 0, 0, 0, n_chars - len(read)))
    # (start, word, char_width, position)
    return read.unfold(0, widest, 1).transpose(2, 3).reshape(-1, widest * characters.size(1))


def _add_windows(d_characters: Tensor, group: _Group, d_windows: Tensor) -> None:
    """Add the gradients of ``_windows`` to those of each character."""
    ids = group.char_ids.t()  # (char, word)
    char_width, n_words = d_characters.size(1), ids.size(1)
    by_start = d_windows.view(group.n_starts, n_words, -1, char_width)
    widest = by_start.size(2)
    d_read = d_windows.new_zeros(group.n_starts + widest - 1, n_words, char_width)
    for position in range(widest):
        d_read[position : position + group.n_starts] += by_start[:, :, position]
    ids = ids[: len(d_read)]
    d_characters.index_add_(0, ids.flatten(), d_read[: len(ids)].flatten(end_dim=1))


def _leave_out(responses: Tensor, fits: list[tuple[int, int]]) -> None:
    """In place, of (start, word, filter): windows that reach beyond the longest word's end are no windows."""
    first = 0
    for n_places, n_filters in fits:
        responses[n_places:, :, first : first + n_filters] = -torch.inf
        first += n_filters


class FrozenTokenLayer:
    """A token layer, its weights as they were when it was made."""

    def __init__(self, layer: TokenLayer, kernels: Kernels) -> None:
        self._kernels = kernels
        self._words = None if layer.word_embed is None else layer.word_embed.weight.detach()
        self._cnn = None if layer.cnn is None else _CnnRows(layer.cnn, kernels)
        self._projection = None
        if layer.projection is not None:
            weight, bias = layer.projection.weight.detach(), layer.projection.bias.detach()
            self._projection = kernels.fine_product(weight, bias)

    def __call__(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        """Vectors (token, width) of at most ``Kernels.max_rows`` tokens: (token, char) and (token,)."""
        given = char_ids if char_ids is not None else cast("Tensor", word_ids)
        n = self._kernels.rows(len(given))
        parts: list[Tensor] = []
        if self._words is not None:
            parts.append(F.embedding(_repeated(cast("Tensor", word_ids), n), self._words))
        if self._cnn is not None:
            parts.append(self._cnn(_repeated(cast("Tensor", char_ids), n)))
        x = torch.cat([part.to(state_dtype(part)) for part in parts], dim=1)
        if self._projection is not None:
            x = self._projection(x)
        return x[: len(given)]


class _CnnRows:
    def __init__(self, cnn: CharCnn, kernels: Kernels) -> None:
        self._kernels = kernels
        weights = [cast("Tensor", convolution.weight).detach() for convolution in cnn.convolutions]
        characters = cnn.char_embed.weight.detach()
        self._characters = characters.to(state_dtype(characters))
        self._widths = [weight.size(2) for weight in weights]
        self._counts = [len(weight) for weight in weights]
        self._widest = max(self._widths)
        # (filter, window position · char_width + character dimension); narrow filters end in zeros
        filters = [F.pad(weight, (0, self._widest - weight.size(2))) for weight in weights]
        windows = torch.cat([weight.transpose(1, 2).flatten(1) for weight in filters])
        self._filters = kernels.exact_product(windows)  # a max of rough numbers is too high
        bias = torch.cat([cast("Tensor", convolution.bias).detach() for convolution in cnn.convolutions])
        self._bias = bias.to(state_dtype(bias))
        self._activate = torch.relu_ if cnn.activation is torch.relu else torch.tanh_
        self._highways = [_highway_product(cast("Highway", highway), kernels) for highway in cnn.highways]

    def __call__(self, char_ids: Tensor) -> Tensor:
        """Features (token, filter) of (token, char), as many as the kernels take."""
        lengths = word_lengths(char_ids)
        falling, order = lengths.sort(descending=True, stable=True)
        highest = torch.empty(len(order), sum(self._counts), dtype=self._bias.dtype, device=order.device)
        highest[order] = self._highest(char_ids[order], falling.tolist())
        x = self._activate(highest.add_(self._bias))  # rounding is monotone: the bias may follow the max
        for highway in self._highways:
            x = _through_highway(highway, x)
        return x

    def _highest(self, char_ids: Tensor, lengths: list[int]) -> Tensor:
        """Each filter's highest response, without bias, for words of falling length."""
        n_chars = char_ids.size(1)
        n_most = n_chars - min(self._widths) + 1  # places where the narrowest filter may start
        n_starts = [min(length + 1, n_most) for length in lengths]
        n_read = n_starts[0] + self._widest - 1
        read = F.embedding(char_ids[:, :n_read], self._characters)  # (word, char, char_width)
        read = F.pad(read, (0, 0, 0, n_read - read.size(1)))
        highest = self._filters(self._window(read, 0))
        count = len(lengths)
        for start in range(1, n_starts[0]):
            while n_starts[count - 1] <= start:
                count -= 1
            n = self._kernels.rows(count)
            responses = self._filters(self._window(read[:n], start))
            if n_chars - start >= self._widest:
                torch.maximum(highest[:n], responses, out=highest[:n])
                continue
            first = 0  # windows that reach beyond the last character are no windows
            for width, n_filters in zip(self._widths, self._counts, strict=True):
                if width <= n_chars - start:
                    part = highest[:n, first : first + n_filters]
                    torch.maximum(part, responses[:, first : first + n_filters], out=part)
                first += n_filters
        return highest

    def _window(self, read: Tensor, start: int) -> Tensor:
        return read[:, start : start + self._widest].flatten(1)


def _highway_product(highway: Highway, kernels: Kernels) -> Product:
    """The transform and the gate in one; the gate halved, see ``gate_weights`` on sigmoids."""
    weight = torch.cat([highway.transform.weight.detach(), highway.gate.weight.detach() * 0.5])
    bias = torch.cat([highway.transform.bias.detach(), highway.gate.bias.detach() * 0.5])
    return kernels.fine_product(weight, bias)


def _through_highway(product: Product, x: Tensor) -> Tensor:
    transformed, gate = product(x).chunk(2, dim=1)
    gate = gate.tanh_().add_(1).mul_(0.5)
    return transformed.relu_().sub_(x).mul_(gate).add_(x)  # g · relu + (1 − g) · x


def word_lengths(char_ids: Tensor) -> Tensor:
    """Characters of each word (word, char) before it only repeats its last one, which is padding mostly."""
    differs = char_ids != char_ids[:, -1:]
    place = torch.arange(1, char_ids.size(1) + 1, device=char_ids.device)
    return (differs * place).amax(dim=1)


def _repeated(ids: Tensor, n: int) -> Tensor:
    """``n`` rows: the last one again and again where there are fewer."""
    return ids if len(ids) == n else torch.cat([ids, ids[-1:].expand(n - len(ids), *ids.shape[1:])])


CACHED_WORDS = 50_000  # that are remembered, those read last; 100 MB of vectors at the largest published size
LONGEST_CACHED = 64  # characters of a word that is remembered: spellings take memory as well
FEWEST_TOGETHER = 4  # words that are not worth a thread of their own

RunAll = Callable[[Sequence[Callable[[], Tensor]]], list[Tensor]]


class TokenVectorCache:
    """The token layer behind a memory for words; several threads may ask at a time."""

    def __init__(
        self,
        indexer: TokenIndexer,
        layer: FrozenTokenLayer,
        kernels: Kernels,
        *,
        device: torch.device,
        n_cached: int = CACHED_WORDS,
    ) -> None:
        self._indexer = indexer
        self._layer = layer
        self._kernels = kernels
        self._device = device
        self._n_cached = n_cached
        self._lock = threading.Lock()
        self._slots: OrderedDict[str, int] = OrderedDict()  # rows of the table; read last, stands last
        edges = self._compute(indexer.boundaries(), lambda pieces: [piece() for piece in pieces])
        self.boundaries = edges  # (2, width)
        self._table = edges.new_empty(0, edges.size(1))

    def __len__(self) -> int:
        """How many words are remembered."""
        return len(self._slots)

    def forget(self) -> None:
        """Remember no word."""
        with self._lock:
            self._slots.clear()
            self._table = self._table[:0].clone()

    def __call__(self, words: Sequence[str], run_all: RunAll) -> Tensor:
        """The vectors (word, width) of distinct words; ``run_all`` runs independent pieces of work."""
        found = self.boundaries.new_empty(len(words), self.boundaries.size(1))
        with self._lock:
            slots = [self._slots.get(word) for word in words]
            known = [k for k, slot in enumerate(slots) if slot is not None]
            for k in known:
                self._slots.move_to_end(words[k])
            if known:
                rows = self._numbers([slot for slot in slots if slot is not None])
                found.index_copy_(0, self._numbers(known), self._table.index_select(0, rows))
        missing = [k for k, slot in enumerate(slots) if slot is None]
        if missing:
            unknown = [words[k] for k in missing]
            vectors = self._compute(self._indexer.words(unknown), run_all)
            found.index_copy_(0, self._numbers(missing), vectors)
            with self._lock:
                self._remember(unknown, vectors)
        return found

    def _compute(self, ids: TokenIds, run_all: RunAll) -> Tensor:
        parts = [part for part in (ids.char_ids, ids.word_ids) if part is not None]
        n = len(parts[0])
        # words of like length together: what is computed for one is computed for all
        order = torch.arange(n)
        if ids.char_ids is not None:
            order = word_lengths(torch.from_numpy(ids.char_ids)).argsort(descending=True, stable=True)
        size = min(self._kernels.max_rows, max(FEWEST_TOGETHER, -(-n // 2)))  # a few for each of two threads

        def piece(rows: Tensor) -> Tensor:
            given = (ids.char_ids, ids.word_ids)
            chosen = (None if part is None else torch.from_numpy(part)[rows] for part in given)
            return self._layer(*(None if part is None else part.to(self._device) for part in chosen))

        vectors = torch.cat(run_all([lambda rows=rows: piece(rows) for rows in order.split(size)]))
        return torch.empty_like(vectors).index_copy_(0, order.to(self._device), vectors)

    def _numbers(self, numbers: list[int]) -> Tensor:
        """To index by: not by brackets, see ``Engine.run``."""
        return torch.tensor(numbers, device=self._device)

    def _remember(self, words: Sequence[str], vectors: Tensor) -> None:
        """The last ``n_cached`` words, in place of those that were not read for longest."""
        rows = [k for k, word in enumerate(words) if len(word) <= LONGEST_CACHED and word not in self._slots]
        rows = rows[max(0, len(rows) - self._n_cached) :]
        slots: list[int] = []
        for k in rows:
            if len(self._slots) < self._n_cached:
                slot = len(self._slots)
            else:
                _, slot = self._slots.popitem(last=False)
            self._slots[words[k]] = slot
            slots.append(slot)
        if len(self._slots) > len(self._table):
            n_rows = min(self._n_cached, max(len(self._slots), 2 * len(self._table)))
            more = self._table.new_empty(n_rows - len(self._table), self._table.size(1))
            self._table = torch.cat([self._table, more])
        self._table[slots] = vectors[rows]
