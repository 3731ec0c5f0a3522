"""The whole of a run: data, resume, steps, evaluations, checkpoints, export."""

import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from qkvflow.config import RunConfig, write_run
from qkvflow.data import TokenDataset, coverage_note, never_targets
from qkvflow.files import FileError, building, expanded, file_errors, set_aside
from qkvflow.interrupt import stop_when_asked
from qkvflow.lock import locked
from qkvflow.models import LanguageModel
from qkvflow.nn.products import precision_note
from qkvflow.plugins import check_loaded
from qkvflow.train.branch import ended_stage, keep_stage, rate_notes
from qkvflow.train.checkpoints import Best, CheckpointStore, Progress, on_host
from qkvflow.train.evaluation import Evaluation, count_windows, evaluate
from qkvflow.train.metrics import MetricsFile, Sink, make_trackers, tell_phase
from qkvflow.train.outcome import Outcome
from qkvflow.train.program import Program, TrainingError
from qkvflow.train.recorder import Recorder, about_process
from qkvflow.train.resume import Saved, final_damage, find_saved, is_finished, open_data
from qkvflow.train.run_files import write_models
from qkvflow.train.start import starting_arrays
from qkvflow.train.step import LIMIT, Report
from qkvflow.train.watching import Bar

MOST_LEFT_OUT = 0.01
"""Share of the train split that may never be a target without a word."""


def train(run: RunConfig, out: str | Path, sinks: Sequence[Sink] | None = None) -> Outcome:
    """Train as `run` says, keeping everything in the directory `out`; go on where it stopped.

    At the end `out/final` holds the model, `out/metrics.jsonl` the curve. `sinks` see every record;
    where none are named, a bar is shown in a notebook or on a terminal.

    Raises:
        ConfigError, DataError: something cannot be used; nothing was begun.
        FileError: nor can a file; or the disk is full, and the same call goes on when it is not.
        TrainingError: there is too little memory; or several steps in a row, or the last,
            were not finite.

    Examples:
        train(RunConfig(model="shared", steps=200), "runs/first").plot()
        model = qkvflow.load("runs/first")
    """
    check_loaded("This run", run.plugins)
    sinks, out = [Bar(run)] if sinks is None else sinks, expanded(out)
    with locked(out), ExitStack() as stack:
        damage = final_damage(out)
        stage = ended_stage(out, run) if damage is None else None
        if damage is None and stage is None and is_finished(out, run):
            return Outcome(out, run.steps, finished=True, there_before=True)
        saved = find_saved(out, run)
        if damage is not None and saved is None:
            raise FileError(
                f"{damage} There is no checkpoint in {out} to write the trained model from again. "
                f"Remove {out / 'final'} to train from the start."
            )
        data = open_data(run, saved)
        tell_phase(sinks, "building the model")
        program = Program(run, data)
        program.check_fits()
        trackers = make_trackers(run, out)
        model = program.learner.model
        store = CheckpointStore(out, run, model, data.tokenizer, data.digest)
        stack.callback(store.close)
        progress = Progress(0, 0.0, None)
        if saved:
            progress, state = store.read(saved.path, saved.record, program.shapes)
            program.restore(state)
        elif run.start is not None:
            program.begin(starting_arrays(run, model))
        if stage is not None:
            keep_stage(out, stage, saved)
        metrics = begin_files(out, run, progress)
        recorder = Recorder(run, model, [metrics, *trackers, *sinks], progress)
        stack.callback(recorder.close)
        recorder.write("start", progress, **about_process(model))
        notes = about_start(run, data, model) if saved is None else about_resume(saved, damage)
        for text in notes + ([] if stage is None else rate_notes(run, stage)):
            recorder.write("note", progress, text=text)
        training = Training(run, out, data, program, store, recorder, progress)
        try:
            training.begin()
            training.stop = stack.enter_context(stop_when_asked())  # from here on there is much to lose
            return training.run_all()
        except eqx.EquinoxRuntimeError as error:  # of an integrator that gave up
            raise TrainingError(f"Training stopped: {model.integrator.remedy}") from error


