"""Several residual streams: against their equations by hand, at their start, at any depth."""

import dataclasses
from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis.flow import flow_of, start, states
from qkvflow.config import ConfigError, Gpt2Config, OptimizerConfig
from qkvflow.generate import generate, generate_with_drafts
from qkvflow.models import at_depth, build_model, forward_flops, unroll
from qkvflow.models.language_model import token_losses
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.nn.weights import resolve
from qkvflow.train.step import Learner
from tests.models.test_counting import BATCH, LENGTH, flops_of, forward, shapes_of
from tests.support import difference, random_model, small_config, token_ids
from tests.train.support import tiny_run, with_architecture


@pytest.fixture
def _optax_may_promote():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


X = ("batch", "position", "embed")
LOOP = {"family": "looped", "plan": "1 + 2x2 + 1"}
VARIANTS = [
    ("standard", {"streams": 2}),
    ("time_indexed_mlp", {"streams": 3, "stream_mix": "input", "flavour": "modern"}),
    ("hybrid", {"streams": 2, "stream_mix": "manifold", "integrator": "heun"}),
    ("looped", {"streams": 4, "num_layers": 6, "weights": LOOP, "mix_embedding": "gate"}),
    ("looped", {"streams": 2, "num_layers": 6, "weights": LOOP, "mix_streams": "ends"}),
    (
        "looped",
        {"streams": 2, "stream_mix": "input", "num_layers": 6, "weights": LOOP, "mix_streams": "ends"},
    ),
]
"""Models by name, and what a small config changes."""


def shares_by_hand(connection, streams):
    """a, b and A for streams [n, batch, position, E]: of every token, by the formulas."""
    n = len(streams)
    values = connection.shares.weight.array
    tokens = streams.shape[1:3]
    a = jnp.broadcast_to(values[:n, None, None], (n, *tokens))
    b = jnp.broadcast_to(values[n : 2 * n, None, None], (n, *tokens))
    A = jnp.broadcast_to(values[2 * n :].reshape(n, n, 1, 1), (n, n, *tokens))
    if connection.kind != "static":
        s, W = connection.bound.weight.array, connection.map.weight.array
        normed = jnp.stack([connection.norm(hax.named(x, X)).array for x in streams])
        said = jnp.einsum("nbpe,ek->knbp", normed, W)
        said = jnp.tanh(said) if connection.kind == "input" else said
        a, b, A = a + s[0] * said[0], b + s[1] * said[1], A + s[2] * said[2:].swapaxes(0, 1)
    if connection.kind == "manifold":
        a, b, A = 1 / (1 + jnp.exp(-a)), 2 / (1 + jnp.exp(-b)), jnp.exp(A)
        for _ in range(20):
            A = A / A.sum(1, keepdims=True)
            A = A / A.sum(0, keepdims=True)
    return a, b, A


def connected(connection, streams, made_of):
    """The streams after a part: what is read of them is given to it."""
    a, b, A = shares_by_hand(connection, streams)
    y = made_of(jnp.einsum("nbp,nbpe->bpe", a, streams))
    return jnp.einsum("nmbp,nbpe->mbpe", A, streams) + jnp.einsum("nbp,bpe->nbpe", b, y)


def by_hand(model, ids):
    """The loss, layer by layer, streams one above the other; with steps of 1."""
    transformer, n = model.transformer, model.config.streams
    x = transformer.wte(ids.array) + transformer.wpe.weight.array[None, : ids.array.shape[1]]
    streams = jnp.stack([x] * n)
    for t in model.plan().times[:, 0]:
        block = resolve(transformer.blocks, t)
        for name in ("attention", "mlp"):
            layer = block.parts[name]

            def part(seen, layer=layer):
                return layer.part(layer.norm(hax.named(seen, X)))[0].array

            streams = connected(layer.connection, streams, part)
    return loss_of(model, streams.mean(0), ids)


def loss_of(model, x, ids):
    logits = model.output_map()(model.transformer.ln_f(hax.named(x, X))).array
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), ids.array[..., None], axis=-1)
    return -jnp.mean(chosen)


def check_values_and_gradients(model, hand):
    ids, arrays = token_ids(model.config, length=5), arrays_of(model)

    def loss(arrays):
        return jnp.mean(token_losses(with_arrays(model, arrays), ids.array, ids.array))

    value, gradient = jax.jit(jax.value_and_grad(loss))(arrays)
    expected = jax.jit(jax.value_and_grad(lambda a: hand(with_arrays(model, a), ids)))(arrays)
    assert abs(float(value) - float(expected[0])) < 1e-5
    for path, found in gradient.items():
        scale = max(1.0, float(jnp.max(jnp.abs(expected[1][path]))))
        error = difference(found, expected[1][path]) / scale
        assert error < 2e-5, f"{path}: {error}"
        assert float(jnp.abs(found).max()) > 0, path


@pytest.mark.parametrize(("streams", "mix"), [(2, "static"), (3, "input"), (2, "manifold")])
def test_streams_are_connected_by_the_equations_values_and_gradients(streams, mix):
    config = small_config(streams=streams, stream_mix=mix)
    check_values_and_gradients(random_model("standard", config), by_hand)


