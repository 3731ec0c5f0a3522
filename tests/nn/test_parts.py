"""Linear maps, norms, the MLP and dropout against their formulas in double precision."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn import PARTS, Embedding, Linear, Norm
from qkvflow.nn.linear import dropout, rows_by_product, rows_of
from tests.support import FLAVOURS, difference, randomised, small_config

Batch, Position, Embed = hax.make_axes(batch=2, position=3, embed=16)


def random_x(seed=1):
    return hax.random.normal(jax.random.key(seed), (Batch, Position, Embed))


def test_linear_is_a_product_over_named_axes():
    Heads, Size = hax.make_axes(heads=2, head_size=8)
    up = randomised(Linear.init((Embed,), (Heads, Size), key=jax.random.key(0), bias=True))
    down = randomised(Linear.init((Heads, Size), (Embed,), key=jax.random.key(1)))
    x = random_x()
    y = up(x)
    assert y.axes == (Batch, Position, Heads, Size)
    expected = np.einsum("bpe,ehs->bphs", x.array, up.weight.array) + np.asarray(up.bias.array)
    assert difference(y.array, expected) < 1e-5
    back = np.einsum("bphs,hse->bpe", y.array, down.weight.array)
    assert difference(down(y).array, back) < 1e-5


def test_linear_starts_with_unit_variance_out_for_unit_variance_in():
    In, Out = hax.make_axes(embed=400, mlp=300)
    y = Linear.init((In,), (Out,), key=jax.random.key(0))(
        hax.random.normal(jax.random.key(1), (Batch, In))
    )
    assert 0.85 < float(jnp.std(y.array)) < 1.15


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms(kind):
    norm = randomised(Norm.init(Embed, kind, bias=True, epsilon=1e-5))
    x = random_x()
    a = np.asarray(x.array, np.float64)
    centred = a - a.mean(-1, keepdims=True) if kind == "layer" else a
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    expected = expected * np.asarray(norm.weight.array)
    if kind == "layer":
        expected = expected + np.asarray(norm.bias.array)
    else:
        assert norm.bias is None
    assert difference(norm(x).array, expected) < 1e-5


def test_norm_statistics_are_float32_in_bfloat16():
    norm = Norm.init(Embed, "layer", bias=True, epsilon=1e-5)
    x = random_x() * 0.01 + 100.0
    low = hax.named(x.array.astype(jnp.bfloat16), x.axes)
    exact = norm(hax.named(low.array.astype(jnp.float32), x.axes))
    assert norm(low).dtype == jnp.bfloat16
    assert difference(norm(low).array.astype(jnp.float32), exact.array) < 0.02


@pytest.mark.parametrize("activation", ["gelu", "relu", "relu2", "silu"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_mlp(activation, flavour):
    config = small_config(activation_function=activation, flavour=flavour, mlp_ratio=1.5)
    mlp = randomised(PARTS["mlp"]().build(config, key=jax.random.key(0), out_gain=1.0))
    assert mlp.down.In[0].size == 24
    x = random_x()
    act = {"relu2": lambda z: np.maximum(z, 0.0) ** 2}.get(activation) or getattr(jax.nn, activation)
    up = np.einsum("bpe,ern->bprn", x.array, mlp.up.weight.array)
    if flavour == "gpt2":
        up += np.asarray(mlp.up.bias.array)
    hidden = act(up[:, :, 0])
    if flavour == "llama":
        hidden *= up[:, :, 1]
    expected = np.einsum("bpn,ne->bpe", hidden, mlp.down.weight.array)
    if flavour == "gpt2":
        expected += np.asarray(mlp.down.bias.array)
    assert difference(mlp(x)[0].array, expected) < 1e-4


def test_an_index_outside_the_table_is_nan_and_not_another_row():
    table = Embedding.init(Position, Embed, key=jax.random.key(0), scale=1.0)
    rows = table(jnp.array([0, 2, 3, -7, -1]))
    assert difference(rows[:2], table.weight.array[jnp.array([0, 2])]) == 0.0
    assert bool(jnp.isnan(rows[2:]).all())


def test_dropout_zeroes_the_rate_and_keeps_the_mean():
    x = jnp.ones(100_000)
    dropped = dropout(x, 0.3, jax.random.key(0))
    assert abs(float((dropped == 0).mean()) - 0.3) < 0.01
    assert abs(float(dropped.mean()) - 1.0) < 0.02
    assert dropout(x, 0.3, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_the_gradient_of_a_small_table_as_a_product_is_the_sum_of_rows():
    table = jax.random.normal(jax.random.key(0), (7, 5))
    ids = jnp.array([[0, 3, 3], [6, 0, 3]])
    seeds = jax.random.normal(jax.random.key(1), (2, 3, 5))
    loss = lambda rows: lambda table: jnp.sum(jnp.tanh(rows(table, ids)) * seeds)  # noqa: E731
    assert np.array_equal(rows_of(table, ids), rows_by_product(table, ids))
    by_rows, by_product = (jax.grad(loss(rows))(table) for rows in (rows_of, rows_by_product))
    assert difference(by_rows, by_product) < 1e-6
    forward = [jax.jvp(loss(rows), (table,), (table,)) for rows in (rows_of, rows_by_product)]
    assert difference(*forward) < 1e-5
    several = jnp.stack([table, 2 * table])
    both = [jax.vmap(jax.grad(loss(rows)))(several) for rows in (rows_of, rows_by_product)]
    assert difference(*both) < 1e-6


@pytest.mark.parametrize("rows", [4, 2000])
def test_an_index_outside_a_table_is_not_a_number_and_leaves_the_other_rows_alone(rows):
    Index, Embed = hax.make_axes(index=rows, embed=3)
    table = Embedding.init(Index, Embed, key=jax.random.key(0), scale=1.0)
    found = np.asarray(table(jnp.array([0, -1, rows, rows - 1])))
    assert np.array_equal(np.isnan(found).any(axis=1), [False, True, True, False])
    assert np.array_equal(found[[0, 3]], np.asarray(table.weight.array)[[0, rows - 1]])
