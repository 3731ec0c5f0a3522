"""Lyapunov exponents and sensitivity: how a change of the text grows over depth, what it reaches."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from qkvflow.analysis.corpus import Sample
from qkvflow.analysis.figures import COOL, DARK, WARM, depth_axis, picture, token_axis
from qkvflow.analysis.flow import depths, flow_of, start
from qkvflow.analysis.lyapunov import sequence_exponents, token_exponents
from qkvflow.analysis.sensitivity import sensitivity_rows
from qkvflow.analysis.study import ANALYSES, Analysis, Line, Study, Subject
from qkvflow.analysis.tokens import sensitivity_strip, strip
from qkvflow.data import Tokenizer
from qkvflow.progress import progress
from qkvflow.report.page import Fragment, Item, Paragraph, Picture

ALL_ROWS = 96
"""Tokens up to which the sensitivity of every position is computed, and not of the chosen one alone."""
DECADES = 4.0
"""Powers of ten that the colours of the sensitivity span, at most."""


@ANALYSES.register("lyapunov")
class Lyapunov(Analysis):
    """Exponents of the sequence and of every token; the sensitivity to every input token."""

    heading = "Lyapunov exponents and sensitivity"
    reading = (
        "An exponent of +1 means that a small change of the embeddings along its direction is e times "
        "as large after the last layer, +2 e^2 times; below zero it shrinks. The largest of the "
        "sequence is that of the direction that grows most, and what the last pass changed says how "
        "well it is known. That of a token is how its own place answers to itself. Sensitivity is the "
        "size of the last state's answer to a change of an embedding; 1 is what no layers at all would "
        "give."
    )

    def check(self, subject: Subject) -> object:
        return subject.model.plan()

    def study(self, subject: Subject) -> Study:
        flow, x = flow_of(subject.model), start(subject.model, subject.ids)
        length, position = len(subject.ids), subject.position
        count = min(subject.count, x.size)
        rows = list(range(length)) if length <= ALL_ROWS else [position]
        with progress("exponents", total=length) as advance:
            found = sequence_exponents(flow, x, count=count, refine=subject.refine)
            tokens = token_exponents(flow, x, refine=subject.refine, advance=advance)[:, 0]
        with progress("sensitivity", total=len(rows)) as advance:
            depends = sensitivity_rows(flow, x, rows, probes=subject.probes, advance=advance)
        arrays = {
            "depths": depths(subject.model),
            "exponents": np.asarray(found.values, np.float64),
            "growth": np.asarray(found.growth, np.float64),
            "token_exponents": tokens.astype(np.float64),
            "rows": np.asarray(rows),
            "sensitivity": depends.values,
            "sensitivity_error": depends.errors,
        }
        numbers = {
            "exponents": arrays["exponents"],
            "change_in_last_pass": float(found.change),
            "largest": float(found.values[0]),
            "tokens": list(subject.labels),
            "token_exponents": arrays["token_exponents"],
            "position": position,
            "sensitivity": depends.values[rows.index(position)],
            "sensitivity_error": depends.errors[rows.index(position)],
        }

        def of_window(ids: np.ndarray) -> dict[str, np.ndarray]:
            x = start(subject.model, ids)
            found = sequence_exponents(flow, x, count=count, refine=subject.refine)
            row = sensitivity_rows(flow, x, [len(ids) - 1], probes=subject.probes).values[0]
            exponents = np.asarray(found.values, np.float64)
            return {"exponents": exponents, "sensitivity_by_distance": row[::-1]}

        return Study(arrays, numbers).with_corpus(subject.windows, of_window)

    def main_numbers(self, study: Study) -> list[Line]:
        numbers, tokens = study.numbers, study.arrays["token_exponents"]
        row, errors = np.asarray(numbers["sensitivity"]), np.asarray(numbers["sensitivity_error"])
        position = numbers["position"]
        most = int(np.argmax(np.where(np.arange(len(row)) == position, -1.0, row)))
        exact = "exact" if not errors.any() else f"standard errors up to {errors.max():.2g}"
        lines = [
            ("largest exponent of the sequence", f"{numbers['largest']:+.3f} per unit of depth"),
            ("its change in the last pass", f"{numbers['change_in_last_pass']:.1g}"),
            ("largest exponent of a token", f"{tokens.min():+.3f} to {tokens.max():+.3f}"),
            (f"position {position} answers to itself by", f"{row[position]:.3g} ({exact})"),
            (
                "most to another token",
                f"{row[most]:.3g} (position {most}, {numbers['tokens'][most]!r})",
            ),
        ]
        if sample := study.sample("exponents"):
            lines.append(("largest exponent, corpus", sample.in_words(0, "+.3f")))
        return lines

    def found(self, study: Study) -> str:
        largest = study.numbers["largest"]
        what = "drives apart" if largest > 0 else "brings together"
        return (
            f"Over depth this model {what} what begins nearly alike: the direction that grows "
            f"most ends {np.exp(largest):.3g} times as long as it began."
        )

    def text(self, study: Study, tokenizer: Tokenizer) -> list[Item]:
        """The text, coloured by sensitivity and by exponents."""
        how = (
            "Point at a token, or choose it with the Tab key, to see what that output position "
            "depends on; a click keeps it."
            if len(study.arrays["rows"]) > 1
            else "The text is long, so that this was computed for one output position."
        )
        reading = (
            "The colour of a token says how much the framed position of the last state changes with "
            "that token's embedding: the root of its share of the largest other token. Tokens in grey "
            f"come later and have no influence at all. {how}"
        )
        exponents = (
            "The same text by the largest Lyapunov exponent of each token: orange grows over depth, "
            "blue shrinks, the stronger the colour, the faster."
        )
        return [
            Paragraph(reading),
            Fragment(sensitivity_strip(study)),
            Paragraph(exponents),
            Fragment(strip(study.numbers["tokens"], study.arrays["token_exponents"], "exponent")),
        ]

    def draw(self, study: Study, directory: Path) -> list[Picture]:
        figures = [
            picture(study, directory, "exponents", 2.9, _exponents),
            picture(study, directory, "token_exponents", 2.3, _token_exponents),
            picture(study, directory, "sensitivity", 2.3, _sensitivity),
        ]
        if study.sample("sensitivity_by_distance"):
            figures.append(picture(study, directory, "sensitivity_by_distance", 2.9, _by_distance))
        return figures


def _exponents(study: Study, drawn: Figure) -> str:
    growth, found = study.arrays["growth"], study.arrays["exponents"]
    left, right = drawn.subplots(1, 2)
    reached = np.vstack([np.zeros(growth.shape[1]), np.cumsum(growth, axis=0)])
    for shade, curve in zip(np.linspace(0.0, 0.75, growth.shape[1]), reached.T):
        look: dict[str, Any] = {"color": str(shade), "markersize": 2.5, "linewidth": 1.1}
        left.plot(study.arrays["depths"], curve, "o-", **look)
    depth_axis(left, "growth of the leading directions")
    left.set_ylabel("log of the stretch")
    order = np.arange(1, len(found) + 1)
    right.plot(order, found, "o", color=DARK, markersize=5, label="the text")
    if sample := study.sample("exponents"):
        error = sample.half_width if len(sample.values) > 1 else None
        look = {"fmt": "s", "color": COOL, "capsize": 3, "markersize": 4}
        look["label"] = f"{len(sample.values)} windows, 95%"
        right.errorbar(order + 0.2, sample.mean, yerr=error, **look)
        right.legend(fontsize=7)
    right.axhline(0.0, color="0.4", linewidth=0.8)
    right.set_xticks(order)
    right.set_title("finite-time Lyapunov exponents", fontsize=9, loc="left")
    right.set_xlabel("number")
    right.set_ylabel("per unit of depth")
    return (
        "Lyapunov exponents of the whole sequence over depth. Above zero, neighbouring inputs are "
        "driven apart: a change along that direction is exp(exponent) times as large at the end. Left: "
        "how the leading directions grow on their way."
    )


def _token_exponents(study: Study, drawn: Figure) -> str:
    values, axes = study.arrays["token_exponents"], drawn.subplots()
    axes.bar(range(len(values)), values, color=COOL, width=0.8)
    axes.axhline(0.0, color="0.4", linewidth=0.8)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_ylabel("largest exponent")
    axes.grid(axis="x", visible=False)
    token_axis(axes, study.numbers["tokens"])
    return (
        "The largest exponent of every token by itself: how its own place in the last state answers to "
        "a change of its own embedding."
    )


def _sensitivity(study: Study, drawn: Figure) -> str:
    values, labels = study.arrays["sensitivity"], study.numbers["tokens"]
    position, axes = study.numbers["position"], drawn.subplots()
    token_axis(axes, labels)
    if len(values) == 1:
        axes.bar(range(len(labels)), values[0], color=WARM, width=0.8)
        axes.set_ylabel("sensitivity")
        return f"Sensitivity of position {position} to every token."
    drawn.set_figheight(min(7.5, 2.2 + 0.14 * len(labels)))
    top = float(values.max())
    norm = LogNorm(max(top / 10**DECADES, float(values[values > 0].min())), top)
    seen = np.ma.masked_equal(values, 0.0)
    image = axes.imshow(seen, cmap="magma_r", norm=norm, interpolation="nearest")
    axes.axhline(position, color=COOL, linewidth=1.0)
    axes.grid(visible=False)
    token_axis(axes, labels, vertical=True)
    axes.set_xlabel("input token j")
    axes.set_ylabel("output position i")
    drawn.colorbar(image, ax=axes, label="sensitivity", fraction=0.04)
    return (
        "Sensitivity ||d x_i(1) / d x_j(0)|| / sqrt(E) of every output position (rows) to every input "
        "token (columns); the identity would give 1 on the diagonal. White is exactly zero: no "
        "position sees a later one. The line marks the position chosen above."
    )


def _by_distance(study: Study, drawn: Figure) -> str:
    sample, axes = Sample(study.arrays["corpus.sensitivity_by_distance"]), drawn.subplots()
    mean, half = sample.mean, sample.half_width
    distance = np.arange(len(mean))
    if len(sample.values) > 1:
        low = np.maximum(mean - half, mean / 100)
        axes.fill_between(distance, low, mean + half, color=COOL, alpha=0.25, linewidth=0)
    axes.plot(distance, mean, color=COOL, marker="o", markersize=3, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens back from the last position")
    axes.set_ylabel("sensitivity (mean, 95%)")
    return (
        f"Sensitivity of the last position to tokens by their distance: {len(sample.values)} windows "
        "of the corpus."
    )
