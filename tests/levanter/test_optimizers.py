"""Levanter's optimizers on our table: what decays, and which matrices Muon has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray
from haliax.nn import Linear, Stacked
from levanter.optim import AdamConfig, MuonConfig

from qkvflow.config import ConfigError
from qkvflow.levanter.optimizers import DECAYED, KEPT, ByTable, view_of, with_view
from qkvflow.models.paths import arrays_of
from qkvflow.train.muon import is_hidden_matrix
from tests.levanter.test_model import behind_levanter
from tests.support import difference

NAMES = ("tong_neuralode", "time_indexed_ssm", "looped")
SCHEDULE = {"learning_rate": 0.1, "warmup": 0, "lr_schedule": "constant"}


def one_step(chosen, model, gradient):
    """What an optimizer adds to the arrays of a model, by path, where all gradients are alike."""
    optimizer = ByTable(inner=chosen).build(10)
    gradients = jax.tree.map(lambda x: jnp.full_like(x, gradient), model)
    updates, _ = optimizer.update(gradients, optimizer.init(model), model)
    return arrays_of(updates.model)


@pytest.mark.parametrize("name", NAMES)
def test_a_view_has_every_array_once_and_gives_it_back(name):
    model = behind_levanter(name, "modern")
    view, table = view_of(model), model.model.parameters()
    matrices = [found for found in table.values() if is_hidden_matrix(found)]
    seen = [node for side in view.values() for node in side.values()]
    assert sum(isinstance(node, Linear | Stacked) for node in seen) == sum(
        len(found.pieces) or 1 for found in matrices
    )
    kept = {path for path, found in table.items() if not found.decays and not is_hidden_matrix(found)}
    assert kept <= view[KEPT].keys()
    assert not kept & view[DECAYED].keys()
    again = with_view(jax.tree.map(jnp.zeros_like, model), view)
    assert difference(arrays_of(again.model), arrays_of(model.model)) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_decay_acts_where_our_table_says(name):
    model = behind_levanter(name, "modern")
    steps = one_step(AdamConfig(weight_decay=0.5, **SCHEDULE), model, 0.0)
    for path, found in model.model.parameters().items():
        expected = -0.1 * 0.5 * arrays_of(model.model)[path] if found.decays else 0.0
        np.testing.assert_allclose(steps[path], expected, atol=1e-7, err_msg=path)


def test_steps_of_muon_are_orthogonal_for_our_matrices_and_not_for_others():
    """Singular values are all about the learning rate; of other arrays, Adam's first step is it."""
    model = behind_levanter("time_indexed_ssm", "modern")
    noise = jax.tree.map(lambda x: jax.random.normal(jax.random.key(x.size), x.shape), model)
    optimizer = ByTable(inner=MuonConfig(adam_lr=0.1, max_grad_norm=0.0, **SCHEDULE)).build(10)
    updates, _ = optimizer.update(noise, optimizer.init(model), model)
    view = view_of(updates)
    for path, node in (view[DECAYED] | view[KEPT]).items():
        if isinstance(node, NamedArray):
            assert np.abs(np.abs(node.array) - 0.1).max() < 1e-4, path  # of Adam's first step
            continue
        weight = node.stacked.weight if isinstance(node, Stacked) else node.weight
        outputs = int(np.prod([axis.size for axis in _axes(node, "Out")]))
        inputs = int(np.prod([axis.size for axis in _axes(node, "In")]))
        for matrix in np.asarray(weight.array).reshape(-1, outputs, inputs):
            singular = np.linalg.svd(matrix / np.sqrt(max(1, outputs / inputs)), compute_uv=False)
            assert singular.max() < 0.13, path
            assert np.median(singular) > 0.06, path


def _axes(node, side):
    return getattr(node.stacked if isinstance(node, Stacked) else node, side)


def test_what_decays_is_not_the_config_s_to_say():
    with pytest.raises(ConfigError, match="optimizer.weight_decay_modules is set"):
        ByTable(inner=AdamConfig(weight_decay_modules=["weight"]))