def about_start(run: RunConfig, data: TokenDataset, model: LanguageModel) -> list[str]:
    """Sentences that somebody should read of a run that begins."""
    notes = about_text(run, data)
    if run.optimizer.warmup is not None and run.optimizer.warmup > run.steps // 2:
        notes.append(
            f"optimizer.warmup is {run.optimizer.warmup}, more than half of {run.steps} steps: the "
            f"learning rate reaches its peak after {run.steps // 2}."
        )
    precision = precision_note(model.config)
    return notes if precision is None else [*notes, precision]


def about_resume(saved: Saved, damage: str | None) -> list[str]:
    """Sentences on files that were damaged, of a run that goes on."""
    notes = [f"{problem} Using an older checkpoint." for problem in saved.problems]
    return notes if damage is None else [*notes, f"{damage} It is written again from {saved.path}."]


def about_text(run: RunConfig, data: TokenDataset) -> list[str]:
    """Sentences about text that nothing is learned from: lost by the tokenizer, or never a target."""
    lost = coverage_note(data, run.least_coverage)
    notes = [] if lost is None else [lost]
    tokens = len(data["train"].ids)
    left_out = never_targets(tokens, run.length)
    if left_out > MOST_LEFT_OUT * tokens:
        notes.append(
            f"{left_out:,} of the {tokens:,} tokens of the train split, those at its end, are never "
            f"targets: no window of length {run.length} reaches them. A shorter one leaves out fewer."
        )
    return notes


def begin_files(out: Path, run: RunConfig, progress: Progress) -> MetricsFile:
    """Make what the run will write to, so that a place that cannot be written shows now."""
    try:
        (out / "checkpoints").mkdir(exist_ok=True)
        write_run(run, out / "run.yaml")
        return MetricsFile(out / "metrics.jsonl", progress.step or -1)
    except OSError as error:
        raise FileError(
            f"The run cannot be saved in {out}: {error.filename}: {error.strerror or error}. Free some "
            "space, or choose another directory with --out."
        ) from error


