"""What is asked of a generator: whether it can be done, and prompts as rows of plain arrays."""

import dataclasses

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import ConfigError
from qkvflow.config.strict import shown
from qkvflow.generate.choosing import choice_problems
from qkvflow.models import LanguageModel
from qkvflow.models.checks import check_ids


def check_request(
    model: LanguageModel,
    prompt: NamedArray,
    count: int,
    key: Array | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    more_problems: tuple[str, ...] = (),
) -> None:
    """Refuse what cannot be generated, before any work.

    Raises:
        ConfigError: with a sentence for every problem, `more_problems` among them.
    """
    check_ids(prompt, model.config, "prompt_ids")
    model.plan()  # refuses an integrator without a grid
    longest, length = model.config.max_position_embeddings, prompt.resolve_axis("position").size
    problems = choice_problems(temperature, top_k, top_p)
    if count < 0 or length + count > longest:
        problems.append(
            f"max_new_tokens is {count} after a prompt of {length}; this model has {longest} "
            f"positions, so expected 0 to {longest - length}."
        )
    if temperature > 0 and key is None:
        problems.append("sampling needs a key=jax.random.key(seed); temperature=0.0 needs none.")
    problems += more_problems
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)


def draft_problems(model: LanguageModel, depth: int, tokens: int) -> tuple[str, ...]:
    """A sentence for each thing that keeps `depth` layers of a model from proposing `tokens` tokens."""
    layers, longest = model.config.num_layers, model.config.max_position_embeddings
    problems = []
    if not _is_within(depth, layers):
        whose = "this model has 1 layer" if layers == 1 else f"this model has {layers} layers"
        problems.append(
            f"draft_depth is {shown(depth)} and {whose}; expected a whole number of layers from 1 to "
            f"{layers}, the fewer the faster."
        )
    if not _is_within(tokens, longest):
        problems.append(
            f"draft_tokens is {shown(tokens)}; expected a whole number of tokens from 1 to {longest}, "
            "the positions of this model."
        )
    return tuple(problems)


def _is_within(value: int, largest: int) -> bool:
    """Whether a value is a whole number from 1 to the largest."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and 1 <= value <= largest


def unrounded(model: LanguageModel) -> LanguageModel:
    """The model with which text is generated: in float32, where products have rounded operands.

    That pays where there are many rows. A token is one row, which float32 multiplies sooner.
    """
    if model.config.compute_dtype != "mixed":
        return model
    config = dataclasses.replace(model.config, compute_dtype="float32")
    return dataclasses.replace(model, config=config)


def as_rows(prompt: NamedArray) -> tuple[NamedArray, Array]:
    """A prompt with "position" as its last axis, and the same as rows [batch, position]."""
    ids = prompt.rearrange((..., "position"))
    return ids, ids.array.reshape(-1, ids.array.shape[-1]).astype(jnp.int32)


def as_text(rows: Array, ids: NamedArray) -> NamedArray:
    """Rows [batch, position] of a longer text with the axes of the prompt that they came from."""
    Position = Axis("position", rows.shape[1])
    return hax.named(rows.reshape(*ids.array.shape[:-1], -1), (*ids.axes[:-1], Position))


def next_window(text: np.ndarray, end: int, longest: int) -> tuple[np.ndarray, int]:
    """What a model sees of a text [..., position] that goes on to `end`; how many tokens fit behind it.

    When the longest sequence is full, it goes on from the second half of it.
    """
    window = text if text.shape[-1] < longest else text[..., -(longest // 2) :]
    return window, min(end - text.shape[-1], longest - window.shape[-1])


def key_of_window(key: Array, number: int) -> Array:
    """The first window has the key itself, so that a text which fits has that of `generate`."""
    return jax.random.fold_in(key, number) if number else key
