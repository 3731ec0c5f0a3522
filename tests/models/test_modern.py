"""The choices of the modern flavour: against plain numpy, alone in other flavours, at their start."""

import equinox as eqx
import haliax as hax
import jax
import numpy as np
import pytest

from qkvflow.generate import generate
from qkvflow.models import MODELS, build_model, unroll
from qkvflow.models.language_model import final_state
from qkvflow.nn.weights import resolve
from tests.support import difference, random_model, small_config, token_ids

CHOICES = {
    "positions": "rotary",
    "norm_kind": "rms",
    "gated_mlp": True,
    "activation_function": "relu2",
    "embedding_norm": True,
    "qk_norm": True,
    "zero_outputs": True,
    "mix_embedding": True,
    "value_residual": True,
    "logit_cap": 3.0,
}


def array(named):
    return np.asarray(named.array, np.float64)


def rms(norm, x, epsilon=1e-5):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * array(norm.weight)


def rotated(x, base=10000.0):
    """[position, D], in pairs (k, k + D / 2)."""
    length, size = x.shape
    angle = np.arange(length)[:, None] * base ** (-np.arange(0, size, 2) / size)[None]
    first, second = x[:, : size // 2], x[:, size // 2 :]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


def attended(part, x, first_values):
    """Attention of one text [position, E]; head by head."""
    qkv, out = array(part.qkv.weight), array(part.out.weight)
    own, first = array(part.value_mix.weight)
    mask = np.tril(np.ones((len(x), len(x)), bool))
    total, all_values = np.zeros_like(x), []
    for k in range(out.shape[0]):
        values = x @ qkv[:, k, -1]
        all_values.append(values)
        values = own * values + first * (values if first_values is None else first_values[k])
        key = rotated(rms(part.key_norm, x @ qkv[:, k, -2]))
        for g in range(out.shape[1]):
            query = rotated(rms(part.query_norm, x @ qkv[:, k, g]))
            scores = np.where(mask, query @ key.T / np.sqrt(key.shape[1]), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            total += weights / weights.sum(-1, keepdims=True) @ values @ out[k, g]
    return total, all_values


def by_hand(model, ids):
    """The logits of one text, layer by layer, in double precision."""
    transformer = model.transformer
    x = start = rms(transformer.embedding_norm, array(transformer.wte.weight)[ids])
    first_values = None
    for t in model.plan().times[:, 0]:
        block = resolve(transformer.blocks, t)
        own, embedding = array(block.mix.weight)
        gate = 1.0
        if block.gate is not None:
            bias, weight = array(block.gate.map.bias), array(block.gate.map.weight)
            gate = 2 / (1 + np.exp(-(rms(block.gate.norm, x) @ weight + bias)))
        x = own * x + embedding * gate * start
        attention, mlp = block.parts["attention"], block.parts["mlp"]
        change, values = attended(attention.part, rms(attention.norm, x), first_values)
        first_values = first_values or values
        x = x + change
        hidden = np.maximum(rms(mlp.norm, x) @ array(mlp.part.up.weight)[:, 0], 0.0) ** 2
        x = x + hidden @ array(mlp.part.down.weight)
    logits = rms(transformer.ln_f, x) @ array(model.lm_head.weight)
    return 15.0 * np.tanh(logits / 15.0)


@pytest.mark.parametrize(
    ("weights", "mix"),
    [
        ("per_layer", True),
        ("gated", True),
        ("generated", True),
        ("per_layer", "gate"),
        ("gated", "gate"),
    ],
)
def test_a_modern_model_is_what_it_says(weights, mix):
    config = small_config(flavour="modern", weights=weights, num_layers=3, mix_embedding=mix)
    model = random_model("standard", config, scale=0.4)
    ids = token_ids(config, batch=1, length=7)
    expected = by_hand(model, np.asarray(ids.array)[0])
    assert np.abs(expected).max() > 0.5
    assert np.abs(np.asarray(model(ids).array)[0] - expected).max() < 1e-4


@pytest.mark.parametrize(("choice", "value"), [*CHOICES.items(), ("mix_embedding", "gate")])
def test_every_choice_can_be_made_in_gpt2_and_works_at_any_depth_and_token_by_token(choice, value):
    config = small_config(num_heads=4, **{choice: value})
    model, ids = random_model("time_indexed_mlp", config), token_ids(config)
    plain = random_model("time_indexed_mlp", small_config(num_heads=4))
    same = choice == "zero_outputs"  # a matter of the start only
    assert (difference(model(ids).array, plain(ids).array) == 0.0) == same
    assert difference(unroll(model, 2)(ids).array, model(ids).array) < 1e-5
    greedy = generate(model, ids, 5, temperature=0.0)
    again = np.asarray(model(greedy).array).argmax(-1)[:, 8:-1]
    assert np.array_equal(again, np.asarray(greedy.array)[:, 9:])


@pytest.mark.parametrize("name", MODELS)
def test_a_modern_model_starts_with_layers_that_change_nothing(name):
    config = small_config(flavour="modern", num_layers=3)
    model = build_model(name, config, key=jax.random.key(0))
    ids = token_ids(config)
    embedded = hax.named(model.embed(ids.array).array, ("batch", "position", "embed"))
    assert difference(model(ids).array, model.head(embedded)) < 1e-5


@pytest.mark.parametrize("integrator", ["euler", "heun", "rk4", "adaptive"])
def test_what_layers_take_of_the_embedding_is_part_of_the_field(integrator):
    """With shares a and b and no parts that act, dx/dt = (a - 1) x + b x(0)."""
    config = small_config(flavour="modern", integrator=integrator, weights="shared", num_layers=64)
    model = build_model("standard", config, key=jax.random.key(0))  # parts start at zero
    shares = model.transformer.blocks.mix.value.weight
    mixed = hax.named(np.array([0.2, 0.5], np.float32), shares.axes)
    model = eqx.tree_at(lambda m: m.transformer.blocks.mix.value.weight, model, mixed)
    x = model.embed(token_ids(config).array)
    found = final_state(model, token_ids(config).array, None, None).array
    grown = np.exp(-0.8) + 0.5 / 0.8 * (1 - np.exp(-0.8))
    tolerance = 1e-2 if integrator == "euler" else 2e-3 if integrator == "adaptive" else 1e-4
    assert np.abs(np.asarray(found / x.array) - grown).max() < tolerance
