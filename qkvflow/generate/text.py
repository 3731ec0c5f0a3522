"""Generation with caches: each new token costs one step, not a pass over the whole text."""

from typing import Any, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer
from qkvflow.generate.choosing import choose_token
from qkvflow.generate.drafts import generate_with_drafts
from qkvflow.generate.early import generate_stopping_early
from qkvflow.generate.plain import continue_rows
from qkvflow.generate.request import (
    as_rows,
    as_text,
    check_request,
    key_of_window,
    next_window,
    unrounded,
)
from qkvflow.models import LanguageModel

_Text = TypeVar("_Text", NamedArray, str)


def generate(
    model: LanguageModel,
    prompt_ids: _Text,
    max_new_tokens: int,
    *,
    tokenizer: Tokenizer | None = None,
    key: Array | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    draft_depth: int | None = None,
    draft_tokens: int = 4,
    stop_early: float | None = None,
) -> _Text:
    """Continue a prompt by `max_new_tokens` tokens; returns prompt and continuation.

    The prompt is token ids with an axis "position" and any others; or, with the model's `tokenizer`,
    a text, which may outgrow the model's longest sequence: it goes on from the second half of that.
    Temperature 0 takes the likeliest token and needs no key. `top_k` keeps the k likeliest tokens,
    `top_p` the smallest set of likeliest tokens that has at least probability p; both after the
    temperature. Attention keeps keys and values of each layer, the state-space part a state of fixed
    size. With a `draft_depth` the same curves at so few layers propose `draft_tokens` tokens at a
    time: the same distribution, sooner where many proposals stand; `generate_with_drafts` also says
    how many did. With `stop_early`, a bound, tokens leave the loop over layers when their prediction
    has settled: see `generate_stopping_early`.

    Examples:
        >>> import haliax as hax, jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import NeuralODELM
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = NeuralODELM.init(config, key=jax.random.key(0))
        >>> prompt = hax.named(jax.numpy.array([[1, 2, 3]]), ("batch", "position"))
        >>> generate(model, prompt, 5, temperature=0.0).axes
        (Axis(name='batch', size=1), Axis(name='position', size=8))
    """
    how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    if isinstance(prompt_ids, str):
        how |= {"draft_depth": draft_depth, "draft_tokens": draft_tokens, "stop_early": stop_early}
        return _generate_text(model, tokenizer, prompt_ids, max_new_tokens, key, how)
    if stop_early is not None:
        if draft_depth is not None:
            problem = "stop_early changes the model that verifies drafts; leave one out."
            raise ConfigError("Nothing can be generated like this:", [problem])
        how |= {"bound": stop_early, "key": key}
        return generate_stopping_early(model, prompt_ids, max_new_tokens, **how).text
    if draft_depth is not None:
        how |= {"draft_depth": draft_depth, "draft_tokens": draft_tokens}
        return generate_with_drafts(model, prompt_ids, max_new_tokens, key=key, **how).text
    check_request(model, prompt_ids, max_new_tokens, key, **how)
    ids, rows = as_rows(prompt_ids)
    if max_new_tokens == 0:
        return ids
    key = jax.random.key(0) if key is None else key
    new = continue_rows(unrounded(model), rows, key, max_new_tokens, eqx.Partial(choose_token, **how))
    return as_text(jnp.concatenate([rows, new], axis=1), ids)


def _generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompt: str,
    count: int,
    key: Array | None,
    how: dict[str, Any],
) -> str:
    """A text and its continuation, window by window."""
    longest = model.config.max_position_embeddings
    if tokenizer is None or longest < 2:
        needs = "its tokenizer=..., too" if tokenizer is None else "a model of 2 positions or more"
        problem = f"the prompt is a text, and a text needs {needs}."
        raise ConfigError("Nothing can be generated like this:", [problem])
    ids = np.asarray(tokenizer.encode(prompt), np.int32)
    begun, end, number = len(ids), len(ids) + count, 0
    while len(ids) < end:
        context, more = next_window(ids, end, longest)
        own = None if key is None else key_of_window(key, number)
        named = hax.named(jnp.asarray(context)[None], ("batch", "position"))
        whole = generate(model, named, more, key=own, **how)
        ids = np.concatenate([ids, np.asarray(whole.array)[0, len(context) :]])
        number += 1
    return prompt + tokenizer.decode(ids[begun:])
