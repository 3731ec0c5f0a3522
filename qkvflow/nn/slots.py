"""What earlier positions leave behind, kept for several of the last ones, so that a text can go back.

What n positions leave is in slot n modulo the number of slots; the offset of the next positions says
from which one a text is taken up again.
"""

import jax.numpy as jnp
from jax import Array, lax


def left_after(slots: Array, offset: Array | int) -> Array:
    """What `offset` positions have left, of [slots, ...].

    Examples:
        >>> import jax.numpy as jnp
        >>> int(left_after(jnp.array([4, 5, 3]), 5))
        3
    """
    if len(slots) == 1:
        return slots[0]
    return lax.dynamic_index_in_dim(slots, jnp.asarray(offset) % len(slots), keepdims=False)


def with_left(slots: Array, left: Array, count: Array | int) -> Array:
    """The slots with what the last of `count` positions have left, [some, ...], one entry for each.

    Examples:
        >>> import jax.numpy as jnp
        >>> with_left(jnp.array([0, 0, 0]), jnp.array([4, 5]), 5).tolist()
        [0, 4, 5]
    """
    if len(slots) == 1:
        return left[-1:]
    at = (jnp.asarray(count) - jnp.arange(len(left))[::-1]) % len(slots)
    return slots.at[at].set(left)


def number_kept(slots: Array, length: int) -> int:
    """Of how many of so many new positions it is kept what they leave."""
    return 1 if length >= len(slots) else length
