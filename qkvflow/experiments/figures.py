"""The figures of an experiment, as a paper would print them; error bars show their points."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from qkvflow.experiments.records import Choices, Finished, Record, by_arm, finished
from qkvflow.experiments.summary import Comparison, Summary, pareto_optimal
from qkvflow.report.figures import appearance, both, canvas, figure, line_style
from qkvflow.statistics import Sample

MANY = 8
"""Arms up to which a legend leaves room for what it stands in."""
MOST_LINES = 12
"""Arms that can be told apart by their lines."""
MOST = 24
"""Arms that can be told apart by their markers."""
Summaries = Mapping[str, Summary]
Looks = Mapping[str, int]
"""Of every arm the number of its look, the same in all figures of an experiment."""
_SEED: Any = {"s": 12, "alpha": 0.45, "linewidths": 0}
"""The point of a seed, behind the mean."""


def _name_arms(axes: Axes) -> None:
    """A legend: in the axes, or beside them where there are many arms."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:  # no run of any arm has finished
        return
    if len(labels) <= MANY:
        axes.legend(fontsize=8)
    else:
        axes.figure.legend(handles, labels, loc="outside right upper", fontsize=7)


def draw_performance(
    summary: Summaries, directory: Path, baselines: Mapping[str, float], looks: Looks
) -> None:
    """`statistical_performance`: the valid loss of every arm, each seed a point, mean and interval."""
    with figure(both(directory, "statistical_performance"), 6.4, 0.5 + 0.42 * len(summary)) as axes:
        _points(axes, {name: row.loss for name, row in summary.items()}, looks)
        low, high = axes.get_xlim()
        for name, loss in baselines.items():
            if low - 0.5 * (high - low) < loss < high + 0.5 * (high - low):
                axes.axvline(loss, color="0.5", linewidth=0.8, linestyle=":")
                place = axes.get_xaxis_transform()
                axes.text(loss, 1.01, name, transform=place, ha="center", fontsize=7, color="0.3")
        axes.set_xlabel(f"valid loss, nats per token ({_of_seeds(summary)})")


def _of_seeds(summary: Summaries) -> str:
    """What the marks of an arm are."""
    several = any(len(row.seeds) > 1 for row in summary.values())
    return "mean and 95% interval; points: seeds" if several else "one seed"


def draw_speed(summary: Summaries, directory: Path, looks: Looks) -> None:
    """`speed_comparison`: milliseconds per step of every arm."""
    with figure(both(directory, "speed_comparison"), 6.4, 0.5 + 0.42 * len(summary)) as axes:
        _points(axes, {name: row.milliseconds for name, row in summary.items()}, looks)
        axes.set_xlim(left=0)
        axes.set_xlabel("milliseconds per training step (median; points: seeds)")


def _points(axes: Axes, rows: Mapping[str, Sample | tuple[float, ...]], looks: Looks) -> None:
    """Rows of points, the first arm on top: a sample with its mean and interval, or with its median."""
    for i, (name, row) in enumerate(rows.items()):
        style = appearance(looks[name])
        points = row.values if isinstance(row, Sample) else row
        middle = row.mean if isinstance(row, Sample) else float(np.median(row))
        half = row.half_width if isinstance(row, Sample) else None
        spread = np.linspace(-0.12, 0.12, len(points)) if len(points) > 1 else [0.0]
        axes.scatter(points, i + np.asarray(spread), **_SEED, color=style["color"])
        bar: Any = {"fmt": style["marker"], "color": style["color"], "capsize": 3, "markersize": 6}
        axes.errorbar(middle, i, xerr=half, **bar)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def draw_efficiency(
    summary: Summaries, directory: Path, baselines: Mapping[str, float], looks: Looks
) -> None:
    """`efficiency_with_error`: loss over parameters, with a line through what is Pareto-optimal.

    Of the n-grams, those are drawn that lie between the models, and the next one above and below them.
    """
    with figure(both(directory, "efficiency_with_error"), 6.4, 4.0) as axes:
        best = [summary[arm] for arm in pareto_optimal(summary)]
        line: Any = {"where": "post", "color": "0.6", "linewidth": 1.0, "zorder": 1}
        line["label"] = "Pareto-optimal"
        for _, rows in itertools.groupby(best, key=lambda row: row.text):
            axes.step(*zip(*((row.costs.parameters, row.loss.mean) for row in rows)), **line)
            line.pop("label", None)
        for arm, row in summary.items():
            style, size = appearance(looks[arm]), row.costs.parameters
            axes.scatter([size] * len(row.seeds), row.loss.values, **_SEED, color=style["color"])
            bar: Any = {"fmt": style["marker"], "color": style["color"], "capsize": 3, "markersize": 7}
            axes.errorbar(size, row.loss.mean, yerr=row.loss.half_width, **bar, label=arm)
        sizes = [row.costs.parameters for row in summary.values()]
        if max(sizes) > 10 * min(sizes):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("parameters")
        axes.set_ylabel(f"valid loss, nats per token\n({_of_seeds(summary)})")
        means = [row.loss.mean for row in summary.values()]
        _baselines(axes, _around(baselines, min(means), max(means)))
        _name_arms(axes)


