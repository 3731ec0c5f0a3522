"""Figures of what happens to a text: exponents, sensitivity, trajectories, predictions."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from qkvflow.analysis.corpus import Sample
from qkvflow.analysis.figures import (
    COOL,
    DARK,
    WARM,
    WIDTH,
    band,
    depth_axis,
    interval,
    panels,
    token_axis,
)
from qkvflow.analysis.studies import Study
from qkvflow.report.figures import both, canvas, figure
from qkvflow.report.page import Picture

DECADES = 4.0
"""Powers of ten that the colours of the sensitivity span, at most."""


def draw_lyapunov(study: Study, directory: Path) -> list[Picture]:
    """`exponents`, `token_exponents`, `sensitivity`, and of a corpus `sensitivity_by_distance`."""
    figures = [_exponents(study, directory), _token_exponents(study, directory)]
    figures.append(_sensitivity(study, directory))
    if "corpus" in study.numbers:
        figures.append(_by_distance(study, directory))
    return figures


def _exponents(study: Study, directory: Path) -> Picture:
    depths, growth = study.arrays["depths"], study.arrays["growth"]
    found = study.arrays["exponents"]
    with panels(directory, "exponents", 2, height=2.9) as (_, ((left, right),)):
        reached = np.vstack([np.zeros(growth.shape[1]), np.cumsum(growth, axis=0)])
        shades = np.linspace(0.0, 0.75, growth.shape[1])
        for i, curve in enumerate(reached.T):
            left.plot(depths, curve, color=str(shades[i]), marker="o", markersize=2.5, linewidth=1.1)
        depth_axis(left, "growth of the leading directions")
        left.set_ylabel("log of the stretch")
        order = np.arange(1, len(found) + 1)
        right.plot(order, found, "o", color=DARK, markersize=5, label="the text")
        if "corpus" in study.numbers:
            sample = Sample(study.arrays["corpus.exponents"])
            error = sample.half_width if len(sample.values) > 1 else None
            label = f"{len(sample.values)} windows, 95%"
            look: dict[str, Any] = {"fmt": "s", "color": COOL, "capsize": 3, "markersize": 4}
            right.errorbar(order + 0.2, sample.mean, yerr=error, label=label, **look)
            right.legend(fontsize=7)
        right.axhline(0.0, color="0.4", linewidth=0.8)
        right.set_xticks(order)
        right.set_title("finite-time Lyapunov exponents", fontsize=9, loc="left")
        right.set_xlabel("number")
        right.set_ylabel("per unit of depth")
    return Picture(
        directory / "exponents.png",
        "Lyapunov exponents of the whole sequence over depth. Above zero, neighbouring inputs are "
        "driven apart: a change along that direction is exp(exponent) times as large at the end. Left: "
        "how the leading directions grow on their way.",
    )


def _token_exponents(study: Study, directory: Path) -> Picture:
    values, labels = study.arrays["token_exponents"], study.numbers["tokens"]
    with figure(both(directory, "token_exponents"), WIDTH, 2.3) as axes:
        axes.bar(range(len(values)), values, color=COOL, width=0.8)
        axes.axhline(0.0, color="0.4", linewidth=0.8)
        axes.set_xlim(-0.6, len(values) - 0.4)
        axes.set_ylabel("largest exponent")
        axes.grid(axis="x", visible=False)
        token_axis(axes, labels)
    return Picture(
        directory / "token_exponents.png",
        "The largest exponent of every token by itself: how its own place in the last state answers to "
        "a change of its own embedding.",
    )


def _sensitivity(study: Study, directory: Path) -> Picture:
    values, labels = study.arrays["sensitivity"], study.numbers["tokens"]
    position = study.numbers["position"]
    if len(values) == 1:
        with figure(both(directory, "sensitivity"), WIDTH, 2.3) as axes:
            axes.bar(range(len(labels)), values[0], color=WARM, width=0.8)
            axes.set_ylabel("sensitivity")
            token_axis(axes, labels)
        return Picture(
            directory / "sensitivity.png", f"Sensitivity of position {position} to every token."
        )
    with canvas(both(directory, "sensitivity"), WIDTH, min(7.5, 2.2 + 0.14 * len(labels))) as drawn:
        axes = drawn.subplots()
        top = float(values.max())
        norm = LogNorm(max(top / 10**DECADES, float(values[values > 0].min())), top)
        seen = np.ma.masked_equal(values, 0.0)
        image = axes.imshow(seen, cmap="magma_r", norm=norm, interpolation="nearest")
        axes.axhline(position, color=COOL, linewidth=1.0)
        axes.grid(visible=False)
        token_axis(axes, labels)
        token_axis(axes, labels, vertical=True)
        axes.set_xlabel("input token j")
        axes.set_ylabel("output position i")
        drawn.colorbar(image, ax=axes, label="sensitivity", fraction=0.04)
    return Picture(
        directory / "sensitivity.png",
        "Sensitivity ||d x_i(1) / d x_j(0)|| / sqrt(E) of every output position (rows) to every input "
        "token (columns); the identity would give 1 on the diagonal. White is exactly zero: no "
        "position sees a later one. The line marks the position chosen above.",
    )


def _by_distance(study: Study, directory: Path) -> Picture:
    sample = Sample(study.arrays["corpus.sensitivity_by_distance"])
    mean, half = sample.mean, sample.half_width
    distance = np.arange(len(mean))
    with figure(both(directory, "sensitivity_by_distance"), WIDTH, 2.9) as axes:
        if len(sample.values) > 1:
            low = np.maximum(mean - half, mean / 100)
            axes.fill_between(distance, low, mean + half, color=COOL, alpha=0.25, linewidth=0)
        axes.plot(distance, mean, color=COOL, marker="o", markersize=3, linewidth=1.2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens back from the last position")
        axes.set_ylabel("sensitivity (mean, 95%)")
    return Picture(
        directory / "sensitivity_by_distance.png",
        f"Sensitivity of the last position to tokens by their distance: {len(sample.values)} windows "
        "of the corpus.",
    )


def draw_trajectory(study: Study, directory: Path) -> list[Picture]:
    """`trajectory` and `lens`."""
    depths = study.arrays["depths"]
    between = (depths[1:] + depths[:-1]) / 2
    with panels(directory, "trajectory", 3) as (_, (row,)):
        _compare(row[0], study, "norm", depths, "length of x")
        _compare(row[1], study, "turn", between, "turn in a layer, degrees")
        _compare(row[2], study, "speed", between, "speed, per unit of depth")
        row[0].legend(fontsize=7)
    with panels(directory, "lens", 4, height=2.5) as (_, (row,)):
        _compare(row[0], study, "loss", depths, "loss of next token, nats")
        _compare(row[1], study, "entropy", depths, "entropy, nats")
        _compare(row[2], study, "divergence", depths, "divergence from the last, nats")
        _share_settled(row[3], study)
        row[3].legend(fontsize=7)
    return [
        Picture(
            directory / "trajectory.png",
            "The residual stream over depth: its length, how far each layer turns it, and how fast it "
            "moves. Black: the text (mean of its tokens, and the range of nine tenths of them).",
        ),
        Picture(
            directory / "lens.png",
            "What the model would predict if it ended at depth t (logit lens). The last panel: the "
            "share of positions whose likeliest token has settled for good by then.",
        ),
    ]


def _compare(axes: Axes, study: Study, name: str, t: np.ndarray, title: str) -> None:
    """A quantity of the text and, where there is one, of the corpus."""
    band(axes, t, study.arrays[name], "the text")
    if "corpus" in study.numbers:
        sample = Sample(study.arrays[f"corpus.{name}"])
        interval(axes, t, sample.values, f"{len(sample.values)} windows", sample.half_width)
    depth_axis(axes, title)
    axes.set_ylim(bottom=0)


def _share_settled(axes: Axes, study: Study) -> None:
    depths = study.arrays["depths"]
    share = np.mean(study.arrays["settled"][None] <= depths[:, None], axis=1)
    axes.step(depths, share, where="post", color=DARK, linewidth=1.3, label="the text")
    if "corpus" in study.numbers:
        mean = study.arrays["corpus.settled"].mean(axis=0)
        look: dict[str, Any] = {"color": COOL, "linestyle": "--", "linewidth": 1.3}
        axes.step(depths, mean, where="post", label="windows", **look)
    depth_axis(axes, "share of settled predictions")
    axes.set_ylim(0.0, 1.02)
