"""How figures are drawn and kept: one style, png and pdf, legible in grey.

Every line has a marker and a dash of its own beside its colour, the colours differ in lightness, and
fonts are embedded in the pdf.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.files import write_bytes

STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}
SCREEN = 100
"""Dots per inch of a figure in a notebook."""
COLOURS = ("#1b1b1b", "#d55e00", "#0072b2", "#e6a700", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 5)))
MODELS = (
    *("standard", "shared", "time_indexed_mlp", "standard_narrow", "time_indexed_ssm"),
    *("tong_neuralode", "hybrid", "looped"),
)
"""Names that have a look of their own, the same in every figure: theirs is that of their place here."""


class Drawn(Figure):
    """A figure that a notebook shows when it is the last line of a cell."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", dpi=SCREEN)
        return content.getvalue()


@contextmanager
def canvas(paths: Sequence[Path], width: float, height: float) -> Iterator[Drawn]:
    """A figure to draw on; at the end it is written to every path, if there are any."""
    with mpl.rc_context(STYLE):
        drawn = Drawn(figsize=(width, height), layout="constrained")
        yield drawn
        for path in paths:
            content, form = BytesIO(), path.suffix.removeprefix(".")
            metadata = {"CreationDate": None} if form == "pdf" else {}
            drawn.savefig(content, format=form, metadata=metadata)
            write_bytes(path, content.getvalue())
            drawn.set_layout_engine("none")  # laid out for one file, it is for the others, too


@contextmanager
def figure(paths: Sequence[Path], width: float, height: float) -> Iterator[Axes]:
    """`canvas` with one pair of axes."""
    with canvas(paths, width, height) as drawn:
        yield drawn.subplots()


def both(directory: Path, name: str) -> list[Path]:
    """Where a figure of this name goes."""
    return [directory / f"{name}.png", directory / f"{name}.pdf"]


def looks(names: Iterable[str]) -> dict[str, int]:
    """The number of every model's look, for `appearance` and `line_style`.

    A name without one of its own gets one that no model has, in a colour that is still free while
    there are such.
    """
    given = list(dict.fromkeys(names))
    found = {name: MODELS.index(name) for name in given if name in MODELS}
    free = list(range(len(MODELS), len(COLOURS) * len(MARKERS) + len(given)))
    for name in (name for name in given if name not in found):
        used = {i % len(COLOURS) for i in found.values()}
        found[name] = next((i for i in free if i % len(COLOURS) not in used), free[0])
        free.remove(found[name])
    return {name: found[name] for name in given}


def appearance(i: int) -> dict[str, Any]:
    """One of 72: the numbers of colours and of markers have no divisor in common."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def line_style(i: int) -> Any:
    """A line that differs from the others of the same colour."""
    return LINES[(i + i // len(COLOURS)) % len(LINES)]
