"""Generation in which tokens stop early: see `qkvflow.models.early`."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax import Array, lax

from qkvflow.generate.choosing import choose_token
from qkvflow.generate.layerwise import chosen, empty_caches, made_layers, position
from qkvflow.generate.request import as_rows, as_text, check_request, unrounded
from qkvflow.models import LanguageModel
from qkvflow.models.early import check_early, settled_pass


@dataclass(frozen=True)
class Stopped:
    """A text whose tokens stopped early, and after how many layers."""

    text: NamedArray
    """Prompt and continuation."""
    layers: float
    """Layers that a new token was predicted with, on average."""


def generate_stopping_early(
    model: LanguageModel,
    prompt_ids: NamedArray,
    max_new_tokens: int,
    *,
    bound: float,
    key: Array | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Stopped:
    """`generate`, but a token leaves the loop over layers when its prediction has settled.

    It stops after a layer that moves its prediction by at most `bound` in total variation. Prompts are
    read by the same rule. Time is saved where all rows of a batch stop: most with one row.

    Examples:
        >>> import haliax as hax, jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import NeuralODELM
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=4)
        >>> model = NeuralODELM.init(config, key=jax.random.key(0))
        >>> prompt = hax.named(jax.numpy.array([[1, 2, 3]]), ("batch", "position"))
        >>> generate_stopping_early(model, prompt, 5, bound=1.0, temperature=0.0).layers
        2.0
    """
    check_request(model, prompt_ids, max_new_tokens, key, temperature, top_k, top_p)
    check_early(model, bound)
    ids, rows = as_rows(prompt_ids)
    if max_new_tokens == 0:
        return Stopped(ids, 0.0)
    choose = eqx.Partial(choose_token, temperature=temperature, top_k=top_k, top_p=top_p)
    key = jax.random.key(0) if key is None else key
    new, used = _continue(unrounded(model), rows, key, max_new_tokens, choose, jnp.float32(bound))
    return Stopped(as_text(jnp.concatenate([rows, new], axis=1), ids), float(jnp.mean(used)))


@eqx.filter_jit
def _continue(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    choose: Callable[..., Array],
    bound: Array,
) -> tuple[Array, Array]:
    """New tokens [batch, count], and the layers that each was predicted with."""
    batch, length = prompt.shape
    layers, caches = model.layers(), model.empty_caches(batch, length + count - 1)
    read = settled_pass(model, layers, prompt, caches, 0, bound)
    keys = jax.random.split(key, count)
    first = choose(read.logits[:, -1], keys[0])

    def step(carry: tuple, inputs: tuple[Array, Array]) -> tuple[tuple, tuple[Array, Array]]:
        token, caches = carry
        offset, key = inputs
        logits, caches, used = settled_pass(model, layers, token[:, None], caches, offset, bound)
        token = choose(logits[:, -1], key)
        return (token, caches), (token, used[:, 0])

    later = length + jnp.arange(count - 1), keys[1:]
    _, (rest, used) = lax.scan(step, (first, read.caches), later)
    tokens = jnp.concatenate([first[:, None], rest.T], axis=1)
    return tokens, jnp.concatenate([read.layers[:, -1:], used.T], axis=1)


def tokens_stopping_early(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    choose: Callable[..., Array],
    bound: float,
    room: int,
) -> Generator[Array, None, float]:
    """Yield tokens [batch, 1], those of `_continue`, each as soon as it is known.

    Returns the layers that a new token was predicted with, on average.

    Args:
        room: positions that the caches hold, which decides what is compiled.
    """
    layers, caches = made_layers(model), empty_caches(model, prompt.shape[0], room)
    ids, offset, layers_used = prompt, 0, []
    for k in jax.random.split(key, count):
        given = (model, layers, ids, position(offset), jnp.float32(bound))
        logits, used, caches = _read(given, caches)
        ids, offset = chosen(choose, logits, k), offset + ids.shape[1]
        layers_used.append(used)
        yield ids
    return float(jnp.mean(jnp.stack(layers_used)))


@eqx.filter_jit(donate="all-except-first")
def _read(
    given: tuple[LanguageModel, Any, Array, Array | int, Array], caches: Any
) -> tuple[Array, Array, Any]:
    """Logits and layers of the last of some ids, and the caches, which are changed in place."""
    model, layers, ids, offset, bound = given
    read = settled_pass(model, layers, ids, caches, offset, bound)
    return read.logits[:, -1], read.layers[:, -1], read.caches
