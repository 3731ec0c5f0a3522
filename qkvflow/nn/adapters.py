"""Adapters: low-rank curves added to curves that are there already.

    lora         W(t) = base(t) + (alpha / rank) A(t) B(t), with factors of their own in every layer
    depth_lora   W(t) = base(t) + U diag(s(t)) V, a curve over depth (`LowRank`)

Both are zero at the start, exactly: B and s begin at zero. They go around whatever curve is there, so
that every family of weights can be adapted, and a model with adapters is a model like any other. The
output projection is no curve; it is taken at t = 1, where both kinds are one pair of factors.
"""

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import equinox as eqx
import haliax as hax
import jax
from haliax import Axis
from jax import Array

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.families import low_rank_curve, table_times
from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import LowRank, PerLayer, Shared, Weight, is_weight

_Block = TypeVar("_Block")
HEAD = "lm_head"


class Adapted(Weight):
    """W(t) = base(t) + scale A(t) B(t), with a pair of factors for every layer."""

    base: Weight
    down: PerLayer
    up: PerLayer
    scale: float = eqx.field(static=True)

    def at(self, t: Time) -> Linear:
        """The base map at t with the product of the factors added to its weight."""
        return self._added(self.base.at(t), self.down.at(t), self.up.at(t))

    def before_loop(self, times: Time) -> tuple[Any, Any, Any]:
        """What the base curve makes of the times, and the factors; never their product."""
        return self.base.before_loop(times), self.down.at(times), self.up.at(times)

    def inside_loop(self, prepared: tuple[Any, Any, Any]) -> Linear:
        """The base map of a layer with the product of its factors added to its weight."""
        base, down, up = prepared
        return self._added(self.base.inside_loop(base), down, up)

    def _added(self, base: Linear, down: Linear, up: Linear) -> Linear:
        shape = base.weight.array.shape
        layers = shape[: len(shape) - len(base.In + base.Out)]
        first = down.weight.array.reshape(*layers, size_of(base.In), -1)
        second = up.weight.array.reshape(*layers, -1, size_of(base.Out))
        weight = base.weight.array + (self.scale * (first @ second)).reshape(shape)
        return eqx.tree_at(lambda m: m.weight, base, hax.named(weight, base.weight.axes))


def is_adapter(curve: Any) -> bool:
    """Whether a curve is another one with an adapter around it."""
    return isinstance(curve, Adapted) or (isinstance(curve, LowRank) and is_weight(curve.base))


def add_adapters(
    blocks: _Block, head: Linear | None, config: Gpt2Config, *, key: Array
) -> tuple[_Block, Linear | Weight | None]:
    """The same curves and output projection, adapters around those that `adapter_maps` names.

    Raises:
        ConfigError: a pattern matches no linear map; all names are listed.
    """
    check_patterns(config.adapter_maps, adaptable_maps(blocks, head))
    flat, structure = jax.tree_util.tree_flatten_with_path(blocks, is_leaf=is_weight)
    *keys, k_head = jax.random.split(key, len(flat) + 1)
    curves = [
        _around(curve, config, key=k) if _is_chosen(_name(path), curve, config) else curve
        for (path, curve), k in zip(flat, keys)
    ]
    if head is not None and _matches(HEAD, config):
        return jax.tree.unflatten(structure, curves), lora(Shared(head), config, (1.0,), key=k_head)
    return jax.tree.unflatten(structure, curves), head


def adaptable_maps(blocks: Any, head: Linear | None) -> list[str]:
    """The names of all matrices that an adapter can go around, such as attention.qkv."""
    flat, _ = jax.tree_util.tree_flatten_with_path(blocks, is_leaf=is_weight)
    names = [_name(path) for path, curve in flat if _is_matrix(_value(curve))]
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


def lora(base: Weight, config: Gpt2Config, knots: tuple[float, ...], *, key: Array) -> Adapted:
    """A curve with factors of its own at each knot; the second one is zero."""
    part = _value(base)
    Layers, Rank = Axis("layers", len(knots)), Axis("rank", config.adapter_rank)
    shape = (Layers, *part.In, Rank)
    down = hax.random.normal(key, shape) * (1 / math.sqrt(size_of(part.In)))
    up = hax.zeros((Layers, Rank, *part.Out))
    return Adapted(
        base,
        PerLayer(Linear(down, None, part.In, (Rank,)), knots),
        PerLayer(Linear(up, None, (Rank,), part.Out), knots),
        config.adapter_alpha / config.adapter_rank,
    )


def _around(curve: Weight, config: Gpt2Config, *, key: Array) -> Weight:
    if config.adapter == "lora":
        return lora(curve, config, tuple(map(float, table_times(config))), key=key)
    adapter = low_rank_curve(_value(curve), config, config.adapter_rank, key=key)
    return LowRank(curve, adapter.down, adapter.up, adapter.network)


def _value(curve: Any) -> Any:
    """The part that a curve is at some time, in shapes only."""
    return eqx.filter_eval_shape(lambda c: c.at(1.0), curve)


def _is_matrix(part: Any) -> bool:
    """Whether a part maps inputs to outputs; norms and vectors of parameters do not."""
    return isinstance(part, Linear) and bool(part.In)


def _is_chosen(name: str, curve: Any, config: Gpt2Config) -> bool:
    return _matches(name, config) and _is_matrix(_value(curve))


def _matches(name: str, config: Gpt2Config) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in config.adapter_maps)


def _name(path: Any) -> str:
    return map_name(jax.tree_util.keystr(path, simple=True, separator="."))
