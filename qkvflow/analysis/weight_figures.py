"""Figures of weights: spectra of circuits, depth rank, modulation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkvflow.analysis.figures import COOL, DARK, DEPTH, GREY, WARM, WIDTH, band, depth_axis, panels
from qkvflow.analysis.studies import Study
from qkvflow.analysis.summary import CIRCUITS
from qkvflow.report.figures import COLOURS, LINES, MARKERS, both, canvas, figure
from qkvflow.report.page import Picture

DEPTH_COLOURS = "viridis"
SMALLEST = 1e-6
"""Relative singular values below this are rounding, and are not shown."""


def draw_spectra(study: Study, directory: Path) -> list[Picture]:
    """`eigenvalues`, `magnitudes` and `depth_rank`."""
    names = list(study.numbers["circuits"])
    return [
        _eigenvalues(study.arrays, names, directory),
        _magnitudes(study, names, directory),
        _depth_rank(study, directory),
    ]


def _eigenvalues(arrays: Mapping[str, np.ndarray], names: list[str], directory: Path) -> Picture:
    with panels(directory, "eigenvalues", len(names), rows=2, height=3.0) as (drawn, grid):
        for (above, below), name in zip(grid.T, names):
            points = _plane(above, arrays["times"], arrays[f"{name}.eigenvalues"])
            above.set_title(CIRCUITS[name], fontsize=9, loc="left")
            ranges = arrays[f"{name}.numerical_range"]
            for i, colour, label in ((0, GREY, "first depth"), (-1, DARK, "last depth")):
                _outlines(below, ranges[i], colour, label)
            for axes in (above, below):
                axes.set_aspect("equal", adjustable="datalim")
            below.set_xlabel("real part")
        grid[0, 0].set_ylabel("eigenvalues\nimaginary part")
        grid[1, 0].set_ylabel("numerical range\nimaginary part")
        grid[1, -1].legend(fontsize=7, loc="upper right")
        drawn.colorbar(points, ax=list(grid.ravel()), label=DEPTH, fraction=0.03, pad=0.01)
    return Picture(
        directory / "eigenvalues.png",
        "Above: eigenvalues of every head, coloured by depth. A circuit with eigenvalues to the right "
        "strengthens what it reads, to the left it removes it, and imaginary parts turn it. Below: the "
        "numerical range of every head. It holds the eigenvalues; where it is much wider than "
        "they reach, the circuit is far from normal, and they do not tell its size.",
    )


def _plane(axes: Axes, times: np.ndarray, values: np.ndarray) -> Any:
    """Eigenvalues [time, head, number] in the complex plane."""
    colours = np.broadcast_to(times[:, None, None], values.shape)
    look: dict[str, Any] = {"cmap": DEPTH_COLOURS, "vmin": 0.0, "vmax": 1.0, "s": 8, "linewidths": 0}
    return axes.scatter(values.real.ravel(), values.imag.ravel(), c=colours.ravel(), zorder=3, **look)


def _outlines(axes: Axes, boundaries: np.ndarray, colour: str, label: str) -> None:
    for i, points in enumerate(boundaries):
        closed = np.append(points, points[0])
        axes.plot(closed.real, closed.imag, color=colour, linewidth=0.8, label="" if i else label)


def _magnitudes(study: Study, names: list[str], directory: Path) -> Picture:
    times = study.arrays["times"]
    with panels(directory, "magnitudes", len(names), rows=2, height=2.4) as (_, grid):
        for (above, below), name in zip(grid.T, names):
            numbers = study.numbers["circuits"][name]
            heads = np.abs(study.arrays[f"{name}.eigenvalues"]).mean(axis=-1)
            if heads.shape[1] > 1:
                above.plot(times, heads, color=GREY, linewidth=0.7)
            curves = (
                (above, "magnitude", DARK, "-", "o", "mean"),
                (below, "spectral_norm", COOL, "--", "^", "spectral norm"),
                (below, "numerical_radius", WARM, ":", "s", "numerical radius"),
            )
            for axes, kind, colour, line, marker, label in curves:
                look: dict[str, Any] = {"color": colour, "linestyle": line, "marker": marker}
                over_depth = numbers[kind]["over_depth"]
                axes.plot(times, over_depth, label=label, markersize=3, linewidth=1.3, **look)
            depth_axis(above, f"{CIRCUITS[name]}: {_in_words(numbers['magnitude'])}")
            depth_axis(below, "")
            above.set_xlabel("")
            for axes in (above, below):
                axes.set_ylim(bottom=0)
        grid[0, 0].set_ylabel("mean |eigenvalue|")
        grid[1, 0].set_ylabel("size")
        grid[1, -1].legend(fontsize=7)
    return Picture(
        directory / "magnitudes.png",
        "How large each circuit is over depth, as a mean over heads (grey: each head). Tong et al. "
        "find magnitudes that grow with depth; the title says what these do: the change over the whole "
        "depth relative to the mean, and the rank correlation with depth.",
    )


def _in_words(trend: Mapping[str, Any]) -> str:
    if trend["spearman"] is None:
        return "constant" if not trend["slope"] else f"{trend['relative_slope']:+.0%}"
    return f"{trend['relative_slope']:+.0%}, rank corr. {trend['spearman']:+.2f}"


def _depth_rank(study: Study, directory: Path) -> Picture:
    ranks = study.numbers["depth_rank"]
    with figure(both(directory, "depth_rank"), WIDTH, 3.0) as axes:
        lowest = 0.3
        for i, (name, rank) in enumerate(ranks.items()):
            values = study.arrays[f"depth_rank.{name}"]
            relative = values / values[0] if values[0] else values
            seen = relative >= SMALLEST
            lowest = min(lowest, float(relative[seen].min(initial=1.0)) / 2)
            axes.plot(
                np.arange(1, len(values) + 1)[seen],
                relative[seen],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                linestyle=LINES[(i + i // len(COLOURS)) % len(LINES)],  # no look comes twice
                markersize=4,
                linewidth=1.2,
                label=f"{name}: {rank['basis']} ({rank['participation']:.1f})",
            )
        axes.set_yscale("log")
        axes.set_ylim(lowest, 1.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("basis matrix")
        axes.set_ylabel("singular value, relative")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(
        directory / "depth_rank.png",
        "Singular values of each map's weights, stacked over depth: how many basis matrices its curve "
        "needs. The number behind a name is how many carry 99% of the squared weights, in brackets the "
        "participation ratio. Weights that are the same at every depth need one.",
    )


def draw_modulation(study: Study, directory: Path) -> list[Picture]:
    """`modulation`: a heat map and a curve for each map."""
    arrays = {name: values for name, values in study.arrays.items() if name != "times"}
    times, gated = study.arrays["times"], study.numbers["weights"] == "gated"
    centre = 1.0 if gated else 0.0
    reach = max(float(np.abs(values - centre).max()) for values in arrays.values()) or 1.0
    with canvas(both(directory, "modulation"), WIDTH, 0.7 + 1.1 * len(arrays)) as drawn:
        grid = drawn.subplots(len(arrays), 2, squeeze=False, width_ratios=[1.6, 1], sharex="col")
        for (left, right), (name, values) in zip(grid, arrays.items()):
            image = _heat(left, times, values, centre, reach)
            left.set_title(f"{name} ({study.numbers['spread'][name]:.0%})", fontsize=8, loc="left")
            band(right, times, values, "mean")
            right.set_xlim(-0.02, 1.02)
        for axes in grid[-1]:
            axes.set_xlabel(DEPTH)
        drawn.colorbar(image, ax=list(grid[:, 0]), label="gate" if gated else "value", fraction=0.04)
    return [
        Picture(
            directory / "modulation.png",
            "Modulators over depth, by map. Left: each row is one modulator, sorted by its change from "
            "the first depth to the last; the number is their spread, ||m(t) - mean|| / ||m||, 0% for "
            "what does not depend on depth. Right: their mean and the range of nine tenths of them.",
        )
    ]


def _heat(axes: Axes, times: np.ndarray, values: np.ndarray, centre: float, reach: float) -> Any:
    order = np.argsort(values[-1] - values[0], kind="stable")
    image = axes.imshow(
        values[:, order].T,
        aspect="auto",
        cmap="PuOr",
        vmin=centre - reach,
        vmax=centre + reach,
        interpolation="nearest",
    )
    step = max(1, len(times) // 8)
    axes.set_xticks(range(0, len(times), step), [f"{t:.2g}" for t in times[::step]], fontsize=7)
    axes.set_yticks([])
    axes.grid(visible=False)
    return image
