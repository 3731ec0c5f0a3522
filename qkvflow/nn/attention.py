"""Causal multi-head attention with grouped queries, rotary positions and a cache.

Axes of plain arrays: H heads of keys and values of all rows of a batch, G queries a key head, T new
positions, S positions that can be seen, D head size. Query i sees keys j <= i and no other: the
exponential of a masked score is exactly zero, so later tokens leave no trace. Nor does it see another
document of its row, where the context numbers them.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import PARTS, Part
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.linear import Linear, dropout
from qkvflow.nn.norm import Norm
from qkvflow.nn.products import rounded_dot

SMALLEST_BLOCK, MOST_BLOCKS = 64, 4
SOFTMAX = 6
"""Operations of the softmax for each score."""
HIDDEN = float(jnp.finfo(jnp.float32).min) / 2
"""Added to the scores of what a query may not see."""


class AttentionCache(eqx.Module):
    """Keys and values [H, S, D] of the positions seen so far; no query sees the rest."""

    keys: Array
    values: Array
    has_new: bool = eqx.field(static=True, default=False)
    """Whether those of the new positions are in it before attention is called."""

    def marked(self, has_new: bool) -> "AttentionCache":
        """The same cache, in which the new positions are already, or are not."""
        return AttentionCache(self.keys, self.values, has_new)

    def extended(self, keys: Array, values: Array, offset: Array) -> "AttentionCache":
        """This cache with new keys and values [H, T, D] written from position `offset`."""
        at = (0, offset, 0)
        return AttentionCache(
            lax.dynamic_update_slice(self.keys, keys, at),
            lax.dynamic_update_slice(self.values, values, at),
        )


class Attention(eqx.Module):
    """softmax(Q K^T / sqrt(D)) V over past and present, with one map for Q, K and V together."""

    qkv: Linear
    out: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    value_mix: Linear | None
    """What is taken of a layer's own values, and of the first layer's."""
    rotary_base: float | None = eqx.field(static=True)
    pdrop: float = eqx.field(static=True)

    def empty_cache(self, batch: int, length: int, dtype: jnp.dtype, back: int = 0) -> AttentionCache:
        """A cache for `length` positions; to go back, no room is needed: the offset hides the rest."""
        KVHeads, _, HeadSize = self.qkv.Out
        zeros = jnp.zeros((batch * KVHeads.size, length, HeadSize.size), dtype)
        return AttentionCache(zeros, zeros)

    def operations(self, length: int) -> int:
        """Operations a token beside those of its linear maps: every query with every key."""
        KVHeads, Group, HeadSize = self.out.In
        return KVHeads.size * Group.size * length * (4 * HeadSize.size + SOFTMAX)

    def __call__(
        self, x: NamedArray, context: Context = PLAIN
    ) -> tuple[NamedArray, AttentionCache | None]:
        """Map (batch, position, embed) to the same axes."""
        cache, offset, rounded = context.cache, context.offset, context.rounded
        if cache is not None and cache.has_new:
            queries = self._some(slice(None, -2), x, rounded)
            cache = cache.marked(False)
        else:
            heads_first = _heads_first(self.qkv(x, rounded=rounded))
            queries, keys, values = heads_first[:, :-2], heads_first[:, -2], heads_first[:, -1]
            keys, values = self._placed(self.key_norm, keys, offset), self._mixed(values, context)
            cache = cache and cache.extended(keys, values, jnp.asarray(offset))
        queries = self._placed(self.query_norm, queries, offset)
        if cache is not None:
            keys, values = cache.keys, cache.values
        documents = context.documents
        if documents is not None:
            documents = jnp.repeat(documents, self.qkv.Out[0].size, axis=0)
        mixed = causal_attention(
            queries,
            keys,
            values,
            offset,
            pdrop=self.pdrop,
            key=context.key,
            rounded=rounded,
            documents=documents,
        )
        Batch, Position = x.axes[:2]
        mixed = mixed.reshape(Batch.size, -1, *mixed.shape[1:]).transpose(0, 3, 1, 2, 4)
        named = hax.named(mixed, (Batch, Position, *self.out.In))
        return self.out(named, rounded=rounded), cache

    def values(self, x: NamedArray, *, rounded: bool = False) -> Array:
        """The values [H, T, D] of (batch, position, embed), without queries and keys."""
        return self._some(slice(-1, None), x, rounded)[:, 0]

    def remembered(self, x: NamedArray, context: Context) -> AttentionCache:
        """The cache with the keys and values of new positions, whether they ask themselves or not."""
        found = self._some(slice(-2, None), x, context.rounded)
        keys = self._placed(self.key_norm, found[:, 0], context.offset)
        values = self._mixed(found[:, 1], context)
        return context.cache.extended(keys, values, jnp.asarray(context.offset))

    def _some(self, which: slice, x: NamedArray, rounded: bool) -> Array:
        """Some of queries, key and value, in this order, [H, some, T, D]."""
        KVHeads, Qkv, HeadSize = self.qkv.Out
        start, stop, _ = which.indices(Qkv.size)
        chosen = {Qkv: slice(start, stop)}
        bias = None if self.qkv.bias is None else self.qkv.bias[chosen]
        Out = (KVHeads, Qkv.resize(stop - start), HeadSize)
        own = Linear(self.qkv.weight[chosen], bias, self.qkv.In, Out)
        return _heads_first(own(x, rounded=rounded))

    def _placed(self, norm: Norm | None, x: Array, offset: Array | int) -> Array:
        """Queries or keys [..., T, D] as they are compared: normed, turned by their positions."""
        x = x if norm is None else _normed(norm, x)
        if self.rotary_base is None:
            return x
        return rotate(x, rotary_turns(x.shape[-2], offset, x.shape[-1], self.rotary_base))

    def _mixed(self, values: Array, context: Context) -> Array:
        """Shares of a layer's own values and of the first layer's."""
        if self.value_mix is None or context.first_values is None:
            return values
        own, first = self.value_mix.weight.array.astype(values.dtype)
        return own * values + first * context.first_values


def _heads_first(qkv: NamedArray) -> Array:
    """[H, qkv, T, D] of [batch, T, kv heads, qkv, D].

    Heads go before positions once, here: every later product is then a plain batched one.
    """
    moved = qkv.array.transpose(0, 2, 3, 1, 4)
    return moved.reshape(-1, *moved.shape[2:])


def _normed(norm: Norm, x: Array) -> Array:
    """A norm over the last axis of a plain array."""
    rows = hax.named(x.reshape(-1, x.shape[-1]), ("row", *norm.weight.axis_names))
    return norm(rows).array.reshape(x.shape)


@PARTS.register("attention")
@dataclass(frozen=True)
class AttentionPart(Part):
    """Causal attention; its heads are fields of the model's config."""

    def build(self, config: Gpt2Config, *, key: Array, out_gain: float) -> Attention:
        """Each head of keys has its own queries beside it: the axis "qkv" is G queries, key, value."""
        k_qkv, k_out = jax.random.split(key)
        KVHeads, Group, HeadSize = config.KVHeads, config.Group, config.HeadSize
        Embed, Qkv, Mixed = config.Embed, Axis("qkv", Group.size + 2), (KVHeads, Group, HeadSize)
        mix = Linear.of_values("value_mix", (1.0, 0.0)) if config.choice("value_residual") else None
        return Attention(
            qkv=Linear.init((Embed,), (KVHeads, Qkv, HeadSize), key=k_qkv, bias=config.bias),
            out=Linear.init(Mixed, (Embed,), key=k_out, bias=config.bias, gain=out_gain),
            query_norm=_head_norm(config),
            key_norm=_head_norm(config),
            value_mix=mix,
            rotary_base=config.rotary_base if config.choice("positions") == "rotary" else None,
            pdrop=config.attn_pdrop,
        )

    def width_multiple(self, config: Gpt2Config) -> int:
        """Heads are of one width, an even one where positions are rotations."""
        return config.num_heads * (2 if config.choice("positions") == "rotary" else 1)


