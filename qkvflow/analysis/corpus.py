"""Analyses over a sample of a corpus: windows drawn at random, numbers with intervals.

One sentence says little. A window is one sample, and Student's interval is over windows, which do not
overlap.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from qkvflow.config import ConfigError
from qkvflow.progress import progress
from qkvflow.statistics import t_interval

Look = Callable[[np.ndarray], dict[str, np.ndarray]]
"""What is found in the ids of a window, by name."""


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
        return np.apply_along_axis(_half_width, 0, self.values)

    def in_words(self, entry: int, form: str) -> str:
        """The mean of an entry over windows and its interval."""
        count, mean = len(self.values), self.mean[entry]
        if count < 2:
            return f"{mean:{form}} (one window)"
        return f"{mean:{form}} +- {self.half_width[entry]:.3f} ({count} windows, 95%)"


def _half_width(values: np.ndarray) -> float:
    return t_interval(values.tolist()).half_width


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


def over_windows(windows: np.ndarray, look: Look) -> dict[str, Sample]:
    """What `look` finds in every window, by name."""
    found = []
    with progress("windows", total=len(windows)) as advance:
        for window in windows:
            found.append(look(window))
            advance(1)
    return {name: Sample(np.stack([numbers[name] for numbers in found])) for name in found[0]}
