"""Inputs, good and bad: axes, lengths, times; every mistake is a sentence before any compilation."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import ConfigError
from qkvflow.models import FlowLM, NeuralODELM, build_model
from qkvflow.nn.time_embed import layer_times
from tests.support import difference, random_model, small_config, token_ids

CONFIG = small_config(vocab_size=13, max_position_embeddings=32)


@pytest.fixture(scope="module")
def model():
    return random_model("time_indexed_mlp", CONFIG)


def named(ids, axes=("batch", "position")):
    return hax.named(jnp.asarray(ids), axes)


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (jnp.zeros((2, 3), jnp.int32), TypeError, "expected a haliax NamedArray"),
        (named([[1, 2]], ("batch", "time")), ValueError, r"\(batch=1, time=2\).*\"position\""),
        (named([[[1, 2]]], ("batch", "position", "vocab")), ValueError, "the model uses itself"),
        (named(np.zeros((1, 33), np.int32)), ValueError, r"33 positions; this model takes 1 to 32"),
        (named(np.zeros((1, 0), np.int32)), ValueError, "0 positions"),
        (named([[1.0, 2.0]]), TypeError, "float32; expected integers"),
        (named([[1, 13]]), ValueError, r"ids from 1 to 13; expected 0 to 12 \(vocab_size 13\)"),
        (named([[-1, 2]]), ValueError, r"ids from -1 to 2"),
    ],
)
def test_bad_ids(model, ids, error, words):
    with jax.disable_jit(), pytest.raises(error, match=words):
        model(ids)
    with pytest.raises(error, match=words):
        model.compute_loss(ids, ids)


def test_bad_targets(model):
    ids = named([[1, 2]])
    with pytest.raises(ValueError, match=r"target_ids has ids from 1 to 20"):
        model.compute_loss(ids, named([[1, 20]]))
    with pytest.raises(ValueError, match="one target for every input"):
        model.compute_loss(ids, named([[1, 2, 3]]))


@pytest.mark.parametrize(
    ("t", "words"),
    [
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        ([], r"shape \(0,\)"),
        (1.5, "expected times from 0"),
        (np.array([0.5, np.nan]), "expected times from 0"),
    ],
)
def test_bad_times(model, t, words):
    with pytest.raises(ValueError, match=words):
        model(named([[1, 2]]), t=np.asarray(t))


def test_an_integrator_that_steps_needs_increasing_times():
    hybrid = random_model("hybrid", CONFIG)
    with pytest.raises(ValueError, match="they must increase"):
        hybrid(named([[1, 2]]), t=np.array([1.0, 0.5]))
    adaptive = random_model("hybrid", small_config(integrator="adaptive"))
    with pytest.raises(ValueError, match="chooses its own steps"):
        adaptive(named([[1, 2]]), t=np.array([0.5, 1.0]))


def test_an_unknown_model_and_an_incomplete_one():
    with pytest.raises(ValueError, match=r"no model 'standart'. Did you mean 'standard'\?"):
        build_model("standart", CONFIG, key=jax.random.key(0))
    with pytest.raises(ConfigError, match=r"(?s)weights is not chosen.*integrator is not chosen"):
        FlowLM.init(CONFIG, key=jax.random.key(0))


def test_under_jit_an_id_out_of_range_gives_nan_and_not_another_token_s_logits(model):
    logits = jax.jit(lambda ids: model(named(ids)).array)
    loss = jax.jit(lambda ids, targets: model.compute_loss(named(ids), named(targets)))
    good = jnp.array([[1, 2, 3, 4]])
    assert np.isfinite(loss(good, good))
    for wrong in (13, -1, -14):
        bad = good.at[0, 2].set(wrong)
        assert bool(jnp.isnan(logits(bad)[0, 2:]).all()), wrong
        assert np.isnan(loss(good, bad)), f"target {wrong}"


def test_any_batch_axes_in_any_order(model):
    ids = token_ids(CONFIG, batch=6, length=7)
    plain = model(ids)
    assert [axis.name for axis in plain.axes] == ["batch", "position", "vocab"]
    two = named(ids.array.reshape(2, 3, 7), ("host", "batch", "position"))
    assert model(two).axes == (*two.axes, CONFIG.Vocab)
    assert difference(model(two).array.reshape(plain.array.shape), plain.array) < 1e-6
    turned = model(two.rearrange(("position", "batch", "host")))
    assert difference(turned.rearrange(model(two).axes).array, model(two).array) < 1e-6
    alone = model(ids["batch", 0])
    assert [axis.name for axis in alone.axes] == ["position", "vocab"]
    assert difference(alone.array, plain.array[0]) < 1e-5
    loss = model.compute_loss(two.rearrange(("position", "batch", "host")), two)
    assert loss.shape == ()
    assert abs(float(loss) - float(model.compute_loss(ids, ids))) < 1e-6


def test_the_loss_is_the_mean_cross_entropy(model):
    ids, targets = token_ids(CONFIG, seed=1), token_ids(CONFIG, seed=2)
    logits = np.asarray(model(ids).array, np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.mean(np.take_along_axis(logp, np.asarray(targets.array)[..., None], -1))
    assert abs(float(model.compute_loss(ids, targets)) - expected) < 1e-5


def test_times(model):
    ids = token_ids(CONFIG)
    own = model(ids).array
    grid = layer_times(CONFIG.num_layers)
    assert difference(model(ids, t=grid).array, own) < 1e-5
    assert difference(model(ids, t=jnp.asarray(grid)).array, own) < 1e-5
    assert difference(model(ids, t=0.5).array, own) > 1e-3
    with pytest.raises(ValueError, match="so they must increase"):
        model(ids, t=np.full(CONFIG.num_layers, 0.5))
    assert difference(model(ids, t=layer_times(5)).array, own) > 1e-3


def test_old_style_keys_work():
    model = NeuralODELM.init(small_config(), key=jax.random.PRNGKey(0))
    ids = token_ids(model.config)
    assert np.isfinite(model(ids, t=None, key=jax.random.PRNGKey(1)).array).all()
