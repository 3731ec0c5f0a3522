"""The way over depth: length, turns and speed of the residual stream, and what each depth predicts."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from qkvflow.analysis.corpus import Sample, predictions
from qkvflow.analysis.figures import COOL, DARK, band, depth_axis, interval, panels
from qkvflow.analysis.flow import depths, flow_of, start, states
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject, add_corpus, with_interval
from qkvflow.analysis.tokens import lens_table
from qkvflow.analysis.trajectory import lens, path, settled
from qkvflow.data import Tokenizer
from qkvflow.report.page import Paragraph, Picture, element


@ANALYSES.register("trajectory")
class Trajectory(Analysis):
    """Norm, angle and speed of the residual stream; the predictions at every depth."""

    heading = "The way over depth"

    def check(self, subject: Subject) -> object:
        return subject.model.plan()

    def study(self, subject: Subject) -> Study:
        model, grid = subject.model, depths(subject.model)
        visited = states(flow_of(model), start(model, subject.ids))
        way, seen = path(np.asarray(visited), grid), lens(model, visited, subject.ids)
        arrays = {
            "depths": grid,
            **way._asdict(),
            **seen._asdict(),
            "settled": settled(seen.choice, grid),
        }
        means = ("norm", "turn", "to_end", "speed", "loss", "entropy", "divergence")
        numbers: dict[str, Any] = {
            "depths": grid,
            "tokens": list(subject.labels),
            **{name: arrays[name].mean(axis=1) for name in means},
            "settled": arrays["settled"],
            "settled_mean": float(arrays["settled"].mean()),
        }
        return add_corpus(Study(arrays, numbers), subject.windows, predictions(model))

    def main_numbers(self, study: Study) -> list[Line]:
        numbers = study.numbers
        first, last = numbers["norm"][0], numbers["norm"][-1]
        lines = [
            ("length of x, first to last", f"{first:.3g} to {last:.3g}"),
            ("turn in a layer, mean", f"{np.mean(numbers['turn']):.1f} degrees"),
            (
                "loss by the lens, first to last",
                f"{numbers['loss'][0]:.3f} to {numbers['loss'][-1]:.3f}",
            ),
            ("predictions settle at depth, mean", f"{numbers['settled_mean']:.2f}"),
        ]
        if "corpus" in numbers:
            sample = Sample(study.arrays["corpus.loss"][:, -1])
            lines.append(("loss at depth 1, corpus", with_interval(sample, ".3f")))
        return lines

    def text(self, study: Study, tokenizer: Tokenizer) -> list[str]:
        reading = (
            "What the model would say next at each depth, below the token it has just read; darker is "
            "more certain, and a frame marks the depth from which on the choice stays. The last row "
            "of a column is its first guess, from the embedding alone."
        )
        chosen = {int(i) for i in study.arrays["choice"].ravel()}
        vocabulary = {i: tokenizer.decode([i]) for i in chosen}
        return [element(Paragraph(reading)), lens_table(study, vocabulary)]

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        """`trajectory` and `lens`."""
        depths = study.arrays["depths"]
        between = (depths[1:] + depths[:-1]) / 2
        with panels(directory, "trajectory", 3) as (_, (row,)):
            _compare(row[0], study, "norm", depths, "length of x")
            _compare(row[1], study, "turn", between, "turn in a layer, degrees")
            _compare(row[2], study, "speed", between, "speed, per unit of depth")
            row[0].legend(fontsize=7)
        with panels(directory, "lens", 4, height=2.5) as (_, (row,)):
            _compare(row[0], study, "loss", depths, "loss of next token, nats")
            _compare(row[1], study, "entropy", depths, "entropy, nats")
            _compare(row[2], study, "divergence", depths, "divergence from the last, nats")
            _share_settled(row[3], study)
            row[3].legend(fontsize=7)
        return [
            Picture(
                directory / "trajectory.png",
                "The residual stream over depth: its length, how far each layer turns it, and how "
                "fast it moves. Black: the text (mean of its tokens, and the range of nine tenths of "
                "them).",
            ),
            Picture(
                directory / "lens.png",
                "What the model would predict if it ended at depth t (logit lens). The last panel: the "
                "share of positions whose likeliest token has settled for good by then.",
            ),
        ]


def _compare(axes: Axes, study: Study, name: str, t: np.ndarray, title: str) -> None:
    """A quantity of the text and, where there is one, of the corpus."""
    band(axes, t, study.arrays[name], "the text")
    if "corpus" in study.numbers:
        sample = Sample(study.arrays[f"corpus.{name}"])
        interval(axes, t, sample.values, f"{len(sample.values)} windows", sample.half_width)
    depth_axis(axes, title)
    axes.set_ylim(bottom=0)


def _share_settled(axes: Axes, study: Study) -> None:
    depths = study.arrays["depths"]
    share = np.mean(study.arrays["settled"][None] <= depths[:, None], axis=1)
    axes.step(depths, share, where="post", color=DARK, linewidth=1.3, label="the text")
    if "corpus" in study.numbers:
        mean = study.arrays["corpus.settled"].mean(axis=0)
        look: dict[str, Any] = {"color": COOL, "linestyle": "--", "linewidth": 1.3}
        axes.step(depths, mean, where="post", label="windows", **look)
    depth_axis(axes, "share of settled predictions")
    axes.set_ylim(0.0, 1.02)
