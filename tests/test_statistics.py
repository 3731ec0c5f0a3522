"""The statistics against scipy, closed forms, simulation, and the seed documents' own numbers."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from qkvflow.statistics import (
    Interval,
    bca_interval,
    cohens_d,
    compare,
    compare_unpaired,
    detectable_difference,
    effect_size,
    equivalence_test,
    hedges_g,
    holm,
    paired_t_test,
    power,
    probability_of_improvement,
    sign_flip_test,
    smallest_p_value,
    summarise,
    t_interval,
    welch_interval,
    welch_test,
)
from tests.experiments.support import FIRST_VERSION

STANDARD, TONG, MLP, SSM = FIRST_VERSION.values()


@pytest.mark.parametrize(
    ("losses", "half_width"), [(STANDARD, 0.031), (TONG, 0.025), (MLP, 0.034), (SSM, 0.173)]
)
def test_intervals_of_the_seed_documents_losses(losses, half_width):
    assert round(t_interval(losses).half_width, 3) == half_width


def test_tests_are_those_of_scipy():
    expected = {
        paired_t_test: stats.ttest_rel(STANDARD, SSM),
        welch_test: stats.ttest_ind(STANDARD, SSM, equal_var=False),
    }
    for ours, theirs in expected.items():
        found = ours(STANDARD, SSM)
        assert found.statistic == pytest.approx(theirs.statistic, rel=1e-12)
        assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-12)


def test_the_interval_is_scipys():
    low, high = stats.t.interval(0.9, 4, loc=np.mean(MLP), scale=stats.sem(MLP))
    ours = t_interval(MLP, 0.9)
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-12)


def test_welchs_interval_by_its_definition():
    """Its ends are where Welch's test of a shifted sample has p = 0.05."""
    found = welch_interval(MLP, SSM[:4])
    assert found.low < np.mean(MLP) - np.mean(SSM[:4]) < found.high
    for end in (found.low, found.high):
        shifted = stats.ttest_ind(np.subtract(MLP, end), SSM[:4], equal_var=False)
        assert shifted.pvalue == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_sign_flips_are_scipys_exact_permutations(n):
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1.0, n), rng.normal(0.0, 1.0, n)
    theirs = stats.permutation_test(
        (first - second,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_test(first, second).p_value == pytest.approx(theirs.pvalue, rel=1e-12)


def test_sign_flips_by_hand():
    """Differences 1, 2, 4: of eight flips only the sample and its mirror image reach a mean of 7/3."""
    assert sign_flip_test([1.0, 2.0, 4.0], [0.0, 0.0, 0.0]).p_value == 2 / 8
    assert sign_flip_test([-1.0, 2.0, 4.0], [0.0, 0.0, 0.0]).p_value == 4 / 8
    assert sign_flip_test([0.1, 0.2, 0.3, -0.6], [0.0] * 4).p_value == 1.0, "no mean is below zero"


def test_five_seeds_cannot_go_below_a_sixteenth():
    assert smallest_p_value(5) == 0.0625
    far = [1000.0 + i for i in range(5)]
    assert sign_flip_test(far, [0.0] * 5).p_value == 0.0625


def test_many_pairs_are_drawn_and_agree_with_the_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.3, 1.0, 60), rng.normal(0.0, 1.0, 60)
    drawn, t = sign_flip_test(first, second).p_value, paired_t_test(first, second).p_value
    assert drawn == pytest.approx(t, abs=0.02)
    assert drawn > 0.0


def test_holm_by_its_definition():
    rng = np.random.default_rng(3)
    for _ in range(50):
        p_values = {str(i): float(p) for i, p in enumerate(rng.uniform(0, 0.2, 6))}
        found = holm(p_values)
        ordered = sorted(p_values, key=p_values.__getitem__)
        rejected = []
        for rank, name in enumerate(ordered):  # step down until the first that is not rejected
            if p_values[name] > 0.05 / (6 - rank):
                break
            rejected.append(name)
        assert {name for name, (_, yes) in found.items() if yes} == set(rejected)
        assert all(adjusted >= p_values[name] for name, (adjusted, _) in found.items())


def test_holm_keeps_the_familywise_error():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(1000):
        p_values = {str(i): float(p) for i, p in enumerate(rng.uniform(size=6))}
        wrong += any(yes for _, yes in holm(p_values).values())
    assert wrong / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_effect_sizes_by_closed_forms():
    first, second = [2.0, 4.0, 6.0], [1.0, 3.0, 5.0]
    assert cohens_d(first, second) == pytest.approx(0.5)
    assert hedges_g(first, second) == pytest.approx(0.5 * 0.7978845608, rel=1e-9)  # J(4) = sqrt(2 / pi)
    assert [effect_size(d) for d in (0.1, -0.3, 0.6, -3.0)] == [
        "negligible",
        "small",
        "medium",
        "large",
    ]


def test_hedges_g_has_no_bias_where_cohens_d_has():
    rng = np.random.default_rng(0)
    draws = [(rng.normal(1.0, 1.0, 5), rng.normal(0.0, 1.0, 5)) for _ in range(4000)]
    assert np.mean([hedges_g(*pair) for pair in draws]) == pytest.approx(1.0, abs=0.04)
    assert np.mean([cohens_d(*pair) for pair in draws]) > 1.06


def test_probability_of_improvement_counts_pairs():
    first, second = [1.0, 2.0, 2.0], [2.0, 3.0]
    wins = sum((a < b) + 0.5 * (a == b) for a, b in itertools.product(first, second))
    assert probability_of_improvement(first, second) == pytest.approx(wins / 6)
    assert probability_of_improvement(second, first) == pytest.approx(1 - wins / 6)


def test_equivalence_is_two_one_sided_tests():
    rng = np.random.default_rng(0)
    second = rng.normal(2.0, 0.1, 8)
    first = second + rng.normal(0.004, 0.01, 8)
    low = stats.ttest_1samp(first - second, -0.02, alternative="greater").pvalue
    high = stats.ttest_1samp(first - second, 0.02, alternative="less").pvalue
    assert equivalence_test(first, second, 0.02).p_value == pytest.approx(max(low, high), rel=1e-12)
    assert equivalence_test(first, second, 1e-4).p_value > 0.5


def test_power_by_simulation_and_its_inverse():
    rng = np.random.default_rng(0)
    draws = rng.normal(0.02, 0.015, (4000, 5))
    noticed = np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert power(0.02, 0.015, 5) == pytest.approx(noticed, abs=0.03)
    for pairs in (2, 3, 5, 50):
        assert power(0.0, 1.0, pairs) == pytest.approx(0.05, abs=1e-9)
        assert power(detectable_difference(2.0, pairs), 2.0, pairs) == pytest.approx(0.8, abs=1e-6)
    theirs = stats.nct.sf(stats.t.ppf(0.975, 9), 9, 1.5) + stats.nct.cdf(-stats.t.ppf(0.975, 9), 9, 1.5)
    assert power(1.5 / math.sqrt(10), 1.0, 10) == pytest.approx(theirs, abs=1e-9)
    seen = detectable_difference(0.015, 5)
    assert power(seen, 0.015, 5) == pytest.approx(0.8, abs=1e-6)
    assert detectable_difference(0.0, 5) == 0.0


def test_the_t_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    draws = rng.normal(2.0, 0.3, (2000, 5))
    covered = np.mean([t_interval(d).low <= 2.0 <= t_interval(d).high for d in draws])
    assert covered == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 2000))


