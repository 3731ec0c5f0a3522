"""Analyses over a sample of a corpus: windows drawn at random, numbers with intervals.

One sentence says little. A window is one sample, and Student's interval is over windows, which do not
overlap.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkvflow.analysis.flow import depths, flow_of, start, states
from qkvflow.analysis.lyapunov import sequence_exponents
from qkvflow.analysis.sensitivity import sensitivity_rows
from qkvflow.analysis.trajectory import lens, path, settled
from qkvflow.config import ConfigError
from qkvflow.models import LanguageModel
from qkvflow.statistics import t_interval

Numbers = dict[str, np.ndarray]
Look = Callable[[np.ndarray], Numbers]


@dataclass(frozen=True)
class Sample:
    """A number, or an array of them, of every window, and what they say of the corpus."""

    values: np.ndarray
    """[window, ...]"""

    @property
    def mean(self) -> np.ndarray:
        """Over windows."""
        return self.values.mean(axis=0)

    @property
    def half_width(self) -> np.ndarray:
        """Half of Student's 95% interval of the mean; NaN of a single window."""
        if len(self.values) < 2:
            return np.full(self.values.shape[1:], np.nan)
        flat = self.values.reshape(len(self.values), -1)
        halves = [t_interval(column.tolist()).half_width for column in flat.T]
        return np.asarray(halves).reshape(self.values.shape[1:])


def draw_windows(ids: np.ndarray, count: int, length: int, seed: int = 0) -> np.ndarray:
    """Windows [count, length] of a split, drawn without overlap, in the order of the text.

    Raises:
        ConfigError: there are not so many.
    """
    available = len(ids) // length
    if not 1 <= count <= available:
        raise ConfigError(
            "The sample cannot be drawn:",
            [
                f"windows is {count}; this split of {len(ids):,} tokens has {available} windows of "
                f"{length} tokens, so expected 1 to {available}."
            ],
        )
    chosen = np.sort(np.random.default_rng(seed).choice(available, count, replace=False))
    return np.asarray(ids)[chosen[:, None] * length + np.arange(length)].astype(np.int32)


def over_windows(
    windows: np.ndarray,
    look: Look,
    advance: Callable[[int], None] = lambda windows: None,
) -> dict[str, Sample]:
    """What `look` finds in every window, by name; `advance` is told of every window that is done."""
    found = []
    for window in windows:
        found.append(look(window))
        advance(1)
    return {name: Sample(np.stack([numbers[name] for numbers in found])) for name in found[0]}


def dynamics(model: LanguageModel, *, count: int, refine: int, probes: int | None) -> Look:
    """Exponents of a window, and the sensitivity of its last position by distance."""
    flow = flow_of(model)

    def look(window: np.ndarray) -> Numbers:
        x = start(model, window)
        exponents = sequence_exponents(flow, x, count=count, refine=refine)
        row = sensitivity_rows(flow, x, [len(window) - 1], probes=probes).values[0]
        return {
            "exponents": np.asarray(exponents.values, np.float64),
            "sensitivity_by_distance": row[::-1],
        }

    return look


def predictions(model: LanguageModel) -> Look:
    """The way of a window's residual stream and its predictions, as means over tokens."""
    flow, grid = flow_of(model), depths(model)

    def look(window: np.ndarray) -> Numbers:
        visited = states(flow, start(model, window))
        seen, way = lens(model, visited, window), path(np.asarray(visited), grid)
        numbers = {
            "norm": way.norm,
            "turn": way.turn,
            "speed": way.speed,
            "loss": seen.loss,
            "entropy": seen.entropy,
            "divergence": seen.divergence,
        }
        means = {name: array.mean(axis=1, dtype=np.float64) for name, array in numbers.items()}
        choices = settled(seen.choice, grid)
        return {**means, "settled": np.mean(choices[None] <= grid[:, None], axis=1)}

    return look
