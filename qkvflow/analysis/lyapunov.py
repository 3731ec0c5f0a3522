"""Lyapunov exponents by QR on the tangent map, for any dynamics and for the depth of a model.

A basis Q_0 of k directions is pushed through every step by its true derivative (Jacobian-vector
products; no Jacobian is ever formed) and made orthonormal again:

    J_n Q_n-1 = Q_n R_n,    lambda_i = (1 / duration) sum_n log |R_n,ii|

Over a long time the exponents do not depend on Q_0. A model is as deep as it is, and there they do: a
pass of refinement goes forward with the tangent map and back with its transpose, which turns Q_0 to the
leading right singular vectors of the whole derivative J = J_N ... J_1. With those, R is diagonal and
lambda_i = log sigma_i(J) / duration: the finite-time exponents. Depth is one unit of time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from qkvflow.analysis.flow import Flow, states

Step = Callable[[Array, Any], Array]
Pair = tuple[Array, Array]
SPARE = 4
"""Directions carried along in refinement, so that the last exponent asked for converges, too."""
TOKENS = 8
"""Tokens whose own exponents are computed together."""


class Exponents(NamedTuple):
    """What a trajectory says of its neighbours."""

    values: Array
    """[k], per unit of time, the largest first."""
    growth: Array
    """[steps, k]: what every step adds to k sums log |R_ii|."""
    change: Array
    """The largest change of a value in the last pass of refinement; 0 without any."""


def lyapunov_exponents(
    step: Step,
    state: Array,
    inputs: Any,
    *,
    count: int,
    duration: float,
    refine: int = 0,
    seed: int = 0,
) -> Exponents:
    """The leading `count` exponents along the trajectory of state -> step(state, input).

    Args:
        state: an array of any shape, where the trajectory begins.
        inputs: what the steps are told: a tree of arrays with a leading axis of steps.
        duration: the time that all steps take together.
        refine: passes forth and back that turn the first directions, which are drawn from `seed`.
    """
    if not 1 <= count <= state.size:
        raise ValueError(
            f"{count} exponents of a state of {state.size} numbers; expected 1 to {state.size}."
        )

    def turn(first: Array, _: None) -> tuple[Array, Array]:
        last, growth, visited = _forward(step, state, first, inputs)
        return _backward(step, last, visited, inputs), growth

    carried = min(count + SPARE, state.size) if refine else count
    drawn = jax.random.normal(jax.random.key(seed), (carried, *state.shape), state.dtype)
    # The loop goes back once more than it has to: forth and back are then compiled once each.
    _, growth = lax.scan(turn, _orthonormal(drawn)[0], None, length=refine + 1)
    sums = jnp.sort(jnp.sum(growth[-2:], axis=1) / duration, descending=True)[:, :count]
    return Exponents(sums[-1], growth[-1, :, :count], jnp.max(jnp.abs(sums[-1] - sums[0])))


def _orthonormal(vectors: Array) -> tuple[Array, Array]:
    """Orthonormal directions [k, ...] of k vectors, and log |R_ii| of their QR decomposition."""
    q, r = jnp.linalg.qr(vectors.reshape(vectors.shape[0], -1).T)
    return q.T.reshape(vectors.shape), jnp.log(jnp.abs(jnp.diagonal(r)))


def _forward(step: Step, state: Array, basis: Array, inputs: Any) -> tuple[Array, Array, Array]:
    """Directions at the end of a trajectory, log |R_ii| and the state before every step."""

    def advance(carry: Pair, told: Any) -> tuple[Pair, Pair]:
        state, basis = carry

        def push(direction: Array) -> Pair:
            return jax.jvp(lambda x: step(x, told), (state,), (direction,))

        after, pushed = jax.vmap(push, out_axes=(None, 0))(basis)
        turned, growth = _orthonormal(pushed)
        return (after, turned), (growth, state)

    (_, turned), (growth, visited) = lax.scan(advance, (state, basis), inputs)
    return turned, growth, visited


def _backward(step: Step, basis: Array, visited: Array, inputs: Any) -> Array:
    """Directions at the start, brought there from the end by the transposed tangent map."""

    def retreat(basis: Array, at: tuple[Array, Any]) -> tuple[Array, None]:
        state, told = at
        transposed = jax.vjp(lambda x: step(x, told), state)[1]
        return _orthonormal(jax.vmap(transposed)(basis)[0])[0], None

    return lax.scan(retreat, basis, (visited, inputs), reverse=True)[0]


@eqx.filter_jit
def sequence_exponents(flow: Flow, x: Array, *, count: int = 8, refine: int = 8) -> Exponents:
    """The leading exponents of the whole residual stream [T, E] over depth, refined."""
    flow = flow.begun(x)
    return lyapunov_exponents(flow.step, x, flow.layers, count=count, duration=1.0, refine=refine)


def token_exponents(
    flow: Flow,
    x: Array,
    *,
    count: int = 1,
    refine: int = 8,
    advance: Callable[[int], None] = lambda tokens: None,
) -> np.ndarray:
    """The leading exponents [T, count] of every token by itself: how x_i(1) depends on x_i(0).

    No token sees a later one, so the whole derivative is block triangular and its diagonal block of
    token i is the product of the layers' diagonal blocks: the dynamics of row i, where the other rows
    go their way. `advance` is told of every batch of tokens that is done.
    """
    length = x.shape[0]
    flow, visited = flow.begun(x), states(flow, x)[:-1]
    found = []
    for first in range(0, length, TOKENS):
        tokens = np.minimum(np.arange(first, first + TOKENS), length - 1)  # one shape, one program
        values = _token_exponents(flow, visited, jnp.asarray(tokens), count, refine)
        found.append(np.asarray(values)[: length - first])
        advance(len(found[-1]))
    return np.concatenate(found)


@eqx.filter_jit
def _token_exponents(flow: Flow, visited: Array, tokens: Array, count: int, refine: int) -> Array:
    def of_token(i: Array) -> Array:
        def step(row: Array, told: Any) -> Array:
            layer, rows = told
            return flow.step(rows.at[i].set(row), layer)[i]

        told = (flow.layers, visited)
        options: dict[str, Any] = {"count": count, "duration": 1.0, "refine": refine}
        return lyapunov_exponents(step, visited[0, i], told, **options).values

    return jax.vmap(of_token)(tokens)
