"""Which token comes next: the likeliest, or one by chance, with a temperature, top-k and top-p."""

import jax
import jax.numpy as jnp
from jax import Array, lax

LEAST_TEMPERATURE = 1e-6
LARGEST_TEMPERATURE = 1e6
"""Beyond them, but for 0, logits divided by the temperature may be no finite float32, or all alike."""


def choose_token(
    logits: Array,
    key: Array,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Array:
    """One token id for each row of logits [batch, vocab]."""
    if temperature == 0.0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, _kept(logits, temperature, top_k, top_p)).astype(jnp.int32)


def token_probabilities(
    logits: Array, *, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Array:
    """The distribution over the last axis of logits that `choose_token` draws from."""
    if temperature == 0.0:
        return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=logits.dtype)
    return jax.nn.softmax(_kept(logits, temperature, top_k, top_p), axis=-1)


def _kept(logits: Array, temperature: float, top_k: int | None, top_p: float | None) -> Array:
    """Logits over the temperature; minus infinity for tokens that are left out."""
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = jnp.where(_among_first(logits, top_k), logits, -jnp.inf)
    if top_p is not None and top_p < 1.0:
        logits = jnp.where(_in_nucleus(logits, top_p), logits, -jnp.inf)
    return logits


def _among_first(logits: Array, top_k: int) -> Array:
    """Whether a token is one of the k likeliest; of equally likely ones the first are taken."""
    one_zero = jnp.where(logits == 0, jnp.zeros_like(logits), logits)  # top_k puts 0.0 before -0.0
    first, none = lax.top_k(one_zero, top_k)[1], jnp.zeros(logits.shape, bool)
    return jnp.put_along_axis(none, first, True, axis=-1, inplace=False)


def _in_nucleus(logits: Array, top_p: float) -> Array:
    """Whether a token is needed to reach probability `top_p`, taking the likeliest first."""
    order = jnp.argsort(-logits, axis=-1)
    probability = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    # The likeliest is always needed, also for a share that float32 does not tell from 0.
    needed = (jnp.cumsum(probability, axis=-1) - probability < top_p).at[..., 0].set(True)
    return jnp.put_along_axis(jnp.zeros_like(needed), order, needed, axis=-1, inplace=False)


def choice_problems(temperature: float, top_k: int | None, top_p: float | None) -> list[str]:
    """A sentence if tokens cannot be chosen like this."""
    share = 1.0 if top_p is None else top_p
    warm = temperature == 0 or LEAST_TEMPERATURE <= temperature <= LARGEST_TEMPERATURE
    if warm and (top_k is None or top_k >= 1) and 0 < share <= 1:
        return []
    return [
        f"temperature {temperature}, top_k {top_k}, top_p {top_p}; expected a temperature of 0, which "
        f"takes the most likely token, or one from {LEAST_TEMPERATURE:g} to {LARGEST_TEMPERATURE:g}, a "
        "top_k of at least 1 and a top_p above 0 and at most 1 (or None)."
    ]
