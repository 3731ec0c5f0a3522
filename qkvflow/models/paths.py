"""A model as a dictionary of arrays, each under the path that leads to it in the model's tree."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import haliax as hax
import jax
from haliax import Axis, NamedArray

from qkvflow.nn.linear import Embedding, Linear
from qkvflow.nn.time_embed import TimeNetwork
from qkvflow.nn.weights import LowRank

Arrays = dict[str, Any]
_Tree = TypeVar("_Tree")
PARTS = ("embedding", "base", "time_network", "head")


def arrays_of(model: Any) -> Arrays:
    """The arrays of a model, by path.

    Example:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> arrays_of(model)["transformer.wte.weight"].shape
        (256, 32)
    """
    return {path: named.array for path, named in nodes_of(model, NamedArray)}


def axes_of(model: Any) -> dict[str, tuple[Axis, ...]]:
    """The axes of the arrays of a model, by path."""
    return {path: named.axes for path, named in nodes_of(model, NamedArray)}


def with_arrays(model: _Tree, arrays: Mapping[str, Any]) -> _Tree:
    """The same model with these arrays for its own."""
    flat, structure = jax.tree_util.tree_flatten_with_path(
        model, is_leaf=lambda node: isinstance(node, NamedArray)
    )
    leaves = [
        hax.named(arrays[_name(path)], leaf.axis_names) if isinstance(leaf, NamedArray) else leaf
        for path, leaf in flat
    ]
    return jax.tree.unflatten(structure, leaves)


def parts_of(model: Any) -> dict[str, str]:
    """Which of `PARTS` each array belongs to, by path; base is all that is none of the others."""
    networks = tuple(path + "." for path, _ in nodes_of(model, TimeNetwork))

    def part(path: str) -> str:
        if path.startswith(networks):
            return "time_network"
        if path.startswith(("transformer.wte.", "transformer.wpe.")):
            return "embedding"
        return "head" if path.startswith("lm_head.") else "base"

    return {path: part(path) for path in arrays_of(model)}


def decays_of(model: Any) -> dict[str, bool]:
    """Whether weight decay acts on each array, by path.

    It acts on embeddings and on matrices, and not on norms, biases, time networks (hence gates), and
    the vectors of the state-space part.
    """
    matrices = [path for path, linear in nodes_of(model, Linear) if linear.In]
    tables = [path for path, _ in nodes_of(model, Embedding)]
    decayed = {f"{path}.weight" for path in (*matrices, *tables)}
    vectors = tuple(f"{path}." for path, curve in nodes_of(model, LowRank) if not curve.down.In)
    return {
        path: path in decayed and part != "time_network" and not path.startswith(vectors)
        for path, part in parts_of(model).items()
    }


def nodes_of(tree: Any, kind: type) -> Iterator[tuple[str, Any]]:
    """The outermost nodes of a type, with their paths."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, kind))
    return ((_name(path), node) for path, node in flat if isinstance(node, kind))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
