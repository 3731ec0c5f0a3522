"""The adaptive integrator: agrees within its tolerance, and leaks no more than that."""

import dataclasses

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import pytest

from qkvflow.models import forward_flops
from qkvflow.models.language_model import final_state
from tests.support import difference, random_model, small_config, token_ids

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def smooth_model(**changes):
    """Slowly varying weights: the sinusoidal embedding oscillates too fast for a tight tolerance."""
    config = small_config(time_embedding="learned_fourier", **changes)
    return random_model("tong_neuralode", config)


def with_integrator(model, integrator, settings=TOLERANCE, **changes):
    if integrator == "adaptive":
        integrator = {"method": integrator, **settings}
    config = dataclasses.replace(model.config, integrator=integrator, **changes)
    return dataclasses.replace(model, config=config)


def test_adaptive_agrees_with_a_fine_grid_within_its_tolerance():
    model = smooth_model()
    ids = token_ids(model.config).array
    run = eqx.filter_jit(final_state)
    fine = run(with_integrator(model, "rk4", num_layers=256), ids, None, None).array
    adaptive = run(with_integrator(model, "adaptive"), ids, None, None).array
    # The solver bounds the root mean square error of each step by atol + rtol |x|.
    allowed = 10 * 1e-4 * (1 + float(jnp.abs(fine).max()))
    assert 0 < difference(adaptive, fine) < allowed, difference(adaptive, fine)


def test_the_leak_from_the_future_is_below_the_tolerance():
    model = with_integrator(smooth_model(), "adaptive")
    ids = token_ids(model.config, batch=1, length=12).array
    run = jax.jit(lambda ids: final_state(model, ids, None, None).array[:, :-1])
    states = [run(ids.at[0, -1].set(last)) for last in range(model.config.vocab_size)]
    leak = max(difference(states[0], other) for other in states)
    allowed = 10 * 1e-4 * (1 + float(jnp.abs(states[0]).max()))
    assert leak < allowed, leak
    assert leak > 0, "if this is zero, the docstring promises too little"


def test_rows_of_a_batch_do_not_see_each_other():
    model = with_integrator(smooth_model(), "adaptive")
    ids = token_ids(model.config, batch=3)
    other = hax.named(ids.array.at[1:].set(0), ids.axes)
    assert difference(model(ids).array[0], model(other).array[0]) == 0.0


def test_gradients_agree_with_a_fine_grid():
    model = smooth_model()
    ids = token_ids(model.config, batch=1, length=5)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: m.compute_loss(ids, ids)))
    gradients = [
        gradient(with_integrator(model, name, num_layers=depth))
        for name, depth in (("adaptive", 2), ("rk4", 64))
    ]
    assert difference(*gradients) < 5e-3


def test_time_can_be_frozen():
    model = smooth_model()
    ids = token_ids(model.config, batch=1)
    frozen = with_integrator(model, "adaptive")(ids, t=0.5)
    fine = with_integrator(model, "rk4", num_layers=64)(ids, t=0.5)
    assert difference(frozen.array, fine.array) < 5e-3
    assert difference(frozen.array, with_integrator(model, "adaptive")(ids).array) > 1e-3


def test_too_many_steps_is_an_error_that_says_what_to_do():
    model = with_integrator(smooth_model(), "adaptive", {**TOLERANCE, "max_steps": 2})
    with pytest.raises(Exception, match=r"raise its max_steps, loosen its rtol"):
        jax.block_until_ready(model(token_ids(model.config)).array)


def test_rows_have_dropout_of_their_own():
    model = with_integrator(smooth_model(resid_pdrop=0.3), "adaptive")
    ids = token_ids(model.config, batch=1)
    twice = hax.named(jnp.concatenate([ids.array, ids.array]), ids.axis_names)
    logits = model(twice, key=jax.random.key(0)).array
    assert difference(logits[0], logits[1]) > 1e-3


def test_bfloat16_is_used_inside_the_field():
    loose = {"rtol": 1e-2, "atol": 1e-2}
    model = with_integrator(smooth_model(), "adaptive", loose)
    ids = token_ids(model.config, batch=1)
    low = with_integrator(model, "adaptive", loose, compute_dtype="bfloat16")
    exact, rounded = model(ids).array, low(ids).array
    assert 1e-4 < difference(exact, rounded) < 0.1 * float(jnp.abs(exact).max())


def test_what_needs_a_grid_is_refused_in_a_sentence():
    model = with_integrator(smooth_model(), "adaptive")
    with pytest.raises(ValueError, match="fixed-step"):
        forward_flops(model, 1, 8)
