"""The depth dynamics of a model as plain functions: states, and one step a layer.

Symbols: T positions, E width of the residual stream, L layers; x is [T, E], one text without a batch.
A step is that of the forward pass itself (`pass_layer`), at exactly its times. Dropout is off.
"""

import dataclasses
from typing import Any

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array, lax

from qkvflow.models import LanguageModel
from qkvflow.models.checks import check_ids, checked_time
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.depth import Tableau
from qkvflow.nn.dynamic import Block, looks_back, pass_layer, without_layer_axis
from qkvflow.nn.time_embed import Time
from qkvflow.nn.weights import resolve

Layer = tuple[list[Block], Array]
"""The blocks of a layer, one for each stage of the integrator, and the size of its step."""


class Flow(eqx.Module):
    """The layers of a model on a grid over depth, their weights made."""

    layers: Layer
    """All layers' blocks and steps: arrays with a leading axis of layers."""
    first: Block
    """The block of the first layer, which tells the others of x(0) where they look back."""
    tableau: Tableau = eqx.field(static=True)
    told: Context = PLAIN

    def begun(self, x: Array) -> "Flow":
        """The same layers, told where they begin; x(0) stays as it is for a change of x."""
        if not looks_back(self.first):
            return self
        return dataclasses.replace(self, told=self.first.begun(_named(x), PLAIN))

    def step(self, x: Array, layer: Any) -> Array:
        """x after a layer, which is a slice of `layers` along their leading axis."""
        blocks, size = layer
        after, _ = pass_layer(without_layer_axis(blocks), _named(x), self.tableau, size, self.told)
        return after.array[0]


def _named(x: Array) -> NamedArray:
    return hax.named(x[None], ("batch", "position", "embed"))


def flow_of(model: LanguageModel, t: Time | None = None) -> Flow:
    """The layers of a fixed-step model, on the grid that `model(ids, t)` goes through.

    Raises:
        ConfigError: the integrator is adaptive and has no grid.
    """
    plan = model.plan(checked_time(t, model.integrator))
    blocks = [_stacked(model.transformer.blocks, plan.times[:, j]) for j in range(plan.stages)]
    first = resolve(model.transformer.blocks, plan.times[0, 0])
    return Flow((blocks, jnp.asarray(plan.sizes)), first, plan.tableau)


_stacked = eqx.filter_jit(resolve)


def depths(model: LanguageModel, t: Time | None = None) -> np.ndarray:
    """Where the states of a forward pass lie: 0 and the end of every layer."""
    ends = np.asarray(model.plan(checked_time(t, model.integrator)).ends, np.float64)
    return np.concatenate([[0.0], ends])


def start(model: LanguageModel, ids: np.ndarray) -> Array:
    """x(0) of the ids [T] of a text."""
    named = hax.named(jnp.asarray(ids, jnp.int32)[None], ("batch", "position"))
    check_ids(named, model.config, "ids")
    return model.embed(named.array).array[0]


@eqx.filter_jit
def states(flow: Flow, x: Array) -> Array:
    """The residual stream [L + 1, T, E], from x(0) to x(1).

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=3)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> states(flow_of(model), start(model, np.array([1, 2, 3, 4]))).shape
        (4, 4, 32)
    """
    flow = flow.begun(x)

    def layer(x: Array, inputs: Any) -> tuple[Array, Array]:
        after = flow.step(x, inputs)
        return after, after

    _, after = lax.scan(layer, x, flow.layers)
    return jnp.concatenate([x[None], after])


def in_float32(model: LanguageModel) -> LanguageModel:
    """The same model, computing in float32: derivatives in bfloat16 have two digits."""
    config = dataclasses.replace(model.config, compute_dtype="float32")
    return dataclasses.replace(model, config=config)
