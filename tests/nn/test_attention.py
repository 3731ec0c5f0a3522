"""Attention against a loop in double precision, and its properties."""

from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn import PARTS
from qkvflow.nn.attention import (
    attention_to_all,
    causal_attention,
    fused_attention,
    rotary_turns,
    rotate,
)
from tests.support import difference, randomised, small_config

H, G, T, D = 4, 3, 11, 4


def random_qkv(length=T):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (H, G, length, D), (H, length, D), (H, length, D)
    return [jax.random.normal(k, s) for k, s in zip(keys, shapes)]


def attention_by_loop(q, k, v):
    """Softmax over past and present, one query at a time."""
    out = np.zeros_like(q)
    for h, g, i in np.ndindex(*q.shape[:-1]):
        scores = k[h, : i + 1] @ q[h, g, i] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[h, g, i] = (weights / weights.sum()) @ v[h, : i + 1]
    return out


def test_causal_attention_is_the_loop():
    q, k, v = random_qkv()
    expected = attention_by_loop(*(np.asarray(a, np.float64) for a in (q, k, v)))
    assert difference(causal_attention(q, k, v), expected) < 1e-5


@pytest.mark.parametrize("length", [1, 2, 64])
def test_the_fused_kernel_is_the_same_function_with_the_same_gradients(length):
    qkv = random_qkv(length)
    written_out, fused = (
        jax.jit(jax.value_and_grad(lambda a, f=f: jnp.sum(f(*a) ** 2)))(qkv)
        for f in (causal_attention, fused_attention)
    )
    assert difference(written_out, fused) < 2e-4


@pytest.mark.parametrize("length", [64, 130, 301])
def test_attention_in_blocks_is_attention_in_one_piece_with_the_same_gradients(length):
    qkv = random_qkv(length)
    in_blocks, in_one_piece = (
        jax.jit(jax.value_and_grad(lambda a, f=f: jnp.sum(f(*a) ** 2)))(qkv)
        for f in (causal_attention, attention_to_all)
    )
    assert difference(in_blocks, in_one_piece) < 1e-4


def test_blocks_see_nothing_of_what_comes_later():
    """Exactly: neither values nor derivatives, on either side of the border between two blocks."""
    length = 130
    q, k, v = random_qkv(length)
    mix = partial(causal_attention, q)
    for position in (64, 65, 66, 129):
        there = jnp.arange(length)[None, :, None] == position
        change = jnp.where(there, jnp.ones_like(k), 0.0)
        before, slope = jax.jvp(mix, (k, v), (change, change))
        after = mix(k + 3 * change, v + 3 * change)
        assert np.array_equal(before[:, :, :position], after[:, :, :position])
        assert not np.any(slope[:, :, :position])
        assert np.all(np.any(np.asarray(slope[:, :, position:]) != 0, axis=-1))


def test_attention_from_an_offset_is_the_end_of_attention_from_the_start():
    q, k, v = random_qkv()
    whole = causal_attention(q, k, v)
    end = causal_attention(q[:, :, 7:], k, v, 7)
    assert difference(whole[:, :, 7:], end) < 1e-6


def test_rotary_scores_depend_on_the_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, D))

    def score(i, j):
        turned_q = rotate(q[None], rotary_turns(1, i, D, 100.0))
        turned_k = rotate(k[None], rotary_turns(1, j, D, 100.0))
        return float(jnp.sum(turned_q * turned_k))

    assert abs(score(9, 5) - score(104, 100)) < 1e-4
    assert abs(score(9, 5) - score(9, 6)) > 1e-3


def test_positions_that_are_known_are_turned_by_constants():
    """To the bit those of positions that are not known; no cosine is left to compute in a step."""
    known = lambda: rotary_turns(T, 3, D, 100.0)  # noqa: E731
    given = jax.jit(lambda offset: rotary_turns(T, offset, D, 100.0))
    assert "cos" not in str(jax.make_jaxpr(known)())
    assert "cos" in str(jax.make_jaxpr(given)(3))
    for constant, computed in zip(known(), given(3)):
        np.testing.assert_array_equal(constant, computed)


def test_rotation_keeps_lengths():
    x = jax.random.normal(jax.random.key(0), (T, D))
    turned = rotate(x, rotary_turns(T, 3, D, 100.0))
    assert difference(jnp.sum(x**2, -1), jnp.sum(turned**2, -1)) < 1e-5


def test_without_rotation_or_position_table_attention_ignores_the_order_of_the_past():
    config = small_config()
    part = randomised(PARTS["attention"]().build(config, key=jax.random.key(0), out_gain=1.0))
    x = jax.random.normal(jax.random.key(1), (1, 5, config.hidden_dim))
    shuffled = x[:, jnp.array([2, 0, 3, 1, 4])]
    last = [part(hax.named(a, ("batch", "position", "embed")))[0].array[0, -1] for a in (x, shuffled)]
    assert difference(*last) < 1e-5


def test_dropout_needs_a_key_and_keeps_the_mean():
    q, k, v = random_qkv()
    plain = causal_attention(q, k, v)
    assert difference(causal_attention(q, k, v, pdrop=0.5), plain) == 0.0
    keys = jax.random.split(jax.random.key(0), 4000)
    dropped = jax.vmap(lambda key: causal_attention(q, k, v, pdrop=0.5, key=key))(keys)
    assert difference(dropped[0], plain) > 0.1
    error = jnp.abs(dropped.mean(0) - plain) / (dropped.std(0) / np.sqrt(4000) + 1e-6)
    assert float(error.max()) < 6.0, f"{float(error.max())} standard errors"
