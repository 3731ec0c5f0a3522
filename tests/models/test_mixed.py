"""`compute_dtype: mixed`: near to float32, causal, and float32 itself where it would not be faster."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis.flow import flow_of, in_float32, start, states
from qkvflow.generate import generate
from qkvflow.models import MODELS
from qkvflow.nn import products
from tests.support import FLAVOURS, difference, random_model, small_config, token_ids


@pytest.fixture(autouse=True)
def able(monkeypatch):
    """Whatever CPU the tests run on."""
    monkeypatch.setattr(products, "multiplies_bfloat16", lambda: True)


def in_type(model, dtype):
    return dataclasses.replace(model, config=dataclasses.replace(model.config, compute_dtype=dtype))


def gradients(model, ids):
    found = eqx.filter_jit(eqx.filter_grad(lambda m: m.compute_loss(ids, ids)))(model)
    leaves = jax.tree.leaves(found)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_within_a_hundredth_of_those_in_float32(name, flavour):
    config = small_config(hidden_dim=32, vocab_size=50, flavour=flavour, max_position_embeddings=30)
    model = random_model(name, config, scale=0.1)
    ids = token_ids(config, batch=4, length=30)
    exact = gradients(model, ids)
    error = np.linalg.norm(gradients(in_type(model, "mixed"), ids) - exact) / np.linalg.norm(exact)
    assert 1e-5 < error < 0.01, f"{error}"


def test_a_tied_head_has_gradients():
    config = small_config(flavour="modern", tie_embeddings=True)
    model = random_model("standard", config, scale=0.1)
    ids = token_ids(config)
    exact = gradients(model, ids)
    error = np.linalg.norm(gradients(in_type(model, "mixed"), ids) - exact) / np.linalg.norm(exact)
    assert 1e-5 < error < 0.01, f"{error}"


@pytest.mark.parametrize("name", MODELS)
def test_no_position_sees_a_later_one_or_another_row(name):
    model = random_model(name, small_config(flavour="modern", compute_dtype="mixed"))
    ids = token_ids(model.config, length=70).array

    @jax.jit
    def gradient(x):
        def logits(x):
            own = eqx.tree_at(lambda m: m.transformer.wte.weight.array, model, x)
            return own(token_ids(model.config, length=70)).array[0, 40].sum()

        return jax.grad(logits)(x)

    later = np.asarray(model(token_ids(model.config, length=70)).array)
    changed = np.array(ids)
    changed[0, 41:] = (changed[0, 41:] + 1) % model.config.vocab_size
    named = dataclasses.replace(token_ids(model.config, length=70), array=jnp.asarray(changed))
    after = np.asarray(model(named).array)
    assert np.array_equal(after[0, :41], later[0, :41]) and np.array_equal(after[1], later[1])
    assert not np.array_equal(after[0, 41:], later[0, 41:])
    assert np.isfinite(gradient(model.transformer.wte.weight.array)).all()


@pytest.mark.parametrize("name", MODELS)
def test_without_the_instructions_it_is_float32(name, monkeypatch):
    monkeypatch.setattr(products, "multiplies_bfloat16", lambda: False)
    config = small_config(vocab_size=17, compute_dtype="mixed")
    model = random_model(name, config)
    ids = token_ids(config)
    plain = in_type(model, "float32")
    assert np.array_equal(model(ids).array, plain(ids).array)
    assert np.array_equal(gradients(model, ids), gradients(plain, ids))


def test_parameters_stream_and_caches_are_float32():
    model = random_model("time_indexed_ssm", small_config(compute_dtype="mixed"))
    ids = token_ids(model.config)
    assert model.embed(ids.array).dtype == jnp.float32
    caches = jax.tree.leaves(model.empty_caches(2, 9))
    assert {leaf.dtype for leaf in caches} == {np.dtype("float32")}
    assert difference(model(ids).array, in_type(model, "float32")(ids).array) > 1e-4
    assert generate(model, ids, 3, temperature=0.0).array.shape == (2, 12)


def test_gradients_of_several_models_at_once_and_of_a_deep_one():
    config = small_config(num_layers=9, compute_dtype="mixed")
    models = [random_model("standard", config, seed=seed, scale=0.1) for seed in range(2)]
    ids = token_ids(config)
    alone = np.stack([gradients(model, ids) for model in models])
    arrays, static = zip(*(eqx.partition(model, eqx.is_array) for model in models))

    def loss(own):
        return eqx.combine(own, static[0]).compute_loss(ids, ids)

    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    found = jax.tree.leaves(jax.jit(jax.vmap(jax.grad(loss)))(both))
    together = np.concatenate([np.asarray(leaf).reshape(2, -1) for leaf in found], axis=1)
    error = np.linalg.norm(together - alone) / np.linalg.norm(alone)
    assert error < 1e-3, f"{error}"


def test_the_adaptive_integrator_has_gradients():
    loose = {"method": "adaptive", "rtol": 1e-2, "atol": 1e-2}
    config = small_config(compute_dtype="mixed", weights="gated", integrator=loose)
    found = gradients(random_model("standard", config, scale=0.1), token_ids(config))
    assert np.isfinite(found).all() and found.any()


def test_analysis_is_in_float32():
    model = random_model("shared", small_config(compute_dtype="mixed"))
    ids = np.asarray(token_ids(model.config, batch=1, length=5).array[0])
    found = [
        np.asarray(states(flow_of(own), start(own, ids)))
        for own in (in_float32(model), in_type(model, "float32"))
    ]
    assert np.array_equal(*found)
