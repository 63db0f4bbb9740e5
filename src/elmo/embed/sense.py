"""``layers="sense"``: vectors for comparing usages of words, made of the context of each word.

The layers of a token mostly reflect the word itself. This view describes the context of a word by three vectors in the
space of the softmax, each scaled to unit length, and adds the word itself:

- *expected words*: the mean of the softmax rows v_w of the 4,000 most frequent words, weighted by how much better they
  fit here than elsewhere, p_w ∝ P_f(w) · P_b(w) / P_0(w)². P_f and P_b are the predictions of the two language models,
  neither of which has read the word, and P_0 is the prior probability (Zipf's law).
- *states*: the sum of the two states that predict the word, h_f before it and h_b after it. Because both directions
  share one softmax, P_f(w) · P_b(w) ∝ exp((h_f + h_b) · v_w + 2 · bias_w), so one product gives all p_w. At the start
  and at the end of a sentence, one direction has read nothing but the boundary; the other state is used twice instead.
- *nearby words*: the sum of their softmax rows, each with the weight exp(-distance / 8) · a / (a + P_0) (the second
  factor is that of SIF, Arora et al. 2017: frequent words count less).
- *token*: the vector of the word in the token layer. It does not change the order of similarities between usages with
  the same spelling, but separates different words.

The vector is [unit(expected + states / 2 + nearby / 2); 0.6 · token] / √1.36; its width is that of a layer, and its
length is 1. The constants were chosen on SemCor, the train part of WiC and pseudo-words; see docs/vectors.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from elmo.engine.matmul import InexactError, choose_kernels, plain_kernels

if TYPE_CHECKING:
    from elmo.engine.bilm import EngineOutput
    from elmo.formats.pretrained import SoftmaxWeights
    from elmo.text.ids import TokenIndexer, Vocabulary

logger = logging.getLogger(__name__)

STATES_WEIGHT, NEARBY_WEIGHT, TOKEN_WEIGHT = 0.5, 0.5, 0.6
N_CANDIDATES = 4000  # number of most frequent words that can be expected
_DECAY = 8.0  # distance at which the weight of a nearby word has fallen to 1 / e
_REACH = 40  # words at a larger distance have no weight
_FREQUENCY = 1e-4  # a: a word with this probability counts half
_BLOCK = 128  # number of tokens whose nearby words are added up at once
_CHUNK = 64  # number of tokens whose expected words are computed at once
_ALIGNMENT = 64  # the number of candidates is a multiple of this: a remainder would go through other code

Floats = NDArray[np.floating[Any]]
RunTasks = Callable[[Sequence[Callable[[], None]]], Any]  # runs independent tasks, possibly in several threads


class SenseView:
    """Computes the vectors of ``layers="sense"`` from the layers of a sentence.

    Args:
        vocab: The vocabulary of the softmax.
        softmax: The softmax. Without a softmax and a vocabulary, the context is described by the states only.
        indexer: The indexer of the model, which knows how the words of the vocabulary are spelled.
    """

    def __init__(self, vocab: Vocabulary | None, softmax: SoftmaxWeights | None, indexer: TokenIndexer) -> None:
        self._words: _SoftmaxWords | None = None
        if vocab is not None and softmax is not None:
            self._words = _SoftmaxWords(vocab, softmax, indexer)
        else:
            missing = "softmax" if softmax is None else "vocabulary"
            logger.warning("this model has no %s: layers='sense' uses only the states around each word", missing)

    def __call__(self, sentences: Sequence[Sequence[str]], output: EngineOutput, run_tasks: RunTasks) -> list[Tensor]:
        """Compute the vectors (time, width) of each sentence; a sentence does not depend on the others.

        Args:
            sentences: The tokens of each sentence.
            output: The layers and edges of the sentences.
            run_tasks: Runs the products of several chunks.
        """
        like = output.layers[0]
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        top = [layers[-1].detach().to("cpu", dtype).numpy() for layers in output.layers]
        edges = [edge.detach().to("cpu", dtype).numpy() for edge in output.edges]
        states = [_predicting_states(*parts) for parts in zip(top, edges, strict=True)]
        if self._words is None:
            contexts = states
        else:
            joined = np.concatenate(states)
            expected = _normalize(self._words.expect(joined, run_tasks))
            expected += STATES_WEIGHT * _normalize(joined)
            contexts = np.split(expected, np.cumsum([len(part) for part in states])[:-1])
            for context, tokens in zip(contexts, sentences, strict=True):
                nearby = sum_nearby(self._words.rows(tokens).astype(context.dtype))
                np.add(context, NEARBY_WEIGHT * _normalize(nearby), out=context)
        results: list[Tensor] = []
        for context, layers in zip(contexts, output.layers, strict=True):
            own = layers[0, :, : context.shape[1]].detach().to("cpu", dtype).numpy().copy()
            vectors = np.concatenate([_normalize(context), TOKEN_WEIGHT * _normalize(own)], axis=1)
            vectors /= np.sqrt(1 + TOKEN_WEIGHT**2)
            results.append(torch.from_numpy(vectors).to(like.device))
        return results


def _predicting_states(top: Floats, edges: Floats) -> Floats:
    """Add the forward state before and the backward state after each token (time, width / 2).

    The first token has the backward state twice, and the last token the forward state. ``top`` is the top layer
    (time, width); ``edges`` (direction, width / 2) are the states at the boundaries, for a sentence of one token.
    """
    half = top.shape[1] // 2
    states = np.empty((len(top), half), dtype=top.dtype)
    if len(top):
        before, after = top[:-1, :half], top[1:, half:]
        states[0], states[1:] = after[0] if len(after) else edges[0], before
        states[-1] += before[-1] if len(before) else edges[1]
        states[:-1] += after
    return states


class _SoftmaxWords:
    """The words of the softmax: which of them are expected from a state, and the rows of the words of a text."""

    def __init__(self, vocab: Vocabulary, softmax: SoftmaxWeights, indexer: TokenIndexer) -> None:
        self._vocab, self._softmax, self._alphabet = vocab, softmax, indexer.alphabet
        log_priors = compute_log_priors(len(vocab))
        special = {vocab.bos, vocab.eos, vocab.unknown}
        is_word = np.array([word not in special for word in vocab.words])
        self._weights = np.where(is_word, _FREQUENCY / (_FREQUENCY + np.exp(log_priors)), 0).astype(np.float32)
        candidates = torch.from_numpy(np.flatnonzero(is_word[:N_CANDIDATES]))
        rows, bias = (part.detach()[candidates].float().cpu() for part in (softmax.weight, softmax.bias))
        offsets = 2 * (bias - torch.from_numpy(log_priors)[candidates])
        missing = -len(rows) % _ALIGNMENT
        rows, offsets = F.pad(rows, (0, 0, 0, missing)), F.pad(offsets, (0, missing), value=-1e4)  # exp(-1e4) is 0
        units = torch.from_numpy(_normalize(rows.numpy().copy()))
        try:
            self._kernels = choose_kernels(rows)
            self._score, self._average = (self._kernels.product(rows, offsets), self._kernels.product(units.t()))
        except InexactError as error:
            self._kernels = plain_kernels(rows, str(error))
            self._score, self._average = (self._kernels.product(rows, offsets), self._kernels.product(units.t()))

    def expect(self, states: Floats, run_tasks: RunTasks) -> Floats:
        """Return the mean row of the words that are expected for each state (token, width)."""
        expected = np.empty_like(states)
        chunks = [slice(begin, begin + _CHUNK) for begin in range(0, len(states), _CHUNK)]
        run_tasks([partial(self._expect, states[chunk], expected[chunk]) for chunk in chunks])
        return expected

    @torch.inference_mode()
    def _expect(self, states: Floats, expected: Floats) -> None:
        n = len(states)
        padded = np.zeros((self._kernels.padded_block(n), states.shape[1]), dtype=np.float32)
        padded[:n] = states
        scores = self._score(torch.from_numpy(padded)).numpy()  # (token, candidate)
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=1, keepdims=True)
        expected[:] = (self._average(torch.from_numpy(scores)).numpy() / sums)[:n]

    def rows(self, tokens: Sequence[str]) -> NDArray[np.float32]:
        """Return the unit vector of each token in the softmax, scaled by its weight (token, width); 0 if unknown."""
        ids = np.array([self._find(token) for token in tokens], dtype=np.int64)
        rows = self._softmax.weight.detach()[torch.from_numpy(np.maximum(ids, 0))].float().cpu().numpy()
        return _normalize(rows) * np.where(ids < 0, 0, self._weights[ids])[:, None]

    def _find(self, token: str) -> int:
        """Return the id of a token or of its form in lower case; -1 if the vocabulary has neither."""
        form = self._alphabet.lookup_form(token) if self._alphabet else token
        if form not in self._vocab:
            form = form.lower()
        return self._vocab.id(form) if form in self._vocab else -1


def compute_log_priors(n_words: int) -> NDArray[np.float32]:
    """Estimate the log-probability of each word of a vocabulary (word,) by Zipf's law.

    Models store no word counts, but vocabularies are sorted by count (the sampled softmax of bilm-tf requires
    it), so the frequency of a word is roughly proportional to 1 / its rank. The bias of a trained softmax is a
    worse estimate.
    """
    shares = 1.0 / np.arange(1, n_words + 1)
    return np.log(shares / shares.sum()).astype(np.float32)


def sum_nearby(rows: Floats) -> Floats:
    """Sum the rows (token, width) around each token, without its own, weighted by distance."""
    sums = np.empty_like(rows)
    for begin in range(0, len(rows), _BLOCK):
        end = min(begin + _BLOCK, len(rows))
        first, last = max(0, begin - _REACH), min(len(rows), end + _REACH)
        columns = slice(_REACH - begin + first, _REACH - begin + last)  # column _REACH is the first token of the block
        np.matmul(_KERNEL[: end - begin, columns].astype(rows.dtype), rows[first:last], out=sums[begin:end])
    return sums


def _build_kernel() -> NDArray[np.float32]:
    """Return the weight of each token (column, from ``_REACH`` before the block) for each token of a block (row)."""
    distances = np.abs(np.arange(_BLOCK)[:, None] + _REACH - np.arange(_BLOCK + 2 * _REACH))
    is_near = (distances > 0) & (distances <= _REACH)
    return np.where(is_near, np.exp(-distances / _DECAY), 0.0).astype(np.float32)


_KERNEL = _build_kernel()


def _normalize(rows: Floats) -> Floats:
    """Scale rows to unit length, in place; rows of zeros stay zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.where(norms > 0, norms, 1)[:, None]
    return rows
