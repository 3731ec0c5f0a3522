"""What is kept of a run when it has ended: one small JSON file with all that a claim needs."""

import datetime
import functools
import importlib.metadata
import itertools
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.experiments.matching import shapes_of
from qkvflow.files import FileError
from qkvflow.models import (
    Memory,
    build_model,
    count_parameters,
    forward_flops,
    training_flops,
    training_memory,
)
from qkvflow.train import Evaluation, read_metrics

Record = dict[str, Any]
_PACKAGES = ("qkvflow", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """What the run ran on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    return {"processor": model, "cores": _cores(), "system": platform.system()}


def _cores() -> int | None:
    """How many cores this process may use, which is fewer than there are where it is pinned."""
    can_be_pinned = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if can_be_pinned else os.cpu_count()


def versions() -> dict[str, str]:
    """Of Python and of all that has a part in the result."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in _PACKAGES
    }


def finished_record(
    arm: str,
    run: RunConfig,
    out: Path,
    data: TokenDataset,
    *,
    began: str,
    test: Evaluation | None,
) -> Record:
    """The record of a run that has taken all its steps."""
    metrics = read_metrics(out / "metrics.jsonl")
    final = [record for record in metrics if record["kind"] == "final"][-1]
    return {
        **_head(arm, run, began, "finished"),
        "data_digest": data.digest,
        "valid": _evaluation(final),
        "test": None if test is None else _evaluation(vars(test)),
        **costs(run, data.tokenizer.vocab_size),
        "seconds": final["seconds"],
        "ms_per_step": milliseconds_per_step(metrics),
        "curve": [
            [record["step"], record["seconds"], record["loss"]]
            for record in metrics
            if record["kind"] == "valid"
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
    names = ("loss", "bits_per_byte", "standard_error", "whole")
    tokens = values.get("evaluated_tokens", values.get("tokens"))
    return {**{name: values[name] for name in names}, "tokens": tokens}


def costs(run: RunConfig, vocab_size: int) -> dict[str, Any]:
    """Parameters, operations and memory of a run; they depend on shapes only."""
    model = shapes_of(run, vocab_size)
    parameters = count_parameters(model)
    memory = _memory(run.model, model.config, run.batch_size, run.length)
    step_tokens = run.batch_size * run.length
    return {
        "parameters": parameters.total,
        "time_network_parameters": parameters.time_network,
        "flops_per_token": forward_flops(model, run.batch_size, run.length) / step_tokens,
        "training_flops": run.steps * training_flops(model, run.batch_size, run.length),
        "memory_bytes": memory.parameters + memory.working,
    }


@functools.cache
def _memory(name: str, config: Gpt2Config, batch: int, length: int) -> Memory:
    """Memory of a step, which takes a compilation to find: once for all seeds."""
    model = eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))
    return training_memory(model, batch, length)


def milliseconds_per_step(metrics: Sequence[dict[str, Any]]) -> float:
    """The median over the intervals between lines of the curve, within one process."""
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
    return 1e3 * float(np.median(speeds)) if speeds else float("nan")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}.") from error


def read_json(path: Path) -> Any:
    """Read a JSON file, or say why it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}. Remove it and run again.") from error
