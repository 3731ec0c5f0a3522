"""One token a step, all rows of a batch at the same position."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array, lax

from qkvflow.models import LanguageModel


@eqx.filter_jit
def continue_rows(
    model: LanguageModel, prompt: Array, key: Array, count: int, choose: Callable[..., Array]
) -> Array:
    """New tokens [batch, count]: the prompt in one pass, then a scan with one token a step."""
    batch, length = prompt.shape
    layers, caches = model.layers(), model.empty_caches(batch, length + count - 1)
    logits, caches = model.extend(layers, prompt, caches, 0)
    keys = jax.random.split(key, count)
    first = choose(logits[:, -1], keys[0])

    def step(carry: tuple, inputs: tuple[Array, Array]) -> tuple[tuple, Array]:
        token, caches = carry
        offset, key = inputs
        logits, caches = model.extend(layers, token[:, None], caches, offset)
        token = choose(logits[:, -1], key)
        return (token, caches), token

    offsets = length + jnp.arange(count - 1)
    _, rest = lax.scan(step, (first, caches), (offsets, keys[1:]))
    return jnp.concatenate([first[:, None], rest.T], axis=1)
