"""From the records of runs to numbers: a summary of every arm, a test of every pair of arms.

As JSON they have the names that users of the first version know (loss_mean, loss_std, ...; model1,
model2, t_statistic, ...), with what these lacked beside them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qkvflow import statistics
from qkvflow.data import Accuracy
from qkvflow.experiments.contrasts import Pair, at_depth_name
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import (
    Costs,
    Evaluation,
    Failed,
    Finished,
    Json,
    Point,
    Record,
    by_arm,
    finished,
)
from qkvflow.statistics import Interval, Sample, summarise

ANSWERS = "answers"
"""Split of a comparison of the shares of answers that are wrong on the valid split."""
LARGEST_EXPONENT = 709
"""Whose exponential is a number."""


def sample_to_json(sample: Sample, name: str) -> Json:
    """A sample with the names of the first version."""
    return {
        f"{name}_mean": sample.mean,
        f"{name}_std": sample.deviation,
        f"{name}_ci95": sample.half_width,
        f"{name}_ci95_range": sample.t and _ends(sample.t),
        f"{name}_bca95_range": sample.bca and _ends(sample.bca),
        "all_losses" if name == "loss" else f"all_{name}es": list(sample.values),
    }


@dataclass(frozen=True)
class Summary:
    """What the finished runs of an arm reached, and what they cost."""

    costs: Costs
    text: str
    hidden_dim: int
    steps: int
    learning_rate: float
    seeds: tuple[int, ...]
    loss: Sample
    """On the whole valid split after the last step."""
    begin: Sample | None
    """Before the first step, on a part of the split, where runs begin with trained models."""
    test: Sample | None
    """On the test split, where every run opened it."""
    bits_per_byte: float
    milliseconds: tuple[float, ...]
    """Per step, of every run."""
    failed_seeds: int
    best: Sample | None = None
    """At the best evaluation in training, on the same tokens, where every run was judged there."""
    best_test: Sample | None = None
    """These models on the test split."""

    @staticmethod
    def of(runs: Sequence[Finished], failed_seeds: int) -> "Summary":
        """The runs of one arm, which differ in their seeds only."""
        first = runs[0]
        return Summary(
            first.costs,
            first.run["data"],
            first.run["architecture"]["hidden_dim"],
            first.run["steps"],
            first.learning_rate,
            tuple(run.seed for run in runs),
            summarise([run.valid.loss for run in runs]),
            summarise([run.curve[0].loss for run in runs]) if _have_begin(runs) else None,
            _of_all(runs, "test"),
            float(np.mean([run.valid.bits_per_byte for run in runs])),
            tuple(run.ms_per_step for run in runs),
            failed_seeds,
            _of_all(runs, "best"),
            _of_all(runs, "best test"),
        )

    @property
    def perplexity(self) -> float:
        """Of the mean loss; infinite where no number is as large."""
        return math.exp(self.loss.mean) if self.loss.mean < LARGEST_EXPONENT else math.inf

    @property
    def speed(self) -> float:
        """Milliseconds per step, the median over runs."""
        return float(np.median(self.milliseconds))

    def to_json(self) -> Json:
        """A row of statistics_summary.json."""
        speeds = list(self.milliseconds)
        return {
            "params": self.costs.parameters,
            "time_network_params": self.costs.time_network_parameters,
            "flops_per_token": self.costs.flops_per_token,
            "training_flops": self.costs.training_flops,
            "memory_bytes": self.costs.memory_bytes,
            "hidden_dim": self.hidden_dim,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "num_seeds": len(self.seeds),
            "seeds": list(self.seeds),
            **sample_to_json(self.loss, "loss"),
            **({} if self.test is None else sample_to_json(self.test, "test_loss")),
            **({} if self.best is None else sample_to_json(self.best, "best_loss")),
            **({} if self.best_test is None else sample_to_json(self.best_test, "best_test_loss")),
            "bits_per_byte": self.bits_per_byte,
            "perplexity": finite(self.perplexity),
            "speed_mean": float(np.mean(speeds)),
            "speed_median": self.speed,
            "speed_std": float(np.std(speeds, ddof=1)) if len(speeds) > 1 else None,
            "all_speeds": speeds,
            "failed_seeds": self.failed_seeds,
        }


def _of_all(runs: Sequence[Finished], split: str) -> Sample | None:
    """The losses of runs on a split, if every run was evaluated on it."""
    losses = [seen.loss for run in runs if (seen := _evaluation(run, split)) is not None]
    return summarise(losses) if len(losses) == len(runs) else None


def _have_begin(runs: Sequence[Finished]) -> bool:
    """Whether runs that begin with trained models were evaluated before their first step."""
    return bool(runs[0].run.get("start")) and all(run.curve for run in runs)


def _ends(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def statistics_summary(records: Sequence[Record]) -> dict[str, Summary]:
    """Every arm that has a finished run: losses, speed, costs."""
    failed = [record.arm for record in records if isinstance(record, Failed)]
    return {arm: Summary.of(runs, failed.count(arm)) for arm, runs in by_arm(records).items()}


def pareto_optimal(summary: Mapping[str, Summary]) -> list[str]:
    """The arms of which no other with as few parameters has as low a loss, by text and parameters.

    An arm of which a run failed is not among them: its mean is that of the runs that did well.
    """
    whole = {arm: row for arm, row in summary.items() if not row.failed_seeds}
    found: list[str] = []
    for arm, row in sorted(
        whole.items(), key=lambda of: (of[1].text, of[1].costs.parameters, of[1].loss.mean)
    ):
        last = summary[found[-1]] if found else None
        if last is None or last.text != row.text or row.loss.mean < last.loss.mean:
            found.append(arm)
    return found


@dataclass(frozen=True)
class Comparison:
    """Two arms on a split: the first's losses minus the second's, and what may be said of that."""

    first: str
    second: str
    split: str
    seeds: tuple[int, ...]
    """That both have."""
    runs: tuple[int, int]
    """How many each has."""
    differences: tuple[float, ...]
    """Seed by seed."""
    found: statistics.Comparison
    family: int
    """Pairs that p-values are corrected for."""
    p_holm: float
    significant: bool
    margin: float
    """Difference that counts as none."""
    p_equivalence_holm: float
    exploratory: bool = False
    """Whether the plan is about other pairs."""

    @property
    def paired(self) -> bool:
        """Whether they have seeds enough in common."""
        return self.found.paired is not None

    def to_json(self) -> Json:
        """A row of significance_tests.json: None for what is not known or not finite."""
        found = self.found
        return {
            "model1": self.first,
            "model2": self.second,
            "split": self.split,
            "paired": self.paired,
            "seeds": list(self.seeds),
            "num_seeds": list(self.runs),
            "comparisons_in_family": self.family,
            "differences": list(self.differences),
            "difference": found.difference,
            "difference_ci95": _ends(found.interval),
            "difference_ci95_welch": _ends(found.welch_interval),
            "t_statistic": finite(found.test.statistic),
            "p_value": found.test.p_value,
            "p_value_sign_flip": found.sign_flip and found.sign_flip.p_value,
            "p_value_welch": found.welch.p_value,
            "cohens_d": finite(found.cohens_d),
            "effect_size": statistics.effect_size(found.cohens_d),
            "hedges_g": finite(found.hedges_g),
            "probability_of_improvement": found.improvement,
            "p_value_equivalence": found.equivalence and found.equivalence.p_value,
            "detectable_difference": found.detectable,
            "p_value_holm": self.p_holm,
            "significant_at_0.05": self.significant,
            "smallest_p_value_sign_flip": statistics.smallest_p_value(len(self.seeds)),
            "equivalence_margin": self.margin,
            "p_value_equivalence_holm": self.p_equivalence_holm,
            **({"exploratory": True} if self.exploratory else {}),
        }


def finite(value: float) -> float | None:
    """Samples without spread have infinite statistics, which JSON has no word for."""
    return value if math.isfinite(value) else None


def _evaluation(run: Finished, split: str) -> Evaluation | None:
    """That of a run on valid or test; "best" and "best test" are those at its best evaluation."""
    at = run.best if split.startswith("best") else run
    if at is None:
        return None
    return at.test if split.endswith("test") else at.valid


def losses_by_arm(records: Sequence[Record], split: str = "valid") -> dict[str, dict[int, float]]:
    """The loss of every finished run on a split, by arm and seed; on valid by ARM@DEPTH, too."""
    found: dict[str, dict[int, float]] = {}
    for run in finished(records):
        seen = _evaluation(run, split)
        if seen is not None:
            found.setdefault(run.arm, {})[run.seed] = seen.loss
        for each in run.depths if split == "valid" else ():
            found.setdefault(at_depth_name(run.arm, each.depth), {})[run.seed] = each.loss
    return found


def significance_tests(plan: Plan, records: Sequence[Record], split: str = "valid") -> list[Comparison]:
    """The contrasts of a plan, or all pairs of arms where it names none.

    They are the family that Holm's correction is for, also those that failed.
    """
    family = plan.pairs if plan.contrasts is None else plan.contrasts
    return _tests(plan, family, losses_by_arm(records, split), split)


def answer_tests(plan: Plan, records: Sequence[Record]) -> list[Comparison]:
    """The same pairs by the share of answers that are wrong, where that is known of runs."""
    wrong: dict[str, dict[int, float]] = {}
    for run in finished(records):
        for name, accuracy in _accuracies(run).items():
            wrong.setdefault(name, {})[run.seed] = 1 - accuracy.whole
    family = plan.pairs if plan.contrasts is None else plan.contrasts
    return _tests(plan, family, wrong, ANSWERS)


def exploratory_tests(plan: Plan, records: Sequence[Record]) -> list[Comparison]:
    """All pairs that are no contrasts of a plan that names some, each by itself: not corrected."""
    if plan.contrasts is None:
        return []
    named, losses = {frozenset(pair) for pair in plan.contrasts}, losses_by_arm(records)
    others = [pair for pair in plan.pairs if frozenset(pair) not in named]
    found = [test for pair in others for test in _tests(plan, [pair], losses, "valid")]
    return [dataclasses.replace(test, exploratory=True) for test in found]


def _tests(
    plan: Plan, family: Sequence[Pair], losses: Mapping[str, Mapping[int, float]], split: str
) -> list[Comparison]:
    """Pairs, over the seeds that both have; without pairs where these are too few."""
    found_of: dict[Pair, statistics.Comparison] = {}
    for pair in family:
        ours, theirs = (losses.get(arm, {}) for arm in pair)
        found = _compare(ours, theirs, plan.margin, len(family))
        if found is not None:
            found_of[pair] = found
    different = _over_family(family, {pair: found.test for pair, found in found_of.items()})
    equal = _over_family(family, {pair: found.equivalence for pair, found in found_of.items()})
    return [
        Comparison(
            first,
            second,
            split,
            seeds := tuple(sorted(losses[first].keys() & losses[second].keys())),
            (len(losses[first]), len(losses[second])),
            tuple(losses[first][seed] - losses[second][seed] for seed in seeds),
            found,
            len(family),
            *different[first, second],
            plan.margin,
            equal[first, second][0],
        )
        for (first, second), found in found_of.items()
    ]


def _compare(
    first: Mapping[int, float], second: Mapping[int, float], margin: float, family: int
) -> statistics.Comparison | None:
    """Two arms, pair by pair where they have two seeds in common, else run against run."""
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) > 1:
        ours, theirs = ([of[seed] for seed in seeds] for of in (first, second))
        return statistics.compare(ours, theirs, margin, family)
    if min(len(first), len(second)) > 1:
        return statistics.compare_unpaired(list(first.values()), list(second.values()))
    return None


def _over_family(
    family: Sequence[Pair], tests: Mapping[Pair, statistics.Test | None]
) -> dict[Pair, tuple[float, bool]]:
    """Holm's correction for all pairs; one that could not be tested has shown nothing."""
    p_values = {pair: test.p_value for pair, test in tests.items() if test is not None}
    return statistics.holm({pair: p_values.get(pair, 1.0) for pair in family})