def draw_over_depth(found: Mapping[str, Mapping[int, Sample]], directory: Path, looks: Looks) -> None:
    """`depth_curves`: the loss of every arm over the number of layers that it is run with."""
    depths = sorted({depth for of in found.values() for depth in of})
    with figure(both(directory, "depth_curves"), 6.4, 4.0) as axes:
        for arm, of in found.items():
            i = looks[arm]
            half = [0.0 if sample.half_width is None else sample.half_width for sample in of.values()]
            style = {**appearance(i), "linestyle": line_style(i), "capsize": 3, "label": arm}
            axes.errorbar(list(of), [sample.mean for sample in of.values()], yerr=half, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(depths, list(map(str, depths)))
        axes.minorticks_off()
        axes.set_xlabel("layers")
        axes.set_ylabel("valid loss, nats per token\n(mean and 95% interval)")
        _name_arms(axes)


def _around(baselines: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """The baselines from the next one below a range of losses to the next one above it."""
    below = max((loss for loss in baselines.values() if loss < low), default=low)
    above = min((loss for loss in baselines.values() if loss > high), default=high)
    return {name: loss for name, loss in baselines.items() if below <= loss <= above}


def _baselines(axes: Axes, baselines: Mapping[str, float]) -> None:
    """A dotted line at the loss of every baseline, with its name."""
    place = axes.get_yaxis_transform()
    label: dict[str, Any] = {"fontsize": 7, "color": "0.3", "ha": "left", "va": "bottom"}
    for name, loss in baselines.items():
        axes.axhline(loss, color="0.5", linewidth=0.8, linestyle=":")
        axes.text(0.005, loss, name, transform=place, **label)


def draw_curves(
    records: Sequence[Record],
    directory: Path,
    baselines: Mapping[str, float],
    reference: str,
    looks: Looks,
) -> None:
    """`learning_curves`: the loss on a fixed part of the valid split; the band is all seeds.

    Below it, where others can be compared with the reference, the difference to it, seed by seed; the
    first quarter, in which arms may be far apart, does not decide how far that axis goes. Arms with
    other numbers of steps are drawn over training FLOP, and have no step in common to compare.
    """
    runs = finished(records)
    over_steps = len({run.run["steps"] for run in runs}) == 1
    texts = {run.arm: run.run["data"] for run in runs}
    curves = {arm: _curves(runs, over_steps) for arm, runs in by_arm(records).items()}
    others = {
        arm: compared
        for arm, seen in curves.items()
        if over_steps
        and arm != reference
        and texts[arm] == texts.get(reference)
        and len(compared := _minus(seen, curves.get(reference, {})))
    }
    with canvas(both(directory, "learning_curves"), 6.4, 5.6 if others else 4.0) as drawn:
        panels = drawn.subplots(2 if others else 1, 1, sharex=True, squeeze=False)[:, 0]
        for arm, of_arm in curves.items():
            _band(panels[0], of_arm, looks[arm], arm)
            if arm in others:
                _band(panels[1], others[arm], looks[arm], arm)
        low, high = panels[0].get_ylim()
        _baselines(panels[0], {name: of for name, of in baselines.items() if low < of < high})
        panels[0].set_ylabel("valid loss, nats per token")
        _name_arms(panels[0])
        if others:
            panels[1].axhline(0.0, color="0.4", linewidth=1.0)
            panels[1].set_ylabel(f"minus {reference}'s")
            panels[1].set_ylim(*_late_range(others.values()))
        several = any(len(seen) > 1 for seen in curves.values())
        seeds = "lines: means; bands: all seeds" if several else "one seed"
        panels[-1].set_xlabel(f"{'step' if over_steps else 'training FLOP'} ({seeds})")
        if not over_steps:
            panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_train_and_valid(records: Sequence[Record], directory: Path, looks: Looks) -> None:
    """`train_and_valid`: of every arm the loss on the valid split and of training batches, over epochs.

    Panels share their axes, so that gaps can be compared; lines are means, bands all seeds.
    """
    of_arms = {arm: [(r, r.best) for r in runs if r.best] for arm, runs in by_arm(records).items()}
    of_arms = {arm: runs for arm, runs in of_arms.items() if runs}
    columns = min(3, len(of_arms))
    rows = -(-len(of_arms) // columns)
    with canvas(both(directory, "train_and_valid"), 6.4, 0.6 + 2.0 * rows) as drawn:
        panels = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (arm, runs) in zip(panels.flat, of_arms.items()):
            epoch = runs[0][0].run["steps"] / runs[0][1].epochs
            valid = {r.seed: {at.step / epoch: at.loss for at in r.curve if at.step} for r, _ in runs}
            learned = {r.seed: {step / epoch: loss for step, loss in b.batches} for r, b in runs}
            _band(axes, valid, looks[arm], "valid", linestyle="-")
            _band(axes, learned, looks[arm], "training batches", marker="", linestyle="--")
            axes.set_title(arm, fontsize=8)
        for axes in panels.flat[len(of_arms) :]:
            axes.set_axis_off()
        panels.flat[0].legend(fontsize=7)
        drawn.supxlabel("epochs", fontsize=9)
        drawn.supylabel("loss, nats per token", fontsize=9)


_Curves = Mapping[int, Mapping[float, float]]
"""By seed, the loss at every evaluation but the one at the start, over steps or training FLOP."""


def _curves(of_arm: Sequence[Finished], over_steps: bool) -> _Curves:
    def unit(run: Finished) -> float:
        return 1 if over_steps else run.costs.training_flops / run.run["steps"]

    return {
        run.seed: {point.step * unit(run): point.loss for point in run.curve if point.step}
        for run in of_arm
    }


def _late_range(differences: Iterable[_Curves]) -> tuple[float, float]:
    """From the least to the largest difference after a quarter of the steps, zero, some room."""
    seen = [at for curves in differences for of_seed in curves.values() for at in of_seed.items()]
    last = max(step for step, _ in seen)
    late = [0.0, *(loss for step, loss in seen if step >= last / 4)]
    room = 0.05 * (max(late) - min(late)) or 0.01
    return min(late) - room, max(late) + room


def _minus(curves: _Curves, others: _Curves) -> _Curves:
    """Differences over the seeds and evaluations that both have."""
    return {
        seed: {step: curves[seed][step] - others[seed][step] for step in both_have}
        for seed in sorted(curves.keys() & others.keys())
        if (both_have := sorted(curves[seed].keys() & others[seed].keys()))
    }


def _band(axes: Axes, curves: _Curves, i: int, label: str, **other: Any) -> None:
    """The mean over seeds where all of them were evaluated, and a band from the least to the most."""
    steps = sorted(set.intersection(*(set(seen) for seen in curves.values())))
    losses = np.asarray([[seen[step] for step in steps] for seen in curves.values()])
    style = appearance(i)
    axes.fill_between(steps, losses.min(0), losses.max(0), color=style["color"], alpha=0.2, linewidth=0)
    line: Any = {"linestyle": line_style(i), "linewidth": 1.3, "markersize": 4}
    axes.plot(steps, losses.mean(0), label=label, **{**line, **style, **other})


def draw_sweep(choices: Choices, directory: Path, looks: Looks) -> None:
    """`sweep`: the loss of every arm over the learning rate, the choice marked."""
    failures: Counter[float] = Counter()
    with figure(both(directory, "sweep"), 6.4, 4.0) as axes:
        for arm, choice in choices.items():
            style = appearance(looks[arm])
            for rate in (rate for rate, loss in choice.sweep if loss is None):
                place = axes.get_xaxis_transform()
                height = 1.0 + 0.04 * failures[rate]  # above the axes, one over the other
                cross: Any = {"marker": "x", "color": style["color"], "clip_on": False}
                axes.scatter(rate, height, transform=place, **cross)
                failures[rate] += 1
            known = {rate: loss for rate, loss in choice.sweep if loss is not None}
            if choice.learning_rate is None:
                continue
            line = {"linestyle": line_style(looks[arm]), "markersize": 4, **style}
            axes.plot(*zip(*known.items()), label=arm, **line)
            circle: Any = {"markersize": 11, "fillstyle": "none", "color": style["color"]}
            axes.plot(choice.learning_rate, known[choice.learning_rate], "o", **circle)
        rates = sorted({rate for choice in choices.values() for rate, _ in choice.sweep})
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], fontsize=7)
        axes.minorticks_off()
        axes.set_xlabel("peak learning rate (circle: chosen; cross: failed)")
        axes.set_ylabel("valid loss, nats per token")
        _name_arms(axes)


def draw_forest(
    tests: Sequence[Comparison], reference: str | None, directory: Path, looks: Looks
) -> None:
    """`forest`: differences with their intervals and the margin.

    They are those of all arms to the reference; without one, all of the tests.
    """
    if reference is None:
        rows = [(f"{test.first}\n- {test.second}", *_towards(test, test.second)[1:]) for test in tests]
    else:
        ours = [test for test in tests if reference in (test.first, test.second)]
        rows = [_towards(test, reference) for test in ours]
    margin = tests[0].margin
    with figure(both(directory, "forest"), 6.4, 0.75 + 0.34 * len(rows)) as axes:
        axes.axvspan(-margin, margin, color="0.93")
        axes.axvline(0.0, color="0.4", linewidth=1.0)
        for i, (name, points, difference, low, high) in enumerate(rows):
            style = appearance(looks[name] if reference else 0)
            axes.scatter(points, [i] * len(points), **_SEED, color=style["color"])
            error = [[difference - low], [high - difference]]
            bar: Any = {"fmt": style["marker"], "color": style["color"], "capsize": 3, "markersize": 6}
            axes.errorbar(difference, i, xerr=error, **bar)
        size = 9 if reference else 7  # a pair takes two lines
        axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=size)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        what = "difference of valid losses" if reference is None else f"valid loss minus {reference}'s"
        axes.set_xlabel(f"{what}, nats per token\n(95% interval; points: seeds; grey: margin)")


