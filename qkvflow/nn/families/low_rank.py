"""One layer's weights, and a low-rank term whose singular values depend on depth."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import numpy as np
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.strict import Size
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.families.shared import Shared
from qkvflow.nn.linear import Linear, product_operations, size_of
from qkvflow.nn.norm import Norm
from qkvflow.nn.parameters import Table, adapter_parameters, changed, parameters_inside
from qkvflow.nn.time_embed import Time, TimeNetwork
from qkvflow.nn.weights import Affine, MakeLayer, Weight, map_affine, size, value_of


class LowRank(Weight):
    """W(t) = W + U diag(s(t)) V, with s = MLP(embedding(t)) zero at the start.

    `base` may itself be a curve, which this may adapt (LoRA that is a function of depth).
    """

    base: Linear | Weight
    down: Linear
    up: Linear
    network: TimeNetwork
    adapts: bool = eqx.field(static=True, default=False)
    """Whether it was put around the base to be trained in its stead."""

    @staticmethod
    def init(
        base: Linear | Weight,
        like: Linear,
        rank: int,
        config: Gpt2Config,
        key: Array,
        *,
        adapts: bool = False,
    ) -> "LowRank":
        """A base, which is a map like `like` at every time, with a low-rank term that is zero."""
        k_down, k_up, k_network = jax.random.split(key, 3)
        Rank = Axis("rank", rank)
        return LowRank(
            base=base,
            down=Linear.init(like.In, (Rank,), key=k_down),
            up=Linear.init((Rank,), like.Out, key=k_up),
            network=TimeNetwork.init(config, (Rank,), key=k_network, zero=True),
            adapts=adapts,
        )

    def at(self, t: Time) -> Linear:
        """The base map at t with the low-rank term added to its weight."""
        return self._added(self._curve.at(t), self.network.at(t))

    def before_loop(self, times: Time) -> tuple[Any, Array]:
        """What the base curve makes of the times, and s."""
        return self._curve.before_loop(times), self.network.at(times)

    def inside_loop(self, prepared: tuple[Any, Array]) -> Linear:
        """The base map of a layer with the low-rank term added to its weight."""
        base, scale = prepared
        return self._added(self._curve.inside_loop(base), scale)

    def operations(self) -> int:
        own = 2 * size(self.network) + product_operations(self.down, self.up)
        return self._curve.operations() + own

    def dimension(self, times: Time) -> int:
        """What the base has, and a sum of `rank` products s (x) u (x) v over its times.

        Exact around a map or a table of layers up to the rank of min(n, m); a bound beyond.
        """
        base, like = self._curve.dimension(times), value_of(self._curve)
        count, units = self.network.embedding.distinct(np.size(times)), self.network.units
        rank, rows, columns = self.down.Out[0].size, size_of(like.In), size_of(like.Out)
        free = max(0, count - base // size(like))
        spanned = min(units, free)
        mixed = min(rank, units, rows * columns) * (free - spanned)
        turns = min(mixed, self.network.freedom(count)) if free else 0
        term = _of_rank(rank, spanned, rows, columns) + turns
        return base + min(term, free * rows * columns)

    def modulators(self, times: Time) -> dict[str, Array]:
        """The scales s(t), one a rank; and what modulates the base."""
        inner = {f".base{name}": m for name, m in self._curve.modulators(times).items()}
        return inner | {"": self.network.at(times)}

    def parameters(self) -> Table:
        """The low-rank term of a vector decays as little as the vector."""
        table = adapter_parameters(self) if self.adapts else parameters_inside(self)
        return table if self.down.In else changed(table, decays=False)

    @property
    def _curve(self) -> Weight:
        return self.base if isinstance(self.base, Weight) else Shared(self.base)

    def _added(self, base: Linear, scale: Array) -> Linear:
        scale = scale[..., None, :]
        down = self.down.weight.array.reshape((1,) * (scale.ndim - 2) + (-1, scale.shape[-1]))
        up = self.up.weight.array.reshape(scale.shape[-1], size_of(self.up.Out))
        weight = base.weight.array + ((down * scale) @ up).reshape(base.weight.array.shape)
        return eqx.tree_at(lambda m: m.weight, base, hax.named(weight, base.weight.axes))


def _of_rank(rank: int, *sizes: int) -> int:
    """Dimension of the arrays of three axes that are sums of `rank` products of vectors."""
    least, *others = sorted(sizes)
    if least == 0:
        return 0
    if least == 1:
        rank = min(rank, *others)
        return rank * (sum(others) - rank)
    return min(least * others[0] * others[1], rank * (sum(sizes) - 2))


@FAMILIES.register("low_rank")
@dataclass(frozen=True)
class LowRankFamily(Family):
    """One set of base weights with low-rank terms; norms are shared."""

    goes_around = True

    rank: Size = 8
    """Rank of the depth-dependent term added to the base weights."""

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        k_layer, k_ranks = jax.random.split(key)
        return map_affine(lambda affine, k: self._curve(affine, config, k), make(k_layer), k_ranks)

    def _curve(self, affine: Affine, config: Gpt2Config, key: Array) -> Weight:
        if isinstance(affine, Norm):
            return Shared(affine)
        return self.curve_around(affine, affine, config, key=key)

    def curve_around(
        self, base: Linear | Weight, like: Linear, config: Gpt2Config, *, key: Array
    ) -> LowRank:
        return LowRank.init(base, like, self.rank, config, key)
