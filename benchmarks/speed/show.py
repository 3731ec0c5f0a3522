"""What was measured, as plain values and as tables."""

import dataclasses
from typing import Any

from benchmarks.speed.growth import Growth
from benchmarks.speed.lines import Outcome
from qkvflow.report.table import Table

Json = dict[str, Any]


def contest_record(outcome: Outcome) -> Json:
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


def growth_record(growth: Growth) -> Json:
    """A growth as plain values."""
    return {
        "values": list(growth.values),
        "seconds": list(growth.seconds),
        "exponent": growth.exponent,
    }


def contest_table(record: Json) -> Table:
    """The findings of a contest."""
    title = record["title"]
    if record["peak_gflops"]:
        title += f"; matrix products run at {record['peak_gflops']:.0f} GFLOP/s"
    missing = ", ".join(record["absent"])
    note = f"Did not start: {missing}; the reason is in the JSON." if missing else ""
    heads = ("time of / time of", "ms", "ratio", "quartiles", "at most", "of peak", "holds")
    return Table(heads, tuple(map(_finding, record["findings"])), title, note)


def _finding(finding: Json) -> tuple[str, ...]:
    bound, share, (low, high) = finding["at_most"], finding["share_of_peak"], finding["quartiles"]
    return (
        f"{finding['name']} / {finding['against']}",
        f"{finding['milliseconds']:.1f}",
        f"{finding['ratio']:.3f}",
        f"{low:.2f}-{high:.2f}",
        "" if bound is None else f"{bound:.2f}",
        "" if share is None else f"{share:.0%}",
        {None: "", True: "yes", False: "no"}[finding["holds"]],
    )


def growth_table(records: dict[str, dict[str, Json]]) -> Table:
    """Exponents by axis and model."""
    names = list(next(iter(records.values())))
    rows = []
    for axis, by_name in records.items():
        values = next(iter(by_name.values()))["values"]
        exponents = [f"p = {by_name[name]['exponent']:.2f}" for name in names]
        rows.append((f"{axis}, {values[0]} to {values[-1]}", *exponents))
    return Table(("n", *names), tuple(rows), "Growth of a step: time ~ n^p")


def once_table(record: Json) -> Table:
    """Starting, compiling and memory."""
    title = f"qkvflow --help takes {record['help_seconds']:.2f} s; a step of width 256, 8 x 128 tokens:"
    depths = ("6", "48")
    heads = [f"{what}, {depth}" for what in _ONCE for depth in depths]
    rows = []
    for name, seconds in record["compile_seconds"].items():
        memory = record["memory"][name]["full"]
        again = record["second_start_seconds"][name]
        cells = [f"{of[depth]:.1f} s" for of in (seconds, again) for depth in depths]
        cells += [f"{memory[depth]['parameters_mb']:.1f} MB" for depth in depths]
        rows.append((name, *cells, *(f"{memory[depth]['working_mb']:.0f} MB" for depth in depths)))
    return Table(("model", *heads), tuple(rows), title, "6 and 48: layers.")


_ONCE = ("compile", "second start", "parameters", "remat full")
