"""What bounds on generalisation see of a model: dimensions, distances from the start, roughness.

    PAC-Bayes   E loss <= E train loss + sqrt((KL + log(2 sqrt(n) / delta)) / (2 n))
                KL = |w - w_0|^2 / (2 sigma^2) of normal weights around w and around the start w_0
    covering    log N(eps) <= P log(1 + 2 R Lip / eps)

for losses between 0 and 1, n independent samples, P parameters in a ball of radius R, and a loss that
changes with them by Lip at most. docs/theory.md has the proofs. Both are vacuous at the sizes of this
project; what they can do is rank models.
"""

import math
from dataclasses import dataclass

import jax
import numpy as np

from qkvflow.analysis.circuits import layers_at
from qkvflow.config import ConfigError
from qkvflow.models import LanguageModel
from qkvflow.models.paths import Arrays, arrays_of, nodes_of, nodes_where, with_arrays
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.linear import Linear
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import is_weight, size, value_of

DELTA = 0.05
"""The probability with which a bound may be wrong."""


@dataclass(frozen=True)
class Stack:
    """The weights that all layers have of a map."""

    dimension: int
    """Of the set of stacks that the map's parameters reach."""
    parameters: int
    entries: int


@dataclass(frozen=True)
class Movement:
    """A group of arrays, and how far training moved them."""

    parameters: int
    norm: float
    """Euclidean, of all of them."""
    distance: float | None
    """From the start; None where it is not known."""


def times_of(model: LanguageModel) -> np.ndarray:
    """The times at which layers, and stages, ask for weights; of `adaptive` those of its layers."""
    try:
        return np.unique(np.asarray(model.plan().times))
    except ConfigError:
        return layer_times(model.config.num_layers)


def stacks(model: LanguageModel) -> dict[str, Stack]:
    """Dimension, parameters and entries of the layers' weights, by map.

    Curves share no parameter, so that dimensions add up.

    Examples:
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=4)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> stacks(model)["mlp.up"]
        Stack(dimension=4224, parameters=4224, entries=16896)
    """
    times, found = times_of(model), {}
    for path, curve in nodes_where(model.transformer.blocks, is_weight):
        if parameters := size(curve):
            entries = len(times) * size(value_of(curve))
            found[map_name(path)] = Stack(curve.dimension(times), parameters, entries)
    return found


def movements(model: LanguageModel, initial: LanguageModel | None = None) -> dict[str, Movement]:
    """How large the arrays of every group are, and how far from those of the start; of all as "all"."""
    groups = {path: found.group for path, found in model.parameters().items()}
    ours, start = arrays_of(model), None if initial is None else arrays_of(initial)
    _check_alike(ours, start)
    names = dict.fromkeys(groups.values())
    chosen = {name: [path for path in ours if groups[path] == name] for name in names}
    return {name: _moved(paths, ours, start) for name, paths in (chosen | {"all": [*ours]}).items()}


def _check_alike(ours: Arrays, start: Arrays | None) -> None:
    if start is None:
        return
    if {p: a.shape for p, a in ours.items()} != {p: a.shape for p, a in start.items()}:
        problem = "its arrays differ from those of the start; expected the start of the same run."
        raise ConfigError("The distance of the model cannot be measured:", [problem])


def _moved(paths: list[str], ours: Arrays, start: Arrays | None) -> Movement:
    squares = sum(float(np.sum(_float64(ours[path]) ** 2)) for path in paths)
    distance = None
    if start is not None:
        moved = (_float64(ours[path]) - _float64(start[path]) for path in paths)
        distance = math.sqrt(sum(float(np.sum(change**2)) for change in moved))
    return Movement(sum(ours[path].size for path in paths), math.sqrt(squares), distance)


def _float64(array: jax.Array) -> np.ndarray:
    return np.asarray(array, np.float64)


def roughness(model: LanguageModel) -> dict[str, float]:
    """max L |W_(l+1) - W_l| / mean |W_l| of every matrix, in the Frobenius norm; 0 for shared weights.

    It bounds the slope of the weights over depth relative to their size, on which depend bounds that
    count curves and not layers (Marion 2023, arXiv:2305.06648).
    """
    times, found = times_of(model), {}
    for path, linear in nodes_of(layers_at(model, times), Linear):
        rows = _float64(linear.weight.array).reshape(len(times), -1)
        steps = np.linalg.norm(np.diff(rows, axis=0), axis=1).max(initial=0.0)
        norm = float(np.linalg.norm(rows, axis=1).mean())
        found[map_name(path)] = float(len(times) * steps / norm) if norm else 0.0
    return found


def divergence(distance: float, sigma: float) -> float:
    """KL of normal weights of deviation sigma around the model from those around its start.

    Examples:
        >>> divergence(3.0, sigma=0.5)
        18.0
    """
    return distance**2 / (2 * sigma**2)


def pac_bayes_gap(divergence: float, samples: int, delta: float = DELTA) -> float:
    """By how much the mean loss of such random weights exceeds that on the training text, at most.

    Of losses between 0 and 1 and independent samples, with a probability of 1 - delta.

    Examples:
        >>> round(pac_bayes_gap(divergence=100.0, samples=10_000), 3)
        0.074
    """
    return math.sqrt((divergence + math.log(2 * math.sqrt(samples) / delta)) / (2 * samples))


def samples_needed(divergence: float) -> int:
    """The fewest independent samples from which on the bound is below 1, and says anything.

    Examples:
        >>> samples_needed(divergence=100.0)
        53
    """
    low, high = 0, 1
    while pac_bayes_gap(divergence, high) >= 1:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pac_bayes_gap(divergence, middle) < 1 else (middle, high)
    return high


def perturbed(model: LanguageModel, sigma: float, seed: int = 0) -> LanguageModel:
    """A draw of the random weights that the PAC-Bayes bound speaks of: normal around the model."""
    rng = np.random.default_rng(seed)
    drawn = {
        path: array + (sigma * rng.normal(size=array.shape)).astype(array.dtype)
        for path, array in arrays_of(model).items()
    }
    return with_arrays(model, drawn)
