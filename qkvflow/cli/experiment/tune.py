"""Sweep the learning rate of every arm of a plan, and other settings that it lists; keep the best.

    qkvflow experiment tune --plan laptop --out results/laptop

Every arm is tried with the same learning rates for the same small number of steps, on a seed that no
other run uses, and judged by its valid loss. The choices are written to OUT/tuned.json, from which
`qkvflow experiment run` reads them; delete that file to tune again.
"""

from dataclasses import dataclass

from rich.console import Console

from qkvflow.cli.experiment.shared import ExperimentOptions
from qkvflow.cli.experiment_display import CHECKING, Bars, settings_table, tuned_table
from qkvflow.config import ConfigError
from qkvflow.experiments.runner import prepare, tune
from qkvflow.progress import elapsed
from qkvflow.report.table import to_terminal


@dataclass(frozen=True)
class Options(ExperimentOptions):
    """Options of `qkvflow experiment tune`."""


def run(options: Options) -> None:
    """Sweep and show the table."""
    console = Console()
    plan = options.changed_plan()
    if plan.sweep is None:
        raise ConfigError(
            f"{options.plan} has no sweep:", ["add one with learning_rates, steps and seed."]
        )
    with elapsed(CHECKING):
        prepare(plan, options.out, options.reference, options.reuse)
    with Bars(console) as bars:
        choices = tune(plan, options.out, bars, options.reuse)
    bars.tell()
    for table in (tuned_table(choices), *settings_table(choices)):
        console.print(to_terminal(table))
    console.print(f"Written: {options.out / 'tuned.json'}", markup=False)
