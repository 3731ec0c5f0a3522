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
    """Plan of the experiment: seeds, laptop, ablation, elastic, recipe, recipe_added, recipe_models,
    adaptation_bases, adaptation, or a YAML file like theirs."""
    arms: tuple[str, ...] = ()
    """Arms of the plan to take; all where none is named."""
    reference: str | None = None
    """Arm that the others are compared with, and matched to by --match. None: the reference of the
    directory, or else of the plan."""
    match: Match = "steps"
    """What arms have in common with the reference: steps, parameters or flops (of all training).
    For parameters arms are widened or narrowed, for flops they take more or fewer steps. What is
    matched to a small arm takes less time than what is matched to a large one."""
    steps: int | None = None
    """Training steps of a run; None: the plan's."""
    seeds: tuple[int, ...] = ()
    """Seeds of the runs by their numbers, 10 being one seed; the plan's where none is named."""

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
    """Directories of other experiments, whose finished runs of the same settings are not run again."""
    out: Path = OUT
    """Directory of the experiment; started again, it goes on where it stopped."""
