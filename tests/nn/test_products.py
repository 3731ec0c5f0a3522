"""Products of rounded operands: value, every derivative, batches; and where they are used."""

import dataclasses
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn import products
from qkvflow.nn.products import multiplies_bfloat16, rounded_dot
from tests.support import small_config

AXES = [*itertools.product((-1, -2), (-1, -2), ((), (3,)))]


def operands(left_axis, right_axis, batch, seed=0):
    """Two matrices, or batches of them, that are contracted over seven numbers, and a cotangent."""
    random = np.random.default_rng(seed)
    left = (*batch, 5, 7) if left_axis == -1 else (*batch, 7, 5)
    right = (*batch, 7, 4) if right_axis == -2 else (*batch, 4, 7)
    shapes = left, right, (*batch, 5, 4)
    return [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]


def rounded(x):
    return np.asarray(x.astype(jnp.bfloat16), np.float64)


def reference(left, right, left_axis, right_axis):
    """In float64, of the rounded operands."""
    left, right = rounded(left), rounded(right)
    return (left if left_axis == -1 else left.swapaxes(-1, -2)) @ (
        right if right_axis == -2 else right.swapaxes(-1, -2)
    )


def close(found, expected):
    error = np.abs(np.asarray(found, np.float64) - expected).max()
    assert found.dtype == jnp.float32 and error < 1e-5, f"{error}"


@pytest.mark.parametrize(("left_axis", "right_axis", "batch"), AXES)
def test_operands_are_rounded_and_sums_are_not_in_the_value_and_both_gradients(
    left_axis, right_axis, batch
):
    left, right, cotangent = operands(left_axis, right_axis, batch)
    value, pull = jax.vjp(lambda a, b: rounded_dot(a, b, left_axis, right_axis), left, right)
    close(value, reference(left, right, left_axis, right_axis))
    of_left, of_right = pull(cotangent)
    turned = reference(cotangent, right, -1, -3 - right_axis)
    close(of_left, turned if left_axis == -1 else turned.swapaxes(-1, -2))
    turned = reference(left, cotangent, -3 - left_axis, -2)
    close(of_right, turned if right_axis == -2 else turned.swapaxes(-1, -2))


def test_forward_derivatives_round_as_the_product_does():
    left, right, _ = operands(-1, -2, ())
    other_left, other_right, _ = operands(-1, -2, (), seed=1)
    _, change = jax.jvp(rounded_dot, (left, right), (other_left, other_right))
    close(change, reference(other_left, right, -1, -2) + reference(left, other_right, -1, -2))


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 0)])
def test_a_batch_is_one_product_after_the_other(axes):
    sides = [
        side if axis is None else jnp.stack([side, 2 * side, -side], axis)
        for side, axis in zip(operands(-1, -2, ())[:2], axes)
    ]
    found = jax.vmap(rounded_dot, axes)(*sides)
    for i in range(3):
        one = [s if axis is None else jnp.take(s, i, axis) for s, axis in zip(sides, axes)]
        close(found[i], reference(*one, -1, -2))


def test_only_products_without_batch_axes_are_kept_for_the_backward_pass():
    def products_of_the_backward_pass(batch):
        left, right, _ = operands(-1, -2, batch)
        policy = products.is_matrix_product
        loss = jax.checkpoint(lambda a: jnp.sum(jnp.sin(rounded_dot(a, right))), policy=policy)
        return str(jax.make_jaxpr(jax.grad(loss))(left)).count("rounded_dot[")

    assert (products_of_the_backward_pass(()), products_of_the_backward_pass((3,))) == (2, 3)


@pytest.mark.parametrize(
    ("text", "able"),
    [
        ("flags\t\t: fpu sse avx512_bf16\n", True),
        ("flags\t\t: fpu amx_bf16 sse\nflags\t\t: fpu\n", True),
        ("flags\t\t: fpu sse avx512f\nbugs : avx512_bf16\n", False),
        (None, False),
    ],
)
def test_what_a_cpu_can_do_is_read_from_its_flags(text, able, monkeypatch, tmp_path):
    info = Path(tmp_path) / "cpuinfo"
    if text is not None:
        info.write_text(text)
    monkeypatch.setattr(products, "CPU_INFO", info)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert multiplies_bfloat16() is able
    config = small_config(compute_dtype="mixed")
    assert products.rounds_operands(config) is able
    assert (products.precision_note(config) is None) is able
    plain = dataclasses.replace(config, compute_dtype="float32")
    assert not products.rounds_operands(plain) and products.precision_note(plain) is None
