"""What a run shows of itself: records, and the places they go to.

A record is a flat dictionary with a `kind`:

    start     a process began, or went on after a checkpoint: versions, devices, parameters
    train     every few steps: loss, norm of the gradient, learning rate, tokens a second
    valid     the loss on the valid split; `whole` says whether on all of it
    reached   the first time that this loss was below a multiple of a tenth of a nat
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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qkvflow.config import ConfigError, RunConfig
from qkvflow.files import FileError

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

    def close(self) -> None:
        """No more records will come."""
        return


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
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise FileError(
                f"{self._file.name} could not be written: {error.strerror or error}. Free some space "
                "and run the same command again; it goes on from the last checkpoint."
            ) from error

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
        record = json.loads(line)
    except ValueError:
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("step"), int) and "kind" in record
    return record if is_record else None


class TensorBoard(Sink):
    """Scalars for TensorBoard, under DIR/tensorboard."""

    def __init__(self, out: Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", "tensorboardX") from error
        self._writer = SummaryWriter(str(out / "tensorboard"))

    def write(self, record: Record) -> None:
        if record["kind"] in ("train", "valid"):
            for name, value in _scalars(record).items():
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
    """Scalars for Weights & Biases; WANDB_MODE=offline keeps them under DIR/wandb."""

    def __init__(self, out: Path, run: RunConfig):
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "wandb") from error
        self._run = wandb.init(project="qkvflow", name=out.name, dir=str(out), config=run.to_dict())

    def write(self, record: Record) -> None:
        if record["kind"] in ("train", "valid"):
            self._run.log(_scalars(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


def _scalars(record: Record) -> dict[str, float]:
    seed = f"/seed-{record['seed']}" if "seed" in record else ""
    return {
        f"{record['kind']}{seed}/{name}": value
        for name, value in record.items()
        if name not in _ABSCISSAE and isinstance(value, int | float)
    }


def _missing(tracker: str, package: str) -> ConfigError:
    return ConfigError(
        f"The tracker {tracker} cannot be used:",
        [f'{package} is not installed. Run pip install "qkvflow[{tracker}]", or leave it out.'],
    )


def make_trackers(run: RunConfig, out: Path) -> list[Sink]:
    """The sinks that a run names."""
    makers = {"tensorboard": lambda: TensorBoard(out), "wandb": lambda: WeightsAndBiases(out, run)}
    return [makers[name]() for name in dict.fromkeys(run.trackers)]


class Thresholds:
    """Notices when a loss is first below a multiple of a tenth of a nat."""

    def __init__(self, records: Iterable[Record]):
        self._lowest: dict[Any, int] = {}
        for record in records:
            if record["kind"] == "valid":
                self.newly_reached(record["loss"], record.get("seed"))

    def newly_reached(self, loss: float | None, seed: int | None) -> list[float]:
        """The thresholds that this loss is the first to reach; none at the first look."""
        if loss is None or not math.isfinite(loss):
            return []
        tenths = math.ceil(loss * 10 - 1e-9)
        before = self._lowest.get(seed)
        self._lowest[seed] = tenths if before is None else min(before, tenths)
        return [] if before is None else [n / 10 for n in range(before - 1, tenths - 1, -1)]
