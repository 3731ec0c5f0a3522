"""The figures of an experiment, as a paper would print them; error bars show their points."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from qkvflow.experiments.records import Record
from qkvflow.report.figures import appearance, both, canvas, figure, line_style

MANY = 8
"""Arms up to which a legend leaves room for what it stands in."""
Summary = Mapping[str, Mapping[str, Any]]
_SEED: Any = {"s": 12, "alpha": 0.45, "linewidths": 0}
"""The point of a seed, behind the mean."""


def _name_arms(axes: Axes) -> None:
    """A legend: in the axes, or beside them where there are many arms."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= MANY:
        axes.legend(fontsize=8)
    else:
        axes.figure.legend(handles, labels, loc="outside right upper", fontsize=7)


def draw_performance(summary: Summary, directory: Path, floors: Mapping[str, float]) -> None:
    """`statistical_performance`: the valid loss of every arm, each seed a point, mean and interval."""
    with figure(both(directory, "statistical_performance"), 6.4, 0.5 + 0.42 * len(summary)) as axes:
        _points(axes, summary, "all_losses", "loss_mean", "loss_ci95")
        low, high = axes.get_xlim()
        for name, loss in floors.items():
            if low - 0.5 * (high - low) < loss < high + 0.5 * (high - low):
                axes.axvline(loss, color="0.5", linewidth=0.8, linestyle=":")
                place = axes.get_xaxis_transform()
                axes.text(loss, 1.01, name, transform=place, ha="center", fontsize=7, color="0.3")
        axes.set_xlabel(f"valid loss, nats a token ({_of_seeds(summary)})")


def _of_seeds(summary: Summary) -> str:
    """What the marks of an arm are."""
    several = any(len(row["all_losses"]) > 1 for row in summary.values())
    return "mean and 95% interval; points: seeds" if several else "one seed"


def draw_speed(summary: Summary, directory: Path) -> None:
    """`speed_comparison`: milliseconds a step of every arm."""
    rows = {arm: {**row, "speed_ci": None} for arm, row in summary.items()}
    with figure(both(directory, "speed_comparison"), 6.4, 0.5 + 0.42 * len(summary)) as axes:
        _points(axes, rows, "all_speeds", "speed_median", "speed_ci")
        axes.set_xlim(left=0)
        axes.set_xlabel("milliseconds a training step (median; points: seeds)")


def _points(axes: Axes, rows: Summary, values: str, mean: str, half: str) -> None:
    """Rows of points with their mean and interval, the first arm on top."""
    for i, row in enumerate(rows.values()):
        look = appearance(i)
        points = row[values]
        spread = np.linspace(-0.12, 0.12, len(points)) if len(points) > 1 else [0.0]
        axes.scatter(points, i + np.asarray(spread), **_SEED, color=look["color"])
        axes.errorbar(
            row[mean],
            i,
            xerr=row[half],
            fmt=look["marker"],
            color=look["color"],
            capsize=3,
            markersize=6,
        )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def frontier(summary: Summary) -> list[str]:
    """The arms of which no other with as few parameters has as low a loss, by parameters.

    An arm of which a run failed is not among them: its mean is that of the runs that did well.
    """
    whole = [arm for arm, row in summary.items() if not row["failed_seeds"]]
    ordered = sorted(whole, key=lambda arm: (summary[arm]["params"], summary[arm]["loss_mean"]))
    found: list[str] = []
    for arm in ordered:
        if not found or summary[arm]["loss_mean"] < summary[found[-1]]["loss_mean"]:
            found.append(arm)
    return found


def draw_efficiency(summary: Summary, directory: Path) -> None:
    """`efficiency_with_error`: loss over parameters, with the frontier."""
    with figure(both(directory, "efficiency_with_error"), 6.4, 4.0) as axes:
        best = [summary[arm] for arm in frontier(summary)]
        parameters, losses = ([row[name] for row in best] for name in ("params", "loss_mean"))
        axes.step(
            parameters, losses, where="post", color="0.6", linewidth=1.0, zorder=1, label="frontier"
        )
        for i, (arm, row) in enumerate(summary.items()):
            look = appearance(i)
            losses = row["all_losses"]
            axes.scatter([row["params"]] * len(losses), losses, **_SEED, color=look["color"])
            axes.errorbar(
                row["params"],
                row["loss_mean"],
                yerr=row["loss_ci95"],
                fmt=look["marker"],
                color=look["color"],
                capsize=3,
                markersize=7,
                label=arm,
            )
        sizes = [row["params"] for row in summary.values()]
        axes.set_xscale("log" if max(sizes) > 10 * min(sizes) else "linear")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("parameters")
        axes.set_ylabel(f"valid loss, nats a token\n({_of_seeds(summary)})")
        _name_arms(axes)


