"""silu, alone and as a gate, written so that its value and its gradient end in a division.

XLA's CPU backend merges loops and repeats in each of them what it takes for cheap, here whole
convolutions, but it does not repeat a division: the results of these functions are stored.
"""

import jax
import jax.numpy as jnp
from jax import Array


@jax.custom_jvp
def silu_gate(x: Array, z: Array) -> Array:
    """x silu(z) = x z / (1 + exp(-z))."""
    return (x * z) / (1.0 + jnp.exp(-z))


@silu_gate.defjvp
def _silu_gate_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, z), (dx, dz) = primals, tangents
    below = 1.0 + jnp.exp(-z)
    slope = 1.0 + z * (1.0 - 1.0 / below)
    return silu_gate(x, z), (dx / below) * z + (dz / below) * (x * slope)


@jax.custom_jvp
def silu(z: Array) -> Array:
    """z / (1 + exp(-z))."""
    return z / (1.0 + jnp.exp(-z))


@silu.defjvp
def _silu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (dz,) = primals, tangents
    below = 1.0 + jnp.exp(-z)
    return silu(z), (dz / below) * (1.0 + z * (1.0 - 1.0 / below))
