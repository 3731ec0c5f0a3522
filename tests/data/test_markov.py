"""The generated language: its entropy rate is exact, and its text is what it says."""

import math

import numpy as np
import pytest

from qkvflow.data import DataError, MarkovLanguage, load_corpus
from qkvflow.data.markov import stationary_distribution


def ids_of(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64) - ord("a")


def states_of(ids, language):
    states = np.zeros(len(ids) - language.order, np.int64)
    for k in range(language.order):
        states = states * language.symbols + ids[k : k + len(states)]
    return states


def test_two_states_have_the_closed_form():
    """pi = (b, a) / (a + b) and H = pi_0 h(a) + pi_1 h(b) with flip probabilities a and b."""
    language = MarkovLanguage(order=1, symbols=2, seed=5)
    (_, a), (b, _) = language.transition
    np.testing.assert_allclose(language.stationary, [b / (a + b), a / (a + b)], rtol=1e-12)

    def h(p):
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    expected = (b * h(a) + a * h(b)) / (a + b)
    assert abs(language.entropy_rate - expected) < 1e-13, language.entropy_rate - expected


def test_without_sharpness_it_is_uniform_noise():
    language = MarkovLanguage(order=2, symbols=5, sharpness=0.0)
    assert abs(language.entropy_rate - math.log(5)) < 1e-12


@pytest.mark.parametrize("sharpness", [0.5, 1.5, 10.0])
@pytest.mark.parametrize(("order", "symbols"), [(1, 2), (1, 26), (2, 8), (3, 4)])
def test_the_stationary_distribution_is_stationary(order, symbols, sharpness):
    language = MarkovLanguage(order=order, symbols=symbols, sharpness=sharpness)
    pi, p = language.stationary, language.transition
    moved = (pi[:, None] * p).reshape(symbols, -1).sum(axis=0)
    error = np.abs(moved - pi).max()
    assert error < 1e-13 and abs(pi.sum() - 1) < 1e-12 and (pi >= 0).all(), error


def test_a_slow_chain_is_solved_exactly():
    p = np.array([[1 - 1e-9, 1e-9], [3e-9, 1 - 3e-9]])
    np.testing.assert_allclose(stationary_distribution(p), [0.75, 0.25], rtol=1e-6)


def test_a_long_sample_has_this_entropy():
    """Mean -log P within 4 standard errors; the plug-in conditional entropy close below it."""
    language = MarkovLanguage(order=2, symbols=4, seed=2)
    ids = ids_of(language.sample(400_000, stream=7))
    states, after = states_of(ids, language), ids[language.order :]
    nats = -np.log(language.transition[states, after])
    # Batch means, because neighbouring symbols are not independent.
    means = nats[: len(nats) // 1000 * 1000].reshape(-1, 1000).mean(axis=1)
    error = means.std(ddof=1) / math.sqrt(len(means))
    difference = nats.mean() - language.entropy_rate
    assert abs(difference) < 4 * error, f"{difference:.5f} with standard error {error:.5f}"
    counts = np.zeros_like(language.transition)
    np.add.at(counts, (states, after), 1)
    rows = counts / counts.sum(axis=1, keepdims=True)
    plug_in = -(counts * np.log(rows)).sum() / counts.sum()
    assert abs(plug_in - language.entropy_rate) < 4 * error + 1e-3


def test_the_corpus_carries_its_entropy_rate_and_is_the_same_every_time():
    corpus, again = (load_corpus("markov:characters=5000") for _ in range(2))
    assert corpus.digest == again.digest
    assert corpus.entropy_rate == MarkovLanguage().entropy_rate
    lengths = {split: text.characters for split, text in corpus.splits.items()}
    assert lengths == {"train": 5000, "valid": 500, "test": 500}
    texts = {"".join(corpus.chunks(split))[:500] for split in corpus.splits}
    assert len(texts) == 3


def test_the_default_language_is_fixed_for_all_time():
    assert MarkovLanguage().sample(40, stream=0) == "fdfhgbahbadcfdfhgbbfdfhgbbfdfhgbebadcagc"
    assert abs(MarkovLanguage().entropy_rate - 0.9136764968000182) < 1e-12


def test_options_change_the_language():
    one, two = load_corpus("markov:characters=500"), load_corpus("markov:characters=500,seed=1")
    assert one.digest != two.digest and one.entropy_rate != two.entropy_rate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ordre=2", "Did you mean 'order'"),
        ("order=two", "not a int"),
        ("order=0,symbols=99,sharpness=-1", "order is 0.*symbols is 99.*sharpness is -1"),
        ("order=9,symbols=9", "smaller order"),
        ("seed=-1,characters=1", "seed is -1.*characters is 1"),
    ],
)
def test_wrong_options_are_all_named(options, message):
    with pytest.raises(DataError, match=message):
        load_corpus(f"markov:{options}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("characters=100000000000000", "characters is 100000000000000, expected 10 to 10,000,000"),
        ("order=1000000000000000000", "order is 1000000000000000000, expected 1 to 12"),
        ("symbols=1000000000000", "symbols is 1000000000000, expected 2 to 26"),
        ("seed=10000000000", "seed is 10000000000, expected 0 to"),
    ],
)
def test_numbers_that_are_too_large_are_refused_at_once(options, words):
    with pytest.raises(DataError, match=words):
        load_corpus(f"markov:{options}")
