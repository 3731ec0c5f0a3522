"""Compare models over paired seeds: sweep, runs, statistics, page.

    qkvflow experiment run --plan laptop --quick --out results/try     # a minute or two: does it work?
    qkvflow experiment run --plan laptop --out results/laptop
    qkvflow experiment run --plan laptop --match flops --reuse results/laptop --out results/laptop-flops

With no options this is the seed documents' setting (width 256, 6 layers, 1000 steps of 8 x 128
characters of WikiText-2, four models, five seeds), in statistical_validation_results/. It takes hours
on two cores. Killed and started again, it goes on; started twice, the two share the work.
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
    """Trial of a minute or two, to check that everything works: two seeds, a few steps, no sweep. The
    page says that nothing can be concluded from it."""
    title: str | None = None
    """Heading of the page; None: that of the existing page, or the name of the directory."""
    slurm: Annotated[int, Bound("0 to 1,000 workers", 0, 1001)] = 0
    """Number of SLURM workers that share the runs (needs the extra slurm); 0: run here."""
    slurm_options: tuple[str, ...] = ()
    """Parameters for submitit, as name=value: timeout_min=600 slurm_partition=long."""


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
    print(f"The page with the figures is {page}")
    return code


def _submit(plan: Plan, options: Options) -> int:
    if problems := bound_problems(options):
        raise ConfigError("The workers cannot be submitted:", problems)
    parameters = parse_parameters(options.slurm_options)
    prepare(plan, options.out, options.reference, options.reuse)
    jobs = submit(plan, options.out, options.slurm, parameters, reuse=options.reuse)
    print(f"Submitted: {', '.join(job.job_id for job in jobs)}. The same command without --slurm,")
    print("started when they have ended, shows what they found.")
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
