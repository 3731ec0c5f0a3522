"""Text as it comes: the tokens of `generate`, one layer compiled, whatever the depth and the number."""

import itertools
import logging
import re

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import ConfigError
from qkvflow.generate import drafts, generate, generate_stopping_early, generate_with_drafts, stream
from qkvflow.models import MODELS
from tests.support import random_model, small_config, token_ids

COUNT = 10
KEY = jax.random.key(3)
LAYERS_OF_THEIR_OWN = {
    "parts": ("attention", "ssm"),
    "weights": {"family": "per_layer", "layers": ["attention ssm", "ssm", "attention"]},
    "num_layers": 3,
}


def streamed(model, prompt, count=COUNT, **how):
    """All new tokens [batch, position], and in how many blocks they came."""
    blocks = [block.array for block in stream(model, prompt, count, **how)]
    return np.concatenate(blocks, axis=1), len(blocks)


def generated(model, prompt, count=COUNT, **how):
    return np.asarray(generate(model, prompt, count, **how).array)[:, prompt.array.shape[1] :]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_generate_and_come_one_by_one(name):
    model = random_model(name, small_config(flavour="modern"))
    prompt = token_ids(model.config, length=4)
    for how in ({"temperature": 0.0}, {"key": KEY, "temperature": 1.3, "top_k": 9, "top_p": 0.95}):
        tokens, blocks = streamed(model, prompt, **how)
        assert np.array_equal(tokens, generated(model, prompt, **how))
        assert blocks == COUNT


@pytest.mark.parametrize(
    "changes",
    [
        {"flavour": "gpt2", "integrator": "rk4"},
        {"num_layers": 40, "flavour": "gpt2"},  # scanned
        LAYERS_OF_THEIR_OWN,
        {"streams": 2, "stream_mix": "input", "mix_embedding": "gate"},
    ],
)
def test_whatever_a_layer_is(changes):
    model = random_model("standard", small_config(**changes), scale=0.1)
    prompt = token_ids(model.config, length=4)
    assert np.array_equal(streamed(model, prompt, key=KEY)[0], generated(model, prompt, key=KEY))


