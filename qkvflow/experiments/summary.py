"""From the records of runs to numbers: a summary of every arm, a test of every pair of arms.

The names of fields are those that users of the first version know (loss_mean, loss_std, ...; model1,
model2, t_statistic, ...), with what they lacked beside them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkvflow import statistics
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record
from qkvflow.statistics import Interval

_Pair = tuple[str, str]


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
    """All pairs of arms, over the seeds that both have; without pairs where these are too few.

    All pairs of the plan are the family that Holm's correction is for, also those that failed.
    """
    losses = losses_by_arm(records, split)
    family = list(itertools.combinations(_order(plan), 2))
    found_of: dict[_Pair, statistics.Comparison] = {}
    for pair in family:
        ours, theirs = (losses.get(arm, {}) for arm in pair)
        found = _compare(ours, theirs, plan.margin, len(family))
        if found is not None:
            found_of[pair] = found
    different = _over_family(family, {pair: found.test for pair, found in found_of.items()})
    equal = _over_family(family, {pair: found.equivalence for pair, found in found_of.items()})
    return [
        {
            "model1": first,
            "model2": second,
            "split": split,
            "paired": found.paired is not None,
            "seeds": (seeds := _common(losses[first], losses[second])),
            "num_seeds": [len(losses[arm]) for arm in (first, second)],
            "comparisons_in_family": len(family),
            "differences": [losses[first][seed] - losses[second][seed] for seed in seeds],
            **_numbers(found),
            "p_value_holm": different[first, second][0],
            "significant_at_0.05": different[first, second][1],
            "smallest_p_value_sign_flip": statistics.smallest_p_value(len(seeds)),
            "equivalence_margin": plan.margin,
            "p_value_equivalence_holm": equal[first, second][0],
        }
        for (first, second), found in found_of.items()
    ]


def _compare(
    first: Mapping[int, float], second: Mapping[int, float], margin: float, family: int
) -> statistics.Comparison | None:
    """Two arms, pair by pair where they have two seeds in common, else run against run."""
    seeds = _common(first, second)
    if len(seeds) > 1:
        ours, theirs = ([of[seed] for seed in seeds] for of in (first, second))
        return statistics.compare(ours, theirs, margin, family)
    if min(len(first), len(second)) > 1:
        return statistics.compare_unpaired(list(first.values()), list(second.values()))
    return None


def _common(first: Mapping[int, float], second: Mapping[int, float]) -> list[int]:
    return sorted(first.keys() & second.keys())


def _over_family(
    family: Sequence[_Pair], tests: Mapping[_Pair, statistics.Test | None]
) -> dict[_Pair, tuple[float, bool]]:
    """Holm's correction for all pairs; one that could not be tested has shown nothing."""
    p_values = {pair: test.p_value for pair, test in tests.items() if test is not None}
    return statistics.holm({pair: p_values.get(pair, 1.0) for pair in family})


def _numbers(found: statistics.Comparison) -> dict[str, Any]:
    """A comparison, as the file has it: None for what is not known or not finite."""
    return {
        "difference": found.difference,
        "difference_ci95": _ends(found.interval),
        "difference_ci95_welch": _ends(found.welch_interval),
        "t_statistic": _finite(found.test.statistic),
        "p_value": found.test.p_value,
        "p_value_sign_flip": found.sign_flip and found.sign_flip.p_value,
        "p_value_welch": found.welch.p_value,
        "cohens_d": _finite(found.cohens_d),
        "effect_size": statistics.effect_size(found.cohens_d),
        "hedges_g": _finite(found.hedges_g),
        "probability_of_improvement": found.improvement,
        "p_value_equivalence": found.equivalence and found.equivalence.p_value,
        "detectable_difference": found.detectable,
    }


def _finite(value: float) -> float | None:
    """Samples without spread have infinite statistics, which JSON has no word for."""
    return value if math.isfinite(value) else None


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
