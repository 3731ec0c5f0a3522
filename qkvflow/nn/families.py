"""From an ordinary layer to a layer made of curves, one function a weight family."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.nn.dynamic import TABLEAUS, Steps
from qkvflow.nn.linear import Linear
from qkvflow.nn.norm import Norm
from qkvflow.nn.time_embed import TimeNetwork, layer_times
from qkvflow.nn.weights import Gated, Generated, LowRank, PerLayer, Shared, Weight

_Layer = TypeVar("_Layer")
MakeLayer = Callable[[Array], _Layer]


def _is_part(node: Any) -> bool:
    return isinstance(node, Linear | Norm)


def _map_parts(function: Callable[[Any, Array], Weight], layer: _Layer, key: Array) -> _Layer:
    """Replace every linear map and norm of a layer by a function of it and a key of its own."""
    leaves, structure = jax.tree.flatten(layer, is_leaf=_is_part)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [function(*pair) for pair in zip(leaves, keys)])


def per_layer(make: MakeLayer[_Layer], config: Gpt2Config, *, key: Array) -> _Layer:
    """Every layer with its own weights, drawn apart (heun and rk4 have layers at their stages too)."""
    knots = table_times(config)
    Layers = Axis("layers", len(knots))
    stacked = hax.vmap(make, Layers)(jax.random.split(key, Layers.size))
    return as_table(stacked, tuple(map(float, knots)))


def table_times(config: Gpt2Config) -> np.ndarray:
    """Where a table has entries: at every time at which the integrator looks at the weights."""
    if config.integrator == "adaptive":
        return layer_times(config.num_layers)
    return Steps.of(TABLEAUS[str(config.integrator)], config.num_layers).distinct_times()


def as_table(stacked: _Layer, knots: tuple[float, ...]) -> _Layer:
    """A layer whose arrays have a leading axis "layers", as curves through these knots."""
    return jax.tree.map(lambda part: PerLayer(part, knots), stacked, is_leaf=_is_part)


def shared(make: MakeLayer[_Layer], config: Gpt2Config, *, key: Array) -> _Layer:
    """One layer for all depths."""
    return jax.tree.map(Shared, make(key), is_leaf=_is_part)


def generated(make: MakeLayer[_Layer], config: Gpt2Config, *, key: Array) -> _Layer:
    """Every linear map and norm a combination of T basis maps.

    The offset has an ordinary layer's weights, and the basis 1 / sqrt(T) of their size, so that a
    layer starts out near an ordinary one and differs a little at each depth.
    """
    k_layer, k_basis = jax.random.split(key)
    Basis = Axis("basis", config.time_embed_dim)

    def curve(part: Linear | Norm, key: Array) -> Generated:
        k_network, k_weight = jax.random.split(key)
        network = TimeNetwork.init(config, (Basis,), key=k_network, zero=False)
        basis = jax.tree.map(lambda a: hax.zeros((Basis, *a.axes)), part, is_leaf=_is_array)
        offset = eqx.tree_at(
            lambda p: p.bias,
            part,
            0.0 if part.bias is not None else None,
            is_leaf=lambda x: x is None,
        )
        if isinstance(part, Norm):
            return Generated(eqx.tree_at(lambda p: p.weight, offset, 1.0), basis, network)
        scale = jnp.sqrt(jnp.mean(jnp.square(part.weight.array)) / Basis.size)
        weight = hax.random.normal(k_weight, basis.weight.axes) * scale
        return Generated(offset, eqx.tree_at(lambda p: p.weight, basis, weight), network)

    return _map_parts(curve, make(k_layer), k_basis)


def gated(make: MakeLayer[_Layer], config: Gpt2Config, *, key: Array) -> _Layer:
    """One set of base weights, scaled by gates that depend on depth; norms are shared.

    So are biases, unless the config has them shifted.
    """
    k_layer, k_gates = jax.random.split(key)

    def curve(part: Linear | Norm, key: Array) -> Weight:
        if isinstance(part, Norm):
            return Shared(part)
        groups = _gate_axes(part, config.gate)
        keys = jax.random.split(key, len(groups))
        zero = config.gate_start != "random"
        networks = (TimeNetwork.init(config, axes, key=k, zero=zero) for axes, k in zip(groups, keys))
        shift = None
        if config.gate_shift and part.bias is not None:
            k_shift = jax.random.fold_in(key, len(groups))
            shift = TimeNetwork.init(config, part.Out, key=k_shift, zero=True)
        return Gated(part, tuple(networks), shift, config.gate_start)

    layer: Any = make(k_layer)
    curves = _map_parts(curve, layer, k_gates)
    if config.gated_parts is None:
        return curves
    parts = jax.tree.map(Shared, layer.parts, is_leaf=_is_part)
    parts |= {name: curves.parts[name] for name in config.gated_parts}
    return eqx.tree_at(lambda block: block.parts, curves, parts)


def _gate_axes(part: Linear, gate: str) -> list[tuple[Axis, ...]]:
    """The groups of axes that have a gate; a vector is gated on its only axes, its outputs."""
    if not part.In:
        return [part.Out]
    return {
        "input": [part.In],
        "output": [part.Out],
        "both": [part.In, part.Out],
        "element": [part.In + part.Out],
    }[gate]


def low_rank(make: MakeLayer[_Layer], config: Gpt2Config, *, key: Array) -> _Layer:
    """One set of base weights, and a low-rank part whose singular values depend on depth."""
    k_layer, k_ranks = jax.random.split(key)

    def curve(part: Linear | Norm, key: Array) -> Weight:
        if isinstance(part, Norm):
            return Shared(part)
        return low_rank_curve(part, config, config.low_rank, key=key)

    return _map_parts(curve, make(k_layer), k_ranks)


def low_rank_curve(base: Linear, config: Gpt2Config, rank: int, *, key: Array) -> LowRank:
    """A linear map with a low-rank part that is zero at the start."""
    k_down, k_up, k_network = jax.random.split(key, 3)
    Rank = Axis("rank", rank)
    return LowRank(
        base=base,
        down=Linear.init(base.In, (Rank,), key=k_down),
        up=Linear.init((Rank,), base.Out, key=k_up),
        network=TimeNetwork.init(config, (Rank,), key=k_network, zero=True),
    )


def _is_array(node: Any) -> bool:
    return isinstance(node, NamedArray)


FAMILIES = {
    "per_layer": per_layer,
    "shared": shared,
    "generated": generated,
    "gated": gated,
    "low_rank": low_rank,
}
