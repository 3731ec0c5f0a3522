"""Own weights in every layer: the ordinary transformer."""

from dataclasses import dataclass
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
from qkvflow.nn.time_embed import Time, layer_index
from qkvflow.nn.weights import Affine, MakeLayer, Weight, is_affine, map_named

_Layer = TypeVar("_Layer")


class PerLayer(Weight):
    """W(t_i) = W_i: a table with one entry a layer, constant between them.

    Entry i answers for times in (knot i-1, knot i]; a twice as fine grid uses each entry twice.
    """

    table: Affine
    knots: tuple[float, ...] = eqx.field(static=True)

    def at(self, t: Time) -> Any:
        """Entries of the table; the table itself, without a copy, on its own grid."""
        index = layer_index(t, self.knots)
        if isinstance(index, np.ndarray) and np.array_equal(index, np.arange(len(self.knots))):
            return self.table
        return map_named(lambda array: jnp.take(array, index, axis=0), self.table)


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
