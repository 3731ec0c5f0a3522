"""What is kept of a run when it has ended: one small JSON file with all that a claim needs."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.config import RunConfig
from qkvflow.experiments.matching import shapes_of
from qkvflow.models import count_parameters, forward_flops, training_flops
from qkvflow.provenance import machine, now, versions
from qkvflow.train import Evaluation, TrainingError, read_metrics

Record = dict[str, Any]


def finished_record(
    arm: str,
    run: RunConfig,
    out: Path,
    data_digest: str,
    costs: dict[str, Any],
    *,
    began: str,
    test: Evaluation | None,
) -> Record:
    """The record of a run that has taken all its steps.

    Raises:
        TrainingError: its loss is not finite.
    """
    metrics = read_metrics(out / "metrics.jsonl")
    final = [record for record in metrics if record["kind"] == "final"][-1]
    memory = [record["memory_bytes"] for record in metrics if record["kind"] == "compiled"]
    losses = [final["loss"]] + ([] if test is None else [test.loss])
    if not all(loss is not None and math.isfinite(loss) for loss in losses):
        raise TrainingError("The loss is not finite at the end; try a smaller learning rate.")
    return {
        **_head(arm, run, began, "finished"),
        "data_digest": data_digest,
        "valid": _evaluation(final),
        "test": None if test is None else _evaluation(vars(test)),
        **costs,
        "memory_bytes": memory[-1] if memory else None,
        "seconds": final["seconds"],
        "ms_per_step": milliseconds_per_step(metrics),
        "curve": [
            [record["step"], record["seconds"], record["loss"]]
            for record in metrics
            if record["kind"] == "valid" and record["loss"] is not None
        ],
        "notes": [record["text"] for record in metrics if record["kind"] == "note"],
    }


def failed_record(arm: str, run: RunConfig, *, began: str, error: str) -> Record:
    """The record of a run that ended with an error."""
    return {**_head(arm, run, began, "failed"), "error": error}


def _head(arm: str, run: RunConfig, began: str, status: str) -> Record:
    return {
        "arm": arm,
        "seed": run.seed,
        "status": status,
        "run": run.to_dict(),
        "versions": versions(),
        "machine": machine(),
        "began": began,
        "ended": now(),
    }


def _evaluation(values: dict[str, Any]) -> dict[str, Any]:
    error = values["standard_error"]  # of a single window there is none
    return {
        **{name: values[name] for name in ("loss", "bits_per_byte", "whole")},
        "standard_error": error if error is not None and math.isfinite(error) else None,
        "tokens": values.get("evaluated_tokens", values.get("tokens")),
    }


def costs(run: RunConfig, vocab_size: int) -> dict[str, Any]:
    """Parameters and operations of a run; they depend on shapes only."""
    model = shapes_of(run, vocab_size)
    parameters = count_parameters(model)
    step_tokens = run.batch_size * run.length
    return {
        "parameters": parameters.total,
        "time_network_parameters": parameters.time_network,
        "flops_per_token": forward_flops(model, run.batch_size, run.length) / step_tokens,
        "training_flops": run.steps * training_flops(model, run.batch_size, run.length),
    }


def milliseconds_per_step(metrics: Sequence[dict[str, Any]]) -> float:
    """The median over the intervals between lines of the curve, within one process.

    Of a run with a single line it is the mean over its steps.
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
    last = [record for record in metrics if record["kind"] == "train"][-1]
    return 1e3 * last["seconds"] / last["step"]
