"""Lyapunov exponents: known answers, by the routine that looks at models; and explicit Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis import flow_of, lyapunov_exponents, sequence_exponents, start, states
from qkvflow.analysis.lyapunov import token_exponents
from tests.support import random_model, small_config, token_ids


def runge_kutta(field, h):
    """A step of the classical method along a field, for `lyapunov_exponents`."""

    def step(x, _):
        k1 = field(x)
        k2 = field(x + h / 2 * k1)
        k3 = field(x + h / 2 * k2)
        k4 = field(x + h * k3)
        return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    return step


def exponents_of(field, x, *, duration, h=0.01, settle=0.0, **options):
    """In double precision, after a time that is not counted in which directions and state settle."""
    step, time = runge_kutta(field, h), duration + settle

    @jax.jit
    def go(x):
        steps = jnp.zeros(round(time / h))
        return lyapunov_exponents(step, x, steps, count=x.size, duration=time, **options)

    found = go(x)
    counted = found.growth[round(settle / h) :].sum(axis=0) / duration
    return found.values if not settle else jnp.sort(counted, descending=True)


@pytest.fixture(autouse=True)
def _double():
    """Known answers are compared in double precision; models compute in float32 all the same."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def test_a_linear_field_has_the_real_parts_of_its_eigenvalues():
    """A pair -0.2 +- pi i grows evenly over every whole unit of time: nothing is left to chance."""
    blocks = np.zeros((4, 4))
    blocks[0, 0], blocks[3, 3] = 0.7, -1.5
    blocks[1:3, 1:3] = [[-0.2, -np.pi], [np.pi, -0.2]]
    mixed = np.random.default_rng(0).normal(size=(4, 4))
    matrix = jnp.asarray(mixed @ blocks @ np.linalg.inv(mixed))
    found = exponents_of(lambda x: matrix @ x, jnp.zeros(4), duration=20.0, settle=30.0)
    error = np.abs(np.asarray(found) - [0.7, -0.2, -0.2, -1.5]).max()
    assert error < 1e-6, f"off by {error}"


def test_a_rotation_has_none():
    """The method itself shrinks a rotation by (h w)^6 / 144 a step: 4.4e-11 per unit of time."""
    turn = jnp.array([[0.0, -2.0], [2.0, 0.0]])
    found = exponents_of(lambda x: turn @ x, jnp.array([1.0, 0.0]), duration=10.0)
    error = np.abs(np.asarray(found)).max()
    assert error < 1e-10, f"off by {error}"


@pytest.mark.parametrize("begin", [0.0, 1.5])
def test_a_contracting_field_has_its_closed_form(begin):
    """dx/dt = -x - x^3, whose flow has the derivative e^-t (1 + x0^2 (1 - e^-2t))^(-3/2)."""
    found = exponents_of(lambda x: -x - x**3, jnp.array([begin, begin]), duration=2.0)
    expected = -1 - 1.5 * np.log1p(begin**2 * (1 - np.exp(-4.0))) / 2.0
    error = np.abs(np.asarray(found) - expected).max()
    assert error < 1e-8, f"off by {error}"


def lorenz(x):
    return jnp.stack([10 * (x[1] - x[0]), x[0] * (28 - x[2]) - x[1], x[0] * x[1] - 8 / 3 * x[2]])


def lorenz_exponents(h):
    """Of 16 trajectories of 300 units of time, after 20 that are not counted."""
    begin = jnp.asarray(np.random.default_rng(0).normal((1.0, 1.0, 20.0), size=(16, 3)))
    go = jax.vmap(lambda x: exponents_of(lorenz, x, duration=300.0, settle=20.0, h=h))
    return np.asarray(go(begin))


