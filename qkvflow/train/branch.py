"""Runs of other lengths from one: branches, which end sooner, and runs that go on after their end.

Batches, dropout and depths are functions of (seed, step), and until the learning rate begins to fall a
run does not know how long it is. So a branch, which leaves a run in its stable phase, ends with the
bytes of a run of its length that was trained from the start, for the price of its last steps.

Where a run goes on, the learning rate up to the old end stays what it was, and rises from there within
a warm-up to that of a run of the new length. So the longer run is a function of its settings,
`continued` among them: it ends with the same bytes, whether it was begun anew, went on after the old
end, or was killed in between. It is not the run that knew its length from the start, whose rate does
not fall and rise in between, unless the schedule is constant.
"""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.yaml_files import recorded_run
from qkvflow.files import FileError, building, expanded, state_of
from qkvflow.lock import locked
from qkvflow.train.checkpoints import check_checkpoint, write_record
from qkvflow.train.optimizer import WSD_DECAY, make_schedule, warmup_steps
from qkvflow.train.resume import Saved, check_same_run, stage_of
from qkvflow.train.run_files import checkpoint_paths


def branch_run(source: str | Path, at: int, steps: int | None = None) -> RunConfig:
    """The run that leaves another one after a step, and then decays.

    Args:
        source: directory of a run, which need not be finished.
        at: steps that both have in common.
        steps: of the branch; None: as many as let it decay at once.

    Raises:
        ConfigError: the learning rates up to that step depend on the length of the run.
    """
    source = expanded(source)
    if not (source / "run.yaml").is_file():
        raise FileError(f"{source} {state_of(source, 'holds no run.yaml')}: name a run to branch from.")
    long = recorded_run(source / "run.yaml")
    warmup = warmup_steps(long.optimizer, long.steps)  # whatever the branch's length
    begun = replace(long, optimizer=replace(long.optimizer, warmup=warmup))
    short = replace(begun, steps=_shortest(begun, warmup, at) if steps is None else steps)
    problem = _difference(long, short, at)
    if problem is not None:
        raise ConfigError(f"There is no branch of {source} at step {at}:", [problem])
    return short


def begin_branch(source: str | Path, at: int, run: RunConfig, out: str | Path) -> None:
    """Put the checkpoint of another run, and its curve, where `train` goes on from it.

    Nothing is done where the branch has begun before.

    Raises:
        FileError: the other run has no good checkpoint of that step, or other settings.
    """
    source, out = expanded(source), expanded(out)
    found = source / "checkpoints" / f"step-{at:08d}"
    if checkpoint_paths(out / "checkpoints") or (out / "final").exists():
        return
    if not found.is_dir():
        raise FileError(f"{source} has no checkpoint of step {at}{_others(source)}.")
    record = check_checkpoint(found)
    check_same_run(found, branch_run(source, at, run.steps), run)
    with locked(out), building(out / "checkpoints" / found.name) as directory:
        shutil.copyfile(source / "metrics.jsonl", out / "metrics.jsonl")
        shutil.copytree(found, directory, dirs_exist_ok=True)
        write_record(directory, {**record, "run": run.to_dict()})


def _shortest(run: RunConfig, warmup: int, at: int) -> int:
    """Steps of the run of this kind whose learning rate falls right after a step."""
    optimizer = run.optimizer
    decay = float(optimizer.schedule_options.get("decay", WSD_DECAY))
    if optimizer.schedule != "wsd" or decay >= 1:
        problem = (
            f"optimizer.schedule is {optimizer.schedule}, which has no phase of constant learning rate "
            "before a decay. Train the run with --optimizer.schedule wsd."
        )
        raise ConfigError("This run has no stable phase to branch from:", [problem])
    return warmup + max(1, math.ceil((at - warmup) / (1 - decay)))


def _difference(long: RunConfig, short: RunConfig, at: int) -> str | None:
    """Why two runs do not have their first steps in common."""
    last = min(long.steps, short.steps)
    if not 0 < at <= last:
        return f"expected a step from 1 to {last}: the run has {long.steps}, the branch {short.steps}."
    differ = np.flatnonzero(_rates(long, at) != _rates(short, at))
    if not differ.size:
        return None
    return (
        f"the learning rate of step {differ[0] + 1} differs between runs of {long.steps} and "
        f"{short.steps} steps (schedule {long.optimizer.schedule}). Name an earlier step."
    )


def _rates(run: RunConfig, steps: int) -> np.ndarray:
    """The learning rates of the first steps of a run."""
    return np.asarray(make_schedule(run.optimizer, run.steps, run.continued)(np.arange(steps)))


def _others(source: Path) -> str:
    """The steps of which a run has checkpoints, and how it would have more."""
    paths = reversed(checkpoint_paths(source / "checkpoints"))
    steps = ", ".join(str(int(path.name.removeprefix("step-"))) for path in paths)
    return f"; it has {steps or 'none'}. A run keeps more of them with --keep, say 100"


def continued_run(out: str | Path, steps: int) -> RunConfig:
    """The run in a directory with more steps; the same if it was continued to so many before.

    Raises:
        FileError: there is no run.
        ConfigError: it has as many steps or more.
    """
    out = expanded(out)
    if not (out / "run.yaml").is_file():
        raise FileError(f"{out} {state_of(out, 'holds no run.yaml')}: name the directory of a run.")
    run = recorded_run(out / "run.yaml")
    if run.continued and run.steps == steps:
        return run
    if steps <= run.steps:
        problem = f"continue_to is {steps} and this run has {run.steps} steps; expected more."
        raise ConfigError(f"The run in {out} cannot go on:", [problem])
    return replace(run, steps=steps, continued=(*run.continued, run.steps))


def ended_stage(out: Path, run: RunConfig) -> RunConfig | None:
    """The run of the trained model in a directory, if it is one from which this run goes on.

    Raises:
        FileError: it is of another run.
    """
    if not run.continued or not (out / "final").is_dir():
        return None
    there = recorded_run(out / "run.yaml")
    stage = stage_of(run, there.steps)
    if stage is not None:
        check_same_run(out / "final", there, stage)
    return stage


def keep_stage(out: Path, stage: RunConfig, saved: Saved | None) -> None:
    """Rename the trained model of an earlier end, out/final, to out/final-STEPS.

    Raises:
        FileError: there is no checkpoint from which the run could go on.
    """
    if saved is None:
        raise FileError(
            f"{out} has no checkpoint to go on from, only the trained model. Adapt that with qkvflow "
            f"finetune --checkpoint {out}, or train to more steps in another directory."
        )
    (out / "final").rename(out / f"final-{stage.steps}")


def rate_notes(run: RunConfig, stage: RunConfig) -> list[str]:
    """A sentence on the learning rate where a run goes on, unless it stays as it was."""
    schedule = make_schedule(run.optimizer, run.steps, run.continued)
    rates = np.asarray(schedule(np.arange(run.steps)))
    last, highest = rates[stage.steps - 1], rates[stage.steps :].max()
    if highest <= last:
        return []
    return [
        f"The learning rate was {last:.2g} when the run ended after {stage.steps} steps. It rises to "
        f"{highest:.2g} again before it falls. In a run of {run.steps} steps from the start it does "
        "not fall in between, and the loss may end lower."
    ]
