"""Spectra of the weights: eigenvalues and sizes of circuits, the rank of maps over depth."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkvflow.analysis.circuits import Circuit, check_circuits, circuits_of
from qkvflow.analysis.figures import COOL, DARK, DEPTH, GREY, WARM, WIDTH, depth_axis, panels
from qkvflow.analysis.spectra import (
    depth_ranks,
    eigenvalues,
    mean_magnitudes,
    numerical_range,
    singular_values,
    trend,
)
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject
from qkvflow.data import Tokenizer
from qkvflow.progress import progress
from qkvflow.report.figures import COLOURS, LINES, MARKERS, both, figure
from qkvflow.report.page import Paragraph, Picture, element
from qkvflow.report.table import Table

CIRCUITS = {"qk": "QK", "ov": "OV", "mlp": "feed-forward", "ssm": "state space"}
DEPTH_COLOURS = "viridis"
SMALLEST = 1e-6
"""Relative singular values below this are rounding, and are not shown."""


@ANALYSES.register("spectra")
class Spectra(Analysis):
    """Eigenvalues, singular values, numerical range of every circuit; the depth rank of every map."""

    heading = "Spectra of the weights"

    def check(self, subject: Subject) -> object:
        return check_circuits(subject.model, subject.circuits)

    def study(self, subject: Subject) -> Study:
        model, times = subject.model, subject.times
        circuits = circuits_of(model, times, subject.circuits)
        arrays: dict[str, np.ndarray] = {"times": times}
        numbers: dict[str, Any] = {"times": times, "circuits": {}}
        with progress("spectra", total=len(circuits) * len(times)) as advance:
            for name, circuit in circuits.items():
                found = _spectrum(circuit, advance)
                arrays |= {f"{name}.{kind}": values for kind, values in found.items()}
                numbers["circuits"][name] = _summary(times, found)
        ranks = depth_ranks(model, times)
        arrays |= {f"depth_rank.{name}": rank.singular_values for name, rank in ranks.items()}
        numbers["depth_rank"] = {
            name: {"basis": r.basis, "participation": r.participation, "spread": r.spread}
            for name, r in ranks.items()
        }
        return Study(arrays, numbers)

    def main_numbers(self, study: Study) -> list[Line]:
        lines = []
        for name, numbers in study.numbers["circuits"].items():
            magnitude = numbers["magnitude"]
            text = f"{magnitude['mean']:.3g}; over depth {_with_p_value(magnitude)}"
            lines.append((f"mean |eigenvalue|, {CIRCUITS[name]}", text))
        ranks = study.numbers["depth_rank"]
        most = max(ranks, key=lambda name: ranks[name]["basis"])
        times = len(study.arrays["times"])
        text = f"{ranks[most]['basis']} of {times} ({most}; 99% of its squared weights)"
        return [*lines, ("basis matrices that a map needs, at most", text)]

    def text(self, study: Study, tokenizer: Tokenizer) -> list[str]:
        head = (
            "circuit",
            "heads",
            "mean |eigenvalue|",
            "over depth",
            "spectral norm",
            "numerical radius",
        )
        rows = tuple(
            (
                CIRCUITS[name],
                str(numbers["heads"]),
                f"{numbers['magnitude']['mean']:.3g}",
                _with_p_value(numbers["magnitude"]),
                f"{numbers['spectral_norm']['mean']:.3g}",
                f"{numbers['numerical_radius']['mean']:.3g}",
            )
            for name, numbers in study.numbers["circuits"].items()
        )
        reading = (
            "Circuits are the products of a layer's matrices, W_q W_k^T / sqrt(D) and W_v W_o of "
            "every head and the feed-forward map, with the gain of the norm before them folded in. "
            "Neighbouring depths are not independent: take the p-value of the rank correlation as an "
            "aid."
        )
        return [element(Table(head, rows)), element(Paragraph(reading))]

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        """`eigenvalues`, `magnitudes` and `depth_rank`."""
        names = list(study.numbers["circuits"])
        return [
            _eigenvalues(study.arrays, names, directory),
            _magnitudes(study, names, directory),
            _depth_rank(study, directory),
        ]


def _spectrum(circuit: Circuit, advance: Callable[[int], None]) -> dict[str, np.ndarray]:
    """All of a circuit, one time after the other."""
    kinds = {
        "eigenvalues": eigenvalues,
        "singular_values": singular_values,
        "numerical_range": numerical_range,
    }
    found: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
    for i in range(len(circuit.left)):
        one = Circuit(circuit.left[i : i + 1], circuit.right[i : i + 1])
        for kind, function in kinds.items():
            found[kind].append(function(one))
        advance(1)
    return {kind: np.concatenate(values) for kind, values in found.items()}


def _summary(times: np.ndarray, found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Means over heads of what tells the size of a circuit, and how each changes with depth."""
    sizes = {
        "magnitude": mean_magnitudes(found["eigenvalues"]),
        "spectral_norm": found["singular_values"][..., 0].mean(axis=1),
        "numerical_radius": np.abs(found["numerical_range"]).max(axis=-1).mean(axis=1),
    }
    heads = found["eigenvalues"].shape[1]
    summary = {kind: {"over_depth": v, **vars(trend(times, v))} for kind, v in sizes.items()}
    return {"heads": heads, **summary}


def _change_in_words(trend: Mapping[str, Any], correlation: str = "rank correlation") -> str:
    """What a size does over depth."""
    if not trend["slope"]:
        return "constant"
    text = f"{trend['relative_slope']:+.0%}"
    return text if trend["spearman"] is None else f"{text}, {correlation} {trend['spearman']:+.2f}"


def _with_p_value(trend: Mapping[str, Any]) -> str:
    tested = trend["slope"] and trend["spearman"] is not None
    return _change_in_words(trend) + (f" (p {trend['p_value']:.2g})" if tested else "")


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
            change = _change_in_words(numbers["magnitude"], "rank corr.")
            depth_axis(above, f"{CIRCUITS[name]}: {change}")
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
