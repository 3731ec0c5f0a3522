"""How the record of a run is made: from its metrics, its shapes and the machine."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow import train
from qkvflow.config import ConfigError, RunConfig
from qkvflow.data import Accuracy
from qkvflow.experiments.matching import shapes_of
from qkvflow.experiments.records import (
    AtBest,
    AtDepth,
    Costs,
    Evaluation,
    Failed,
    Finished,
    Origin,
    Point,
)
from qkvflow.models import count_parameters, forward_flops
from qkvflow.provenance import machine, now, versions
from qkvflow.train import TrainingError, read_metrics
from qkvflow.train.depths import run_flops


def finished_record(
    arm: str,
    run: RunConfig,
    out: Path,
    data_digest: str,
    costs: Costs,
    *,
    began: str,
    test: train.Evaluation | None,
    depths: tuple[AtDepth, ...] = (),
    best: AtBest | None = None,
) -> Finished:
    """The record of a run that has taken all its steps.

    Raises:
        TrainingError: its loss is not finite.
    """
    metrics = read_metrics(out / "metrics.jsonl")
    final = [record for record in metrics if record["kind"] == "final"][-1]
    memory = [record["memory_bytes"] for record in metrics if record["kind"] == "compiled"]
    losses = [final["loss"], final["bits_per_byte"]] + ([] if test is None else [test.loss])
    losses += [each.loss for each in depths] + ([] if best is None else [best.valid.loss])
    if not all(loss is not None and math.isfinite(loss) for loss in losses):
        raise TrainingError("The loss is not finite at the end; try a smaller learning rate.")
    return Finished(
        arm,
        run.seed,
        run.to_dict(),
        _origin(began),
        data_digest,
        evaluation_of(final),
        None if test is None else evaluation_of(vars(test)),
        dataclasses.replace(costs, memory_bytes=memory[-1] if memory else None),
        final["seconds"],
        milliseconds_per_step(metrics),
        tuple(
            Point(record["step"], record["seconds"], record["loss"])
            for record in metrics
            if record["kind"] == "valid" and record["loss"] is not None
        ),
        tuple(record["text"] for record in metrics if record["kind"] == "note"),
        depths,
        best,
    )


def failed_record(arm: str, run: RunConfig, *, began: str, error: str) -> Failed:
    """The record of a run that ended with an error."""
    return Failed(arm, run.seed, run.to_dict(), _origin(began), error)


def run_of(record: Finished) -> RunConfig | None:
    """The run of a record; None where it has a switch that is no longer there."""
    try:
        return RunConfig.from_dict(record.run)
    except ConfigError:
        return None


def _origin(began: str) -> Origin:
    return Origin(versions(), machine(), began, now())


def evaluation_of(values: dict[str, Any]) -> Evaluation:
    """What is kept of an evaluation, from its fields or from its line among the metrics."""
    error = values["standard_error"]
    return Evaluation(
        values["loss"],
        values["bits_per_byte"],
        error if error is not None and math.isfinite(error) else None,
        values["whole"],
        values.get("evaluated_tokens", values.get("tokens")),
        _accuracy(values.get("accuracy")),
    )


def _accuracy(values: Accuracy | dict[str, Any] | None) -> Accuracy | None:
    """As it was measured, or as a line of the curve has it."""
    return Accuracy(**values) if isinstance(values, dict) else values


def costs_of(run: RunConfig, vocab_size: int) -> Costs:
    """Parameters and operations of a run; they depend on shapes only."""
    model = shapes_of(run, vocab_size)
    parameters = count_parameters(model)
    step_tokens = run.batch_size * run.length
    return Costs(
        parameters.total,
        parameters.time_network,
        forward_flops(model, run.batch_size, run.length) / step_tokens,
        run_flops(run, model),
    )


def milliseconds_per_step(metrics: Sequence[dict[str, Any]]) -> float:
    """The median over the intervals between lines of the curve, within one process.

    Of a run with a single line or none it is the mean over its steps.
    """
    places: list[tuple[int, float] | None] = [
        (record["step"], record["seconds"]) if record["kind"] == "train" else None
        for record in metrics
        if record["kind"] in ("train", "start")
    ]
    speeds = [
        (there[1] - here[1]) / (there[0] - here[0])
        for here, there in itertools.pairwise(places)
        if here is not None and there is not None and there[0] > here[0]
    ]
    if speeds:
        return 1e3 * float(np.median(speeds))
    last = [record for record in metrics if record["kind"] in ("train", "final")][-1]
    return 1e3 * last["seconds"] / max(last["step"], 1)
