"""The directory of an experiment: one plan, records of that plan and no others."""

import json
import math
import threading

import pytest

from qkvflow.config import ConfigError, RunConfig
from qkvflow.config.yaml_files import read_yaml
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.recording import costs_of, finished_record
from qkvflow.experiments.results import read_experiment, save_plan
from qkvflow.experiments.runner import complete, prepare
from qkvflow.files import FileError
from qkvflow.provenance import now
from qkvflow.train import Evaluation, TrainingError
from tests.experiments.support import run_all, tiny_fields


def test_records_hold_what_a_claim_needs(done):
    _, out = done
    record = json.loads((out / "runs" / "gated" / "seed-1.json").read_text())
    assert record["status"] == "finished"
    assert record["run"]["seed"] == 1
    assert record["valid"]["whole"]
    assert record["test"]["whole"]
    assert record["test"]["loss"] != record["valid"]["loss"]
    assert record["parameters"] > record["time_network_parameters"] > 0
    assert record["training_flops"] > record["flops_per_token"] > 0
    assert record["ms_per_step"] > 0
    assert record["memory_bytes"] > 4 * 4 * record["parameters"], "weights, gradients, two moments"
    assert [step for step, _, _ in record["curve"]] == [0, 3, 6]
    assert {"qkvflow", "jax", "python", "code"} <= set(record["versions"])
    assert not (out / "runs" / "gated" / "seed-1" / "checkpoints").exists()
    gates = read_experiment(out).gates
    assert {seed: of["mlp.up"].shape for seed, of in gates["gated"].items()} == {0: (2, 64), 1: (2, 64)}
    assert "standard" not in gates


def test_a_record_of_other_settings_is_not_taken_for_this_run(done, text):
    _, out = done
    other = Plan.of(tiny_fields(text, base={**tiny_fields(text)["base"], "steps": 7}))
    with pytest.raises(FileError, match="other settings there"):
        run_all(other, out)
    assert Plan.of(read_yaml(out / "plan.yaml")).arms[0].run.steps == 6, "what was planned is kept"
    with pytest.raises(FileError, match="of a run with other settings"):
        complete(other, out)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"margin": 0.02}, "margin is 0.01 there and 0.02 here"),
        ({"seeds": 1}, r"its seeds are \[0, 1\], here are \[0\]"),
        ({"seeds": [1, 2, 3]}, r"its seeds are \[0, 1\], here are \[1, 2, 3\]"),
        ({"unit_steps": True}, "unit_steps is False there and True here"),
        ({"depth_tokens": 64}, "depth_tokens is None there and 64 here"),
        ({"test": False}, "its test split is opened"),
        ({"sweep": {"learning_rates": [1e-3, 1e-2]}}, "sweep is None there"),
    ],
)
def test_a_directory_is_of_one_experiment(done, text, changes, sentence):
    _, out = done
    with pytest.raises(FileError, match=f"another experiment: {sentence}"):
        save_plan(Plan.of(tiny_fields(text, **{"test": True, **changes})), out)


def test_arms_and_seeds_may_be_added_to_an_experiment(done, text):
    _, out = done
    more = tiny_fields(text, test=True, seeds=3, arms={"shared": {"model": "shared"}})
    save_plan(Plan.of({**more, "reference": "shared"}), out)
    plan = read_experiment(out).plan
    assert plan.names == ["standard", "gated", "shared"]
    assert plan.seeds == (0, 1, 2)


def test_an_arm_that_would_share_a_directory_is_not_added(done, text):
    _, out = done
    before = (out / "plan.yaml").read_text()
    more = tiny_fields(text, test=True, arms={"GATED": {"model": "shared"}}, reference="GATED")
    with pytest.raises(ConfigError, match="'gated' and 'GATED' would share a directory"):
        save_plan(Plan.of(more), out)
    assert (out / "plan.yaml").read_text() == before


def test_a_directory_keeps_its_reference_unless_another_is_named(done, text):
    _, out = done
    fields = tiny_fields(text, test=True)
    save_plan(Plan.of(fields).with_arms(["gated"]), out)
    assert read_experiment(out).plan.reference == "standard"
    save_plan(Plan.of(fields).with_reference("gated"), out, "gated")
    assert read_experiment(out).plan.reference == "gated"


def test_arms_without_the_others_of_their_contrasts_go_on_and_find_them_later(text, tmp_path):
    plan = Plan.of(tiny_fields(text, contrasts=[["gated", "standard"]]))
    for _ in range(2):  # the second time it goes on
        save_plan(plan.with_arms(["gated"]), tmp_path)
        assert Plan.of(read_yaml(tmp_path / "plan.yaml")).contrasts == ()
    save_plan(plan, tmp_path)
    assert Plan.of(read_yaml(tmp_path / "plan.yaml")).contrasts == (("gated", "standard"),)


