"""Show what each arm of an experiment costs: parameters, operations, memory, time, time to a loss.

    qkvflow experiment cost --plan laptop
    qkvflow experiment cost --plan laptop --timed-steps 10
    qkvflow experiment cost --results results/laptop --loss 1.6

For a plan, parameters and operations are counted, which takes seconds. --timed-steps adds the memory
that the compiler plans for a training step, and the measured time per step. For finished runs in
--results, all costs are known, including the time to reach a loss.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from qkvflow.cli.experiment.shared import PlanOptions
from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.strict import Bound, bound_problems
from qkvflow.data import TokenDataset
from qkvflow.experiments import tables
from qkvflow.experiments.jobs import Texts
from qkvflow.experiments.matching import matched_run
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.recording import costs_of
from qkvflow.experiments.records import Costs, Finished, by_arm
from qkvflow.experiments.results import read_experiment
from qkvflow.experiments.summary import first_below
from qkvflow.files import write_json
from qkvflow.progress import elapsed
from qkvflow.report.table import Table, to_terminal
from qkvflow.train.program import Program


@dataclass(frozen=True)
class Options(PlanOptions):
    """Options of `qkvflow experiment cost`."""

    results: Path | None = None
    """Directory of a finished experiment to show the costs of, instead of a plan."""
    loss: float | None = None
    """Valid loss in nats per token, to show the seconds until runs reached it; needs --results."""
    timed_steps: Annotated[int, Bound("0 to 10,000", 0, 10_001)] = 0
    """Number of training steps to time for each arm of a plan, after two warm-up steps; 0: only count
    parameters and operations."""
    json: Path | None = None
    """JSON file to also write the rows of the table to; None: no file."""

    @property
    def names_a_plan(self) -> bool:
        """Whether an option about plans is not at its default."""
        return any(getattr(self, f.name) != f.default for f in dataclasses.fields(PlanOptions))


@dataclass(frozen=True)
class Row:
    """What an arm costs."""

    costs: Costs
    ms_per_step: float | None = None
    """None where no step was timed."""
    seconds_to_loss: float | None = None
    """The median over its runs, if all of them reached the loss."""
    runs_that_reached_it: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values; None for what was not asked for."""
        row = dataclasses.asdict(self)
        return {**row.pop("costs"), **row}


def of_runs(records: Sequence[Finished], loss: float | None) -> Row:
    """What the finished runs of an arm cost."""
    speed = float(np.median([record.ms_per_step for record in records]))
    if loss is None:
        return Row(records[0].costs, speed)
    points = [first_below(loss, record) for record in records]
    seconds = [point.seconds for point in points if point is not None]
    median = float(np.median(seconds)) if len(seconds) == len(points) else None
    return Row(records[0].costs, speed, median, f"{len(seconds)} of {len(points)}")


def counted(run: RunConfig, data: TokenDataset) -> Row:
    """Parameters and operations of a run; nothing is compiled."""
    return Row(costs_of(run, data.tokenizer.vocab_size))


def measured(run: RunConfig, data: TokenDataset, steps: int) -> Row:
    """What a run would cost; time is the median of a few steps, after two to warm up."""
    program = Program(run, data)
    program.check_fits()
    costs = costs_of(run, data.tokenizer.vocab_size)
    costs = dataclasses.replace(costs, memory_bytes=program.checked_memory_bytes())
    seconds = []
    for step in range(steps + 2):
        begin = time.perf_counter()
        float(program.step(step).loss)
        seconds.append(time.perf_counter() - begin)
    return Row(costs, 1e3 * float(np.median(seconds[2:])))


def run(options: Options) -> None:
    """Print the table."""
    if problems := _problems(options):
        raise ConfigError("The costs cannot be computed:", problems)
    if options.results is None:
        rows = _rows_of_plan(options.changed_plan(), options.timed_steps)
    else:
        arms = by_arm(read_experiment(options.results).records)
        rows = {arm: of_runs(runs, options.loss) for arm, runs in arms.items()}
    Console().print(to_terminal(_table(rows, next(iter(rows)), options.loss)))
    if options.json is not None:
        write_json(options.json, {arm: row.to_json() for arm, row in rows.items()})


def _problems(options: Options) -> list[str]:
    problems = bound_problems(options)
    if options.loss is not None and options.results is None:
        problems.append("--loss needs finished runs; name their directory with --results.")
    if options.results is not None and options.names_a_plan:
        problems.append("use either --results or the options of a plan, not both.")
    return problems


def _rows_of_plan(plan: Plan, steps: int) -> dict[str, Row]:
    if begun := [arm.name for arm in plan.arms if arm.start is not None]:
        problem = f"{', '.join(begun)} start from another experiment; name their runs with --results."
        raise ConfigError("The costs cannot be computed:", [problem])
    texts, rows = Texts(), {}
    for arm in plan.arms:
        data = texts.of(arm.run)
        with elapsed(f"{arm.name}: {'compiling, then timing steps' if steps else 'counting'}"):
            run = matched_run(plan, arm, data.tokenizer.vocab_size)
            rows[arm.name] = measured(run, data, steps) if steps else counted(run, data)
    return rows


def _table(rows: dict[str, Row], reference: str, loss: float | None) -> Table:
    table = tables.costs({arm: (row.costs, row.ms_per_step) for arm, row in rows.items()}, reference)
    left_out, note = {"compression"}, ""
    if not any(row.ms_per_step for row in rows.values()):
        left_out |= {"memory, MB", "ms per step"}
        note = "Operations: forward pass, and whole training. --timed-steps 10 adds memory and time."
    table = table.only(*(head for head in table.heads if head not in left_out), note=note)
    if loss is None:
        return table
    reached = tuple(
        (arm, tables.number(row.seconds_to_loss, ".0f"), row.runs_that_reached_it or "")
        for arm, row in rows.items()
    )
    return table.beside(Table(("model", f"seconds to {loss:g}", "runs"), reached))
