"""The residual stream: how a part reads from it, and how what parts add is written to it.

Everything that passes between the parts of a layer, and from layer to layer, goes through here.
"""

from collections.abc import Sequence

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.nn.linear import Linear
from qkvflow.nn.norm import Norm


class InputGate(eqx.Module):
    """How much of x(0) a layer lets in for every token: 2 sigmoid(w norm(x) + c), 1 at the start."""

    norm: Norm
    map: Linear
    streams: int = eqx.field(static=True)

    @staticmethod
    def init(norm: Norm, Embed: Axis, streams: int, *, key: Array) -> "InputGate":
        """A gate behind a norm over the stream, or over the mean of several."""
        map_ = Linear.init((Embed,), (Axis("gate", 1),), key=key, bias=True, gain=0.0)
        return InputGate(norm, map_, streams)

    def __call__(self, x: NamedArray) -> Array:
        """One number a token, [batch, position, 1]."""
        return 2 * jax.nn.sigmoid(self.map(self.norm(mean(x, self.streams))).array)


def mean(x: NamedArray, streams: int) -> NamedArray:
    """The mean of several streams that are side by side."""
    if streams == 1:
        return x
    parts = jnp.split(x.array, streams, axis=-1)
    return hax.named(sum(parts[1:], parts[0]) / streams, x.axis_names)


def where(active: Array | None, x: NamedArray, other: NamedArray | float = 0.0) -> NamedArray:
    """x of tokens [batch, position] that are active, something else of the others."""
    if active is None:
        return x
    instead = other.array if isinstance(other, NamedArray) else jnp.asarray(other, x.dtype)
    return hax.named(jnp.where(active[..., None], x.array, instead), x.axes)


def mixed(x: NamedArray, embedding: NamedArray, shares: Array, gate: Array | None = None) -> NamedArray:
    """What a layer takes of the stream and of x(0), by two shares, that of x(0) times a gate."""
    own, first = shares.astype(x.dtype)
    given = embedding.array if gate is None else gate * embedding.array
    return hax.named(own * x.array + first * given, x.axes)


def read(x: NamedArray, added: NamedArray | None, *, sequential: bool) -> NamedArray:
    """What a part sees: the stream, and if parts are in sequence what those before it added."""
    return x if added is None or not sequential else x + added


def add(added: NamedArray | None, change: NamedArray) -> NamedArray:
    """What the parts of a layer have added so far."""
    return change if added is None else added + change


def write(
    x: NamedArray, size: Array | np.ndarray, weights: Sequence[float], slopes: Sequence[NamedArray]
) -> NamedArray:
    """x + h sum_j weight_j slope_j, summed in float32: a step in bfloat16 would be up to 0.4% off."""
    total = x.array.astype(size.dtype)
    for weight, slope in zip(weights, slopes):
        if weight:
            total += weight * size * slope.array.astype(size.dtype)
    return hax.named(total.astype(x.dtype), x.axes)
