"""Sweep the learning rate of every arm of an experiment, and keep the best of each.

    qkvflow tune --plan laptop --out results/laptop

Every arm is tried with the same learning rates, for the same few steps, on a seed that is not used
again; the valid split decides. The choice is in OUT/tuned.json, from which `qkvflow validate` takes it;
it stands until that file is removed.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from qkvflow.cli.experiment_display import Bars, tuned_table
from qkvflow.config import ConfigError
from qkvflow.experiments.plan import Equal, choose
from qkvflow.experiments.reuse import check_others
from qkvflow.experiments.runner import prepare, tune
from qkvflow.report.table import to_terminal


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow tune`."""

    plan: str
    """seeds, laptop, ablation, gates, state_space, or a YAML file like theirs."""
    out: Path
    """Directory of the experiment; started again, it goes on where it stopped."""
    arms: tuple[str, ...] = ()
    """Arms of the plan to sweep; all where none is named."""
    reference: str | None = None
    """As for `qkvflow validate`: the arm that others are made equal to by --equal."""
    equal: Equal = "steps"
    """As for `qkvflow validate`: steps, or also parameters or training FLOPs."""
    reuse: tuple[Path, ...] = ()
    """Directories of other experiments, whose finished runs of the same settings are not run again."""


def run(options: Options) -> None:
    """Sweep and show the table."""
    console = Console()
    plan = choose(options.plan, arms=options.arms, reference=options.reference, equal=options.equal)
    if plan.sweep is None:
        raise ConfigError(
            f"{options.plan} has no sweep:", ["name learning_rates, steps and seed there."]
        )
    check_others(options.reuse)
    data = prepare(plan, options.out, options.reference)
    with Bars(console) as bars:
        choices = tune(plan, options.out, data, bars, options.reuse)
    console.print(to_terminal(tuned_table(choices)))
    console.print(f"Written: {options.out / 'tuned.json'}")
