"""Products of matrices whose operands are rounded to bfloat16 and whose sums are float32.

CPUs with instructions for it multiply bfloat16 about twice as fast as float32, but XLA's CPU backend
uses them only where the left operand is contracted over its last axis. The gradient of a weight,
x^T g, contracts over the first axis of both: x is transposed in memory first, which takes far less time
than the product. This cannot be said with the product of JAX, whose gradient would multiply in float32,
hence a primitive of our own: its three products are of the same kind, and so are their derivatives.
"""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from qkvflow.config import Gpt2Config

INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
"""As Linux names what a CPU needs for it, one of them."""
CPU_INFO = Path("/proc/cpuinfo")


def rounds_operands(config: Gpt2Config) -> bool:
    """Whether products of a model are of rounded operands: it asks for it, and it is faster here."""
    return config.compute_dtype == "mixed" and multiplies_bfloat16()


def multiplies_bfloat16() -> bool:
    """Whether what JAX computes on has instructions for products of bfloat16."""
    return jax.default_backend() != "cpu" or not cpu_flags(CPU_INFO).isdisjoint(INSTRUCTIONS)


def precision_note(config: Gpt2Config) -> str | None:
    """A sentence for who asked for what would not be faster here."""
    if config.compute_dtype != "mixed" or multiplies_bfloat16():
        return None
    return (
        "compute_dtype is mixed, but this CPU has no instructions for products of bfloat16 "
        f"({' or '.join(INSTRUCTIONS)}): float32 is used."
    )


@functools.cache
def cpu_flags(file: Path) -> frozenset[str]:
    """What the CPU can do, as Linux says it; nothing where it is not said."""
    lines = file.read_text().splitlines() if file.is_file() else ()
    return frozenset(word for line in lines if line.startswith("flags") for word in line.split())


def rounded_dot(left: Array, right: Array, left_axis: int = -1, right_axis: int = -2) -> Array:
    """Matrices of a batch multiplied, each contracted over one of its last two axes.

    Leading axes are the same in both; the result is [..., rows of left, columns of right], in float32.

    Examples:
        >>> import jax.numpy as jnp
        >>> rounded_dot(jnp.ones((2, 3)), jnp.full((3, 1), 0.5)).tolist()
        [[1.5], [1.5]]
    """
    return _dot.bind(left, right, left_axis=left_axis, right_axis=right_axis)


def product(left: Array, right: Array, *, rounded: bool = False) -> Array:
    """A product of matrices, in float32 with rounded operands or in the type of the left one."""
    return rounded_dot(left, right) if rounded else left @ right.astype(left.dtype)


def is_matrix_product(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """A policy of rematerialisation: what products without batch axes make is kept."""
    if primitive is _dot:
        return arguments[0].ndim == 2
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *arguments, **parameters)


_dot = Primitive("rounded_dot")


def _other(axis: int) -> int:
    """Of the last two axes."""
    return -3 - axis


def _shape(left: Any, right: Any, left_axis: int, right_axis: int) -> tuple[int, ...]:
    rows, columns = left.shape[_other(left_axis)], right.shape[_other(right_axis)]
    return (*left.shape[:-2], rows, columns)


def _computed(left: Array, right: Array, *, left_axis: int, right_axis: int) -> Array:
    left, right = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    if left_axis == -2 and jax.default_backend() == "cpu":
        left, left_axis = _in_memory(left.mT), -1
    batch = tuple(range(left.ndim - 2))
    contracted = ((left.ndim + left_axis,), (right.ndim + right_axis,))
    found = lax.dot_general(
        left, right, (contracted, (batch, batch)), preferred_element_type=jnp.float32
    )
    # Else a transposition of it becomes part of the product, and XLA's CPU backend refuses that.
    return _in_memory(found) if jax.default_backend() == "cpu" else found


def _in_memory(x: Array) -> Array:
    """The same, with its last axis contiguous: transposing is not left to the product."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _abstract(left: Any, right: Any, *, left_axis: int, right_axis: int) -> ShapedArray:
    return ShapedArray(_shape(left, right, left_axis, right_axis), jnp.float32)


def _gradient_of_left(
    cotangent: Array, left: Any, right: Array, *, left_axis: int, right_axis: int
) -> Array:
    if left_axis == -1:
        return rounded_dot(cotangent, right, -1, _other(right_axis))
    return rounded_dot(right, cotangent, _other(right_axis), -1)


def _gradient_of_right(
    cotangent: Array, left: Array, right: Any, *, left_axis: int, right_axis: int
) -> Array:
    if right_axis == -2:
        return rounded_dot(left, cotangent, _other(left_axis), -2)
    return rounded_dot(cotangent, left, -2, _other(left_axis))


def _batched(arguments: Any, axes: Any, **parameters: Any) -> tuple[Array, int]:
    size = next(x.shape[axis] for x, axis in zip(arguments, axes) if axis is not None)
    left, right = (batching.bdim_at_front(x, axis, size) for x, axis in zip(arguments, axes))
    return _dot.bind(left, right, **parameters), 0


_dot.def_impl(jax.jit(_computed, static_argnames=("left_axis", "right_axis")))
_dot.def_abstract_eval(_abstract)
ad.defbilinear(_dot, _gradient_of_left, _gradient_of_right)
batching.primitive_batchers[_dot] = _batched
mlir.register_lowering(_dot, mlir.lower_fun(_computed, multiple_results=False))
