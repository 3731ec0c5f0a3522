"""What was measured, as tables, JSON and figures."""

import dataclasses
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from qkvflow.bench.growth import Growth
from qkvflow.bench.lines import Outcome

Record = dict[str, Any]


def contest_record(outcome: Outcome) -> Record:
    """A contest as plain values: findings, and the seconds of every round."""
    findings = [{**dataclasses.asdict(f), "holds": f.holds} for f in outcome.findings]
    competition = outcome.competition
    return {
        "title": outcome.contest.title,
        "peak_gflops": outcome.peak and outcome.peak / 1e9,
        "findings": findings,
        "seconds": {name: list(times.rounds) for name, times in competition.times.items()},
        "facts": competition.facts,
        "absent": competition.absent,
    }


def growth_record(growth: Growth) -> Record:
    """A growth as plain values."""
    return {
        "values": list(growth.values),
        "seconds": list(growth.seconds),
        "exponent": growth.exponent,
    }


def contest_table(record: Record) -> Table:
    """The findings of a contest."""
    title = record["title"]
    if record["peak_gflops"]:
        title += f"; matrix products run at {record['peak_gflops']:.0f} GFLOP/s"
    missing = ", ".join(record["absent"])
    caption = f"Did not start: {missing}; the reason is in the JSON." if missing else None
    table = Table(
        title=title, caption=caption, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    table.add_column("time of / time of")
    for heading in ("ms", "ratio", "quartiles", "at most", "of peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in record["findings"]:
        bound, share = finding["at_most"], finding["share_of_peak"]
        style = None if finding["holds"] is None else "green" if finding["holds"] else "red"
        low, high = finding["quartiles"]
        table.add_row(
            f"{finding['name']} / {finding['against']}",
            f"{finding['milliseconds']:.1f}",
            f"{finding['ratio']:.3f}",
            f"{low:.2f}-{high:.2f}",
            "" if bound is None else f"{bound:.2f}",
            "" if share is None else f"{share:.0%}",
            style=style,
        )
    return table


def growth_table(records: dict[str, dict[str, Record]]) -> Table:
    """Exponents by axis and model."""
    table = Table(title="Growth of a step: time ~ n^p", title_justify="left", box=box.SIMPLE)
    table.add_column("n", no_wrap=True)
    names = list(next(iter(records.values())))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for axis, by_name in records.items():
        values = next(iter(by_name.values()))["values"]
        exponents = [f"p = {by_name[name]['exponent']:.2f}" for name in names]
        table.add_row(f"{axis}, {values[0]} to {values[-1]}", *exponents)
    return table


def once_table(record: Record) -> Table:
    """Starting, compiling and memory."""
    title = f"qkvflow --help takes {record['help_seconds']:.2f} s; a step of width 256, 8 x 128 tokens:"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("model", no_wrap=True)
    for depth in (6, 48):
        table.add_column(f"compile, {depth} layers", justify="right")
    for depth in (6, 48):
        table.add_column(f"parameters, {depth}", justify="right")
    for depth in (6, 48):
        table.add_column(f"remat full, {depth}", justify="right")
    for name, seconds in record["compile_seconds"].items():
        memory = record["memory"][name]["full"]
        table.add_row(
            name,
            *(f"{seconds[depth]:.1f} s" for depth in ("6", "48")),
            *(f"{memory[depth]['parameters_mb']:.1f} MB" for depth in ("6", "48")),
            *(f"{memory[depth]['working_mb']:.0f} MB" for depth in ("6", "48")),
        )
    return table


def draw(records: Record, path: Path) -> None:
    """Ratios of all contests with their bounds."""
    import matplotlib.pyplot as plt

    rows = [
        (f"{finding['name']} / {finding['against']}\n{record['title']}", finding)
        for record in records["contests"].values()
        for finding in record["findings"]
    ]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.2), layout="constrained")
    for place, (_, finding) in enumerate(rows):
        low, high = finding["quartiles"]
        axes.plot([low, high], [place, place], color="0.6", linewidth=4, zorder=1)
        axes.plot(finding["ratio"], place, "o", color="black", zorder=2)
        if finding["at_most"] is not None:
            axes.plot(finding["at_most"], place, "|", color="tab:red", markersize=18, zorder=3)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:.3g}")
    axes.xaxis.set_minor_formatter("{x:.3g}")
    axes.tick_params(axis="x", which="both", labelsize=7)
    axes.axvline(1.0, color="0.8", zorder=0)
    axes.set_xlabel("time, as a ratio (dot: medians, bar: quartiles of the rounds, red: at most)")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_growth(records: dict[str, dict[str, Record]], path: Path) -> None:
    """Milliseconds over each axis, with the exponents."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(records), figsize=(3.2 * len(records), 3.4), layout="constrained", squeeze=False
    )
    for panel, (axis, by_name) in zip(panels[0], records.items()):
        for marker, (name, record) in zip("os^", by_name.items()):
            label = f"{name}, p = {record['exponent']:.2f}"
            milliseconds = [1e3 * seconds for seconds in record["seconds"]]
            panel.plot(record["values"], milliseconds, marker=marker, markersize=4, label=label)
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms a step")
        panel.legend(fontsize=6)
    figure.savefig(path, dpi=150)
    plt.close(figure)
