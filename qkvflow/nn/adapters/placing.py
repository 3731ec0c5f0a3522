"""Where adapters go: around the linear maps that patterns name, and around the output projection.

The output projection is no curve; it is taken at t = 1, where both kinds are one pair of factors.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
from jax import Array

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.variants import Adapter
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.families.shared import Shared
from qkvflow.nn.linear import Linear
from qkvflow.nn.weights import Weight, is_weight, value_of

_Block = TypeVar("_Block")
HEAD = "lm_head"


def add_adapters(
    blocks: _Block, head: Linear | None, config: Gpt2Config, *, key: Array
) -> tuple[_Block, Linear | Weight | None]:
    """The same curves and output projection, adapters around those that the config names.

    Raises:
        ConfigError: a pattern matches no linear map; all names are listed.
    """
    adapter = config.adapter
    assert adapter is not None
    check_patterns(adapter.maps, adaptable_maps(blocks, head))
    flat, structure = jax.tree_util.tree_flatten_with_path(blocks, is_leaf=is_weight)
    *keys, k_head = jax.random.split(key, len(flat) + 1)
    curves = [
        adapter.around(curve, config, key=k)
        if _matches(_name(path), adapter) and _is_matrix(value_of(curve))
        else curve
        for (path, curve), k in zip(flat, keys)
    ]
    adapted = jax.tree.unflatten(structure, curves)
    if head is not None and _matches(HEAD, adapter):
        return adapted, adapter.around_head(Shared(head), key=k_head)
    return adapted, head


def adaptable_maps(blocks: Any, head: Linear | None) -> list[str]:
    """The names of all matrices that an adapter can go around, such as attention.qkv."""
    flat, _ = jax.tree_util.tree_flatten_with_path(blocks, is_leaf=is_weight)
    names = [_name(path) for path, curve in flat if _is_matrix(value_of(curve))]
    return names if head is None else [*names, HEAD]


def check_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a pattern that matches none of the names."""
    problems = [
        f"{pattern!r} matches no linear map; this model has {', '.join(names)}."
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise ConfigError("The adapter has no place:", problems)


def _is_matrix(affine: Any) -> bool:
    """Whether a map maps inputs to outputs; norms and vectors of parameters do not."""
    return isinstance(affine, Linear) and bool(affine.In)


def _matches(name: str, adapter: Adapter) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in adapter.maps)


def _name(path: Any) -> str:
    return map_name(jax.tree_util.keystr(path, simple=True, separator="."))
