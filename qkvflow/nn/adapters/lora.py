"""LoRA with a pair of factors for every layer."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
from haliax import Axis
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.nn.families.per_layer import PerLayer
from qkvflow.nn.linear import Linear, product_operations, size_of
from qkvflow.nn.parameters import Table, adapter_parameters
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import Weight, value_of


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

    def operations(self) -> int:
        down, up = value_of(self.down), value_of(self.up)
        return self.base.operations() + product_operations(down, up)

    def modulators(self, times: Time) -> dict[str, Array]:
        """Those of the base."""
        return {f".base{name}": found for name, found in self.base.modulators(times).items()}

    def parameters(self) -> Table:
        return adapter_parameters(self)

    def _added(self, base: Linear, down: Linear, up: Linear) -> Linear:
        shape = base.weight.array.shape
        layers = shape[: len(shape) - len(base.In + base.Out)]
        first = down.weight.array.reshape(*layers, size_of(base.In), -1)
        second = up.weight.array.reshape(*layers, -1, size_of(base.Out))
        weight = base.weight.array + (self.scale * (first @ second)).reshape(shape)
        return eqx.tree_at(lambda m: m.weight, base, hax.named(weight, base.weight.axes))


@ADAPTERS.register("lora")
@dataclass(frozen=True)
class Lora(Adapter):
    """Factors of their own in every layer; the second one is zero at the start."""

    def around(self, curve: Weight, config: Gpt2Config, *, key: Array) -> Adapted:
        return self._factors(curve, config.knots, key)

    def around_head(self, head: Weight, *, key: Array) -> Adapted:
        return self._factors(head, (1.0,), key)

    def _factors(self, curve: Weight, knots: tuple[float, ...], key: Array) -> Adapted:
        linear = value_of(curve)
        Layers, Rank = Axis("layers", len(knots)), Axis("rank", self.rank)
        shape = (Layers, *linear.In, Rank)
        down = hax.random.normal(key, shape) * (1 / math.sqrt(size_of(linear.In)))
        up = hax.zeros((Layers, Rank, *linear.Out))
        return Adapted(
            curve,
            PerLayer(Linear(down, None, linear.In, (Rank,)), knots),
            PerLayer(Linear(up, None, (Rank,), linear.Out), knots),
            self.alpha / self.rank,
        )
