"""What a model needs, by arithmetic on shapes, before any of it is made; and whether it is there."""

from typing import Any

import equinox as eqx
import jax

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.memory import memory_limit

IDS = 16
"""Bytes of a token in a batch, at the least: where it is in the text, its id, that of its target."""
LOGIT = 4
"""Bytes of a logit, which is a float32."""


def bytes_of(shapes: Any) -> int:
    """Of all arrays in a tree, or in one that has their shapes alone."""
    arrays = jax.tree.leaves(eqx.filter(shapes, lambda leaf: hasattr(leaf, "dtype")))
    return sum(array.size * array.dtype.itemsize for array in arrays)


def batch_bytes(config: Gpt2Config, batch_size: int, length: int, accumulate: int = 1) -> int:
    """What the loss of a batch takes at the least: ids, and the logits of a microbatch."""
    logits = batch_size // accumulate * length * config.vocab_size
    return IDS * batch_size * length + LOGIT * logits


def shortage(needed: int | None, what: str, instead: str) -> str | None:
    """A sentence where something does not fit into the memory of a CPU; other devices say so."""
    limit = memory_limit()
    if needed is None or limit is None or needed <= limit or jax.default_backend() != "cpu":
        return None
    return (
        f"{what} needs {needed / 1e9:,.1f} GB of memory, and there are {limit / 1e9:,.1f} GB here. "
        f"Choose {instead}."
    )


def check_fits(needed: int, what: str, instead: str) -> None:
    """Refuse to make what does not fit into memory.

    Raises:
        ConfigError: with what to choose instead.
    """
    problem = shortage(needed, what, instead)
    if problem is not None:
        raise ConfigError("There is too little memory:", [problem])


def is_abstract(tree: Any) -> bool:
    """Whether a tree has shapes alone, as where a model is counted: nothing will be made of it."""
    return any(
        isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)
    )
