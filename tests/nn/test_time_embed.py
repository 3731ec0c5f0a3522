"""Embeddings of time against their formulas."""

import jax
import numpy as np
import pytest

from qkvflow.nn.time_embed import Sinusoidal, TimeNetwork, layer_times, time_embedding
from tests.support import difference, randomised, small_config


def test_sinusoidal_is_t_and_sines_and_cosines_of_a_thousand_t():
    t, count = 0.3, 32
    frequency = 10000.0 ** (-np.arange(count) / count)
    angle = 1000.0 * t * frequency
    expected = np.concatenate([[t], np.sin(angle), np.cos(angle)])
    features = np.asarray(Sinusoidal(count).at(t))
    assert features.shape == (65,)
    # float32 angles up to 300 are known to 1e-5.
    assert np.max(np.abs(features - expected)) < 5e-5


def test_the_largest_frequency_is_the_configs():
    embedding = time_embedding(small_config(time_frequency=10.0), key=jax.random.key(0))
    assert embedding.at(0.3)[1] == pytest.approx(np.sin(10.0 * 0.3), abs=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned_fourier", "layer_vector"])
def test_every_embedding_has_the_same_size_and_takes_vectors(kind):
    config = small_config(time_embedding=kind, num_layers=5)
    embedding = randomised(time_embedding(config, key=jax.random.key(0)))
    times = layer_times(5)
    together = embedding.at(times)
    assert together.shape == (5, 7)
    for i, t in enumerate(times):
        assert difference(together[i], embedding.at(t)) < 1e-6


def test_learned_frequencies_are_learned():
    config = small_config(time_embedding="learned_fourier")
    embedding = time_embedding(config, key=jax.random.key(0))
    gradient = jax.grad(lambda e: e.at(0.3).sum())(embedding)
    assert np.all(np.asarray(gradient.frequency.array) != 0)


def test_layer_vectors_are_independent_of_each_other():
    config = small_config(time_embedding="layer_vector", num_layers=4)
    embedding = time_embedding(config, key=jax.random.key(0))
    gradient = jax.grad(lambda e: e.at(0.5).sum())(embedding).table.array
    assert np.array_equal(np.nonzero(np.asarray(gradient).sum(1))[0], [1])


def test_a_zero_network_is_zero_at_every_time():
    network = TimeNetwork.init(small_config(), (), key=jax.random.key(0), zero=True)
    assert np.all(np.asarray(network.at(layer_times(9))) == 0.0)


def test_the_grid_ends_at_one_and_has_as_many_layers_as_asked():
    for depth in range(1, 300):
        times = layer_times(depth)
        assert len(times) == depth
        assert times[-1] == 1.0
        assert times.dtype == np.float32


def test_a_control_is_told_one_half_in_every_layer():
    config = small_config(layer_time="half", num_layers=5)
    embedding = time_embedding(config, key=jax.random.key(0))
    true = time_embedding(small_config(num_layers=5), key=jax.random.key(0))
    told = embedding.at(layer_times(5))
    assert difference(told, true.at(np.full(5, 0.5, np.float32))) == 0.0
    assert difference(told[3], embedding.at(layer_times(5)[3])) == 0.0
