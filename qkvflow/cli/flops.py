"""What the arms of an experiment cost: parameters, operations, memory, time, time to a loss.

    qkvflow flops --plan laptop
    qkvflow flops --plan laptop --results results/laptop --loss 1.6

Parameters and operations are counted, memory is what the compiler plans for a step. Milliseconds a step
and the time to a loss come from the runs in --results; without them a few steps are measured now.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from qkvflow.config import ConfigError, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.experiments.matching import matched_run
from qkvflow.experiments.plan import read_plan
from qkvflow.experiments.records import Record, costs, write_json
from qkvflow.experiments.results import read_experiment
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow flops`."""

    plan: str = "seeds"
    """seeds, laptop, ablation, long, or a YAML file like theirs."""
    results: Path | None = None
    """Directory of the experiment's runs."""
    loss: float | None = None
    """Valid loss that the time is asked for; needs --results."""
    steps: int = 10
    """Steps that are measured of an arm without runs."""
    out: Path | None = None
    """JSON file to write."""


def time_to(loss: float, record: Record) -> float | None:
    """Seconds of training until the valid loss was first at most this."""
    return next((seconds for _, seconds, seen in record["curve"] if seen <= loss), None)


def measured_milliseconds(run: RunConfig, data: TokenDataset, steps: int) -> float:
    """The median of a few steps, after two to warm up."""
    program = Program.of(run, data)
    program.compile()
    seconds = []
    for step in range(steps + 2):
        begin = time.perf_counter()
        float(program.step(step).loss)
        seconds.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(seconds[2:]))


def run(options: Options) -> None:
    """Print the table."""
    if options.loss is not None and options.results is None:
        raise ConfigError("The time to a loss is not known:", ["name finished runs with --results."])
    if options.steps < 1:
        raise ConfigError("Nothing can be measured:", [f"steps is {options.steps}; at least 1."])
    plan = read_plan(options.plan)
    data = open_data(plan.arms[0].run)
    records = [] if options.results is None else read_experiment(options.results).records
    rows: dict[str, dict[str, object]] = {}
    for arm in track(plan.arms, "arms", transient=True):
        run_of_arm = matched_run(plan, arm, data.tokenizer.vocab_size)
        finished = [r for r in records if r["arm"] == arm.name and r["status"] == "finished"]
        if finished:
            speed = float(np.median([record["ms_per_step"] for record in finished]))
        else:
            speed = measured_milliseconds(run_of_arm, data, options.steps)
        rows[arm.name] = {**costs(run_of_arm, data.tokenizer.vocab_size), "ms_per_step": speed}
        if options.loss is not None:
            reached = [time_to(options.loss, record) for record in finished]
            known = [seconds for seconds in reached if seconds is not None]
            rows[arm.name] |= {
                "seconds_to_loss": float(np.median(known)) if known else None,
                "runs_that_reached_it": f"{len(known)} of {len(reached)}",
            }
    Console().print(_table(rows, options.loss))
    if options.out is not None:
        write_json(options.out, rows)


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
            f"{row['memory_bytes'] / 1e6:.0f}",
            f"{row['ms_per_step']:.0f}",
        ]
        if loss is not None:
            seconds = row["seconds_to_loss"]
            cells += ["never" if seconds is None else f"{seconds:.0f}", row["runs_that_reached_it"]]
        table.add_row(arm, *cells)
    return table
