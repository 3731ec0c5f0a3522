"""Spectra of the weights: eigenvalues and sizes of circuits, the rank of maps over depth."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qkvflow.analysis.circuits import Circuit, check_circuits, circuits_of
from qkvflow.analysis.figures import COOL, DARK, DEPTH, GREY, WARM, curve, depth_axis, picture
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
from qkvflow.report.figures import appearance, line_style
from qkvflow.report.page import Item, Paragraph, Picture
from qkvflow.report.table import Row, Table

CIRCUITS = {"qk": "QK", "ov": "OV", "mlp": "feed-forward", "ssm": "state space"}
SPECTRA = (eigenvalues, singular_values, numerical_range)
SMALLEST = 1e-6
"""Relative singular values below this are rounding, and are not shown."""


@ANALYSES.register("spectra")
class Spectra(Analysis):
    """Eigenvalues, singular values, numerical range of every circuit; the depth rank of every map."""

    heading = "Spectra of the weights"
    reading = (
        "The mean |eigenvalue| of a circuit is over its heads and all depths, with its change from the "
        "first depth to the last relative to that mean. Basis matrices: so many matrices per map, "
        "each with a coefficient of its own at every depth, carry 99% of its squared weights."
    )

    def check(self, subject: Subject) -> object:
        return check_circuits(subject.model, subject.circuits)

    def study(self, subject: Subject) -> Study:
        model, times = subject.model, subject.times
        circuits = circuits_of(model, times, subject.circuits)
        arrays: dict[str, np.ndarray] = {"times": times}
        numbers: dict[str, Any] = {"times": times, "circuits": {}}
        with progress("spectra", total=len(circuits) * len(times)) as advance:
            for name, circuit in circuits.items():
                found = _spectra(circuit, advance)
                arrays |= {f"{name}.{kind}": values for kind, values in found.items()}
                numbers["circuits"][name] = _summary(times, found)
        ranks = depth_ranks(model, times)
        arrays |= {f"depth_rank.{name}": rank.singular_values for name, rank in ranks.items()}
        kinds = ("basis", "participation", "spread")
        numbers["depth_rank"] = {
            name: {kind: getattr(rank, kind) for kind in kinds} for name, rank in ranks.items()
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

    def found(self, study: Study) -> str:
        sizes = (
            f"{numbers['magnitude']['relative_slope']:+.0%} ({CIRCUITS[name]})"
            for name, numbers in study.numbers["circuits"].items()
        )
        most = max(rank["basis"] for rank in study.numbers["depth_rank"].values())
        return (
            "Relative to its mean, the size of a circuit's eigenvalues changes over the depth by "
            f"{', '.join(sizes)}; the weights of all {len(study.arrays['times'])} depths are sums of "
            f"at most {most} basis matrices per map."
        )

    def text(self, study: Study, tokenizer: Tokenizer) -> list[Item]:
        head: Row = ("circuit", "heads", "mean |eigenvalue|", "over depth")
        head += ("spectral norm", "numerical radius")
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
        return [Table(head, rows), Paragraph(reading)]

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        return [
            picture(study, directory, "eigenvalues", 6.0, _eigenvalues),
            picture(study, directory, "magnitudes", 4.8, _magnitudes),
            picture(study, directory, "depth_rank", 3.0, _depth_rank),
        ]


def _spectra(circuit: Circuit, advance: Callable[[int], None]) -> dict[str, np.ndarray]:
    """All of a circuit by name, one time after the other: all at once may not fit."""
    found = []
    for left, right in zip(circuit.left, circuit.right):
        found.append([spectrum(Circuit(left[None], right[None])) for spectrum in SPECTRA])
        advance(1)
    return {s.__name__: np.concatenate(values) for s, values in zip(SPECTRA, zip(*found))}


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


def _eigenvalues(study: Study, drawn: Figure) -> str:
    arrays, names = study.arrays, list(study.numbers["circuits"])
    grid = drawn.subplots(2, len(names), squeeze=False)
    for (above, below), name in zip(grid.T, names):
        values = arrays[f"{name}.eigenvalues"]
        colours = np.broadcast_to(arrays["times"][:, None, None], values.shape).ravel()
        look: dict[str, Any] = {"cmap": "viridis", "vmin": 0.0, "vmax": 1.0, "s": 8, "linewidths": 0}
        points = above.scatter(values.real.ravel(), values.imag.ravel(), c=colours, zorder=3, **look)
        above.set_title(CIRCUITS[name], fontsize=9, loc="left")
        ranges = arrays[f"{name}.numerical_range"]
        for i, colour, label in ((0, GREY, "first depth"), (-1, DARK, "last depth")):
            closed = np.append(ranges[i], ranges[i][:, :1], axis=1).T
            lines = below.plot(closed.real, closed.imag, color=colour, linewidth=0.8)
            lines[0].set_label(label)
        for axes in (above, below):
            axes.set_aspect("equal", adjustable="datalim")
        below.set_xlabel("real part")
    grid[0, 0].set_ylabel("eigenvalues\nimaginary part")
    grid[1, 0].set_ylabel("numerical range\nimaginary part")
    grid[1, -1].legend(fontsize=7, loc="upper right")
    drawn.colorbar(points, ax=list(grid.ravel()), label=DEPTH, fraction=0.03, pad=0.01)
    return (
        "Above: eigenvalues of every head, coloured by depth. A circuit with eigenvalues to the right "
        "strengthens what it reads, to the left it removes it, and imaginary parts turn it. Below: the "
        "numerical range of every head. It holds the eigenvalues; where it is much wider than "
        "they reach, the circuit is far from normal, and they do not tell its size."
    )


def _magnitudes(study: Study, drawn: Figure) -> str:
    times, circuits = study.arrays["times"], study.numbers["circuits"]
    grid = drawn.subplots(2, len(circuits), squeeze=False)
    for (above, below), (name, numbers) in zip(grid.T, circuits.items()):
        heads = np.abs(study.arrays[f"{name}.eigenvalues"]).mean(axis=-1)
        if heads.shape[1] > 1:
            above.plot(times, heads, color=GREY, linewidth=0.7)
        curve(above, times, numbers["magnitude"]["over_depth"], "o-", DARK, "mean")
        curve(below, times, numbers["spectral_norm"]["over_depth"], "^--", COOL, "spectral norm")
        radius = numbers["numerical_radius"]["over_depth"]
        curve(below, times, radius, "s:", WARM, "numerical radius")
        change = _change_in_words(numbers["magnitude"], "rank corr.")
        depth_axis(above, f"{CIRCUITS[name]}: {change}")
        depth_axis(below, "")
        above.set_xlabel("")
        for axes in (above, below):
            axes.set_ylim(bottom=0)
    grid[0, 0].set_ylabel("mean |eigenvalue|")
    grid[1, 0].set_ylabel("size")
    grid[1, -1].legend(fontsize=7)
    return (
        "How large each circuit is over depth, as a mean over heads (grey: each head). Tong et al. "
        "find magnitudes that grow with depth; the title says what these do: the change over the whole "
        "depth relative to the mean, and the rank correlation with depth."
    )


def _depth_rank(study: Study, drawn: Figure) -> str:
    axes, lowest = drawn.subplots(), 0.3
    for i, (name, rank) in enumerate(study.numbers["depth_rank"].items()):
        values = study.arrays[f"depth_rank.{name}"]
        relative = values / values[0] if values[0] else values
        seen = relative >= SMALLEST
        lowest = min(lowest, float(relative[seen].min(initial=1.0)) / 2)
        look = {**appearance(i), "linestyle": line_style(i), "markersize": 4, "linewidth": 1.2}
        label = f"{name}: {rank['basis']} ({rank['participation']:.1f})"
        axes.plot(np.arange(1, len(values) + 1)[seen], relative[seen], label=label, **look)
    axes.set_yscale("log")
    axes.set_ylim(lowest, 1.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("basis matrix")
    axes.set_ylabel("singular value, relative")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return (
        "Singular values of each map's weights, stacked over depth: how many basis matrices its curve "
        "needs. The number behind a name is how many carry 99% of the squared weights, in brackets the "
        "participation ratio. Weights that are the same at every depth need one."
    )
