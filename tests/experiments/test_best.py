"""Runs judged at their best evaluation: the same after a kill, retention, records, tables, figures."""

import dataclasses
import json
import os
import shutil
import signal

import numpy as np
import pytest

from qkvflow.experiments.best import losses_of_batches, lost_its_best
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import (
    AtBest,
    Choice,
    Evaluation,
    Swept,
    record_of_json,
    record_to_json,
)
from qkvflow.experiments.report import draw_all, write_report
from qkvflow.experiments.results import Experiment, read_experiment, save_plan, write_results
from qkvflow.experiments.reuse import take_over
from qkvflow.experiments.runner import StoppedError, complete, run_jobs
from qkvflow.experiments.tables import best_evaluation, swept_settings
from qkvflow.files import FileError
from qkvflow.train import Sink, evaluate, load_model, read_metrics, train
from qkvflow.train.checkpoints import best_checkpoint
from qkvflow.train.resume import open_data
from tests.experiments.support import (
    Counter,
    check_picture,
    made_up_record,
    run_all,
    tiny_fields,
    without_times,
)

PLACE = "runs/standard/seed-0"
GOOD = Evaluation(1.0, 1.4, 0.1, True, 300)


@pytest.fixture
def fields(_trained, tmp_path):
    """A plan of one run that gets worse with every step: what it is judged on is another language."""
    for split, symbols in {"train": "ab", "valid": "zyx", "test": "zx"}.items():
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / f"{split}.txt").write_text(symbols * 150)
    fields = tiny_fields(tmp_path / "text", seeds=1, arms={"standard": {"model": "standard"}})
    fields["base"] |= {"eval_every": 2, "optimizer": {"learning_rate": 3e-2, "warmup": 0}}
    return {**fields, "test": True, "judge_best": True}


def done(fields, out, watcher=None):
    """The only record of a plan."""
    save_plan(Plan.of(fields), out)
    (record,) = complete(Plan.of(fields), out, watcher)
    return record