def draw_curves(
    records: Sequence[Record], directory: Path, floors: Mapping[str, float], reference: str
) -> None:
    """`learning_curves`: the loss on a fixed part of the valid split; the band is all seeds.

    Below it, where others can be compared with the reference, the difference to it, seed by seed; the
    first quarter, in which arms may be far apart, does not decide how far that axis goes. Arms with
    other numbers of steps are drawn over training FLOP, and have no step in common to compare.
    """
    finished = [record for record in records if record["status"] == "finished"]
    over_steps = len({record["run"]["steps"] for record in finished}) == 1
    curves = {
        arm: _curves([record for record in finished if record["arm"] == arm], over_steps)
        for arm in dict.fromkeys(record["arm"] for record in finished)
    }
    others = {
        arm: compared
        for arm, looks in curves.items()
        if over_steps and arm != reference and len(compared := _minus(looks, curves.get(reference, {})))
    }
    with canvas(both(directory, "learning_curves"), 6.4, 5.6 if others else 4.0) as drawn:
        panels = drawn.subplots(2 if others else 1, 1, sharex=True, squeeze=False)[:, 0]
        for i, arm in enumerate(curves):
            _band(panels[0], curves[arm], i, arm)
            if arm in others:
                _band(panels[1], others[arm], i, arm)
        low, high = panels[0].get_ylim()
        for name, loss in floors.items():
            if low < loss < high:
                panels[0].axhline(loss, color="0.5", linewidth=0.8, linestyle=":")
                place = panels[0].get_yaxis_transform()
                label: dict[str, Any] = {"fontsize": 7, "color": "0.3", "ha": "left", "va": "bottom"}
                panels[0].text(0.005, loss, name, transform=place, **label)
        panels[0].set_ylabel("valid loss, nats a token")
        _name_arms(panels[0])
        if others:
            panels[1].axhline(0.0, color="0.4", linewidth=1.0)
            panels[1].set_ylabel(f"minus {reference}'s")
            panels[1].set_ylim(*_late_range(others.values()))
        several = any(len(looks) > 1 for looks in curves.values())
        seeds = "lines: means; bands: all seeds" if several else "one seed"
        panels[-1].set_xlabel(f"{'step' if over_steps else 'training FLOP'} ({seeds})")
        if not over_steps:
            panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))


_Curves = Mapping[int, Mapping[float, float]]
"""By seed, the loss at every look but the one at the start, over steps or training FLOP."""


def _curves(of_arm: Sequence[Record], over_steps: bool) -> _Curves:
    return {
        record["seed"]: {
            step * (1 if over_steps else record["training_flops"] / record["run"]["steps"]): loss
            for step, _, loss in record["curve"]
            if step
        }
        for record in of_arm
    }


def _late_range(differences: Iterable[_Curves]) -> tuple[float, float]:
    """From the least to the largest difference after a quarter of the steps, zero, some room."""
    looks = [look for curves in differences for of_seed in curves.values() for look in of_seed.items()]
    last = max(step for step, _ in looks)
    late = [0.0, *(loss for step, loss in looks if step >= last / 4)]
    room = 0.05 * (max(late) - min(late)) or 0.01
    return min(late) - room, max(late) + room


def _minus(curves: _Curves, others: _Curves) -> _Curves:
    """Differences over the seeds and looks that both have."""
    return {
        seed: {step: curves[seed][step] - others[seed][step] for step in both_have}
        for seed in sorted(curves.keys() & others.keys())
        if (both_have := sorted(curves[seed].keys() & others[seed].keys()))
    }


def _band(axes: Axes, curves: _Curves, i: int, label: str) -> None:
    """The mean over seeds at the looks that all of them have, and a band from the least to the most."""
    steps = sorted(set.intersection(*(set(looks) for looks in curves.values())))
    losses = np.asarray([[looks[step] for step in steps] for looks in curves.values()])
    look = appearance(i)
    axes.fill_between(steps, losses.min(0), losses.max(0), color=look["color"], alpha=0.2, linewidth=0)
    line: Any = {"linestyle": line_style(i), "linewidth": 1.3, "markersize": 4}
    axes.plot(steps, losses.mean(0), label=label, **line, **look)


