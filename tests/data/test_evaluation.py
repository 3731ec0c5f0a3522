"""Evaluation covers a split with every target exactly once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.data import DataError, eval_windows


@settings(deadline=None, max_examples=200)
@given(tokens=st.integers(2, 400), length=st.integers(1, 60), batch_size=st.integers(1, 9))
def test_every_token_is_a_target_once_after_the_token_before_it(tokens, length, batch_size):
    ids = np.arange(1000, 1000 + tokens).astype(np.uint16)
    batches = list(eval_windows(ids, length, batch_size))
    assert {array.shape for batch in batches for array in batch} == {(batch_size, length)}
    inputs, targets, mask = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    np.testing.assert_array_equal(np.sort(targets[mask]), ids[1:])
    np.testing.assert_array_equal(inputs[mask] + 1, targets[mask])
    assert not inputs[~mask].any() and not targets[~mask].any()
    assert inputs.dtype == targets.dtype == np.int32 and mask.dtype == np.bool_


def test_the_order_is_that_of_the_text():
    batches = list(eval_windows(np.arange(38), 5, 3))
    targets = np.concatenate([targets[mask] for _, targets, mask in batches])
    assert targets.tolist() == list(range(1, 38))


@pytest.mark.parametrize("windows", [1, 2, 7, 19, 20, 21, 500])
def test_a_subset_is_evenly_spaced_and_part_of_the_whole(windows):
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


def test_a_subset_is_the_same_every_time():
    ids = np.arange(1000)
    one, two = (list(eval_windows(ids, 7, 3, 10)) for _ in range(2))
    np.testing.assert_array_equal(np.array(one), np.array(two))


@pytest.mark.parametrize(
    ("tokens", "length", "batch_size"), [(0, 4, 1), (1, 4, 1), (9, 0, 1), (9, 4, 0)]
)
def test_impossible_arguments_are_refused_at_the_call(tokens, length, batch_size):
    with pytest.raises(DataError, match="at least"):
        eval_windows(np.zeros(tokens, np.uint16), length, batch_size)


def test_a_subset_of_nothing_is_refused():
    with pytest.raises(DataError, match="windows is 0"):
        eval_windows(np.arange(10), 2, 2, 0)
