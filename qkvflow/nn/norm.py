"""Layer norm and RMS norm over the embedding axis."""

from typing import Literal

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import lax

from qkvflow.nn.parameters import Parameter, Table


class Norm(eqx.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias; the RMS norm leaves out mean and bias.

    Statistics are taken in float32 whatever the type of `x`.
    """

    weight: NamedArray
    bias: NamedArray | None
    kind: Literal["layer", "rms"] = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @staticmethod
    def init(Over: Axis, kind: Literal["layer", "rms"], *, bias: bool, epsilon: float) -> "Norm":
        """Weights one, biases zero."""
        has_bias = bias and kind == "layer"
        return Norm(hax.ones(Over), hax.zeros(Over) if has_bias else None, kind, epsilon)

    def __call__(self, x: NamedArray) -> NamedArray:
        """Normalise over the last axis of `x`.

        Tokens are flattened to one axis: sums of products along axes of an array that has an axis of
        size one, a batch of one, are slow in XLA's CPU backend.
        """
        value = x.array.astype(jnp.float32).reshape(-1, x.array.shape[-1])
        if self.kind == "layer":
            value -= value.mean(-1, keepdims=True)
        value *= lax.rsqrt(jnp.square(value).mean(-1, keepdims=True) + self.epsilon)
        value *= self.weight.array[None]
        if self.bias is not None:
            value += self.bias.array[None]
        return hax.named(value.reshape(x.array.shape).astype(x.dtype), x.axes)

    def parameters(self) -> Table:
        """Weight and bias; of a curve some may be numbers, which are not trained."""
        arrays = {"weight": self.weight, "bias": self.bias}
        return {
            name: Parameter(array.axes, "norm")
            for name, array in arrays.items()
            if isinstance(array, NamedArray)
        }