@pytest.mark.parametrize(("n", "least", "most"), [(5, 0.78, 0.90), (40, 0.91, 0.97)])
def test_the_bootstrap_interval_covers_too_seldom_with_five_seeds(n, least, most):
    rng = np.random.default_rng(0)
    draws = rng.normal(2.0, 0.3, (300, n))
    found = [bca_interval(d) for d in draws]
    covered = np.mean([interval.low <= 2.0 <= interval.high for interval in found])
    assert least <= covered <= most


def test_samples_without_spread():
    same = [1.0, 1.0, 1.0]
    assert paired_t_test(same, same).p_value == 1.0
    assert paired_t_test([2.0, 3.0], [1.0, 2.0]).p_value == 0.0
    assert bca_interval(same).half_width == 0.0
    assert cohens_d(same, same) == 0.0
    assert cohens_d([2.0, 2.0], [1.0, 1.0]) == math.inf
    assert equivalence_test(same, same, 0.1).p_value == 0.0
    assert welch_test(same, same).p_value == 1.0
    assert welch_test([2.0, 2.0], same).p_value == 0.0
    assert welch_interval([2.0, 2.0], same) == Interval(1.0, 1.0)


def test_a_comparison_holds_all_of_it():
    found = compare(MLP, STANDARD, margin=0.01)
    assert found.difference == pytest.approx(np.mean(MLP) - np.mean(STANDARD))
    assert found.interval.low < found.difference < found.interval.high
    assert found.test == found.paired == paired_t_test(MLP, STANDARD)
    assert found.welch_interval == welch_interval(MLP, STANDARD) != found.interval
    assert found.improvement == 1.0
    assert summarise(MLP).deviation == pytest.approx(np.std(MLP, ddof=1))


def test_a_comparison_without_pairs_is_welchs():
    found = compare_unpaired(MLP, STANDARD[:3])
    assert found.test == welch_test(MLP, STANDARD[:3])
    assert found.interval == welch_interval(MLP, STANDARD[:3])
    assert found.difference == pytest.approx(np.mean(MLP) - np.mean(STANDARD[:3]))
    assert [found.paired, found.sign_flip, found.equivalence, found.detectable] == [None] * 4


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: t_interval([1.0]), "at least 2 numbers"),
        (lambda: t_interval([1.0, math.nan]), "finite numbers, got nan"),
        (lambda: paired_t_test([1.0, 2.0], [1.0, 2.0, 3.0]), "one size, got 2 and 3"),
        (lambda: equivalence_test(MLP, SSM, 0.0), "margin above 0"),
    ],
)
def test_bad_samples_are_refused(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
