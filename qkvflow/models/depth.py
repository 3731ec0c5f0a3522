"""Changing the depth of a model: sampling its curves on another grid."""

import dataclasses
from typing import TypeVar, cast

import equinox as eqx
import numpy as np

from qkvflow.config import ConfigError
from qkvflow.config.strict import LAYERS, shown
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.needs import bytes_of, check_fits, is_abstract
from qkvflow.nn import weights
from qkvflow.nn.families.per_layer import PerLayerFamily, as_table
from qkvflow.nn.presence import ENDS, words_at
from qkvflow.nn.weights import resolve

_Model = TypeVar("_Model", bound=LanguageModel)


def at_depth(model: _Model, depth: int, *, unit_steps: bool = False) -> _Model:
    """The same curves on the grid of `depth` layers; a view, for one more forward pass.

    The sum of all steps stays: a residual model of 4 layers takes 8 steps of one half. With
    `unit_steps` they are 1 at every depth.

    Raises:
        ConfigError: there is no such depth.
    """
    if not isinstance(depth, int | np.integer) or not 1 <= depth < LAYERS:
        expected = f"a whole number of layers, at least 1, below {LAYERS:,}"
        problem = f"depth is {shown(depth)}; expected {expected}."
        raise ConfigError("The model cannot be unrolled:", [problem])
    blocks = model.transformer.blocks
    said = blocks.names if blocks.ends is None else (*blocks.names, ENDS)
    words = words_at(said, blocks.there, int(depth))
    config = dataclasses.replace(
        model.config,
        num_layers=int(depth),
        integrator=model.integrator.at_depth(
            model.config.num_layers, int(depth), unit_steps=unit_steps
        ),
        weights=PerLayerFamily(words),  # a layer of each time, whatever makes it
    )
    curves = weights.at_depth(blocks, int(depth))
    transformer = dataclasses.replace(model.transformer, blocks=curves)
    return dataclasses.replace(model, config=config, transformer=transformer)


def unroll(model: LanguageModel, depth: int, *, unit_steps: bool = False) -> FlowLM:
    """The ordinary per-layer model that samples `model` on the grid of `depth` layers.

    At the model's own depth it is the same function. At another the sum of all steps stays the same,
    or with `unit_steps` each is 1 where the model's are. Adapters become part of the weights. heun and
    rk4 look at the weights between layers too, and their tables have an entry for each time at which
    they do.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=6)
        >>> model = build_model("tong_neuralode", config, key=jax.random.key(0))
        >>> unroll(model, 3).config.num_layers
        3
    """
    view = at_depth(model, depth, unit_steps=unit_steps)
    times = view.plan().distinct_times()
    curves, sample = view.transformer.blocks, eqx.filter_jit(resolve)
    if not is_abstract(curves):
        shapes = eqx.filter_eval_shape(sample, curves, times)
        check_fits(bytes_of(shapes), f"A model of {depth} layers", "a smaller depth")
    family = cast(PerLayerFamily, view.config.weights)
    there = family.presence(view.config)
    sampled = dataclasses.replace(sample(curves, times), there={})
    blocks = as_table(sampled, tuple(map(float, times)), there)
    blocks = dataclasses.replace(blocks, there=there)
    transformer = dataclasses.replace(model.transformer, blocks=blocks)
    head = None if model.lm_head is None else model.output_map()
    unrolled = dataclasses.replace(view.config, adapter=None)
    return FlowLM(unrolled, transformer, head)


def merge(model: LanguageModel) -> FlowLM:
    """The same function without adapters: they become part of the weights of every layer."""
    return unroll(model, model.config.num_layers)
