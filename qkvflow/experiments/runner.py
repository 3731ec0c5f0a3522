"""Runs of an experiment: each a directory, each finished once, shared by any number of processes.

    OUT/sweep/ARM/lr-0.001/ .json      the sweep over learning rates: a run and its record
    OUT/runs/ARM/seed-0/ .json         the runs that are compared
    OUT/tuned.json                     the learning rate of every arm

Once packed, what is a record here is a line of OUT/records.jsonl; see `store`.

A run whose record says "finished" is never run again; one that was interrupted goes on from its last
checkpoint; one that failed is tried again when the command is started again. Several processes, also on
several machines that share the directory, can work on one experiment: each takes what nobody holds.
"""

import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from qkvflow.data import TokenDataset, TokenSplit
from qkvflow.experiments.best import evaluated, judged_at_best, lost_its_best
from qkvflow.experiments.gates import save_gates
from qkvflow.experiments.jobs import (
    Job,
    Texts,
    check_rates,
    planned_runs,
    run_jobs,
    sweep_jobs,
)
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.recording import costs_of, failed_record, finished_record
from qkvflow.experiments.records import (
    AtDepth,
    Choice,
    Choices,
    Failed,
    Finished,
    Record,
    choices_to_json,
)
from qkvflow.experiments.results import read_choices, save_plan
from qkvflow.experiments.reuse import take_over
from qkvflow.experiments.search import Search, losses_of
from qkvflow.experiments.store import loose_path, recorded_plan, write_record
from qkvflow.files import set_aside, write_json
from qkvflow.lock import HeldError, locked, waiting
from qkvflow.models import LanguageModel, forward_flops, unroll
from qkvflow.provenance import now
from qkvflow.train import Sink, load_model, read_metrics, train
from qkvflow.train.resume import final_damage, open_data
from qkvflow.train.run_files import checkpoint_paths
from qkvflow.train.watching import Bar

_HERE = Path(__file__).parents[2]
"""Where the package lies, which is nobody's business in a record."""
PAUSE = 5.0
"""Seconds to wait where other processes hold all that is left."""


class StoppedError(KeyboardInterrupt):
    """A run was asked to stop before its end; the same command resumes it."""


class Watcher:
    """Told how an experiment goes on; this one does not listen."""

    def stage(self, title: str, jobs: int) -> None:
        """So many jobs come next, all of one kind."""

    def begin(self, job: Job) -> Sequence[Sink]:
        """A run begins; returns where its records go."""
        return ()

    def end(self, job: Job, record: Record) -> None:
        """A run has ended, here or in another process."""


class Shown(Watcher):
    """A bar for each run, in a notebook or on a terminal."""

    def begin(self, job: Job) -> Sequence[Sink]:
        return [Bar(job.run, f"{job.arm}, seed {job.run.seed}")]


def prepare(
    plan: Plan, out: Path, reference: str | None = None, reuse: Sequence[Path] = ()
) -> TokenDataset | None:
    """The text of an experiment, once every run is known to be possible and its plan is kept.

    There is none where arms read different texts.

    Args:
        reference: the arm that a directory which is there already shall have as its reference.
        reuse: directories of other experiments.

    Raises:
        ConfigError: a run cannot be made.
        DataError: the text cannot be had.
        FileError: the directory is of another experiment, or one to reuse is of none.
    """
    for other in reuse:
        recorded_plan(other)
    texts = Texts()
    seeds = [*plan.seeds, *(plan.sweep.seeds if plan.sweep else ())]
    runs = planned_runs(plan.checked(), out, seeds, texts)
    check_rates(plan, runs)
    for run in runs.values():
        texts.digest(run)  # opened: it can be had
    save_plan(plan, out, reference)
    found = {data.digest: data for data in texts.opened.values()}
    return next(iter(found.values())) if len(found) == 1 else None


def complete(
    plan: Plan, out: Path, watcher: Watcher | None = None, reuse: Sequence[Path] = ()
) -> list[Record]:
    """All of an experiment: the sweep where there is one, then the runs; their records.

    Runs that the experiments in `reuse` have finished are taken from there.
    """
    watcher = watcher or Watcher()
    choices = tune(plan, out, watcher, reuse) if plan.sweep else {}
    jobs = run_jobs(plan, out, choices)
    take_over(jobs, reuse)
    watcher.stage("runs", len(jobs))
    return carry_out(jobs, watcher)


def carry_out(jobs: Sequence[Job], watcher: Watcher) -> list[Record]:
    """Do all jobs that are not done, and wait for those that other processes do; their records."""
    began = now()
    done: dict[Path, Record] = {}
    for job in _until_all_are_done(jobs, done):
        record = _do(job, watcher, began)
        if record is not None:
            done[job.out] = record
            watcher.end(job, record)
    return [done[job.out] for job in jobs]


def _until_all_are_done(jobs: Sequence[Job], done: dict[Path, Record]) -> Iterator[Job]:
    """Jobs that are left, again and again, with a pause where others hold all of them."""
    while True:
        left = [job for job in jobs if job.out not in done]
        if not left:
            return
        before = len(done)
        yield from left
        if len(done) == before:
            time.sleep(PAUSE)


def _do(job: Job, watcher: Watcher, since: str) -> Record | None:
    """The record of a job, which is done now unless it was done before; None where another holds it.

    Nor is it tried again if it has failed since then, in another process.
    """
    if _has_ended(job, since):
        return job.record()
    try:
        with locked(job.claim):
            if not _has_ended(job, since):
                record = _attempt(job, watcher)
                write_record(job.root, job.place, record)
                if isinstance(record, Finished):  # nothing is left to be done with them
                    shutil.rmtree(job.out / "checkpoints", ignore_errors=True)
            return job.record()
    except HeldError:
        return None


