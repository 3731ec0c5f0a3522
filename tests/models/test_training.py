"""What training needs of every model: gradients, no recompilation, bfloat16, dropout."""

import os
import subprocess
import sys

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.models import MODELS, build_model
from qkvflow.nn.families import FAMILIES
from tests.support import difference, random_model, small_config, token_ids


def is_zero(leaf):
    return float(jnp.abs(leaf).max()) == 0.0


@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_trainable_leaf(name, flavour):
    config = small_config(flavour=flavour, max_position_embeddings=20)
    model = random_model(name, config)
    ids = token_ids(config, batch=4, length=20)
    gradients = eqx.filter_grad(lambda m: m.compute_loss(ids, ids))(model)
    flat, _ = jax.tree_util.tree_flatten_with_path(gradients)
    assert len(flat) == len(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    silent = [jax.tree_util.keystr(path) for path, leaf in flat if is_zero(leaf)]
    assert not silent, silent


@pytest.mark.parametrize("weights", FAMILIES)
def test_gradients_reach_every_leaf_of_every_family(weights):
    config = small_config(weights=weights, time_embedding="learned_fourier", gate="both")
    model = random_model("time_indexed_ssm", config)
    ids = token_ids(config, batch=4, length=20)
    blocks = eqx.filter_grad(lambda m: m.compute_loss(ids, ids))(model).transformer.blocks
    flat, _ = jax.tree_util.tree_flatten_with_path(blocks)
    silent = [jax.tree_util.keystr(path) for path, leaf in flat if is_zero(leaf)]
    assert not silent, silent


@pytest.mark.parametrize("name", MODELS)
def test_a_second_call_does_not_recompile(name, caplog):
    config = small_config()
    model = random_model(name, config)
    first, second = token_ids(config, seed=1), token_ids(config, seed=2)
    key = jax.random.key(0)
    model(first, t=0.5), model.compute_loss(first, first, key=key)
    other_key = jax.random.key(1)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        model(second, t=0.7), model.compute_loss(second, second, key=other_key)
    compiled = [r.message for r in caplog.records if "Compiling" in r.message]
    assert not compiled


COMPILE = """
import sys, time, equinox as eqx, haliax as hax, jax, jax.numpy as jnp, optax
from qkvflow.config import Gpt2Config
from qkvflow.models import build_model
ids = hax.named(jnp.zeros((2, 16), jnp.int32), ("batch", "position"))
optimizer = optax.adam(1e-3)
@eqx.filter_jit
def step(model, state):
    loss, gradient = eqx.filter_value_and_grad(lambda m: m.compute_loss(ids, ids))(model)
    updates, state = optimizer.update(gradient, state)
    return loss, eqx.apply_updates(model, updates), state
def seconds(depth):
    config = Gpt2Config(num_layers=depth, hidden_dim=64, time_embed_dim=8)
    shapes = eqx.filter_eval_shape(build_model, sys.argv[1], config, key=jax.random.key(0))
    zeros = lambda x: jnp.zeros(x.shape, x.dtype) if hasattr(x, "shape") else x
    model = jax.tree.map(zeros, shapes)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    start = time.process_time()  # of all threads: other processes do not disturb it
    step.lower(model, state).compile()
    return time.process_time() - start
print(seconds(48) / seconds(6))
"""


@pytest.mark.parametrize("name", ["standard", "tong_neuralode", "time_indexed_ssm"])
def test_compile_time_does_not_grow_with_depth(name):
    run = [sys.executable, "-W", "ignore", "-c", COMPILE, name]
    as_usual = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    result = subprocess.run(run, check=True, capture_output=True, text=True, env=as_usual)
    ratio = float(result.stdout)
    assert ratio < 1.5, f"48 layers take {ratio} times as long to compile as 6"


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_compute_is_close_to_float32(name):
    losses = {}
    for dtype in ("float32", "bfloat16"):
        config = small_config(hidden_dim=64, vocab_size=50, compute_dtype=dtype)
        model = random_model(name, config, scale=0.1)
        assert model.transformer.wte.weight.dtype == jnp.float32
        ids = token_ids(config, batch=4, length=30)
        losses[dtype] = float(model.compute_loss(ids, ids))
        gradients = eqx.filter_grad(lambda m: m.compute_loss(ids, ids))(model)  # noqa: B023
        assert all(g.dtype == jnp.float32 for g in jax.tree.leaves(gradients))
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    assert np.isfinite(losses["bfloat16"])
    assert losses["float32"] != losses["bfloat16"]
    error = abs(losses["bfloat16"] / losses["float32"] - 1)
    assert error < 0.02, f"{losses}: {error}"


def test_dropout_acts_with_a_key_only():
    config = small_config(attn_pdrop=0.2, resid_pdrop=0.2, embd_pdrop=0.2)
    model = random_model("time_indexed_mlp", config)
    ids = token_ids(config)
    evaluation = model(ids).array
    assert difference(model(ids).array, evaluation) == 0.0
    one, other = (model(ids, key=jax.random.key(k)).array for k in (0, 1))
    assert difference(one, other) > 1e-3
    assert difference(one, evaluation) > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_every_model_starts_near_a_uniform_guess_and_learns_a_repetition(name):
    """A few plain gradient steps from the real start; a broken start or gradient shows here."""
    config = small_config(hidden_dim=32)
    model = build_model(name, config, key=jax.random.key(0))
    ids = hax.named(jnp.tile(jnp.arange(8, dtype=jnp.int32), (2, 3)), ("batch", "position"))
    targets = hax.roll(ids, -1, "position")

    @eqx.filter_jit
    def step(model):
        loss, gradient = eqx.filter_value_and_grad(lambda m: m.compute_loss(ids, targets))(model)
        return loss, eqx.apply_updates(model, jax.tree.map(lambda g: -0.3 * g, gradient))

    first = last = float(step(model)[0])
    for _ in range(30):
        last, model = step(model)
    assert abs(first - np.log(config.vocab_size)) < 1.0
    assert float(last) < 0.5 * first
