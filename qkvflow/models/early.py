"""Tokens that stop early: each leaves the loop over layers when its prediction has settled.

After every layer but the first, the head reads the state (the logit lens). Where the distribution p is
within a bound of that after the layer before, in total variation 1/2 sum |p - p'|, the token stops: its
state stays, and the head's last answer is its prediction. In later layers, later tokens see of it what
these layers make of its last state: keys and values, what the state-space part adds to its own state.
The rule asks a token's own predictions only, so that the model stays causal, and a pass over a whole
text is the same function as one token after another.

A layer in which no token is left is not computed, but for what its caches keep.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax import Array, lax

from qkvflow.config import ConfigError
from qkvflow.config.strict import shown
from qkvflow.models.language_model import WRITTEN_OUT, LanguageModel
from qkvflow.nn import stream
from qkvflow.nn.context import Context
from qkvflow.nn.depth import Tableau
from qkvflow.nn.dynamic import Block, looks_back, pass_layer
from qkvflow.nn.products import rounds_operands


class Settled(NamedTuple):
    """What a pass in which tokens stop early gives."""

    logits: Array
    """[batch, position, vocab]"""
    caches: Any
    layers: Array
    """[batch, position]: layers that each token went through."""


class _State(NamedTuple):
    x: NamedArray
    logits: Array
    active: Array
    """Whether a token goes on."""
    used: Array


def check_early(model: LanguageModel, bound: float) -> None:
    """Refuse a bound that is none, and a model whose layers are not written out.

    Raises:
        ConfigError: with a sentence for every problem.
    """
    problems = []
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound <= 1:
        problems.append(
            f"stop_early is {shown(bound)}; expected a total variation from 0 (a token never stops) to "
            "1 (it stops after two layers)."
        )
    if model.plan().evaluations > WRITTEN_OUT:
        problems.append(
            f"stop_early: layers are written out one by one, and this model has {model.plan().visits}; "
            f"expected at most {WRITTEN_OUT} evaluations of a layer."
        )
    if problems:
        raise ConfigError("Tokens cannot stop early like this:", problems)


def settled_pass(
    model: LanguageModel,
    layers: list[list[Any]],
    ids: Array,
    caches: list[list[Any]] | None,
    offset: Array | int,
    bound: Array | float,
) -> Settled:
    """`model.extend` in which tokens stop early; without caches, a pass over whole texts."""
    x, plan = model.embed(ids, offset), model.plan()
    context, left = Context(offset=offset, rounded=rounds_operands(model.config)), []
    if looks_back(model.transformer.blocks):
        context = layers[0][0].begun(x, context)
    logits = jnp.zeros((*ids.shape, model.config.vocab_size), jnp.float32)
    state = _State(x, logits, jnp.ones(ids.shape, bool), jnp.zeros(ids.shape, jnp.int32))
    for i, (blocks, size) in enumerate(zip(layers, plan.sizes)):
        told = context._replace(cache=None if caches is None else caches[i])
        layer = _Layer(model, blocks, plan.tableau, size, told, jnp.asarray(bound if i else -1.0))
        state, cache = layer.passed(state) if i == 0 else layer.passed_if_any(state)
        left.append(cache)
    return Settled(state.logits, None if caches is None else left, state.used)


class _Layer(NamedTuple):
    """A layer, and the bound within which predictions after it have settled."""

    model: LanguageModel
    blocks: list[Block]
    tableau: Tableau
    size: Any
    told: Context
    bound: Array

    def passed_if_any(self, state: _State) -> tuple[_State, list[Any]]:
        """What is left after the layer, where no token may go on.

        Caches that can be written before it is known are: one that goes through a condition is copied.
        """
        if self.told.cache is None or len(self.blocks) > 1:
            return lax.cond(
                jnp.any(state.active),
                lambda: self.passed(state),
                lambda: (state, self.remembered(state.x)),
            )
        noted = self.blocks[0].noted(state.x, self.told._replace(cache=self.told.cache[0]))
        done = {name: cache.marked(False) for name, cache in noted.items() if _is_marked(cache)}
        layer = self._replace(told=self.told._replace(cache=[noted]))

        def without(state: _State, caches: list[Any]) -> tuple[_State, Any]:
            return state, {name: None if name in done else each for name, each in caches[0].items()}

        state, rest = lax.cond(
            jnp.any(state.active),
            lambda: without(*layer.passed(state)),
            lambda: without(state, layer.remembered(state.x)),
        )
        return state, [rest | done]

    def passed(self, state: _State) -> tuple[_State, Any]:
        """What is left after the layer, through which some tokens go."""
        active = state.active
        told = self.told._replace(active=active)
        x, caches = pass_layer(self.blocks, state.x, self.tableau, self.size, told)
        x = stream.where(active, x, state.x)
        logits = jnp.where(active[..., None], self.model.head(x), state.logits)
        moved = jax.nn.softmax(logits) - jax.nn.softmax(state.logits)
        going = active & (jnp.sum(jnp.abs(moved), axis=-1) / 2 > self.bound)
        return _State(x, logits, going, state.used + active.astype(jnp.int32)), caches

    def remembered(self, x: NamedArray) -> list[Any]:
        """The caches after the layer, which no token goes through."""
        if self.told.cache is None:
            return [None] * len(self.blocks)
        told = (self.told._replace(cache=cache) for cache in self.told.cache)
        return [block.remembered(x, own) for block, own in zip(self.blocks, told)]


def _is_marked(cache: Any) -> bool:
    """Whether a cache has its new positions before the part is called."""
    return getattr(cache, "has_new", False)
