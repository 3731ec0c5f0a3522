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
from qkvflow.experiments.gates import save_gates
from qkvflow.experiments.jobs import (
    Job,
    Texts,
    check_rates,
    planned_runs,
    run_jobs,
    sweep_jobs,
    wider_jobs,
)
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.recording import costs_of, failed_record, finished_record
from qkvflow.experiments.records import (
    AtDepth,
    Choice,
    Choices,
    Failed,
    Record,
    choices_to_json,
    chosen,
)
from qkvflow.experiments.results import read_choices, save_plan
from qkvflow.experiments.reuse import take_over
from qkvflow.experiments.store import loose_path, recorded_plan, write_record
from qkvflow.files import set_aside, write_json
from qkvflow.lock import HeldError, locked, waiting
from qkvflow.models import LanguageModel, forward_flops, unroll
from qkvflow.provenance import now
from qkvflow.train import Evaluation, Sink, evaluate, load_model, read_metrics, train
from qkvflow.train.evaluation import count_windows
from qkvflow.train.metrics import tell_phase
from qkvflow.train.resume import final_damage, open_data
from qkvflow.train.run_files import checkpoint_paths
from qkvflow.train.watching import Bar

_HERE = Path(__file__).parents[2]
"""Where the package lies, which is nobody's business in a record."""
PAUSE = 5.0
"""Seconds to wait where other processes hold all that is left."""


class StoppedError(KeyboardInterrupt):
    """A run was asked to stop before its end; the same command goes on from there."""


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


def carry_out(jobs: Sequence[Job], watcher: Watcher | None = None) -> list[Record]:
    """Do all jobs that are not done, and wait for those that other processes do; their records."""
    watcher = watcher or Watcher()
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
                write_record(job.root, job.place, _attempt(job, watcher))
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
    _set_aside_what_is_lost(job.out)
    outcome = train(job.run, job.out, sinks)
    if outcome.asked_to_stop:
        raise StoppedError(f"Stopped in {job.out}; the same command goes on from there.")
    model = load_model(job.out / "final")
    test = judged(model, data["test"], job, sinks, "evaluation on the test split") if job.test else None
    depths = judged_at_depths(model, data["valid"], job, sinks)
    record = finished_record(
        job.arm, job.run, job.out, data.digest, known, began=began, test=test, depths=depths
    )
    if job.keep_gates:
        save_gates(model, job.root, job.place)
    shutil.rmtree(job.out / "checkpoints", ignore_errors=True)
    return record


def judged_at_depths(
    model: LanguageModel, split: TokenSplit, job: Job, sinks: Sequence[Sink] = ()
) -> tuple[AtDepth, ...]:
    """A trained model at the depths of a job, on as much of a split as that says."""
    length, found = job.run.length, []
    for depth in job.depths:
        other = unroll(model, depth, unit_steps=job.unit_steps)
        seen = judged(other, split, job, sinks, f"evaluation at depth {depth}", job.depth_tokens)
        flops = forward_flops(other, 1, length) / length
        found.append(AtDepth(depth, seen.loss, seen.bits_per_byte, flops, seen.accuracy))
    return tuple(found)


def judged(
    model: LanguageModel,
    split: TokenSplit,
    job: Job,
    sinks: Sequence[Sink],
    what: str,
    tokens: int | None = None,
) -> Evaluation:
    """A model on a split, or on so many tokens of it, as the run of a job is judged."""
    run = job.run
    return evaluate(
        model,
        split,
        length=run.length,
        batch_size=run.batch_size // run.accumulate,
        tokens=tokens,
        advance=tell_phase(sinks, what, count_windows(split, run.length, tokens)),
        answers_only=run.answers_only,
    )


def _set_aside_what_is_lost(out: Path) -> None:
    """Set aside a trained model that no record can be made of any more, so that it is trained again.

    One that is damaged is mended from a checkpoint if there is one; its curve is not.
    """
    if not (out / "final").is_dir():
        return
    has_end = any(record["kind"] == "final" for record in read_metrics(out / "metrics.jsonl"))
    if not has_end or (final_damage(out) and not checkpoint_paths(out / "checkpoints")):
        set_aside(out / "final")


def tune(
    plan: Plan, out: Path, watcher: Watcher | None = None, reuse: Sequence[Path] = ()
) -> dict[str, Choice]:
    """Sweep the learning rate of every arm and keep the choice in OUT/tuned.json.

    A choice that was made stands: a run of a sweep that failed then and might succeed now does not
    change what finished runs were trained with.
    """
    watcher = watcher or Watcher()
    made = read_choices(out)
    jobs = [job for job in sweep_jobs(plan, out) if job.arm not in _standing(made)]
    if jobs:
        made = _keep_choices(out, _swept(plan, out, jobs, watcher, reuse))
    return {arm.name: made[arm.name] for arm in plan.arms}


def _swept(
    plan: Plan, out: Path, jobs: Sequence[Job], watcher: Watcher, reuse: Sequence[Path]
) -> dict[str, Choice]:
    """The best learning rates, with one more tried beyond an end that is best, as often as planned."""
    assert plan.sweep is not None
    records: list[Record] = []
    for _ in range(1 + plan.sweep.widen):
        take_over(jobs, reuse)
        watcher.stage("sweep", len(jobs))
        records += carry_out(jobs, watcher)
        jobs = wider_jobs(plan, out, chosen(records))
        if not jobs:
            break
    return chosen(records)


def _standing(made: Choices) -> dict[str, Choice]:
    return {arm: choice for arm, choice in made.items() if choice.learning_rate is not None}


def _keep_choices(out: Path, found: Choices) -> dict[str, Choice]:
    """Put choices beside those that stand, which another process may have made meanwhile."""
    with waiting(out / ".tuned.claim"):
        before = read_choices(out)
        made = {**before, **found, **_standing(before)}
        write_json(loose_path(out, "tuned"), choices_to_json(made))
        return made
