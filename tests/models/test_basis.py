"""Any model in a basis over depth: exact with all matrices, the best there is with fewer."""

import numpy as np
import pytest

import qkvflow
from qkvflow.config import ConfigError
from qkvflow.models import depth_spectra, into_basis, unroll
from qkvflow.models.basis import _inverse_silu
from qkvflow.models.paths import nodes_of
from qkvflow.nn import Generated, PerLayer
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.time_embed import layer_times
from tests.support import WEIGHTS, difference, random_model, small_config, token_ids

LAYERS = 5


def model_of(weights="per_layer", name="standard", **changes):
    return random_model(name, small_config(num_layers=LAYERS, weights=weights, **changes))


def flat(part):
    """Weights and biases of all layers, a row a layer."""
    leaves = [part.weight.array, *([] if part.bias is None else [part.bias.array])]
    rows = [np.asarray(leaf, np.float64).reshape(LAYERS, -1) for leaf in leaves]
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_with_as_many_matrices_as_layers_the_model_is_the_same(weights):
    model = model_of(weights)
    ids = token_ids(model.config)
    expected = model(ids).array
    for count in (LAYERS, LAYERS + 2):
        found = into_basis(model, count)
        assert found.config.weights.name == "generated"
        error = difference(found(ids).array, expected) / max(1.0, float(np.abs(expected).max()))
        assert error < 2e-5, f"{count} matrices: {error}"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("changes", [{}, {"flavour": "llama"}, {"parts": ("attention", "ssm")}])
def test_the_error_is_the_tail_of_the_singular_values_and_no_other_basis_is_nearer(count, changes):
    model = model_of(**changes)
    found = dict(nodes_of(into_basis(model, count), Generated))
    spectra = depth_spectra(model)
    for path, table in nodes_of(model, PerLayer):
        rows, near = flat(table.table), flat(found[path].at(layer_times(LAYERS)))
        name = map_name(path.removeprefix("transformer.blocks."))
        tail = np.sqrt(np.sum(spectra[name][count:] ** 2))
        size = max(np.linalg.norm(rows), 1.0)
        error = np.linalg.norm(rows - near)
        assert abs(error - tail) < 1e-5 * size, f"{name}: {error} against {tail}"
        random = np.random.default_rng(0).normal(size=(count, rows.shape[1]))
        others, *_ = np.linalg.lstsq(random.T, rows.T)
        assert np.linalg.norm(rows - others.T @ random) > tail - 1e-9


def test_the_spectra_are_those_of_the_explicit_matrices():
    model = model_of()
    table = model.transformer.blocks.parts["mlp"].part.up
    expected = np.linalg.svd(flat(table.table), compute_uv=False)
    assert difference(depth_spectra(model)["mlp.up"], expected) < 1e-9


def test_a_model_in_a_basis_is_saved_loaded_and_constant_between_layers(tmp_path):
    model = into_basis(model_of(), 3)
    model.save(tmp_path / "model")
    back = qkvflow.load(tmp_path / "model")
    ids = token_ids(model.config)
    assert difference(back(ids).array, model(ids).array) == 0.0
    deeper = unroll(back, 2 * LAYERS).transformer.blocks.parts["mlp"].part.up.table.weight.array
    assert difference(deeper[::2], deeper[1::2]) == 0.0


def test_silu_is_inverted():
    y = np.linspace(1.0, 3.0, 101)
    x = _inverse_silu(y)
    assert np.max(np.abs(x / (1 + np.exp(-x)) - y)) < 1e-14


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_number_of_matrices_that_is_none(count):
    with pytest.raises(ConfigError, match="expected at least 1"):
        into_basis(model_of(), count)


def test_weights_between_layers_have_no_place_in_the_basis():
    with pytest.raises(ConfigError, match="one row a layer"):
        into_basis(model_of(integrator="heun"), 2)
    with pytest.raises(ConfigError, match="fixed-step"):
        into_basis(model_of(integrator="adaptive"), 2)