def _towards(test: Comparison, reference: str) -> tuple[str, list[float], float, float, float]:
    """The other arm, and its loss minus the reference's: of every seed, of all, and its interval."""
    difference, interval = test.found.difference, test.found.interval
    if test.second == reference:
        return test.first, list(test.differences), difference, interval.low, interval.high
    points = [-value for value in test.differences]
    return test.second, points, -difference, -interval.high, -interval.low


def draw_gates(gates: Mapping[str, np.ndarray], run: str, directory: Path) -> None:
    """`gates`: the gates of every map of a run over depth, sorted by their change; a row a layer.

    Shades go from 0 to 2; gates without bounds may lie beyond.
    """
    shades: Any = {"cmap": "cividis", "vmin": 0.0, "vmax": 2.0, "interpolation": "nearest"}
    with canvas(both(directory, "gates"), 6.4, 0.5 + 0.55 * len(gates)) as drawn:
        rows = drawn.subplots(len(gates), 1, squeeze=False)[:, 0]
        for axes, (name, values) in zip(rows, gates.items()):
            order = np.argsort(values[-1] - values[0])
            axes.imshow(values[:, order], aspect="auto", **shades)
            axes.set_yticks([0, len(values) - 1], ["first layer", "last"], fontsize=6)
            axes.set_xticks([])
            axes.grid(visible=False)
            axes.set_title(name, fontsize=7, loc="left", pad=2)
        drawn.colorbar(rows[-1].images[0], ax=list(rows), label=f"gate ({run})", fraction=0.04)
