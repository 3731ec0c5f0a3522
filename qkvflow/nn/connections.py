"""Several residual streams and what goes on between them: hyper-connections.

    y = part(sum_i a_i X_i),    X_j <- sum_i A_ij X_i + b_j y

(Zhu et al. 2024). Symbols: X_1 ... X_n are the streams, E wide, side by side along the axis "embed";
a reads them, b writes to them, A keeps them. As a field over depth, f_j(X) = sum_i (A_ij - 1_ij) X_i +
b_j y, so that every integrator with fixed steps follows it.

    static      a, b, A are parameters
    input       a + s tanh(norm(X_i) W), and b and A alike, with s = 0.01 and W = 0 at the start
    manifold    a = sigmoid(.), b = 2 sigmoid(.), A doubly stochastic, by the rounds of Sinkhorn and
                Knopp, of parameters + s norm(X_i) W (Xie et al. 2025, whose W sees all streams at once)

At the start all streams are x(0), a sums to 1, b is 1 and A keeps: the model of one stream. Unlike in
the papers, a reads every stream, each with another weight, so that no two streams stay alike where
layers share their weights.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.nn import stream
from qkvflow.nn.linear import Linear
from qkvflow.nn.norm import Norm

ROUNDS = 20
"""Of Sinkhorn and Knopp: every row divided by its sum, then every column."""
KEPT = 8.0
"""Logit on the diagonal of a doubly stochastic matrix at the start: exp(-8) is near enough to zero."""
BOUND, NORM = 0.01, 8
"""s at the start; operations of a norm for each element."""


class Shares(NamedTuple):
    """a, b [..., n] and A [..., n, n] of every token, or of all."""

    read: Array
    write: Array
    keep: Array


class Connection(eqx.Module):
    """How a part is connected to the streams."""

    shares: Linear
    """a, b and the rows of A, one after the other."""
    norm: Norm | None
    map: Linear | None
    """W: what each stream says of its own a, b and row of A."""
    bound: Linear | None
    """s of a, of b and of A."""
    streams: int = eqx.field(static=True)
    kind: Literal["static", "input", "manifold"] = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, norm: Norm, place: int, *, key: Array) -> "Connection":
        """The connection of the part with this number in a layer: each reads other streams most."""
        n, kind = config.streams, config.stream_mix
        read = np.roll(2 * np.arange(1, n + 1) / (n * (n + 1)), place)
        write, keep = np.ones(n), np.eye(n)
        if kind == "manifold":
            read, write, keep = np.log(read / (1 - read)), np.zeros(n), KEPT * np.eye(n)
        values = np.concatenate([read, write, keep.reshape(-1)]).tolist()
        shares = Linear.of_values("connection", values)
        if kind == "static":
            return Connection(shares, None, None, None, n, kind)
        map_ = Linear.init((config.Embed,), (Axis("shares", n + 2),), key=key, gain=0.0)
        return Connection(shares, norm, map_, Linear.of_values("bound", (BOUND,) * 3), n, kind)

    def at(self, x: NamedArray) -> Shares:
        """The shares of every token of all streams, in float32."""
        n = self.streams
        values = self.shares.weight.array[None, None]
        read, write, keep = values[..., :n], values[..., n : 2 * n], values[..., 2 * n :]
        found = Shares(read, write, keep.reshape(1, 1, n, n))
        if self.map is not None and self.norm is not None and self.bound is not None:
            Embed = Axis("embed", x.array.shape[-1] // n)
            apart = x.array.reshape(*x.array.shape[:-1], n, Embed.size)
            rows = hax.named(apart, (*x.axis_names[:-1], "stream", Embed.name))
            said = self.map(self.norm(rows)).array.astype(jnp.float32)
            said = jnp.tanh(said) if self.kind == "input" else said
            of_read, of_write, of_keep = self.bound.weight.array
            found = Shares(
                read + of_read * said[..., 0],
                write + of_write * said[..., 1],
                found.keep + of_keep * said[..., 2:],
            )
        return _constrained(found) if self.kind == "manifold" else found

    def joined(self, x: NamedArray) -> NamedArray:
        """The streams and the one that a pass worked on, after it: y is what it added."""
        width = x.array.shape[-1] // (self.streams + 1)
        all_, own = _part(x, slice(None, -width)), _part(x, slice(-width, None))
        shares = self.at(all_)
        made = hax.named(own.array - read(all_, shares).array, own.axes)
        after = hax.named(all_.array + written(all_, made, shares).array, all_.axes)
        return _beside(after, read(after, shares))

    def operations(self, width: int) -> int:
        """Operations a token: sums over streams, and norms and maps of all but the first of them."""
        n = self.streams
        rounds = 4 * n * n * ROUNDS if self.kind == "manifold" else 0
        said = 0 if self.map is None else (n - 1) * width * (2 * (n + 2) + NORM)
        return rounds + said + width * (2 * n * n + 4 * n)


def read(x: NamedArray, shares: Shares) -> NamedArray:
    """sum_i a_i X_i."""
    parts = jnp.split(x.array, shares.read.shape[-1], axis=-1)
    total = sum(shares.read[..., i, None] * part for i, part in enumerate(parts))
    return _named(total, x)


def written(x: NamedArray, y: NamedArray, shares: Shares) -> NamedArray:
    """f_j = sum_i (A_ij - 1_ij) X_i + b_j y, side by side."""
    n = shares.read.shape[-1]
    parts = jnp.split(x.array, n, axis=-1)
    moved = shares.keep - jnp.eye(n)[None, None]
    changes = [
        sum(moved[..., i, j, None] * part for i, part in enumerate(parts))
        + shares.write[..., j, None] * y.array
        for j in range(n)
    ]
    return _named(jnp.concatenate(changes, axis=-1), x)


def _constrained(logits: Shares) -> Shares:
    read, write = jax.nn.sigmoid(logits.read), 2 * jax.nn.sigmoid(logits.write)
    highest = lax.stop_gradient(jnp.max(logits.keep, axis=(-2, -1), keepdims=True))
    return Shares(read, write, doubly_stochastic(jnp.exp(logits.keep - highest)))


def doubly_stochastic(matrix: Array) -> Array:
    """The matrix whose rows and columns add up to 1 that scaling rows and columns [..., n, n] leads to.

    Examples:
        >>> found = doubly_stochastic(jnp.array([[1.0, 2.0], [3.0, 1.0]]))
        >>> bool(jnp.allclose(found.sum(0), 1)) and bool(jnp.allclose(found.sum(1), 1, atol=1e-5))
        True
    """

    def scaled(_: Any, matrix: Array) -> Array:
        matrix = matrix / jnp.sum(matrix, axis=-1, keepdims=True)
        return matrix / jnp.sum(matrix, axis=-2, keepdims=True)

    return lax.fori_loop(0, ROUNDS, scaled, matrix)


def split(x: NamedArray, config: Gpt2Config) -> NamedArray:
    """x(0) in all streams, and in the one that passes work on, where streams meet at their ends."""
    copies = config.streams + (config.mix_streams == "ends")
    return x if config.streams == 1 else hax.named(jnp.tile(x.array, copies), x.axis_names)


def merged(x: NamedArray, config: Gpt2Config) -> NamedArray:
    """What is read at the end: the mean of all streams, or the one that passes work on."""
    if config.streams == 1:
        return x
    of_passes = config.mix_streams == "ends"
    return worked_on(x, config.hidden_dim) if of_passes else stream.mean(x, config.streams)


def worked_on(x: NamedArray, width: int) -> NamedArray:
    """The stream that passes work on: the last."""
    return _part(x, slice(-width, None))


def others_unchanged(change: NamedArray, x: NamedArray) -> NamedArray:
    """A change of the stream that passes work on, as one of all."""
    missing = x.array.shape[-1] - change.array.shape[-1]
    padded = jnp.pad(change.array, [(0, 0)] * (change.array.ndim - 1) + [(missing, 0)])
    return hax.named(padded, change.axis_names)


def _part(x: NamedArray, which: slice) -> NamedArray:
    return hax.named(x.array[..., which], x.axis_names)


def _beside(x: NamedArray, y: NamedArray) -> NamedArray:
    return hax.named(jnp.concatenate([x.array, y.array], axis=-1), x.axis_names)


def _named(value: Any, like: NamedArray) -> NamedArray:
    return hax.named(value.astype(like.dtype), like.axis_names)
