"""What was measured, as figures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from qkvflow.report.figures import COLOURS, STYLE, appearance, figure, looks

Record = dict[str, Any]
RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


def draw(records: Record, path: Path) -> None:
    """Ratios of all contests with their bounds."""
    rows = [
        (f"{finding['name']} / {finding['against']}\n{record['title']}", finding)
        for record in records["contests"].values()
        for finding in record["findings"]
    ]
    with figure([path], 8.0, 0.36 * len(rows) + 0.6) as axes:
        axes.axvline(1.0, color="0.4", linewidth=1.0)
        for place, (_, finding) in enumerate(rows):
            low, high = finding["quartiles"]
            axes.plot([low, high], [place, place], color="0.6", linewidth=4, zorder=2)
            axes.plot(finding["ratio"], place, "o", color=COLOURS[0], markersize=5, zorder=3)
            if finding["at_most"] is not None:
                axes.plot(finding["at_most"], place, "|", color=COLOURS[1], markersize=14, zorder=4)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=6)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xticks(RATIOS, map(str, RATIOS))
        axes.set_xlim(low, high)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(
            "time, as a ratio (dot: medians, bar: quartiles of the rounds, stroke: at most)"
        )


def draw_growth(records: dict[str, dict[str, Record]], path: Path) -> None:
    """Milliseconds over each axis, with the exponents."""
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(3.2 * len(records), 3.2), layout="constrained")
        panels = drawn.subplots(1, len(records), squeeze=False)[0]
        for panel, (axis, by_name) in zip(panels, records.items()):
            for (name, record), i in zip(by_name.items(), looks(by_name).values()):
                label = f"{name}, p = {record['exponent']:.2f}"
                milliseconds = [1e3 * seconds for seconds in record["seconds"]]
                panel.plot(
                    record["values"],
                    milliseconds,
                    **appearance(i),
                    markersize=4,
                    linewidth=1.2,
                    label=label,
                )
            panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms a step")
            panel.set_xticks(record["values"], map(str, record["values"]), fontsize=7)
            panel.xaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter("{x:.0f}")
            panel.legend(fontsize=7, loc="upper left")
        drawn.savefig(path)
