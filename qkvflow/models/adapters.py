"""Models with adapters: putting fresh ones on a model, and telling their arrays from its own."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeVar, cast

import jax
from jax import Array

from qkvflow.config import ConfigError
from qkvflow.models.language_model import LanguageModel, with_adapters
from qkvflow.models.paths import arrays_of
from qkvflow.nn.adapters import is_adapter
from qkvflow.nn.linear import Linear
from qkvflow.nn.weights import is_weight

_Model = TypeVar("_Model", bound=LanguageModel)


def adapt(
    model: _Model,
    method: Literal["lora", "depth_lora"],
    *,
    rank: int = 8,
    alpha: float = 16.0,
    maps: Sequence[str] = ("*.*",),
    key: Array,
) -> _Model:
    """The same function with fresh adapters, which change nothing yet.

    Args:
        maps: patterns over the names of linear maps: attention.qkv, mlp.*, lm_head. By default all
            maps of the layers.

    Raises:
        ConfigError: a pattern matches nothing, or there are adapters already.

    Example:
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
    config = dataclasses.replace(
        model.config,
        adapter=method,
        adapter_rank=rank,
        adapter_alpha=float(alpha),
        adapter_maps=tuple(maps),
    )
    head = cast(Linear | None, model.lm_head)
    transformer, adapted = with_adapters(model.transformer, head, config, key)
    return type(model)(config, transformer, adapted)


def adapter_paths(model: LanguageModel) -> tuple[str, ...]:
    """The paths of the arrays that adapters added to a model."""
    flat, _ = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_weight)
    prefixes = tuple(
        jax.tree_util.keystr(path, simple=True, separator=".") + "."
        for path, node in flat
        if is_adapter(node)
    )
    return tuple(
        path
        for path in arrays_of(model)
        for prefix in prefixes
        if path.startswith(prefix) and not path.startswith(prefix + "base.")
    )
