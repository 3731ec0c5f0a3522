"""The flow is the forward pass: the same end, whatever the weights, the parts and the integrator."""

import jax
import numpy as np
import pytest

from qkvflow.analysis import depths, flow_of, start, states
from qkvflow.analysis.flow import in_float32
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
