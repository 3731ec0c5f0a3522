"""The curve of one run, drawn: its loss in training and on the valid split."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from qkvflow.report.figures import appearance, looks

ROOM = 0.3
"""Share of the range of losses by which a baseline may lie below it, to be drawn at all."""


def draw_history(
    axes: Axes,
    history: Sequence[Mapping[str, Any]],
    model: str,
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Losses over steps, in the colour of the model: a line for training, marks for evaluations.

    `history` is that of an `Outcome`; of several seeds each has its lines.
    """
    look = appearance(looks([model])[model])
    for i, seed in enumerate(dict.fromkeys(point.get("seed") for point in history)):
        own = [point for point in history if point.get("seed") == seed and point["loss"] is not None]
        learned = [(point["step"], point["loss"]) for point in own if point["kind"] == "train"]
        seen = [(point["step"], point["loss"]) for point in own if point["kind"] != "train"]
        line: Any = {"color": look["color"], "linewidth": 0.8, "alpha": 0.45}
        axes.plot(*zip(*learned), label="training, per batch" if not i else None, **line)
        marks: Any = {**look, "linewidth": 1.3, "markersize": 5}
        axes.plot(*zip(*seen), label="valid split" if not i else None, **marks)
    _draw_baselines(axes, baselines or {})
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.legend(fontsize=8)


def _draw_baselines(axes: Axes, baselines: Mapping[str, float]) -> None:
    """A dotted line with its name for each that is passed, and for the next one below."""
    low, high = axes.get_ylim()
    lowest = min((float(np.min(line.get_ydata())) for line in axes.lines), default=low)
    next_below = max((loss for loss in baselines.values() if loss < lowest), default=lowest)
    label: Any = {"fontsize": 7, "color": "0.3", "ha": "right", "va": "bottom"}
    for name, loss in baselines.items():
        if max(next_below, low - ROOM * (high - low)) <= loss < high:
            axes.axhline(loss, color="0.5", linewidth=0.8, linestyle=":")
            axes.text(0.995, loss, name, transform=axes.get_yaxis_transform(), **label)
