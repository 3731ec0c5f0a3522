"""What the figures of an analysis share.

Curves over depth have t from 0 (the embedding) to 1 (the last layer). Style, colours and files are
those of the experiments' figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.analysis.tokens import shown
from qkvflow.report.figures import COLOURS, both, canvas

DEPTH = "depth t"
GREY, DARK, WARM, COOL = "0.6", COLOURS[0], COLOURS[1], COLOURS[2]
WIDTH = 9.3
"""Inches of every figure, so that letters have one size on the page."""
LABELLED = 64
"""Tokens up to which each has its text on the axis."""


@contextmanager
def panels(
    directory: Path, name: str, columns: int, *, rows: int = 1, height: float = 2.7
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Axes [row, column] of a figure as wide as all others, each row of this height in inches."""
    with canvas(both(directory, name), WIDTH, height * rows) as drawn:
        yield drawn, drawn.subplots(rows, columns, squeeze=False)


def depth_axis(axes: Axes, title: str) -> None:
    """Name an axis of depth, and give the panel its title."""
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(DEPTH)
    axes.set_title(title, fontsize=9, loc="left")


def band(axes: Axes, t: np.ndarray, values: np.ndarray, label: str, colour: str = DARK) -> None:
    """The mean of values [depth, token] and the range of nine tenths of them."""
    low, high = np.quantile(values, [0.05, 0.95], axis=1)
    axes.fill_between(t, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(
        t, values.mean(axis=1), color=colour, marker="o", markersize=3, linewidth=1.3, label=label
    )


def interval(axes: Axes, t: np.ndarray, sample: np.ndarray, label: str, half: np.ndarray) -> None:
    """The mean of a sample [window, depth] with the interval of the mean."""
    mean = sample.mean(axis=0)
    look: dict[str, Any] = {"color": COOL, "linestyle": "--", "marker": "s", "markersize": 3}
    if np.isfinite(half).all():
        axes.fill_between(t, mean - half, mean + half, color=COOL, alpha=0.25, linewidth=0)
    axes.plot(t, mean, linewidth=1.3, label=label, **look)


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
    has = _glyphs()
    return "".join(c if ord(c) in has else "\u25a1" for c in label)


def _glyphs() -> Mapping[int, int]:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont("DejaVu Sans")).get_charmap()
