"""Compare models over paired seeds: sweep, runs, statistics.

    qkvflow validate --plan laptop --out results/laptop

With no options this is the first version's setting (width 256, 6 layers, 1000 steps of 8 x 128
characters of WikiText-2, four models, five seeds), in statistical_validation_results/. It takes hours
on two cores. Killed and started again, it goes on; started twice, the two share the work.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from qkvflow.cli.experiment_display import run_experiment, show_experiment
from qkvflow.config import ConfigError
from qkvflow.experiments.plan import Equal, Plan, choose
from qkvflow.experiments.reuse import check_others
from qkvflow.experiments.runner import prepare
from qkvflow.experiments.slurm import submit


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow validate`."""

    plan: str = "seeds"
    """seeds, laptop, ablation, gates, state_space, long, or a YAML file like theirs."""
    arms: tuple[str, ...] = ()
    """Arms of the plan to run; all where none is named."""
    reference: str | None = None
    """Arm that the others are compared with, and made equal to by --equal.

    None: that of the directory, or else of the plan.
    """
    equal: Equal = "steps"
    """What arms have in common with the reference: steps, or also parameters or training FLOPs.

    For parameters they are widened or narrowed, for flops they take more or fewer steps. What is made
    equal to a small arm takes less time than what is made equal to a large one.
    """
    reuse: tuple[Path, ...] = ()
    """Directories of other experiments, whose finished runs of the same settings are not run again."""
    slurm: int = 0
    """Submit so many workers that share the runs to SLURM (needs qkvflow[slurm]), and return."""
    slurm_options: tuple[str, ...] = ()
    """Of submitit, as name=value: timeout_min=600 slurm_partition=long."""
    out: Path = Path("statistical_validation_results")
    """Directory of the experiment; started again, it goes on where it stopped."""


def run(options: Options) -> int:
    """Run what is missing, then write and show the statistics."""
    plan = choose(options.plan, arms=options.arms, reference=options.reference, equal=options.equal)
    if options.slurm:
        return _submit(plan, options)
    console = Console()
    experiment = run_experiment(plan, options.out, console, options.reuse, options.reference)
    code = show_experiment(experiment, console)
    print(f"For the page with figures: qkvflow report --results {options.out}")
    return code


def _submit(plan: Plan, options: Options) -> int:
    if options.slurm < 0:
        problem = f"slurm is {options.slurm}; expected how many workers."
        raise ConfigError("The workers cannot be submitted:", [problem])
    parameters = parse_parameters(options.slurm_options)
    check_others(options.reuse)
    prepare(plan, options.out, options.reference)
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
