"""Operations in closed form against XLA's own count, and memory against arithmetic."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import pytest

from qkvflow.config import Gpt2Config
from qkvflow.models import MODELS, build_model, forward_flops, training_flops, training_memory
from tests.support import FLAVOURS

BATCH, LENGTH = 4, 128


def shapes_of(name, **changes):
    config = Gpt2Config(**{"hidden_dim": 128, "num_heads": 4, "time_embed_dim": 16, **changes})
    return eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))


def flops_of(function, model):
    """XLA's count. It counts the body of a loop once, so this is right for one layer only."""
    arrays, static = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    ids = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    run = jax.jit(lambda a, ids: function(eqx.combine(a, static), ids))
    return run.lower(arrays, ids).compile().cost_analysis()["flops"]


def forward(model, ids):
    return model(hax.named(ids, ("batch", "position"))).array


def gradient(model, ids):
    named = hax.named(ids, ("batch", "position"))
    return eqx.filter_grad(lambda m: m.compute_loss(named, named))(model)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_operations_agree_with_xla_within_a_tenth(name, flavour):
    model = shapes_of(name, flavour=flavour, num_layers=1, remat="none")
    share = forward_flops(model, BATCH, LENGTH) / flops_of(forward, model)
    assert 0.9 < share < 1.1, f"forward: {share}"
    share = training_flops(model, BATCH, LENGTH) / flops_of(gradient, model)
    assert 0.9 < share < 1.1, f"training: {share}"


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": {"family": "gated", "gate": "element"}},
        {"weights": "low_rank"},
        {"mix_embedding": "gate"},
        {"weights": {"family": "looped", "around": {"family": "gated", "gate": "element"}}},
    ],
)
def test_operations_of_the_other_curves(changes):
    model = shapes_of("time_indexed_mlp", num_layers=1, **changes)
    share = forward_flops(model, BATCH, LENGTH) / flops_of(forward, model)
    assert 0.9 < share < 1.1, share


def test_operations_grow_with_layers_and_stages():
    one, ten = (forward_flops(shapes_of("hybrid", num_layers=n), 1, 128) for n in (1, 10))
    rest = forward_flops(shapes_of("hybrid", num_layers=2), 1, 128) - one
    assert ten - one == 9 * rest
    heun = forward_flops(shapes_of("hybrid", integrator="heun", num_layers=1), 1, 128)
    assert heun - one == rest


def test_memory_of_whole_layer_rematerialisation_is_one_residual_stream_a_layer():
    working = [
        training_memory(shapes_of("shared", num_layers=n, remat="full"), BATCH, LENGTH).working
        for n in (4, 12)
    ]
    stream = BATCH * LENGTH * 128 * 4
    per_layer = (working[1] - working[0]) / 8
    assert per_layer < 1.1 * stream, f"{per_layer / stream} streams a layer"
    everything = training_memory(shapes_of("shared", num_layers=12, remat="none"), BATCH, LENGTH)
    assert everything.working > 3 * working[1]
