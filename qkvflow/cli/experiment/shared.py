"""The options that the experiment commands share: one name, one meaning, one rule."""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.experiments.plan import Match, Plan, read_plan

OUT = Path("statistical_validation_results")
"""Where the seed documents look for an experiment."""


@dataclass(frozen=True)
class PlanOptions:
    """Which plan is meant, and how it is changed."""

    plan: str = "seeds"
    """Name of a plan (seeds, laptop, main, main_large, main_embedded, main_subword, sizes,
    loops, ablation, elastic, elastic_long, elastic_bases, elastic_adaptation, recipe, recipe_added,
    recipe_models, state_space, state_space_search, time, integrators, regularise, hops,
    adaptation_bases, adaptation), or a YAML file of the same form."""
    arms: tuple[str, ...] = ()
    """Arms of the plan to run; empty: all."""
    reference: str | None = None
    """Arm that all others are compared with and, with --match, matched to. None: the reference of the
    experiment in --out, otherwise that of the plan."""
    match: Match = "steps"
    """What every arm shares with the reference: steps, parameters (by changing the width) or flops
    (operations of the whole training, by changing the number of steps). A small reference makes
    matched runs cheaper."""
    steps: int | None = None
    """Training steps per run; None: as in the plan."""
    seeds: tuple[int, ...] = ()
    """Seeds to run, as a list: 10 means the single seed 10, not ten seeds. Empty: as in the plan."""

    def changed_plan(self) -> Plan:
        """The plan, changed as these options say."""
        plan = read_plan(self.plan)
        if self.reference is not None:
            plan = plan.with_reference(self.reference)
        plan = plan.matched(self.match)
        if self.arms:
            plan = plan.with_arms(self.arms)
        if self.steps is not None:
            plan = plan.with_steps(self.steps)
        return plan.with_seeds(self.seeds) if self.seeds else plan


@dataclass(frozen=True)
class ExperimentOptions(PlanOptions):
    """A plan, and the directory in which it is run."""

    reuse: tuple[Path, ...] = ()
    """Directories of other experiments, whose finished runs are reused if their settings are
    identical."""
    out: Path = OUT
    """Output directory of the experiment; an unfinished experiment there is resumed."""
