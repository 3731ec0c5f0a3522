"""What the figures of an analysis share.

Curves over depth have t from 0 (the embedding) to 1 (the last layer). Style, colours and files are
those of the experiments' figures.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from qkvflow.analysis.corpus import Sample
from qkvflow.analysis.study import Study
from qkvflow.analysis.tokens import shown
from qkvflow.report.figures import COLOURS, both, canvas
from qkvflow.report.page import Picture

DEPTH = "depth t"
GREY, DARK, WARM, COOL = "0.6", COLOURS[0], COLOURS[1], COLOURS[2]
WIDTH = 9.3
"""Inches of every figure, so that letters have one size on the page."""
LABELLED = 64
"""Tokens up to which each has its text on the axis."""


Draw = Callable[[Study, Figure], str]
"""Draws what a study found on a figure, and returns its caption."""


def picture(study: Study, directory: Path, name: str, height: float, draw: Draw) -> Picture:
    """A figure of this name and height in inches, as wide as all others."""
    with canvas(both(directory, name), WIDTH, height) as drawn:
        caption = draw(study, drawn)
    return Picture(directory / f"{name}.png", caption)


def depth_axis(axes: Axes, title: str) -> None:
    """Name an axis of depth, and give the panel its title."""
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(DEPTH)
    axes.set_title(title, fontsize=9, loc="left")


def curve(axes: Axes, t: np.ndarray, values: Any, look: str, colour: str, label: str) -> None:
    """A line with markers; `look` is its marker and its dash, as in "o-"."""
    axes.plot(t, values, look, color=colour, markersize=3, linewidth=1.3, label=label)


def band(axes: Axes, t: np.ndarray, values: np.ndarray, label: str) -> None:
    """The mean of values [depth, token] and the range of nine tenths of them."""
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    axes.fill_between(t, low, high, color=DARK, alpha=0.15, linewidth=0)
    curve(axes, t, values.mean(axis=1), "o-", DARK, label)


def interval(axes: Axes, t: np.ndarray, sample: Sample) -> None:
    """The mean of a sample [window, depth] with the interval of the mean."""
    mean, half = sample.mean, sample.half_width
    if np.isfinite(half).all():
        axes.fill_between(t, mean - half, mean + half, color=COOL, alpha=0.25, linewidth=0)
    curve(axes, t, mean, "s--", COOL, f"{len(sample.values)} windows")


def token_axis(axes: Axes, labels: Sequence[str], *, vertical: bool = False) -> None:
    """One tick a token with its text, or plain positions where there are too many."""
    axis = axes.yaxis if vertical else axes.xaxis
    if len(labels) > LABELLED:
        axis.set_label_text("position")
        return
    names = [_drawable(shown(label)) for label in labels]
    look: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    if not vertical and max(map(len, names)) > 2:
        look["rotation"] = 90
    axis.set_ticks(range(len(labels)), names, **look)
    axes.tick_params(axis="y" if vertical else "x", length=0)


def _drawable(label: str) -> str:
    """The label with a box for what the figures' font does not have, which would be a warning each."""
    has = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(c if ord(c) in has else "\u25a1" for c in label)
