"""Generation: cached equals uncached for every model; sampling does what it says."""

from dataclasses import replace

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.generate import LEAST_TEMPERATURE, choose_token, generate, stream
from qkvflow.models import MODELS
from tests.support import FIXED_STEP, FLAVOURS, difference, random_model, small_config, token_ids

COUNT = 12


def logits_one_by_one(model, ids):
    """Logits of every position from caches: a prompt of three, then single tokens."""
    extend = eqx.filter_jit(type(model).extend)
    layers, caches = model.layers(), model.empty_caches(ids.shape[0], ids.shape[1])
    logits, caches = extend(model, layers, ids[:, :3], caches, jnp.asarray(0))
    pieces = [logits]
    for i in range(3, ids.shape[1]):
        logits, caches = extend(model, layers, ids[:, i : i + 1], caches, jnp.asarray(i))
        pieces.append(logits)
    return jnp.concatenate(pieces, axis=1)


def greedy_without_cache(model, prompt, count):
    """Run the whole text for every token."""
    padded = np.zeros((prompt.shape[0], prompt.shape[1] + count), np.int32)
    padded[:, : prompt.shape[1]] = prompt
    for i in range(prompt.shape[1], padded.shape[1]):
        logits = model(hax.named(jnp.asarray(padded), ("batch", "position"))).array
        padded[:, i] = np.argmax(logits[:, i - 1], axis=-1)
    return padded


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_with_cache_is_greedy_without(name, flavour):
    model = random_model(name, small_config(flavour=flavour))
    prompt = token_ids(model.config, length=3)
    text = generate(model, prompt, COUNT, temperature=0.0)
    assert np.array_equal(text.array, greedy_without_cache(model, prompt.array, COUNT))


@pytest.mark.parametrize("integrator", FIXED_STEP)
@pytest.mark.parametrize("name", ["tong_neuralode", "time_indexed_ssm"])
def test_cached_logits_are_the_logits(name, integrator):
    model = random_model(name, small_config(integrator=integrator), scale=0.2)
    ids = token_ids(model.config, length=14)
    expected = model(ids).array
    error = difference(logits_one_by_one(model, ids.array), expected)
    assert error < 1e-4 * max(1.0, float(jnp.abs(expected).max())), error


DEEP = {"num_layers": 40}


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, DEEP) for name in MODELS), ("shared", {"num_layers": 10, "integrator": "rk4"})],
)
def test_layers_of_a_deep_model_are_scanned(name, changes):
    """Written out, a thousand layers would compile for many minutes."""
    model = random_model(name, small_config(**changes), scale=0.1)
    ids = token_ids(model.config, length=6)
    extend, arguments = type(model).extend, (model.layers(), ids.array, model.empty_caches(2, 6), 0)
    assert str(jax.make_jaxpr(lambda *a: extend(model, *a))(*arguments)).count("dot_general") < 40
    expected = model(ids).array
    error = difference(logits_one_by_one(model, ids.array), expected)
    assert error < 1e-4 * max(1.0, float(jnp.abs(expected).max())), error


def test_sampling_follows_the_distribution():
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.15, 0.05]]))
    keys = jax.random.split(jax.random.key(0), 20_000)

    def shares(**choices):
        draw = jax.vmap(lambda key: choose_token(logits, key, **choices)[0])
        return np.bincount(np.asarray(draw(keys)), minlength=4) / len(keys)

    assert np.allclose(shares(temperature=1.0), [0.5, 0.3, 0.15, 0.05], atol=0.015)
    assert np.allclose(shares(temperature=1.0, top_k=2), [0.625, 0.375, 0, 0], atol=0.015)
    assert np.allclose(shares(temperature=1.0, top_p=0.6), [0.625, 0.375, 0, 0], atol=0.015)
    assert np.allclose(shares(temperature=1.0, top_p=0.5), [1, 0, 0, 0])
    sharp = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert np.allclose(shares(temperature=0.5), sharp / sharp.sum(), atol=0.015)
    assert np.allclose(shares(temperature=0.0), [1, 0, 0, 0])


