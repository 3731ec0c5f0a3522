"""Modulation: the modulators make the weights, and what is told no time does not spread."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from qkvflow.analysis import modulators
from qkvflow.analysis.spectra import spread
from qkvflow.experiments.gates import save_gates
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import resolve
from tests.support import random_model, small_config

TIMES = layer_times(5)


def model_of(weights, **changes):
    return random_model("standard", small_config(weights=weights, **changes))


def weights_of(model, t):
    down = resolve(model.transformer.blocks, float(t)).parts["mlp"].part.down
    return np.asarray(down.weight.array, np.float64)


def curve_of(model):
    return model.transformer.blocks.parts["mlp"].part.down


def test_gates_scale_the_weights():
    model = model_of("gated")
    found = modulators(model, TIMES)["mlp.down"]
    base = np.asarray(curve_of(model).base.weight.array, np.float64)
    for gates, t in zip(found, TIMES):
        assert np.abs(base * gates[None] - weights_of(model, t)).max() < 1e-6
    assert found.shape == (5, 16)
    assert list(modulators(model, TIMES)) == ["attention.qkv", "attention.out", "mlp.up", "mlp.down"]


def test_scales_of_low_rank_make_the_weights():
    model = model_of("low_rank")
    curve = curve_of(model)
    base, down, up = (np.asarray(p.weight.array) for p in (curve.base, curve.down, curve.up))
    for s, t in zip(modulators(model, TIMES)["mlp.down"], TIMES):
        assert np.abs(base + (down * s) @ up - weights_of(model, t)).max() < 1e-5


def test_coefficients_of_generated_make_the_weights():
    model = model_of("generated")
    curve = curve_of(model)
    offset, basis = np.asarray(curve.offset.weight.array), np.asarray(curve.basis.weight.array)
    found = modulators(model, TIMES)
    for e, t in zip(found["mlp.down"], TIMES):
        assert np.abs(offset + np.tensordot(e, basis, 1) - weights_of(model, t)).max() < 1e-5
    assert "mlp.norm" in found, "norms are generated, too"


def test_gates_on_both_sides_have_a_name_each():
    found = modulators(model_of({"family": "gated", "gate": "both"}), TIMES)
    assert found["mlp.up (1)"].shape == (5, 16)
    assert found["mlp.up (2)"].shape == (5, 32)


def test_gates_that_an_experiment_keeps_are_those_of_the_layers(tmp_path):
    model = model_of("gated", num_layers=3)
    save_gates(model, tmp_path, "run")
    kept, same = load_file(tmp_path / "run.gates.safetensors"), modulators(model, layer_times(3))
    assert kept.keys() == same.keys()
    assert all(np.array_equal(kept[name], same[name]) for name in same)


def test_gates_that_are_told_one_time_are_constant():
    still = modulators(model_of("gated", layer_time="half"), TIMES)
    moving = modulators(model_of("gated"), TIMES)
    assert max(map(spread, still.values())) < 1e-7
    assert min(map(spread, moving.values())) > 1e-3


def test_spread_of_known_numbers():
    assert spread(np.array([[3.0, 4.0], [3.0, 4.0]])) == 0.0
    assert spread(np.zeros((3, 2))) == 0.0
    assert spread(np.array([[1.0], [3.0]])) == pytest.approx(1 / np.sqrt(5))


@pytest.mark.parametrize("weights", ["per_layer", "shared"])
def test_weights_without_modulators_are_a_sentence(weights):
    with pytest.raises(ValueError, match=f"weights of this model are {weights}: no gate"):
        modulators(model_of(weights), TIMES)