class KillsAt(Sink, Counter):
    """Asks the process to stop at a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def begin(self, job):
        super().begin(job)
        return [self]

    def write(self, record):
        if record["kind"] == "train" and record["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_is_judged_at_its_best_evaluation_whenever_it_was_killed(fields, tmp_path):
    plan, whole = Plan.of(fields), tmp_path / "whole"
    record = done(fields, whole)
    curve = {point.step: point.loss for point in record.curve if point.step}
    assert record.best.step == min(curve, key=curve.get) == 2 and curve[2] < curve[6]
    assert record.best.valid.whole and record.best.valid.loss < record.valid.loss
    assert record.best.test.loss < record.test.loss
    assert record.best.train_loss > record.best.train_loss_at_end
    assert record.best.epochs == 6 * 4 / 17, "of 300 tokens, 18 windows of 16 but one"
    assert [step for step, _ in record.best.batches] == [2, 4, 6]
    assert not (whole / PLACE / "checkpoints").exists(), "what was judged is needed no more"
    killed = tmp_path / "killed"
    with pytest.raises(StoppedError):
        done(fields, killed, KillsAt(5))
    assert best_checkpoint(killed / PLACE)[1] == 2, "kept, though keep is 1"
    split = open_data(plan.arms[0].run)["test"]
    model = load_model(best_checkpoint(killed / PLACE)[0])
    assert evaluate(model, split, length=16, batch_size=4).loss == record.best.test.loss
    again = done(fields, killed)
    assert without_times(record_to_json(again)) == without_times(record_to_json(record))
    found = read_experiment(whole)
    write_results(found)
    row = json.loads((whole / "statistics_summary.json").read_text())["standard"]
    assert row["all_best_losses"] == [record.best.valid.loss]
    assert row["all_best_test_losses"] == [record.best.test.loss]


def test_a_best_checkpoint_that_is_lost_before_it_was_judged_is_made_again(fields, tmp_path):
    """Killed after the last step and before the record, with a file that is gone."""
    record = done(fields, tmp_path)
    (tmp_path / f"{PLACE}.json").unlink()
    assert lost_its_best(tmp_path / PLACE)
    assert run_all(Plan.of(fields), tmp_path) == [("standard", 0)]
    again = read_experiment(tmp_path).records[0]
    assert without_times(record_to_json(again)) == without_times(record_to_json(record))
    shutil.rmtree(tmp_path / PLACE)
    (job,) = run_jobs(Plan.of(fields), tmp_path, {})
    (tmp_path / f"{PLACE}.json").unlink()
    train(job.run, job.out, [])
    damaged, _ = best_checkpoint(job.out)
    (damaged / "model.safetensors").write_bytes(b"x")
    assert best_checkpoint(job.out) is None
    again = done(fields, tmp_path)
    assert without_times(record_to_json(again)) == without_times(record_to_json(record))


def test_without_an_evaluation_in_training_the_end_is_the_best(fields, tmp_path):
    fields["base"] |= {"eval_every": 100}
    record = done({**fields, "test": False}, tmp_path)
    assert record.best.step == 6 and record.best.batches == () and record.best.test is None
    assert record.best.valid.loss == record.valid.loss


def test_a_record_that_lacks_what_the_plan_asks_for_is_made_again(fields, tmp_path):
    (job,) = run_jobs(Plan.of(fields), tmp_path, {})
    record = dataclasses.replace(made_up_record("standard", 0, 2.0), run=job.run.to_dict(), test=GOOD)
    assert not job.is_judged(record)
    best = AtBest(50, GOOD, None, 0.5, 0.2, 20.0)
    assert not job.is_judged(dataclasses.replace(record, best=best)), "its test split is not opened"
    best = dataclasses.replace(best, test=GOOD)
    assert job.is_judged(dataclasses.replace(record, best=best))
    plain = dataclasses.replace(job, judge_best=False)
    assert plain.is_judged(record) and not plain.is_judged(dataclasses.replace(record, test=None))
    take_over([job], [])
    assert job.record() is None
    save_plan(Plan.of(fields), tmp_path)
    with pytest.raises(FileError, match="at their best evaluation, here they are not"):
        save_plan(Plan.of({**fields, "judge_best": False}), tmp_path)


def test_losses_of_batches_are_means_since_the_evaluation_before(tmp_path):
    lines = [("valid", 0, 9.0), ("train", 1, 4.0), ("train", 2, 2.0), ("valid", 2, 8.0)]
    lines += [("train", 3, 1.0), ("train", 4, None), ("valid", 4, 7.0), ("valid", 6, 7.0)]
    metrics = [{"kind": kind, "step": step, "loss": loss, "seconds": 1.0} for kind, step, loss in lines]
    assert losses_of_batches(metrics) == ((2, 3.0), (4, 1.0))
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == len(metrics)
    assert lost_its_best(tmp_path), "it was evaluated, and there is no checkpoint"


def at_best(record, by):
    """A record whose best evaluation was so much below its last."""
    valid = dataclasses.replace(GOOD, loss=record.valid.loss - by)
    test = dataclasses.replace(GOOD, loss=record.valid.loss - by + 0.125)
    best = AtBest(50 + record.seed, valid, test, 1.5, 0.75, 20.5, ((50, 2.0), (100, 1.0)))
    return dataclasses.replace(record, best=best, test=dataclasses.replace(GOOD, loss=3.0))


@pytest.fixture
def judged(tmp_path):
    """Two arms with three seeds; the one that is worse at its end is better at its best."""
    arms = {"standard": {"model": "standard"}, "shared": {"model": "shared"}}
    plan = Plan.of(tiny_fields("x.txt", arms=arms, seeds=3, judge_best=True, test=True))
    losses = {"standard": ((2.0, 2.25, 2.5), 1.0), "shared": ((1.5, 1.75, 2.0), 0.25)}
    records = [
        at_best(made_up_record(arm, seed, loss), by + seed / 100)
        for arm, (of_seeds, by) in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]
    return Experiment(tmp_path, plan, records)


def test_records_at_the_best_evaluation_are_read_as_they_were_written(judged):
    for record in judged.records:
        content = json.loads(json.dumps(record_to_json(record)))
        assert record_of_json(content, "here") == record
        for change in ({"step": "2"}, {"valid": None}, {"batches": [[1, "x"]]}, {"epochs": 1e300}):
            with pytest.raises(FileError, match="here is not the record of a run"):
                record_of_json({**content, "best": {**content["best"], **change}}, "here")
    plain = dataclasses.replace(record, best=None)
    assert "best" not in record_to_json(plain)
    assert record_of_json(record_to_json(plain), "here").best is None


def test_the_table_has_both_evaluations_and_the_gap(judged):
    table = best_evaluation(judged.records)
    (standard, shared) = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert standard["best after step"] == "50 to 52"
    assert standard["valid, last"].startswith("2.2500") and standard["valid, best"].startswith("1.2400")
    assert standard["test, best"].startswith("1.3650") and standard["test, last"] == "3.0000 +- 0.0000"
    assert standard["gap, best"].startswith("-0.2600") and standard["gap, last"].startswith("1.5000")
    assert shared["gap, last"].startswith("1.0000")
    assert "was read 20.5 times" in table.note
    plain = best_evaluation([dataclasses.replace(judged.records[0], test=None)])
    assert plain.rows[0][0] == "standard"


def test_differences_are_those_of_each_evaluation(judged):
    means = [tests[0].found.difference for tests in (judged.tests, judged.at_best)]
    assert np.allclose(means, [0.5, -0.25]), "standard minus shared: the order is another at the best"
    assert judged.at_best_on_test[0].split == "best test"
    assert np.isclose(judged.at_best_on_test[0].found.difference, -0.25)
    assert judged.summary["shared"].best_test.mean == judged.summary["shared"].best.mean + 0.125


def test_the_page_shows_both_evaluations_and_what_else_was_swept(judged, tmp_path):
    settings = (Swept("optimizer.weight_decay", 0.5, False, ((0.0, 2.0), (0.5, 1.5))),)
    rates, first = ((1e-3, 1.5), (2e-3, 1.75)), ((1e-3, 2.0), (2e-3, 2.5), (4e-3, None))
    choices = {"standard": Choice(1e-3, False, rates, first, settings), "shared": Choice.of(rates)}
    page = write_report([dataclasses.replace(judged, choices=choices)], "A title")[1].read_text()
    for words in ("Best and last evaluation", "Differences at the best evaluation, on the test split"):
        assert words in page
    assert "train_and_valid.png" in page and "and at its best evaluation" in page
    assert (
        "| standard | optimizer.weight_decay | 0: 2.0000, 0.5: 1.5000 | 0.5 | no, at an end |" in page
    )
    assert "| 1e-3: 2.0000, 2e-3: 2.5000, 4e-3: failed | 1e-3 | no, at an end |" in page
    assert swept_settings({"shared": choices["shared"]}) is None
    assert "train_and_valid" in draw_all(judged, tmp_path / "figures")
    check_picture(tmp_path / "figures" / "train_and_valid.png")
