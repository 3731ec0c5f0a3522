"""Scores and continuations: every token once, in any batch, as the model alone would have it."""

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.generate import generate
from qkvflow.harness.scoring import rows_of, scores
from qkvflow.harness.writing import Text, Wish, continue_texts
from tests.harness.support import (
    LANGUAGE,
    POSITIONS,
    TOKENIZER,
    likeliest,
    log_probability,
    markov_model,
)
from tests.support import random_model, small_config


@pytest.fixture(autouse=True)
def _as_usual():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def encoded(text):
    return TOKENIZER.encode(text).astype(np.int32)


@pytest.mark.parametrize("longest", [1, 2, 7, 50])
@pytest.mark.parametrize(
    ("before", "after"), [(0, 1), (0, 30), (1, 30), (5, 9), (20, 3), (20, 40), (7, 7)]
)
def test_every_token_is_scored_once_from_what_precedes_it(longest, before, after):
    ids = np.arange(before + after)
    rows = rows_of(ids[:before], ids[before:], longest)
    scored = [i for row in rows for i in row.ids[len(row.ids) - row.scored :]]
    assert scored == list(range(max(before, 1), before + after))
    for row in rows:
        assert 2 <= len(row.ids) <= longest + 1
        assert np.array_equal(row.ids, np.arange(row.ids[0], row.ids[0] + len(row.ids)))
    if after <= longest and rows:
        assert len(rows) == 1, "one row where there is room for it"
        assert len(rows[0].ids) == min(before + after, longest + 1), "with as much before as fits"


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_scores_are_those_of_the_markov_chain(batch_size):
    texts = [LANGUAGE.sample(length, stream) for stream, length in enumerate((2, 90, 17, 40, 5, 63))]
    pairs = [(text[:cut], text[cut:]) for text in texts for cut in (0, 1, len(text) // 2)]
    found = scores(markov_model(), [(encoded(a), encoded(b)) for a, b in pairs], batch_size)
    for (before, text), score in zip(pairs, found):
        expected = log_probability(before, text)
        error = abs(score.log_probability - expected)
        assert error < 1e-4, f"{error} of {expected}"


def test_greedy_is_what_the_chain_would_say():
    pairs = [("a", likeliest("a", 40)), ("a", likeliest("a", 39) + "a"), ("b", likeliest("b", 3))]
    found = scores(markov_model(), [(encoded(a), encoded(b)) for a, b in pairs], 2)
    assert [score.greedy for score in found] == [b == likeliest(a, len(b)) for a, b in pairs]
    assert found[0].greedy


def test_no_continuation_is_certain():
    (score,) = scores(markov_model(), [(encoded("abc"), encoded(""))], 2)
    assert score.log_probability == 0.0 and score.greedy


@pytest.mark.parametrize(
    "changes", [{}, {"parts": ("attention", "ssm")}, {"flavour": "modern"}], ids=str
)
def test_scores_do_not_depend_on_the_batch(changes):
    """Against log-probabilities of one row at a time, without padding, of a random model."""
    model = random_model("time_indexed_mlp", small_config(max_position_embeddings=20, **changes))
    noise = np.random.default_rng(0)
    pairs = [
        (noise.integers(0, 13, before), noise.integers(0, 13, after))
        for before, after in ((1, 4), (7, 9), (15, 5), (0, 6))
    ]
    for (before, after), score in zip(pairs, scores(model, pairs, 3)):
        whole = np.concatenate([before, after]).astype(np.int32)
        logits = model(hax.named(jnp.asarray(whole[None]), ("batch", "position"))).array[0]
        known = np.asarray(jax.nn.log_softmax(logits, axis=-1))
        expected = sum(known[i - 1, whole[i]] for i in range(max(len(before), 1), len(whole)))
        assert abs(score.log_probability - expected) < 1e-4


def continued(model, prompts, wish, batch_size=2, tokenizer=TOKENIZER):
    texts = [Text(prompt, wish) for prompt in prompts]
    return continue_texts(model, tokenizer, texts, batch_size, jax.random.key(0))


def test_continuations_are_those_of_the_chain_past_the_longest_sequence():
    prompts = ["a", "bc", "h", LANGUAGE.sample(70, 1), "ge"]
    found = continued(markov_model(), map(encoded, prompts), Wish((), 3 * POSITIONS))
    assert found == [likeliest(prompt, 3 * POSITIONS) for prompt in prompts]


def test_stop_strings_end_a_continuation_before_them():
    whole = likeliest("a", 60)
    for stop in (whole[20:23], whole[3], "never", ""):
        (found,) = continued(markov_model(), [encoded("a")], Wish((stop, "zz"), 60))
        assert found == (whole.split(stop)[0] if stop and stop in whole else whole)
    both = Wish((whole[5:8], whole[1:4]), 60)
    assert continued(markov_model(), [encoded("a")], both) == [whole[: whole.index(whole[1:4])]]


@pytest.mark.parametrize(
    "changes", [{}, {"parts": ("attention", "ssm")}, {"flavour": "modern"}, {"num_layers": 33}], ids=str
)
def test_prompts_of_any_length_are_continued_as_generate_does(changes):
    """num_layers 33: layers in one scan, whose caches are stacked."""
    model = random_model("time_indexed_mlp", small_config(vocab_size=9, **changes))
    prompts = [np.arange(length) % 9 for length in (1, 5, 8, 21)]
    found = continued(model, prompts, Wish((), 20), batch_size=3)
    for prompt, text in zip(prompts, found):
        ids = hax.named(jnp.asarray(prompt[None], jnp.int32), ("batch", "position"))
        expected = generate(model, ids, 20, temperature=0.0).array[0, len(prompt) :]
        assert text == TOKENIZER.decode(expected)


def test_tokens_drawn_by_chance_have_the_chance_of_the_chain():
    """The share of each symbol after one state, within four standard errors."""
    count = 600
    found = continued(
        markov_model(), [encoded("c")] * count, Wish((), 1, temperature=1.0), batch_size=100
    )
    for symbol, chance in zip("abcdefgh", LANGUAGE.transition[2]):
        error = (chance * (1 - chance) / count) ** 0.5
        assert abs(found.count(symbol) / count - chance) < 4 * error
