"""What the arms of an experiment cost: parameters, operations, memory, time, time to a loss.

    qkvflow experiment cost --plan laptop
    qkvflow experiment cost --results results/laptop --loss 1.6

Parameters and operations are counted, memory is what the compiler plans for a step. Of the runs in
--results all is known, also the time to a loss; of a plan a few steps are measured now.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from qkvflow.cli.experiment.shared import PlanOptions
from qkvflow.config import ConfigError, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.experiments.matching import matched_run
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record, costs
from qkvflow.experiments.results import Experiment, read_experiment
from qkvflow.experiments.summary import first_below, megabytes
from qkvflow.files import write_json
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data


@dataclass(frozen=True)
class Options(PlanOptions):
    """Options of `qkvflow experiment cost`."""

    results: Path | None = None
    """Directory of an experiment that has been run, in place of a plan."""
    loss: float | None = None
    """Valid loss to which the time is asked for; needs --results."""
    timed_steps: int = 10
    """Steps that are timed of each arm of a plan, after two to warm up."""
    json: Path | None = None
    """File to write the rows of the table to; None: they are only shown."""

    @property
    def names_a_plan(self) -> bool:
        """Whether an option about plans is not at its default."""
        return any(getattr(self, f.name) != f.default for f in dataclasses.fields(PlanOptions))


def of_runs(records: Sequence[Record], loss: float | None) -> dict[str, Any]:
    """What the finished runs of an arm cost."""
    names = ("parameters", "time_network_parameters", "flops_per_token", "training_flops")
    row = {name: records[0][name] for name in (*names, "memory_bytes")}
    row["ms_per_step"] = float(np.median([record["ms_per_step"] for record in records]))
    if loss is not None:
        looks = [first_below(loss, record) for record in records]
        seconds = [look[1] for look in looks if look is not None]
        row["seconds_to_loss"] = float(np.median(seconds)) if len(seconds) == len(looks) else None
        row["runs_that_reached_it"] = f"{len(seconds)} of {len(looks)}"
    return row


def measured(run: RunConfig, data: TokenDataset, steps: int) -> dict[str, Any]:
    """What a run would cost; time is the median of a few steps, after two to warm up."""
    program = Program.of(run, data)
    known = {**costs(run, data.tokenizer.vocab_size), "memory_bytes": program.memory_bytes}
    seconds = []
    for step in range(steps + 2):
        begin = time.perf_counter()
        float(program.step(step).loss)
        seconds.append(time.perf_counter() - begin)
    return {**known, "ms_per_step": 1e3 * float(np.median(seconds[2:]))}


def run(options: Options) -> None:
    """Print the table."""
    if problems := _problems(options):
        raise ConfigError("The costs cannot be told:", problems)
    if options.results is None:
        rows = _rows_of_plan(options.changed_plan(), options.timed_steps)
    else:
        rows = _rows_of_results(read_experiment(options.results), options.loss)
    Console().print(_table(rows, options.loss))
    if options.json is not None:
        write_json(options.json, rows)


def _problems(options: Options) -> list[str]:
    problems = []
    if options.loss is not None and options.results is None:
        problems.append("the time to a loss needs finished runs; name them with --results.")
    if options.timed_steps < 1:
        problems.append(f"timed_steps is {options.timed_steps}; expected at least 1.")
    if options.results is not None and options.names_a_plan:
        problems.append("name a plan and what is changed of it, or --results, not both.")
    return problems


def _rows_of_plan(plan: Plan, steps: int) -> dict[str, dict[str, Any]]:
    data = open_data(plan.arms[0].run)
    return {
        arm.name: measured(matched_run(plan, arm, data.tokenizer.vocab_size), data, steps)
        for arm in track(plan.arms, "arms", transient=True)
    }


def _rows_of_results(experiment: Experiment, loss: float | None) -> dict[str, dict[str, Any]]:
    finished = [record for record in experiment.records if record["status"] == "finished"]
    arms = dict.fromkeys(record["arm"] for record in finished)
    return {arm: of_runs([r for r in finished if r["arm"] == arm], loss) for arm in arms}


def _table(rows: dict[str, dict], loss: float | None) -> Table:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    headings = ["parameters", "time networks", "MFLOP/token", "training FLOP", "MB", "ms/step"]
    if loss is not None:
        headings += [f"s to {loss:g}", "runs"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for arm, row in rows.items():
        cells = [
            f"{row['parameters']:,}",
            f"{row['time_network_parameters']:,}",
            f"{row['flops_per_token'] / 1e6:.3f}",
            f"{row['training_flops']:.3g}",
            megabytes(row["memory_bytes"]),
            f"{row['ms_per_step']:.0f}",
        ]
        if loss is not None:
            seconds = row["seconds_to_loss"]
            cells += ["" if seconds is None else f"{seconds:.0f}", row["runs_that_reached_it"]]
        table.add_row(arm, *cells)
    return table
