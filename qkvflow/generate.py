"""Generation with caches: each new token costs one step, not a pass over the whole text."""

import math
from collections.abc import Callable

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array, lax

from qkvflow.config import ConfigError
from qkvflow.models import LanguageModel
from qkvflow.models.checks import check_ids

LEAST_TEMPERATURE = 1e-6
"""Below it, but for 0, logits divided by the temperature may be no finite float32."""


def generate(
    model: LanguageModel,
    prompt_ids: NamedArray,
    max_new_tokens: int,
    *,
    key: Array | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> NamedArray:
    """Continue a prompt by `max_new_tokens` tokens; returns prompt and continuation.

    The prompt has an axis "position" and any others. Temperature 0 takes the likeliest token and
    needs no key. `top_k` keeps the k likeliest tokens, `top_p` the smallest set of likeliest tokens
    that has at least probability p; both after the temperature. Attention keeps keys and values of
    each layer, the state-space part a state of fixed size.

    Example:
        >>> import haliax as hax, jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import NeuralODELM
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = NeuralODELM.init(config, key=jax.random.key(0))
        >>> prompt = hax.named(jax.numpy.array([[1, 2, 3]]), ("batch", "position"))
        >>> generate(model, prompt, 5, temperature=0.0).axes
        (Axis(name='batch', size=1), Axis(name='position', size=8))
    """
    check_ids(prompt_ids, model.config, "prompt_ids")
    model.plan()  # refuses an integrator without a grid
    _check_choices(model, prompt_ids, max_new_tokens, key, temperature, top_k, top_p)
    ids = prompt_ids.rearrange((..., "position"))
    rows = ids.array.reshape(-1, ids.array.shape[-1]).astype(jnp.int32)
    if max_new_tokens == 0:
        return ids
    key = jax.random.key(0) if key is None else key
    choose = eqx.Partial(choose_token, temperature=temperature, top_k=top_k, top_p=top_p)
    new = _continue(model, rows, key, max_new_tokens, choose)
    whole = jnp.concatenate([rows, new], axis=1)
    Position = Axis("position", whole.shape[1])
    return hax.named(whole.reshape(*ids.array.shape[:-1], -1), (*ids.axes[:-1], Position))


@eqx.filter_jit
def _continue(
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
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = jnp.where(_among_first(logits, top_k), logits, -jnp.inf)
    if top_p is not None and top_p < 1.0:
        logits = jnp.where(_in_nucleus(logits, top_p), logits, -jnp.inf)
    return jax.random.categorical(key, logits).astype(jnp.int32)


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
    warm = temperature == 0 or LEAST_TEMPERATURE <= temperature < math.inf
    if warm and (top_k is None or top_k >= 1) and 0 < share <= 1:
        return []
    return [
        f"temperature {temperature}, top_k {top_k}, top_p {top_p}; expected a temperature of 0, which "
        f"takes the likeliest token, or a finite one of at least {LEAST_TEMPERATURE}, a top_k of at "
        "least 1 and a top_p above 0 and at most 1 (or None)."
    ]


def _check_choices(
    model: LanguageModel,
    prompt: NamedArray,
    count: int,
    key: Array | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> None:
    longest, length = model.config.max_position_embeddings, prompt.resolve_axis("position").size
    problems = choice_problems(temperature, top_k, top_p)
    if count < 0 or length + count > longest:
        problems.append(
            f"max_new_tokens is {count} after a prompt of {length}; this model has {longest} "
            f"positions, so expected 0 to {longest - length}."
        )
    if temperature > 0 and key is None:
        problems.append("sampling needs a key=jax.random.key(seed); temperature=0.0 needs none.")
    if problems:
        raise ConfigError("Nothing can be generated like this:", problems)
