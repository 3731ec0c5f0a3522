"""What an experiment has to do: a job for each of its runs, in the sweep and after it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from qkvflow.config import ConfigError, OptimizerConfig, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.experiments.matching import matched_run
from qkvflow.experiments.plan import Arm, Plan
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Choices, Failed, Finished, Record
from qkvflow.experiments.search import Search, Try
from qkvflow.experiments.starts import started_run
from qkvflow.experiments.store import read_record
from qkvflow.experiments.sweep import Sweep, try_name, with_learning_rate, with_settings
from qkvflow.files import FileError
from qkvflow.models import at_depth
from qkvflow.plugins import check_same
from qkvflow.provenance import plugins_in
from qkvflow.train.optimizer import make_schedule
from qkvflow.train.resume import open_data
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
    """Of the text; None: what it starts from is gone, and with it how the text was read."""
    test: bool = False
    depths: tuple[int, ...] = ()
    """Depths at which the trained model is judged, beside its own."""
    depth_tokens: int | None = None
    """Tokens of the valid split that it is judged on there; None: all."""
    judge_best: bool = False
    """Whether it is also judged at its best evaluation."""
    unit_steps: bool = False
    """Whether every step is 1 there, also with more of them."""
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
        if not self._is_of(run_of(record)):
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
        has_depths = {*self.depths} <= {each.depth for each in record.depths}
        return has_depths and self.is_judged(record)

    def is_judged(self, record: Finished) -> bool:
        """Whether a record has all the splits, and both models, that this job is judged by."""
        best, tested = record.best, [record.test]
        if self.judge_best:
            tested.append(None if best is None else best.test)
        has_best = best is not None or not self.judge_best
        return has_best and (None not in tested or not self.test)

    def _is_of(self, run: RunConfig | None) -> bool:
        """Whether a run is this one; what it starts from may lie elsewhere: it has a digest."""
        if run is not None and run.start is not None and self.run.start is not None:
            start = dataclasses.replace(run.start, checkpoint=self.run.start.checkpoint)
            run = dataclasses.replace(run, start=start)
        return run == self.run


@dataclass(frozen=True)
class Texts:
    """The texts that runs read, each opened once."""

    opened: dict[tuple[str, str | None], TokenDataset] = field(default_factory=dict)

    def of(self, run: RunConfig) -> TokenDataset:
        """That of a run, as its tokenizer reads it; a start has a tokenizer of its own."""
        key = (run.data, None if run.start is None else run.start.checkpoint)
        if key not in self.opened:
            self.opened[key] = open_data(run)
        return self.opened[key]

    def digest(self, run: RunConfig) -> str | None:
        """That of the text of a run, unless what it starts from is gone."""
        is_gone = run.start is not None and not Path(run.start.checkpoint).is_dir()
        return None if is_gone else self.of(run).digest


def planned_runs(
    plan: Plan, out: Path, seeds: Sequence[int], texts: Texts
) -> dict[tuple[str, int], RunConfig]:
    """By arm and seed, the run: as wide and long as it is to be, and with its start.

    Raises:
        ConfigError: with the problems of all arms.
    """
    runs: dict[tuple[str, int], RunConfig] = {}
    problems = []
    for arm in plan.arms:
        try:
            runs |= {(arm.name, seed): run for seed, run in _runs_of(plan, arm, out, seeds, texts)}
        except ConfigError as error:
            problems += [f"{arm.name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError("This experiment cannot be made:", problems)
    return runs


def _runs_of(
    plan: Plan, arm: Arm, out: Path, seeds: Sequence[int], texts: Texts
) -> list[tuple[int, RunConfig]]:
    """The runs of an arm, by seed; all that can be known of them before they run is checked."""
    if arm.start is None:
        size = texts.of(arm.run).tokenizer.vocab_size
        run = matched_run(plan, arm, size)
        runs = [dataclasses.replace(run, seed=seed) for seed in seeds]
    else:
        found = [started_run(arm, arm.start, seed, out) for seed in seeds]
        size = found[0].architecture.vocab_size
        runs = [matched_run(plan, arm, size, run) for run in found]
    if plan.trial:
        runs = [dataclasses.replace(run, final_tokens=run.eval_tokens) for run in runs]
    learner = Learner.of(runs[0], runs[0].model_config(size))
    for depth in plan.depths:
        at_depth(learner.model, depth).plan()
    if plan.sweep is not None:
        _sweep_run(runs[0], plan.sweep)
    return list(zip(seeds, runs))


def check_rates(plan: Plan, runs: Mapping[tuple[str, int], RunConfig]) -> None:
    """Refuse a sweep in which a rate is not the peak of its run: that would fail, and others be chosen.

    Raises:
        ConfigError: with the problems of all rates.
    """
    if plan.sweep is None:
        return
    seen: dict[str, list[str]] = {}
    for (arm, _), run in runs.items():
        for rate in _rates(plan, arm):
            optimizer = with_learning_rate(run, rate).optimizer
            if (key := str(optimizer)) not in seen:
                seen[key] = _schedule_problems(f"{arm} at {rate:g}", optimizer, plan.sweep.steps)
    if problems := list(chain.from_iterable(seen.values())):
        raise ConfigError("The sweep cannot be made:", problems)


def _schedule_problems(name: str, optimizer: OptimizerConfig, steps: int) -> list[str]:
    try:
        make_schedule(optimizer, steps)
    except ConfigError as error:
        return [f"{name}: {problem}" for problem in error.problems]
    return []


def _rates(plan: Plan, arm: str) -> Sequence[float]:
    assert plan.sweep is not None
    return plan.arm(arm).learning_rates or plan.sweep.learning_rates


def sweep_jobs(plan: Plan, out: Path, tries: Mapping[str, Sequence[Try]]) -> list[Job]:
    """What arms are to be tried with, by their names, on seeds that are not used again."""
    if plan.sweep is None or not any(tries.values()):
        return []
    texts, jobs = Texts(), []
    for (arm, seed), run in planned_runs(plan, out, plan.sweep.seeds, texts).items():
        for each in tries.get(arm, ()):
            changed = Search.of(plan, arm).changed(each)
            tried = with_learning_rate(_sweep_run(run, plan.sweep), each.rate)
            name = try_name(each.rate, changed) + f"-seed-{seed}" * (seed != plan.sweep.seed)
            place = f"sweep/{arm}/{name}"
            jobs.append(Job(arm, with_settings(tried, changed), out, place, texts.digest(run)))
    return jobs


def _sweep_run(run: RunConfig, sweep: Sweep) -> RunConfig:
    """A run as short as those of the sweep.

    Rates are told apart by the part of the valid split that curves are of: evaluating all of it takes
    a good part of so short a run.
    """
    return dataclasses.replace(run, steps=sweep.steps, final_tokens=run.eval_tokens)


def run_jobs(plan: Plan, out: Path, choices: Choices) -> list[Job]:
    """Every arm with every seed; all arms of a seed before the next seed."""
    texts = Texts()
    runs = planned_runs(plan, out, plan.seeds, texts)
    jobs = []
    for seed in plan.seeds:
        for arm in plan.names:
            run, problem = runs[arm, seed], None
            if arm in choices:
                rate = choices[arm].learning_rate
                run = run if rate is None else with_learning_rate(run, rate)
                run = with_settings(run, choices[arm].values)
                problem = None if rate else "It has no learning rate: every run of its sweep failed."
            job = Job(arm, run, out, f"runs/{arm}/seed-{seed}", texts.digest(run))
            job = dataclasses.replace(job, test=plan.test, depths=plan.depths)
            job = dataclasses.replace(job, depth_tokens=plan.depth_tokens, unit_steps=plan.unit_steps)
            job = dataclasses.replace(job, judge_best=plan.judge_best)
            jobs.append(dataclasses.replace(job, keep_gates=True, problem=problem))
    return jobs