def _has_ended(job: Job, since: str) -> bool:
    record = job.record()
    return (isinstance(record, Failed) and record.origin.ended > since) or job.is_finished


def _attempt(job: Job, watcher: Watcher) -> Record:
    """Run a job. An error becomes its record, so that the other jobs go on."""
    began = now()
    if job.problem is not None:
        return failed_record(job.arm, job.run, began=began, error=job.problem)
    sinks = watcher.begin(job)
    try:
        return _finish(job, sinks, began)
    except Exception as error:
        what = str(error) or type(error).__name__
        trace = "".join(traceback.format_exception(error, limit=-5)).replace(f"{_HERE}/", "")
        return failed_record(job.arm, job.run, began=began, error=f"{what}\n\n{trace}")


def _finish(job: Job, sinks: Sequence[Sink], began: str) -> Record:
    data = open_data(job.run)
    known = costs_of(job.run, data.tokenizer.vocab_size)  # before training: not every arm has any
    _set_aside_what_is_lost(job)
    outcome = train(job.run, job.out, sinks)
    if outcome.asked_to_stop:
        raise StoppedError(f"Stopped in {job.out}; run the same command again to resume.")
    model = load_model(job.out / "final")
    test = None
    if job.test:
        test = evaluated(model, data["test"], job, None, "evaluation on the test split", sinks)
    depths = judged_at_depths(model, data["valid"], job, sinks)
    best = judged_at_best(job, data, sinks) if job.judge_best else None
    about = (job.arm, job.run, job.out, data.digest, known)
    record = finished_record(*about, began=began, test=test, depths=depths, best=best)
    if job.keep_gates:
        save_gates(model, job.root, job.place)
    return record


def judged_at_depths(
    model: LanguageModel, split: TokenSplit, job: Job, sinks: Sequence[Sink] = ()
) -> tuple[AtDepth, ...]:
    """A trained model at the depths of a job, on as much of a split as that says."""
    found = []
    for depth in job.depths:
        other = unroll(model, depth, unit_steps=job.unit_steps)
        what = f"evaluation at depth {depth}"
        seen = evaluated(other, split, job, job.depth_tokens, what, sinks)
        flops = forward_flops(other, 1, job.run.length) / job.run.length
        found.append(AtDepth(depth, seen.loss, seen.bits_per_byte, flops, seen.accuracy))
    return tuple(found)


def _set_aside_what_is_lost(job: Job) -> None:
    """Set aside a trained model that no record can be made of any more, so that it is trained again.

    One that is damaged is mended from a checkpoint if there is one; its curve is not, nor is the
    checkpoint of its best evaluation, where it is judged by that.
    """
    out, checkpoints = job.out, job.out / "checkpoints"
    if not (out / "final").is_dir():
        return
    has_end = any(record["kind"] == "final" for record in read_metrics(out / "metrics.jsonl"))
    if job.judge_best and has_end and lost_its_best(out):
        shutil.rmtree(checkpoints, ignore_errors=True)  # they are of its last steps
        set_aside(out / "final")
    elif not has_end or (final_damage(out) and not checkpoint_paths(checkpoints)):
        set_aside(out / "final")


def tune(
    plan: Plan, out: Path, watcher: Watcher | None = None, reuse: Sequence[Path] = ()
) -> dict[str, Choice]:
    """Sweep the learning rate of every arm, and what else its plan names; keep it in OUT/tuned.json.

    A choice that was made stands: a run of a sweep that failed then and might succeed now does not
    change what finished runs were trained with.
    """
    watcher = watcher or Watcher()
    made = read_choices(out)
    arms = [arm for arm in plan.names if plan.sweep and arm not in _standing(made)]
    if arms:
        made = _keep_choices(out, _swept(plan, out, arms, watcher, reuse))
    return {arm.name: made[arm.name] for arm in plan.arms}


def _swept(
    plan: Plan, out: Path, arms: Sequence[str], watcher: Watcher, reuse: Sequence[Path]
) -> dict[str, Choice]:
    """The best learning rates and settings: of every arm what is to be tried next, until nothing is."""
    searches = {arm: Search.of(plan, arm) for arm in arms}
    records: dict[str, list[Record]] = {arm: [] for arm in arms}
    while True:
        losses = {arm: losses_of(records[arm], searches[arm].values) for arm in arms}
        jobs = sweep_jobs(plan, out, {arm: searches[arm].ahead(losses[arm]) for arm in arms})
        if not jobs:
            return {arm: searches[arm].chosen(losses[arm]) for arm in arms}
        take_over(jobs, reuse)
        watcher.stage("sweep", len(jobs))
        for record in carry_out(jobs, watcher):
            records[record.arm].append(record)


def _standing(made: Choices) -> dict[str, Choice]:
    return {arm: choice for arm, choice in made.items() if choice.learning_rate is not None}


def _keep_choices(out: Path, found: Choices) -> dict[str, Choice]:
    """Put choices beside those that stand, which another process may have made meanwhile."""
    with waiting(out / ".tuned.claim"):
        before = read_choices(out)
        made = {**before, **found, **_standing(before)}
        write_json(loose_path(out, "tuned"), choices_to_json(made))
        return made
