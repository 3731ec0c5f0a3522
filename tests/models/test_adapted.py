"""Models with adapters: the same logits at the start, merged after it, at every depth."""

import equinox as eqx
import jax
import numpy as np
import pytest

import qkvflow
from qkvflow.generate import generate
from qkvflow.models import adapt, adapter_paths, count_parameters, forward_flops, merge, unroll
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.nn.time_embed import layer_times
from tests.models.test_counting import BATCH, LENGTH, flops_of, forward, shapes_of
from tests.support import (
    FIXED_STEP,
    RELAXED,
    WEIGHTS,
    difference,
    random_model,
    randomised,
    small_config,
    token_ids,
)

METHODS = ("lora", "depth_lora")
MAPS = ("*.*", "lm_head")


def made(weights, method, *, random=True, maps=MAPS, **changes):
    config = small_config(weights=weights, num_layers=3, **changes)
    base = random_model("standard", config)
    model = adapt(base, method, rank=2, alpha=2.0, maps=maps, key=jax.random.key(1))
    return base, randomised(model, seed=3, scale=0.2) if random else model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_first_output_is_that_of_the_base_exactly(weights, method):
    base, model = made(weights, method, random=False)
    ids = token_ids(base.config)
    assert difference(model(ids).array, base(ids).array) == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_merged_is_applied(weights, method):
    _, model = made(weights, method)
    merged, ids = merge(model), token_ids(model.config)
    assert merged.config.adapter is None
    assert adapter_paths(merged) == ()
    got, expected = merged(ids).array, model(ids).array
    error = difference(got, expected) / max(1.0, float(np.abs(expected).max()))
    assert error < 1e-5, error


@pytest.mark.parametrize("integrator", FIXED_STEP[1:])
def test_merged_is_applied_with_every_integrator(integrator):
    for weights, method in zip(("per_layer", "generated", "gated"), (*METHODS, "lora")):
        _, model = made(weights, method, integrator=integrator, parts=("mlp", "ssm"))
        ids = token_ids(model.config)
        got, expected = merge(model)(ids).array, model(ids).array
        error = difference(got, expected) / max(1.0, float(np.abs(expected).max()))
        assert error < 2e-5, f"{weights}, {method}: {error}"


def test_adapters_do_something():
    base, fresh = made("gated", "lora", random=False)
    shaken = arrays_of(randomised(fresh, seed=3))
    arrays = arrays_of(fresh) | {path: shaken[path] for path in adapter_paths(fresh)}
    ids = token_ids(base.config)
    model = with_arrays(fresh, arrays)
    assert difference(model(ids).array, base(ids).array) > 1e-2


@pytest.mark.parametrize(
    ("weights", "depth"),
    [("generated", 1), ("generated", 3), ("gated", 7), ("per_layer", 2), ("looped", 5), (RELAXED, 6)],
)
def test_depth_lora_is_a_curve_that_can_be_sampled_at_any_depth(weights, depth):
    _, model = made(weights, "depth_lora")
    ids = token_ids(model.config)
    expected = model(ids, t=layer_times(depth)).array
    error = difference(unroll(model, depth)(ids).array, expected)
    assert error < 1e-5 * max(1.0, float(np.abs(expected).max())), error


@pytest.mark.parametrize("method", METHODS)
def test_an_adapted_model_is_saved_loaded_and_generates(tmp_path, method):
    _, model = made("gated", method)
    model.save(tmp_path / "model")
    back = qkvflow.load(tmp_path / "model")
    assert type(back) is type(model)
    assert back.config == model.config
    assert difference(arrays_of(back), arrays_of(model)) == 0.0
    prompt = token_ids(model.config, length=4)
    ours = generate(back, prompt, 5, temperature=0.0).array
    assert difference(ours, generate(merge(model), prompt, 5, temperature=0.0).array) == 0


def test_groups_decay_and_counts_of_adapters():
    base, model = made("per_layer", "lora")
    paths, table = adapter_paths(model), model.parameters()
    assert {table[path].group for path in paths} == {"base", "head"}
    assert all(table[path].decays for path in paths)
    added = sum(arrays_of(model)[path].size for path in paths)
    assert count_parameters(model).total == count_parameters(base).total + added
    _, curve = made("per_layer", "depth_lora", maps=("mlp.*",))
    networks = [path for path in adapter_paths(curve) if ".network." in path]
    assert networks
    assert not any(curve.parameters()[path].decays for path in networks)


@pytest.mark.parametrize("method", METHODS)
def test_operations_of_adapted_models_agree_with_xla(method):
    changes = {"adapter": {"method": method, "maps": ("*.*", "lm_head")}, "num_layers": 1}
    model = shapes_of("standard", **changes)
    share = forward_flops(model, BATCH, LENGTH) / flops_of(forward, model)
    assert 0.9 < share < 1.1, share
    plain = shapes_of("standard", num_layers=1)
    assert forward_flops(model, BATCH, LENGTH) > forward_flops(plain, BATCH, LENGTH)


def test_a_model_without_adapters_is_the_same_program_as_ever():
    """No curve and no output projection goes another way: the head is used as it is."""
    model = random_model("standard", small_config())
    assert model.output_map().weight.array is model.lm_head.weight.array
    assert jax.tree.structure(eqx.filter(model.output_map(), eqx.is_array)) == jax.tree.structure(
        eqx.filter(model.lm_head, eqx.is_array)
    )
