"""What a model costs: parameters by part, floating-point operations, memory.

Operations are counted in closed form: a product of [m, k] and [k, n] is 2 m k n, and what is not a
matrix product is counted roughly, per element. Attention is counted as it is computed, every query
with every key. The backward pass is two products for each one of the forward pass, and what
rematerialisation computes a second time is not counted: these are operations that the mathematics
needs. tests/models/test_counting.py compares them with XLA's own count.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from jax import Array

from qkvflow.models.language_model import LanguageModel
from qkvflow.models.paths import PARTS, arrays_of, nodes_of, parts_of
from qkvflow.nn.adapters import Adapted
from qkvflow.nn.attention import Attention
from qkvflow.nn.linear import Linear, size_of
from qkvflow.nn.mlp import MLP
from qkvflow.nn.norm import Norm
from qkvflow.nn.ssm import SelectiveSSM
from qkvflow.nn.time_embed import TimeNetwork
from qkvflow.nn.weights import Gated, Generated, LowRank, Weight, resolve

NORM, ACTIVATION, SOFTMAX, DECAY = 8, 10, 6, 5
"""Operations an element of what is not a matrix product."""


@dataclass(frozen=True)
class Parameters:
    """Trainable numbers of a model, by part."""

    embedding: int
    base: int
    time_network: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.base + self.time_network + self.head


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree) if _is_array(leaf))


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or, in a model of shapes only, stands for one."""
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _nodes(tree: Any, kind: type) -> list[Any]:
    return [node for _, node in nodes_of(tree, kind)]


def count_parameters(model: LanguageModel) -> Parameters:
    """Parameters by part: embeddings, base weights (and norms), time networks, output projection."""
    sizes = dict.fromkeys(PARTS, 0)
    parts = parts_of(model)
    for path, array in arrays_of(model).items():
        sizes[parts[path]] += array.size
    return Parameters(**sizes)


def forward_flops(model: LanguageModel, batch: int, length: int) -> int:
    """Operations of a forward pass over batch * length tokens, weights made from curves included."""
    blocks = model.transformer.blocks
    block = eqx.filter_eval_shape(resolve, blocks, 1.0)
    evaluations = model.steps().times.size
    config = model.config
    token = evaluations * _block_flops(block, length)
    token += NORM * config.hidden_dim + 2 * config.hidden_dim * config.vocab_size
    curves = evaluations * sum(map(_curve_flops, _nodes(blocks, Weight)))
    return batch * length * token + curves + sum(map(_curve_flops, _nodes(model.lm_head, Weight)))


def training_flops(model: LanguageModel, batch: int, length: int) -> int:
    """Operations of a forward and a backward pass; the optimizer's are not among them."""
    return 3 * forward_flops(model, batch, length)


def _block_flops(block: Any, length: int) -> int:
    """Operations a token of a block whose curves have been resolved."""
    linear = sum(2 * size_of(map_.In) * size_of(map_.Out) for map_ in _nodes(block, Linear))
    norms = sum(NORM * _size(norm.weight) for norm in _nodes(block, Norm))
    hidden = sum(ACTIVATION * mlp.down.In[0].size for mlp in _nodes(block, MLP))
    attention = sum(_attention_flops(part, length) for part in _nodes(block, Attention))
    scans = sum(_scan_flops(part, length) for part in _nodes(block, SelectiveSSM))
    return linear + norms + hidden + attention + scans


def _attention_flops(part: Attention, length: int) -> int:
    KVHeads, Group, HeadSize = part.out.In
    return KVHeads.size * Group.size * length * (4 * HeadSize.size + SOFTMAX)


def _scan_flops(part: SelectiveSSM, length: int) -> int:
    """Inside a chunk, into its state, and out of the state that entered it."""
    chunk, state = min(part.chunk_size, length), part.state_size
    heads, inner = part.A.Out[0].size, part.z.Out[0].size
    inside = 2 * chunk * state + DECAY * chunk * heads + 2 * chunk * inner
    return inside + 4 * inner * state + ACTIVATION * (2 * inner + 2 * state)


def _curve_flops(curve: Weight) -> int:
    """Operations that turn a curve into a value at one time."""
    if isinstance(curve, Adapted):
        return _curve_flops(curve.base) + _product_flops(curve.down.table, curve.up.table)
    if isinstance(curve, LowRank):
        inner = _curve_flops(curve.base) if isinstance(curve.base, Weight) else 0
        return inner + 2 * _size(curve.network) + _product_flops(curve.down, curve.up)
    networks = sum(2 * _size(network) for network in _nodes(curve, TimeNetwork))
    if isinstance(curve, Generated):
        return networks + 2 * _size(curve.basis)
    if isinstance(curve, Gated):
        return networks + len(curve.gates) * _size(curve.base.weight)
    return networks


def _product_flops(down: Any, up: Any) -> int:
    """Operations of the product of two linear maps."""
    return 2 * up.In[0].size * size_of(up.Out) * size_of(down.In)


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step as XLA plans them."""

    parameters: int
    working: int
    """Activations, gradients on their way and scratch space: all that is neither input nor output."""


def training_memory(model: LanguageModel, batch: int, length: int) -> Memory:
    """Memory of loss and gradient of batch * length tokens; compiles them, runs nothing."""
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf,
        model,
    )
    arrays, static = eqx.partition(shapes, _is_array)
    ids = jax.ShapeDtypeStruct((batch, length), jnp.int32)

    def loss(arrays: Any, inputs: Array, targets: Array) -> Array:
        named = [hax.named(ids, ("batch", "position")) for ids in (inputs, targets)]
        return eqx.combine(arrays, static).compute_loss(*named)

    plan = jax.jit(jax.value_and_grad(loss)).lower(arrays, ids, ids).compile().memory_analysis()
    parameters = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
    assert plan is not None, "this backend does not plan memory ahead"
    return Memory(parameters, int(plan.temp_size_in_bytes))
