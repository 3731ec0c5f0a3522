"""Weights as curves over depth: five families, one method `at(t)`, and `resolve`.

A curve stands where a part of a layer would stand: a `Linear` or a `Norm`, its weight together
with its bias, since in Tong et al. the two share one time network. `at(t)` gives that part at
depth t; with a vector of times, its arrays have a leading axis "layers". Blocks are written for
ordinary parts and know nothing of time: `resolve(block, t)` makes an ordinary block of one made
of curves.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.norm import Norm
from qkvflow.nn.time_embed import Time, TimeNetwork, layer_index

Part = Linear | Norm
_Module = TypeVar("_Module")


class Weight(eqx.Module):
    """A curve over depth.

    A loop over depth calls `before_loop` once, for all layers, and `inside_loop` in every layer, so
    that what is small is made at once and what is large is made where it is used.
    """

    @abstractmethod
    def at(self, t: Time) -> Any:
        """The part at depth t, or all layers' parts at a vector of depths."""

    def before_loop(self, times: Time) -> Any:
        """What depends on time, for a vector of times: arrays with a leading axis of layers."""
        return self.at(times)

    def inside_loop(self, prepared: Any) -> Any:
        """The part of one layer, from that layer's slice of what `before_loop` gave."""
        return prepared


def is_weight(node: Any) -> bool:
    """Whether a node of a module's tree is a curve."""
    return isinstance(node, Weight)


def resolve(module: _Module, t: Time) -> _Module:
    """Replace every curve in a module by its value at t.

    Example:
        >>> import haliax as hax, jax
        >>> In, Out = hax.make_axes(embed=2, mlp=3)
        >>> curve = Shared(Linear.init((In,), (Out,), key=jax.random.key(0)))
        >>> resolve({"up": curve}, 0.5)["up"].weight.axes
        (Axis(name='embed', size=2), Axis(name='mlp', size=3))
    """
    return jax.tree.map(lambda node: node.at(t) if is_weight(node) else node, module, is_leaf=is_weight)


def _map_named(function: Callable[..., Array], *parts: Any) -> Any:
    """Map arrays to arrays, naming a leading axis "layers" where one came to be."""

    def apply(leaf: NamedArray, *others: Any) -> NamedArray:
        array = function(leaf.array, *(getattr(other, "array", other) for other in others))
        names = [name for name in leaf.axis_names if name not in ("layers", "basis")]
        return hax.named(array, ["layers"] * (array.ndim - len(names)) + names)

    return jax.tree.map(apply, *parts, is_leaf=lambda node: isinstance(node, NamedArray))


class Shared(Weight):
    """W(t) = W: one layer, applied L times."""

    value: Part

    def at(self, t: Time) -> Any:
        """The same part at every depth."""
        times = np.shape(t)
        return _map_named(lambda array: jnp.broadcast_to(array, times + array.shape), self.value)

    def before_loop(self, times: Time) -> None:
        """Nothing depends on time."""

    def inside_loop(self, prepared: None) -> Any:
        """The same part in every layer."""
        return self.value


class PerLayer(Weight):
    """W(t_i) = W_i: a table with one entry a layer, constant between them.

    Entry i answers for times in (knot i-1, knot i]; a twice as fine grid uses each entry twice.
    """

    table: Part
    knots: tuple[float, ...] = eqx.field(static=True)

    def at(self, t: Time) -> Any:
        """Entries of the table; the table itself, without a copy, on its own grid."""
        index = layer_index(t, self.knots)
        if isinstance(index, np.ndarray) and np.array_equal(index, np.arange(len(self.knots))):
            return self.table
        return _map_named(lambda array: jnp.take(array, index, axis=0), self.table)


class Generated(Weight):
    """W(t) = F_0 + sum_k e_k(t) F_k with e = MLP(embedding(t)): a learned basis over depth.

    `offset` is F_0, where a number (0 for biases, 1 for the weights of norms) is not trained, as in
    Tong et al.; `basis` is F_1 ... F_T with a leading axis "basis". At a vector of L times this is
    one matrix product, [L, T] x [T, size], which reads the basis once and not L times.
    """

    offset: Any
    basis: Part
    network: TimeNetwork

    def at(self, t: Time) -> Any:
        """The basis, combined with the coefficients at t."""
        coefficients = self.network.at(t)

        def combine(basis: Array, offset: Any) -> Array:
            flat = coefficients @ basis.reshape(basis.shape[0], -1)
            value = flat.reshape(coefficients.shape[:-1] + basis.shape[1:])
            if isinstance(offset, Array):
                offset = offset.reshape((1,) * (value.ndim - offset.ndim) + offset.shape)
            return value + offset

        return _map_named(combine, self.basis, self.offset)


