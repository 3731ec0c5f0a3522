"""How much an output position depends on every input token.

    S_ij = ||d x_i(1) / d x_j(0)||_F / sqrt(E)

so that the identity gives 1. No Jacobian is formed: with orthonormal directions q_1 ... q_p of the
residual stream, S_ij^2 is the mean of ||J_ij^T q||^2 over all E directions of a basis (exactly), or
over p < E of them drawn at random (without bias, with an error that is told). Each is one
vector-Jacobian product through all layers, which gives every j at once. For j > i it is exactly zero.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from qkvflow.analysis.flow import Flow, states

AT_ONCE = 16
"""Vector-Jacobian products that are computed together."""


class Sensitivity(NamedTuple):
    """Sensitivities [rows, T] and their standard errors, zero where they are exact."""

    values: np.ndarray
    errors: np.ndarray


def directions(width: int, probes: int | None = None, seed: int = 0) -> np.ndarray:
    """Orthonormal directions [p, E]: all of them (None, or as many as the width), or p at random."""
    if probes is not None and probes < 2:
        raise ValueError(f"probes is {probes}; expected None or at least 2, to estimate the error.")
    if probes is None or probes >= width:
        return np.eye(width, dtype=np.float32)
    drawn = np.random.default_rng(seed).normal(size=(width, probes))
    return np.linalg.qr(drawn)[0].T.astype(np.float32)


def sensitivity_rows(
    flow: Flow,
    x: Array,
    positions: Sequence[int],
    *,
    probes: int | None = None,
    seed: int = 0,
    advance: Callable[[int], None] = lambda rows: None,
) -> Sensitivity:
    """The sensitivity of x(1) at some positions to every token of x(0).

    Args:
        positions: rows that are wanted, from 0 on.
        probes: directions, None for all of them. The work grows with them.
        advance: is told of every row that is done.
    """
    chosen = jnp.asarray(directions(x.shape[1], probes, seed))
    squares = []
    for position in positions:
        squares.append(np.asarray(_squares(flow, x, jnp.asarray(position), chosen), np.float64))
        advance(1)
    return _estimate(np.stack(squares, axis=1), x.shape[1])


@eqx.filter_jit
def _squares(flow: Flow, x: Array, position: Array, chosen: Array) -> Array:
    """||J_ij^T q||^2 for every direction q and token j: [p, T]."""
    _, transposed = jax.vjp(lambda x: states(flow, x)[-1], x)

    def of_direction(direction: Array) -> Array:
        (gradient,) = transposed(jnp.zeros_like(x).at[position].set(direction))
        return jnp.sum(jnp.square(gradient), axis=-1)

    return lax.map(of_direction, chosen, batch_size=AT_ONCE)


def _estimate(squares: np.ndarray, width: int) -> Sensitivity:
    """The root of the mean of squares [p, rows, T], and its standard error by the delta method.

    Directions are drawn without repetition, hence the correction for a finite population, which makes
    the error of all of them zero.
    """
    probes = len(squares)
    values = np.sqrt(squares.mean(axis=0))
    left_out = max(0.0, 1.0 - probes / width)
    error = squares.std(axis=0, ddof=1) * np.sqrt(left_out / probes) if left_out else 0.0 * values
    errors = np.divide(error, 2 * values, out=np.zeros_like(values), where=values > 0)
    return Sensitivity(values, errors)
