"""Weights as curves over depth: one method `at(t)`, and `resolve`.

A curve stands where an affine map of a layer would stand: a `Linear` or a `Norm`, its weight together
with its bias, since in Tong et al. the two share one time network. `at(t)` gives that map at depth t;
with a vector of times, its arrays have a leading axis "layers". Blocks are written for ordinary maps
and know nothing of time: `resolve(block, t)` makes an ordinary block of one made of curves. The
families of curves are in `qkvflow.nn.families`, one file each.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.nn.linear import Linear
from qkvflow.nn.norm import Norm
from qkvflow.nn.parameters import Table, parameters_inside
from qkvflow.nn.time_embed import Time, visit_index

Affine = Linear | Norm
"""A weight and perhaps a bias: what a curve is at one time."""
_Module = TypeVar("_Module")
_Layer = TypeVar("_Layer")
MakeLayer = Callable[[Array], _Layer]


class Weight(eqx.Module):
    """A curve over depth.

    A loop over depth calls `before_loop` once, for all layers, and `inside_loop` in every layer, so
    that what is small is made at once and what is large is made where it is used.
    """

    neutral: ClassVar[float] = 0.0
    """Modulators that change nothing: 0 where they count what is added, 1 where they are factors."""

    @abstractmethod
    def at(self, t: Time) -> Any:
        """The map at depth t, or all layers' maps at a vector of depths."""

    def before_loop(self, times: Time) -> Any:
        """What depends on time, for a vector of times: arrays with a leading axis of layers."""
        return self.at(times)

    def inside_loop(self, prepared: Any) -> Any:
        """The map of one layer, from that layer's slice of what `before_loop` gave."""
        return prepared

    def at_depth(self, depth: int) -> "Weight":
        """The curve as a pass through so many layers sees it: itself, unless it knows its visits."""
        own = {
            field.name: getattr(self, field.name).at_depth(depth)
            for field in dataclasses.fields(self)
            if is_weight(getattr(self, field.name))
        }
        return dataclasses.replace(self, **own) if own else self

    def operations(self) -> int:
        """Floating-point operations that make the value at one time."""
        return 0

    def dimension(self, times: Time) -> int:
        """Dimension of the set of stacks (W(t_1), ..., W(t_L)) that its parameters reach.

        It is the rank of the derivative of the stack by the parameters, at almost all of them. Here it
        is what no family exceeds, and tables and constants reach: all parameters, or all entries.
        """
        own = size(self)
        return min(own, np.size(times) * size(value_of(self))) if own else 0

    def modulators(self, times: Time) -> dict[str, Array]:
        """What modulates the weights over depth, by name: arrays with a leading axis of times."""
        return {}

    def parameters(self) -> Table:
        """What its arrays are, by path."""
        return parameters_inside(self)


def is_weight(node: Any) -> bool:
    """Whether a node of a module's tree is a curve."""
    return isinstance(node, Weight)


def is_affine(node: Any) -> bool:
    """Whether a node of an ordinary layer is what a curve can stand for."""
    return isinstance(node, Linear | Norm)


def resolve(module: _Module, t: Time) -> _Module:
    """Replace every curve in a module by its value at t.

    Examples:
        >>> import haliax as hax, jax
        >>> from qkvflow.nn.families import Shared
        >>> In, Out = hax.make_axes(embed=2, mlp=3)
        >>> curve = Shared(Linear.init((In,), (Out,), key=jax.random.key(0)))
        >>> resolve({"up": curve}, 0.5)["up"].weight.axes
        (Axis(name='embed', size=2), Axis(name='mlp', size=3))
    """
    return jax.tree.map(lambda node: node.at(t) if is_weight(node) else node, module, is_leaf=is_weight)


def at_depth(module: _Module, depth: int) -> _Module:
    """The same module with its curves as a pass through so many layers sees them."""
    return jax.tree.map(
        lambda node: node.at_depth(depth) if is_weight(node) else node, module, is_leaf=is_weight
    )


def map_affine(function: Callable[[Any, Array], Weight], layer: _Layer, key: Array) -> _Layer:
    """Replace every linear map and norm of a layer by a function of it and a key of its own."""
    leaves, structure = jax.tree.flatten(layer, is_leaf=is_affine)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [function(*pair) for pair in zip(leaves, keys)])


def map_named(function: Callable[..., Array], *maps: Any) -> Any:
    """Map arrays to arrays, naming a leading axis "layers" where one came to be."""

    def apply(leaf: NamedArray, *others: Any) -> NamedArray:
        array = function(leaf.array, *(getattr(other, "array", other) for other in others))
        names = [name for name in leaf.axis_names if name not in ("layers", "basis")]
        return hax.named(array, ["layers"] * (array.ndim - len(names)) + names)

    return hax.tree_util.tree_map(apply, *maps)


def visited(table: Any, order: tuple[int, ...], t: Time) -> Any:
    """The entries of a table that visits in this order have at t, or the table itself.

    They are slices, where times are known: a gather has a slow gradient.
    """
    visit = visit_index(t, len(order))
    if isinstance(visit, jax.Array):
        entry = jnp.take(jnp.asarray(order), visit)
        return map_named(lambda array: jnp.take(array, entry, axis=0), table)
    entries = np.asarray(order)[visit]
    if entries.ndim == 0:
        return map_named(lambda array: array[entries], table)
    if np.array_equal(entries, np.arange(jax.tree.leaves(table)[0].shape[0])):
        return table
    return map_named(lambda array: jnp.stack([array[i] for i in entries]), table)


def at_every_time(value: Any, t: Time) -> Any:
    """A map that does not depend on time, at one time or at each of several."""
    times = np.shape(t)
    return map_named(lambda array: jnp.broadcast_to(array, times + array.shape), value)


def value_of(curve: Weight) -> Any:
    """The map that a curve is at some time, in shapes only."""
    return eqx.filter_eval_shape(lambda c: c.at(1.0), curve)


def size(tree: Any) -> int:
    """How many numbers a tree of arrays, or of their shapes, holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if hasattr(leaf, "size"))
