"""Batches: a pure function of (digest, seed, step), epochs permute. Evaluation: every target once."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.data import DataError, batch_at, eval_windows, never_targets, windows_per_epoch
from qkvflow.data.batches import permute, round_keys, window_starts

IDS = np.random.default_rng(0).integers(0, 60_000, 20_011).astype(np.uint16)
batch = partial(batch_at, IDS, digest="d", seed=3, batch_size=8, length=32)


def test_equal_calls_give_equal_batches_in_any_order_and_on_two_threads():
    steps = list(range(200))
    once = [batch(step=step) for step in steps]
    backwards = [batch(step=step) for step in reversed(steps)][::-1]
    with ThreadPoolExecutor(2) as pool:
        threaded = list(pool.map(lambda step: batch(step=step), steps))
    for other in (backwards, threaded):
        np.testing.assert_array_equal(np.array(once), np.array(other))


def test_batches_are_fixed_for_all_time():
    """A run that was begun with an earlier version must resume with the same windows."""
    starts = window_starts(20_011, digest="d", seed=3, first=0, count=6, length=32)
    assert starts.tolist() == [13405, 3005, 1661, 13501, 2973, 11805]


@pytest.mark.parametrize("change", [{"digest": "e"}, {"seed": 4}, {"step": 6}])
def test_every_argument_matters(change):
    arguments = {"digest": "d", "seed": 3, "step": 5, "batch_size": 8, "length": 32}
    before, _ = batch_at(IDS, **arguments)
    after, _ = batch_at(IDS, **(arguments | change))
    assert (before != after).any()


def test_targets_are_inputs_shifted_and_the_types_are_right():
    inputs, targets = batch(step=11)
    assert inputs.shape == targets.shape == (8, 32)
    assert inputs.dtype == targets.dtype == np.int32
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    starts = window_starts(len(IDS), digest="d", seed=3, first=88, count=8, length=32)
    np.testing.assert_array_equal(targets[:, -1], IDS[starts + 32])


def test_two_small_batches_are_one_large_one():
    small = [batch(step=step, batch_size=4)[0] for step in (6, 7)]
    np.testing.assert_array_equal(np.concatenate(small), batch(step=3, batch_size=8)[0])


@settings(deadline=None, max_examples=150)
@given(
    tokens=st.integers(2, 3000),
    length=st.integers(1, 50),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 10**9),
)
def test_an_epoch_holds_every_window_exactly_once(tokens, length, seed, epoch):
    if tokens < length + 1:
        return
    n = windows_per_epoch(tokens, length)
    starts = window_starts(tokens, digest="x", seed=seed, first=epoch * n, count=n, length=length)
    grid = np.sort(starts)
    assert (np.diff(grid) == length).all()
    assert 0 <= grid[0] < length
    assert grid[-1] + length + 1 <= tokens


@settings(deadline=None)
@given(n=st.integers(1, 5000), name=st.text())
def test_permute_is_a_permutation(n, name):
    out = permute(np.arange(n), n, round_keys(name))
    assert np.array_equal(np.sort(out), np.arange(n))


def test_permute_reaches_far_without_an_array():
    n = 10**15 + 3
    out = permute(np.arange(1000), n, round_keys("far"))
    assert out.min() >= 0 and out.max() < n and len(set(out.tolist())) == 1000


def test_permutations_look_random():
    """Over many keys, each of 7 items stands at each of 7 places a seventh of the time."""
    places = np.array([permute(np.arange(7), 7, round_keys(str(k))) for k in range(7000)])
    counts = np.array([[(places[:, i] == j).sum() for j in range(7)] for i in range(7)])
    chi2 = ((counts - 1000.0) ** 2 / 1000).sum()
    assert chi2 < 80, f"chi2 {chi2:.1f} with 36 degrees of freedom"


def test_neighbours_are_not_kept_together():
    n = 10_000
    out = permute(np.arange(n), n, round_keys("k"))
    correlation = np.corrcoef(out[:-1], out[1:])[0, 1]
    assert abs(correlation) < 0.05, correlation


def test_epochs_differ_in_order_and_in_offset():
    n = windows_per_epoch(len(IDS), 32)
    epochs = [
        window_starts(len(IDS), digest="d", seed=3, first=e * n, count=n, length=32) for e in range(20)
    ]
    assert len({int(e.min()) for e in epochs}) > 8
    orders = {tuple(((e - e.min()) // 32).tolist()) for e in epochs}
    assert len(orders) == 20


def test_a_batch_larger_than_several_epochs():
    ids = np.arange(50)
    inputs, _ = batch_at(ids, digest="d", seed=0, step=0, batch_size=40, length=10)
    n = windows_per_epoch(50, 10)
    for first in range(0, 40 - n, n):
        assert len(np.unique(inputs[first : first + n, 0])) == n


@pytest.mark.parametrize(("tokens", "length"), [(30, 10), (21, 10), (25, 5), (9, 8), (40, 1), (300, 7)])
def test_tokens_at_the_end_that_are_never_targets_are_counted(tokens, length):
    """By all windows of many epochs: every other token but the first is a target."""
    n = windows_per_epoch(tokens, length)
    starts = window_starts(tokens, digest="d", seed=0, first=0, count=400 * n, length=length)
    seen = set((starts[:, None] + np.arange(1, length + 1)).ravel().tolist())
    assert seen == set(range(1, tokens - never_targets(tokens, length)))


def test_a_shortest_possible_split_works_and_a_shorter_one_is_refused():
    inputs, targets = batch_at(np.arange(9), digest="d", seed=0, step=5, batch_size=2, length=8)
    assert inputs.tolist() == [list(range(8))] * 2 and targets[0, -1] == 8
    with pytest.raises(DataError, match="8 tokens.*length 8 needs 9"):
        batch_at(np.arange(8), digest="d", seed=0, step=0, batch_size=2, length=8)


@pytest.mark.parametrize("bad", [{"step": -1}, {"batch_size": 0}, {"length": 0}])
def test_impossible_arguments_are_refused(bad):
    with pytest.raises(DataError, match="expected"):
        batch(**({"step": 0} | bad))


@settings(deadline=None, max_examples=200)
@given(tokens=st.integers(2, 400), length=st.integers(1, 60), batch_size=st.integers(1, 9))
def test_every_token_is_evaluated_once_after_the_token_before_it(tokens, length, batch_size):
    ids = np.arange(1000, 1000 + tokens).astype(np.uint16)
    batches = list(eval_windows(ids, length, batch_size))
    assert {array.shape for batch in batches for array in batch} == {(batch_size, length)}
    inputs, targets, mask = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    np.testing.assert_array_equal(np.sort(targets[mask]), ids[1:])
    np.testing.assert_array_equal(inputs[mask] + 1, targets[mask])
    assert not inputs[~mask].any() and not targets[~mask].any()
    assert inputs.dtype == targets.dtype == np.int32 and mask.dtype == np.bool_


def test_evaluation_follows_the_order_of_the_text():
    batches = list(eval_windows(np.arange(38), 5, 3))
    targets = np.concatenate([targets[mask] for _, targets, mask in batches])
    assert targets.tolist() == list(range(1, 38))


@pytest.mark.parametrize("windows", [1, 2, 7, 19, 20, 21, 500])
def test_evaluation_of_a_subset_is_evenly_spaced_and_part_of_the_whole(windows):
    ids = np.arange(1000, 1100)
    whole = {int(t) for _, targets, mask in eval_windows(ids, 5, 4) for t in targets[mask]}
    first = [
        int(row[0])
        for inputs, _, mask in eval_windows(ids, 5, 4, windows)
        for row, real in zip(inputs, mask, strict=True)
        if real.any()
    ]
    assert len(first) == min(windows, 20)
    assert {f + 1 for f in first} <= whole
    assert np.ptp(np.diff(first)) <= 5 if len(first) > 1 else True


def test_evaluation_of_a_subset_is_the_same_every_time():
    ids = np.arange(1000)
    one, two = (list(eval_windows(ids, 7, 3, 10)) for _ in range(2))
    np.testing.assert_array_equal(np.array(one), np.array(two))


@pytest.mark.parametrize(
    ("tokens", "length", "batch_size"), [(0, 4, 1), (1, 4, 1), (9, 0, 1), (9, 4, 0)]
)
def test_impossible_evaluations_are_refused_at_the_call(tokens, length, batch_size):
    with pytest.raises(DataError, match="at least"):
        eval_windows(np.zeros(tokens, np.uint16), length, batch_size)


def test_evaluation_of_nothing_is_refused():
    with pytest.raises(DataError, match="windows is 0"):
        eval_windows(np.arange(10), 2, 2, 0)
