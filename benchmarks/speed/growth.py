"""How the time of a training step grows with depth, length, width and batch."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.speed.contest import Entry, compete
from benchmarks.speed.ours import Shape

NAMES = ("standard", "time_indexed_mlp", "time_indexed_ssm")
BASE = Shape(hidden=128, heads=4, layers=4, length=128, batch=8)
AXES: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 12, 24, 48),
    "length": (128, 256, 512, 1024, 2048, 4096),
    "hidden": (128, 256, 512, 1024),
    "batch": (1, 2, 4, 8, 16, 32, 64),
}


@dataclass(frozen=True)
class Growth:
    """Seconds of a step over one axis, and the exponent p of the power law a n^p nearest to them."""

    axis: str
    name: str
    values: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """By least squares in logarithms, over the larger half, where the work outweighs the rest."""
        half = len(self.values) // 2 - 1
        return float(np.polyfit(np.log(self.values[half:]), np.log(self.seconds[half:]), 1)[0])


def shape_at(axis: str, value: int) -> Shape:
    """The base shape with one axis changed; long texts come one at a time."""
    batch = 1 if axis == "length" else BASE.batch
    return dataclasses.replace(BASE, **{"batch": batch, axis: value})


def grow(axis: str, rounds: int, advance: Callable[[], None]) -> list[Growth]:
    """Measure the models at every value of an axis, taking turns at each."""
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for value in AXES[axis]:
        shape = shape_at(axis, value)
        entries = {name: Entry("benchmarks.speed.ours:training_step", (name, shape)) for name in NAMES}
        competition = compete(entries, rounds, advance)
        for name in NAMES:
            seconds[name].append(competition.times[name].median)
    return [Growth(axis, name, AXES[axis], tuple(seconds[name])) for name in NAMES]