@dataclass
class Training:
    """A run under way."""

    run: RunConfig
    out: Path
    data: TokenDataset
    program: Program
    store: CheckpointStore
    recorder: Recorder
    progress: Progress
    """Where the run stands."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run is asked to stop."""
    failing: bool = False
    """Whether the last step was not applied."""

    def begin(self) -> None:
        """What comes before the first step: compile, and evaluate fresh weights."""
        if self.progress.step < self.run.steps:
            self._compile()
        if self.progress.step == 0:
            self._evaluate()

    def run_all(self) -> Outcome:
        """Take the steps that are left; evaluate, save and export when it is time."""
        run = self.run
        while (step := self.progress.step) < run.steps and not self.stop.is_set():
            self._advance(min(_next(step, run.eval_every), _next(step, run.save_every), run.steps))
            better = self._is_time(run.eval_every) and self._evaluate()
            if (better or self._is_time(run.save_every)) and not self.failing:
                self._save()
        finished = self.progress.step == run.steps
        if finished:
            self._evaluate_end()
        self._save()
        problem = self.store.wait()
        if problem:
            raise FileError(f"The run stopped after step {self.progress.step}: {problem}")
        if finished:
            self._export()
        return Outcome(self.out, self.progress.step, finished, self.stop.is_set())

    def _compile(self) -> None:
        """Compile the step, unless it does not fit into memory."""
        self.recorder.phase("compiling a step")
        memory_bytes = self.program.checked_memory_bytes()
        self.recorder.write("compiled", self.progress, memory_bytes=memory_bytes)

    def _is_time(self, interval: int) -> bool:
        return self.progress.step % interval == 0

    def _advance(self, until: int) -> None:
        """Take steps; each report is looked at when the next step is already under way."""
        begun = time.perf_counter() - self.progress.seconds
        step, under_way = self.progress.step, None
        while step < until and not self.stop.is_set():
            report = self.program.step(step)
            if under_way is not None:
                self._finish(step, begun, under_way)
            step, under_way = step + 1, report
        if under_way is not None:
            self._finish(step, begun, under_way)

    def _finish(self, step: int, begun: float, report: Report) -> None:
        report = jax.device_get(report)
        self.progress = replace(self.progress, step=step, seconds=time.perf_counter() - begun)
        self.recorder.step(self.progress, report)
        failures = np.atleast_1d(report.failures)
        self.failing = bool(failures.any())
        for i, seed in enumerate(self.run.all_seeds):
            if failures[i]:
                loss, norm = (np.atleast_1d(x)[i] for x in (report.loss, report.gradient_norm))
                what = f"loss {loss} and gradient norm {norm} at step {step}, seed {seed}"
                if np.isfinite([loss, norm]).all():
                    what += "; with them parameters or the optimizer's state would not be finite"
                self._note(f"Step {step} was not applied: {what}.")
                if failures[i] >= LIMIT:
                    before = f"as in the {LIMIT - 1} steps before it. None of them was applied"
                    raise TrainingError(self._advice(f"{what}, {before}"))

    def _note(self, text: str) -> None:
        """A sentence that somebody should read."""
        self.recorder.write("note", self.progress, text=text)

    def _advice(self, what: str) -> str:
        return (
            f"Training stopped: {what}. Begin again in another directory, with a smaller "
            "optimizer.learning_rate, a longer optimizer.warmup, a smaller optimizer.clip, other "
            "optimizer.options, or architecture.compute_dtype float32. The last good checkpoint is in "
            f"{self.out / 'checkpoints'}."
        )

    def _evaluate_end(self) -> None:
        """Evaluate the trained model, unless its last step was not applied; its loss must be finite."""
        if np.any(jax.device_get(self.program.state.failures)):
            raise TrainingError(self._advice("the last step was not applied, as its note says"))
        evaluations = self._evaluations(self.run.final_tokens, "final evaluation")
        self.recorder.evaluated("final", self.progress, evaluations)
        if not np.isfinite([evaluation.loss for evaluation in evaluations]).all():
            raise TrainingError(self._advice("the loss on the valid split is not finite at the end"))

    def _evaluate(self) -> bool:
        """Evaluate on the valid split; whether the mean over seeds is the best so far."""
        evaluations = self._evaluations(self.run.eval_tokens, "evaluation")
        self.recorder.evaluated("valid", self.progress, evaluations)
        loss = float(np.mean([evaluation.loss for evaluation in evaluations]))
        best, step = self.progress.best, self.progress.step
        if step == 0 or not loss < (math.inf if best is None else best.loss):
            return False
        self.progress = replace(self.progress, best=Best(loss, step))
        return True

    def _evaluations(self, tokens: int | None, what: str) -> list[Evaluation]:
        run, split = self.run, self.data["valid"]
        phase = self.recorder.phase(what, run.seeds * count_windows(split, run.length, tokens))
        return [
            evaluate(
                self.program.model(i),
                split,
                length=run.length,
                batch_size=run.batch_size // run.accumulate,
                tokens=tokens,
                put=self.program.placement.batch,
                advance=phase,
                answers_only=run.answers_only,
            )
            for i in range(run.seeds)
        ]

    def _save(self) -> None:
        problem = self.store.save(self.program.state, self.progress)
        if problem:
            self._note(problem)

    def _export(self) -> None:
        final, model = self.out / "final", self.program.learner.model
        self.recorder.phase("writing the model")
        remedy = "Free some space and run the same command again; no step is repeated."
        with (
            file_errors(f"The trained model could not be written to {final}", remedy),
            building(final) as directory,
        ):
            parameters = on_host(self.program.state).shown
            write_models(directory, self.run, model, self.data.tokenizer, parameters)
            if final.exists():  # damaged, or the run would not have begun
                set_aside(final)


def _next(step: int, interval: int) -> int:
    return (step // interval + 1) * interval