def by_windows(model, text, count, way):
    """New tokens of one row, by a function that continues one window after the other."""
    longest, end = model.config.max_position_embeddings, text.shape[1] + count
    begun = text.shape[1]
    for number in itertools.count():
        if text.shape[1] == end:
            return text[:, begun:]
        window = text if text.shape[1] < longest else text[:, -(longest // 2) :]
        key = jax.random.fold_in(KEY, number) if number else KEY
        new = min(end - text.shape[1], longest - window.shape[1])
        named = hax.named(jnp.asarray(window), ("batch", "position"))
        whole = np.asarray(way(model, named, new, key=key).array)
        text = np.concatenate([text, whole[:, window.shape[1] :]], axis=1)


def drafting(model, prompt, count, key):
    return generate_with_drafts(model, prompt, count, key=key, draft_depth=1, draft_tokens=3).text


def stopping(model, prompt, count, key):
    return generate_stopping_early(model, prompt, count, key=key, bound=0.1).text


WAYS = [
    (generate, {}),
    (drafting, {"draft_depth": 1, "draft_tokens": 3}),
    (stopping, {"stop_early": 0.1}),
]


@pytest.mark.parametrize(("way", "how"), WAYS, ids=["plain", "drafts", "stopping early"])
@pytest.mark.usefixtures("drafts_are_cheap")
def test_beyond_the_longest_sequence(way, how):
    """A prompt that is longer than the model sees, too: it begins with the second half."""
    config = small_config(num_layers=3, max_position_embeddings=12)
    model = random_model("standard", config, scale=0.2)
    prompt = token_ids(config, batch=1, length=15)
    found = stream(model, prompt, 12, key=KEY, **how)
    tokens = np.concatenate([block.array for block in found], axis=1)
    assert np.array_equal(tokens, by_windows(model, np.asarray(prompt.array), 12, way))
    windows = len(found.drafted) + len(found.stopped)
    assert windows == (0 if way is generate else 2)


def test_from_a_short_prompt_to_beyond_the_longest_sequence():
    config = small_config(max_position_embeddings=12)
    model, prompt = random_model("time_indexed_ssm", config), token_ids(config, batch=1, length=6)
    expected = by_windows(model, np.asarray(prompt.array), 12, generate)
    assert np.array_equal(streamed(model, prompt, 12, key=KEY)[0], expected)


@pytest.mark.parametrize(("patience", "token"), [(1000.0, 0.0), (1.0, 0.25)])
def test_drafts_come_in_blocks_and_what_became_of_them_is_known(
    drafts_are_cheap, monkeypatch, patience, token
):
    """Rows accept different numbers of proposals; those that do not pay are given up."""
    monkeypatch.setattr(drafts, "COSTS", drafts.Costs(0.0, token, 0.0))
    monkeypatch.setattr(drafts, "PATIENCE", patience)
    model = random_model("standard", small_config(num_layers=4, flavour="llama"), seed=1)
    prompt = token_ids(model.config, batch=3, length=4)
    how = {"draft_depth": 1, "draft_tokens": 3, "key": KEY}
    expected = generate_with_drafts(model, prompt, 24, **how)
    found = stream(model, prompt, 24, **how)
    blocks = [block.array for block in found]
    assert np.array_equal(np.concatenate(blocks, axis=1), expected.text.array[:, 4:])
    (drafted,) = found.drafted
    assert np.array_equal(drafted.text.array, expected.text.array)
    assert vars(drafted) | {"text": 0} == vars(expected) | {"text": 0}
    assert 0 < drafted.accepted < drafted.proposed and (drafted.plain > 0) == (patience == 1)
    assert len(blocks) < 24 or patience == 1


def test_drafts_that_cannot_pay_are_not_begun():
    model = random_model("shared", small_config())
    prompt = token_ids(model.config, batch=1, length=4)
    found = stream(model, prompt, 6, key=KEY, draft_depth=2)
    tokens = np.concatenate([block.array for block in found], axis=1)
    assert np.array_equal(tokens, generated(model, prompt, 6, key=KEY))
    assert found.drafted[0].needed >= 1 and found.drafted[0].plain == 6


def test_layers_of_stopped_tokens_are_known():
    model = random_model("standard", small_config(num_layers=4, flavour="llama"), scale=0.2)
    prompt = token_ids(model.config, length=5)
    how = {"key": KEY, "temperature": 0.9}
    expected = generate_stopping_early(model, prompt, 8, bound=0.1, **how)
    found = stream(model, prompt, 8, stop_early=0.1, **how)
    assert np.array_equal(np.concatenate([b.array for b in found], axis=1), expected.text.array[:, 5:])
    assert abs(found.stopped[0].layers - expected.layers) < 1e-5


def compiled(caplog, run):
    """The programs that are compiled while something runs, by name."""
    jax.clear_caches()
    caplog.clear()
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        run()
    return sorted(re.findall(r"Compiling (?:jit\()?([\w<>]+)", caplog.text))


def test_what_is_compiled_depends_on_neither_depth_nor_number_of_tokens(caplog):
    def programs(layers, count):
        model = random_model("time_indexed_mlp", small_config(num_layers=layers))
        prompt = token_ids(model.config, batch=1, length=4)
        return compiled(caplog, lambda: streamed(model, prompt, count, temperature=0.0))

    first = programs(2, 4)
    assert "_through_one" in first
    assert programs(9, 4) == first
    assert {*programs(2, 40)} == {*first}


def test_a_second_text_compiles_nothing(caplog):
    model = random_model("time_indexed_ssm", small_config())
    prompt = token_ids(model.config, batch=1, length=4)
    streamed(model, prompt, 5, key=KEY)
    other = random_model("time_indexed_ssm", small_config(), seed=1)
    with jax.log_compiles(), caplog.at_level(logging.DEBUG):
        streamed(other, token_ids(model.config, batch=1, length=4, seed=2), 5, key=jax.random.key(0))
    assert "Compiling" not in caplog.text, caplog.text


def test_tokens_are_there_before_the_text_is():
    model = random_model("shared", small_config(max_position_embeddings=16))
    prompt = token_ids(model.config, batch=1, length=3)
    first = [*itertools.islice(stream(model, prompt, 10**9, key=KEY), 3)]
    tokens = np.concatenate([block.array for block in first], axis=1)
    assert np.array_equal(tokens, generated(model, prompt, 13, key=KEY)[:, :3])


def test_axes_of_a_block_and_no_tokens():
    model = random_model("shared", small_config())
    prompt = hax.named(jnp.array([[[1, 2, 3]]]), ("host", "batch", "position"))
    (block,) = stream(model, prompt, 1, temperature=0.0)
    assert [(axis.name, axis.size) for axis in block.axes] == [
        ("host", 1),
        ("batch", 1),
        ("position", 1),
    ]
    assert not [*stream(model, prompt, 0, temperature=0.0)]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"key": None}, "sampling needs a key"),
        ({"draft_depth": 3}, "draft_depth is 3 and this model has 2 layers"),
        ({"draft_depth": 1, "stop_early": 0.1}, "leave one out"),
        ({"stop_early": 2.0}, "stop_early is 2.0"),
    ],
)
def test_bad_choices_are_refused_before_the_first_token_is_asked_for(choices, words):
    model = random_model("shared", small_config())
    good = {"max_new_tokens": 3, "key": KEY}
    with pytest.raises(ConfigError, match=words):
        stream(model, token_ids(model.config, length=3), **{**good, **choices})


def test_a_model_of_one_position_cannot_go_on():
    model = random_model("shared", small_config(max_position_embeddings=1))
    with pytest.raises(ConfigError, match="one position only"):
        stream(model, token_ids(model.config, length=1), 3, temperature=0.0)
