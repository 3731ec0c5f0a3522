"""What is kept of a run when it has ended: one small JSON file with all that a claim needs."""

import datetime
import hashlib
import importlib.metadata
import itertools
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.config import RunConfig
from qkvflow.experiments.matching import shapes_of
from qkvflow.models import count_parameters, forward_flops, training_flops
from qkvflow.train import Evaluation, TrainingError, read_metrics

Record = dict[str, Any]
_PACKAGES = ("qkvflow", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
_FOLDERS = ("config", "nn", "models", "data", "train")
"""What decides the numbers of a run."""


def _digest_of_code() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (package / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


CODE = _digest_of_code()
"""The code that this process runs; files may change before it ends."""


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """What the run ran on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        rows = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in rows}
        kind = ", ".join(f"{of} {facts[of]}" for of in ("cpu family", "model") if of in facts)
        model = ", ".join(filter(None, (facts.get("model name", model), kind)))
    return {"processor": model, "cores": _cores(), "system": platform.system()}


def _cores() -> int | None:
    """How many cores this process may use, which is fewer than there are where it is pinned."""
    can_be_pinned = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if can_be_pinned else os.cpu_count()


def versions() -> dict[str, str]:
    """Of Python and of all that has a part in the result."""
    return (
        {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"code": CODE}
    )


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
