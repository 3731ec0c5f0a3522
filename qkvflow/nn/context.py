"""What a block is told besides x."""

from typing import Any, NamedTuple

import jax
from haliax import NamedArray
from jax import Array


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
    active: Array | None = None
    """Whether a token [batch, position] takes of what parts add; None: all do."""

    def split(self, count: int) -> list["Context"]:
        """One for each of several, with keys of their own."""
        keys = [None] * count if self.key is None else list(jax.random.split(self.key, count))
        return [self._replace(key=key) for key in keys]


PLAIN = Context()
"""Evaluation of whole sequences."""
