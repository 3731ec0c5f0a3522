"""Spectra of circuits over depth, from their factors, in float64.

A circuit M = A B has at most as many nonzero eigenvalues as its inner width: those of the small product
B A, which are the same. Its singular values are those of the product of two triangular factors. Arrays
have the leading axes time and head.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import stats

from qkvflow.analysis.circuits import Circuit, layers_at
from qkvflow.models import LanguageModel
from qkvflow.models.paths import nodes_of
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.linear import Linear

ENERGY = 0.99
"""Part of the squared weights that the counted basis matrices carry."""
LARGEST_EXACT = 8
"""Depths up to which the p-value of a rank correlation is exact."""
CONSTANT = 1e-9
"""Relative range below which numbers over depth are equal but for rounding."""


def eigenvalues(circuit: Circuit) -> np.ndarray:
    """The nonzero eigenvalues, complex [time, head, min(inner, E)], the largest in magnitude first."""
    left, right = circuit.left, circuit.right
    small = right @ left if left.shape[-1] <= left.shape[-2] else left @ right
    values = np.linalg.eigvals(small).astype(np.complex128)
    order = np.argsort(-np.abs(values), axis=-1, kind="stable")
    return np.take_along_axis(values, order, axis=-1)


def singular_values(circuit: Circuit) -> np.ndarray:
    """The nonzero singular values [time, head, min(inner, E)], the largest first."""
    first = np.linalg.qr(circuit.left).R
    second = np.linalg.qr(circuit.right.swapaxes(-1, -2)).R
    return np.linalg.svd(first @ second.swapaxes(-1, -2), compute_uv=False)


def numerical_range(circuit: Circuit, angles: int = 48) -> np.ndarray:
    """Points on the boundary of {v* M v : |v| = 1}, complex [time, head, angles].

    In direction e^(-i theta) the farthest point belongs to the largest eigenvalue of the Hermitian part
    of e^(i theta) M. M acts in the span of its factors only, and its compression to that span has the
    same range: the span has twice the dimension of the inner axis, so that zero is in it, as it is in
    that of M. M is real, so the range is symmetric about the real axis.
    """
    compressed = _compression(circuit)
    half = np.linspace(0.0, np.pi, angles // 2 + 1)
    points = np.stack([_farthest(compressed, theta) for theta in half], axis=-1)
    return np.concatenate([points, points[..., -2:0:-1].conj()], axis=-1)


def _compression(circuit: Circuit) -> np.ndarray:
    """M on an orthonormal basis of the span of both its factors; M itself where that is everything."""
    both = np.concatenate([circuit.left, circuit.right.swapaxes(-1, -2)], axis=-1)
    width, columns = both.shape[-2:]
    if columns >= width:
        return circuit.matrices
    basis = np.linalg.qr(both).Q
    return (basis.swapaxes(-1, -2) @ circuit.left) @ (circuit.right @ basis)


def _farthest(matrices: np.ndarray, theta: float) -> np.ndarray:
    turned = np.exp(1j * theta) * matrices
    v = np.linalg.eigh((turned + turned.conj().swapaxes(-1, -2)) / 2).eigenvectors[..., -1]
    return np.einsum("...i,...ij,...j->...", v.conj(), matrices, v)


@dataclass(frozen=True)
class Trend:
    """How a positive number changes over depth."""

    mean: float
    slope: float
    """Least squares, per unit of depth."""
    relative_slope: float
    """Slope over mean: 1 where it would grow by its own mean over the whole depth."""
    spearman: float | None
    """Rank correlation with depth, from -1 to 1; None where nothing changes or there are few times."""
    p_value: float | None
    """Of no monotone trend, from all orders of up to `LARGEST_EXACT` depths, else by Student's t.

    Neighbouring depths are not independent: an aid, not a proof.
    """


def trend(times: np.ndarray, values: np.ndarray) -> Trend:
    """The change of values [time] over times.

    Examples:
        >>> grows = trend(np.array([0.25, 0.5, 0.75, 1.0]), np.array([1.0, 2.0, 3.0, 4.0]))
        >>> round(grows.slope, 6), round(grows.relative_slope, 6), grows.spearman
        (4.0, 1.6, 1.0)
    """
    mean = float(values.mean())
    if len(values) < 2 or np.ptp(values) <= CONSTANT * np.abs(values).max():
        return Trend(mean, 0.0, 0.0, None, None)
    centred = times - times.mean()
    slope = float(centred @ values / (centred @ centred))
    relative = slope / mean if mean else 0.0
    if len(values) < 3:
        return Trend(mean, slope, relative, None, None)
    found = stats.spearmanr(times, values)
    p_value = _exact_p_value(values) if len(values) <= LARGEST_EXACT else float(found.pvalue)
    return Trend(mean, slope, relative, round(float(found.statistic), 12), p_value)


def _exact_p_value(values: np.ndarray) -> float:
    """How many orders of the values agree as much with that of depth, up or down."""
    ranks = stats.rankdata(values)
    place = np.arange(len(values)) - (len(values) - 1) / 2
    orders = np.array(list(itertools.permutations(ranks)))
    return float(np.mean(np.abs(orders @ place) >= abs(ranks @ place) - 1e-9))


@dataclass(frozen=True)
class DepthRank:
    """How many basis matrices the curve of a map needs over depth."""

    singular_values: np.ndarray
    """Of the map's weights, stacked over depth [time, size]."""
    basis: int
    """Basis matrices that carry `ENERGY` of the squared weights."""
    participation: float
    """(sum of squares)^2 / sum of fourth powers: 1 for one matrix, N for N equal ones."""
    spread: float
    """0 where the weights do not depend on depth, at most 1."""


def depth_rank(stacked: np.ndarray) -> DepthRank:
    """The depth rank of weights [time, ...].

    Examples:
        >>> depth_rank(np.stack([np.eye(3), 2 * np.eye(3)])).basis
        1
    """
    rows = np.asarray(stacked, np.float64).reshape(len(stacked), -1)
    values = np.linalg.svd(rows, compute_uv=False)
    energy = np.cumsum(values**2)
    if not energy[-1]:
        return DepthRank(values, 0, 0.0, 0.0)
    basis = int(np.searchsorted(energy, ENERGY * energy[-1]) + 1)
    participation = float(energy[-1] ** 2 / np.sum(values**4))
    return DepthRank(values, basis, participation, spread(rows))


def spread(values: np.ndarray) -> float:
    """How far numbers [time, number] are from constant: ||m(t) - mean m|| / ||m||, from 0 to 1.

    Examples:
        >>> spread(np.ones((4, 3))), spread(np.array([[1.0], [-1.0]]))
        (0.0, 1.0)
    """
    size = float(np.linalg.norm(values))
    return float(np.linalg.norm(values - values.mean(axis=0))) / size if size else 0.0


def depth_ranks(model: LanguageModel, times: np.ndarray) -> dict[str, DepthRank]:
    """The depth rank of every linear map, by its name."""
    maps = nodes_of(layers_at(model, times), Linear)
    return {map_name(path): depth_rank(linear.weight.array) for path, linear in maps}


def mean_magnitudes(values: np.ndarray) -> np.ndarray:
    """The mean magnitude over heads and eigenvalues, [time]."""
    return np.abs(values).mean(axis=tuple(range(1, values.ndim)))
