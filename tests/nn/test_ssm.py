"""The selective state-space recurrence: three routes, every gradient, extremes; and its silu."""

from functools import partial

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn.context import Context
from qkvflow.nn.ssm import SsmPart
from qkvflow.nn.ssm_scan import (
    causal_conv,
    inverse_softplus,
    scan_by_chunks,
    scan_by_loop,
    scan_keeping_states,
    scan_step,
    silu,
    silu_gate,
)
from qkvflow.nn.weights import resolve
from tests.support import difference, float64, random_model, randomised, small_config

Z = jnp.asarray([-1e4, -100.0, -89.0, -20.0, -1.3, -1e-3, 0.0, 1e-3, 0.7, 20.0, 89.0, 1e4])
X = jnp.linspace(-3.0, 3.0, Z.size)
NAMES = ("x", "delta", "A", "B", "C", "state")


def random_inputs(length, *, batch=2, heads=3, channels=4, states=5, seed=0):
    k = jax.random.split(jax.random.key(seed), 6)
    return (
        jax.random.normal(k[0], (batch, length, heads, channels)),
        jax.nn.softplus(jax.random.normal(k[1], (batch, length, heads)) - 1.0),
        -jnp.exp(jax.random.normal(k[2], (heads,))),
        jax.random.normal(k[3], (batch, length, states)),
        jax.random.normal(k[4], (batch, length, states)),
        jax.random.normal(k[5], (batch, states, heads, channels)),
    )


def scan_in_python(x, delta, A, B, C, state):
    """The two lines of the definition, in numpy, for every position, head and channel."""
    y = np.zeros_like(x)
    state = state.copy()
    for t in range(x.shape[1]):
        for b, h in np.ndindex(*delta.shape[::2]):
            new = delta[b, t, h] * np.outer(B[b, t], x[b, t, h])
            state[b, :, h] = np.exp(delta[b, t, h] * A[h]) * state[b, :, h] + new
            y[b, t, h] = C[b, t] @ state[b, :, h]
    return y, state


def outputs_and_gradients(route, inputs):
    """Outputs and last state, and the gradient of a scalar of them to every input."""

    def loss(inputs):
        y, state = route(*inputs)
        return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.cos(state)), (y, state)

    (_, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(inputs)
    return outputs, gradients


def test_states_are_those_of_the_loop():
    inputs = random_inputs(9)
    y, states = scan_keeping_states(*inputs)
    assert difference((y, states[-1]), scan_by_loop(*inputs)) < 1e-6
    some = [a if i in (2, 5) else a[:, :4] for i, a in enumerate(inputs)]
    assert difference(states[3], scan_by_loop(*some)[1]) < 1e-6


def test_the_loop_is_the_definition():
    inputs = random_inputs(9)
    expected = scan_in_python(*(np.asarray(a, np.float64) for a in inputs))
    assert difference(scan_by_loop(*inputs), expected) < 1e-5


@pytest.mark.parametrize(
    ("length", "chunk_size"), [(1, 8), (2, 8), (7, 8), (9, 8), (37, 8), (64, 64), (100, 64), (21, 1)]
)
def test_chunks_agree_with_the_double_precision_loop_in_value_and_every_gradient(length, chunk_size):
    inputs = random_inputs(length)
    with jax.enable_x64(True):
        exact, exact_gradients = outputs_and_gradients(scan_by_loop, float64(inputs))
    route = partial(scan_by_chunks, chunk_size=chunk_size)
    outputs, gradients = outputs_and_gradients(route, inputs)
    for name, ours, true in zip(
        ("y", "last state", *NAMES), (*outputs, *gradients), (*exact, *exact_gradients), strict=True
    ):
        error = difference(ours, true) / max(1.0, float(np.max(np.abs(true))))
        assert error < 1e-4, f"{name}: {error}"


def test_steps_with_a_carried_state_agree_with_the_double_precision_loop():
    inputs = random_inputs(37)
    with jax.enable_x64(True):
        exact, exact_state = scan_by_loop(*float64(inputs))
    x, delta, A, B, C, state = inputs
    for t in range(37):
        y, state = scan_step(state, x[:, t], delta[:, t], A, B[:, t], C[:, t])
        assert difference(y, exact[:, t]) < 1e-4
    assert difference(state, exact_state) < 1e-4


def test_a_scan_in_two_halves_is_the_whole_scan():
    x, delta, A, B, C, state = random_inputs(21)
    scan = jax.jit(partial(scan_by_chunks, chunk_size=8))
    whole, last = scan(x, delta, A, B, C, state)
    first, middle = scan(x[:, :10], delta[:, :10], A, B[:, :10], C[:, :10], state)
    second, end = scan(x[:, 10:], delta[:, 10:], A, B[:, 10:], C[:, 10:], middle)
    assert difference(jnp.concatenate([first, second], 1), whole) < 1e-5
    assert difference(end, last) < 1e-5


@pytest.mark.parametrize("chunk_size", [64, 128])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_extreme_step_sizes_at_length_4096_are_finite_and_right(size, chunk_size):
    x, delta, A, B, C, state = random_inputs(4096, batch=1, heads=2, channels=2, states=3)
    # Mixed with ordinary ones: forgetting everything now and then must not blur what follows.
    delta = jnp.where(jax.random.bernoulli(jax.random.key(5), 0.5, delta.shape), delta, size)
    inputs = (x, delta, A, B, C, state)
    with jax.enable_x64(True):
        exact, _ = jax.jit(scan_by_loop)(*float64(inputs))
    (y, last), gradients = outputs_and_gradients(partial(scan_by_chunks, chunk_size=chunk_size), inputs)
    assert all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves((y, last, gradients)))
    error = difference(y, exact) / float(np.max(np.abs(exact)))
    assert error < 1e-4, f"relative to the largest output: {error}"


