"""Tokens that stop early: by the rule written out, causal, and with caches as without."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis.early import early_curve, early_table
from qkvflow.config import ConfigError
from qkvflow.data import TokenSplit
from qkvflow.generate import generate, generate_stopping_early
from qkvflow.models.early import settled_pass
from qkvflow.models.language_model import losses_of
from qkvflow.nn.context import Context
from qkvflow.nn.dynamic import pass_layer
from tests.support import difference, random_model, small_config, token_ids

VARIANTS = [
    ("standard", {"flavour": "llama"}),
    ("time_indexed_ssm", {"flavour": "modern"}),
    ("tong_neuralode", {"integrator": "heun"}),
    ("looped", {"streams": 2, "stream_mix": "input", "mix_embedding": "gate"}),
    (
        "looped",
        {"weights": {"family": "looped", "plan": "1 + 2x2 + 1"}, "streams": 2, "mix_streams": "ends"},
    ),
]
BOUND, SMALL = 0.1, 0.02


def model_of(name, changes):
    return random_model(name, small_config(num_layers=6, **changes), scale=0.2)


@jax.jit
def _moved(new, old):
    return jnp.sum(jnp.abs(jax.nn.softmax(new) - jax.nn.softmax(old)), axis=-1) / 2


def by_hand(model, ids, bound):
    """Logits and layers of every token, one token after the other, on states that stay where they stop.

    All positions go through every layer; a token's own state is put back from where it stopped on.
    """
    x, plan = model.embed(ids), model.plan()
    layers = model.layers()
    told = layers[0][0].begun(x, Context())
    going, used = np.ones(ids.shape, bool), np.zeros(ids.shape, int)
    logits, moves = None, []
    for blocks, size in zip(layers, plan.sizes):
        after = pass_layer(blocks, x, plan.tableau, size, told)[0]
        x = hax.named(jnp.where(going[..., None], after.array, x.array), x.axes)
        new, used = model.head(x), used + going
        if logits is not None:
            moves.append(np.asarray(_moved(new, logits)))
            going = going & (moves[-1] > bound)
        logits = new
    return logits, used, moves


def settled(model, ids, bound=BOUND):
    return jax.jit(lambda ids: settled_pass(model, model.layers(), ids, None, 0, bound))(ids)


@pytest.mark.parametrize(("name", "changes"), [VARIANTS[0], VARIANTS[4]])
def test_tokens_stop_by_the_rule(name, changes):
    """With one part a layer what a stopped token shows later parts is its state, and no more."""
    model = model_of(name, {**changes, "parts": ("attention",)})
    ids = token_ids(model.config, length=7).array
    bound = float(np.median(by_hand(model, ids, 0.0)[2][1]))
    found = settled(model, ids, bound)
    logits, used, _ = by_hand(model, ids, bound)
    assert np.array_equal(found.layers, used) and len(np.unique(used)) > 1, used
    assert difference(found.logits, logits) < 1e-5


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_with_caches_as_without_and_causal(name, changes):
    model = model_of(name, changes)
    ids = token_ids(model.config, batch=1, length=5)
    stopped = generate_stopping_early(model, ids, 8, bound=BOUND, temperature=0.0)
    whole = settled(model, stopped.text.array)
    own = np.asarray(whole.logits).argmax(-1)[:, 4:-1]
    assert np.array_equal(own, np.asarray(stopped.text.array)[:, 5:])
    assert abs(float(np.mean(whole.layers[:, 4:-1])) - stopped.layers) < 1e-6
    assert 2 <= stopped.layers < 6, stopped.layers
    changed = stopped.text.array.at[0, 6].set((stopped.text.array[0, 6] + 1) % 13)
    after = settled(model, changed)
    assert np.array_equal(after.logits[0, :6], whole.logits[0, :6])
    assert np.array_equal(after.layers[0, :6], whole.layers[0, :6])
    assert not np.array_equal(after.logits[0, 6:], whole.logits[0, 6:])


def test_rows_of_a_batch_stop_by_themselves():
    model = model_of(*VARIANTS[1])
    ids = token_ids(model.config, batch=3, length=5)
    together = generate_stopping_early(model, ids, 6, bound=BOUND, temperature=0.0)
    for i in range(3):
        alone = generate_stopping_early(model, ids["batch", i : i + 1], 6, bound=BOUND, temperature=0.0)
        assert np.array_equal(alone.text.array[0], together.text.array[i])


def test_a_bound_of_nothing_is_the_model_and_one_of_all_is_two_layers():
    model = model_of(*VARIANTS[0])
    ids = token_ids(model.config, length=5)
    assert difference(settled(model, ids.array, 0.0).logits, model(ids).array) < 1e-5
    assert (np.asarray(settled(model, ids.array, 1.0).layers) == 2).all()
    plain = generate(model, ids, 4, temperature=0.0)
    assert np.array_equal(generate(model, ids, 4, temperature=0.0, stop_early=0.0).array, plain.array)


def test_loss_against_depth_is_measured():
    model = model_of(*VARIANTS[0])
    ids = np.random.default_rng(0).integers(0, 13, 50).astype(np.uint16)
    split = TokenSplit(ids, 50)
    points = early_curve(model, split, (0.0, SMALL, 1.0), length=16, batch_size=2)
    assert [point.layers for point in points][::2] == [6.0, 2.0]
    assert 2 < points[1].layers < 6
    found = settled(model, jnp.asarray(ids[None, :16].astype(np.int32)), SMALL)
    first = early_curve(model, TokenSplit(ids[:17], 17), (SMALL,), length=16, batch_size=1)[0]
    expected = jnp.mean(losses_of(found.logits, jnp.asarray(ids[None, 1:17].astype(np.int32))))
    assert abs(first.evaluation.loss - float(expected)) < 1e-5
    assert abs(first.layers - float(jnp.mean(found.layers))) < 1e-6
    assert early_table(points).rows[2][:2] == ("1", "2.00")


@pytest.mark.parametrize("bound", [-0.1, 1.5, "some", True])
def test_a_bound_that_is_none(bound):
    model = model_of(*VARIANTS[0])
    with pytest.raises(ConfigError, match="stop_early is .*; expected a total variation from 0"):
        generate(model, token_ids(model.config, length=3), 2, temperature=0.0, stop_early=bound)


def test_what_stopping_early_does_not_go_with():
    model = random_model("shared", small_config(num_layers=40))
    ids = token_ids(model.config, length=3)
    with pytest.raises(ConfigError, match="this model has 40; expected at most 32 evaluations"):
        generate(model, ids, 2, temperature=0.0, stop_early=0.1)
    with pytest.raises(ConfigError, match="leave one out"):
        generate(model, ids, 2, temperature=0.0, stop_early=0.1, draft_depth=2)