def draw_sweep(tuned: Mapping[str, Mapping[str, Any]], directory: Path) -> None:
    """`sweep`: the loss of every arm over the learning rate, the choice marked."""
    failures: Counter[float] = Counter()
    with figure(both(directory, "sweep"), 6.4, 4.0) as axes:
        for i, (arm, entry) in enumerate(tuned.items()):
            look = appearance(i)
            for rate in (rate for rate, loss in entry["sweep"] if loss is None):
                place = axes.get_xaxis_transform()
                height = 1.0 + 0.04 * failures[rate]  # above the axes, one over the other
                cross: Any = {"marker": "x", "color": look["color"], "clip_on": False}
                axes.scatter(rate, height, transform=place, **cross)
                failures[rate] += 1
            known = [(rate, loss) for rate, loss in entry["sweep"] if loss is not None]
            if not known:
                continue
            axes.plot(*zip(*known), label=arm, linestyle=line_style(i), markersize=4, **look)
            best = entry["learning_rate"]
            axes.plot(
                best, dict(known)[best], "o", markersize=11, fillstyle="none", color=look["color"]
            )
        rates = sorted({rate for entry in tuned.values() for rate, _ in entry["sweep"]})
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates], fontsize=7)
        axes.minorticks_off()
        axes.set_xlabel("peak learning rate (circle: chosen; cross: failed)")
        axes.set_ylabel("valid loss, nats a token")
        _name_arms(axes)


def draw_forest(tests: Sequence[Mapping[str, Any]], reference: str, directory: Path) -> None:
    """`forest`: the difference of every arm to the reference, with its interval and the margin."""
    margin = tests[0]["equivalence_margin"]
    rows = [(_other(test, reference), *_towards(test, reference)) for test in _with(tests, reference)]
    with figure(both(directory, "forest"), 6.4, 0.75 + 0.34 * len(rows)) as axes:
        axes.axvspan(-margin, margin, color="0.93")
        axes.axvline(0.0, color="0.4", linewidth=1.0)
        for i, (_, points, difference, low, high) in enumerate(rows):
            axes.scatter(points, [i] * len(points), **_SEED, color="#1b1b1b")
            error = [[difference - low], [high - difference]]
            axes.errorbar(difference, i, xerr=error, fmt="s", color="#1b1b1b", capsize=3, markersize=5)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            f"valid loss minus {reference}'s, nats a token\n(95% interval; points: seeds; grey: margin)"
        )


def _with(tests: Sequence[Mapping[str, Any]], reference: str) -> list[Mapping[str, Any]]:
    return [
        test
        for test in tests
        if test["split"] == "valid" and reference in (test["model1"], test["model2"])
    ]


def _other(test: Mapping[str, Any], reference: str) -> str:
    return test["model2"] if test["model1"] == reference else test["model1"]


def _towards(test: Mapping[str, Any], reference: str) -> tuple[list[float], float, float, float]:
    """The other arm's loss minus the reference's: of every seed, of all, and its interval."""
    low, high = test["difference_ci95"]
    if test["model2"] == reference:
        return test["differences"], test["difference"], low, high
    return [-value for value in test["differences"]], -test["difference"], -high, -low


def draw_gates(gates: Mapping[str, np.ndarray], run: str, directory: Path) -> None:
    """`gates`: the gates of every map of a run over depth, sorted by their change; a row a layer.

    Shades go from 0 to 2; gates without bounds may lie beyond.
    """
    names = list(gates)
    with canvas(both(directory, "gates"), 6.4, 0.5 + 0.55 * len(names)) as drawn:
        rows = drawn.subplots(len(names), 1, squeeze=False)[:, 0]
        image = None
        for axes, name in zip(rows, names):
            values = gates[name]
            order = np.argsort(values[-1] - values[0])
            image = axes.imshow(
                values[:, order],
                aspect="auto",
                cmap="cividis",
                vmin=0.0,
                vmax=2.0,
                interpolation="nearest",
            )
            axes.set_yticks([0, len(values) - 1], ["first layer", "last"], fontsize=6)
            axes.set_xticks([])
            axes.grid(visible=False)
            axes.set_title(name, fontsize=7, loc="left", pad=2)
        if image is not None:
            drawn.colorbar(image, ax=list(rows), label=f"gate ({run})", fraction=0.04)
