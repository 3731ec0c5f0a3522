"""What was measured, as plain values and as tables."""

import dataclasses
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