@pytest.mark.parametrize("mix", ["static", "input"])
def test_streams_that_meet_at_the_ends_of_passes(mix):
    """One stream inside of a pass; after it, y is what the pass has made of what was read."""

    def hand(model, ids):
        x = model.transformer.wte(ids.array)
        x += model.transformer.wpe.weight.array[None, : ids.array.shape[1]]
        streams, own = jnp.stack([x] * 2), x
        for visit, t in enumerate(model.plan().times[:, 0]):
            block = resolve(model.transformer.blocks, t)
            for name in ("attention", "mlp"):
                layer = block.parts[name]
                own = own + layer.part(layer.norm(hax.named(own, X)))[0].array
            if visit in (0, 2, 4, 5):
                a = shares_by_hand(block.ends, streams)[0]
                streams = connected(block.ends, streams, lambda seen, own=own: own - seen)
                own = jnp.einsum("nbp,nbpe->bpe", a, streams)
        return loss_of(model, own, ids)

    changes = {"streams": 2, "stream_mix": mix, "mix_streams": "ends"}
    model = random_model("looped", small_config(num_layers=6, weights=LOOP, **changes))
    check_values_and_gradients(model, hand)


@pytest.mark.parametrize("mix", ["static", "input", "manifold"])
@pytest.mark.parametrize("where", ["layers", "ends"])
def test_at_the_start_the_model_is_that_of_one_stream(mix, where):
    own = {"num_layers": 6, "weights": LOOP}
    one = build_model("looped", small_config(**own), key=jax.random.key(0))
    config = small_config(streams=3, stream_mix=mix, mix_streams=where, **own)
    several = build_model("looped", config, key=jax.random.key(0))
    ids = token_ids(config, length=5)
    assert difference(several(ids).array, one(ids).array) < 2e-5
    assert "streams" not in one.transformer.blocks.parts and one.transformer.blocks.ends is None
    assert Gpt2Config.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_streams_go_with_depth_caches_and_causality(name, changes):
    model = random_model(name, small_config(**changes), scale=0.2)
    ids, own = token_ids(model.config, length=5), model.config.num_layers
    found = model(ids).array
    assert difference(unroll(model, own)(ids).array, found) < 2e-5
    assert difference(unroll(model, own + 2)(ids).array, at_depth(model, own + 2)(ids).array) < 2e-5
    greedy = generate(model, ids, 6, temperature=0.0)
    again = np.asarray(model(greedy).array).argmax(-1)[:, 4:-1]
    assert np.array_equal(again, np.asarray(greedy.array)[:, 5:])
    changed = ids.array.at[0, 3].set((ids.array[0, 3] + 1) % model.config.vocab_size)
    after = model(hax.named(changed, ids.axes)).array
    assert np.array_equal(found[0, :3], after[0, :3]) and np.array_equal(found[1], after[1])
    assert not np.array_equal(found[0, 3:], after[0, 3:])


@pytest.mark.parametrize(("name", "changes"), [VARIANTS[1], VARIANTS[4]])
@pytest.mark.usefixtures("drafts_are_cheap")
def test_a_model_of_several_streams_drafts_for_itself(name, changes):
    model = random_model(name, small_config(**changes), scale=0.2)
    ids = token_ids(model.config, batch=1, length=4)
    drafted = generate_with_drafts(model, ids, 9, draft_depth=1, draft_tokens=2, temperature=0.0)
    expected = generate(model, ids, 9, temperature=0.0)
    assert np.array_equal(drafted.text.array, expected.array) and drafted.proposed > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"streams": 4},
        {"streams": 2, "stream_mix": "input"},
        {"streams": 4, "stream_mix": "manifold"},
        {"streams": 2, "mix_streams": "ends", "weights": {"family": "looped", "plan": "1x1"}},
    ],
)
def test_operations_of_streams_agree_with_xla_within_a_tenth(changes):
    model = shapes_of("standard", num_layers=1, remat="none", **changes)
    share = forward_flops(model, BATCH, LENGTH) / flops_of(forward, model)
    assert 0.9 < share < 1.1, share
    plain = shapes_of("standard", num_layers=1, remat="none")
    assert forward_flops(model, BATCH, LENGTH) > forward_flops(plain, BATCH, LENGTH)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"streams": 5}, "streams is 5; expected 1 to 4"),
        ({"streams": 2, "integrator": "adaptive"}, "streams is 2, but the integrator adaptive chooses"),
        ({"streams": 2, "mix_streams": "ends", "weights": "gated"}, "weights gated has no loop"),
        (
            {"streams": 2, "mix_streams": "ends", "weights": "looped", "integrator": "rk4"},
            "rk4 has stages inside layers; use residual or euler",
        ),
        ({"stream_mix": "convex"}, "stream_mix is 'convex'; expected one of"),
    ],
)
def test_streams_that_cannot_be_are_sentences(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Gpt2Config(**{"integrator": "residual", "parts": ("attention", "mlp"), **changes})


@pytest.mark.usefixtures("_optax_may_promote")
def test_streams_are_analysed_and_trained_like_one():
    """The states of all streams lead to the logits; Muon takes steps, at other depths too."""
    name, changes = VARIANTS[5]
    model = random_model(name, small_config(**changes), scale=0.2)
    ids = token_ids(model.config, batch=1, length=5)
    found = states(flow_of(model), start(model, np.asarray(ids.array)[0]))
    assert found.shape == (7, 5, 3 * 16)
    assert difference(model.head(hax.named(found[-1:], X)), model(ids).array) < 1e-5
    run = with_architecture(tiny_run("x", model="looped", depths=(3, 5)), **changes)
    run = dataclasses.replace(run, optimizer=OptimizerConfig(name="muon", learning_rate=1e-2, warmup=1))
    learner = Learner.of(run, run.model_config(11))
    rows = np.random.default_rng(0).integers(0, 11, (4, 9)).astype(np.int32)
    step = jax.jit(partial(learner.step, inputs=rows[:, :-1], targets=rows[:, 1:], depth=5))
    state, losses = learner.start(jnp.uint32(0)), []
    for _ in range(6):
        state, report = step(state, jnp.uint32(0))
        losses.append(float(report.loss))
    assert losses[-1] < losses[0] - 0.1, losses
