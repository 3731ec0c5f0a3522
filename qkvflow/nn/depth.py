"""Depth as a thing of its own: which layers a forward pass visits, when, and with which step.

    dx/dt = f(x, t; W(t)),  0 < t <= 1

Symbols: t is the continuous layer index, h a step over depth. Layer i of L sits at t_i = (i + 1) / L
and covers (t_i - h, t_i] with h = 1 / L: a field that is evaluated once a layer is evaluated at t_i,
the end of the layer's interval. A weight is looked up by the time of a visit.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from qkvflow.nn.time_embed import Time, layer_times


@dataclass(frozen=True)
class Tableau:
    """A Runge-Kutta method as data.

    k_j = f(x + h sum_l a_jl k_l, t - (1 - c_j) h) for each stage j, then x += h sum_j b_j k_j.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]


@dataclass(frozen=True)
class LayerPlan:
    """The visits of a forward pass, in order."""

    tableau: Tableau
    """How a visit is made of evaluations of the field, its stages."""
    times: np.ndarray | Array
    """[visits, stages]: where on their curves the weights are taken."""
    sizes: np.ndarray | Array
    """[visits]: the step h that each is added with."""
    ends: np.ndarray | Array
    """[visits]: where between 0 and 1 the stream is after each."""

    @staticmethod
    def on_grid(
        tableau: Tableau, depth: int, t: Time | None = None, *, total: float = 1.0
    ) -> "LayerPlan":
        """The default grid (t None), the default grid with time frozen (a scalar), or another grid.

        `total` is the sum of all steps: with as many layers as that, each has a step of 1. On any grid
        that ends at 1 it is the same, so that a finer grid is a finer solution of one equation.
        """
        xp = jnp if isinstance(t, jax.Array) else np
        c = np.asarray(tableau.c)[None, :]
        if t is not None and np.ndim(t):
            ends = xp.asarray(t, xp.float32)
            sizes = ends - xp.concatenate([xp.zeros((1,), xp.float32), ends[:-1]])
            times = ends[:, None] - (1.0 - c).astype(np.float32) * sizes[:, None]
        else:  # exact, so that the end of a layer and the start of the next are one time
            ends, sizes = layer_times(depth), np.full(depth, 1 / depth)
            times = (np.arange(depth)[:, None] + c) / depth
            times = times if t is None else xp.full(times.shape, t)
        return LayerPlan(tableau, times.astype(xp.float32), (total * sizes).astype(xp.float32), ends)

    @property
    def visits(self) -> int:
        """Layers that a forward pass goes through."""
        return self.times.shape[0]

    @property
    def stages(self) -> int:
        """Evaluations of the field in a visit."""
        return self.times.shape[1]

    @property
    def evaluations(self) -> int:
        """Evaluations of the field in all."""
        return self.visits * self.stages

    def distinct_times(self) -> np.ndarray:
        """The times at which a concrete plan looks at the weights, in order."""
        return np.unique(np.asarray(self.times))
