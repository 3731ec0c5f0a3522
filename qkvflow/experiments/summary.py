"""From the records of runs to numbers: a summary of every arm, a test of every pair of arms.

The names of fields are those that users of the first version know (loss_mean, loss_std, ...; model1,
model2, t_statistic, ...), with what they lacked beside them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkvflow.experiments import statistics
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record
from qkvflow.experiments.statistics import Interval


def losses_by_arm(records: Sequence[Record], split: str = "valid") -> dict[str, dict[int, float]]:
    """The loss of every finished run on a split, by arm and seed."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if record["status"] == "finished" and record[split] is not None:
            found.setdefault(record["arm"], {})[record["seed"]] = record[split]["loss"]
    return found


def statistics_summary(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Every arm that has a finished run: losses, speed, costs."""
    summary: dict[str, dict[str, Any]] = {}
    for arm in dict.fromkeys(record["arm"] for record in records):
        finished = [r for r in records if r["arm"] == arm and r["status"] == "finished"]
        failed = sum(r["arm"] == arm and r["status"] == "failed" for r in records)
        if finished:
            summary[arm] = {**_arm_summary(finished), "failed_seeds": failed}
    return summary


def _arm_summary(finished: Sequence[Record]) -> dict[str, Any]:
    first = finished[0]
    milliseconds = [record["ms_per_step"] for record in finished]
    return {
        "params": first["parameters"],
        "time_network_params": first["time_network_parameters"],
        "flops_per_token": first["flops_per_token"],
        "training_flops": first["training_flops"],
        "memory_bytes": first["memory_bytes"],
        "hidden_dim": first["run"]["architecture"]["hidden_dim"],
        "steps": first["run"]["steps"],
        "learning_rate": first["run"]["optimizer"]["learning_rate"],
        "num_seeds": len(finished),
        "seeds": [record["seed"] for record in finished],
        **_losses("loss", [record["valid"]["loss"] for record in finished]),
        **_test_losses(finished),
        "bits_per_byte": float(np.mean([record["valid"]["bits_per_byte"] for record in finished])),
        "perplexity": math.exp(float(np.mean([record["valid"]["loss"] for record in finished]))),
        "speed_mean": float(np.mean(milliseconds)),
        "speed_median": float(np.median(milliseconds)),
        "speed_std": float(np.std(milliseconds, ddof=1)) if len(milliseconds) > 1 else None,
        "all_speeds": milliseconds,
    }


def _test_losses(finished: Sequence[Record]) -> dict[str, Any]:
    opened = [record["test"]["loss"] for record in finished if record["test"] is not None]
    return _losses("test_loss", opened) if len(opened) == len(finished) else {}


def _losses(name: str, losses: list[float]) -> dict[str, Any]:
    """Mean, sample standard deviation and intervals; of one seed the mean alone."""
    values: dict[str, Any] = {f"{name}_mean": float(np.mean(losses))}
    several = len(losses) > 1
    summary = statistics.summarise(losses) if several else None
    values[f"{name}_std"] = summary and summary.deviation
    values[f"{name}_ci95"] = summary and summary.t.half_width
    values[f"{name}_ci95_range"] = summary and _ends(summary.t)
    values[f"{name}_bca95_range"] = summary and _ends(summary.bca)
    return values | {"all_losses" if name == "loss" else f"all_{name}es": losses}


def _ends(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def significance_tests(
    plan: Plan, records: Sequence[Record], split: str = "valid"
) -> list[dict[str, Any]]:
    """All pairs of arms over the seeds that both have.

    All pairs of the plan are the family that Holm's correction is for, also those that failed.
    """
    losses = losses_by_arm(records, split)
    family = list(itertools.combinations(_order(plan), 2))
    found_of: dict[tuple[str, str], tuple[list[int], list[float], statistics.Comparison]] = {}
    for first, second in family:
        a, b = (losses.get(arm, {}) for arm in (first, second))
        common = sorted(a.keys() & b.keys())
        if len(common) > 1:
            ours, theirs = ([of[seed] for seed in common] for of in (a, b))
            compared = statistics.compare(ours, theirs, plan.margin, len(family))
            differences = [x - y for x, y in zip(ours, theirs)]
            found_of[first, second] = common, differences, compared
    p_values = {pair: found_of[pair][2].paired.p_value if pair in found_of else 1.0 for pair in family}
    adjusted = statistics.holm(p_values)
    tests = []
    for (first, second), (common, differences, found) in found_of.items():
        p_holm, significant = adjusted[first, second]
        test = {
            "model1": first,
            "model2": second,
            "split": split,
            "seeds": common,
            "comparisons_in_family": len(family),
            "differences": differences,
            "difference": found.difference,
            "difference_ci95": _ends(found.interval),
            "t_statistic": found.paired.statistic,
            "p_value": found.paired.p_value,
            "p_value_holm": p_holm,
            "significant_at_0.05": significant,
            "p_value_sign_flip": found.sign_flip.p_value,
            "smallest_p_value_sign_flip": statistics.smallest_p_value(len(common)),
            "p_value_welch": found.welch.p_value,
            "cohens_d": found.cohens_d,
            "effect_size": statistics.effect_size(found.cohens_d),
            "hedges_g": found.hedges_g,
            "probability_of_improvement": found.improvement,
            "equivalence_margin": found.margin,
            "p_value_equivalence": found.equivalence.p_value,
            "detectable_difference": found.detectable,
        }
        tests.append(test)
    return tests


def _order(plan: Plan) -> list[str]:
    """The arms, the reference first."""
    names = [arm.name for arm in plan.arms]
    return sorted(names, key=lambda name: name != plan.reference)


def first_below(loss: float, record: Record) -> tuple[int, float] | None:
    """Steps and seconds of training until the first look at which the valid loss was below this one."""
    return next(((step, seconds) for step, seconds, seen in record["curve"] if seen < loss), None)


def steps_below(
    records: Sequence[Record], floors: Mapping[str, float]
) -> dict[str, dict[str, int | None]]:
    """When each arm passed each floor: the median over seeds, None where not all of them did."""
    table: dict[str, dict[str, int | None]] = {}
    for arm in dict.fromkeys(record["arm"] for record in records):
        runs = [r for r in records if r["arm"] == arm and r["status"] == "finished"]
        if runs:
            found = {name: [first_below(loss, r) for r in runs] for name, loss in floors.items()}
            table[arm] = {name: _median_step(looks) for name, looks in found.items()}
    return table


def _median_step(looks: Sequence[tuple[int, float] | None]) -> int | None:
    steps = [look[0] for look in looks if look is not None]
    return int(np.median(steps)) if len(steps) == len(looks) else None


def megabytes(count: int | None) -> str:
    """Bytes for a table; nothing where the compiler does not say."""
    return "" if count is None else f"{count / 1e6:.0f}"


def failures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The runs that failed, each with its error."""
    return [
        {"arm": record["arm"], "seed": record["seed"], "error": record["error"]}
        for record in records
        if record["status"] == "failed"
    ]
