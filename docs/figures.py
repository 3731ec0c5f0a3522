"""The figures of README.md and docs/: `python -m docs.figures` draws them into docs/figures.

`models.png` is made of results/: valid loss over parameters and over training operations, and over
depth once results/elastic is there. The pictures of the three nouns are SVG on no background, in
colours that can be read on a light page and on a dark one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from docs.results import RESULTS, ROOT, experiment, run_of
from qkvflow.experiments.summary import losses_over_depth
from qkvflow.report.figures import appearance, canvas, line_style

OUT = ROOT / "docs" / "figures"
LOSS = "valid loss, nats per character"
EQUAL_STEPS, EQUAL_OPERATIONS, DEPTHS = "laptop", "laptop-flops", "elastic"
ALMOST_ALL = (1.3, 2.2)
"""Losses over depth that are shown: far from its own depth, a model knows nothing."""
AT_ANY_DEPTH = ("elastic", "fixed", "elastic_shared", "elastic_standard")
"""Of the models that were judged at several depths, those that the plan is about."""
INK = "#7d7d7d"
"""Axes and letters of the pictures: about as far from white as from black."""
BLUE, ORANGE, GREEN, PINK = "#3b82c4", "#d9702b", "#2f9e77", "#c2609b"
PICTURE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qkvflow",
    "font.size": 10,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Equation = Callable[[float, float], float]
"""dx/dt at a state and a time."""


# The models, from results/


def draw_models(path: Path) -> None:
    """Loss over parameters, over training operations and, where it was measured, over depth."""
    has_depths = (RESULTS / DEPTHS / "plan.yaml").is_file()
    with canvas([path], 10.0 if has_depths else 7.4, 3.9) as drawn:
        panels = drawn.subplots(1, 3 if has_depths else 2)
        over_parameters(panels[0])
        over_operations(panels[1])
        drawn.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        if has_depths:
            over_depth(panels[2])


def over_parameters(axes: Axes) -> None:
    """Every model at equal steps."""
    for i, (name, row) in enumerate(experiment(EQUAL_STEPS).summary.items()):
        bar: Any = {"fmt": appearance(i)["marker"], "color": appearance(i)["color"], "capsize": 3}
        axes.errorbar(row.costs.parameters, row.loss.mean, yerr=row.loss.half_width, label=name, **bar)
    _logarithmic(axes, "parameters")
    axes.set_ylabel(LOSS)


def over_operations(axes: Axes) -> None:
    """Every model at equal steps, open, and at equal training operations, filled, joined by a line."""
    again = experiment(EQUAL_OPERATIONS).summary
    for i, (name, row) in enumerate(experiment(EQUAL_STEPS).summary.items()):
        rows = (row, again[name])
        operations = [of.costs.training_flops for of in rows]
        axes.plot(
            operations, [of.loss.mean for of in rows], color=appearance(i)["color"], linewidth=0.8
        )
        for at, of, fill in zip(operations, rows, ("white", appearance(i)["color"])):
            bar: Any = {"fmt": appearance(i)["marker"], "color": appearance(i)["color"], "capsize": 3}
            axes.errorbar(at, of.loss.mean, yerr=of.loss.half_width, markerfacecolor=fill, **bar)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("floating-point operations of training")


def over_depth(axes: Axes) -> None:
    """Models that were run with other numbers of layers than they were trained with.

    Colours and markers are those of the kind of model in the other panels.
    """
    kinds, found = list(experiment(EQUAL_STEPS).summary), losses_over_depth(experiment(DEPTHS).records)
    for i, name in enumerate(AT_ANY_DEPTH):
        losses = found[name].values()
        look = appearance(kinds.index(run_of(DEPTHS, name).model))
        style: Any = {**look, "linestyle": line_style(i), "capsize": 3, "markersize": 4, "label": name}
        half = [sample.half_width or 0.0 for sample in losses]
        axes.errorbar(list(found[name]), [sample.mean for sample in losses], yerr=half, **style)
    depths = sorted({depth for name in AT_ANY_DEPTH for depth in found[name]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(depths, list(map(str, depths)))
    axes.minorticks_off()
    axes.set_ylim(*ALMOST_ALL)
    axes.set_xlabel("layers")
    axes.legend(fontsize=6, loc="upper center")


def _logarithmic(axes: Axes, label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)


# The three nouns


def draw_weight(path: Path) -> None:
    """One number of a weight over depth, in every family; points are what six layers see of it."""
    layers = (np.arange(6) + 1) / 6
    t = np.linspace(0, 1, 200)
    table = np.array([0.62, 0.35, 0.55, 0.8, 0.45, 0.6])
    loop = np.array([0.75, 0.4, 0.6, 0.4, 0.6, 0.3])
    families: list[tuple[str, str, Callable[[np.ndarray], np.ndarray] | np.ndarray]] = [
        ("per_layer", "a table", table),
        ("shared", "one for all", lambda t: np.full_like(t, 0.5)),
        (
            "generated",
            "a smooth curve",
            lambda t: 0.5 + 0.2 * np.sin(7 * t) + 0.12 * np.cos(13 * t),
        ),
        ("gated", "one, scaled", lambda t: 0.5 / (0.6 + np.exp(-6 * (t - 0.5)))),
        ("low_rank", "nearly one", lambda t: 0.5 + 0.14 * np.sin(5 * t + 0.6)),
        ("looped", "read again", loop),
    ]
    with _picture(path, 6.4, 3.4) as drawn:
        for axes, (name, words, of) in zip(
            drawn.subplots(2, 3, sharex=True, sharey=True).flat, families
        ):
            values = of(layers) if callable(of) else of
            if callable(of):
                axes.plot(t, of(t), color=BLUE, linewidth=1.4)
            axes.plot(layers, values, "o", color=ORANGE, markersize=5)
            axes.set_title(f"{name}: {words}", fontsize=9, loc="left")
            axes.set(ylim=(0, 1), yticks=[], xticks=[0, 1])
        drawn.supxlabel("depth t", fontsize=10)
        drawn.supylabel("W(t)", fontsize=10)


def _slope(x: float, t: float) -> float:
    """A field whose arrows turn with depth."""
    return float(2.4 * np.sin(5.0 * t + 0.4) - 1.1 * x)


def draw_field(path: Path) -> None:
    """Arrows of a field over depth and state, and three states on their way."""
    times, states = np.meshgrid(np.linspace(0, 1, 17), np.linspace(-1.2, 1.8, 11))
    slopes = np.vectorize(_slope)(states, times)
    with _picture(path, 5.8, 3.0) as drawn:
        axes = drawn.subplots()
        length = np.hypot(1.0, slopes / 3)
        arrows: Any = {"color": INK, "alpha": 0.55, "width": 0.002, "pivot": "mid", "scale": 26}
        axes.quiver(times, states, 1 / length, slopes / 3 / length, **arrows)
        for begin, colour in ((-0.8, BLUE), (0.1, ORANGE), (1.0, GREEN)):
            found = solve(_slope, begin, 200, rk4)
            axes.plot(np.linspace(0, 1, 201), found, color=colour, linewidth=1.8)
            axes.plot([0, 1], [found[0], found[-1]], "o", color=colour, markersize=5)
        axes.set(xlabel="depth t", ylabel="state x", yticks=[], xticks=[0, 1])


def euler(f: Equation, x: float, t: float, h: float) -> float:
    """A step along one slope."""
    return x + h * f(x, t)


def heun(f: Equation, x: float, t: float, h: float) -> float:
    """A step along the mean of the slopes at its ends."""
    first = f(x, t)
    return x + h * (first + f(x + h * first, t + h)) / 2


def rk4(f: Equation, x: float, t: float, h: float) -> float:
    """The classical step of order four."""
    a = f(x, t)
    b = f(x + h * a / 2, t + h / 2)
    c = f(x + h * b / 2, t + h / 2)
    d = f(x + h * c, t + h)
    return x + h * (a + 2 * b + 2 * c + d) / 6


def solve(f: Equation, x: float, layers: int, step: Callable[..., float]) -> Sequence[float]:
    """The states at the ends of all layers, the first one before them."""
    found = [x]
    for layer in range(layers):
        found.append(step(f, found[-1], layer / layers, 1 / layers))
    return found


def draw_integrator(path: Path) -> None:
    """Three methods in four steps beside the exact solution."""
    with _picture(path, 5.8, 3.0) as drawn:
        axes = drawn.subplots()
        exact = solve(_slope, 0.1, 400, rk4)
        axes.plot(np.linspace(0, 1, 401), exact, color=INK, linewidth=3.5, alpha=0.5, label="exact")
        looks = ((euler, "o--", ORANGE), (heun, "s-.", BLUE), (rk4, "^:", GREEN))
        for step, look, colour in looks:
            found = solve(_slope, 0.1, 4, step)
            axes.plot(
                np.linspace(0, 1, 5), found, look, color=colour, markersize=6, label=step.__name__
            )
        axes.set(xlabel="depth t", ylabel="state x", yticks=[], xticks=np.linspace(0, 1, 5))
        axes.legend(frameon=False)


@contextmanager
def _picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure without a background, written as SVG at the end."""
    with mpl.rc_context(PICTURE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        drawn.savefig(path, transparent=True, metadata={"Date": None})


FIGURES = {
    "models.png": draw_models,
    "weight.svg": draw_weight,
    "field.svg": draw_field,
    "integrator.svg": draw_integrator,
}


def main(out: Path = OUT) -> None:
    """Draw all of them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        draw(out / name)


if __name__ == "__main__":
    main()
