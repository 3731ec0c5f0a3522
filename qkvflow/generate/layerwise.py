"""Reading text a layer at a time: one small program is compiled, and every layer runs it.

`generate` compiles all layers and all tokens into one program, which is the fastest once it is there.
Here the first token comes soon: compiling takes as long as one layer does, whatever the depth and the
number of tokens. Between two layers the program returns to Python, which a deep model would feel: its
layers are scanned within one program, as they are everywhere.
"""

import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax import Array

from qkvflow.models import LanguageModel
from qkvflow.models.language_model import WRITTEN_OUT
from qkvflow.nn.context import Context
from qkvflow.nn.depth import Tableau
from qkvflow.nn.dynamic import Block, looks_back, pass_layer
from qkvflow.nn.products import rounds_operands
from qkvflow.nn.weights import resolve


class LayerwiseReader:
    """A model with its weights made, that reads ids [batch, position] after what its caches hold."""

    def __init__(self, model: LanguageModel):
        self._model, self._plan = model, model.plan()
        self._is_deep = self._plan.evaluations > WRITTEN_OUT
        self._layers = made_layers(model) if self._is_deep else _blocks_of(model)
        self._ends = eqx.tree_at(lambda m: m.transformer.blocks, model, None)
        asks = looks_back(model.transformer.blocks)
        self._first = self._layers[0][0] if asks and not self._is_deep else None

    def __call__(self, ids: Array, caches: list[Any], offset: Array | int) -> tuple[Array, list[Any]]:
        """Logits [batch, vocab] after the last of the ids, and the caches, changed in place."""
        if self._is_deep:
            return _through_all((self._model, self._layers, ids, offset), caches)
        x, context = _entered(self._ends, self._first, ids, offset)
        left = []
        for blocks, size, cache in zip(self._layers, self._plan.sizes, caches):
            x, cache = _through_one((blocks, self._plan.tableau, size, x, context), cache)
            left.append(cache)
        return _logits(self._ends, x), left


@eqx.filter_jit
def made_layers(model: LanguageModel) -> list[list[Any]]:
    """The weights of all layers."""
    return model.layers()


@eqx.filter_jit
def empty_caches(model: LanguageModel, batch: int, length: int) -> list[Any]:
    """Caches for `length` positions of every row."""
    return model.empty_caches(batch, length)


def _blocks_of(model: LanguageModel) -> list[list[Block]]:
    """The block of every layer and stage, all by one program; which parts it has is known before."""
    curves, times = model.transformer.blocks, np.asarray(model.plan().times)
    everywhere = dataclasses.replace(curves, there={})
    return [
        [dataclasses.replace(_resolved(everywhere, t), there=resolve(curves.there, t)) for t in stages]
        for stages in times
    ]


@eqx.filter_jit
def _resolved(curves: Block, t: Array) -> Block:
    return resolve(curves, t)


@eqx.filter_jit
def _entered(
    ends: LanguageModel, first: Block | None, ids: Array, offset: Array | int
) -> tuple[NamedArray, Context]:
    """x(0), and what all layers are told."""
    x = ends.embed(ids, offset)
    context = Context(offset=offset, rounded=rounds_operands(ends.config))
    return x, context if first is None else first.begun(x, context)


@eqx.filter_jit(donate="all-except-first")
def _through_one(
    given: tuple[Sequence[Block], Tableau, Array, NamedArray, Context], cache: Any
) -> tuple[NamedArray, Any]:
    blocks, tableau, size, x, context = given
    return pass_layer(blocks, x, tableau, size, context._replace(cache=cache))


@eqx.filter_jit
def _logits(ends: LanguageModel, x: NamedArray) -> Array:
    """Logits [batch, vocab] at the last position."""
    return ends.head(x["position", -1:])[:, -1]


@eqx.filter_jit(donate="all-except-first")
def _through_all(
    given: tuple[LanguageModel, Any, Array, Array | int], caches: list[Any]
) -> tuple[Array, list[Any]]:
    model, layers, ids, offset = given
    logits, caches = model.extend(layers, ids, caches, offset)
    return logits[:, -1], caches


def position(offset: int) -> Array | int:
    """Where ids begin, as an array, so that another place is no other program; 0 has one of its own."""
    return jnp.asarray(offset, jnp.int32) if offset else 0


@eqx.filter_jit
def chosen(choose: Callable[..., Array], logits: Array, key: Array) -> Array:
    """A token [batch, 1] of every row."""
    return choose(logits, key)[:, None]


def tokens_one_by_one(
    model: LanguageModel,
    prompt: Array,
    key: Array,
    count: int,
    choose: Callable[..., Array],
    room: int,
) -> Generator[Array, None, None]:
    """Yield tokens [batch, 1], those of `continue_rows`, each as soon as it is known.

    Args:
        room: positions that the caches hold, which decides what is compiled.
    """
    read, keys = LayerwiseReader(model), jax.random.split(key, count)
    ids, caches, offset = prompt, empty_caches(model, prompt.shape[0], room), 0
    for k in keys:
        logits, caches = read(ids, caches, position(offset))
        ids, offset = chosen(choose, logits, k), offset + ids.shape[1]
        yield ids