def test_of_equally_likely_tokens_the_first_are_taken():
    logits = jnp.array([[0.0, 2.0, 2.0, 2.0, -0.0], [-0.0, 0.0, -1.0, 0.0, -0.0]])
    greedy = choose_token(logits, jax.random.key(0), temperature=0.0)

    def drawn(**choices):
        keys = jax.random.split(jax.random.key(0), 200)
        tokens = jax.vmap(lambda key: choose_token(logits, key, temperature=1.0, **choices))(keys)
        return [sorted(set(row.tolist())) for row in np.asarray(tokens).T]

    for one in ({"top_k": 1}, {"top_p": 1e-3}, {"top_p": 1e-60}):
        assert drawn(**one) == [[token] for token in greedy.tolist()] == [[1], [0]]
    assert drawn(top_k=2) == [[1, 2], [0, 1]]
    assert drawn(top_k=2, top_p=0.4) == [[1], [0]]


def test_the_least_temperature_takes_the_likeliest_of_large_logits():
    logits = jnp.array([[-1e30, 0.0, 1e30]])
    token = choose_token(logits, jax.random.key(0), temperature=LEAST_TEMPERATURE)
    assert token.tolist() == [2]


def test_the_same_key_gives_the_same_text():
    model = random_model("shared", small_config())
    prompt = token_ids(model.config, batch=3, length=2)
    texts = [generate(model, prompt, 8, key=jax.random.key(k)).array for k in (0, 0, 1)]
    assert np.array_equal(texts[0], texts[1])
    assert not np.array_equal(texts[0], texts[2])
    assert np.array_equal(texts[0][:, :2], prompt.array)


def test_axes_and_no_new_tokens():
    model = random_model("shared", small_config())
    prompt = hax.named(jnp.array([[[1, 2, 3]]]), ("host", "batch", "position"))
    assert generate(model, prompt, 0, temperature=0.0).axes == prompt.axes
    text = generate(model, prompt, 1, temperature=0.0)
    assert [(axis.name, axis.size) for axis in text.axes] == [
        ("host", 1),
        ("batch", 1),
        ("position", 4),
    ]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"max_new_tokens": 126}, "expected 0 to 125"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"temperature": float("nan")}, "temperature nan.*one from 1e-06 to 1e\\+06"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"temperature": 1e300}, "temperature 1e.300"),
        (
            {"temperature": 1e-40},
            "temperature 1e-40.*expected a temperature of 0, which takes the most likel",
        ),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"top_k": 0}, "top_k of at least 1"),
        ({"top_p": 0.0}, "top_p above 0"),
        ({"key": None}, "sampling needs a key"),
    ],
)
def test_bad_choices(choices, words):
    model = random_model("shared", small_config())
    good = {"max_new_tokens": 3, "key": jax.random.key(0)}
    with pytest.raises(ValueError, match=words):
        generate(model, token_ids(model.config, length=3), **{**good, **choices})


def test_the_adaptive_integrator_cannot_generate():
    model = random_model("hybrid", small_config(integrator="adaptive"))
    with pytest.raises(ValueError, match="fixed-step"):
        generate(model, token_ids(model.config), 3, temperature=0.0)


def test_text_is_generated_in_float32_where_products_have_rounded_operands():
    """Every way of generating; a longer prompt, on which the two types differ."""
    model = random_model("time_indexed_mlp", small_config(num_layers=2), scale=0.3)
    rounding = replace(model, config=replace(model.config, compute_dtype="mixed"))
    prompt, how = token_ids(model.config, length=9), {"key": jax.random.key(0), "temperature": 0.9}
    assert difference(model(prompt).array, rounding(prompt).array) > 1e-4
    for more in ({}, {"draft_depth": 1, "draft_tokens": 2}, {"stop_early": 0.1}):
        texts = [generate(of, prompt, 4, **how, **more) for of in (model, rounding)]
        assert difference(*texts) == 0.0
    streams = [list(stream(of, prompt, 4, **how)) for of in (model, rounding)]
    assert difference(*streams) == 0.0
