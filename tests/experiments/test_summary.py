"""From records to numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qkvflow import statistics
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import AtDepth
from qkvflow.experiments.summary import (
    exploratory_tests,
    losses_by_arm,
    pareto_optimal,
    significance_tests,
    statistics_summary,
    steps_below,
)
from tests.experiments.support import FIRST_VERSION, made_up_failure, made_up_record, tiny_fields

STANDARD, GATED = FIRST_VERSION["standard"], FIRST_VERSION["time_indexed_mlp"]


@pytest.fixture
def plan():
    return Plan.of(tiny_fields("x.txt", seeds=5))


@pytest.fixture
def records():
    return [
        made_up_record(arm, seed, loss)
        for arm, losses in (("standard", STANDARD), ("gated", GATED))
        for seed, loss in enumerate(losses)
    ]


def test_the_summary_has_the_documented_names(records):
    row = statistics_summary(records)["standard"].to_json()
    assert row["loss_mean"] == pytest.approx(np.mean(STANDARD))
    assert row["loss_std"] == pytest.approx(np.std(STANDARD, ddof=1))
    assert row["loss_ci95"] == pytest.approx(statistics.t_interval(STANDARD).half_width)
    assert row["all_losses"] == STANDARD
    assert row["num_seeds"] == 5
    assert row["params"] == 1000
    assert row["speed_mean"] == 22.0


def test_a_loss_without_a_perplexity_is_still_a_loss(records):
    """A run that diverged to a finite loss."""
    row = statistics_summary([*records, made_up_record("wild", 0, 1e4)])["wild"]
    assert row.perplexity == np.inf
    assert row.to_json()["perplexity"] is None


def test_runs_with_a_start_and_no_curve_have_no_begin(records):
    begun = [replace(r, run={**r.run, "start": {"train": "all"}}) for r in records]
    assert statistics_summary(begun)["standard"].begin is not None
    begun[0] = replace(begun[0], curve=())
    assert statistics_summary(begun)["standard"].begin is None


def test_the_tests_have_the_documented_names_and_are_paired(plan, records):
    (test,) = (found.to_json() for found in significance_tests(plan, records))
    assert (test["model1"], test["model2"]) == ("standard", "gated")
    paired = statistics.paired_t_test(STANDARD, GATED)
    assert test["t_statistic"] == pytest.approx(paired.statistic)
    assert test["p_value"] == pytest.approx(paired.p_value)
    assert test["significant_at_0.05"] is True
    assert test["cohens_d"] == pytest.approx(statistics.cohens_d(STANDARD, GATED))
    assert test["effect_size"] == "large"
    assert test["smallest_p_value_sign_flip"] == 0.0625
    assert test["p_value_sign_flip"] == 0.0625


def test_pairs_are_made_by_seed_and_not_by_place(plan, records):
    expected = significance_tests(plan, records)
    assert significance_tests(plan, records[::-1]) == expected


def test_only_common_seeds_are_paired(plan, records):
    (test,) = significance_tests(plan, [r for r in records if (r.arm, r.seed) != ("gated", 2)])
    assert test.seeds == (0, 1, 3, 4)


def test_arms_without_two_seeds_in_common_are_compared_without_pairs(plan, records):
    """Of one the first seeds failed, of the other the last."""
    apart = [r for r in records if (r.seed < 3) == (r.arm == "standard")]
    (test,) = (found.to_json() for found in significance_tests(plan, apart))
    welch = statistics.welch_test(STANDARD[:3], GATED[3:])
    assert (test["paired"], test["seeds"], test["num_seeds"]) == (False, [], [3, 2])
    assert (test["t_statistic"], test["p_value"]) == (welch.statistic, welch.p_value)
    assert test["p_value_sign_flip"] is test["p_value_equivalence"] is None
    assert test["p_value_equivalence_holm"] == 1.0
    assert significance_tests(plan, apart[:4]) == [], "one run is no sample"


def test_samples_without_spread_can_be_written(plan):
    """Runs may be the same to the last bit."""
    arms = (("standard", 2.0), ("gated", 1.0))
    records = [made_up_record(arm, seed, loss) for arm, loss in arms for seed in range(2)]
    (test,) = (found.to_json() for found in significance_tests(plan, records))
    assert test["t_statistic"] is test["cohens_d"] is test["hedges_g"] is None
    assert test["p_value"] == test["p_value_welch"] == 0.0
    json.dumps(test, allow_nan=False)


def test_a_family_is_corrected_as_a_whole(plan, records):
    third = [made_up_record("third", s, loss + 0.001 * s) for s, loss in enumerate(STANDARD)]
    arms = {**tiny_fields("x")["arms"], "third": {"model": "shared"}}
    plan = Plan.of(tiny_fields("x", arms=arms, seeds=5))
    tests = [found.to_json() for found in significance_tests(plan, records + third)]
    assert len(tests) == 3
    assert all(test["comparisons_in_family"] == 3 for test in tests)
    assert all(test["p_value_holm"] >= test["p_value"] for test in tests)
    equal = statistics.holm({t["model1"] + t["model2"]: t["p_value_equivalence"] for t in tests})
    assert [test["p_value_equivalence_holm"] for test in tests] == [p for p, _ in equal.values()]
    assert min(p for p, _ in equal.values()) > min(t["p_value_equivalence"] for t in tests)


def test_a_contrast_may_be_of_models_at_other_depths(records):
    """Seed by seed, on the valid split only; a plan with fewer arms keeps what is between them."""
    records = [replace(run, depths=(AtDepth(1, run.valid.loss + 0.5, 3.0, 1e5),)) for run in records]
    contrasts = [["gated@1", "standard@1"], ["gated@1", "gated"], ["gated", "standard@1"]]
    plan = Plan.of(tiny_fields("x", seeds=5, depths=[1], contrasts=contrasts))
    same, deeper, other = significance_tests(plan, records)
    assert np.allclose(same.differences, np.subtract(GATED, STANDARD))
    assert np.allclose(deeper.differences, 0.5)
    assert np.allclose(other.differences, np.subtract(GATED, STANDARD) - 0.5)
    assert {test.family for test in (same, deeper, other)} == {3}
    assert significance_tests(plan, records, "test") == []
    assert plan.with_arms(["gated"]).contrasts == (("gated@1", "gated"),)


def test_one_seed_has_a_mean_and_no_interval(records):
    row = statistics_summary(records[:1])["standard"].to_json()
    assert row["loss_mean"] == STANDARD[0]
    assert row["loss_ci95"] is None


def test_failures_are_kept_apart(records):
    broken, lost = made_up_failure("broken", 0), made_up_failure("gated", 5)
    summary = statistics_summary([*records, lost])
    assert [summary[arm].failed_seeds for arm in ("standard", "gated")] == [0, 1]
    assert set(statistics_summary([*records, broken])) == {"standard", "gated"}
    assert set(losses_by_arm([*records, broken])) == {"standard", "gated"}
    assert broken.sentence == "no such thing"


def test_what_is_pareto_optimal_is_what_nobody_beats_in_both():
    runs = {
        "small": (1, 3.0),
        "worse": (2, 3.5),
        "lucky": (2, 0.5),
        "middle": (3, 2.0),
        "large": (9, 1.0),
        "vast": (99, 1.0),
    }
    records = [made_up_record(arm, 0, loss, parameters=size) for arm, (size, loss) in runs.items()]
    summary = statistics_summary([*records, made_up_failure("lucky", 1)])
    assert pareto_optimal(summary) == ["small", "middle", "large"]


def test_when_a_baseline_was_passed():
    """A made-up curve is 5 at the start, loss + 0.5 at step 50 and loss at step 100."""
    records = [made_up_record("a", 0, 2.0), made_up_record("a", 1, 2.2), made_up_record("b", 0, 2.0)]
    found = steps_below(records, {"high": 2.8, "middle": 2.6, "low": 2.1, "none": 1.0})
    assert found["a"] == {"high": 50, "middle": 75, "low": None, "none": None}
    assert found["b"] == {"high": 50, "middle": 50, "low": 100, "none": None}


def test_only_contrasts_are_corrected_for_and_other_pairs_are_shown_apart():
    losses = {"standard": 2.3, "gated": 2.2, "third": 2.25}
    arms = {name: {"model": "standard"} for name in losses}
    records = [
        made_up_record(name, seed, loss + 0.01 * seed ** (1 + i / 2))
        for i, (name, loss) in enumerate(losses.items())
        for seed in range(5)
    ]
    fields = tiny_fields("x", arms=arms, seeds=5)
    everything = Plan.of(fields)
    plan = Plan.of({**fields, "contrasts": [["third", "gated"]]})
    (contrast,) = significance_tests(plan, records)
    assert (contrast.first, contrast.second, contrast.family) == ("third", "gated", 1)
    assert contrast.p_holm == contrast.found.test.p_value
    others = exploratory_tests(plan, records)
    assert [(test.first, test.second) for test in others] == [
        ("standard", "gated"),
        ("standard", "third"),
    ]
    assert all(test.p_holm == test.found.test.p_value for test in others)
    assert [test.to_json()["exploratory"] for test in others] == [True, True]
    assert "exploratory" not in contrast.to_json()
    assert exploratory_tests(everything, records) == []
    assert {test.family for test in significance_tests(everything, records)} == {3}
    none = Plan.of({**fields, "contrasts": []})
    assert significance_tests(none, records) == [] and len(exploratory_tests(none, records)) == 3
