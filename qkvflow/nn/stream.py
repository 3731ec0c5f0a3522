"""The residual stream: how a part reads from it, and how what parts add is written to it.

Everything that passes between the parts of a layer, and from layer to layer, goes through here.
"""

from collections.abc import Sequence

import haliax as hax
import numpy as np
from haliax import NamedArray
from jax import Array


def mixed(x: NamedArray, embedding: NamedArray, shares: Array) -> NamedArray:
    """What a layer takes of the stream and of x(0), by two shares."""
    own, first = shares.astype(x.dtype)
    return hax.named(own * x.array + first * embedding.array, x.axes)


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