class Gated(Weight):
    """W(t) = W * 2 sigmoid(g(t)), with g = MLP(embedding(t)) zero at the start, unless it is random.

    With start "sigmoid" the gate is sigmoid(g(t)), with "linear" 1 + g(t), which has no bounds.
    There is one network for each group of axes that has a gate of its own: the input axes, the
    output axes, both (a product, rank one), or all axes together (element-wise). The bias is shared,
    or with a network `shift` b(t) = b + s(t), where s is zero at the start, too.
    """

    base: Linear
    gates: tuple[TimeNetwork, ...]
    shift: TimeNetwork | None
    start: Literal["identity", "sigmoid", "random", "linear"] = eqx.field(static=True)

    def at(self, t: Time) -> Linear:
        """The base map with its weight scaled by the gates at t, and its bias shifted."""
        times = np.shape(t)
        full = _map_named(lambda array: jnp.broadcast_to(array, times + array.shape), self.base)
        return self._changed(full, *self.before_loop(t))

    def gates_at(self, t: Time) -> list[Array]:
        """The gates: vectors, unless they are element-wise."""
        return [self._gate(network, t) for network in self.gates]

    def before_loop(self, times: Time) -> tuple[list[Array], Array | None]:
        """The gates, and what is added to the bias."""
        return self.gates_at(times), None if self.shift is None else self.shift.at(times)

    def inside_loop(self, prepared: tuple[list[Array], Array | None]) -> Linear:
        """The base map with the gates and the shift of a layer."""
        return self._changed(self.base, *prepared)

    @staticmethod
    def _changed(part: Linear, gates: list[Array], shift: Array | None) -> Linear:
        # As matrices: sums over arrays that have an axis of size one are slow (see `Norm`).
        shape = part.weight.array.shape
        weight = part.weight.array.reshape(*shape[: -len(part.In + part.Out)], size_of(part.In), -1)
        for gate in gates:
            weight *= gate
        bias = part.bias
        if bias is not None and shift is not None:
            bias = hax.named(bias.array + shift, bias.axes)
        return Linear(hax.named(weight.reshape(shape), part.weight.axes), bias, part.In, part.Out)

    def _gate(self, network: TimeNetwork, t: Time) -> Array:
        """The gate of one network, [..., In, Out], of size one where it does not act."""
        logit = network.at(t)
        if self.start == "linear":
            gate = 1.0 + logit
        else:
            gate = jax.nn.sigmoid(logit) * (1.0 if self.start == "sigmoid" else 2.0)
        acts_on = network.out.Out
        shape = (
            size_of(side) if set(side) <= set(acts_on) else 1 for side in (self.base.In, self.base.Out)
        )
        return gate.reshape(*np.shape(t), *shape)


class LowRank(Weight):
    """W(t) = W + U diag(s(t)) V, with s = MLP(embedding(t)) zero at the start.

    `base` may itself be a curve: then this is an adapter of it (LoRA that is a function of depth).
    """

    base: Linear | Weight
    down: Linear
    up: Linear
    network: TimeNetwork

    def at(self, t: Time) -> Linear:
        """The base map at t with the low-rank part added to its weight."""
        return self._added(self._curve.at(t), self.network.at(t))

    def before_loop(self, times: Time) -> tuple[Any, Array]:
        """What the base curve makes of the times, and s."""
        return self._curve.before_loop(times), self.network.at(times)

    def inside_loop(self, prepared: tuple[Any, Array]) -> Linear:
        """The base map of a layer with the low-rank part added to its weight."""
        base, scale = prepared
        return self._added(self._curve.inside_loop(base), scale)

    @property
    def _curve(self) -> Weight:
        return self.base if isinstance(self.base, Weight) else Shared(self.base)

    def _added(self, base: Linear, scale: Array) -> Linear:
        scale = scale[..., None, :]
        down = self.down.weight.array.reshape((1,) * (scale.ndim - 2) + (-1, scale.shape[-1]))
        up = self.up.weight.array.reshape(scale.shape[-1], size_of(self.up.Out))
        weight = base.weight.array + ((down * scale) @ up).reshape(base.weight.array.shape)
        return eqx.tree_at(lambda m: m.weight, base, hax.named(weight, base.weight.axes))
