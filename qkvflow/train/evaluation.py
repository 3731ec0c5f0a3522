"""The loss on a split: every token once, dropout off; or on a fixed part of it that says so."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from qkvflow.data import Accuracy, DataError, TokenSplit, eval_windows
from qkvflow.models import LanguageModel
from qkvflow.models.language_model import final_state, losses_of, token_losses
from qkvflow.models.needs import batch_bytes, check_fits


@dataclass(frozen=True)
class Evaluation:
    """A mean loss and what it is over."""

    loss: float
    """Nats per token."""
    bits_per_byte: float
    tokens: int
    whole: bool
    """Whether these are all tokens of the split."""
    standard_error: float
    """Of the loss, from the spread over windows."""
    accuracy: Accuracy | None = None
    """Of a text of questions: how many answers are right."""


def evaluate(
    model: LanguageModel,
    split: TokenSplit,
    *,
    length: int,
    batch_size: int = 8,
    tokens: int | None = None,
    put: Callable[[np.ndarray], Any] = jnp.asarray,
    advance: Callable[[int], None] = lambda windows: None,
    losses: Callable[..., Array] | None = None,
    answers_only: bool = False,
) -> Evaluation:
    """The mean loss on a split, or on about `tokens` evenly spaced tokens of it.

    The split is cut into windows of `length`; each token is predicted from those before it in its
    window. `put` places a batch on devices; `advance` is told of every batch that is done. `losses`
    gives the sums over windows, of a model, inputs, targets and a mask, where they are not its own.
    With `answers_only` the loss is that of the tokens of answers, each of which is a byte.

    Raises:
        ConfigError: a batch does not fit into memory.
        DataError: the loss is to be that of answers, and there are none.
    """
    needed = batch_bytes(model.config, batch_size, length)
    check_fits(needed, f"An evaluation of {batch_size} windows at once", "a smaller batch_size")
    windows, chosen = count_windows(split, length), count_windows(split, length, tokens)
    sums, counts = [], []
    judged = None if split.answers is None or losses is not None else _Judged(split)
    for inputs, targets, mask, places in _windows(split, length, batch_size, chosen, answers_only):
        given = put(inputs), put(targets), put(mask)
        if judged is None:
            found = (losses or _window_losses)(model, *given)
        else:
            found, right = _window_answers(model, *given)
            judged.add(places, np.asarray(right))
        sums.append(np.asarray(found))
        counts.append(mask.sum(axis=-1))
        advance(len(mask))
    total, count = np.concatenate(sums).astype(np.float64), np.concatenate(counts)
    seen = int(count.sum())
    loss = float(total.sum() / seen)
    bits = loss / math.log(2) if answers_only else split.bits_per_byte(loss)
    error, accuracy = _error(total, count, loss), None if judged is None else judged.accuracy(length)
    return Evaluation(loss, bits, seen, chosen == windows, error, accuracy)


def _windows(
    split: TokenSplit, length: int, batch_size: int, chosen: int, answers_only: bool
) -> Iterator[tuple[np.ndarray, ...]]:
    """Inputs, targets, the mask of those that count, and where in the split the targets stand; or 0."""
    size = len(split.ids)
    wanted = answer_mask(split) if answers_only else np.ones(size, bool)
    both = (eval_windows(ids, length, batch_size, chosen) for ids in (split.ids, np.arange(size)))
    for (inputs, targets, mask), (_, places, _) in zip(*both):
        yield inputs, targets, mask & wanted[places], places


def answer_mask(split: TokenSplit) -> np.ndarray:
    """Which tokens of a split are those of answers.

    Raises:
        DataError: it has none.
    """
    if split.answers is None:
        raise DataError(
            "answers_only is set, and this text has no marked answers; use hops or "
            "addition with the tokenizer char or byte, or leave answers_only out."
        )
    return split.answers.mask(len(split.ids))


class _Judged:
    """Which tokens of a split were predicted, and which of them rightly."""

    def __init__(self, split: TokenSplit):
        assert split.answers is not None
        self._answers = split.answers
        self._right, self._seen = np.zeros((2, len(split.ids)), bool)

    def add(self, places: np.ndarray, right: np.ndarray) -> None:
        """Tokens at these places; at place 0, which is nobody's target, there may be any."""
        self._right[places], self._seen[places] = right, True

    def accuracy(self, length: int) -> Accuracy | None:
        """That of all answers that were predicted in windows of this length."""
        return self._answers.judge(self._right, self._seen, length)


def count_windows(split: TokenSplit, length: int, tokens: int | None = None) -> int:
    """Windows of a whole split, or of about `tokens` tokens of it."""
    windows = -(-(len(split.ids) - 1) // length)
    return windows if tokens is None else min(windows, max(1, tokens // length))


@eqx.filter_jit
def _window_losses(model: LanguageModel, inputs: Array, targets: Array, mask: Array) -> Array:
    losses = token_losses(model, inputs, targets)
    return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses)), axis=-1)


@eqx.filter_jit
def _window_answers(
    model: LanguageModel, inputs: Array, targets: Array, mask: Array
) -> tuple[Array, Array]:
    """Sums of losses over windows, and which targets are the likeliest tokens."""
    logits = model.head(final_state(model, inputs, None, None))
    losses = jnp.where(mask, losses_of(logits, targets), 0.0)
    return jnp.sum(losses, axis=-1), jnp.argmax(logits, axis=-1) == targets


def _error(sums: np.ndarray, counts: np.ndarray, loss: float) -> float:
    """Standard error of a ratio of sums over windows."""
    full = counts > 0
    residual = sums[full] - loss * counts[full]
    n = int(full.sum())
    if n < 2:
        return math.nan
    return float(np.sqrt(n / (n - 1) * np.sum(residual**2)) / counts.sum())
