"""What becomes of a model over depth: loss, operations and time on one text, at several depths."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qkvflow.data import TokenSplit
from qkvflow.models import LanguageModel, forward_flops, unroll
from qkvflow.report.table import Row, Table
from qkvflow.train.evaluation import Evaluation, evaluate


@dataclass(frozen=True)
class DepthPoint:
    """A model at one depth."""

    depth: int
    evaluation: Evaluation
    flops: float
    """Operations per token of a forward pass."""
    milliseconds: float
    """Per 1,000 tokens, without compiling."""


def depth_curve(
    model: LanguageModel,
    split: TokenSplit,
    depths: Sequence[int],
    *,
    length: int,
    batch_size: int = 8,
    tokens: int | None = None,
    unit_steps: bool = False,
    answers_only: bool = False,
    advance: Callable[[int], None] = lambda windows: None,
) -> list[DepthPoint]:
    """A model at each of several depths, on the same tokens of a split.

    Raises:
        ConfigError: the model has no such depth, or is too large there.
    """
    judged = partial(
        evaluate, split=split, length=length, batch_size=batch_size, answers_only=answers_only
    )
    sampled = [(depth, unroll(model, depth, unit_steps=unit_steps)) for depth in depths]
    points = []
    for depth, at_this in sampled:
        judged(at_this, tokens=batch_size * length)  # compiles
        begun = time.perf_counter()
        found = judged(at_this, tokens=tokens, advance=advance)
        spent = 1e6 * (time.perf_counter() - begun) / found.tokens
        flops = forward_flops(at_this, 1, length) / length
        points.append(DepthPoint(depth, found, flops, spent))
    return points


def depth_table(points: Sequence[DepthPoint]) -> Table:
    """A row for every depth."""
    heads: Row = (
        "layers",
        "nats/token",
        "standard error",
        "bits/byte",
        "MFLOP/token",
        "ms/1,000 tokens",
    )
    found = [accuracy for point in points if (accuracy := point.evaluation.accuracy) is not None]
    rows: list[Row] = [
        (
            str(point.depth),
            f"{point.evaluation.loss:.4f}",
            f"{point.evaluation.standard_error:.4f}",
            f"{point.evaluation.bits_per_byte:.4f}",
            f"{point.flops / 1e6:.2f}",
            f"{point.milliseconds:.1f}",
        )
        for point in points
    ]
    if found:
        heads += ("answers right", *(f"{count} {found[0].counted}" for count in found[0].by_count))
        rows = [
            (*row, *(f"{share:.1%}" for share in (of.whole, *of.by_count.values())))
            for row, of in zip(rows, found, strict=True)
        ]
    return Table(heads, tuple(rows))


def draw_depth_curve(points: Sequence[DepthPoint], own: int, file: Path, model: str = "") -> None:
    """Loss over depth, the model's own depth marked, and what a token costs there."""
    from qkvflow.report.figures import appearance, canvas, looks  # late: matplotlib takes a second

    depths, look = [point.depth for point in points], appearance(looks([model])[model])
    with canvas([file], 6.4, 3.0) as drawn:
        loss, cost = drawn.subplots(1, 2)
        loss.plot(depths, [point.evaluation.bits_per_byte for point in points], **look)
        loss.axvline(own, color="0.6", linestyle=":", label=f"trained with {own} layers")
        loss.set(xlabel="layers", ylabel="bits per byte")
        loss.legend()
        cost.plot(depths, [point.milliseconds for point in points], **look)
        cost.set(xlabel="layers", ylabel="milliseconds per 1,000 tokens", ylim=(0, None))
        for axes in (loss, cost):
            axes.set_xscale("log", base=2)
            axes.set_xticks(depths, [str(depth) for depth in depths])
            axes.minorticks_off()
