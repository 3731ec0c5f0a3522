"""One layer's weights, scaled by gates that depend on depth: time-indexed sharing."""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import haliax as hax
import jax
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.families.shared import Shared
from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.norm import Norm
from qkvflow.nn.time_embed import Time, TimeNetwork
from qkvflow.nn.weights import Affine, MakeLayer, Weight, map_affine, size, value_of


class Gated(Weight):
    """W(t) = base(t) * 2 sigmoid(g(t)), with g = MLP(embedding(t)) zero at the start.

    With start "sigmoid" the gate is sigmoid(g(t)). There is one network for each group of axes that has
    a gate of its own: the input axes, the output axes, both (a product, rank one), or all axes together
    (element-wise). The bias is the base's. The base is a map, or a curve itself.
    """

    neutral = 1.0
    base: Linear | Weight
    gates: tuple[TimeNetwork, ...]
    start: Literal["identity", "sigmoid"] = eqx.field(static=True)

    def at(self, t: Time) -> Linear:
        """The base map with its weight scaled by the gates at t."""
        return self._scaled(self._curve.at(t), [self._gate(network, t) for network in self.gates])

    def before_loop(self, times: Time) -> tuple[Any, list[Array]]:
        """What the base makes of the times, and the gates: vectors, unless they are element-wise."""
        return self._curve.before_loop(times), [self._gate(network, times) for network in self.gates]

    def inside_loop(self, prepared: tuple[Any, list[Array]]) -> Linear:
        """The base map of a layer with its gates."""
        base, gates = prepared
        return self._scaled(self._curve.inside_loop(base), gates)

    def operations(self) -> int:
        of_gates = 2 * size(self.gates) + len(self.gates) * size(value_of(self._curve).weight)
        return self._curve.operations() + of_gates

    def dimension(self, times: Time) -> int:
        """What the base has, and for each gate what it does at the times at which its base is alike.

        A gate that is constant over these times is a scale of the base. Gates on rows and on columns
        have one scale a time in common. Exact around a map or a table of layers.
        """
        base, like = self._curve.dimension(times), value_of(self._curve)
        count = self.gates[0].embedding.distinct(np.size(times))
        free = max(0, count - base // size(like))
        of_gates = sum(min(n * free, n * (g.units + 1) + g.freedom(count)) for g, n in self._acting())
        columns = sum(n for _, n in self._acting()) - (len(self.gates) - 1)
        return base + min(of_gates, columns * free)

    def _acting(self) -> list[tuple[TimeNetwork, int]]:
        """Every network, and how many gates it has."""
        return [(network, size_of(network.out.Out)) for network in self.gates]

    def modulators(self, times: Time) -> dict[str, Array]:
        """The gates, one a row, a column or a weight."""
        names = [f" ({i + 1})" for i in range(len(self.gates))] if len(self.gates) > 1 else [""]
        flat = [self._gate(network, times).reshape(np.size(times), -1) for network in self.gates]
        return dict(zip(names, flat))

    @property
    def _curve(self) -> Weight:
        return self.base if isinstance(self.base, Weight) else Shared(self.base)

    def _scaled(self, linear: Linear, gates: list[Array]) -> Linear:
        # As matrices: sums over arrays that have an axis of size one are slow (see `Norm`).
        shape = linear.weight.array.shape
        weight = linear.weight.array
        weight = weight.reshape(*shape[: -len(linear.In + linear.Out)], size_of(linear.In), -1)
        for network, gate in zip(self.gates, gates):
            weight *= self._shaped(gate, network, linear)
        named = hax.named(weight.reshape(shape), linear.weight.axes)
        return Linear(named, linear.bias, linear.In, linear.Out)

    def _gate(self, network: TimeNetwork, t: Time) -> Array:
        """The gate of one network, over the axes on which it acts."""
        return jax.nn.sigmoid(network.at(t)) * (1.0 if self.start == "sigmoid" else 2.0)

    @staticmethod
    def _shaped(gate: Array, network: TimeNetwork, linear: Linear) -> Array:
        """The same gate as [..., In, Out], of size one where it does not act."""
        acts_on = network.out.Out
        times = gate.shape[: gate.ndim - len(acts_on)]
        sides = (size_of(side) if set(side) <= set(acts_on) else 1 for side in (linear.In, linear.Out))
        return gate.reshape(*times, *sides)


@FAMILIES.register("gated")
@dataclass(frozen=True)
class GatedFamily(Family):
    """One set of base weights with gates; norms and biases are shared."""

    goes_around = True

    gate: Literal["input", "output", "both", "element"] = "output"
    """What each gate scales. input: rows. output: columns. both: rows and columns. element: individual
    weights."""
    start: Literal["identity", "sigmoid"] = "identity"
    """Initial gates. identity: 2 sigmoid(g), which starts at 1. sigmoid: sigmoid(g), which starts at
    1/2."""

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        k_layer, k_gates = jax.random.split(key)
        return map_affine(lambda affine, k: self._curve(affine, config, k), make(k_layer), k_gates)

    def _curve(self, affine: Affine, config: Gpt2Config, key: Array) -> Weight:
        if isinstance(affine, Norm):
            return Shared(affine)
        return self.curve_around(affine, affine, config, key=key)

    def curve_around(
        self, base: Linear | Weight, like: Linear, config: Gpt2Config, *, key: Array
    ) -> Gated:
        groups = self._gated_axes(like)
        keys = jax.random.split(key, len(groups))
        networks = (TimeNetwork.init(config, axes, key=k, zero=True) for axes, k in zip(groups, keys))
        return Gated(base, tuple(networks), self.start)

    def _gated_axes(self, linear: Linear) -> list[tuple[Axis, ...]]:
        """The groups of axes that have a gate; a vector is gated on its only axes, its outputs."""
        if not linear.In:
            return [linear.Out]
        return {
            "input": [linear.In],
            "output": [linear.Out],
            "both": [linear.In, linear.Out],
            "element": [linear.In + linear.Out],
        }[self.gate]
