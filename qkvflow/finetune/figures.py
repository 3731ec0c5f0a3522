"""The figures of an adaptation experiment, in the manner of `qkvflow.experiments.figures`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.report.figures import COLOURS, LINES, MARKERS, figure

APART = 0.07
"""Layers between the lines at one depth, so that none hides another's interval."""


def draw_study(summary: Mapping[str, Any], directory: Path) -> list[Path]:
    """The loss over depth, one line a model and method, one figure a direction; their png files."""
    drawn = []
    for direction, arms in summary["losses"].items():
        paths = [directory / f"{direction}.png", directory / f"{direction}.pdf"]
        with figure(paths, 6.4, 4.0) as axes:
            for i, (arm, depths) in enumerate(arms.items()):
                known = {int(depth): row for depth, row in depths.items() if row["losses"]}
                points = [(depth, loss) for depth, row in known.items() for loss in row["losses"]]
                if not points:
                    continue
                look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)]}
                depths_of, losses = zip(*points)
                aside = APART * (i - (len(arms) - 1) / 2)
                axes.scatter(np.add(depths_of, aside), losses, s=12, alpha=0.4, linewidths=0, **look)
                axes.errorbar(
                    np.add(list(known), aside),
                    [row["mean"] for row in known.values()],
                    yerr=[row["ci95"] or 0.0 for row in known.values()],
                    marker=MARKERS[i % len(MARKERS)],
                    linestyle=LINES[i % len(LINES)],
                    markersize=5,
                    linewidth=1.2,
                    capsize=3,
                    label=arm,
                    **look,
                )
            axes.set_xticks(sorted({int(depth) for arm in arms.values() for depth in arm}))
            axes.set_xlabel("layers of the adapted model")
            axes.set_ylabel("valid loss, nats per token (mean, 95%; points: seeds)")
            axes.set_title(direction.replace("-to-", " to "), fontsize=9, loc="left")
            axes.legend(fontsize=7, handlelength=4)
        drawn.append(paths[0])
    return drawn
