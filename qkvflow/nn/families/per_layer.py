"""Own weights in every layer: the ordinary transformer."""

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.time_embed import Time, layer_index, layer_times
from qkvflow.nn.weights import Affine, MakeLayer, Weight, is_affine, map_named, visited

_Layer = TypeVar("_Layer")


class PerLayer(Weight):
    """W(t_i) = W_i: a table with one entry a layer, constant between them.

    Entry i answers for times in (knot i-1, knot i]; a twice as fine grid uses each entry twice. A pass
    through fewer layers goes through a nested subset of them (`layers_at`).
    """

    table: Affine
    knots: tuple[float, ...] = eqx.field(static=True)
    order: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """The entry of every layer of a pass through another number of them."""

    def at(self, t: Time) -> Any:
        """Entries of the table; the table itself, without a copy, on its own grid."""
        if self.order is not None:
            return visited(self.table, self.order, t)
        index = layer_index(t, self.knots)
        if isinstance(index, np.ndarray) and np.array_equal(index, np.arange(len(self.knots))):
            return self.table
        return map_named(lambda array: jnp.take(array, index, axis=0), self.table)

    def at_depth(self, depth: int) -> "PerLayer":
        """A nested subset of the layers, or each of them several times.

        A method that looks at weights between layers too has no layers to leave out: its weights are
        those of the time.
        """
        own = layer_times(len(self.knots))
        if not np.array_equal(own, np.asarray(self.knots, np.float32)):
            return self
        return dataclasses.replace(self, order=layers_at(len(self.knots), depth))


def layers_at(layers: int, depth: int) -> tuple[int, ...]:
    """The layers, of so many, that a pass through `depth` of them goes through.

    Fewer are a nested subset, more are those nearest in time: the first that is not before.

    Example:
        >>> [layers_at(8, depth) for depth in (1, 2, 3, 4)]
        [(7,), (0, 7), (0, 3, 7), (0, 3, 5, 7)]
        >>> layers_at(4, 6)
        (0, 1, 1, 2, 3, 3)
    """
    if depth > layers:
        knots = tuple(map(float, layer_times(layers)))
        return tuple(map(int, layer_index(layer_times(depth), knots)))
    kept = [layers - 1, 0][:depth]
    while len(kept) < depth:
        kept.sort()
        before, after = max(pairwise(kept), key=lambda gap: gap[1] - gap[0])
        kept.append((before + after) // 2)
    return tuple(sorted({*kept}))


def as_table(stacked: _Layer, knots: tuple[float, ...]) -> _Layer:
    """A layer whose arrays have a leading axis "layers", as curves through these knots."""
    return jax.tree.map(lambda affine: PerLayer(affine, knots), stacked, is_leaf=is_affine)


@FAMILIES.register("per_layer")
@dataclass(frozen=True)
class PerLayerFamily(Family):
    """Every layer with its own weights, drawn apart (heun and rk4 have layers at their stages too)."""

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        knots = config.knots
        Layers = Axis("layers", len(knots))
        stacked = hax.vmap(make, Layers)(jax.random.split(key, Layers.size))
        return as_table(stacked, knots)
