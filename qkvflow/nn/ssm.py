"""A selective state-space part in the manner of Mamba-2.

    z = W_z u                        gate branch
    x, B, C = silu(conv(W_xbc u))    short causal convolution; B and C are functions of the input
    delta = softplus(W_delta u + b)  so is the step size
    A = -softplus(a)                 negative, hence stable, whatever a is
    y = scan(x, delta, A, B, C) + D x
    out = W_out norm(y * silu(z))

Every parameter is a `Linear`, the vectors a, b and D being maps without input axis, so that the
families of `weights` make A, B, C, D and delta functions of depth with no code here. Mamba writes
A = -exp(a); a gate that scales a would then do nothing at a = 0, hence the softplus.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.strict import RATIO, Bound, Positive, Size
from qkvflow.config.variants import PARTS, Part
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.conv import WIDEST
from qkvflow.nn.linear import Linear
from qkvflow.nn.mlp import ACTIVATION
from qkvflow.nn.norm import Norm
from qkvflow.nn.parameters import Table, parameters_inside
from qkvflow.nn.slots import left_after, number_kept, with_left
from qkvflow.nn.ssm_scan import (
    causal_conv,
    inputs_after,
    inverse_softplus,
    scan_by_chunks,
    scan_keeping_states,
    scan_step,
    silu,
    silu_gate,
)

CHANNELS = "ssm_channels"
"""The axis of what the convolution mixes: x, B and C."""
HEAD_SIZE = 64
"""Channels of a head where nothing else is said."""
DECAY = 5
"""Operations of a decay inside of a chunk for each element."""


class SsmCache(eqx.Module):
    """What the past leaves behind: the last inputs of the convolution, and the state; see `slots`."""

    past: Array
    """[slots, batch, width - 1, channels]"""
    state: Array
    """[slots, batch, states, heads, channels of a head]"""

    def after(self, offset: Array | int) -> tuple[Array, Array]:
        """What `offset` positions left behind."""
        return left_after(self.past, offset), left_after(self.state, offset)

    def extended(self, pasts: Array, states: Array, count: Array | int) -> "SsmCache":
        """This cache with what the last positions of `count` have left, one entry for each."""
        return SsmCache(with_left(self.past, pasts, count), with_left(self.state, states, count))


class SelectiveSSM(eqx.Module):
    """The state-space part of a layer; cost linear in length, constant for each new token."""

    z: Linear
    xbc: Linear
    delta: Linear
    delta_bias: Linear
    conv: Linear
    A: Linear
    D: Linear
    norm: Norm
    out: Linear
    chunk_size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)

    @property
    def _heads(self) -> tuple[int, int]:
        heads = self.A.Out[0].size
        return heads, self.z.Out[0].size // heads

    def empty_cache(self, batch: int, length: int, dtype: jnp.dtype, back: int = 0) -> SsmCache:
        """No past and a zero state, whatever the length; a slot more for every position to go back."""
        Width, Channels = self.conv.In[0], self.conv.Out[0]
        return SsmCache(
            past=jnp.zeros((back + 1, batch, Width.size - 1, Channels.size), dtype),
            state=jnp.zeros((back + 1, batch, self.state_size, *self._heads), jnp.float32),
        )

    def operations(self, length: int) -> int:
        """Operations per token beside those of its linear maps: the scan and the activations.

        A chunk is computed inside, into its state, and out of the state that entered it.
        """
        chunk, state = min(self.chunk_size, length), self.state_size
        heads, inner = self.A.Out[0].size, self.z.Out[0].size
        inside = 2 * chunk * state + DECAY * chunk * heads + 2 * chunk * inner
        return inside + 4 * inner * state + ACTIVATION * (2 * inner + 2 * state)

    def __call__(self, x: NamedArray, context: Context = PLAIN) -> tuple[NamedArray, SsmCache | None]:
        """Map (batch, position, embed) to the same axes, going on from the cache where one is given."""
        cache: SsmCache | None = context.cache
        rounded = context.rounded
        batch, length, _ = x.array.shape
        past, state = (cache or self.empty_cache(batch, length, x.dtype)).after(context.offset)
        kept = 1 if cache is None else number_kept(cache.past, length)
        channels = self.xbc(x, rounded=rounded).array
        signal, pasts = self._convolved(channels, past, kept, context.documents)
        inner = self.z.Out[0].size
        values, B, C = jnp.split(signal, (inner, inner + self.state_size), axis=-1)
        values = values.reshape(batch, length, *self._heads).astype(jnp.float32)
        step = self.delta(x).array.astype(jnp.float32) + self.delta_bias.weight.array[None, None]
        delta = jax.nn.softplus(step)
        B, C = B.astype(jnp.float32), C.astype(jnp.float32)
        mixed, states = self._scan(values, delta, B, C, state, kept, context.documents)
        mixed += values * self.D.weight.array[None, None, :, None]
        z = self.z(x, rounded=rounded).array.astype(jnp.float32)
        gated = silu_gate(mixed.reshape(batch, length, -1), z)
        normed = self.norm(hax.named(gated.astype(x.dtype), (*x.axes[:2], *self.z.Out)))
        if cache is not None:
            cache = cache.extended(pasts, states, context.offset + length)
        return self.out(normed, rounded=rounded), cache

    def parameters(self) -> Table:
        """x, B and C are maps of their own, side by side; the convolution has a kernel a channel."""
        table = parameters_inside(self)
        for path, found in table.items():
            is_matrix = found.kind == "matrix" and found.group == "base"
            if is_matrix and path.startswith("xbc.") and found.outputs[-1:] == (CHANNELS,):
                inner = found.axes[-1].size - 2 * self.state_size
                pieces = (inner, self.state_size, self.state_size)
                table[path] = dataclasses.replace(found, pieces=pieces)
            elif is_matrix and path.startswith("conv."):
                table[path] = dataclasses.replace(found, kind="vector")
        return table

    def _convolved(
        self, channels: Array, past: Array, kept: int, documents: Array | None
    ) -> tuple[Array, Array]:
        """The signal, and the inputs that the next call needs after each of the last positions."""
        kernel = self.conv.weight.array.astype(channels.dtype)
        mixed, _ = causal_conv(channels, kernel, past, documents)
        if self.conv.bias is not None:
            mixed += self.conv.bias.array[None, None].astype(channels.dtype)
        return silu(mixed), inputs_after(past, channels, kept)

    def _scan(
        self,
        values: Array,
        delta: Array,
        B: Array,
        C: Array,
        state: Array,
        kept: int,
        documents: Array | None,
    ) -> tuple[Array, Array]:
        """What the recurrence gives, and the state after each of the last positions."""
        A = -jax.nn.softplus(self.A.weight.array)
        if values.shape[1] == 1:
            y, state = scan_step(state, values[:, 0], delta[:, 0], A, B[:, 0], C[:, 0])
            return y[:, None], state[None]
        if kept > 1:
            return scan_keeping_states(values, delta, A, B, C, state)
        y, state = scan_by_chunks(
            values, delta, A, B, C, state, chunk_size=self.chunk_size, documents=documents
        )
        return y, state[None]


@PARTS.register("ssm")
@dataclass(frozen=True)
class SsmPart(Part):
    """A selective state-space part and its shape."""

    state_size: Size = 64
    """Size N of the state of each channel."""
    expand: Annotated[int, Bound(f"1 to {RATIO - 1}", 1, RATIO)] = 2
    """Inner width, as a multiple of hidden_dim."""
    head_size: Size | None = None
    """Channels that share one decay rate and step size. None: 64, or less if 64 does not fit."""
    conv_width: Annotated[int, Bound(f"1 to {WIDEST}", 1, WIDEST + 1)] = 4
    """Width of the short causal convolution."""
    chunk_size: Size = 128
    """Positions per chunk of the chunked scan; it affects speed and memory."""
    delta_min: Positive = 1e-3
    """Smallest initial step size delta."""
    delta_max: Positive = 1e-1
    """Largest initial step size delta."""

    def problems(self) -> list[str]:
        if self.delta_max >= self.delta_min:
            return []
        return [f"delta_max {self.delta_max} is below delta_min {self.delta_min}."]

    def misfits(self, config: Gpt2Config) -> list[str]:
        inner = self.inner(config)
        if inner % self.width_of_head(config) == 0:
            return []
        return [
            f"the state-space part is hidden_dim * expand = {inner} wide, which is not divisible by "
            f"its head_size {self.head_size}; choose another head_size."
        ]

    def inner(self, config: Gpt2Config) -> int:
        """Channels."""
        return config.hidden_dim * self.expand

    def width_of_head(self, config: Gpt2Config) -> int:
        """Channels of a head."""
        return self.head_size or math.gcd(HEAD_SIZE, self.inner(config))

    def width_multiple(self, config: Gpt2Config) -> int:
        """So that expand * width has whole heads, also where their width is left open."""
        head = self.head_size or HEAD_SIZE
        return head // math.gcd(head, self.expand)

    def build(self, config: Gpt2Config, *, key: Array, out_gain: float) -> SelectiveSSM:
        """Rates A evenly spaced from 1 to 16, step sizes log-uniform, as in Mamba."""
        k_z, k_xbc, k_delta, k_conv, k_bias, k_out = jax.random.split(key, 6)
        Embed, Inner = config.Embed, Axis("ssm_inner", self.inner(config))
        Heads = Axis("ssm_heads", Inner.size // self.width_of_head(config))
        Channels = Axis(CHANNELS, Inner.size + 2 * self.state_size)
        Width = Axis("ssm_conv", self.conv_width)
        rates = inverse_softplus(jnp.linspace(1.0, 16.0, Heads.size))
        return SelectiveSSM(
            z=Linear.init((Embed,), (Inner,), key=k_z),
            xbc=Linear.init((Embed,), (Channels,), key=k_xbc),
            delta=Linear.init((Embed,), (Heads,), key=k_delta),
            delta_bias=Linear(self._delta_bias(Heads, key=k_bias), None, (), (Heads,)),
            conv=Linear.init((Width,), (Channels,), key=k_conv, bias=config.bias),
            A=Linear(hax.named(rates, Heads), None, (), (Heads,)),
            D=Linear(hax.ones(Heads), None, (), (Heads,)),
            norm=Norm.init(Inner, "rms", bias=False, epsilon=config.norm_epsilon),
            out=Linear.init((Inner,), (Embed,), key=k_out, bias=config.bias, gain=out_gain),
            chunk_size=self.chunk_size,
            state_size=self.state_size,
        )

    def _delta_bias(self, Heads: Axis, *, key: Array) -> NamedArray:
        """Biases whose softplus is log-uniform between the smallest and the largest step size."""
        low, high = math.log(self.delta_min), math.log(self.delta_max)
        delta = jnp.exp(jax.random.uniform(key, (Heads.size,), minval=low, maxval=high))
        return hax.named(inverse_softplus(delta), Heads)
