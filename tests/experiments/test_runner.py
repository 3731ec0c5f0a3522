"""Runs of an experiment: once each, resumed, shared, and failures that lose nothing."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from qkvflow.config import ConfigError
from qkvflow.experiments.jobs import run_jobs
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Choice, Failed, Finished, finished, record_to_json
from qkvflow.experiments.report import write_report
from qkvflow.experiments.results import read_choices, read_experiment, write_results
from qkvflow.experiments.runner import (
    StoppedError,
    Watcher,
    complete,
    judged_at_depths,
    prepare,
    tune,
)
from qkvflow.experiments.slurm import submit
from qkvflow.experiments.summary import losses_over_depth
from qkvflow.extras import pip_line
from qkvflow.models import unroll
from qkvflow.train import Sink, evaluate, load_model
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from tests.experiments.support import (
    Counter,
    run_all,
    tiny_fields,
    without_times,
)

ROOT = Path(__file__).parent.parent.parent


def test_a_trained_model_is_judged_at_the_depths_of_the_plan(done):
    plan, out = done
    for run in read_experiment(out).records:
        assert [each.depth for each in run.depths] == [1, 2]
        assert run.depths[1].loss == run.valid.loss, "its own depth"
        assert run.depths[0].flops_per_token < run.depths[1].flops_per_token
    final = out / "runs" / run.arm / f"seed-{run.seed}" / "final"
    split = open_data(plan.arm(run.arm).run)["valid"]
    model = unroll(load_model(final), 1)
    assert evaluate(model, split, length=16, batch_size=4).loss == run.depths[0].loss
    over = losses_over_depth(read_experiment(out).records)
    assert over.keys() == {"standard", "gated"} and [*over["gated"]] == [1, 2]
    deeper = Plan.of({**plan.fields, "depths": [1, 2, 3]})
    assert not any(job.is_finished for job in run_jobs(deeper, out, {}))
    part = Plan.of({**plan.fields, "depth_tokens": 64})
    (job,) = [job for job in run_jobs(part, out, {}) if job.out == final.parent]
    (at_one, _) = judged_at_depths(load_model(final), split, job)
    assert at_one.loss == evaluate(model, split, length=16, batch_size=4, tokens=64).loss
    assert at_one.loss != run.depths[0].loss


def test_a_finished_run_is_never_run_again(done):
    plan, out = done
    assert run_all(plan, out) == []
    path = out / "runs" / "gated" / "seed-0.json"
    before = without_times(json.loads(path.read_text()))
    path.unlink()  # killed when all was done but its record, it is not trained again
    assert run_all(plan, out) == [("gated", 0)]
    assert without_times(json.loads(path.read_text())) == before


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json", "metrics.jsonl", "run.yaml"])
def test_a_run_that_lost_its_record_and_a_file_is_run_again(text, tmp_path, lost):
    """Its checkpoints were removed when it was recorded."""
    plan = Plan.of(tiny_fields(text, seeds=1, arms={"standard": {"model": "standard"}}))
    (record,) = complete(plan, tmp_path)
    path = tmp_path / "runs" / "standard" / "seed-0"
    before = (path / "final" / "model.safetensors").read_bytes()
    path.with_suffix(".json").unlink()
    (path / "final" / lost if (path / "final" / lost).exists() else path / lost).write_text("")
    (again,) = complete(plan, tmp_path)
    assert isinstance(again, Finished)
    assert again.valid == record.valid
    assert (path / "final" / "model.safetensors").read_bytes() == before


def test_a_text_whose_name_is_no_utf_8(text, tmp_path):
    name = tmp_path / os.fsdecode(b"t\xe9xt.txt")
    name.write_text(text.read_text())
    plan = Plan.of(tiny_fields(name, seeds=1, arms={"standard": {"model": "standard"}}))
    assert run_all(plan, tmp_path / "out") == [("standard", 0)]
    assert run_all(plan, tmp_path / "out") == []
    write_report([read_experiment(tmp_path / "out")], "a page")


ONE_CYCLE = {"transition_steps": 4}
FALLING = {"init_value": 1e-3, "end_value": 0.0, "transition_steps": 6}


@pytest.mark.parametrize(
    ("schedule", "options", "words"),
    [
        ("linear_schedule", FALLING, "standard at 0.002: schedule_options has init_value 0.001"),
        ("cosine_onecycle_schedule", ONE_CYCLE, "standard at 0.001: the schedule cosine_onecycle"),
    ],
)
def test_a_rate_that_is_no_peak_in_the_sweep_is_refused(text, tmp_path, schedule, options, words):
    """Its run would fail, and a rate be chosen among the others."""
    optimizer = {"learning_rate": 1e-3, "warmup": 0, "schedule": schedule, "schedule_options": options}
    fields = tiny_fields(text, sweep={"learning_rates": [1e-3, 2e-3], "steps": 1})
    fields["base"] |= {"optimizer": optimizer}
    with pytest.raises(ConfigError, match=words):
        prepare(Plan.of(fields), tmp_path / "out")
    assert not (tmp_path / "out" / "plan.yaml").exists()


class StopsAt(Sink, Counter):
    """Asks the process to stop at a step of the first run; keeps where runs began."""

    def __init__(self, step):
        super().__init__()
        self.step, self.starts = step, []

    def begin(self, job):
        super().begin(job)
        return [self]

    def write(self, record):
        if record["kind"] == "start":
            self.starts.append(record["step"])

    def tick(self, step, loss):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_goes_on_where_it_stopped(text, tmp_path):
    plan = Plan.of(tiny_fields(text, seeds=1, arms={"standard": {"model": "standard"}}))
    with pytest.raises(StoppedError):
        complete(plan, tmp_path, StopsAt(3))
    going_on = StopsAt(None)
    (record,) = complete(plan, tmp_path, going_on)
    assert isinstance(record, Finished)
    assert going_on.starts[0] >= 2, "a checkpoint is kept every two steps"


def test_seeds_are_paired(text):
    """Under one seed arms read the same batches and begin with the same embeddings."""
    plan = Plan.of(tiny_fields(text))
    data = open_data(plan.arms[0].run)

    def begin(arm, seed):
        program = Program(dataclasses.replace(plan.arm(arm).run, seed=seed), data)
        batches = [np.asarray(ids) for step in (0, 5) for ids in program._batch(step)]
        return [*batches, np.asarray(program.state.parameters["transformer.wte.weight"])]

    ours, theirs, others = begin("standard", 1), begin("gated", 1), begin("gated", 0)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(ours, others, strict=True))


def test_the_same_plan_gives_the_same_numbers(done, text, tmp_path):
    plan, out = done
    run_all(plan, tmp_path / "again")
    first, second = (
        [without_times(record_to_json(record)) for record in read_experiment(place).records]
        for place in (out, tmp_path / "again")
    )
    assert first == second
    losses = [record["valid"]["loss"] for record in first]
    assert len(set(losses)) == len(losses)


def test_an_arm_that_no_memory_can_hold_does_not_lose_the_others(text, tmp_path):
    """The system would kill the process, again and again, before the other arms have had their turn."""
    huge = {"model": "standard", "architecture": {"hidden_dim": 2**17}}
    arms = {"huge": huge, "standard": {"model": "standard"}}
    run_all(Plan.of(tiny_fields(text, arms=arms, seeds=1)), tmp_path)
    results = read_experiment(tmp_path)
    assert list(results.summary) == ["standard"]
    assert "GB of memory" in results.failures[0].error


def test_one_failing_arm_does_not_lose_the_others(text, tmp_path):
    arms = tiny_fields(text)["arms"] | {
        "broken": {"model": "standard", "optimizer": {"learning_rate": 1e30, "clip": 0.0, "warmup": 0}}
    }
    plan = Plan.of(tiny_fields(text, arms=arms, seeds=1))
    run_all(plan, tmp_path)
    results = read_experiment(tmp_path)
    write_results(results)
    assert set(results.summary) == {"standard", "gated"}
    assert [failure.arm for failure in results.failures] == ["broken"]
    done = finished(read_experiment(tmp_path).records)
    assert [record.test for record in done] == [None, None], "the plan does not open it"
    assert "Training stopped" in results.failures[0].error
    assert 'File "qkvflow/train/loop.py"' in results.failures[0].error
    assert str(ROOT) not in results.failures[0].error
    assert run_all(plan, tmp_path) == [("broken", 0)], "only what failed is tried again"


class FailsWithoutAWord(Sink, Watcher):
    """Lets every run fail by an error that has no text."""

    def begin(self, job):
        return [self]

    def write(self, record):
        raise NotImplementedError


def test_an_error_without_text_is_told_by_its_name(text, tmp_path):
    plan = Plan.of(tiny_fields(text, arms={"standard": {"model": "standard"}}, seeds=1))
    (record,) = complete(plan, tmp_path, FailsWithoutAWord())
    assert record.sentence == "NotImplementedError"


def test_the_sweep_chooses_on_a_seed_of_its_own(text, tmp_path):
    sweep = {"learning_rates": [1e-6, 1e-2, 1e9], "steps": 6, "seed": 77}
    fields = tiny_fields(text, sweep=sweep)
    fields["base"] |= {"optimizer": {"clip": 0.0}, "eval_tokens": 64}
    own = [1e-5, 1e-2, 1e9]
    fields["arms"]["gated"]["learning_rates"] = own
    plan = Plan.of(fields)
    tuned = tune(plan, tmp_path)
    for arm, rates in {"standard": sweep["learning_rates"], "gated": own}.items():
        assert tuned[arm].learning_rate == 1e-2
        assert tuned[arm].inside
        assert [rate for rate, _ in tuned[arm].sweep] == rates
        record = json.loads((tmp_path / f"sweep/{arm}/lr-0.01.json").read_text())
        assert record["seed"] == 77
        assert record["test"] is None
        assert not record["valid"]["whole"]
    runs = run_jobs(plan, tmp_path, tuned)
    assert {job.run.optimizer.learning_rate for job in runs} == {1e-2}
    assert {job.run.seed for job in runs} == {0, 1}


def test_a_sweep_goes_on_beyond_an_end_that_is_best(text, tmp_path):
    """As often as the plan says, whichever process does it, on all its seeds."""
    sweep = {"learning_rates": [1e-6, 1e-5], "steps": 4, "widen": 2, "num_seeds": 2}
    arms = {"standard": {"model": "standard"}}
    fields = tiny_fields(text, arms=arms, sweep=sweep)
    fields["base"] |= {"optimizer": {"clip": 0.0}, "eval_tokens": 64}
    plan = Plan.of(fields)
    tuned = tune(plan, tmp_path)
    assert [rate for rate, _ in tuned["standard"].sweep] == [1e-6, 1e-5, 1e-4, 1e-3]
    assert tuned["standard"].learning_rate == 1e-3
    assert not tuned["standard"].inside
    records = [
        json.loads((tmp_path / f"sweep/standard/{name}.json").read_text())
        for name in ("lr-0.001", "lr-0.001-seed-1001")
    ]
    assert [record["seed"] for record in records] == [1000, 1001]
    losses = [record["valid"]["loss"] for record in records]
    assert tuned["standard"].sweep[-1] == (1e-3, sum(losses) / 2)
    (tmp_path / "tuned.json").unlink()
    assert tune(plan, tmp_path) == tuned


@pytest.mark.parametrize(
    ("losses", "beyond"),
    [
        ({1e-3: 3.0, 2e-3: 2.0, 4e-3: 2.5}, None),
        ({1e-3: 3.0, 2e-3: 2.5, 3e-3: 2.0}, 4.5e-3),
        ({1e-3: 2.0, 4e-3: 2.5}, 2.5e-4),
        ({1e-3: 3.0, 2e-3: 2.5, 4e-3: None}, None),
        ({1e-3: None, 2e-3: None}, None),
        ({1e-3: 2.0}, None),
    ],
)
def test_beyond_a_best_rate_at_an_end_is_one_as_far_as_its_neighbour(losses, beyond):
    assert Choice.of(losses.items()).beyond == beyond


def test_a_choice_stands_and_an_arm_without_one_is_not_run(text, tmp_path):
    """An arm whose sweep failed is not trained at some other rate; nor is a choice made anew."""
    arms = tiny_fields(text)["arms"] | {
        "broken": {"model": "standard", "optimizer": {"clip": 0.0, "warmup": 0}}
    }
    sweep = {"learning_rates": [1e-3, 1e-2], "steps": 2}
    plan = Plan.of(tiny_fields(text, arms=arms, seeds=1, sweep=sweep))
    tune(plan, tmp_path)
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    tuned["gated"]["learning_rate"] = 1e-3
    tuned["broken"]["learning_rate"] = None
    (tmp_path / "tuned.json").write_text(json.dumps(tuned))
    for path in (tmp_path / "sweep" / "broken").glob("*.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**failed(record), "ended": "9999"}))
    run_all(plan, tmp_path)
    experiment = read_experiment(tmp_path)
    assert experiment.summary["gated"].learning_rate == 1e-3
    assert set(experiment.summary) == {"standard", "gated"}
    assert "every run of its sweep failed" in experiment.failures[0].error


def failed(record):
    """The record of the same run, had it failed."""
    return {**record, "status": "failed", "error": "no such thing"}


def test_what_failed_in_another_process_meanwhile_is_not_tried_again_at_once(text, tmp_path):
    plan = Plan.of(tiny_fields(text, seeds=1))
    complete(plan, tmp_path)
    path = tmp_path / "runs" / "gated" / "seed-0.json"
    record = failed(json.loads(path.read_text()))
    path.write_text(json.dumps({**record, "began": "2000", "ended": "9999"}))
    counter = Counter()
    assert isinstance(complete(plan, tmp_path, counter)[1], Failed)
    assert counter.begun == []
    path.write_text(json.dumps({**record, "ended": "2000"}))
    assert isinstance(complete(plan, tmp_path, counter)[1], Finished)


def start(plan_path, out):
    """`qkvflow experiment run` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "qkvflow",
        "experiment",
        "run",
        "--plan",
        str(plan_path),
        "--out",
        str(out),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def files(out):
    """What an experiment left behind, without times."""
    names = ["statistics_summary.json", "significance_tests.json", "tuned.json", "ngram_baselines.json"]
    paths = [*(out / name for name in names), *sorted(out.glob("runs/*/*.json"))]
    return {str(path.relative_to(out)): without_times(json.loads(path.read_text())) for path in paths}


