"""Where adapters go: around the linear maps that patterns name, and around the output projection.

The output projection is no curve; it is taken at t = 1, where both kinds are one pair of factors.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import jax
from jax import Array

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.families.shared import Shared
from qkvflow.nn.linear import Linear
from qkvflow.nn.parameters import by_path
from qkvflow.nn.weights import Weight, is_weight, value_of

_Block = TypeVar("_Block")
HEAD = "lm_head"
_ADAPTERS = 0x61646170  # sets the keys of adapters apart from those of the other weights


def add_adapters(
    blocks: _Block, head: Linear | None, config: Gpt2Config, *, key: Array
) -> tuple[_Block, Linear | Weight | None]:
    """The same curves and output projection, fresh adapters around those that the config names.

    Raises:
        ConfigError: a pattern matches no linear map; all names are listed.
    """
    adapter = config.adapter
    if adapter is None:
        return blocks, head
    names = adaptable_maps(blocks, head)
    check_patterns(adapter.maps, names)
    chosen = {name for name in names if any(fnmatchcase(name, maps) for maps in adapter.maps)}
    curves, structure = by_path(blocks, is_weight)
    *keys, k_head = jax.random.split(jax.random.fold_in(key, _ADAPTERS), len(curves) + 1)
    adapted = [
        adapter.around(curve, config, key=k) if map_name(path) in chosen else curve
        for (path, curve), k in zip(curves.items(), keys)
    ]
    if head is not None and HEAD in chosen:
        return jax.tree.unflatten(structure, adapted), adapter.around_head(Shared(head), key=k_head)
    return jax.tree.unflatten(structure, adapted), head


def adaptable_maps(blocks: Any, head: Linear | None) -> list[str]:
    """The names of all matrices that an adapter can go around, such as attention.qkv."""
    values = {path: value_of(curve) for path, curve in by_path(blocks, is_weight)[0].items()}
    # Norms and vectors of parameters map no inputs to outputs.
    names = [map_name(path) for path, map_ in values.items() if isinstance(map_, Linear) and map_.In]
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
