"""Checks of a model's inputs, in sentences, before anything is compiled."""

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.variants import Integrator
from qkvflow.nn.time_embed import Time


def check_complete(config: Gpt2Config) -> Gpt2Config:
    """Refuse a config that leaves open what tells models apart."""
    fields = ("weights", "parts", "order", "integrator")
    missing = [f"{name} is not chosen." for name in fields if getattr(config, name) is None]
    if missing:
        raise ConfigError("A model without a preset needs a complete configuration:", missing)
    return config


def check_ids(ids: NamedArray, config: Gpt2Config, name: str) -> None:
    """Refuse what is not a named array of token ids with an axis "position" that fits the model.

    The values are looked at where they are known; under a transformation they are not, and an id out
    of range makes the logits NaN.
    """
    if not isinstance(ids, NamedArray):
        raise TypeError(
            f"{name} is a {type(ids).__name__}; expected a haliax NamedArray of token ids. "
            'Name the axes: haliax.named(ids, ("batch", "position")).'
        )
    axes = ", ".join(f"{axis.name}={axis.size}" for axis in ids.axes)
    if "position" not in ids.axis_names:
        raise ValueError(f'{name} has the axes ({axes}); expected one of them to be "position".')
    for taken in ("vocab", "embed"):
        if taken in ids.axis_names:
            raise ValueError(f'{name} has an axis "{taken}" ({axes}), a name the model uses itself.')
    length = ids.resolve_axis("position").size
    if not 1 <= length <= config.max_position_embeddings:
        raise ValueError(
            f"{name} has {length} positions; this model takes 1 to {config.max_position_embeddings} "
            "(max_position_embeddings). Shorten the sequence or build a model with more positions."
        )
    check_values(ids, config, name)


def check_values(ids: NamedArray, config: Gpt2Config, name: str) -> None:
    """Refuse ids that are not integers, or not below the size of the vocabulary."""
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(
            f"{name} has the type {ids.dtype}; expected integers, such as int32. "
            "Token ids are indices, not numbers."
        )
    if isinstance(ids.array, jax.core.Tracer) or ids.size == 0:
        return
    values = np.asarray(ids.array)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= config.vocab_size:
        raise ValueError(
            f"{name} has ids from {low} to {high}; expected 0 to {config.vocab_size - 1} "
            f"(vocab_size {config.vocab_size}). Is this the tokenizer the model was built for?"
        )


def check_targets(inputs: NamedArray, targets: NamedArray, config: Gpt2Config) -> None:
    """Refuse targets that do not match the inputs axis by axis."""
    check_ids(targets, config, "target_ids")
    if set(inputs.axes) != set(targets.axes):
        raise ValueError(
            f"input_ids has the axes {inputs.axes} and target_ids {targets.axes}; "
            "expected the same: one target for every input."
        )


def check_segments(segments: NamedArray, inputs: NamedArray) -> None:
    """Refuse segment ids that do not match the inputs axis by axis."""
    if set(inputs.axes) != set(segments.axes) or not jnp.issubdtype(segments.dtype, jnp.integer):
        raise ValueError(
            f"segments has the axes {segments.axes} and the type {segments.dtype}, input_ids the axes "
            f"{inputs.axes}; expected the same axes and integers: the id of a document for every input."
        )


def checked_time(t: Time | None, integrator: Integrator) -> Array | None:
    """`t` as a float32 array, so that another number is no other program; or None.

    Refuses times that are neither None, a number, nor a grid that the integrator can follow.
    """
    if t is None:
        return None
    if np.ndim(t) > 1 or np.size(t) == 0:
        raise ValueError(
            f"t has the shape {np.shape(t)}; expected None (the model's own grid), a number "
            "(time frozen there), or a vector of times, one a layer."
        )
    if np.ndim(t) == 1 and not integrator.has_grid:
        raise ValueError(
            "t is a grid, but the adaptive integrator chooses its own steps; "
            "pass None or a number, or use a fixed-step integrator."
        )
    if isinstance(t, jax.core.Tracer):
        return jnp.asarray(t, jnp.float32)
    known = np.asarray(t, np.float64)
    if not np.all((known >= 0) & (known <= 1)):
        raise ValueError(f"t is {known}; expected times from 0 (the embedding) to 1 (the last layer).")
    if known.ndim == 1 and not np.all(np.diff(known, prepend=0.0) > 0):
        raise ValueError(
            f"t is {known}; {integrator} steps from 0 through these times, so they must increase."
        )
    return jnp.asarray(t, jnp.float32)
