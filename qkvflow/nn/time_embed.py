"""What a weight sees of time: embeddings of the layer index t, and the small networks over them.

Symbols: t is the continuous layer index in [0, 1]; L the number of layers; layer i sits at
t_i = (i + 1) / L. Time is float32 everywhere: in bfloat16, layers 255 and 256 of 256 are one.
"""

import math
from abc import abstractmethod

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.parameters import Table, changed, parameters_inside

Time = float | np.ndarray | Array


def layer_times(depth: int) -> np.ndarray:
    """The grid of an ordinary forward pass: t_i = (i + 1) / depth, as float32."""
    return (np.arange(1, depth + 1) / depth).astype(np.float32)


def layer_index(t: Time, knots: tuple[float, ...]) -> np.ndarray | Array:
    """The first knot that is not before t, so that knot i answers for (knot i-1, knot i].

    Concrete times give a concrete index. A time that misses a knot by rounding still finds it.
    """
    xp = jnp if isinstance(t, jax.Array) else np
    slack = 1e-3 / len(knots)
    index = xp.searchsorted(xp.asarray(knots, xp.float32), xp.asarray(t, xp.float32) - slack)
    return xp.clip(index, 0, len(knots) - 1)


def visit_index(t: Time, visits: int) -> np.ndarray | Array:
    """The visit whose time, on the grid of so many, is nearest to t: where times are moved, its own."""
    xp = jnp if isinstance(t, jax.Array) else np
    nearest = xp.floor(visits * xp.asarray(t, xp.float32) + (0.5 + 1e-3)) - 1
    return xp.clip(nearest, 0, visits - 1).astype(xp.int32)


class TimeEmbedding(eqx.Module):
    """Features of t; `at` takes one time or a vector of times and adds a last axis of features."""

    @abstractmethod
    def at(self, t: Time) -> Array:
        """The features at t."""

    def freedom(self, units: int, times: int) -> int:
        """Dimension of what an affine map to so many units makes of the features of so many times.

        Of known features: every unit is any vector in the span of the features and of 1.
        """
        return units * min(times, self.features + 1)

    def distinct(self, times: int) -> int:
        """How many of so many times have features of their own."""
        return times

    @property
    @abstractmethod
    def features(self) -> int:
        """How many features a time has."""


class Sinusoidal(TimeEmbedding):
    """Fixed features [t, sin(w t), cos(w t)], w_k = w_0 * 10000^(-k / K); w_0 = 1000 in Tong et al."""

    count: int = eqx.field(static=True)
    highest: float = eqx.field(static=True, default=1000.0)

    def at(self, t: Time) -> Array:
        frequency = self.highest * np.exp(-math.log(10000.0) * np.arange(self.count) / self.count)
        return _fourier(t, jnp.asarray(frequency, jnp.float32))

    @property
    def features(self) -> int:
        return 2 * self.count + 1


class LearnedFourier(TimeEmbedding):
    """Features [t, sin(2 pi w t), cos(2 pi w t)] with learned frequencies w, normal at the start."""

    frequency: NamedArray

    def at(self, t: Time) -> Array:
        return _fourier(t, 2 * math.pi * self.frequency.array)

    def freedom(self, units: int, times: int) -> int:
        """The frequencies are learned, too."""
        return min(units * times, super().freedom(units, times) + self.frequency.size)

    @property
    def features(self) -> int:
        return 2 * self.frequency.size + 1


class LayerVector(TimeEmbedding):
    """One learned vector a layer, which knows nothing of the layers' order: a control."""

    table: NamedArray
    knots: tuple[float, ...] = eqx.field(static=True)

    def at(self, t: Time) -> Array:
        return jnp.take(self.table.array, layer_index(t, self.knots), axis=0)

    def freedom(self, units: int, times: int) -> int:
        """All matrices [times, units] that have, less their means, the rank of the features at most."""
        rank = min(self.features, units, times - 1)
        return units + rank * (times - 1 + units - rank)

    @property
    def features(self) -> int:
        return self.table.array.shape[-1]


class OneTime(TimeEmbedding):
    """An embedding that is told one half in every layer: a control."""

    told: TimeEmbedding

    def at(self, t: Time) -> Array:
        return self.told.at(jnp.full(np.shape(t), 0.5, jnp.float32))

    def distinct(self, times: int) -> int:
        """All are told one time."""
        return 1

    @property
    def features(self) -> int:
        return self.told.features


def _fourier(t: Time, frequency: Array) -> Array:
    time = jnp.asarray(t, jnp.float32)[..., None]
    angle = time * frequency.reshape((1,) * (time.ndim - 1) + (-1,))
    return jnp.concatenate([time, jnp.sin(angle), jnp.cos(angle)], axis=-1)


def time_embedding(config: Gpt2Config, *, key: Array) -> TimeEmbedding:
    """The time embedding that a config names, told the true times or one for all."""
    embedding = _true_time_embedding(config, key=key)
    return embedding if config.layer_time == "true" else OneTime(embedding)


def _true_time_embedding(config: Gpt2Config, *, key: Array) -> TimeEmbedding:
    Frequency = Axis("time_frequency", config.sinusoidal_dim)
    if config.time_embedding == "sinusoidal":
        return Sinusoidal(Frequency.size, config.time_frequency)
    if config.time_embedding == "learned_fourier":
        return LearnedFourier(hax.random.normal(key, Frequency))
    knots = layer_times(config.num_layers)
    table = hax.random.normal(key, (config.Layers, time_features(config)))
    return LayerVector(table, tuple(map(float, knots)))


def time_features(config: Gpt2Config) -> Axis:
    """What every time embedding gives: the time, and a sine and a cosine of each frequency."""
    return Axis("time_features", 2 * config.sinusoidal_dim + 1)


class TimeNetwork(eqx.Module):
    """A small network of time, e(t) = W2 silu(W1 embedding(t) + b1) + b2."""

    embedding: TimeEmbedding
    hidden: Linear
    out: Linear

    @staticmethod
    def init(config: Gpt2Config, Out: tuple[Axis, ...], *, key: Array, zero: bool) -> "TimeNetwork":
        """A network with outputs over the axes `Out`; with `zero`, e(t) = 0 at the start."""
        k_embedding, k_hidden, k_out = jax.random.split(key, 3)
        embedding = time_embedding(config, key=k_embedding)
        Hidden = Axis("time_hidden", config.time_embed_dim)
        hidden = Linear.init((time_features(config),), (Hidden,), key=k_hidden, bias=True)
        out = Linear.init((Hidden,), Out, key=k_out, bias=True, gain=0.0 if zero else 1.0)
        return TimeNetwork(embedding, hidden, out)

    def at(self, t: Time) -> Array:
        """e(t): an array over Out, with the axis of times before it where t is a vector."""
        features = self.embedding.at(t)
        times = tuple(Axis("layers", n) for n in features.shape[:-1])
        hidden = self.hidden(hax.named(features, times + self.hidden.In))
        return self.out(hax.named(jax.nn.silu(hidden.array), hidden.axes)).array

    @property
    def units(self) -> int:
        """Hidden units."""
        return size_of(self.hidden.Out)

    def freedom(self, times: int) -> int:
        """Dimension of what the units span, together with 1, at so many times: of a set of subspaces.

        The output layer takes any combinations, so that units count up to combinations: T of them
        span at most T (L - 1 - T) dimensions of subspaces of L times.
        """
        spans = self.units * max(0, times - 1 - self.units)
        return min(spans, self.embedding.freedom(self.units, times))

    def parameters(self) -> Table:
        """All its arrays are of one group, and none decays."""
        return changed(parameters_inside(self), group="time_network", decays=False)
