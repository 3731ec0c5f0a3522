"""Changing the depth of a model: sampling its curves on another grid."""

import dataclasses

import equinox as eqx
import numpy as np

from qkvflow.config import ConfigError
from qkvflow.config.strict import LAYERS, shown
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.needs import bytes_of, check_fits, is_abstract
from qkvflow.nn.families.per_layer import PerLayerFamily, as_table
from qkvflow.nn.weights import resolve


def unroll(model: LanguageModel, depth: int) -> FlowLM:
    """The ordinary per-layer model that samples `model` on the grid of `depth` layers.

    At the model's own depth it is the same function. Adapters become part of the weights. heun and rk4
    look at the weights between layers too, and their tables have an entry for each time at which they
    do.

    Example:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=6)
        >>> model = build_model("tong_neuralode", config, key=jax.random.key(0))
        >>> unroll(model, 3).config.num_layers
        3
    """
    if not isinstance(depth, int | np.integer) or not 1 <= depth < LAYERS:
        expected = f"a whole number of layers, at least 1, below {LAYERS:,}"
        problem = f"depth is {shown(depth)}; expected {expected}."
        raise ConfigError("The model cannot be unrolled:", [problem])
    config = dataclasses.replace(model.config, num_layers=int(depth))
    times = dataclasses.replace(model, config=config).plan().distinct_times()
    curves, sample = model.transformer.blocks, eqx.filter_jit(resolve)
    if not is_abstract(curves):
        shapes = eqx.filter_eval_shape(sample, curves, times)
        check_fits(bytes_of(shapes), f"A model of {depth} layers", "a smaller depth")
    sampled = sample(curves, times)
    blocks = as_table(sampled, tuple(map(float, times)))
    transformer = dataclasses.replace(model.transformer, blocks=blocks)
    head = None if model.lm_head is None else model.output_map()
    unrolled = dataclasses.replace(config, weights=PerLayerFamily(), adapter=None)
    return FlowLM(unrolled, transformer, head)


def merge(model: LanguageModel) -> FlowLM:
    """The same function without adapters: they become part of the weights of every layer."""
    return unroll(model, model.config.num_layers)
