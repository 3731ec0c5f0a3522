"""Unrolling: the per-layer model on a grid is the model on that grid, at random parameters."""

import jax
import numpy as np
import pytest

from qkvflow.models import FlowLM, unroll
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import PerLayer, is_weight
from tests.support import FIXED_STEP, WEIGHTS, difference, randomised, small_config, token_ids


def random_model(**changes):
    fields = {"parts": ("attention", "mlp"), "order": "sequential", "integrator": "residual"}
    config = small_config(**{**fields, **changes})
    model = randomised(FlowLM.init(config, key=jax.random.key(0)), scale=0.1)
    return model, token_ids(config, batch=1, length=3)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("depth", range(1, 65))
def test_unrolling_at_the_model_s_own_depth_is_the_same_function(weights, depth):
    model, ids = random_model(
        weights=weights, num_layers=depth, hidden_dim=8, num_heads=2, num_kv_heads=1
    )
    unrolled = unroll(model, depth)
    expected = model(ids).array
    error = difference(unrolled(ids).array, expected)
    assert error < 1e-5 * max(1.0, float(np.abs(expected).max())), error


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("integrator", FIXED_STEP)
@pytest.mark.parametrize("depth", [1, 3, 7])
def test_every_integrator_unrolls_to_any_depth(weights, integrator, depth):
    model, ids = random_model(
        weights=weights, num_layers=4, integrator=integrator, parts=("attention", "ssm")
    )
    unrolled = unroll(model, depth)
    on_grid = model(ids, t=layer_times(depth)).array
    assert difference(unrolled(ids).array, on_grid) < 2e-4 * max(1.0, float(np.abs(on_grid).max()))


def test_an_unrolled_model_is_an_ordinary_one():
    model, _ = random_model(weights="gated")
    unrolled = unroll(model, 5)
    curves = jax.tree.leaves(unrolled.transformer.blocks, is_leaf=is_weight)
    assert all(isinstance(curve, PerLayer) for curve in curves)
    assert unrolled.config.weights == "per_layer"
    assert unrolled.config.num_layers == 5
    assert unroll(unrolled, 5).transformer.blocks.parts.keys() == {"attention", "mlp"}


@pytest.mark.parametrize("depth", [0, -1, 2.5, "3"])
def test_a_depth_that_is_none(depth):
    model, _ = random_model(weights="gated")
    with pytest.raises(ValueError, match="expected a whole number of layers"):
        unroll(model, depth)


def test_the_adaptive_integrator_has_no_grid():
    model, _ = random_model(weights="gated", integrator="adaptive")
    with pytest.raises(ValueError, match="fixed-step"):
        unroll(model, 3)
