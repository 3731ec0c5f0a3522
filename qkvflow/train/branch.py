"""Runs of several lengths from one: a branch leaves a long run in its stable phase and decays.

Batches, dropout and depths are functions of (seed, step), and until the learning rate begins to fall a
run does not know how long it is. So a branch ends with the bytes of a run of its length that was
trained from the start, for the price of its last steps.
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
from qkvflow.train.resume import check_same_run
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
            f"optimizer.schedule is {optimizer.schedule}, without a phase in which the learning rate "
            "stays the same and then falls. Train the run with --optimizer.schedule wsd."
        )
        raise ConfigError("This run has no stable phase to branch from:", [problem])
    return warmup + max(1, math.ceil((at - warmup) / (1 - decay)))


def _difference(long: RunConfig, short: RunConfig, at: int) -> str | None:
    """Why two runs do not have their first steps in common."""
    last = min(long.steps, short.steps)
    if not 0 < at <= last:
        return f"expected a step from 1 to {last}: it has {long.steps} and the branch {short.steps}."
    differ = np.flatnonzero(_rates(long, at) != _rates(short, at))
    if not differ.size:
        return None
    return (
        f"the learning rate of step {differ[0] + 1} is another one in a run of {long.steps} steps than "
        f"in one of {short.steps} (schedule {long.optimizer.schedule}). Name a step before that."
    )


def _rates(run: RunConfig, steps: int) -> np.ndarray:
    """The learning rates of the first steps of a run."""
    return np.asarray(make_schedule(run.optimizer, run.steps, run.continued)(np.arange(steps)))


def _others(source: Path) -> str:
    """The steps of which a run has checkpoints, and how it would have more."""
    paths = reversed(checkpoint_paths(source / "checkpoints"))
    steps = ", ".join(str(int(path.name.removeprefix("step-"))) for path in paths)
    return f"; it has {steps or 'none'}. A run keeps more of them with --keep, say 100"
