"""A sample of a corpus: windows that do not overlap, the same for a seed, numbers with intervals."""

import numpy as np
import pytest

from qkvflow.analysis import ANALYSES, Sample, Subject, draw_windows
from qkvflow.statistics import t_interval
from tests.support import random_model, small_config

IDS = np.arange(103, dtype=np.uint16)


def test_windows_do_not_overlap_and_are_a_matter_of_the_seed():
    windows = draw_windows(IDS, 6, 10)
    assert windows.shape == (6, 10)
    assert windows.dtype == np.int32
    assert len(np.unique(windows)) == 60
    assert np.all(np.diff(windows, axis=1) == 1), "windows are pieces of the text"
    assert np.array_equal(windows, draw_windows(IDS, 6, 10))
    assert not np.array_equal(windows, draw_windows(IDS, 6, 10, seed=1))
    assert len(draw_windows(IDS, 10, 10)) == 10


@pytest.mark.parametrize("count", [0, -1, 11])
def test_windows_that_are_not_there_are_a_sentence(count):
    words = f"windows is {count}; this split of 103 tokens has 10 windows of 10 tokens"
    with pytest.raises(ValueError, match=words):
        draw_windows(IDS, count, 10)


def test_intervals_are_students_over_windows():
    values = np.random.default_rng(0).normal(size=(5, 2, 3))
    sample = Sample(values)
    expected = t_interval(values[:, 1, 2].tolist())
    assert sample.half_width.shape == (2, 3)
    assert sample.half_width[1, 2] == pytest.approx(expected.half_width)
    assert sample.mean[1, 2] == pytest.approx((expected.low + expected.high) / 2)
    assert np.isnan(Sample(values[:1]).half_width).all()


def test_what_is_found_in_windows_is_that_of_each_by_itself():
    model = random_model("time_indexed_mlp", small_config())
    windows = np.random.default_rng(0).integers(0, 13, (3, 6)).astype(np.int32)
    options = {"labels": tuple("abcdef"), "position": 5, "count": 2, "refine": 2, "probes": None}
    subject = Subject(model, np.ones(1), windows[1], windows=windows, **options)
    found = ANALYSES["lyapunov"]().study(subject)
    exponents, by_distance = found.sample("exponents"), found.sample("sensitivity_by_distance")
    assert exponents.values.shape == (3, 2)
    assert np.array_equal(exponents.values[1], found.arrays["exponents"])
    assert np.array_equal(by_distance.values[1], found.arrays["sensitivity"][5, ::-1])
    assert by_distance.mean[0] == by_distance.mean.max()
    seen = ANALYSES["trajectory"]().study(subject)
    assert seen.sample("loss").values.shape == (3, 3)
    assert np.allclose(seen.sample("loss").values[1], seen.arrays["loss"].mean(axis=1))
    assert np.all(seen.sample("settled").values[:, -1] == 1.0)
    assert np.all(np.diff(seen.sample("settled").values, axis=1) >= 0)
    assert ANALYSES["spectra"]().study(subject).sample("eigenvalues") is None
