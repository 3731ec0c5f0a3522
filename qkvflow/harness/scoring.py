"""Log-probabilities of continuations, in batches sorted by length.

A continuation that is longer than the model's longest sequence is cut into pieces, each of which sees
as much of what precedes it as there is room for. Every token is scored once. What nothing precedes has
no probability, and counts as certain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from qkvflow.models import LanguageModel
from qkvflow.models.language_model import final_state, losses_of

SHORTEST = 16
"""Positions of the shortest batch; others are of twice as many, and so on: few programs to compile."""


@dataclass(frozen=True)
class Row:
    """Tokens of which the last `scored` are predicted from those before them."""

    ids: np.ndarray
    scored: int
    text: int
    """The text that it is a piece of."""


@dataclass(frozen=True)
class Score:
    """The log-probability of a continuation in nats, and whether each token was the likeliest."""

    log_probability: float
    greedy: bool


def rows_of(before: np.ndarray, continuation: np.ndarray, longest: int, text: int = 0) -> list[Row]:
    """The rows that score every token of a continuation once, from up to `longest` others.

    Examples:
        >>> rows = rows_of(np.array([9, 8]), np.arange(5), longest=4)
        >>> [(row.ids.tolist(), row.scored) for row in rows]
        [([9, 8, 0, 1, 2], 3), ([0, 1, 2, 3, 4], 2)]
    """
    whole = np.concatenate([before, continuation]).astype(np.int32)
    rows, done = [], max(len(before), 1)
    while done < len(whole):
        end = len(whole)
        if end - done > longest:  # a piece, filled from the beginning if what precedes leaves room
            end = longest + 1 if done <= longest else done + longest
        rows.append(Row(whole[max(0, end - longest - 1) : end], end - done, text))
        done = end
    return rows


def scores(
    model: LanguageModel,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    batch_size: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Score]:
    """Of every pair of tokens before and continuation, in their order."""
    longest = model.config.max_position_embeddings
    rows = [row for i, pair in enumerate(pairs) for row in rows_of(*pair, longest, i)]
    sums, greedy = np.zeros(len(pairs)), np.ones(len(pairs), bool)
    for batch in batches(rows, batch_size):
        ids = _as_array(batch, batch_size, longest)
        inputs, targets = jnp.asarray(ids[:, :-1]), jnp.asarray(ids[:, 1:])
        known, likeliest = map(np.asarray, _scores(model, inputs, targets))
        for row, own, best in zip(batch, known, likeliest):
            chosen = slice(len(row.ids) - 1 - row.scored, len(row.ids) - 1)
            sums[row.text] += own[chosen].astype(np.float64).sum()
            greedy[row.text] &= best[chosen].all()
        advance(len(batch))
    return [Score(float(total), bool(best)) for total, best in zip(sums, greedy)]


def batches(rows: Sequence[Row], size: int) -> Iterator[list[Row]]:
    """The longest rows first: they show at once whether a batch fits into memory."""
    ordered = sorted(rows, key=lambda row: -len(row.ids))
    return (ordered[i : i + size] for i in range(0, len(ordered), size))


def _as_array(batch: Sequence[Row], size: int, longest: int) -> np.ndarray:
    """Rows as [size, positions + 1]; zeros after the end of a row change nothing before it."""
    positions = SHORTEST
    while positions < len(batch[0].ids) - 1:
        positions *= 2
    ids = np.zeros((size, min(positions, longest) + 1), np.int32)
    for i, row in enumerate(batch):
        ids[i, : len(row.ids)] = row.ids
    return ids


@eqx.filter_jit
def _scores(model: LanguageModel, ids: Array, targets: Array) -> tuple[Array, Array]:
    """Log-probabilities of targets [batch, position], and whether each is the likeliest token."""
    logits = model.head(final_state(model, ids, None, None))
    return -losses_of(logits, targets), jnp.argmax(logits, axis=-1) == targets
