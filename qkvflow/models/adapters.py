"""Models with adapters: putting fresh ones on a model, and telling their arrays from its own."""

import dataclasses
from typing import Any, TypeVar, cast

import equinox as eqx
from jax import Array

from qkvflow.config import ConfigError
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.models.language_model import LanguageModel
from qkvflow.models.needs import bytes_of, check_fits, is_abstract
from qkvflow.nn.adapters import add_adapters
from qkvflow.nn.linear import Linear

_Model = TypeVar("_Model", bound=LanguageModel)


def adapt(model: _Model, adapter: Adapter | str, *, key: Array, **settings: Any) -> _Model:
    """The same function with fresh adapters, which change nothing yet.

    Args:
        adapter: lora, depth_lora, or one with its settings.
        settings: of an adapter by name: its rank, alpha, and maps, patterns over the names of linear
            maps (attention.qkv, mlp.*, lm_head); by default all maps of the layers.

    Raises:
        ConfigError: a pattern matches nothing, or there are adapters already.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> adapted = adapt(model, "lora", rank=2, maps=("mlp.*",), key=jax.random.key(1))
        >>> len(adapter_paths(adapted))
        4
    """
    if model.config.adapter is not None:
        problem = "it has adapters already. Make them part of its weights first, with merge(model)."
        raise ConfigError("This model cannot be adapted:", [problem])
    chosen = ADAPTERS.read({"method": adapter, **settings} if isinstance(adapter, str) else adapter)
    config = dataclasses.replace(model.config, adapter=chosen)
    head = cast(Linear | None, model.lm_head)
    curves = model.transformer.blocks
    if not is_abstract((curves, key)):
        shapes = eqx.filter_eval_shape(add_adapters, curves, head, config, key=key)
        check_fits(bytes_of(shapes), f"The model with adapters of rank {chosen.rank}", "a smaller rank")
    blocks, adapted = add_adapters(curves, head, config, key=key)
    return type(model)(config, dataclasses.replace(model.transformer, blocks=blocks), adapted)


def adapter_paths(model: LanguageModel) -> tuple[str, ...]:
    """The paths of the arrays that adapters added to a model."""
    return tuple(path for path, found in model.parameters().items() if found.adapter)
