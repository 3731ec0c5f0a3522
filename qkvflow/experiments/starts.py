"""Arms that go on from the runs of another experiment: of every seed the run of the same seed."""

import dataclasses
from pathlib import Path

from qkvflow.config import ConfigError, RunConfig, nearest
from qkvflow.experiments.plan import Arm, ArmStart
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Finished
from qkvflow.experiments.store import read_record, recorded_plan
from qkvflow.files import FileError
from qkvflow.models.named import FLOW
from qkvflow.models.paths import arrays_of
from qkvflow.models.storage import arrays_digest
from qkvflow.train import load_model, read_tokenizer
from qkvflow.train.start import starting_shapes, trained_paths


def started_run(arm: Arm, start: ArmStart, seed: int, out: Path) -> RunConfig:
    """The run of an arm of the experiment in `out` with a seed, once its base is known.

    Where it has finished, its base need not be there any more.

    Raises:
        ConfigError: there is no such base, or it cannot be gone on from like this.
    """
    run = dataclasses.replace(arm.run, seed=seed)
    final = start.place(out, seed) / "final"
    if final.is_dir():
        return _from(run, start, str(final))
    record = read_record(out, f"runs/{arm.name}/seed-{seed}")
    done = run_of(record) if isinstance(record, Finished) else None
    if done is None:
        raise ConfigError("This arm has no start:", [_what_is_missing(start, seed, out)])
    own = ("model", "tokenizer", "architecture", "start")
    return dataclasses.replace(run, **{name: getattr(done, name) for name in own})


def _from(run: RunConfig, start: ArmStart, checkpoint: str) -> RunConfig:
    base = load_model(checkpoint)
    model = starting_shapes(base, start.depth, run.architecture.adapter, checkpoint)
    found = start.of(checkpoint, arrays_digest(arrays_of(base)))
    trained_paths(model, found)
    return dataclasses.replace(
        run,
        model=FLOW if model.preset is None else model.preset.name,
        tokenizer=read_tokenizer(checkpoint).kind,
        architecture=model.config,
        start=found,
    )


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
