"""The vector field over depth and the integrators that follow it.

    dx/dt = f(x, t; W(t)),  0 < t <= 1

Symbols: x is the residual stream, t the continuous layer index, h a step over depth. Layer i of L
sits at t_i = (i + 1) / L and covers (t_i - h, t_i] with h = 1 / L: a field that is evaluated once a
layer is evaluated at t_i, the end of the layer's interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import Gpt2Config
from qkvflow.nn.attention import Attention
from qkvflow.nn.linear import dropout
from qkvflow.nn.mlp import MLP
from qkvflow.nn.norm import Norm
from qkvflow.nn.ssm import SelectiveSSM
from qkvflow.nn.time_embed import Time, layer_times
from qkvflow.nn.weights import is_weight

PARTS: dict[str, Any] = {"attention": Attention, "mlp": MLP, "ssm": SelectiveSSM}
FULL, DOTS = None, jax.checkpoint_policies.dots_with_no_batch_dims_saveable
SHORT = 8
"""Evaluations of the block up to which the loop over depth is written out."""
ACTIVATIONS, FITS = 32, 2**31
"""What an evaluation keeps for the backward pass, in residual streams; and the bytes that fit."""


class Sublayer(eqx.Module):
    """A norm and the part behind it."""

    norm: Norm
    part: Attention | MLP | SelectiveSSM
    pdrop: float = eqx.field(static=True)

    def __call__(
        self, x: NamedArray, *, cache: Any, offset: Array | int, key: Array | None
    ) -> tuple[NamedArray, Any]:
        """What this part adds to x."""
        k_part, k_drop = (None, None) if key is None else jax.random.split(key)
        change, cache = self.part(self.norm(x), cache=cache, offset=offset, key=k_part)
        return hax.named(dropout(change.array, self.pdrop, k_drop), change.axes), cache


class Block(eqx.Module):
    """The field f(x): the sum of what the parts add.

    parallel: every part sees x. sequential: every part sees x and what the parts before it added,
    f(x) = a(x) + m(x + a(x)), so that x + f(x) is the usual pre-norm transformer layer.
    """

    parts: dict[str, Sublayer]
    names: tuple[str, ...] = eqx.field(static=True)
    sequential: bool = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, *, key: Array) -> "Block":
        """With step 1 the outputs start smaller, by sqrt(parts * layers), as in GPT-2."""
        names = config.parts or ()
        additions = len(names) * config.num_layers
        gain = additions**-0.5 if config.integrator == "residual" else 1.0
        parts: dict[str, Sublayer] = {}
        for name, k in zip(names, jax.random.split(key, len(names))):
            norm = Norm.init(config.Embed, config.norm, bias=config.bias, epsilon=config.norm_epsilon)
            part = PARTS[name].init(config, key=k, out_gain=gain)
            parts[name] = Sublayer(norm, part, config.resid_pdrop)
        return Block(parts, names, config.order == "sequential")

    def __call__(
        self, x: NamedArray, *, cache: Any = None, offset: Array | int = 0, key: Array | None = None
    ) -> tuple[NamedArray, Any]:
        """f(x) on (batch, position, embed), and the caches of the parts where they are given."""
        caches, total = {}, None
        keys = [None] * len(self.names) if key is None else jax.random.split(key, len(self.names))
        for name, k in zip(self.names, keys):
            seen = x if total is None or not self.sequential else x + total
            change, caches[name] = self.parts[name](
                seen, cache=cache and cache[name], offset=offset, key=k
            )
            total = change if total is None else total + change
        assert total is not None
        return total, cache and caches

    def empty_cache(self, batch: int, length: int, dtype: jnp.dtype) -> dict[str, Any]:
        """One empty cache for every part."""
        return {n: self.parts[n].part.empty_cache(batch, length, dtype) for n in self.names}


def map_name(path: str) -> str:
    """What a reader calls what is at a path of a block: mlp.up, not parts.mlp.part.up.

    The norm inside of a part keeps its full name, since the one before the part has the short one.
    """
    name = path.removeprefix("parts.")
    return name if name.endswith(".part.norm") else name.replace(".part.", ".")


@dataclass(frozen=True)
class Tableau:
    """A Runge-Kutta method as data.

    k_j = f(x + h sum_l a_jl k_l, t - (1 - c_j) h) for each stage j, then x += h sum_j b_j k_j.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]
    c: tuple[float, ...]
    unit_step: bool = False
    """Whether h = 1 in the sums, whatever the spacing of the layers."""


TABLEAUS = {
    "residual": Tableau(a=((),), b=(1.0,), c=(1.0,), unit_step=True),
    "euler": Tableau(a=((),), b=(1.0,), c=(1.0,)),
    "heun": Tableau(a=((), (1.0,)), b=(1 / 2, 1 / 2), c=(0.0, 1.0)),
    "rk4": Tableau(
        a=((), (1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0)),
        b=(1 / 6, 1 / 3, 1 / 3, 1 / 6),
        c=(0.0, 1 / 2, 1 / 2, 1.0),
    ),
}


