"""The page of an adaptation experiment, made of the items of `report.page`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvflow.finetune.study import SCRATCH, Study
from qkvflow.report.page import Heading, Item, Paragraph, Picture
from qkvflow.report.table import Table


def study_page(study: Study, summary: Mapping[str, Any], pictures: Sequence[Path]) -> list[Item]:
    """What was done; for each direction the losses at every depth, before and after; differences."""
    page: list[Item] = [Heading("Another depth, another text", 1), Paragraph(_what(study))]
    for (direction, arms), picture in zip(summary["losses"].items(), pictures, strict=True):
        name = direction.replace("-to-", " to ")
        adapted = {arm: rows for arm, rows in arms.items() if not arm.endswith(f"-{SCRATCH}")}
        page += [
            losses_table(f"From {name}", arms),
            Picture(picture, f"Valid loss over the number of layers, {name}."),
            _table(
                f"From {name}: before the first step",
                adapted,
                _before,
                "Valid loss, nats per byte, on a part of the valid split, before any adaptation: what "
                "reading the other text, and another depth, costs a model.",
            ),
        ]
    if summary["differences"]:
        page.append(_differences(summary["differences"]))
    return page


def _what(study: Study) -> str:
    layers = study.architecture.num_layers
    return (
        f"{', '.join(study.models)}: pretrained with {layers} layers for {study.pretraining_steps:,} "
        f"steps on one text, sampled at {', '.join(map(str, study.depths))} layers, adapted to the "
        f"other for {study.steps:,} steps; scratch: fresh weights, as many steps. Batches of "
        f"{study.batch_size} x {study.length} bytes, {study.seeds} seeds. Learning rates were set "
        f"beforehand and not swept: {study.pretraining_rate:g} for fresh weights, {study.full_rate:g} "
        f"for adapting all of them, {study.adapter_rate:g} for adapters (rank {study.rank})."
    )


def losses_table(title: str, arms: Mapping[str, Any]) -> Table:
    """One row per arm, one column per depth."""
    note = "Valid loss, nats per byte: mean over seeds and half of Student's 95% interval."
    return _table(title, arms, lambda row: with_half(row["mean"], row["ci95"]), note)


def _table(title: str, arms: Mapping[str, Any], cell: Any, note: str) -> Table:
    depths = list(next(iter(arms.values()), {}))
    rows = tuple((arm, *(cell(rows[depth]) for depth in depths)) for arm, rows in arms.items())
    return Table(("arm", *(f"{depth} layers" for depth in depths)), rows, title, note)


def _before(row: Mapping[str, Any]) -> str:
    losses = row["before"]
    return with_half(sum(losses) / len(losses) if losses else None, None)


def with_half(mean: float | None, half: float | None) -> str:
    """A mean and half of its interval, or that there is none."""
    if mean is None:
        return "failed"
    return f"{mean:.3f}" if half is None else f"{mean:.3f} +- {half:.3f}"


def _differences(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            f"{test['first']} - {test['second']}",
            test["direction"].replace("-to-", " to "),
            test["method"],
            str(test["depth"]),
            f"{test['difference']:+.3f}",
            f"{test['ci95'][0]:+.3f} to {test['ci95'][1]:+.3f}",
            f"{test['p_value']:.2g}",
            f"{test['p_value_holm']:.2g}",
        )
        for test in found
    )
    head = ("pair", "direction", "method", "layers", "difference", "95%", "p", "Holm")
    note = (
        "Differences of valid losses, paired by seed; below zero, the first is better. p: paired "
        f"t-test, two-sided; Holm: corrected for all {len(rows)} comparisons."
    )
    return Table(head, rows, "Differences", note, frozenset({"direction", "method"}))