@pytest.fixture
def plan_path(text, tmp_path):
    """A plan with a sweep, in a file."""
    fields = tiny_fields(text, sweep={"learning_rates": [1e-3, 1e-2], "steps": 4})
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def wait_for(directory, pattern):
    """Until there is such a file."""
    deadline = time.time() + 200
    while not list(directory.glob(pattern)):
        assert time.time() < deadline, pattern
        time.sleep(0.02)


@pytest.mark.usefixtures("all_cores")
def test_killed_and_started_again_or_shared_by_two_it_leaves_the_same_files(plan_path, tmp_path):
    whole = start(plan_path, tmp_path / "whole")
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    assert "gated" in output
    killed = tmp_path / "killed"
    for begun_or_ended in ("sweep/*/*.json", "runs/*/*/metrics.jsonl"):
        process = start(plan_path, killed)
        wait_for(killed, begun_or_ended)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    pair = [start(plan_path, killed) for _ in range(2)]
    for process in pair:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    assert files(killed) == files(tmp_path / "whole")


@pytest.fixture
def interruptible():
    """What a shell starts in the background ignores SIGINT, and so would a process started here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("all_cores", "interruptible")
def test_asked_to_stop_it_says_how_to_go_on(plan_path, tmp_path):
    process = start(plan_path, tmp_path / "out")
    wait_for(tmp_path / "out", "sweep/*/*.json")  # a run has ended, the next is under way
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "again to resume" in output or "Interrupted" in output


class AskAtTheEnd(Sink):
    """Asks the process to stop when a run has taken its last step."""

    def write(self, record):
        if record["kind"] == "final":
            os.kill(os.getpid(), signal.SIGINT)


def test_asked_to_stop_after_the_last_step_of_a_run_it_does_not_begin_another(text, tmp_path):
    class Asking(Counter):
        def begin(self, job):
            super().begin(job)
            return [AskAtTheEnd()]

    plan, asking = Plan.of(tiny_fields(text)), Asking()
    with pytest.raises(StoppedError):
        complete(plan, tmp_path, asking)
    assert len(asking.begun) == 1
    assert len(finished(complete(plan, tmp_path))) == 4


def test_arms_that_are_tuned_later_do_not_lose_the_others(text, tmp_path):
    plan = Plan.of(tiny_fields(text, sweep={"learning_rates": [1e-3, 1e-2], "steps": 2}))
    for arm in ("standard", "gated"):
        tune(plan.with_arms([arm]), tmp_path)
    assert set(json.loads((tmp_path / "tuned.json").read_text())) == {"standard", "gated"}


def test_a_choice_of_another_process_that_was_made_meanwhile_stands(text, tmp_path):
    plan = Plan.of(tiny_fields(text, sweep={"learning_rates": [1e-3, 1e-2], "steps": 2}))

    class OtherProcess(Counter):
        """Chooses for one arm, and fails to for the other, while this one sweeps."""

        def begin(self, job):
            none = {"inside": False, "sweep": []}
            others = {
                "gated": {"learning_rate": 7.0, **none},
                "standard": {"learning_rate": None, **none},
            }
            (tmp_path / "tuned.json").write_text(json.dumps(others))
            return super().begin(job)

    tuned = tune(plan, tmp_path, OtherProcess())
    assert tuned["gated"] == Choice(7.0, False, ())
    assert tuned["standard"].learning_rate in (1e-3, 1e-2)
    assert tuned == read_choices(tmp_path)


@pytest.mark.slow  # an option of the command does the same: cli/test_experiments.py
def test_workers_are_submitted_and_share_the_runs(text, tmp_path):
    plan = Plan.of(tiny_fields(text))
    jobs = submit(plan, tmp_path / "out", 2, {"timeout_min": 5}, cluster="local")
    for job in jobs:
        assert len(finished(job.result())) == 4


def test_submitting_without_submitit_is_a_sentence(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=re.escape(pip_line("slurm"))):
        submit(Plan.of(tiny_fields(text)), tmp_path, 1, {})
