"""The way over depth: length, turns and speed of the residual stream, and what each depth predicts."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkvflow.analysis.figures import COOL, DARK, band, depth_axis, interval, picture
from qkvflow.analysis.flow import depths, flow_of, start, states
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject
from qkvflow.analysis.tokens import lens_table
from qkvflow.analysis.trajectory import lens, path, settled
from qkvflow.data import Tokenizer
from qkvflow.report.page import Fragment, Item, Paragraph, Picture

OF_WINDOWS = ("norm", "turn", "speed", "loss", "entropy", "divergence")
"""Quantities whose means over tokens are compared with those of a corpus."""


@ANALYSES.register("trajectory")
class Trajectory(Analysis):
    """Norm, angle and speed of the residual stream; the predictions at every depth."""

    heading = "The way over depth"
    reading = (
        "The length of x is that of the residual stream of a token, and a layer turns it by an angle. "
        "The loss by the lens is that of the predictions that the head makes of the stream at a depth. "
        "A prediction has settled at the depth from which on its likeliest token stays; 1 is the last."
    )

    def check(self, subject: Subject) -> object:
        return subject.model.plan()

    def study(self, subject: Subject) -> Study:
        model, flow, grid = subject.model, flow_of(subject.model), depths(subject.model)

        def follow(ids: np.ndarray) -> dict[str, np.ndarray]:
            visited = states(flow, start(model, ids))
            way, seen = path(np.asarray(visited), grid), lens(model, visited, ids)
            return {**way._asdict(), **seen._asdict(), "settled": settled(seen.choice, grid)}

        def of_window(ids: np.ndarray) -> dict[str, np.ndarray]:
            found = follow(ids)
            means = {name: found[name].mean(axis=1, dtype=np.float64) for name in OF_WINDOWS}
            return {**means, "settled": _share_settled(found["settled"], grid)}

        arrays = {"depths": grid, **follow(subject.ids)}
        numbers: dict[str, Any] = {
            "depths": grid,
            "tokens": list(subject.labels),
            **{name: arrays[name].mean(axis=1) for name in (*OF_WINDOWS, "to_end")},
            "settled": arrays["settled"],
            "settled_mean": float(arrays["settled"].mean()),
        }
        return Study(arrays, numbers).with_corpus(subject.windows, of_window)

    def main_numbers(self, study: Study) -> list[Line]:
        norm, loss = study.numbers["norm"], study.numbers["loss"]
        lines = [
            ("length of x, first to last", f"{norm[0]:.3g} to {norm[-1]:.3g}"),
            ("turn in a layer, mean", f"{np.mean(study.numbers['turn']):.1f} degrees"),
            ("loss by the lens, first to last", f"{loss[0]:.3f} to {loss[-1]:.3f}"),
            ("predictions settle at depth, mean", f"{study.numbers['settled_mean']:.2f}"),
        ]
        if sample := study.sample("loss"):
            lines.append(("loss at depth 1, corpus", sample.in_words(-1, ".3f")))
        return lines

    def found(self, study: Study) -> str:
        loss, settled = study.numbers["loss"], study.numbers["settled_mean"]
        return (
            f"Read off at every depth, the loss on this text goes from {loss[0]:.2f} nats per token to "
            f"{loss[-1]:.2f}; on average a prediction settles after {settled:.0%} of the depth."
        )

    def text(self, study: Study, tokenizer: Tokenizer) -> list[Item]:
        reading = (
            "What the model would say next at each depth, below the token it has just read; a stronger "
            "colour is more certain, and a frame marks the depth from which on the choice stays. The "
            "last row of a column is its first guess, from the embedding alone."
        )
        return [Paragraph(reading), Fragment(lens_table(study, tokenizer))]

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        return [
            picture(study, directory, "trajectory", 2.7, _trajectory),
            picture(study, directory, "lens", 2.5, _lens),
        ]


def _share_settled(settled: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """The share of predictions that have settled for good by each depth."""
    return np.mean(settled[None] <= depths[:, None], axis=1)


def _trajectory(study: Study, drawn: Figure) -> str:
    first, second, third = drawn.subplots(1, 3)
    _compare(first, study, "norm", "length of x")
    _compare(second, study, "turn", "turn in a layer, degrees")
    _compare(third, study, "speed", "speed, per unit of depth")
    first.legend(fontsize=7)
    return (
        "The residual stream over depth: its length, how far each layer turns it, and how fast it "
        "moves. Black: the text (mean of its tokens, and the range of nine tenths of them)."
    )


def _lens(study: Study, drawn: Figure) -> str:
    first, second, third, last = drawn.subplots(1, 4)
    _compare(first, study, "loss", "loss of next token, nats")
    _compare(second, study, "entropy", "entropy, nats")
    _compare(third, study, "divergence", "divergence from the last, nats")
    depths = study.arrays["depths"]
    share = _share_settled(study.arrays["settled"], depths)
    last.step(depths, share, where="post", color=DARK, linewidth=1.3, label="the text")
    if sample := study.sample("settled"):
        look: dict[str, Any] = {"color": COOL, "linestyle": "--", "linewidth": 1.3}
        last.step(depths, sample.mean, where="post", label="windows", **look)
    depth_axis(last, "share of settled predictions")
    last.set_ylim(0.0, 1.02)
    last.legend(fontsize=7)
    return (
        "What the model would predict if it ended at depth t (logit lens). The last panel: the share "
        "of positions whose likeliest token has settled for good by then."
    )


def _compare(axes: Axes, study: Study, name: str, title: str) -> None:
    """A quantity of the text and, where there is one, of the corpus; at depths or between them."""
    t, values = study.arrays["depths"], study.arrays[name]
    t = t if len(values) == len(t) else (t[1:] + t[:-1]) / 2
    band(axes, t, values, "the text")
    if sample := study.sample(name):
        interval(axes, t, sample)
    depth_axis(axes, title)
    axes.set_ylim(bottom=0)
