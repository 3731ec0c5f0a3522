"""Muon: directions against a singular value decomposition, batches, pieces, matrices without rank."""

import jax
import numpy as np
import optax
import pytest
from haliax import Axis

from qkvflow.config import OptimizerConfig
from qkvflow.models import MODELS
from qkvflow.nn import Parameter
from qkvflow.train.muon import RMS, is_hidden_matrix
from qkvflow.train.optimizer import make_optimizer
from tests.support import FLAVOURS, random_model, small_config

RATE = 0.1


def matrix(*sizes, inputs=("i",), names="bio", **facts):
    """A hidden matrix with the axes basis, i and o; or i and o."""
    letters = names[-len(sizes) :]
    axes = tuple(Axis({"b": "basis"}.get(n, n), size) for n, size in zip(letters, sizes))
    return Parameter(axes, "matrix", inputs=inputs, **facts)


def step(table, gradients, decay=0.0):
    """The first update of arrays that are zero but for their decay."""
    config = OptimizerConfig(name="muon", learning_rate=RATE, warmup=0, clip=0, weight_decay=decay)
    optimizer = make_optimizer(config, optax.constant_schedule(RATE), table)
    ones = {path: np.ones_like(gradient) for path, gradient in gradients.items()}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return optimizer.update(gradients, optimizer.init(ones), ones)[0]


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (64, 12)])
def test_a_step_has_the_singular_vectors_of_the_gradient_and_values_near_one(shape):
    gradient = gaussian(*shape)
    found = -np.asarray(step({"w": matrix(*shape)}, {"w": gradient})["w"], np.float64)
    left, sizes, right = np.linalg.svd(gradient.astype(np.float64), full_matrices=False)
    values = left.T @ found @ right.T / (RATE * RMS * np.sqrt(max(shape)))
    sizes = sizes / np.linalg.norm(sizes)
    expected = sizes
    for _ in range(5):  # the iteration of a number
        expected = 3.4445 * expected - 4.775 * expected**3 + 2.0315 * expected**5
    np.testing.assert_allclose(values, np.diag(expected), atol=1e-4)
    near_one = np.diag(values)[sizes > 0.01]
    assert near_one.min() > 0.65
    assert near_one.max() < 1.21
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(found))), RATE * RMS, rtol=0.2)


def test_a_batch_of_matrices_is_each_of_them():
    gradient = gaussian(5, 8, 12) * np.array([1.0, 1e-3, 1e3, 1.0, 1.0], np.float32)[:, None, None]
    together = step({"w": matrix(5, 8, 12)}, {"w": gradient})["w"]
    for each, own in zip(together, gradient):
        alone = step({"w": matrix(8, 12)}, {"w": own})["w"]
        np.testing.assert_allclose(each, alone, atol=1e-6)


def test_matrices_side_by_side_are_steps_of_their_own():
    gradient = gaussian(8, 12) * np.repeat([1.0, 100.0, 1.0], (6, 4, 2)).astype(np.float32)
    found = step({"w": matrix(8, 12, pieces=(6, 4, 2))}, {"w": gradient})["w"]
    for piece, own in zip(np.split(found, (6, 10), axis=1), np.split(gradient, (6, 10), axis=1)):
        alone = step({"w": matrix(*own.shape)}, {"w": own})["w"]
        np.testing.assert_allclose(piece, alone, atol=1e-6)


@pytest.mark.parametrize("gradient", [np.zeros((8, 8)), np.outer(np.arange(8.0), np.ones(8))])
def test_a_matrix_of_no_rank_or_of_rank_one_has_a_finite_step(gradient):
    found = np.asarray(step({"w": matrix(8, 8)}, {"w": gradient.astype(np.float32)})["w"])
    assert np.isfinite(found).all()
    assert np.linalg.norm(found, 2) <= 1.25 * RATE * RMS * np.sqrt(8)


def test_a_matrix_decays_by_its_share():
    zero = {"w": np.zeros((4, 4), np.float32)}
    found = step({"w": matrix(4, 4, decays=True)}, zero, decay=0.5)
    np.testing.assert_allclose(found["w"], -RATE * 0.5)
    np.testing.assert_array_equal(step({"w": matrix(4, 4)}, zero, decay=0.5)["w"], 0.0)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_hidden_matrices_are_those_of_layers(name, flavour):
    """Embeddings, head, vectors, norms, biases, time networks, gates, kernels are AdamW's."""
    table = random_model(name, small_config(flavour=flavour)).parameters()
    for path, parameter in table.items():
        maps = ("qkv", "out", "up", "down", "z", "xbc", "delta")
        of_a_map = any(f".part.{each}." in path for each in maps) and path.endswith("weight")
        others = any(word in path for word in ("network", "gates", "bias"))
        assert is_hidden_matrix(parameter) == (of_a_map and not others), path
    (qkv,) = [p for path, p in table.items() if ".qkv." in path and is_hidden_matrix(p)][:1]
    assert "qkv" in qkv.batch and qkv.inputs == ("embed",)
    for path, parameter in table.items():
        assert bool(parameter.pieces) == (".xbc." in path and is_hidden_matrix(parameter)), path
        assert not parameter.pieces or sum(parameter.pieces) == parameter.axes[-1].size
