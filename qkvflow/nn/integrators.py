"""Integrators: how the layers are added up. Fixed steps share one loop; `adaptive` has its own file."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.strict import Positive
from qkvflow.config.variants import INTEGRATORS as INTEGRATORS
from qkvflow.config.variants import Integrator
from qkvflow.nn.adaptive import Adaptive as Adaptive
from qkvflow.nn.context import Context
from qkvflow.nn.depth import LayerPlan, Tableau
from qkvflow.nn.dynamic import Watch, integrate
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import at_depth


class FixedStep(Integrator):
    """A Runge-Kutta method with the steps of a grid."""

    tableau: ClassVar[Tableau]

    def plan(self, depth: int, t: Time | None = None) -> LayerPlan:
        return LayerPlan.on_grid(self.tableau, depth, t, total=self._total(depth))

    def _total(self, depth: int) -> float:
        """The sum of all steps."""
        return 1.0

    def table_times(self, depth: int) -> np.ndarray:
        return self.plan(depth).distinct_times()

    def follow(
        self, curves: Any, x: NamedArray, config: Gpt2Config, t: Time | None, context: Context
    ) -> NamedArray:
        return self._integrated(curves, x, config, t, context, None)[0]

    def follow_with_action(
        self, curves: Any, x: NamedArray, config: Gpt2Config, t: Time | None, context: Context
    ) -> tuple[NamedArray, Array]:
        end, squares = self._integrated(curves, x, config, t, context, _square_of_change)
        assert squares is not None
        return end, jnp.sum(squares / self.plan(config.num_layers, t).sizes)

    def _integrated(
        self,
        curves: Any,
        x: NamedArray,
        config: Gpt2Config,
        t: Time | None,
        context: Context,
        watch: Watch | None,
    ) -> tuple[NamedArray, Array | None]:
        plan = self.plan(config.num_layers, t)
        if plan.visits != config.num_layers:
            curves = at_depth(curves, plan.visits)
        return integrate(curves, x, plan, context, remat=config.remat, watch=watch)


def _square_of_change(before: NamedArray, after: NamedArray) -> Array:
    """The mean over tokens and width of (x_(i+1) - x_i)^2, in float32."""
    change = after.array.astype(jnp.float32) - before.array.astype(jnp.float32)
    return jnp.mean(jnp.square(change))


_ONE_STAGE = Tableau(a=((),), b=(1.0,), c=(1.0,))


@INTEGRATORS.register("residual")
@dataclass(frozen=True)
class Residual(FixedStep):
    """x + f(x) in every layer, as in a transformer."""

    tableau = _ONE_STAGE
    unit_step = True

    total: Positive | None = None
    """Sum of the step sizes of all layers; None: the number of layers, so that every step is 1."""

    def at_depth(self, own: int, depth: int, *, unit_steps: bool = False) -> "Residual":
        total = depth if unit_steps else self._total(own)
        return Residual(None if total == depth else total)

    def _total(self, depth: int) -> float:
        return float(depth) if self.total is None else self.total


@INTEGRATORS.register("euler")
@dataclass(frozen=True)
class Euler(FixedStep):
    """x + f(x) / L."""

    tableau = _ONE_STAGE


@INTEGRATORS.register("heun")
@dataclass(frozen=True)
class Heun(FixedStep):
    """The mean of the slopes at both ends of a step: of order two."""

    tableau = Tableau(a=((), (1.0,)), b=(1 / 2, 1 / 2), c=(0.0, 1.0))


@INTEGRATORS.register("rk4")
@dataclass(frozen=True)
class Rk4(FixedStep):
    """The classical method of Runge and Kutta: of order four."""

    tableau = Tableau(
        a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        c=(0.0, 1 / 2, 1 / 2, 1.0),
    )
