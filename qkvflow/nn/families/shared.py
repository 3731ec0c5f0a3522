"""One layer's weights at every depth: ALBERT, the Universal Transformer; the control."""

from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import FAMILIES, Family
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import Affine, MakeLayer, Weight, at_every_time, is_affine


class Shared(Weight):
    """W(t) = W: one layer, applied L times."""

    value: Affine

    def at(self, t: Time) -> Any:
        """The same map at every depth."""
        return at_every_time(self.value, t)

    def before_loop(self, times: Time) -> None:
        """Nothing depends on time."""

    def inside_loop(self, prepared: None) -> Any:
        """The same map in every layer."""
        return self.value


@FAMILIES.register("shared")
@dataclass(frozen=True)
class SharedFamily(Family):
    """One layer for all depths."""

    def layer(self, make: MakeLayer, config: Gpt2Config, *, key: Array) -> Any:
        return jax.tree.map(Shared, make(key), is_leaf=is_affine)