def test_the_lorenz_system():
    """0.906, 0, -14.57 (Sprott 2003).

    The first and last spread over trajectories: the tolerance is four standard errors of their mean.
    The middle one is zero up to the log of the ratio of speeds at both ends, below 5, over 300.
    The sum is the divergence of the field, -(10 + 1 + 8/3), but for the error of the method, which must
    fall with the fourth power of the step.
    """
    found, finer = lorenz_exponents(0.01), lorenz_exponents(0.005)
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / 4
    assert error[0] < 5e-3, f"too few steps to tell: {error}"
    assert abs(mean[0] - 0.9056) < 4 * error[0], f"{mean[0]} is off by {mean[0] - 0.9056}, {error}"
    assert abs(mean[2] + 14.5723) < 4 * error[2], f"{mean[2]} is off by {mean[2] + 14.5723}, {error}"
    assert np.abs(found[:, 1]).max() < 5 / 300, f"{found[:, 1]}"
    off, off_finer = (np.abs(values.sum(axis=1) + 41 / 3).mean() for values in (found, finer))
    assert 12 < off / off_finer < 20, f"the sum is off by {off} and, at half the step, by {off_finer}"
    assert off_finer < 1e-5, f"{off_finer}"


def test_the_answer_does_not_depend_on_the_first_directions_over_a_long_time():
    """What the directions begin with is forgotten like exp(-0.9 t)."""
    found = [exponents_of(lorenz, jnp.ones(3), duration=50.0, settle=40.0, seed=s) for s in (0, 1)]
    error = np.abs(np.asarray(found[0] - found[1])).max()
    assert error < 1e-9, f"{error}"


@pytest.mark.parametrize("count", [0, 4])
def test_more_exponents_than_directions_are_a_sentence(count):
    with pytest.raises(ValueError, match="expected 1 to 3"):
        lyapunov_exponents(lambda x, _: x, jnp.ones(3), jnp.zeros(2), count=count, duration=1.0)


TINY_SSM = {"part": "ssm", "state_size": 2, "head_size": 4, "chunk_size": 8}


@pytest.fixture(
    scope="module",
    params=[
        {"name": "time_indexed_ssm", "parts": ("attention", TINY_SSM)},
        {"name": "tong_neuralode", "integrator": "heun"},
        {"name": "standard", "flavour": "llama"},
    ],
    ids=lambda p: p["name"],
)
def tiny(request):
    """A model, its flow, x(0) of a text, and the whole derivative [T, E, T, E] of x(1)."""
    changes = dict(request.param)
    config = small_config(hidden_dim=8, num_layers=3, **_without(changes, "name"))
    model = random_model(changes["name"], config)
    with jax.enable_x64(False):
        ids = np.asarray(token_ids(config, batch=1, length=4).array[0])
        flow, x = flow_of(model), start(model, ids)
        jacobian = jax.jit(jax.jacfwd(lambda x: states(flow, x)[-1]))(x)
    return flow, x, np.asarray(jacobian, np.float64)


def _without(changes, name):
    return {key: value for key, value in changes.items() if key != name}


def test_exponents_of_a_sequence_are_the_logs_of_the_singular_values_of_its_jacobian(tiny):
    flow, x, jacobian = tiny
    with jax.enable_x64(False):
        found = sequence_exponents(flow, x, count=5, refine=80)
        rough = sequence_exponents(flow, x, count=5, refine=0)
    expected = np.log(np.linalg.svd(jacobian.reshape(32, 32), compute_uv=False)[:5])
    error = np.abs(np.asarray(found.values) - expected).max()
    assert error < 2e-4, f"{found.values} is off by {error}"
    assert found.change < 2e-4
    assert np.abs(np.asarray(rough.values) - expected).max() > 0.05, "refinement does nothing"
    assert found.growth.shape == (3, 5)
    assert np.allclose(found.growth.sum(axis=0), found.values, atol=1e-3)


def test_exponents_of_a_token_are_those_of_its_own_block(tiny, monkeypatch):
    """Four tokens are two batches of three, the second filled up."""
    monkeypatch.setattr("qkvflow.analysis.lyapunov.TOKENS", 3)
    flow, x, jacobian = tiny
    with jax.enable_x64(False):
        found = token_exponents(flow, x, count=2, refine=80)
    for i in range(4):
        expected = np.log(np.linalg.svd(jacobian[i, :, i], compute_uv=False)[:2])
        error = np.abs(found[i] - expected).max()
        assert error < 2e-4, f"token {i}: {found[i]} is off by {error}"