def losses_over_depth(records: Sequence[Record]) -> dict[str, dict[int, Sample]]:
    """The valid loss of every arm at every depth that its runs were judged at, and at its own."""
    found: dict[str, dict[int, Sample]] = {}
    for arm, runs in by_arm(records).items():
        if not any(run.depths for run in runs):
            continue
        own = runs[0].run["architecture"]["num_layers"]
        losses: dict[int, list[float]] = {}
        for each in (each for run in runs for each in run.depths):
            losses.setdefault(each.depth, []).append(each.loss)
        losses.setdefault(own, [run.valid.loss for run in runs])
        found[arm] = {depth: summarise(losses[depth]) for depth in sorted(losses)}
    return found


@dataclass(frozen=True)
class Answered:
    """How many answers the runs of an arm have right, at its own depth or at another."""

    answers: Sample
    tokens: Sample
    by_count: Mapping[str, Sample]


def answers_by_arm(records: Sequence[Record]) -> dict[str, Answered]:
    """The accuracy of every arm on the valid split, also at the depths that it was judged at.

    What a run is judged at is named ARM, or ARM@DEPTH.
    """
    found: dict[str, list[Accuracy]] = {}
    for runs in by_arm(records).values():
        for name, accuracy in (pair for run in runs for pair in _accuracies(run).items()):
            found.setdefault(name, []).append(accuracy)
    return {name: _answered(seen) for name, seen in found.items()}


