"""Drafts: the tokens of plain generation, or its distribution, whatever the draft proposes."""

import itertools
import logging

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from qkvflow.generate import Drafted, drafts, generate, generate_with_drafts
from qkvflow.generate.choosing import token_probabilities
from qkvflow.generate.drafts import share_to_pay
from qkvflow.models import MODELS, build_model
from tests.support import FIXED_STEP, random_model, small_config, token_ids

COUNT = 24


def check_greedy(model, batch=3, **how):
    """Compare with plain generation, and return what became of the drafts."""
    prompt = token_ids(model.config, batch=batch, length=4)
    expected = generate(model, prompt, COUNT, temperature=0.0).array
    drafted = generate_with_drafts(model, prompt, COUNT, temperature=0.0, **how)
    assert np.array_equal(drafted.text.array, expected)
    return drafted


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize(
    ("name", "flavour"), [*((name, "modern") for name in MODELS), ("standard", "gpt2")]
)
def test_greedy_with_drafts_is_greedy_without(name, flavour):
    config = small_config(flavour=flavour, num_layers=3)
    models = [random_model(name, config, seed, scale) for seed, scale in enumerate((0.2, 0.3, 1.0))]
    drafted = [check_greedy(model, draft_depth=1, draft_tokens=3) for model in models]
    assert all(each.plain == 0 for each in drafted)
    assert 0 < sum(each.accepted for each in drafted) < sum(each.proposed for each in drafted)


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize("name", ["standard", "time_indexed_ssm"])
def test_rows_that_accept_different_numbers_keep_their_own_positions(name):
    config = small_config(flavour="llama", num_layers=4)
    model = random_model(name, config, seed=1)
    prompt = token_ids(config, batch=3, length=4)
    together = check_greedy(model, draft_depth=2, draft_tokens=3)
    alone = [
        generate_with_drafts(model, row, COUNT, temperature=0.0, draft_depth=2, draft_tokens=3)
        for row in (prompt["batch", i : i + 1] for i in range(3))
    ]
    assert np.array_equal(np.concatenate([d.text.array for d in alone]), together.text.array)
    assert sum(d.accepted for d in alone) == together.accepted
    assert sum(d.proposed for d in alone) == together.proposed
    assert len({d.proposed for d in alone}) > 1, [(d.proposed, d.accepted) for d in alone]
    assert 0 < together.acceptance < 1


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize("integrator", FIXED_STEP)
def test_every_integrator_can_draft(integrator):
    model = random_model("hybrid", small_config(num_layers=2, integrator=integrator), scale=0.2)
    check_greedy(model, draft_depth=1, draft_tokens=2)


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize("name", ["standard", "time_indexed_ssm"])
def test_layers_of_a_deep_model_are_scanned(name):
    model = random_model(name, small_config(num_layers=34), scale=0.02)
    check_greedy(model, draft_depth=2, draft_tokens=2)


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize("name", ["standard", "time_indexed_ssm"])
def test_a_text_may_fill_all_positions_from_a_prompt_of_one_token(name):
    config = small_config(num_layers=2, max_position_embeddings=9)
    model = random_model(name, config, scale=0.1)
    prompt = token_ids(config, length=1)
    expected = generate(model, prompt, 8, temperature=0.0).array
    for tokens in (1, 9):
        found = generate(model, prompt, 8, temperature=0.0, draft_depth=1, draft_tokens=tokens)
        assert np.array_equal(found.array, expected)


def exact_distribution(model, prompt, count, **how):
    """Probabilities of all continuations of one prompt [position], by the whole text each."""
    endings = np.array([*itertools.product(range(model.config.vocab_size), repeat=count)], np.int32)
    whole = np.concatenate([np.repeat(prompt[None], len(endings), 0), endings], axis=1)
    logits = model(hax.named(jnp.asarray(whole), ("batch", "position"))).array
    chances = token_probabilities(logits[:, len(prompt) - 1 : -1], **how)
    own = jnp.take_along_axis(chances, jnp.asarray(endings)[..., None], axis=-1)[..., 0]
    return np.prod(np.asarray(own, np.float64), axis=1)


SAMPLES = 6000
WAYS = [
    ("standard", 1, 0.4, {"temperature": 1.0}),
    ("standard", 1, 0.4, {"temperature": 0.7, "top_k": 2}),
    ("time_indexed_ssm", 3, 0.7, {"temperature": 1.0}),
    ("time_indexed_ssm", 3, 0.7, {"temperature": 1.3, "top_p": 0.8}),
    ("hybrid", 3, 0.7, {"temperature": 1.2, "top_k": 2, "top_p": 0.9}),
]
"""Models with their seed and scale, whose drafts are wrong often enough."""


@pytest.mark.usefixtures("drafts_are_cheap")
@pytest.mark.parametrize(("name", "seed", "scale", "how"), WAYS)
def test_sampling_with_drafts_has_the_exact_distribution(name, seed, scale, how):
    """Four tokens: the first from the prompt, the others by a round that may end at any of them."""
    model = random_model(name, small_config(num_layers=2, vocab_size=3), seed, scale)
    prompt = np.array([1, 0, 2], np.int32)
    rows = hax.named(jnp.asarray(np.repeat(prompt[None], SAMPLES, 0)), ("batch", "position"))
    key = jax.random.key(0)
    drafted = generate_with_drafts(model, rows, 4, key=key, draft_depth=1, draft_tokens=2, **how)
    assert 0.2 < drafted.acceptance < 0.9, drafted.acceptance
    digits = np.asarray(drafted.text.array)[:, 3:] @ 3 ** np.arange(4)[::-1]
    counts, expected = np.bincount(digits, minlength=81), exact_distribution(model, prompt, 4, **how)
    assert counts[expected == 0].sum() == 0
    likely = expected * SAMPLES > 5
    observed = np.append(counts[likely], counts[~likely].sum() + 1e-9)
    wanted = np.append(expected[likely], expected[~likely].sum() + 1e-9)
    found = chisquare(observed, wanted / wanted.sum() * observed.sum())
    assert found.pvalue > 1e-3, found


