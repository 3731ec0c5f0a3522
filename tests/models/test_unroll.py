"""Unrolling: the per-layer model on a grid is the model on that grid, at random parameters."""

import equinox as eqx
import jax
import numpy as np
import pytest

from qkvflow.models import FlowLM, unroll
from qkvflow.nn.families import PerLayer
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import is_weight, resolve
from tests.support import FIXED_STEP, WEIGHTS, difference, random_model, small_config, token_ids


def model_and_ids(**changes):
    config = small_config(**changes)
    return random_model("standard", config), token_ids(config, batch=1, length=3)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_unrolled_model_has_the_weights_of_every_layer_at_every_depth(weights):
    """The weights that the loop over depth sees, layer by layer, against the table's."""
    model, _ = model_and_ids(weights=weights, parts=("mlp",), hidden_dim=8)
    at_one_time = jax.jit(lambda t: resolve(model.transformer.blocks, t).parts["mlp"].part)
    for depth in (*range(1, 9), 12, 33, 64):
        unrolled = unroll(model, depth)
        assert unrolled.config.num_layers == depth
        table = unrolled.transformer.blocks.parts["mlp"].part
        for name in ("up", "down"):
            entries = np.asarray(getattr(table, name).table.weight.array)
            layers = [getattr(at_one_time(t), name).weight.array for t in layer_times(depth)]
            error = np.max(np.abs(entries - np.stack(layers)))
            assert error < 1e-5, f"depth {depth}: {error}"


@pytest.mark.parametrize("integrator", FIXED_STEP)
@pytest.mark.parametrize("depth", [1, 12, 48])
def test_an_unrolled_model_has_the_shapes_that_its_config_builds(integrator, depth):
    model, _ = model_and_ids(weights="gated", parts=("mlp",), integrator=integrator)
    unrolled = unroll(model, depth)
    entries = {"residual": depth, "euler": depth, "heun": depth + 1, "rk4": 2 * depth + 1}[integrator]
    table = unrolled.transformer.blocks.parts["mlp"].norm.table.weight
    assert table.axes[0].size == entries
    built = eqx.filter_eval_shape(FlowLM.init, unrolled.config, key=jax.random.key(0))
    shapes = [leaf.shape for leaf in jax.tree.leaves(built) if hasattr(leaf, "shape")]
    assert shapes == [leaf.shape for leaf in jax.tree.leaves(unrolled)]


@pytest.mark.parametrize("parts", [("attention", "mlp"), ("attention", "ssm")])
def test_gates_of_the_loop_over_depth_are_those_of_the_table(parts):
    model, ids = model_and_ids(weights={"family": "gated", "gate": "both"}, parts=parts)
    error = difference(model(ids), unroll(model, model.config.num_layers)(ids))
    assert error < 1e-5, error


@pytest.mark.parametrize("depth", [1, 2, 7, 64])
def test_an_unrolled_model_is_the_same_function_on_its_own_grid_and_on_any_other(depth):
    for weights in WEIGHTS:  # in one test: the unrolled models are one program
        small = {"weights": weights, "hidden_dim": 8, "num_heads": 2, "num_kv_heads": 1}
        model, ids = model_and_ids(num_layers=depth, **small)
        other, _ = model_and_ids(num_layers=6, **small)
        pairs = {
            "own": (unroll(model, depth)(ids).array, model(ids).array),
            "grid": (unroll(other, depth)(ids).array, other(ids, t=layer_times(depth)).array),
        }
        for kind, (got, expected) in pairs.items():
            error = difference(got, expected) / max(1.0, float(np.abs(expected).max()))
            assert error < 1e-5, f"{weights}, {kind}: {error}"


@pytest.mark.parametrize("integrator", FIXED_STEP)
def test_every_integrator_unrolls_to_any_depth(integrator):
    """Every family with every integrator, and each of both at every depth."""
    for number, weights in enumerate(WEIGHTS, FIXED_STEP.index(integrator)):
        depth = (1, 3, 7)[number % 3]
        model, ids = model_and_ids(
            weights=weights, num_layers=4, integrator=integrator, parts=("attention", "ssm")
        )
        on_grid = model(ids, t=layer_times(depth)).array
        error = difference(unroll(model, depth)(ids).array, on_grid)
        assert error < 2e-4 * max(1.0, float(np.abs(on_grid).max())), f"{weights}, {depth}: {error}"


def test_an_unrolled_model_is_an_ordinary_one():
    model, _ = model_and_ids(weights="gated")
    unrolled = unroll(model, 5)
    curves = jax.tree.leaves(unrolled.transformer.blocks, is_leaf=is_weight)
    assert all(isinstance(curve, PerLayer) for curve in curves)
    assert unrolled.config.weights.name == "per_layer"
    assert unrolled.config.num_layers == 5
    assert unroll(unrolled, 5).transformer.blocks.parts.keys() == {"attention", "mlp"}


@pytest.mark.parametrize("depth", [0, -1, 2.5, "3"])
def test_a_depth_that_is_none(depth):
    model, _ = model_and_ids(weights="gated")
    with pytest.raises(ValueError, match="expected a whole number of layers"):
        unroll(model, depth)


def test_the_adaptive_integrator_has_no_grid():
    model, _ = model_and_ids(weights="gated", integrator="adaptive")
    with pytest.raises(ValueError, match="fixed-step"):
        unroll(model, 3)
