"""The n-gram models against a dictionary, against themselves and on WikiText-2."""

import math
import os
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.data import CharTokenizer, DataError, NGramModel, load_corpus, prepare

needs_wikitext = pytest.mark.skipif(
    "QKVFLOW_DATA" not in os.environ, reason="QKVFLOW_DATA does not name a data directory"
)

WIKITEXT_2 = {
    "valid": [3.1955, 2.3493, 1.8863, 1.5110, 1.2831, 1.1977],
    "test": [3.1987, 2.3388, 1.8743, 1.4989, 1.2684, 1.1849],
}
"""Nats per character, order 1 to 6, of the whole of WikiText-2."""


def slow_nats(train, text, vocab_size, order):
    """Witten-Bell straight from its definition, with dictionaries, for orders 1 to `order`."""
    after = defaultdict(Counter)
    for n in range(order):
        for i in range(n, len(train)):
            after[tuple(train[i - n : i])][train[i]] += 1

    def probability(word, context):
        lower = probability(word, context[1:]) if context else 1 / vocab_size
        seen = after.get(context)
        if not seen:
            return lower
        return (seen[word] + len(seen) * lower) / (sum(seen.values()) + len(seen))

    def nats(n):
        contexts = (tuple(text[max(i - n + 1, 0) : i]) for i in range(len(text)))
        ps = [probability(w, h) for w, h in zip(text, contexts, strict=True)]
        return -sum(map(math.log, ps)) / len(ps)

    return [nats(n) for n in range(1, order + 1)]


@settings(deadline=None, max_examples=60)
@given(
    vocab_size=st.integers(1, 5),
    order=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    lengths=st.tuples(st.integers(6, 200), st.integers(1, 60)),
)
def test_equals_the_dictionary(vocab_size, order, seed, lengths):
    rng = np.random.default_rng(seed)
    train, text = (rng.integers(0, vocab_size, n) for n in lengths)
    fast = NGramModel.fit(train, vocab_size=vocab_size + 1, order=order).nats_by_order(text)
    slow = slow_nats(train.tolist(), text.tolist(), vocab_size + 1, order)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@needs_wikitext
def test_equals_the_dictionary_on_a_slice_of_wikitext():
    corpus = load_corpus("wikitext-2")
    train = next(corpus.chunks("train"))[:60_000]
    valid = next(corpus.chunks("valid"))[:3_000]
    tokenizer = CharTokenizer.fit([train])
    ids = [tokenizer.encode(text) for text in (train, valid)]
    fast = NGramModel.fit(ids[0], vocab_size=tokenizer.vocab_size, order=6).nats_by_order(ids[1])
    slow = slow_nats(ids[0].tolist(), ids[1].tolist(), tokenizer.vocab_size, 6)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


def distribution(model, context):
    """P(w | context) for every w, of shape [V]."""
    texts = [np.array([*context, word]) for word in range(model.vocab_size)]
    return np.array([model.probabilities(text)[-1][-1] for text in texts])


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize("context", [[], [0], [1, 2, 0, 1, 2], [4, 4, 4, 4, 4, 4], [3, 4]])
def test_probabilities_sum_to_one_also_after_what_was_never_seen(order, context):
    train = np.random.default_rng(1).integers(0, 4, 300)
    p = distribution(NGramModel.fit(train, vocab_size=6, order=order), context)
    assert p.shape == (6,) and (p > 0).all()
    assert abs(p.sum() - 1) < 1e-12, p.sum() - 1


def test_closed_form_of_order_one():
    model = NGramModel.fit(np.array([0, 0, 0, 1]), vocab_size=4, order=1)
    # N = 4 tokens, T = 2 kinds, V = 4: (c + 2/4) / 6
    np.testing.assert_allclose(distribution(model, []), np.array([3.5, 1.5, 0.5, 0.5]) / 6)


def test_a_large_vocabulary_does_not_overflow():
    rng = np.random.default_rng(2)
    train, text = rng.integers(0, 200_000, 500) // 1, rng.integers(0, 200_000, 50)
    text[10:30] = train[100:120]
    fast = NGramModel.fit(train, vocab_size=200_000, order=6).nats_by_order(text)
    slow = slow_nats(train.tolist(), text.tolist(), 200_000, 6)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@pytest.mark.parametrize(
    ("train", "order", "message"),
    [([0, 1], 0, "order is 0"), ([0, 1], 3, "has 2 tokens"), ([0, 9], 1, "ids from 0 to 9")],
)
def test_impossible_fits_are_refused(train, order, message):
    with pytest.raises(DataError, match=message):
        NGramModel.fit(np.array(train), vocab_size=4, order=order)


def test_a_text_of_another_tokenizer_or_none_is_refused():
    model = NGramModel.fit(np.array([0, 1, 0]), vocab_size=2, order=2)
    with pytest.raises(DataError, match="vocabulary has 2"):
        model.nats_by_order(np.array([0, 2]))
    with pytest.raises(DataError, match="no tokens"):
        model.nats_by_order(np.array([], np.int64))


@needs_wikitext
@pytest.mark.slow
def test_the_table_of_wikitext_2(tmp_path):
    corpus = load_corpus("wikitext-2")
    dataset = prepare(corpus, CharTokenizer.fit(corpus.chunks("train")), tmp_path)
    size = dataset.tokenizer.vocab_size
    model = NGramModel.fit(dataset["train"].ids, vocab_size=size, order=6)
    for split, expected in WIKITEXT_2.items():
        measured = model.nats_by_order(dataset[split].ids)
        print(split, " ".join(f"{nats:.4f}" for nats in measured))
        np.testing.assert_allclose(measured, expected, atol=5e-4)