def test_what_does_not_pay_is_given_up_and_said(monkeypatch, drafts_are_cheap):
    monkeypatch.setattr(drafts, "COSTS", drafts.Costs(0.5, 0.1, 0.0))
    monkeypatch.setattr(drafts, "PATIENCE", 1.0)
    model = random_model("standard", small_config(num_layers=8), scale=0.3)
    drafted = check_greedy(model, batch=1, draft_depth=1, draft_tokens=2)
    rounds = drafted.proposed // 2
    assert drafted.needed < 1 and 0 < rounds < COUNT / 2
    assert drafted.needed * drafted.proposed - drafted.accepted > 1.0
    assert drafted.plain == COUNT - 1 - rounds - drafted.accepted
    assert f"other {drafted.plain} tokens were generated without drafts" in drafted.note


def test_what_cannot_pay_is_not_begun():
    model = random_model("shared", small_config(), scale=0.3)
    drafted = check_greedy(model, draft_depth=2)
    assert drafted.proposed == 0 and drafted.needed >= 1 and drafted.plain == 3 * COUNT
    assert "even if every proposed token were accepted" in drafted.note


@pytest.mark.parametrize(
    ("width", "layers", "tokens", "measured", "stood"),
    [
        (256, 12, 4, 1.47, 0.78),
        (256, 12, 3, 1.34, 0.76),
        (256, 8, 4, 1.16, 0.78),
        (256, 8, 2, 0.89, 0.81),
        (128, 12, 4, 0.88, 0.80),
        (128, 12, 2, 0.76, 0.90),
    ],
)
def test_what_drafts_cost_is_near_what_was_measured(width, layers, tokens, measured, stood):
    """Drafts of two layers of `time_indexed_mlp`: times the tokens per second, share that stood."""
    shape = {"hidden_dim": width, "num_heads": 4, "num_layers": layers, "vocab_size": 284}
    config = small_config(flavour="llama", mlp_ratio=8 / 3, **shape)
    model = eqx.filter_eval_shape(build_model, "time_indexed_mlp", config, key=jax.random.key(0))
    expected = (1 + stood * tokens) / (1 + tokens * share_to_pay(model, 2, tokens, 1, 128))
    assert 0.8 < expected / measured < 1.2, expected


def test_drafts_pay_less_for_more_rows_and_for_deeper_drafts():
    config = small_config(hidden_dim=256, num_heads=4, num_layers=16)
    model = eqx.filter_eval_shape(build_model, "standard", config, key=jax.random.key(0))

    def share(depth, rows):
        return share_to_pay(model, depth, 4, rows, 100)

    assert share(1, 1) < share(2, 1) < 1
    assert share(2, 4) < share(2, 16) < 1 < share(2, 64)
    assert share(16, 1) > 1


def test_a_result_without_proposals_has_no_acceptance():
    model = random_model("shared", small_config())
    prompt = token_ids(model.config)
    none = generate_with_drafts(model, prompt, 0, temperature=0.0, draft_depth=1)
    assert none.text.axes == prompt.axes and none.acceptance == 0 and none.note is None
    assert Drafted(prompt, 1, 8, 6, 0.5, 0).acceptance == 0.75


def test_a_second_call_does_not_recompile(caplog):
    model = random_model("time_indexed_mlp", small_config(num_layers=6))
    prompt = token_ids(model.config, batch=1)
    how = {"draft_depth": 1, "draft_tokens": 2, "temperature": 0.9}
    generate_with_drafts(model, prompt, 7, key=jax.random.key(0), **how)
    other = random_model("time_indexed_mlp", model.config, seed=1)
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        generate_with_drafts(other, prompt, 7, key=jax.random.key(1), **how)
    assert "Compiling" not in caplog.text, caplog.text


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"draft_depth": 3}, "draft_depth is 3 and this model has 2 layers; expected .* from 1 to 2"),
        ({"draft_depth": 0}, "draft_depth is 0"),
        ({"draft_depth": -1}, "draft_depth is -1"),
        ({"draft_depth": 1.5}, "draft_depth is 1.5"),
        ({"draft_depth": True}, "draft_depth is True"),
        ({"draft_tokens": 0}, "draft_tokens is 0; expected a whole number of tokens from 1 to 128"),
        ({"draft_tokens": 129}, "draft_tokens is 129"),
        ({"draft_depth": 0, "top_k": 0}, "(?s)top_k 0.*draft_depth is 0"),
    ],
)
def test_bad_choices_are_a_sentence_before_any_work(choices, words):
    model = random_model("shared", small_config())
    good = {"draft_depth": 1, "temperature": 0.0}
    with pytest.raises(ValueError, match=words):
        generate(model, token_ids(model.config), 3, **{**good, **choices})


def test_the_adaptive_integrator_cannot_draft():
    model = random_model("hybrid", small_config(integrator="adaptive"))
    with pytest.raises(ValueError, match="fixed-step"):
        generate(model, token_ids(model.config), 3, temperature=0.0, draft_depth=1)