def _accuracies(run: Finished) -> dict[str, Accuracy]:
    """What is known of a run's answers, by ARM and ARM@DEPTH."""
    at = {at_depth_name(run.arm, each.depth): each.accuracy for each in run.depths}
    every = {run.arm: run.valid.accuracy, **at}
    return {name: accuracy for name, accuracy in every.items() if accuracy is not None}


def _answered(seen: Sequence[Accuracy]) -> Answered:
    counts = {count: [of.by_count[count] for of in seen] for count in seen[0].by_count}
    return Answered(
        summarise([of.whole for of in seen]),
        summarise([of.tokens for of in seen]),
        {count: summarise(shares) for count, shares in counts.items()},
    )


def first_below(loss: float, record: Finished) -> Point | None:
    """The first evaluation in training at which the valid loss was below this one."""
    return next((point for point in record.curve if point.loss < loss), None)


def steps_below(
    records: Sequence[Record], baselines: Mapping[str, float]
) -> dict[str, dict[str, int | None]]:
    """When each arm passed each baseline: the median over seeds, None where not all of them did."""

    def passed(loss: float, runs: Sequence[Finished]) -> int | None:
        steps = [point.step for run in runs if (point := first_below(loss, run)) is not None]
        return int(np.median(steps)) if len(steps) == len(runs) else None

    return {
        arm: {name: passed(loss, runs) for name, loss in baselines.items()}
        for arm, runs in by_arm(records).items()
    }
