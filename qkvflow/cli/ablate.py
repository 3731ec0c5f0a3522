"""Change one choice of time_indexed_mlp at a time, over paired seeds, and see what it does.

    qkvflow ablate --out ablation_results
    qkvflow ablate --arms true_time gates_on_inputs gates_on_both gated_attention --out ablation_gates
    qkvflow ablate --arms shared true_time low_rank --steps 3000 --seeds 11 12 13 --out ablation_long

By default six arms about time: gates that are told the true time, a constant one, that of another
layer, or a vector of their own for each layer; plain sharing; gates with euler steps. It takes hours
on two cores, and goes on where it stopped.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from qkvflow.cli.experiment_display import run_experiment, show_experiment
from qkvflow.experiments.plan import read_plan
from qkvflow.experiments.present import write_report

NAME = "ablation"
TIME = ("true_time", "constant_time", "shuffled_time", "layer_vector", "shared", "hybrid")


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow ablate`."""

    arms: tuple[str, ...] = ()
    """Arms of the plan; qkvflow/experiments/plans/ablation.yaml lists them. Of another plan: all."""
    reference: str | None = None
    """Arm that the others are compared with; None: that of the directory, or else of the plan."""
    steps: int | None = None
    """Steps of a run; None: the plan's."""
    seeds: tuple[int, ...] = ()
    """Seeds of the runs by their numbers, 10 being one seed; the plan's where none is named."""
    plan: str = NAME
    """The plan, or a YAML file like it."""
    reuse: tuple[Path, ...] = ()
    """Directories of other experiments, whose finished runs of the same settings are not run again."""
    title: str = "Ablation"
    """Heading of the report."""
    out: Path = Path("ablation_results")
    """Directory of the experiment; started again, it goes on where it stopped."""


def run(options: Options) -> int:
    """Run what is missing, then write and show the statistics, and draw the figures."""
    plan, console = read_plan(options.plan), Console()
    arms = options.arms or (TIME if options.plan == NAME else ())
    plan = plan.only(arms) if arms else plan
    plan = plan if options.reference is None else plan.against(options.reference)
    plan = plan.over(steps=options.steps, seeds=options.seeds)
    experiment = run_experiment(plan, options.out, console, options.reuse, options.reference)
    code = show_experiment(experiment, console)
    page, _ = write_report([experiment], options.title)
    print(f"The page with the figures is {page}")
    return code