def test_causal_convolution():
    x = jax.random.normal(jax.random.key(0), (2, 7, 3))
    kernel = jax.random.normal(jax.random.key(1), (4, 3))
    past = jax.random.normal(jax.random.key(2), (2, 3, 3))
    padded = np.concatenate([past, x], axis=1)
    expected = np.stack(
        [sum(padded[:, t + k] * np.asarray(kernel[k]) for k in range(4)) for t in range(7)], axis=1
    )
    y, last = causal_conv(x, kernel, past)
    assert difference(y, expected) < 1e-5
    assert difference(last, x[:, -3:]) == 0.0
    y1, middle = causal_conv(x[:, :2], kernel, past)
    y2, _ = causal_conv(x[:, 2:], kernel, middle)
    assert difference(jnp.concatenate([y1, y2], 1), y) < 1e-6


def make_part(**changes):
    config = small_config(parts=("ssm",), **changes)
    return config, randomised(config.parts[0].build(config, key=jax.random.key(0), out_gain=1.0))


def random_x(config, length=20):
    x = jax.random.normal(jax.random.key(3), (2, length, config.hidden_dim))
    return hax.named(x, ("batch", "position", "embed"))


def test_delta_b_and_c_change_with_the_input(monkeypatch):
    config, part = make_part()
    seen = []

    def spy(x, delta, A, B, C, state, **options):
        seen.append({"delta": delta, "B": B, "C": C})
        return scan_by_chunks(x, delta, A, B, C, state, **options)

    monkeypatch.setattr("qkvflow.nn.ssm.scan_by_chunks", spy)
    part(random_x(config))
    part(random_x(config) * 1.5)
    for name in ("delta", "B", "C"):
        assert difference(seen[0][name], seen[1][name]) > 1e-2, name
        assert float(jnp.std(seen[0][name], axis=1).max()) > 1e-2, f"{name} over positions"


@pytest.mark.parametrize("raw", [-50.0, 0.0, 50.0])
def test_the_rate_is_never_positive_so_the_state_never_grows_by_itself(monkeypatch, raw):
    config, part = make_part()
    part = eqx.tree_at(lambda p: p.A.weight, part, part.A.weight * 0.0 + raw)
    seen = []

    def spy(x, delta, A, B, C, state, **options):
        seen.append(A)
        return scan_by_chunks(x, delta, A, B, C, state, **options)

    monkeypatch.setattr("qkvflow.nn.ssm.scan_by_chunks", spy)
    part(random_x(config))
    assert float(seen[0].max()) <= 0.0
    state, silence = jnp.ones((2, 4, 4, 8)), jnp.zeros((2, 4))
    _, after = scan_step(state, jnp.zeros((2, 4, 8)), jnp.ones((2, 4)), seen[0], silence, silence)
    assert float(after.max()) <= 1.0


