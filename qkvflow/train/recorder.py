"""Turns what happens in a run into records, and hands them to the sinks."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

import jax
import numpy as np

from qkvflow import __version__
from qkvflow.config import RunConfig
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.train.checkpoints import Progress
from qkvflow.train.depths import run_flops
from qkvflow.train.evaluation import Evaluation
from qkvflow.train.metrics import Record, Sink, tell_phase
from qkvflow.train.step import Report


class Recorder:
    """Knows what a step costs, and when the last record was."""

    def __init__(
        self,
        run: RunConfig,
        model: LanguageModel,
        sinks: Sequence[Sink],
        progress: Progress,
    ):
        self._run = run
        self._sinks = sinks
        self._step_tokens = run.batch_size * run.length
        # Of a step on average; unknown where the integrator chooses its steps itself.
        has_grid = model.integrator.has_grid
        self._step_flops = run_flops(run, model) / max(run.steps, 1) if has_grid else None
        self._last = progress
        # What tells the records of several seeds apart.
        self._seeds = [{"seed": seed} if run.seeds > 1 else {} for seed in run.all_seeds]

    def write(self, kind: str, at: Progress, **values: Any) -> None:
        """Hand a record of this kind to every sink."""
        flops = None if self._step_flops is None else at.step * self._step_flops
        tokens = at.step * self._step_tokens
        place = {"kind": kind, "step": at.step, "seconds": at.seconds, "tokens": tokens, "flops": flops}
        for sink in self._sinks:
            sink.write(place | values)

    def step(self, at: Progress, report: Report) -> None:
        """A step was finished; every few steps it becomes a record."""
        loss = float(np.mean(report.loss))
        for sink in self._sinks:
            sink.tick(at.step, loss)
        if at.step % self._run.log_every and at.step != self._run.steps:
            return
        speed = self._speed(at)
        for i, seed in enumerate(self._seeds):
            values = {name: np.atleast_1d(value)[i].item() for name, value in report._asdict().items()}
            del values["failures"]
            self.write("train", at, **seed, **values, tokens_per_second=speed)

    def phase(self, name: str, total: int | None = None) -> Callable[[int], None]:
        """Tell every sink what is under way beside steps; returns what is called as it goes on."""
        return tell_phase(self._sinks, name, total)

    def _speed(self, at: Progress) -> float | None:
        """Tokens a second of all seeds together, since the last record."""
        last, self._last = self._last, at
        if at.seconds <= last.seconds:
            return None
        steps = self._run.seeds * (at.step - last.step)
        return steps * self._step_tokens / (at.seconds - last.seconds)

    def evaluated(
        self, kind: Literal["valid", "final"], at: Progress, evaluations: Sequence[Evaluation]
    ) -> None:
        """An evaluation of every seed."""
        for seed, evaluation in zip(self._seeds, evaluations):
            values = asdict(evaluation)
            self.write(kind, at, **seed, evaluated_tokens=values.pop("tokens"), **values)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def about_process(model: LanguageModel) -> Record:
    """What the record of a start says: versions, devices, parameters."""
    kinds = ", ".join(sorted({device.device_kind for device in jax.local_devices()}))
    return {
        "version": __version__,
        "jax": jax.__version__,
        "devices": f"{jax.local_device_count()} x {kinds}",
        "parameters": count_parameters(model).total,
    }
