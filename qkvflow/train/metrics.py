"""What a run shows of itself: records, and the places they go to.

A record is a flat dictionary with a `kind`:

    start     a process began, or went on after a checkpoint: versions, devices, parameters
    train     every few steps: loss, norm of the gradient, learning rate, tokens a second
    valid     the loss on the valid split; `whole` says whether on all of it
    final     the same at the end, on the whole split unless `final_tokens` says otherwise
    note      a sentence that somebody should read

Each holds step, seconds, tokens and flops together, so that any curve can be drawn over any of them.
Seconds are those spent in steps: compiling, evaluating and saving do not count.
"""

import errno
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.strict import matches
from qkvflow.extras import pip_line
from qkvflow.files import file_errors, parse_json

Record = dict[str, Any]
_ABSCISSAE = ("kind", "seed", "step", "seconds", "tokens", "flops")


class Sink(ABC):
    """A place that records go to."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Take one record."""

    def tick(self, step: int, loss: float) -> None:
        """A step was finished; most places do not look at every one."""
        return

    def phase(self, name: str, done: int, total: int | None) -> None:
        """What takes time beside steps is under way; what there is to count of it, None: nothing."""
        return

    def close(self) -> None:
        """No more records will come."""
        return


def tell_phase(sinks: Sequence[Sink], name: str, total: int | None = None) -> Callable[[int], None]:
    """Tell sinks what is under way beside steps; returns what is called as it goes on."""
    done = 0

    def advance(amount: int) -> None:
        nonlocal done
        done = done + amount if total is None else min(done + amount, total)  # batches are padded
        for sink in sinks:
            sink.phase(name, done, total)

    advance(0)
    return advance


class MetricsFile(Sink):
    """`metrics.jsonl`: a line for every record, each there as soon as it is written."""

    def __init__(self, path: Path, step: int):
        """Go on after `step`, -1 at the start: later lines are dropped, since they come again."""
        kept = [r for r in read_metrics(path) if r["step"] <= step and r["kind"] != "final"]
        lines = [json.dumps(record) + "\n" for record in kept]
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text("".join(lines), encoding="utf-8")
        temporary.replace(path)
        self._file = path.open("ab", buffering=0)

    def write(self, record: Record) -> None:
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        line = json.dumps(finite).encode() + b"\n"
        remedy = "Free some space and run the same command again; it goes on from the last checkpoint."
        with file_errors(f"{self._file.name} could not be written", remedy):
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[Record]:
    """The records of a `metrics.jsonl`; lines that were cut short or are none are left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [record for record in map(_parse, lines) if record is not None]


def _parse(line: str) -> Record | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if _is_record(record) else None


def _is_record(record: Any) -> bool:
    """Whether it is of a kind, and has what those who read records of this kind ask for."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return False
    wanted = {"step": int, **_WANTED.get(record["kind"], {})}
    typed = all(name in record and matches(record[name], kind) for name, kind in wanted.items())
    return typed and 0 <= record["step"] < 2**63


_CURVE = {"seconds": float, "loss": float | None}
_WANTED: dict[str, dict[str, Any]] = {
    "train": _CURVE,
    "valid": _CURVE,
    "final": {
        **_CURVE,
        "bits_per_byte": float | None,
        "standard_error": float | None,
        "whole": bool,
        "evaluated_tokens": int,
    },
    "compiled": {"memory_bytes": int | None},
    "note": {"text": str},
}
"""What a record has beside its kind and step, by its kind; None: a number that was not finite."""


class Tracker(Sink):
    """A service that gets the numbers of training and of evaluations."""

    def __init__(self, log: Callable[[dict[str, float], int], None], close: Callable[[], None]):
        self._log = log
        self._close = close

    def write(self, record: Record) -> None:
        if record["kind"] in ("train", "valid"):
            self._log(_scalars(record), record["step"])

    def close(self) -> None:
        self._close()


def _scalars(record: Record) -> dict[str, float]:
    seed = f"/seed-{record['seed']}" if "seed" in record else ""
    return {
        f"{record['kind']}{seed}/{name}": value
        for name, value in record.items()
        if name not in _ABSCISSAE and isinstance(value, int | float)
    }


def _tensorboard(run: RunConfig, out: Path) -> Tracker:
    """TensorBoard, under DIR/tensorboard."""
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))

    def log(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def _wandb(run: RunConfig, out: Path) -> Tracker:
    """Weights & Biases; WANDB_MODE=offline keeps the numbers under DIR/wandb."""
    import wandb

    service = wandb.init(project="qkvflow", name=out.name, dir=str(out), config=run.to_dict())
    return Tracker(lambda scalars, step: service.log(scalars, step=step), service.finish)


_TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb}


def make_trackers(run: RunConfig, out: Path) -> list[Sink]:
    """The services that a run names."""
    trackers: list[Sink] = []
    for name in dict.fromkeys(run.trackers):
        try:
            trackers.append(_TRACKERS[name](run, out))
        except ImportError as error:
            problem = f"{error.name} is not installed. Run {pip_line(name)}, or leave it out."
            raise ConfigError(f"The tracker {name} cannot be used:", [problem]) from error
    return trackers
