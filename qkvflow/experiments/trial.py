"""Trying whether an experiment works before it takes hours."""

from qkvflow.experiments.plan import Plan

STEPS = 20
"""Of every run."""
TOKENS = 4096
"""Of the valid split on which runs are judged."""
WARNING = (
    "This is a trial (--quick): a few steps and no sweep show that everything works, and nothing about "
    "which model is better."
)


def trial_of(plan: Plan) -> Plan:
    """The same plan with runs of a few steps, two seeds, no sweep, the test split left closed."""
    short = dict.fromkeys(("steps", "eval_every", "save_every"), STEPS)
    left_out = {*short, "learning_rates", "also"}
    arms = {
        arm.name: {name: value for name, value in arm.changes.items() if name not in left_out}
        for arm in plan.arms
    }
    base = {**plan.base, **short, "eval_tokens": TOKENS}
    changes = {"base": base, "arms": arms, "seeds": list(plan.seeds[:2]), "sweep": None}
    changes["depth_tokens"] = TOKENS if plan.depths else None
    return Plan.of({**plan.fields, **changes, "test": False, "trial": True}).checked()
