"""The worth of a loop: how a loss depends on weights that are visited once and on weights in a loop.

    loss = E + A (N_once + r^phi N_loop)^-alpha

Symbols: N_once counts the parameters that are visited once, N_loop those of the loop, r its visits, E
is what no size removes. phi is the worth of the loop: with phi = 1, r visits are worth r layers with
weights of their own; with phi = 0, one. It is the form of Schwethelm, Rückert and Kaissis 2026
(arXiv:2604.21106), who call phi the recurrence-equivalence exponent, without their term of data,
B D^-beta: all models here have read the same text.

Numpy and scipy only. Arrays have one entry a model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import optimize

from qkvflow.statistics import Interval

Numbers = Sequence[float] | np.ndarray
PARAMETERS = 4
LEAST_MODELS = PARAMETERS + 1
RANGES = {"share": (1e-6, 1 - 1e-9), "alpha": (1e-3, 5.0), "phi": (-3.0, 4.0)}
"""Where parameters are looked for: the share of the least loss that is E, alpha, phi."""
STARTS = tuple(product((0.2, 0.8), (0.1, 0.5), (0.0, 0.5, 1.0)))
"""Share, alpha and phi from which the fit begins; the best end counts."""
RESAMPLES = 200


@dataclass(frozen=True)
class LoopLaw:
    """loss = E + A (N_once + r^phi N_loop)^-alpha."""

    irreducible: float
    """E."""
    scale: float
    """A."""
    alpha: float
    phi: float
    misfit: float = 0.0
    """Root mean square of log(loss) less the log of what the law says."""

    def loss(self, once: Numbers, loop: Numbers, visits: Numbers) -> np.ndarray:
        """What the law says of models."""
        return self.irreducible + self.scale * self.size(once, loop, visits) ** -self.alpha

    def size(self, once: Numbers, loop: Numbers, visits: Numbers) -> np.ndarray:
        """N_once + r^phi N_loop: the parameters of a model without a loop that is as good.

        Examples:
            >>> LoopLaw(1.0, 2.0, 0.3, phi=0.5).size([100.0], [50.0], [4.0])
            array([200.])
        """
        once, loop, visits = (np.asarray(values, np.float64) for values in (once, loop, visits))
        return once + visits**self.phi * loop


def fit_loop_law(once: Numbers, loop: Numbers, visits: Numbers, losses: Numbers) -> LoopLaw:
    """The law that is nearest to the losses of models, by least squares of their logarithms.

    Args:
        once: parameters that are visited once, of every model.
        loop: parameters of the loop; 0 where there is none.
        visits: visits of the loop; 1 where there is none.
        losses: of every model, as a mean over its seeds.

    Raises:
        ValueError: too few models, no loop that is visited again, or sizes that are all alike.

    Examples:
        >>> once, loop = [1.0, 2, 4, 1, 2, 4], [0.0, 0, 0, 1, 2, 4]
        >>> visits = [1.0, 1, 1, 4, 4, 2]
        >>> true = LoopLaw(irreducible=1.0, scale=2.0, alpha=0.4, phi=0.5)
        >>> round(fit_loop_law(once, loop, visits, true.loss(once, loop, visits)).phi, 3)
        0.5
    """
    models = _models(once, loop, visits)
    wanted = _positive(losses)
    if wanted.shape != models[0].shape:
        raise ValueError(f"expected a loss for each of {len(models[0])} models, got {wanted.size}")
    found = [_fit(models, wanted, start) for start in STARTS]
    return min(found, key=lambda law: law.misfit)


def phi_interval(
    once: Numbers,
    loop: Numbers,
    visits: Numbers,
    losses: Sequence[Numbers] | np.ndarray,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The interval of phi by the bootstrap over seeds; `losses` has the losses of every model's seeds.

    Seeds are drawn again within each model, and their deviations from its mean made larger by
    sqrt(n / (n - 1)): a draw from n seeds has (n - 1) / n of their variance. It is the interval of the
    noise of seeds. That the law itself misses the losses, `LoopLaw.misfit` shows, and not this.

    Raises:
        ValueError: as of `fit_loop_law`; or a model has one seed only.

    Examples:
        >>> once, loop = [1.0, 2, 4, 1, 2, 4], [0.0, 0, 0, 1, 2, 4]
        >>> visits = [1.0, 1, 1, 4, 4, 2]
        >>> means = LoopLaw(1.0, 2.0, 0.4, phi=0.5).loss(once, loop, visits)
        >>> found = phi_interval(once, loop, visits, means[:, None] + [[-1e-3, 0.0, 1e-3]])
        >>> found.low < 0.5 < found.high
        True
    """
    models, samples = _models(once, loop, visits), [_positive(own) for own in losses]
    if len(samples) != len(models[0]):
        raise ValueError(f"expected seeds of each of {len(models[0])} models, got {len(samples)}")
    fewest = min(len(own) for own in samples)
    if fewest < 2:
        raise ValueError("a model has one seed; expected at least 2 of each, whose spread can be seen")
    means = np.array([own.mean() for own in samples])
    best = fit_loop_law(once, loop, visits, means)
    rng, least = np.random.default_rng(seed), float(means.min())
    start = (best.irreducible / least, best.alpha, best.phi)
    drawn = [_fit(models, _drawn(samples, rng), start).phi for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def _drawn(samples: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A mean over seeds that were drawn again, of every model."""
    means = []
    for own in samples:
        wider = own.mean() + (own - own.mean()) * math.sqrt(len(own) / (len(own) - 1))
        means.append(rng.choice(wider, len(own)).mean())
    return np.array(means)


def _models(once: Numbers, loop: Numbers, visits: Numbers) -> list[np.ndarray]:
    """Sizes and visits, if a law can be fitted to them."""
    found = [np.asarray(values, np.float64) for values in (once, loop, visits)]
    if len({values.shape for values in found}) > 1 or found[0].ndim != 1:
        shapes = ", ".join(str(values.shape) for values in found)
        raise ValueError(f"expected once, loop and visits with one entry a model, got shapes {shapes}")
    sizes, looped, r = found
    if not (np.isfinite(found).all() and (sizes >= 0).all() and (looped >= 0).all() and (r >= 1).all()):
        raise ValueError("expected sizes of at least 0 and visits of at least 1, all finite")
    if (total := sizes + looped).min() <= 0:
        raise ValueError("expected models with parameters, got one with none")
    kinds = len(set(zip(*found)))
    if kinds < LEAST_MODELS:
        raise ValueError(
            f"E, A, alpha and phi are fitted, and {kinds} models differ in their sizes or visits; "
            f"expected at least {LEAST_MODELS}"
        )
    if not ((r > 1) & (looped > 0)).any():
        raise ValueError("no model visits its loop more than once, so that nothing depends on phi")
    if len(set(total)) < 3:
        raise ValueError(
            f"the models have {len(set(total))} different sizes N_once + N_loop; expected at least 3, "
            "from which E, A and alpha can be told"
        )
    return found


def _positive(losses: Numbers) -> np.ndarray:
    found = np.asarray(losses, np.float64)
    if found.ndim != 1 or found.size < 1 or not (np.isfinite(found) & (found > 0)).all():
        raise ValueError(f"expected losses that are finite and above 0, in a row, got {losses}")
    return found


def _fit(models: list[np.ndarray], losses: np.ndarray, start: tuple[float, float, float]) -> LoopLaw:
    """The best law near a start: the share of the least loss that is E, alpha and phi."""
    once, loop, visits = models
    unit, least, wanted = float(np.mean(once + loop)), losses.min(), np.log(losses)
    turns = np.log(visits)

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        looped = np.exp(x[3] * turns) * loop
        size = (once + looped) / unit
        return looped / unit, size, np.exp(x[1] - x[2] * np.log(size))

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(x[0] * least + parts(x)[2]) - wanted

    def slopes(x: np.ndarray) -> np.ndarray:
        looped, size, falling = parts(x)
        of_phi = -x[2] * falling / size * looped * turns
        columns = [np.full_like(falling, least), falling, -falling * np.log(size), of_phi]
        return np.stack(columns, axis=1) / (x[0] * least + falling)[:, None]

    low, high = np.transpose([RANGES["share"], (-30.0, 30.0), RANGES["alpha"], RANGES["phi"]])
    share, alpha, phi = start
    reducible = math.log(max(losses.mean() - share * least, 1e-3 * least))
    x = np.clip([share, reducible, alpha, phi], low + 1e-9, high - 1e-9)
    how: Any = {"bounds": (low, high), "method": "dogbox", "x_scale": "jac"}
    found = optimize.least_squares(residuals, x, slopes, **how).x
    misfit = float(np.sqrt(np.mean(residuals(found) ** 2)))
    scale = math.exp(found[1] + found[2] * math.log(unit))
    return LoopLaw(float(found[0] * least), scale, float(found[2]), float(found[3]), misfit)
