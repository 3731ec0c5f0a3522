"""Modulation over depth: the modulators of every map, how far from constant they are."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.analysis.circuits import modulators
from qkvflow.analysis.figures import DEPTH, band, picture
from qkvflow.analysis.spectra import depth_ranks, spread
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject
from qkvflow.models.paths import nodes_of
from qkvflow.nn.weights import Weight
from qkvflow.report.page import Picture


@ANALYSES.register("modulation")
class Modulation(Analysis):
    """The modulators of every map, how far they are from constant, and how far the weights are."""

    heading = "Modulation over depth"
    reading = (
        "The spread of a map's modulators m(t), such as gates, is ||m(t) - mean|| / ||m||, with the "
        "mean over depth: 0% for what is the same at every depth."
    )

    def check(self, subject: Subject) -> object:
        return modulators(subject.model, subject.times[:1])

    def study(self, subject: Subject) -> Study:
        found = modulators(subject.model, subject.times)
        ranks, blocks = depth_ranks(subject.model, subject.times), subject.model.transformer.blocks
        numbers = {
            "times": subject.times,
            "weights": str(subject.model.config.weights),
            "neutral": max(curve.neutral for _, curve in nodes_of(blocks, Weight)),
            "spread": {name: spread(values) for name, values in found.items()},
            "weight_spread": {name: rank.spread for name, rank in ranks.items()},
        }
        return Study({"times": subject.times, **found}, numbers)

    def main_numbers(self, study: Study) -> list[Line]:
        spreads = study.numbers["spread"]
        most, least = max(spreads, key=spreads.__getitem__), min(spreads, key=spreads.__getitem__)
        return [
            ("spread of modulators, most", f"{spreads[most]:.1%} ({most})"),
            ("spread of modulators, least", f"{spreads[least]:.1%} ({least})"),
        ]

    def found(self, study: Study) -> str:
        spreads, weights = study.numbers["spread"], study.numbers["weight_spread"]
        most = max(spreads, key=spreads.__getitem__)
        return (
            f"What depends on depth in these weights changes most in {most} (a spread of "
            f"{spreads[most]:.0%}); the weights themselves spread by up to {max(weights.values()):.0%}."
        )

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        return [
            picture(study, directory, "modulation", 0.7 + 1.1 * len(study.numbers["spread"]), _draw)
        ]


def _draw(study: Study, drawn: Figure) -> str:
    """A heat map and a curve for each map."""
    times, spreads = study.arrays["times"], study.numbers["spread"]
    centre = study.numbers["neutral"]
    reach = max(float(np.abs(study.arrays[name] - centre).max()) for name in spreads) or 1.0
    grid = drawn.subplots(len(spreads), 2, squeeze=False, width_ratios=[1.6, 1], sharex="col")
    for (left, right), name in zip(grid, spreads):
        image = _heat(left, times, study.arrays[name], centre, reach)
        left.set_title(f"{name} ({spreads[name]:.0%})", fontsize=8, loc="left")
        band(right, times, study.arrays[name], "mean")
        right.set_xlim(-0.02, 1.02)
    for axes in grid[-1]:
        axes.set_xlabel(DEPTH)
    drawn.colorbar(image, ax=list(grid[:, 0]), label="gate" if centre else "value", fraction=0.04)
    return (
        "Modulators over depth, by map. Left: each row is one modulator, sorted by its change from the "
        "first depth to the last; the number is their spread, ||m(t) - mean|| / ||m||, 0% for what "
        "does not depend on depth. Right: their mean and the range of nine tenths of them."
    )


def _heat(axes: Axes, times: np.ndarray, values: np.ndarray, centre: float, reach: float) -> Any:
    order = np.argsort(values[-1] - values[0], kind="stable")
    look: dict[str, Any] = {"aspect": "auto", "cmap": "PuOr", "interpolation": "nearest"}
    image = axes.imshow(values[:, order].T, vmin=centre - reach, vmax=centre + reach, **look)
    step = max(1, len(times) // 8)
    axes.set_xticks(range(0, len(times), step), [f"{t:.2g}" for t in times[::step]], fontsize=7)
    axes.set_yticks([])
    axes.grid(visible=False)
    return image
