"""Arms that go on from the runs of another experiment: of every seed the run of the same seed."""

import dataclasses
from pathlib import Path

from qkvflow.config import ConfigError, RunConfig, nearest
from qkvflow.experiments.plan import Arm, ArmStart
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Finished
from qkvflow.experiments.store import read_record, recorded_plan
from qkvflow.files import FileError
from qkvflow.train.start import settings_of_start


def started_run(arm: Arm, start: ArmStart, seed: int, out: Path) -> RunConfig:
    """The run of an arm of the experiment in `out` with a seed, once its base is known.

    Where it has finished, its base need not be there any more.

    Raises:
        ConfigError: there is no such base, or it cannot be gone on from like this.
    """
    run = dataclasses.replace(arm.run, seed=seed)
    final = start.place(out, seed) / "final"
    if final.is_dir():
        found = settings_of_start(
            str(final), start.depth, run.architecture.adapter, start.train, start.also
        )
        return dataclasses.replace(run, **found)
    record = read_record(out, f"runs/{arm.name}/seed-{seed}")
    done = run_of(record) if isinstance(record, Finished) else None
    if done is None:
        raise ConfigError("This arm has no start:", [_what_is_missing(start, seed, out)])
    own = ("model", "tokenizer", "architecture", "start")
    return dataclasses.replace(run, **{name: getattr(done, name) for name in own})


def _what_is_missing(start: ArmStart, seed: int, out: Path) -> str:
    """Why there is no base: no experiment, no such arm, no such seed."""
    place = start.place(out, seed)
    directory, arm = place.parents[2], place.parent.name
    try:
        plan = recorded_plan(directory)
    except FileError as error:
        return f"start: {error}"
    if arm not in plan.names:
        return f"start: {directory} has no arm {arm!r}. {nearest(arm, plan.names)}"
    return f"start: {place} has no trained model; run that experiment with seed {seed} first."
