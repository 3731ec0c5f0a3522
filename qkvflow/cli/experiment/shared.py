"""The options that commands of experiments have in common: one name, one meaning, one rule."""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.experiments.plan import Match, Plan, read_plan

OUT = Path("statistical_validation_results")
"""Where the seed documents look for an experiment."""


@dataclass(frozen=True)
class PlanOptions:
    """Which plan is meant, and how it is changed."""

    plan: str = "seeds"
    """Plan of the experiment (seeds, laptop, main, main_large, main_embedded, main_subword, sizes,
    loops, ablation, elastic, elastic_long, elastic_bases, elastic_adaptation, recipe, recipe_added,
    recipe_models, state_space, state_space_search, time, integrators, regularise, hops,
    adaptation_bases, adaptation), or a YAML file of the same form."""
    arms: tuple[str, ...] = ()
    """Arms of the plan to run; empty: all."""
    reference: str | None = None
    """Arm that all others are compared with and, by --match, matched to. None: the reference of the
    output directory, or else of the plan."""
    match: Match = "steps"
    """What is held equal to the reference: steps, parameters (by changing the width) or flops
    (operations of all training, by changing the number of steps). Matching to a small arm is cheaper
    than matching to a large one."""
    steps: int | None = None
    """Training steps per run; None: as in the plan."""
    seeds: tuple[int, ...] = ()
    """Seeds to run, by number: 10 is one seed, not ten. Empty: those of the plan."""

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
    """Directories of other experiments, whose finished runs with identical settings are not run
    again."""
    out: Path = OUT
    """Output directory of the experiment; started again, the command resumes there."""
