"""The statistics of a comparison over seeds: intervals, paired tests, effect sizes, power.

Numpy and scipy only. Samples are one-dimensional arrays with one number a seed; of two paired samples
entry i belongs to the same seed. Losses are compared as `first - second`: below zero, the first is
better.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import integrate, optimize, stats

K = TypeVar("K", bound=Hashable)
ALPHA = 0.05
LARGEST_EXACT = 16
"""Pairs up to which all sign flips are tried; 65,536 of them."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A range."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of its length."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Test:
    """A test statistic and its two-sided p-value."""

    statistic: float
    p_value: float


def _sample(values: Sequence[float] | np.ndarray, least: int) -> np.ndarray:
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or sample.size < least:
        raise ValueError(f"expected at least {least} numbers in a row, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError(f"expected finite numbers, got {sample[~np.isfinite(sample)][0]}")
    return sample


def _differences(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    a, b = _sample(first, 2), _sample(second, 2)
    if a.shape != b.shape:
        raise ValueError(f"pairs need samples of one size, got {a.size} and {b.size}")
    return a - b


def t_interval(values: Sequence[float], confidence: float = 1 - ALPHA) -> Interval:
    """Student's interval of the mean, from the sample standard deviation.

    Examples:
        >>> interval = t_interval([1.0, 2.0, 3.0])
        >>> round(interval.low, 3), round(interval.high, 3)
        (-0.484, 4.484)
    """
    sample = _sample(values, 2)
    half = stats.t.ppf((1 + confidence) / 2, sample.size - 1) * stats.sem(sample)
    return Interval(float(sample.mean() - half), float(sample.mean() + half))


def bca_interval(values: Sequence[float], confidence: float = 1 - ALPHA, seed: int = 0) -> Interval:
    """The bias-corrected and accelerated bootstrap interval of the mean.

    With as few as five seeds it is too narrow (its coverage is measured in the tests): it shows the
    asymmetry of a sample, `t_interval` is the one to rely on.
    """
    sample = _sample(values, 2)
    if np.ptp(sample) == 0.0:
        return Interval(float(sample[0]), float(sample[0]))
    how: Any = {"confidence_level": confidence, "n_resamples": RESAMPLES, "method": "BCa"}
    found = stats.bootstrap((sample,), np.mean, rng=np.random.default_rng(seed), **how)
    low, high = found.confidence_interval
    return Interval(float(low), float(high))


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> Test:
    """Whether the mean difference of pairs is zero."""
    differences = _differences(first, second)
    if np.ptp(differences) == 0.0:
        return _without_spread(differences[0])
    found = stats.ttest_1samp(differences, 0.0)
    return Test(float(found.statistic), float(found.pvalue))


def _without_spread(difference: float) -> Test:
    """What a test of a mean tends to as its sample loses its spread; scipy would divide by zero."""
    if difference == 0.0:
        return Test(0.0, 1.0)
    return Test(math.copysign(math.inf, difference), 0.0)


def sign_flip_test(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Test:
    """Whether the differences of pairs lie symmetrically about zero, by flipping their signs.

    Up to `LARGEST_EXACT` pairs all flips are tried, and the p-value is exact: of n pairs it cannot
    be smaller than `smallest_p_value(n)`. Beyond that, `RESAMPLES` flips are drawn.
    """
    differences = _differences(first, second)
    n = differences.size
    if n <= LARGEST_EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    else:
        drawn = np.random.default_rng(seed).choice((1.0, -1.0), size=(RESAMPLES, n))
        signs = np.vstack([np.ones(n), drawn])  # the sample itself is one of its flips
    means = np.abs(signs @ differences) / n
    observed = abs(differences.mean())
    p_value = np.mean(means >= observed - 1e-12 * np.abs(differences).mean())  # rounding is no distance
    return Test(float(differences.mean()), float(p_value))


def smallest_p_value(pairs: int) -> float:
    """The smallest two-sided p-value that a sign-flip test of so many pairs can give.

    Examples:
        >>> smallest_p_value(5)
        0.0625
    """
    return min(1.0, 2.0 ** (1 - pairs)) if pairs <= LARGEST_EXACT else 1 / (RESAMPLES + 1)


def welch_test(first: Sequence[float], second: Sequence[float]) -> Test:
    """Whether two means are equal, of samples that are not paired and may differ in variance."""
    a, b = _sample(first, 2), _sample(second, 2)
    if np.ptp(a) == np.ptp(b) == 0.0:
        return _without_spread(a[0] - b[0])
    found = stats.ttest_ind(a, b, equal_var=False)
    return Test(float(found.statistic), float(found.pvalue))


def welch_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 1 - ALPHA
) -> Interval:
    """The interval of the difference of two means that belongs to `welch_test`."""
    a, b = _sample(first, 2), _sample(second, 2)
    if np.ptp(a) == np.ptp(b) == 0.0:
        return Interval(float(a[0] - b[0]), float(a[0] - b[0]))
    found = stats.ttest_ind(a, b, equal_var=False).confidence_interval(confidence)
    return Interval(float(found.low), float(found.high))


def holm(p_values: Mapping[K, float], alpha: float = ALPHA) -> dict[K, tuple[float, bool]]:
    """Adjusted p-values of a family of comparisons, and whether each is significant.

    Examples:
        >>> adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03})
        >>> {name: (round(p, 2), yes) for name, (p, yes) in adjusted.items()}
        {'a': (0.03, True), 'b': (0.06, False), 'c': (0.06, False)}
    """
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted: dict[K, tuple[float, bool]] = {}
    largest = 0.0
    for rank, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = (largest, largest <= alpha)
    return {name: adjusted[name] for name in p_values}


def cohens_d(first: Sequence[float], second: Sequence[float]) -> float:
    """The difference of means in pooled standard deviations; infinite where there is no spread."""
    a, b = _sample(first, 2), _sample(second, 2)
    pooled = ((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / (a.size + b.size - 2)
    difference = float(a.mean() - b.mean())
    return difference / math.sqrt(pooled) if pooled else _without_spread(difference).statistic


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float:
    """`cohens_d` without its bias in small samples."""
    freedom = len(first) + len(second) - 2
    correction = math.exp(
        math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2) - math.log(math.sqrt(freedom / 2))
    )
    return correction * cohens_d(first, second)


def effect_size(d: float) -> str:
    """Cohen's words for a standardised difference."""
    words = ("negligible", "small", "medium", "large")
    return words[bisect.bisect((0.2, 0.5, 0.8), abs(d))]


def probability_of_improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """How probably a run of the first has the lower loss of the two; ties count half."""
    a, b = _sample(first, 1), _sample(second, 1)
    return float(np.mean(a[:, None] < b[None, :]) + 0.5 * np.mean(a[:, None] == b[None, :]))


def equivalence_test(first: Sequence[float], second: Sequence[float], margin: float) -> Test:
    """Two one-sided paired t-tests: a small p-value says that the difference is within the margin.

    It is of one comparison alone. The margin must have been chosen before the samples were seen.
    """
    if margin <= 0:
        raise ValueError(f"expected a margin above 0, got {margin}")
    differences = _differences(first, second)
    error = float(stats.sem(differences))
    if error == 0.0:
        inside = abs(differences.mean()) < margin
        return Test(math.inf if inside else 0.0, 0.0 if inside else 1.0)
    above = (differences.mean() + margin) / error
    below = (margin - differences.mean()) / error
    statistic = float(min(above, below))
    return Test(statistic, float(stats.t.sf(statistic, differences.size - 1)))


def power(difference: float, deviation: float, pairs: int, alpha: float = ALPHA) -> float:
    """The probability that a paired t-test of so many pairs notices a true mean difference.

    `deviation` is the standard deviation of the differences. The noncentral t-distribution of scipy is
    NaN for few pairs, hence the integral over the sample's own deviation, in units of the true one.
    """
    freedom = pairs - 1
    shift = abs(difference) / deviation * math.sqrt(pairs)
    critical = float(stats.t.ppf(1 - alpha / 2, freedom))
    scale = math.log(2.0) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)

    def noticed(sample: float) -> float:
        density = math.exp(scale + (freedom - 1) * math.log(sample) - freedom * sample**2 / 2)
        return density * (_normal(shift - critical * sample) + _normal(-shift - critical * sample))

    return float(integrate.quad(noticed, 0.0, np.inf, limit=200, epsabs=1e-12, epsrel=1e-10)[0])


def _normal(x: float) -> float:
    """The standard normal distribution function."""
    return math.erfc(-x / math.sqrt(2.0)) / 2


def detectable_difference(
    deviation: float, pairs: int, alpha: float = ALPHA, wanted: float = 0.8
) -> float:
    """The true mean difference that a paired t-test of so many pairs notices with `wanted` power."""
    if deviation == 0.0:
        return 0.0
    enough = deviation
    while power(enough, deviation, pairs, alpha) < wanted:
        enough *= 2
    return float(
        optimize.brentq(lambda d: power(d, deviation, pairs, alpha) - wanted, 0.0, enough, rtol=1e-9)
    )


@dataclass(frozen=True)
class Sample:
    """The numbers of all seeds, how they spread, and where their mean may lie; None of a single one."""

    values: tuple[float, ...]
    deviation: float | None = None
    t: Interval | None = None
    bca: Interval | None = None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.values))

    @property
    def half_width(self) -> float | None:
        """Of Student's interval."""
        return None if self.t is None else self.t.half_width


