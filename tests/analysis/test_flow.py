"""The flow is the forward pass; sensitivity is that of explicit Jacobians; paths and lens are known."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis import depths, flow_of, lens, path, sensitivity_rows, start, states
from qkvflow.analysis.flow import in_float32
from qkvflow.analysis.trajectory import settled
from qkvflow.models import MODELS
from qkvflow.models.language_model import final_state
from qkvflow.nn.time_embed import layer_times
from tests.support import FIXED_STEP, FLAVOURS, WEIGHTS, random_model, small_config, token_ids

GRID = layer_times(3)


def ids_of(config, length=5):
    return np.asarray(token_ids(config, batch=1, length=length).array[0])


def difference_at_the_end(model, t=None):
    """Of the flow's last state to the forward pass's, relative to the largest entry."""
    ids = ids_of(model.config)
    found = np.asarray(states(flow_of(model, t), start(model, ids)))
    end = jax.jit(lambda ids: final_state(model, ids, t, None).array)(ids[None])
    return np.abs(found[-1] - np.asarray(end[0])).max() / np.abs(end).max()


@pytest.mark.parametrize("integrator", FIXED_STEP)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_last_state_is_that_of_the_forward_pass(weights, integrator):
    model = random_model("standard", small_config(weights=weights, integrator=integrator))
    error = difference_at_the_end(model)
    assert error < 1e-5, f"{error}"


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_every_named_model(name, flavour):
    error = difference_at_the_end(random_model(name, small_config(flavour=flavour)))
    assert error < 1e-5, f"{error}"


@pytest.mark.parametrize("t", [0.5, GRID], ids=["frozen", "grid"])
@pytest.mark.parametrize("integrator", ["residual", "heun"])
def test_times_are_those_of_the_forward_pass(integrator, t):
    model = random_model("time_indexed_mlp", small_config(integrator=integrator))
    error = difference_at_the_end(model, t)
    assert error < 1e-5, f"{error}"
    assert difference_at_the_end(model) < 1e-5
    own = states(flow_of(model), start(model, ids_of(model.config)))
    other = states(flow_of(model, t), start(model, ids_of(model.config)))
    assert not np.allclose(own[-1], other[-1], rtol=1e-3), "the times do not matter"


def test_states_begin_with_the_embedding_and_lie_at_the_ends_of_layers():
    model = random_model("standard", small_config(num_layers=4))
    ids = ids_of(model.config)
    found = states(flow_of(model), start(model, ids))
    assert found.shape == (5, 5, 16)
    assert np.array_equal(found[0], model.embed(ids[None]).array[0])
    assert depths(model).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert np.allclose(depths(model, GRID), [0.0, 1 / 3, 2 / 3, 1.0])
    assert len(depths(model, 0.5)) == 5


def test_a_model_in_bfloat16_is_looked_at_in_float32():
    model = random_model("shared", small_config(compute_dtype="bfloat16"))
    found = states(flow_of(in_float32(model)), start(in_float32(model), ids_of(model.config)))
    assert found.dtype == np.float32


def test_what_cannot_be_followed_is_a_sentence():
    adaptive = random_model("standard", small_config(weights="gated", integrator="adaptive"))
    with pytest.raises(ValueError, match="followed layer by layer"):
        flow_of(adaptive)
    model = random_model("standard", small_config())
    with pytest.raises(ValueError, match="this model takes 1 to 128"):
        start(model, np.zeros(129, np.int32))
    with pytest.raises(ValueError, match="Is this the tokenizer"):
        start(model, np.array([13]))


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
    with pytest.raises(ValueError, match="expected None or at least 2"):
        sensitivity_rows(flow, x, [0], probes=1)


@pytest.fixture(scope="module")
def seen():
    """A model, a text, its states and what the lens sees in them."""
    model = random_model("time_indexed_mlp", small_config(num_layers=4))
    ids = np.asarray(token_ids(model.config, batch=1, length=8).array[0])
    found = states(flow_of(model), start(model, ids))
    return model, ids, found, lens(model, found, ids)


def test_a_path_on_a_circle():
    """Quarter turns at radius 3, in a plane of five dimensions, for two tokens in opposite sense."""
    angle = np.radians([0.0, 30.0, 60.0, 120.0])
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    plane = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 2)))[0].T
    x = 3 * np.stack([circle @ plane, (circle * [1, -1]) @ plane], axis=1)
    way = path(x, np.array([0.0, 0.25, 0.5, 1.0]))
    assert np.allclose(way.norm, 3.0)
    assert np.allclose(way.turn, [[30.0] * 2, [30.0] * 2, [60.0] * 2])
    assert np.allclose(way.to_end[:, 0], [120.0, 90.0, 60.0, 0.0])
    chord = 6 * np.sin(np.radians([15.0, 15.0, 30.0])) / [0.25, 0.25, 0.5]
    assert np.allclose(way.speed, chord[:, None])


def test_small_angles_are_not_lost():
    x = np.array([[[1.0, 0.0]], [[1.0, 1e-9]]])
    assert path(x, np.array([0.0, 1.0])).turn[0, 0] == pytest.approx(np.degrees(1e-9), rel=1e-6)


def test_the_last_look_is_the_models_own_prediction(seen):
    model, ids, _, look = seen
    named = hax.named(ids[None], ("batch", "position"))
    logits = np.asarray(model(named).array[0], np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = -log_p[np.arange(7), ids[1:]]
    assert np.abs(look.loss[-1] - loss).max() < 1e-4
    assert np.array_equal(look.choice[-1], logits.argmax(axis=-1))
    assert np.abs(look.probability[-1] - np.exp(log_p).max(axis=-1)).max() < 1e-5
    entropy = -(np.exp(log_p) * log_p).sum(axis=-1)
    assert np.abs(look.entropy[-1] - entropy).max() < 1e-4
    assert np.abs(look.divergence[-1]).max() == 0.0


def test_divergence_is_from_the_last_prediction(seen):
    model, _, found, look = seen
    axes = ("batch", "position", "embed")
    logits = [np.asarray(model.head(hax.named(x[None], axes))[0]) for x in found]
    log_p = [x - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True)) for x in logits]
    expected = [(np.exp(log_p[-1]) * (log_p[-1] - here)).sum(-1) for here in log_p]
    assert np.abs(look.divergence - np.stack(expected)).max() < 1e-4
    assert look.divergence[0].min() > 1e-3


def test_settling_is_for_good():
    rng = np.random.default_rng(0)
    choice, grid = rng.integers(0, 2, (6, 200)), np.linspace(0, 1, 6)
    found = settled(choice, grid)
    for token in range(200):
        same = [d for d in range(6) if np.all(choice[d:, token] == choice[-1, token])]
        assert found[token] == grid[min(same)]
    assert set(found) == set(grid)


def test_depths_and_states_go_together(seen):
    model, _, found, look = seen
    assert len(depths(model)) == len(found) == len(look.choice) == 5
    assert look.loss.shape == (5, 7)
