"""What committed records say, beside what documents take from them: `make records`.

These tests read files that a command wrote once. They fail when records are replaced by others, not
when code breaks, and are no part of the suite.
"""

from datetime import datetime
from pathlib import Path

import pytest

from qkvflow.experiments.plan import read_plan
from qkvflow.experiments.results import read_experiment, read_sweep
from qkvflow.experiments.search import chosen
from qkvflow.files import read_json
from qkvflow.models import MODELS
from qkvflow.nn.families import FAMILIES

pytestmark = pytest.mark.records
RESULTS = Path(__file__).parents[1] / "results"

REPORTS = sorted(path.parent for path in RESULTS.glob("*/report.md"))
EXPERIMENTS = [out for out in REPORTS if (out / "plan.yaml").is_file()]


@pytest.mark.parametrize("out", EXPERIMENTS, ids=lambda out: out.name)
def test_every_arm_was_swept_alike_and_trained_at_its_best_rate(out):
    experiment = read_experiment(out)
    if experiment.plan.sweep is None:
        return
    assert experiment.choices == chosen(experiment.plan, read_sweep(out))
    assert set(experiment.choices) == set(experiment.summary)
    for arm, choice in experiment.choices.items():
        planned = experiment.plan.arm(arm).learning_rates or experiment.plan.sweep.learning_rates
        swept = tuple(rate for rate, _ in choice.sweep)
        assert swept == planned or (experiment.plan.sweep.widen and {*planned} < {*swept})
        assert experiment.summary[arm].learning_rate == choice.learning_rate


PLANS = {name: read_plan(name) for name in ("laptop", "seeds")}
PLANS["laptop-parameters"] = PLANS["laptop"].with_reference("time_indexed_mlp").matched("parameters")
PLANS["laptop-flops"] = PLANS["laptop"].matched("flops")


@pytest.mark.parametrize("name", PLANS)
def test_results_are_those_of_the_plan_that_comes_with_the_package(name):
    there, here = read_experiment(RESULTS / name).plan, PLANS[name]
    for arm in there.arms:
        planned = here.arm(arm.name)
        assert arm.run == planned.run and arm.matches == planned.matches
    for what in ("seeds", "sweep", "margin", "test", "reference"):
        assert getattr(there, what) == getattr(here, what)


def test_the_longer_runs_have_the_learning_rates_that_the_laptop_setting_chose():
    found = read_experiment(RESULTS / "laptop").summary
    for arm, row in read_experiment(RESULTS / "long").summary.items():
        assert row.learning_rate == found[arm].learning_rate


def test_the_comparison_takes_less_than_three_minutes_on_two_cores():
    records = read_experiment(RESULTS / "compare").records
    begun, ended = (
        choose(datetime.fromisoformat(getattr(record.origin, when)) for record in records)
        for choose, when in ((min, "began"), (max, "ended"))
    )
    assert (ended - begun).total_seconds() < 180
    assert {record.origin.machine["cores"] for record in records} == {1}, "two processes, a core each"


def test_in_the_comparison_every_model_beats_trigrams_and_the_best_one_4_grams():
    experiment = read_experiment(RESULTS / "compare")
    losses = {name: row.loss.mean for name, row in experiment.summary.items()}
    assert losses.keys() == set(MODELS)
    assert max(losses.values()) < experiment.baselines["3-gram"], losses
    assert min(losses.values()) < experiment.baselines["4-gram"], losses


def test_drafts_of_an_elastic_model_pay_and_early_stops_do_not():
    """As benchmarks/drafts.py and benchmarks/early.py measured, and docs/depth.md says."""
    record = read_json(RESULTS / "drafts.json")
    assert record["best"] >= record["at_least"] == 1.3 and record["layers"] >= 8
    early = read_json(RESULTS / "early.json")
    for row in early["rows"]:
        fewer = [of["loss"] for of in early["fewer_layers"] if of["layers"] <= row["evaluated_layers"]]
        assert not fewer or row["evaluated_layers"] == early["layers"] or min(fewer) < row["loss"]


def test_attention_written_out_is_not_slower_than_the_fused_kernel():
    """What the docstring of `causal_attention` says, as benchmarks/attention.py measured it."""
    record = read_json(RESULTS / "attention.json")
    assert all(row["ratio"] < 1.05 for row in record["rows"])


def test_training_waits_no_longer_for_a_checkpoint_than_with_orbax():
    """What qkvflow/train/checkpoints.py says, as benchmarks/checkpoints.py measured it."""
    ratios = read_json(RESULTS / "checkpoints.json")["ours_over_orbax"]
    assert ratios["waits"] < 1.0


def test_compile_time_does_not_grow_with_depth_as_a_user_compiles():
    """As `python -m benchmarks.speed --only once` measured it."""
    seconds = read_json(RESULTS / "bench.json")["once"]["compile_seconds"]
    assert set(seconds) == set(MODELS)
    assert all(of["48"] < 1.5 * of["6"] for of in seconds.values()), seconds


def test_two_hundred_kills_were_survived():
    """As benchmarks/kill.py found."""
    result = read_json(RESULTS / "kill.json")
    assert result["identical"]
    assert result["kills"] - result["ended_before_the_kill"] >= 200
    assert result["while_saving"] >= 30
    assert set(result["moments"]) == {"while_saving", "between_steps", "any_time", "at_the_end"}


def test_three_models_beat_the_trigram_in_a_longer_run():
    """As benchmarks/learning.py found; its result holds the curves."""
    result = read_json(RESULTS / "learning.json")
    for model in ("standard", "time_indexed_mlp", "time_indexed_ssm"):
        curve = result["curves"][model]
        assert curve[-1]["loss"] < result["ngrams"]["3"], model
        assert len(curve) > 10
        assert all(point["seconds"] >= 0 and point["tokens"] >= 0 for point in curve)


def test_the_error_falls_to_nothing_as_the_benchmark_measured_it():
    """What benchmarks/depth_basis.py found: three models of twelve layers, the loss of two of them."""
    record = read_json(RESULTS / "depth_basis.json")
    assert len(record["models"]) == 3
    for name, found in record["models"].items():
        for errors in found["errors"].values():
            assert len(errors) == record["layers"] + 1
            assert sorted(errors, reverse=True) == errors, name
            assert errors[-1] == 0.0
        if "losses" in found:
            assert abs(found["losses"][-1] - found["own_loss"]) < 1e-4, name


def test_every_family_was_compared_at_every_depth():
    """What benchmarks/unroll.py found; tests/models/test_unroll.py computes some of it again."""
    record = read_json(RESULTS / "unroll.json")
    assert record["depths"] == list(range(1, 65))
    assert record["families"].keys() == set(FAMILIES)
    for weights, kinds in record["families"].items():
        assert kinds.keys() == {"own", "grid"}
        for kind, errors in kinds.items():
            assert len(errors) == 64, f"{weights}, {kind}"
            assert all(error < 1e-5 for error in errors), f"{weights}, {kind}: {max(errors)}"
