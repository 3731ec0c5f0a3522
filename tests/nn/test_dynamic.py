"""Fields and integrators: definitions, closed forms, observed order of convergence."""

from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn import INTEGRATORS, Block, LayerPlan, Shared, integrate
from qkvflow.nn.linear import Linear
from qkvflow.nn.weights import resolve
from tests.support import FIXED_STEP, WEIGHTS, difference, randomised, small_config

X = ("batch", "position", "embed")


def random_x(config, length=5):
    return hax.named(jax.random.normal(jax.random.key(9), (2, length, config.hidden_dim)), X)


def plan(name, depth, t=None):
    return INTEGRATORS.read(name).plan(depth, t)


def block_of_curves(weights, **changes):
    config = small_config(weights=weights, **changes)
    make = lambda key: Block.init(config, key=key)  # noqa: E731
    return config, randomised(config.weights.layer(make, config, key=jax.random.key(0)), scale=0.1)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_a_field_is_the_sum_of_what_its_parts_add(order):
    config, curves = block_of_curves(
        "gated", parts=("attention", "ssm", "mlp"), order=order, integrator="euler"
    )
    x = random_x(config)

    @jax.jit
    def by_hand(block):
        seen, total = x, 0.0
        for name in ("attention", "ssm", "mlp"):
            sub = block.parts[name]
            change, _ = sub.part(sub.norm(seen))
            total = total + change
            if order == "sequential":
                seen = seen + change
        return total.array, block(x)[0].array

    assert difference(*by_hand(resolve(curves, 0.5))) < 1e-5


def test_a_residual_step_adds_the_field_and_an_euler_step_a_share_of_it():
    config, curves = block_of_curves(
        "gated", num_layers=3, parts=("attention", "mlp"), order="parallel", integrator="euler"
    )
    x = random_x(config)
    for name, step in (("residual", 1.0), ("euler", 1 / 3)):
        expected = x
        for t in (1 / 3, 2 / 3, 1.0):
            expected = expected + step * resolve(curves, np.float32(t))(expected)[0]
        got, _ = integrate(curves, x, plan(name, 3))
        assert difference(got.array, expected.array) < 1e-5, name


class Decay(Block):
    """dx/dt = -x t', with the weight as t': a field whose solution is known."""

    def __call__(self, x, context=None):
        return x * self.parts["rate"].weight.array, None


@pytest.mark.parametrize(("name", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
def test_a_linear_field_is_followed_as_the_method_s_stability_function_says(name, order):
    rate = Linear(hax.named(jnp.array(-0.7), ()), None, (), ())
    curves = Decay({"rate": Shared(rate)}, None, None, None, {}, ("rate",), True)
    x = hax.named(jnp.ones((1, 1, 1)), X)
    steps = 5
    z = -0.7 / steps
    growth = sum(z**k / np.prod(np.arange(1.0, k + 1)) for k in range(order + 1))
    got, _ = integrate(curves, x, plan(name, steps))
    assert abs(float(got.array[0, 0, 0]) - growth**steps) < 1e-6


FINE = 256


def padded(found):
    """The visits of a plan, then some with steps of size zero: one program for all depths."""
    rest = FINE - found.visits
    return np.pad(found.times, ((0, rest), (0, 0)), mode="edge"), np.pad(found.sizes, (0, rest))


@pytest.mark.parametrize("parts", [("attention", "mlp"), ("attention", "ssm")])
def test_observed_order_of_convergence_on_a_real_block(parts):
    config, curves = block_of_curves(
        "generated",
        parts=parts,
        order="sequential",
        integrator="euler",
        time_embedding="learned_fourier",
    )
    x = random_x(config)

    @partial(jax.jit, static_argnums=0)
    def solved(tableau, times, sizes):
        return integrate(curves, x, LayerPlan(tableau, times, sizes, sizes))[0].array

    def solve(name, depth):
        found = plan(name, depth)
        return np.asarray(solved(found.tableau, *padded(found)))

    exact = solve("rk4", FINE)
    # Depths at which the error is above float32 rounding, which is all that is left of it later.
    for name, order, depths in (
        ("euler", 1, (32, 64, 128)),
        ("heun", 2, (8, 16, 32)),
        ("rk4", 4, (8, 16, 32)),
    ):
        errors = np.array([np.max(np.abs(solve(name, n) - exact)) for n in depths])
        observed = np.log(errors[0] / errors[-1]) / np.log(depths[-1] / depths[0])
        assert abs(observed - order) < 0.35, f"{name}: errors {errors}, order {observed}"


@pytest.mark.parametrize("name", FIXED_STEP)
def test_steps_of_the_default_grid_and_of_the_same_grid_given(name):
    for depth in (1, 3, 7, 93):
        default = plan(name, depth)
        ends = np.arange(1, depth + 1) / depth
        assert np.array_equal(default.times[:, -1], ends.astype(np.float32))
        expected = 1.0 if name == "residual" else 1 / depth
        assert np.allclose(default.sizes, expected, rtol=1e-6)
        for given in (ends, jnp.asarray(ends)):
            other = plan(name, 2, given)
            assert np.allclose(other.times, default.times, atol=1e-6)
            total = 2 if name == "residual" else 1
            assert np.allclose(other.sizes, total / depth, rtol=1e-4), "the sum is the model's own"


def test_frozen_time_is_the_same_time_in_every_layer_and_stage():
    steps = plan("rk4", 3, 0.25)
    assert np.array_equal(steps.times, np.full((3, 4), 0.25, np.float32))
    assert np.allclose(steps.sizes, 1 / 3)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_rematerialisation_and_writing_out_change_no_gradient(weights):
    config, curves = block_of_curves(
        weights, parts=("attention", "mlp"), order="sequential", integrator="euler"
    )
    x = random_x(config)

    def loss(curves, remat):
        y, _ = integrate(curves, x, plan("euler", 2), remat=remat)
        return jnp.sum(jnp.sin(y.array))

    grad = jax.jit(jax.grad(loss, allow_int=True), static_argnums=1)
    arrays = lambda tree: [a for a in jax.tree.leaves(tree) if a.dtype == jnp.float32]  # noqa: E731
    kept = arrays(grad(curves, "none"))
    for remat in ("auto", "dots", "full"):
        error = difference(arrays(grad(curves, remat)), kept)
        assert error < 2e-5, f"{remat}: {error}"
