"""The adaptive integrator: the same field, handed to diffrax.

Its steps are chosen from the error of the whole sequence, so the last token has a say in where the
first one is evaluated: the result is causal only up to the tolerance (tests/nn/test_adaptive.py
measures the leak), unlike every fixed-step integrator, which is causal exactly. Each row of a batch
is solved on its own, so that rows at least do not see each other.
"""

from typing import Any

import diffrax
import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import resolve


def integrate_adaptively(
    curves: Any,
    x: NamedArray,
    config: Gpt2Config,
    *,
    t: Time | None = None,
    key: Array | None = None,
) -> NamedArray:
    """Follow a block of curves from depth 0 to 1 (Tsit5, proportional-integral step control).

    A scalar `t` freezes the weights at that time. Raises at run time when `adaptive_max_steps` steps
    are not enough.
    """
    dtype, names = x.array.dtype, x.axis_names
    keys = None if key is None else jax.random.split(key, x.array.shape[0])

    def slope(time: Array, row: Array, key: Array | None) -> Array:
        block = resolve(curves, time if t is None else t)
        named = hax.named(row[None].astype(dtype), names)
        change, _ = block(named, cache=None, offset=0, key=key)
        return change.array[0].astype(jnp.float32)

    def solve(inputs: tuple[Array, Array | None]) -> Array:
        row, key = inputs
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=None,
            y0=row.astype(jnp.float32),
            args=key,
            max_steps=config.adaptive_max_steps,
            stepsize_controller=diffrax.PIDController(
                rtol=config.adaptive_rtol, atol=config.adaptive_atol, pcoeff=0.3, icoeff=0.4
            ),
            throw=False,
        )
        failed = solution.result != diffrax.RESULTS.successful
        return eqx.error_if(solution.ys[0], failed, remedy(config)).astype(dtype)

    return hax.named(lax.map(solve, (x.array, keys)), x.axes)


def remedy(config: Gpt2Config) -> str:
    """What to do when the integrator gave up."""
    return (
        f"The adaptive integrator did not reach depth 1 in {config.adaptive_max_steps} steps at "
        f"rtol {config.adaptive_rtol:g}, atol {config.adaptive_atol:g}: raise adaptive_max_steps, "
        "loosen adaptive_rtol and adaptive_atol, or use a fixed-step integrator such as 'heun'. "
        "Weights that are not finite never get there."
    )
