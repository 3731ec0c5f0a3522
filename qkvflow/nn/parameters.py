"""What every array of a model is: its group, whether it decays, where its matrices are.

Modules that hold arrays say it themselves, by a method `parameters()`; for all others, and for whatever
a module holds inside, `parameters_of` asks what is there. So a weight family that needs nothing special
says nothing, and an optimizer, a sharding, an adapter or a file asks one table.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
from haliax import Axis, NamedArray

Group = Literal["embedding", "base", "time_network", "head"]
Kind = Literal["matrix", "vector", "bias", "norm", "embedding"]
STACKED = ("layers", "basis", "qkv", "branch")
"""Axes along which an array is a batch of matrices, each of them a map of its own."""


@dataclass(frozen=True)
class Parameter:
    """An array of a model."""

    axes: tuple[Axis, ...]
    kind: Kind = "vector"
    group: Group = "base"
    decays: bool = False
    """Whether weight decay acts on it: on embeddings and matrices, but for time networks."""
    inputs: tuple[str, ...] = ()
    """Names of the axes that a matrix maps from."""
    adapter: bool = False
    """Whether an adapter added it."""
    pieces: tuple[int, ...] = ()
    """Sizes of the matrices that stand side by side along the last axis; none where it is one."""

    @property
    def batch(self) -> tuple[str, ...]:
        """Names of the axes along which it is a batch of matrices."""
        return tuple(axis.name for axis in self.axes if axis.name in STACKED)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the axes that a matrix maps to."""
        others = (*self.batch, *self.inputs)
        return tuple(axis.name for axis in self.axes if axis.name not in others)


Table = dict[str, Parameter]
"""By the path that leads to the array."""


def parameters_of(module: Any) -> Table:
    """The arrays of a module by path, in the order of its tree.

    Examples:
        >>> import jax
        >>> from haliax import Axis
        >>> from qkvflow.nn.linear import Linear
        >>> up = Linear.init((Axis("embed", 2),), (Axis("mlp", 3),), key=jax.random.key(0))
        >>> parameters_of({"up": up})["up.weight"].outputs
        ('mlp',)
    """
    own = getattr(module, "parameters", None)
    return own() if own is not None else parameters_inside(module)


def by_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[dict[str, Any], Any]:
    """The leaves of a tree by the paths that lead to them, such as parts.mlp.part.up; its structure."""
    flat, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in flat)
    return {name: leaf for name, (_, leaf) in zip(names, flat)}, structure


def parameters_inside(module: Any) -> Table:
    """The arrays that the modules inside of a module have, by path from it."""

    def is_leaf(node: Any) -> bool:
        holds = isinstance(node, NamedArray) or hasattr(node, "parameters")
        return node is not module and holds

    table: Table = {}
    for name, node in by_path(module, is_leaf)[0].items():
        if isinstance(node, NamedArray):
            table[name] = Parameter(node.axes)
        elif hasattr(node, "parameters"):
            table |= {f"{name}.{inner}": found for inner, found in node.parameters().items()}
    return table


def changed(table: Table, **fields: Any) -> Table:
    """The same arrays with other facts."""
    return {path: dataclasses.replace(found, **fields) for path, found in table.items()}


def adapter_parameters(curve: Any) -> Table:
    """The arrays of a curve that is an adapter around another one, `base`."""
    table = parameters_inside(curve)
    own = {path: found for path, found in table.items() if not path.startswith("base.")}
    return table | changed(own, adapter=True)
