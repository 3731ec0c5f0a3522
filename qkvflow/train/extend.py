"""A run that has ended goes on to more steps.

The learning rate up to the old end stays what it was, and rises from there within a warm-up to that of
a run of the new length. So the longer run is a function of its settings, `continued` among them: it
ends with the same bytes, whether it was begun anew, went on after the old end, or was killed in
between. It is not the run that knew its length from the start, whose rate does not fall and rise in
between, unless the schedule is constant.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.yaml_files import recorded_run
from qkvflow.files import FileError, expanded, state_of
from qkvflow.train.optimizer import make_schedule
from qkvflow.train.resume import Saved, check_same_run, stage_of


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