def _head_norm(config: Gpt2Config) -> Norm | None:
    if not config.choice("qk_norm"):
        return None
    return Norm.init(config.HeadSize, "rms", bias=False, epsilon=config.norm_epsilon)


def causal_attention(
    queries: Array,
    keys: Array,
    values: Array,
    offset: Array | int = 0,
    *,
    pdrop: float = 0.0,
    key: Array | None = None,
    rounded: bool = False,
    documents: Array | None = None,
) -> Array:
    """Attention of queries [H, G, T, D] at positions offset ... offset + T - 1.

    Keys and values are [H, S, D]; `documents` [H, S] numbers those that do not see each other, where
    there are as many queries as keys. On CPU this is written out in blocks of queries, each of which is
    multiplied only with the keys up to its end; that is faster there than
    `jax.nn.dot_product_attention` (results/attention.json). Elsewhere that function's fused kernels
    are used where they apply: no cache and no dropout.
    """
    plain = key is None or pdrop == 0.0
    if plain and queries.shape[2] == keys.shape[1] and jax.default_backend() != "cpu":
        return fused_attention(queries, keys, values, rounded=rounded, documents=documents)
    length = queries.shape[2]
    if length != keys.shape[1]:
        return attention_to_all(queries, keys, values, offset, pdrop=pdrop, key=key, rounded=rounded)
    blocks = min(max(length // SMALLEST_BLOCK, 1), MOST_BLOCKS)
    ends = [length * (i + 1) // blocks for i in range(blocks)]
    random = [None] * blocks if key is None else jax.random.split(key, blocks)
    mixed = [
        attention_to_all(
            queries[:, :, start:end],
            keys[:, :end],
            values[:, :end],
            start,
            pdrop=pdrop,
            key=k,
            rounded=rounded,
            documents=None if documents is None else documents[:, :end],
        )
        for start, end, k in zip([0, *ends], ends, random)
    ]
    return jnp.concatenate(mixed, axis=2)


def attention_to_all(
    queries: Array,
    keys: Array,
    values: Array,
    offset: Array | int = 0,
    *,
    pdrop: float = 0.0,
    key: Array | None = None,
    rounded: bool = False,
    documents: Array | None = None,
) -> Array:
    """`causal_attention` in one piece: every query is multiplied with every key, then masked.

    With `documents` [H, S] the queries are those of the last keys.
    """
    (heads, group, new, size), seen = queries.shape, keys.shape[1]
    # Three axes, [H, G T, D]: XLA's CPU backend is slow at sums where an axis has size one, as G has.
    scaled = queries.reshape(heads, group * new, size) * (1 / math.sqrt(size))
    scores = _scores(scaled, keys, rounded)
    visible = jnp.arange(seen)[None, :] <= jnp.tile(jnp.arange(new), group)[:, None] + offset
    visible = visible[None]
    if documents is not None:
        visible &= jnp.tile(documents[:, -new:], (1, group))[:, :, None] == documents[:, None]
    scores += jnp.where(visible, 0.0, HIDDEN)
    # softmax, but for the division, which comes last, where there are fewer numbers to divide.
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    kept = dropout(weights, pdrop, key).astype(values.dtype)
    mixed = _sums(kept, values, rounded)
    return (mixed / total).astype(values.dtype).reshape(queries.shape)


def _scores(queries: Array, keys: Array, rounded: bool) -> Array:
    """Every query [H, T, D] times every key [H, S, D], in float32."""
    if rounded:
        return rounded_dot(queries, keys, -1, -1)
    return jnp.einsum("htd,hsd->hts", queries, keys, preferred_element_type=jnp.float32)


def _sums(weights: Array, values: Array, rounded: bool) -> Array:
    """Values [H, S, D] summed with weights [H, T, S], in float32."""
    if rounded:
        return rounded_dot(weights, values)
    return jnp.einsum("hts,hsd->htd", weights, values, preferred_element_type=jnp.float32)


def fused_attention(
    queries: Array,
    keys: Array,
    values: Array,
    *,
    rounded: bool = False,
    documents: Array | None = None,
) -> Array:
    """`causal_attention` from offset 0 through `jax.nn.dot_product_attention`."""
    dtype = jnp.bfloat16 if rounded else queries.dtype
    queries, keys, values = (x.astype(dtype) for x in (queries, keys, values))
    mask = None if documents is None else (documents[:, :, None] == documents[:, None])[:, None]
    mixed = jax.nn.dot_product_attention(
        queries.swapaxes(1, 2), keys[:, :, None], values[:, :, None], mask=mask, is_causal=True
    )
    return mixed.swapaxes(1, 2).astype(jnp.float32 if rounded else dtype)


def rotary_turns(length: int, offset: Array | int, size: int, base: float) -> tuple[Array, Array]:
    """Cosines and sines [T, D / 2] of the angles position * base^(-2 k / D), in float32.

    Where the offset is known they are constants of the program: XLA's CPU backend would compute them
    again for every batch, head and layer.
    """
    known = jax.ensure_compile_time_eval() if isinstance(offset, int) else nullcontext()
    with known:
        frequency = base ** (-jnp.arange(0, size, 2, dtype=jnp.float32) / size)
        position = (jnp.arange(length) + offset).astype(jnp.float32)
        angles = position[:, None] * frequency[None, :]
        return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, turns: tuple[Array, Array]) -> Array:
    """Turn the channel pairs (k, k + D/2) of [..., T, D] by the angles of their positions."""
    shape = (1,) * (x.ndim - 2) + turns[0].shape
    cos, sin = (turn.astype(x.dtype).reshape(shape) for turn in turns)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
