"""Compare models over paired seeds: sweep, runs, statistics, report.

    qkvflow experiment run --plan laptop --quick --out results/try     # a minute or two: does it work?
    qkvflow experiment run --plan laptop --out results/laptop
    qkvflow experiment run --plan laptop --match flops --reuse results/laptop --out results/laptop-flops

Without options, it runs the plan `seeds` in statistical_validation_results/: four models, five seeds,
width 256, 6 layers, 1000 steps of 8 x 128 characters of WikiText-2, which takes hours on two CPU cores.
The same command resumes an interrupted experiment; two processes with the same --out share the work.
"""

from dataclasses import dataclass
from typing import Annotated

from rich.console import Console

from qkvflow.cli.experiment.shared import ExperimentOptions
from qkvflow.cli.experiment_display import DRAWING, run_experiment, show_experiment
from qkvflow.config import ConfigError
from qkvflow.config.strict import Bound, bound_problems
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.report import title_of, write_report
from qkvflow.experiments.runner import prepare
from qkvflow.experiments.slurm import submit
from qkvflow.experiments.trial import trial_of
from qkvflow.progress import elapsed


@dataclass(frozen=True)
class Options(ExperimentOptions):
    """Options of `qkvflow experiment run`, and of `qkvflow experiment ablate`."""

    quick: bool = False
    """Run a trial of a minute or two to check that everything works: two seeds, a few steps, no sweep.
    Nothing can be concluded from its losses, as the report says."""
    title: str | None = None
    """Title of the report; None: that of the existing report, or the name of the directory."""
    slurm: Annotated[int, Bound("0 to 1,000 workers", 0, 1001)] = 0
    """Number of SLURM workers that share the runs (needs the extra `slurm`); 0: run in this process."""
    slurm_options: tuple[str, ...] = ()
    """Parameters passed to submitit, with --slurm: timeout_min=600 slurm_partition=long."""


def run(options: Options) -> int:
    """Run what is missing, then write and show the statistics, and write the page."""
    plan = options.changed_plan()
    plan = trial_of(plan) if options.quick else plan
    if options.slurm:
        return _submit(plan, options)
    console = Console()
    experiment = run_experiment(plan, options.out, console, options.reuse, options.reference)
    code = show_experiment(experiment, console)
    with elapsed(DRAWING):
        page, _ = write_report([experiment], options.title or title_of(options.out))
    print(f"The report with figures is {page}")
    return code


def _submit(plan: Plan, options: Options) -> int:
    if problems := bound_problems(options):
        raise ConfigError("The workers cannot be submitted:", problems)
    parameters = parse_parameters(options.slurm_options)
    prepare(plan, options.out, options.reference, options.reuse)
    jobs = submit(plan, options.out, options.slurm, parameters, reuse=options.reuse)
    print(f"Submitted: {', '.join(job.job_id for job in jobs)}. When they have finished, run")
    print("the same command without --slurm to see the results.")
    return 0


def parse_parameters(options: tuple[str, ...]) -> dict[str, int | str]:
    """Names and values; whole numbers are numbers."""
    parameters: dict[str, int | str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ConfigError("The workers cannot be submitted:", [f"{option!r} is not name=value."])
        parameters[name] = int(value) if value.isdigit() else value
    return parameters