class Steps(NamedTuple):
    """What the loop over depth goes through: times [L, stages] of the weights, and steps [L]."""

    times: np.ndarray | Array
    sizes: np.ndarray | Array

    @staticmethod
    def of(tableau: Tableau, depth: int, t: Time | None = None) -> "Steps":
        """The default grid (t None), the default grid with time frozen (a scalar), or another grid."""
        xp = jnp if isinstance(t, jax.Array) else np
        ends = layer_times(depth) if t is None or np.ndim(t) == 0 else xp.asarray(t, xp.float32)
        starts = xp.concatenate([xp.zeros((1,), xp.float32), ends[:-1]])
        sizes = ends - starts if t is not None and np.ndim(t) else np.full(depth, 1 / depth)
        c = np.asarray(tableau.c)[None, :]
        if t is None:  # exact, so that the end of a layer and the start of the next are one time
            times = (np.arange(depth)[:, None] + c) / depth
        else:
            times = ends[:, None] - (1.0 - c).astype(np.float32) * sizes[:, None].astype(np.float32)
        if t is not None and np.ndim(t) == 0:
            times = xp.broadcast_to(xp.asarray(t, xp.float32), times.shape)
        sizes = xp.ones_like(ends) if tableau.unit_step else sizes
        return Steps(times.astype(xp.float32), sizes.astype(xp.float32))

    def distinct_times(self) -> np.ndarray:
        """The times at which a concrete grid looks at the weights, in order."""
        return np.unique(np.asarray(self.times))


def integrate(
    curves: Any,
    x: NamedArray,
    tableau: Tableau,
    steps: Steps,
    *,
    remat: Literal["auto", "none", "dots", "full"] = "auto",
    key: Array | None = None,
) -> NamedArray:
    """Follow a block of curves over depth with fixed steps.

    This is one scan, so that compiling takes no longer for a deep model; but a short one is written
    out, which spares it the copies of weights and activations in and out of stacked arrays and any
    recomputation, where remat is "auto".
    """
    stages = range(len(tableau.c))
    weights, structure = jax.tree.flatten(curves, is_leaf=is_weight)
    early = [[weight.before_loop(steps.times[:, j]) for weight in weights] for j in stages]
    keys = None if key is None else jax.random.split(key, steps.sizes.shape[0])

    def layer(x: NamedArray, inputs: Any) -> tuple[NamedArray, None]:
        early, size, key = inputs
        blocks = [
            jax.tree.unflatten(structure, [w.inside_loop(e) for w, e in zip(weights, stage)])
            for stage in without_layer_axis(early)
        ]
        return pass_layer(blocks, x, tableau, size, key=key)[0], None

    written_out = remat == "auto" and _is_small(steps.times.size, x)
    if remat != "none" and not written_out:
        layer = jax.checkpoint(layer, policy=FULL if remat == "full" else DOTS, prevent_cse=False)
    inputs = (early, jnp.asarray(steps.sizes), keys)
    return lax.scan(layer, x, inputs, unroll=steps.sizes.size if written_out else 1)[0]


def pass_layer(
    blocks: Sequence[Block],
    x: NamedArray,
    tableau: Tableau,
    size: Array | np.ndarray,
    *,
    caches: Sequence[Any] | None = None,
    offset: Array | int = 0,
    key: Array | None = None,
) -> tuple[NamedArray, list[Any]]:
    """One layer, from its blocks, one for each stage; with caches, one for each stage, too."""
    slopes: list[NamedArray] = []
    left = []
    for j, block in enumerate(blocks):
        at = _advance(x, size, tableau.a[j], slopes)
        stage_key = None if key is None else jax.random.fold_in(key, j)
        slope, cache = block(at, cache=caches and caches[j], offset=offset, key=stage_key)
        slopes.append(slope)
        left.append(cache)
    return _advance(x, size, tableau.b, slopes), left


def _is_small(evaluations: int, x: NamedArray) -> bool:
    """Whether the loop is quick to compile written out, and what its backward pass needs fits."""
    return evaluations <= SHORT and ACTIVATIONS * evaluations * x.array.nbytes <= FITS


def without_layer_axis(stacked: Any) -> Any:
    """Take the name of the layer axis off named arrays that a scan has sliced along it."""
    return jax.tree.map(
        lambda leaf: (
            hax.named(leaf.array, leaf.axis_names[1:]) if isinstance(leaf, NamedArray) else leaf
        ),
        stacked,
        is_leaf=lambda node: isinstance(node, NamedArray),
    )


def _advance(
    x: NamedArray, size: Array | np.ndarray, weights: tuple[float, ...], slopes: list[NamedArray]
) -> NamedArray:
    """x + h sum_j weight_j slope_j, summed in float32: a step in bfloat16 would be up to 0.4% off."""
    total = x.array.astype(size.dtype)
    for weight, slope in zip(weights, slopes):
        if weight:
            total += weight * size * slope.array.astype(size.dtype)
    return hax.named(total.astype(x.dtype), x.axes)