def test_a_directory_keeps_the_depths_that_its_models_were_judged_at(text, tmp_path):
    fields = tiny_fields(text)
    for depths in ([2, 4], [], [8, 2]):
        save_plan(Plan.of({**fields, "depths": depths}), tmp_path)
    assert Plan.of(read_yaml(tmp_path / "plan.yaml")).depths == (2, 4, 8)


def test_processes_that_add_arms_at_once_lose_none(text, tmp_path):
    arms = [f"arm-{i}" for i in range(8)]
    plans = [Plan.of(tiny_fields(text, arms={arm: {"model": "shared"}}, reference=arm)) for arm in arms]
    threads = [threading.Thread(target=save_plan, args=(plan, tmp_path)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {arm.name for arm in Plan.of(read_yaml(tmp_path / "plan.yaml")).arms} == set(arms)


@pytest.mark.parametrize(
    ("arm", "changes", "sentence"),
    [
        ({"model": "standrd"}, {}, "broken: there is no model 'standrd'. Did you mean 'standard'"),
        ({"optimizer": {"name": "adamx"}}, {}, "broken: there is no optimizer 'adamx'"),
        (
            {"continued": [5]},
            {"sweep": {"learning_rates": [1e-3, 1e-2], "steps": 4}},
            "broken: continued is \\[5\\] in a run of 4 steps",
        ),
        (
            {"model": "tong_neuralode", "parameters_of": "gated"},
            {},
            "broken: no width of tong_neuralode .* match it to another arm",
        ),
    ],
)
def test_a_run_that_cannot_be_made_shows_before_anything_is_written(
    text, tmp_path, arm, changes, sentence
):
    arms = {**tiny_fields(text)["arms"], "broken": arm}
    with pytest.raises(ConfigError, match=sentence):
        prepare(Plan.of(tiny_fields(text, arms=arms, **changes)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_record_that_was_copied_or_renamed_is_not_counted(done):
    _, out = done
    copied = out / "runs" / "standard" / "seed-0.json"
    for name in ("gated/seed-2.json", "standard/seed-1 copy.json"):
        copy = out / "runs" / name
        copy.write_text(copied.read_text())
        with pytest.raises(FileError, match=r"is the record of standard, seed 0: it was copied"):
            read_experiment(out)
        copy.unlink()
    assert len(read_experiment(out).records) == 4


def test_an_evaluation_that_was_not_finite_is_left_out(done):
    _, out = done
    place = out / "runs" / "gated" / "seed-0"
    metrics = place / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "valid" and line["step"] == 3:
            line["loss"] = None
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = RunConfig.from_dict(json.loads(place.with_name("seed-0.json").read_text())["run"])
    costs = costs_of(run, 256)
    record = finished_record("gated", run, place, "digest", costs, began=now(), test=None)
    assert [point.step for point in record.curve] == [0, 6]
    nan = Evaluation(loss=math.nan, bits_per_byte=1.0, standard_error=1.0, tokens=1, whole=True)
    with pytest.raises(TrainingError, match="not finite at the end"):
        finished_record("gated", run, place, "digest", costs, began=now(), test=nan)


def test_records_of_another_plan_or_text_are_not_put_side_by_side(done):
    _, out = done
    path = out / "runs" / "gated" / "seed-1.json"
    record = json.loads(path.read_text())
    for change in ({"run": {**record["run"], "steps": 7}}, {"data_digest": "0123"}):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(FileError, match=r"does not plan|different texts"):
            read_experiment(out)


def test_runs_of_an_arm_at_two_learning_rates_are_not_put_side_by_side(text, tmp_path):
    """Two processes may have chosen differently, or a record was copied from elsewhere."""
    plan = Plan.of(tiny_fields(text, sweep={"learning_rates": [1e-3, 1e-2], "steps": 2}))
    run_all(plan, tmp_path)
    assert read_experiment(tmp_path).summary["gated"].seeds == (0, 1)
    paths = [tmp_path / "runs" / "gated" / f"seed-{seed}.json" for seed in (1, 0)]
    for path, sentence in zip(paths, ("different settings", "not trained at the learning rate")):
        record = json.loads(path.read_text())
        record["run"]["optimizer"]["learning_rate"] = 5e-3
        path.write_text(json.dumps(record))
        with pytest.raises(FileError, match=sentence):
            read_experiment(tmp_path)


def test_a_text_that_has_changed_is_not_taken_for_the_same(done, text):
    plan, out = done
    text.write_text(text.read_text() + "And more of it. " * 40)
    with pytest.raises(FileError, match="has changed"):
        complete(plan, out)


def test_a_directory_without_an_experiment(tmp_path):
    with pytest.raises(FileError, match=r"no plan.yaml. Name the --out of a qkvflow experiment run"):
        read_experiment(tmp_path)
