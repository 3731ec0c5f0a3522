"""What an experiment has to do: a job for each of its runs, in the sweep and after it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from qkvflow.config import ConfigError, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.experiments.matching import matched_run
from qkvflow.experiments.plan import Plan, Sweep, with_learning_rate
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Choices, Failed, Record
from qkvflow.experiments.store import read_record
from qkvflow.files import FileError
from qkvflow.plugins import check_same
from qkvflow.provenance import plugins_in
from qkvflow.train.step import Learner


@dataclass(frozen=True)
class Job:
    """One run of an experiment."""

    arm: str
    run: RunConfig
    root: Path
    """Directory of the experiment."""
    place: str
    """Where it is in there, such as runs/ARM/seed-0."""
    digest: str | None = None
    """Of the text, where it is known before the run."""
    test: bool = False
    keep_gates: bool = False
    problem: str | None = None
    """Why it cannot be run."""

    @property
    def out(self) -> Path:
        """Directory of the run."""
        return self.root / self.place

    @property
    def claim(self) -> Path:
        """What the process that works on it holds."""
        return self.out.with_name(f".{self.out.name}.claim")

    def record(self) -> Record | None:
        """What is known of it, if it has ended."""
        return read_record(self.root, self.place)

    @property
    def is_finished(self) -> bool:
        """Whether it need not be run again."""
        record = self.record()
        if record is None or isinstance(record, Failed):
            return False
        if run_of(record) != self.run:
            raise FileError(
                f"The record of {self.out} is of a run with other settings. Restore the plan it was "
                "made with, or choose another directory with --out."
            )
        if self.digest not in (None, record.data_digest):
            raise FileError(
                f"The record of {self.out} is of a run on another text: {self.run.data} has changed. "
                "Restore it, or choose another directory with --out."
            )
        check_same(f"The record of {self.out}", plugins_in(record.origin.versions))
        return record.test is not None or not self.test


def check_runs(plan: Plan, vocab_size: int) -> None:
    """Refuse a plan of which a run cannot be made, before anything is written or computed.

    Raises:
        ConfigError: with the problems of all arms.
    """
    problems = []
    for arm in plan.arms:
        try:
            run = matched_run(plan, arm, vocab_size)
            Learner.of(run, run.model_config(vocab_size))
            if plan.sweep is not None:
                _sweep_run(run, plan.sweep)
        except ConfigError as error:
            problems += [f"{arm.name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError("This experiment cannot be made:", problems)


def sweep_jobs(plan: Plan, out: Path, data: TokenDataset) -> list[Job]:
    """Every arm with every learning rate, for a few steps, on a seed that is not used again."""
    if plan.sweep is None:
        return []
    jobs = []
    for arm in plan.arms:
        run = _sweep_run(matched_run(plan, arm, data.tokenizer.vocab_size), plan.sweep)
        for rate in plan.sweep.learning_rates:
            place = f"sweep/{arm.name}/lr-{rate:g}"
            jobs.append(Job(arm.name, with_learning_rate(run, rate), out, place, data.digest))
    return jobs


def _sweep_run(run: RunConfig, sweep: Sweep) -> RunConfig:
    """A run as short as those of the sweep.

    Rates are told apart by the part of the valid split that curves are of: evaluating all of it takes
    a good part of so short a run.
    """
    return dataclasses.replace(run, steps=sweep.steps, seed=sweep.seed, final_tokens=run.eval_tokens)


def run_jobs(plan: Plan, out: Path, data: TokenDataset, choices: Choices) -> list[Job]:
    """Every arm with every seed; all arms of a seed before the next seed."""
    runs = {arm.name: matched_run(plan, arm, data.tokenizer.vocab_size) for arm in plan.arms}
    problems: dict[str, str] = {}
    for name, choice in choices.items():
        if choice.learning_rate is None:
            problems[name] = "It has no learning rate: every run of its sweep failed."
        else:
            runs[name] = with_learning_rate(runs[name], choice.learning_rate)
    return [
        Job(
            arm.name,
            dataclasses.replace(runs[arm.name], seed=seed),
            out,
            f"runs/{arm.name}/seed-{seed}",
            data.digest,
            test=plan.test,
            keep_gates=True,
            problem=problems.get(arm.name),
        )
        for seed in plan.seeds
        for arm in plan.arms
    ]