@pytest.mark.parametrize("weights", ["generated", "gated", "low_rank", "per_layer"])
def test_every_path_of_the_recurrence_is_time_indexed(weights):
    model = random_model("time_indexed_ssm", small_config(weights=weights))
    early, late = (resolve(model.transformer.blocks, t).parts["ssm"].part for t in (0.5, 1.0))
    for path in ("z", "xbc", "delta", "delta_bias", "conv", "A", "D", "out"):
        change = difference(getattr(early, path).weight, getattr(late, path).weight)
        assert change > 1e-3, path


def test_inverse_softplus():
    y = jnp.array([1e-3, 0.1, 1.0, 16.0])
    assert difference(jax.nn.softplus(inverse_softplus(y)), y) < 1e-5


def test_the_cached_part_continues_the_uncached_one():
    config, part = make_part()
    x = random_x(config)
    run = eqx.filter_jit(part)
    whole, none = run(x)
    assert none is None
    cache = part.empty_cache(2, 20, jnp.float32)
    outputs = []
    for piece in (slice(0, 11), *(slice(i, i + 1) for i in range(11, 20))):
        y, cache = run(hax.named(x.array[:, piece], x.axis_names), Context(cache=cache))
        outputs.append(y.array)
    assert difference(jnp.concatenate(outputs, axis=1), whole.array) < 1e-4


@pytest.mark.parametrize("kept", range(5))
def test_a_cache_goes_back_to_any_of_the_last_positions(kept):
    config, part = make_part()
    x = random_x(config)
    run = eqx.filter_jit(part)

    def pieces(piece, cache, offset):
        named = hax.named(piece, x.axis_names)
        return run(named, Context(cache=cache, offset=jnp.asarray(offset)))

    _, cache = pieces(x.array[:, :9], part.empty_cache(2, 20, jnp.float32, back=4), 0)
    astray = x.array[:, 9:13].at[:, kept:].multiply(-2.0)
    _, cache = pieces(astray, cache, 9)
    y, _ = pieces(x.array[:, 9 + kept :], cache, 9 + kept)
    assert difference(y.array, run(x)[0].array[:, 9 + kept :]) < 1e-4


def test_the_cache_does_not_grow_with_the_text():
    _, part = make_part()
    short, long = part.empty_cache(2, 1, jnp.float32), part.empty_cache(2, 4096, jnp.float32)
    assert [a.shape for a in jax.tree.leaves(short)] == [a.shape for a in jax.tree.leaves(long)]


def test_step_sizes_start_in_their_range():
    settings = SsmPart(delta_min=0.01, delta_max=0.02, head_size=1)
    part = settings.build(small_config(), key=jax.random.key(0), out_gain=1.0)
    delta = np.asarray(jax.nn.softplus(part.delta_bias.weight.array))
    assert delta.min() > 0.0099
    assert delta.max() < 0.0201


def gate_of_jax(x, z):
    return x * jax.nn.silu(z)


def test_silu_is_silu():
    np.testing.assert_allclose(silu(Z), jax.nn.silu(Z), rtol=1e-6, atol=1e-30)
    ours, theirs = (jax.vmap(jax.grad(f))(Z) for f in (silu, jax.nn.silu))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("which", [0, 1])
def test_the_gate_and_both_its_gradients(which):
    np.testing.assert_allclose(silu_gate(X, Z), gate_of_jax(X, Z), rtol=1e-6, atol=1e-30)
    ours, theirs = (jax.vmap(jax.grad(f, argnums=which))(X, Z) for f in (silu_gate, gate_of_jax))
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


def test_forward_derivatives():
    for ours, theirs, arguments in ((silu, jax.nn.silu, (Z,)), (silu_gate, gate_of_jax, (X, Z))):
        directions = tuple(jnp.cos(a) for a in arguments)
        _, tangent = jax.jvp(ours, arguments, directions)
        _, expected = jax.jvp(theirs, arguments, directions)
        np.testing.assert_allclose(tangent, expected, rtol=2e-6, atol=1e-6)
