"""N-gram models with Witten-Bell smoothing: the baseline that a language model has to beat.

Symbols: h a context (the last n - 1 tokens), h' the same without its oldest token, V the size of
the vocabulary, c(h, w) how often w followed h in train, N(h) = sum_w c(h, w), T(h) the number of
different tokens that followed h.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import Ids

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Level:
    """The n-grams of one length. A context is the number of its n-gram one level below."""

    grams: Ints
    """Sorted codes context * V + token."""
    counts: Ints
    """c(h, w) of each n-gram."""
    totals: Ints
    """N(h) of each context."""
    kinds: Ints
    """T(h) of each context."""


@dataclass(frozen=True)
class NGramModel:
    """Interpolated Witten-Bell (Witten and Bell, 1991, method C; Chen and Goodman, 1998).

        P_n(w | h) = (c(h, w) + T(h) P_n-1(w | h')) / (N(h) + T(h)),    P_0(w) = 1 / V

    A context that train never continued passes P_n-1 on unchanged. P_0 is uniform over the whole
    vocabulary, the unknown symbol included, so every token has a probability and they sum to one.
    The first tokens of a text are predicted from the contexts they have.

        >>> model = NGramModel.fit(np.array([0, 1, 0, 1, 0]), vocab_size=3, order=2)
        >>> [round(nats, 3) for nats in model.nats_by_order(np.array([0, 1]))]
        [0.806, 0.439]
    """

    vocab_size: int
    levels: tuple[_Level, ...]

    @classmethod
    def fit(cls, ids: Ids, *, vocab_size: int, order: int) -> "NGramModel":
        """Count all n-grams of length 1 to `order` in the train ids."""
        if order < 1 or len(ids) < order:
            raise DataError(
                f"The order is {order} and the text has {len(ids)} tokens; expected an order of at "
                f"least 1 and a text at least as long as that."
            )
        tokens = _check(ids, vocab_size)
        levels, contexts, known = [], np.zeros(len(tokens), np.int64), 1
        for n in range(1, order + 1):
            # contexts[i] numbers the n - 1 tokens before i, for i from n - 1 on.
            level, numbers = _count(contexts * vocab_size + tokens[n - 1 :], known, vocab_size)
            levels.append(level)
            contexts, known = numbers[:-1], len(level.grams)
        return cls(vocab_size, tuple(levels))

    def nats_by_order(self, ids: Ids) -> list[float]:
        """Mean -log P of a text in nats per token, under order 1, 2, ... of this model."""
        return [float(-np.log(p).mean()) for p in self.probabilities(ids)]

    def probabilities(self, ids: Ids) -> list[Floats]:
        """P of each token of a text given the ones before it, under order 1, 2, ... of this model."""
        tokens = _check(ids, self.vocab_size)
        p = np.full(len(tokens), 1.0 / self.vocab_size)
        contexts, result = np.zeros(len(tokens), np.int64), []
        for n, level in enumerate(self.levels, start=1):
            numbers = _find(level.grams, contexts, tokens[n - 1 :], self.vocab_size)
            p = p.copy()
            p[n - 1 :] = _interpolate(level, contexts, numbers, p[n - 1 :])
            result.append(p)
            contexts = numbers[:-1]
        return result


def _count(codes: Ints, contexts: int, vocab_size: int) -> tuple[_Level, Ints]:
    """The level of these n-grams, and the number of the n-gram at each place."""
    grams, numbers, counts = np.unique(codes, return_inverse=True, return_counts=True)
    context = grams // vocab_size
    totals = np.bincount(context, weights=counts, minlength=contexts).astype(np.int64)
    kinds = np.bincount(context, minlength=contexts)
    return _Level(grams, counts, totals, kinds), numbers


def _find(grams: Ints, contexts: Ints, tokens: Ints, vocab_size: int) -> Ints:
    """The number of each n-gram (context, token), or -1 where train does not have it."""
    codes = contexts * vocab_size + tokens
    at = np.minimum(np.searchsorted(grams, codes), len(grams) - 1)
    return np.where((contexts >= 0) & (grams[at] == codes), at, -1)


def _interpolate(level: _Level, contexts: Ints, numbers: Ints, lower: Floats) -> Floats:
    known = contexts >= 0
    kinds = np.where(known, level.kinds[contexts], 0)
    totals = np.where(known, level.totals[contexts], 0)
    counts = np.where(numbers >= 0, level.counts[numbers], 0)
    # Where nothing followed the context, T = N = 0 and the lower order stands as it is.
    mass = np.maximum(totals + kinds, 1)
    return np.where(totals > 0, (counts + kinds * lower) / mass, lower)


def _check(ids: Ids, vocab_size: int) -> Ints:
    if len(ids) == 0:
        raise DataError("The text has no tokens; give one with at least one token.")
    if np.max(ids) >= vocab_size or np.min(ids) < 0:
        raise DataError(
            f"The text has ids from {np.min(ids)} to {np.max(ids)}; the vocabulary has "
            f"{vocab_size}. Use the tokenizer that made the train ids."
        )
    return np.asarray(ids).astype(np.int64)
