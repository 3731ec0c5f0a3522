"""Trajectories: known paths, the lens against the model's own predictions, settling by brute force."""

import haliax as hax
import numpy as np
import pytest

from qkvflow.analysis import depths, flow_of, lens, path, start, states
from qkvflow.analysis.trajectory import settled
from tests.support import random_model, small_config, token_ids


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
