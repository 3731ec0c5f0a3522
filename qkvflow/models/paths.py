"""A model as a dictionary of arrays, each under the path that leads to it in the model's tree."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import haliax as hax
import jax
from haliax import NamedArray
from haliax.util import is_named_array

from qkvflow.nn.dynamic import map_name
from qkvflow.nn.parameters import by_path
from qkvflow.nn.weights import is_weight

Arrays = dict[str, Any]
_Tree = TypeVar("_Tree")


def arrays_of(model: Any) -> Arrays:
    """The arrays of a model, by path.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> arrays_of(model)["transformer.wte.weight"].shape
        (256, 32)
    """
    return {path: named.array for path, named in nodes_of(model, NamedArray)}


def with_arrays(model: _Tree, arrays: Mapping[str, Any]) -> _Tree:
    """The same model with these arrays for its own."""
    leaves, structure = by_path(model, is_named_array)
    own = [
        hax.named(arrays[path], leaf.axis_names) if is_named_array(leaf) else leaf
        for path, leaf in leaves.items()
    ]
    return jax.tree.unflatten(structure, own)


def nodes_of(tree: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """The outermost nodes of a type, with their paths."""
    return nodes_where(tree, lambda node: isinstance(node, kind))


def nodes_where(tree: Any, is_one: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """The outermost nodes of which something holds, with their paths."""
    nodes, _ = by_path(tree, is_one)
    return ((path, node) for path, node in nodes.items() if is_one(node))


def modulators_of(blocks: Any, times: Any, is_one: Callable[[Any], bool] = is_weight) -> Arrays:
    """What modulates curves over depth, [time, ...], by the names of their maps."""
    return {
        map_name(path) + name: values
        for path, curve in nodes_where(blocks, is_one)
        for name, values in curve.modulators(times).items()
    }


def is_scaled(node: Any) -> bool:
    """Whether a node is a curve whose modulators are factors: gates."""
    return is_weight(node) and node.neutral == 1.0
