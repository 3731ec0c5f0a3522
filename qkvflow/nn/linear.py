"""Linear maps, embeddings and dropout: the modules that hold a layer's arrays."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.nn.parameters import Kind, Parameter, Table
from qkvflow.nn.products import product

SMALL_TABLE = 1024
"""Rows of an embedding whose gradient is faster as a matrix product than row by row."""


def size_of(axes: Sequence[Axis]) -> int:
    """Number of elements of an array with these axes."""
    return math.prod(axis.size for axis in axes)


class Linear(eqx.Module):
    """An affine map between named axes: y = x W + b.

    `weight` has the axes (*In, *Out), `bias` the axes Out. With no input axis it is a vector of
    parameters. Tokens are flattened to one axis around the product, so that its gradient
    contracts over one axis: XLA's CPU backend is slow at contracting over batch and position.
    """

    weight: NamedArray
    bias: NamedArray | None
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)

    @staticmethod
    def init(
        In: Sequence[Axis],
        Out: Sequence[Axis],
        *,
        key: Array,
        bias: bool = False,
        gain: float = 1.0,
    ) -> "Linear":
        """Weights normal with standard deviation gain / sqrt(fan in), biases zero."""
        In, Out = tuple(In), tuple(Out)
        weight = hax.random.normal(key, (*In, *Out)) * (gain / math.sqrt(size_of(In)))
        return Linear(weight, hax.zeros(Out) if bias else None, In, Out)

    @staticmethod
    def of_values(name: str, values: Sequence[float]) -> "Linear":
        """A vector of parameters that starts with these values."""
        Out = Axis(name, len(values))
        return Linear(hax.named(jnp.asarray(values, jnp.float32), Out), None, (), (Out,))

    def __call__(self, x: NamedArray, *, rounded: bool = False) -> NamedArray:
        """Map the trailing axes In of `x` to Out, in the type of `x`; see `products` for `rounded`."""
        leading = x.axes[: x.ndim - len(self.In)]
        rows = x.array.reshape(-1, size_of(self.In))
        matrix = self.weight.array.reshape(size_of(self.In), size_of(self.Out))
        mapped = product(rows, matrix, rounded=rounded)
        if self.bias is not None:
            mapped += self.bias.array.reshape(1, -1).astype(x.dtype)
        axes = leading + self.Out
        return hax.named(mapped.reshape([axis.size for axis in axes]), axes)

    def parameters(self) -> Table:
        """A matrix, or a vector of parameters where there are no inputs."""
        is_matrix, inputs = bool(self.In), tuple(axis.name for axis in self.In)
        table = {}
        if isinstance(self.weight, NamedArray):
            kind: Kind = "matrix" if is_matrix else "vector"
            table["weight"] = Parameter(self.weight.axes, kind, decays=is_matrix, inputs=inputs)
        if isinstance(self.bias, NamedArray):
            table["bias"] = Parameter(self.bias.axes, "bias")
        return table


def product_operations(down: Linear, up: Linear) -> int:
    """Operations of the product of the weights of two linear maps."""
    return 2 * up.In[0].size * size_of(up.Out) * size_of(down.In)


class Embedding(eqx.Module):
    """A table with one row for every index."""

    weight: NamedArray

    @staticmethod
    def init(Index: Axis, Embed: Axis, *, key: Array, scale: float) -> "Embedding":
        """Entries normal with standard deviation `scale`."""
        return Embedding(hax.random.normal(key, (Index, Embed)) * scale)

    def __call__(self, indices: Array) -> Array:
        """Rows of the table; NaN where an index lies outside, never another index's row."""
        look_up = rows_by_product if self.weight.array.shape[0] <= SMALL_TABLE else rows_of
        return look_up(self.weight.array, indices)

    def parameters(self) -> Table:
        """One table."""
        return {"weight": Parameter(self.weight.axes, "embedding", "embedding", decays=True)}


def rows_of(table: Array, indices: Array) -> Array:
    """Rows by their indices; NaN where there is none."""
    known = jnp.where(indices < 0, table.shape[0], indices)  # a negative index counts from the end
    return jnp.take(table, known, axis=0, mode="fill", fill_value=jnp.nan)


@jax.custom_jvp
def rows_by_product(table: Array, indices: Array) -> Array:
    """`rows_of` whose gradient is a matrix product; XLA's CPU backend adds up rows one by one."""
    return rows_of(table, indices)


@rows_by_product.defjvp
def _product_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Any]) -> tuple[Array, Array]:
    (table, indices), (tangent, _) = primals, tangents
    chosen = jax.nn.one_hot(indices.reshape(-1), table.shape[0], dtype=table.dtype)
    return rows_of(table, indices), (chosen @ tangent).reshape(*indices.shape, -1)


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Zero a fraction `rate` of `x` and scale the rest up; the identity where `key` is None."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))
