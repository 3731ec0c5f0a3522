"""Own weights in every layer: the ordinary transformer."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.presence import Presence, kept_rows, layer_problems, presence, rows, words_of
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
    """The entry of every layer of a pass, where that is not its number."""
    here: tuple[bool, ...] | None = eqx.field(static=True, default=None)
    """Whether a layer has an entry; None: all have one."""

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
        return _with_rows(dataclasses.replace(self, order=layers_at(len(self.knots), depth)))


def _with_rows(curve: PerLayer) -> PerLayer:
    """A curve whose order is one of layers, with one of entries."""
    if curve.here is None or curve.order is None:
        return curve
    entries = rows(curve.here)
    return dataclasses.replace(curve, order=tuple(entries[layer] for layer in curve.order))


class Nested(NamedTuple):
    """The layers of a table at every depth."""

    layers: int

    def order(self, visits: int) -> tuple[int, ...]:
        """See `layers_at`."""
        return layers_at(self.layers, visits)


def layers_at(layers: int, depth: int) -> tuple[int, ...]:
    """The layers, of so many, that a pass through `depth` of them goes through.

    Fewer are a nested subset, more are those nearest in time: the first that is not before.

    Examples:
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


def as_table(
    stacked: _Layer, knots: tuple[float, ...], there: Mapping[str, Presence] | None = None
) -> _Layer:
    """A layer whose arrays have a leading axis "layers", as curves through these knots.

    Of parts that are not everywhere, only layers that have them have an entry.
    """

    def curve(path: Any, affine: Affine) -> PerLayer:
        here = kept_rows(there or {}, path)
        if here is None:
            return PerLayer(affine, knots)
        chosen = np.flatnonzero(here)
        table = map_named(lambda array: jnp.take(array, chosen, axis=0), affine)
        return _with_rows(PerLayer(table, knots, tuple(range(len(knots))), here))

    return jax.tree_util.tree_map_with_path(curve, stacked, is_leaf=is_affine)


@FAMILIES.register("per_layer")
@dataclass(frozen=True)
class PerLayerFamily(Family):
    """Every layer with its own weights, drawn apart (heun and rk4 have layers at their stages too)."""

    layers: tuple[str, ...] | None = None
    """Parts of each layer, by name: [attention mlp, ssm, ssm mlp]. None: all parts in each."""

    def misfits(self, config: Gpt2Config) -> list[str]:
        found = layer_problems(self.layers, config.num_layers, config)
        return [f"weights: per_layer: {problem}" for problem in found]

    def words(self, config: Gpt2Config) -> frozenset[str]:
        return words_of(self.layers)

    def presence(self, config: Gpt2Config) -> dict[str, Presence]:
        return presence(self.layers, tuple(range(config.num_layers)), Nested(config.num_layers))

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        knots = config.knots
        Layers = Axis("layers", len(knots))
        stacked = hax.vmap(make, Layers)(jax.random.split(key, Layers.size))
        return as_table(stacked, knots, self.presence(config))