def summarise(values: Sequence[float]) -> Sample:
    """The sample with its standard deviation and both intervals."""
    if len(values) == 1:
        return Sample(tuple(values))
    deviation = float(_sample(values, 2).std(ddof=1))
    return Sample(tuple(values), deviation, t_interval(values), bca_interval(values))


@dataclass(frozen=True)
class Comparison:
    """Two samples: every number that a reader may ask for; None where it takes pairs."""

    difference: float
    interval: Interval
    """Of the differences of pairs; Welch's where there are none."""
    welch: Test
    welch_interval: Interval
    cohens_d: float
    hedges_g: float
    improvement: float
    paired: Test | None = None
    sign_flip: Test | None = None
    equivalence: Test | None = None
    detectable: float | None = None

    @property
    def test(self) -> Test:
        """The paired t-test, or Welch's where there are no pairs."""
        return self.paired or self.welch


def compare(
    first: Sequence[float], second: Sequence[float], margin: float, family: int = 1
) -> Comparison:
    """The first against the second, pair by pair; `margin` is what counts as equal, set beforehand.

    Of a family of so many comparisons, the difference that can be detected is that of the strictest
    level that `holm` may ask for.
    """
    differences = _differences(first, second)
    return dataclasses.replace(
        compare_unpaired(first, second),
        difference=float(differences.mean()),
        interval=t_interval(differences.tolist()),
        paired=paired_t_test(first, second),
        sign_flip=sign_flip_test(first, second),
        equivalence=equivalence_test(first, second, margin),
        detectable=detectable_difference(
            float(differences.std(ddof=1)), differences.size, alpha=ALPHA / family
        ),
    )


def compare_unpaired(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """The first against the second, of samples that have no pairs, and may differ in size."""
    return Comparison(
        difference=float(np.mean(first) - np.mean(second)),
        interval=welch_interval(first, second),
        welch=welch_test(first, second),
        welch_interval=welch_interval(first, second),
        cohens_d=cohens_d(first, second),
        hedges_g=hedges_g(first, second),
        improvement=probability_of_improvement(first, second),
    )
