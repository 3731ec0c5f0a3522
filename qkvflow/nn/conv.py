"""A short causal convolution, one kernel a channel: what a token is, with a little of those before it.

    y_i = sum_k kernel_k * x_{i - width + 1 + k}

It is what the state-space part begins with, as a part of its own, so that what it is worth can be told
apart from what follows it there.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.strict import Bound
from qkvflow.config.variants import PARTS, Part
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.linear import Linear
from qkvflow.nn.parameters import Table, parameters_inside
from qkvflow.nn.slots import left_after, number_kept, with_left
from qkvflow.nn.ssm_scan import causal_conv, inputs_after

WIDEST = 64
"""Positions that a convolution may see; each is written out in the program."""


class ConvCache(eqx.Module):
    """The last inputs, [slots, batch, width - 1, embed]; see `slots`."""

    past: Array


class ShortConv(eqx.Module):
    """The convolution of a layer."""

    kernel: Linear

    def empty_cache(self, batch: int, length: int, dtype: jnp.dtype, back: int = 0) -> ConvCache:
        """No past, whatever the length; a slot more for every position to go back."""
        (Width,), (Embed,) = self.kernel.In, self.kernel.Out
        return ConvCache(jnp.zeros((back + 1, batch, Width.size - 1, Embed.size), dtype))

    def operations(self, length: int) -> int:
        """None beside those of the kernel."""
        return 0

    def __call__(self, x: NamedArray, context: Context = PLAIN) -> tuple[NamedArray, ConvCache | None]:
        """Map (batch, position, embed) to the same axes, going on from the cache where one is given."""
        cache: ConvCache | None = context.cache
        batch, length, _ = x.array.shape
        slots = (cache or self.empty_cache(batch, length, x.dtype)).past
        past, kernel = left_after(slots, context.offset), self.kernel.weight.array.astype(x.dtype)
        mixed, _ = causal_conv(x.array, kernel, past, context.documents)
        if self.kernel.bias is not None:
            mixed += self.kernel.bias.array[None, None].astype(x.dtype)
        if cache is not None:
            left = inputs_after(past, x.array, number_kept(slots, length))
            cache = ConvCache(with_left(slots, left, context.offset + length))
        return hax.named(mixed, x.axes), cache

    def parameters(self) -> Table:
        """A kernel a channel, and no matrix."""
        table = parameters_inside(self)
        return {
            path: dataclasses.replace(found, kind="vector")
            if found.kind == "matrix" and found.group == "base"
            else found
            for path, found in table.items()
        }


@PARTS.register("conv")
@dataclass(frozen=True)
class ConvPart(Part):
    """A short causal convolution and its width."""

    width: Annotated[int, Bound(f"1 to {WIDEST}", 1, WIDEST + 1)] = 4
    """Positions that the convolution sees, the present one among them."""

    def build(self, config: Gpt2Config, *, key: Array, out_gain: float) -> ShortConv:
        Width = Axis("conv_width", self.width)
        return ShortConv(
            Linear.init((Width,), (config.Embed,), key=key, bias=config.bias, gain=out_gain)
        )
