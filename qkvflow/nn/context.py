"""What a block is told besides x."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax import Array, lax


class Context(NamedTuple):
    """The same for all that a forward pass goes through; each part takes from it what it needs."""

    key: Array | None = None
    """For dropout; None in evaluation."""
    cache: Any = None
    """What earlier positions left behind; None where all positions are there."""
    offset: Array | int = 0
    """Index of the first position."""
    embedding: NamedArray | None = None
    """x(0) of these positions, for layers that take of it."""
    first_values: Array | None = None
    """The values of the first layer's attention, for layers that take of them."""
    rounded: bool = False
    """Whether operands of large products are rounded to bfloat16 (see `products`)."""
    documents: Array | None = None
    """Number of the document [batch, position] that a position is of. It sees no other one: parts that
    mix positions keep to that. None: a row is one document."""
    active: Array | None = None
    """Whether a token [batch, position] takes of what parts add; None: all do."""

    def split(self, count: int) -> list["Context"]:
        """One for each of several, with keys of their own."""
        keys = [None] * count if self.key is None else list(jax.random.split(self.key, count))
        return [self._replace(key=key) for key in keys]


def documents_of(segments: Array) -> Array:
    """Documents numbered from 0 by segment ids [batch, position]: a run of one id is one."""
    begins = segments[:, 1:] != segments[:, :-1]
    return jnp.pad(jnp.cumsum(begins, axis=1, dtype=jnp.int32), [(0, 0), (1, 0)])


def positions_in(documents: Array) -> Array:
    """How many positions [batch, position] of the same document come before each one."""
    here = jnp.arange(documents.shape[1])[None]
    begins = jnp.pad(documents[:, 1:] != documents[:, :-1], [(0, 0), (1, 0)])
    return here - lax.cummax(jnp.where(begins, here, 0), axis=1)


PLAIN = Context()
"""Evaluation of whole sequences."""
