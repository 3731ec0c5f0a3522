"""The loss on a split: every token once, dropout off; or on a fixed part of it that says so."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from qkvflow.data import TokenSplit, eval_windows
from qkvflow.models import LanguageModel
from qkvflow.models.language_model import token_losses
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
) -> Evaluation:
    """The mean loss on a split, or on about `tokens` evenly spaced tokens of it.

    The split is cut into windows of `length`; each token is predicted from those before it in its
    window. `put` places a batch on devices; `advance` is told of every batch that is done. `losses`
    gives the sums over windows, of a model, inputs, targets and a mask, where they are not its own.

    Raises:
        ConfigError: a batch does not fit into memory.
    """
    needed = batch_bytes(model.config, batch_size, length)
    check_fits(needed, f"An evaluation of {batch_size} windows at once", "a smaller batch_size")
    windows, chosen = count_windows(split, length), count_windows(split, length, tokens)
    sums, counts = [], []
    for inputs, targets, mask in eval_windows(split.ids, length, batch_size, chosen):
        found = (losses or _window_losses)(model, put(inputs), put(targets), put(mask))
        sums.append(np.asarray(found))
        counts.append(mask.sum(axis=-1))
        advance(len(mask))
    total, count = np.concatenate(sums).astype(np.float64), np.concatenate(counts)
    seen = int(count.sum())
    loss = float(total.sum() / seen)
    return Evaluation(
        loss, split.bits_per_byte(loss), seen, chosen == windows, _error(total, count, loss)
    )


def count_windows(split: TokenSplit, length: int, tokens: int | None = None) -> int:
    """Windows of a whole split, or of about `tokens` tokens of it."""
    windows = -(-(len(split.ids) - 1) // length)
    return windows if tokens is None else min(windows, max(1, tokens // length))


@eqx.filter_jit
def _window_losses(model: LanguageModel, inputs: Array, targets: Array, mask: Array) -> Array:
    losses = token_losses(model, inputs, targets)
    return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses)), axis=-1)


def _error(sums: np.ndarray, counts: np.ndarray, loss: float) -> float:
    """Standard error of a ratio of sums over windows."""
    full = counts > 0
    residual = sums[full] - loss * counts[full]
    n = int(full.sum())
    if n < 2:
        return math.nan
    return float(np.sqrt(n / (n - 1) * np.sum(residual**2)) / counts.sum())
