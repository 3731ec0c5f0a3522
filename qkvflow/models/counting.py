"""What a model costs: parameters by group, floating-point operations, memory.

Operations are counted in closed form: a product of [m, k] and [k, n] is 2 m k n, and what is not a
matrix product is counted roughly, per element. Attention is counted as it is computed, every query
with every key. The backward pass is two products for each one of the forward pass, and what
rematerialisation computes a second time is not counted: these are operations that the mathematics
needs. tests/models/test_counting.py compares them with XLA's own count.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from qkvflow.models.depth import at_depth
from qkvflow.models.language_model import LanguageModel, token_losses
from qkvflow.models.paths import Arrays, arrays_of, nodes_of, with_arrays
from qkvflow.nn.connections import Connection
from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.norm import Norm
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import Weight, resolve, size

NORM = 8
"""Operations of a norm for each element."""


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers of a model, by group."""

    embedding: int
    base: int
    time_network: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.base + self.time_network + self.head


def _nodes(tree: Any, kind: type) -> list[Any]:
    return [node for _, node in nodes_of(tree, kind)]


def count_parameters(model: LanguageModel) -> Parameters:
    """Parameters by group: embeddings, base weights (and norms), time networks, output projection."""
    sizes = dict.fromkeys(("embedding", "base", "time_network", "head"), 0)
    for parameter in model.parameters().values():
        sizes[parameter.group] += size_of(parameter.axes)
    return Parameters(**sizes)


def forward_flops(model: LanguageModel, batch: int, length: int, depth: int | None = None) -> int:
    """Operations of a forward pass over batch * length tokens, weights made from curves included.

    With a depth, of a pass through so many layers in place of the model's own.
    """
    model = model if depth is None else at_depth(model, depth)
    blocks, plan, config = model.transformer.blocks, model.plan(), model.config
    block = eqx.filter_eval_shape(resolve, blocks, 1.0)
    token = NORM * config.hidden_dim + 2 * config.hidden_dim * config.vocab_size
    curves = _making(model.lm_head) + plan.evaluations * _making((blocks.mix, blocks.gate))
    token += plan.evaluations * _maps_flops(block.gate)
    for name, part in block.parts.items():
        there = blocks.there.get(name)
        visits = plan.visits if there is None else int(there.at(layer_times(plan.visits)).sum())
        token += visits * plan.stages * (_maps_flops(part) + part.part.operations(length))
        token += visits * plan.stages * _connection_flops(part.connection, config.hidden_dim)
        curves += visits * plan.stages * _making(blocks.parts[name])
    if blocks.ends is not None:
        there = blocks.there.get("ends")
        ends = plan.visits if there is None else int(there.at(layer_times(plan.visits)).sum())
        own = _maps_flops(block.ends) + _connection_flops(block.ends, config.hidden_dim)
        token, curves = token + ends * own, curves + ends * _making(blocks.ends)
    return batch * length * token + curves


def training_flops(model: LanguageModel, batch: int, length: int, depth: int | None = None) -> int:
    """Operations of a forward and a backward pass; the optimizer's are not among them."""
    return 3 * forward_flops(model, batch, length, depth)


def _maps_flops(block: Any) -> int:
    """Operations per token of the linear maps and norms of a block whose curves have been resolved."""
    linear = sum(2 * size_of(map_.In) * size_of(map_.Out) for map_ in _nodes(block, Linear))
    return linear + sum(NORM * size(norm.weight) for norm in _nodes(block, Norm))


def _connection_flops(connection: Connection | None, width: int) -> int:
    """Operations per token of what a part reads from several streams and writes to them."""
    return 0 if connection is None else connection.operations(width)


def _making(curves: Any) -> int:
    """Operations that turn all curves of a tree into values at one time."""
    return sum(curve.operations() for curve in _nodes(curves, Weight))


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step as XLA plans them."""

    parameters: int
    working: int
    """Activations, gradients on their way and scratch space: all that is neither input nor output."""


def training_memory(model: LanguageModel, batch: int, length: int) -> Memory:
    """Memory of loss and gradient of batch * length tokens; compiles them, runs nothing."""
    arrays, ids = arrays_of(model), jax.ShapeDtypeStruct((batch, length), jnp.int32)

    def loss(arrays: Arrays, inputs: Array, targets: Array) -> Array:
        return jnp.mean(token_losses(with_arrays(model, arrays), inputs, targets))

    plan = jax.jit(jax.value_and_grad(loss)).lower(arrays, ids, ids).compile().memory_analysis()
    parameters = sum(array.size * array.dtype.itemsize for array in arrays.values())
    assert plan is not None, "this backend does not plan memory ahead"
    return Memory(parameters, int(plan.temp_size_in_bytes))
