"""The adaptive integrator: the same field, handed to diffrax.

Its steps are chosen from the error of the whole sequence, so the last token has a say in where the
first one is evaluated: the result is causal only up to the tolerance (tests/nn/test_adaptive.py
measures the leak), unlike every fixed-step integrator, which is causal exactly. Each row of a batch
is solved on its own, so that rows at least do not see each other; documents of one row share its steps.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.strict import Positive, Size
from qkvflow.config.variants import INTEGRATORS, Integrator
from qkvflow.nn.context import Context
from qkvflow.nn.dynamic import looks_back
from qkvflow.nn.time_embed import Time, layer_times
from qkvflow.nn.weights import resolve


@INTEGRATORS.register("adaptive")
@dataclass(frozen=True)
class Adaptive(Integrator):
    """Tsit5 with proportional-integral step control."""

    has_grid = False

    rtol: Positive = 1e-3
    """Relative error tolerance."""
    atol: Positive = 1e-4
    """Absolute error tolerance."""
    max_steps: Size = 256
    """Maximum number of steps; a forward pass that needs more stops with an error."""

    def plan(self, depth: int, t: Time | None = None) -> NoReturn:
        raise ConfigError(
            "The adaptive integrator has no grid over depth:",
            [
                "it cannot be unrolled, cached for generation, counted or followed layer by layer. "
                "Use a fixed-step integrator (residual, euler, heun, rk4)."
            ],
        )

    def table_times(self, depth: int) -> np.ndarray:
        return layer_times(depth)

    def follow(
        self, curves: Any, x: NamedArray, config: Gpt2Config, t: Time | None, context: Context
    ) -> NamedArray:
        """From depth 0 to 1; a scalar `t` freezes the weights at that time.

        Raises at run time when `max_steps` steps are not enough.
        """
        dtype, names = x.array.dtype, x.axis_names
        keys = None if context.key is None else jax.random.split(context.key, x.array.shape[0])

        def slope(time: Array, row: Array, told: Context) -> Array:
            block = resolve(curves, time if t is None else t)
            told = told._replace(rounded=context.rounded)  # diffrax may have made an array of it
            change, _ = block(hax.named(row[None].astype(dtype), names), told)
            return change.array[0].astype(jnp.float32)

        def solve(inputs: tuple[Array, Array | None, Array | None]) -> Array:
            row, key, documents = inputs
            documents = None if documents is None else documents[None]
            told = context._replace(key=key, documents=documents)
            if looks_back(curves):
                first = resolve(curves, 0.0 if t is None else t)
                told = first.begun(hax.named(row[None], names), told)
            return self._solved(slope, row.astype(jnp.float32), told).astype(dtype)

        return hax.named(lax.map(solve, (x.array, keys, context.documents)), x.axes)

    def _solved(self, slope: Any, start: Array, told: Context) -> Array:
        import diffrax  # slow to import

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=None,
            y0=start,
            args=told,
            max_steps=self.max_steps,
            stepsize_controller=diffrax.PIDController(
                rtol=self.rtol, atol=self.atol, pcoeff=0.3, icoeff=0.4
            ),
            throw=False,
        )
        failed = solution.result != diffrax.RESULTS.successful
        return eqx.error_if(solution.ys[0], failed, self.remedy)

    @property
    def remedy(self) -> str:
        """What to do when it gave up."""
        return (
            f"The adaptive integrator did not reach depth 1 in {self.max_steps} steps at rtol "
            f"{self.rtol:g}, atol {self.atol:g}: raise its max_steps, loosen its rtol and atol, or use "
            "a fixed-step integrator such as 'heun'. Non-finite weights also cause this."
        )
