"""Turns what happens in a run into records, and hands them to the sinks."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from qkvflow import __version__
from qkvflow.config import RunConfig
from qkvflow.models import LanguageModel
from qkvflow.train.checkpoints import Progress
from qkvflow.train.depths import run_flops
from qkvflow.train.evaluation import Evaluation
from qkvflow.train.metrics import Record, Sink, Thresholds
from qkvflow.train.step import Report


class Recorder:
    """Knows what a step costs, and which losses were reached before."""

    def __init__(
        self,
        run: RunConfig,
        model: LanguageModel,
        sinks: Sequence[Sink],
        progress: Progress,
        before: Sequence[Record],
    ):
        self._run = run
        self._sinks = sinks
        self._thresholds = Thresholds(before)
        self._step_tokens = run.batch_size * run.length
        self._step_flops = _flops(model, run)
        self._last = progress.step, progress.seconds

    def start(self, progress: Progress, parameters: int) -> None:
        """A process begins, or goes on after a checkpoint."""
        place = self._place("start", progress.step, progress.seconds)
        devices = ", ".join(sorted({device.device_kind for device in jax.local_devices()}))
        versions = {"version": __version__, "jax": jax.__version__}
        count = jax.local_device_count()
        self._emit({**place, **versions, "devices": f"{count} x {devices}", "parameters": parameters})

    def compiled(self, step: int, seconds: float, memory_bytes: int | None) -> None:
        """The step is compiled; what it needs is known."""
        self._emit({**self._place("compiled", step, seconds), "memory_bytes": memory_bytes})

    def step(self, step: int, seconds: float, report: Report) -> None:
        """A step was finished; every few steps it becomes a record."""
        losses = np.atleast_1d(report.loss)
        for sink in self._sinks:
            sink.tick(step, float(losses.mean()))
        if step % self._run.log_every and step != self._run.steps:
            return
        speed = self._speed(step, seconds)
        for i in range(self._run.seeds):
            values = {name: np.atleast_1d(value)[i].item() for name, value in report._asdict().items()}
            del values["failures"]
            self._write("train", step, seconds, i, {**values, "tokens_per_second": speed})

    def _speed(self, step: int, seconds: float) -> float | None:
        """Tokens a second of all seeds together, since the last record."""
        last, self._last = self._last, (step, seconds)
        if seconds <= last[1]:
            return None
        return self._run.seeds * self._step_tokens * (step - last[0]) / (seconds - last[1])

    def valid(self, step: int, seconds: float, evaluations: Sequence[Evaluation]) -> None:
        """A look at the valid split, and the losses that were reached for the first time."""
        for i, evaluation in enumerate(evaluations):
            self._write("valid", step, seconds, i, _values(evaluation))
            for loss in self._thresholds.newly_reached(evaluation.loss, self._seed(i)):
                self._write("reached", step, seconds, i, {"loss": loss})

    def final(self, step: int, seconds: float, evaluations: Sequence[Evaluation]) -> None:
        """The loss on the valid split at the end."""
        for i, evaluation in enumerate(evaluations):
            self._write("final", step, seconds, i, _values(evaluation))

    def note(self, step: int, seconds: float, text: str) -> None:
        """A sentence that somebody should read."""
        self._emit({**self._place("note", step, seconds), "text": text})

    def _write(self, kind: str, step: int, seconds: float, i: int, values: dict[str, Any]) -> None:
        seed = {} if self._run.seeds == 1 else {"seed": self._seed(i)}
        self._emit({**self._place(kind, step, seconds), **seed, **values})

    def _place(self, kind: str, step: int, seconds: float) -> Record:
        flops = None if self._step_flops is None else step * self._step_flops
        tokens = step * self._step_tokens
        return {"kind": kind, "step": step, "seconds": seconds, "tokens": tokens, "flops": flops}

    def _seed(self, i: int) -> int | None:
        """What tells the records of several seeds apart; None where there is one."""
        return None if self._run.seeds == 1 else self._run.all_seeds[i]

    def _emit(self, record: Record) -> None:
        for sink in self._sinks:
            sink.write(record)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def _values(evaluation: Evaluation) -> dict[str, Any]:
    values = asdict(evaluation)
    return {"evaluated_tokens": values.pop("tokens"), **values}


def _flops(model: LanguageModel, run: RunConfig) -> float | None:
    """Operations of a step, on average; unknown where the integrator chooses its steps itself."""
    if not model.integrator.has_grid:
        return None
    return run_flops(run, model) / max(run.steps, 1)
