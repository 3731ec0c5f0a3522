"""Sensitivity: against explicit Jacobians, exactly zero for later tokens, honest about its error."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis import flow_of, sensitivity_rows, start, states
from qkvflow.models import MODELS
from tests.support import random_model, small_config, token_ids

LENGTH = 7


def flow_and_x(name, **changes):
    config = small_config(**changes)
    model = random_model(name, config)
    ids = np.asarray(token_ids(config, batch=1, length=LENGTH).array[0])
    return flow_of(model), start(model, ids)


@pytest.fixture(scope="module")
def known():
    """A flow, x(0), and the sensitivity of every row from the explicit Jacobian."""
    flow, x = flow_and_x("time_indexed_mlp")
    jacobian = jax.jit(jax.jacrev(lambda x: states(flow, x)[-1]))(x)
    norms = np.linalg.norm(np.asarray(jacobian, np.float64), axis=(1, 3))
    return flow, x, norms / np.sqrt(x.shape[1])


def test_rows_are_those_of_the_explicit_jacobian(known):
    flow, x, expected = known
    found = sensitivity_rows(flow, x, range(LENGTH))
    error = np.abs(found.values - expected).max() / expected.max()
    assert error < 1e-5, f"{error}"
    assert not found.errors.any()
    several = []
    sensitivity_rows(flow, x, [2, 5], advance=several.append)
    assert several == [1, 1]


@pytest.mark.parametrize("name", MODELS)
def test_no_position_depends_on_a_later_token(name):
    flow, x = flow_and_x(name)
    found = sensitivity_rows(flow, x, range(LENGTH)).values
    later = np.triu(found, 1)
    assert np.all(later == 0.0), f"{later.max()}"
    assert np.all(found[np.tril_indices(LENGTH)] > 0.0)
    some = sensitivity_rows(flow, x, [3], probes=4).values[0]
    assert np.all(some[4:] == 0.0)


def test_layers_that_add_nothing_give_the_identity():
    flow, x = flow_and_x("standard")
    still = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_array(leaf) else leaf, flow)
    found = sensitivity_rows(still, x, range(LENGTH)).values
    assert np.array_equal(found, np.eye(LENGTH))


def test_an_estimate_is_unbiased_and_tells_its_error(known):
    flow, x, expected = known
    rows = [sensitivity_rows(flow, x, [5], probes=4, seed=seed) for seed in range(40)]
    squares = np.stack([row.values[0, :6] ** 2 for row in rows])
    away = squares.mean(axis=0) - expected[5, :6] ** 2
    error = squares.std(axis=0, ddof=1) / np.sqrt(len(rows))
    assert np.all(np.abs(away) < 4 * error), f"{away} with standard errors {error}"
    spread = np.std([row.values[0, :6] for row in rows], axis=0, ddof=1)
    told = np.mean([row.errors[0, :6] for row in rows], axis=0)
    assert np.all((told > spread / 2) & (told < 2 * spread)), f"told {told}, seen {spread}"


def test_too_few_directions_are_a_sentence(known):
    flow, x, _ = known
    with pytest.raises(ValueError, match="expected at least 2"):
        sensitivity_rows(flow, x, [0], probes=1)
