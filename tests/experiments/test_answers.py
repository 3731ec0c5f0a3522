"""Experiments on a text of questions keep how many answers are right, and show it."""

import dataclasses
import json

import pytest

from qkvflow.data import Accuracy
from qkvflow.experiments import tables
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import AtDepth, Choice, record_of_json, record_to_json
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import read_experiment
from qkvflow.experiments.search import chosen
from qkvflow.experiments.summary import answer_tests, answers_by_arm
from qkvflow.files import FileError
from qkvflow.models import unroll
from qkvflow.report.table import Table
from qkvflow.train import evaluate, load_model
from qkvflow.train.resume import open_data
from tests.experiments.support import made_up_record, run_all, tiny_fields

DATA = "hops:hops=1,test_hops=2,length=6,questions=1,problems=100"
LENGTH = 6 + 1 + 6


def answered(arm, seed, whole, deeper=None):
    """A record of a run that never ran and has this share of answers right."""
    record = made_up_record(arm, seed, 2.0 - whole, rate=1e-3 * (1 + seed))
    known = Accuracy(whole, 0.9, 50, "hops", {"1": whole, "2": 0.25}, {"1": 0.5, "2": 0.25})
    valid = dataclasses.replace(record.valid, accuracy=known)
    at = dataclasses.replace(known, whole=whole if deeper is None else deeper)
    depths = () if deeper is None else (AtDepth(8, 1.0, 1.0, 1e6, at),)
    return dataclasses.replace(record, valid=valid, depths=depths)


def test_runs_keep_their_accuracy_on_all_splits_and_at_all_depths(tmp_path):
    fields = tiny_fields(
        DATA, depths=[2, 4], unit_steps=True, test=True, arms={"shared": {"model": "shared"}}
    )
    fields["base"] |= {"length": LENGTH, "answers_only": True}
    plan = Plan.of({**fields, "reference": "shared", "seeds": 1})
    assert Plan.of(plan.fields) == plan and plan.unit_steps
    run_all(plan, tmp_path / "out")
    experiment = read_experiment(tmp_path / "out")
    (run,) = experiment.records
    assert run.valid.accuracy.answers == run.test.accuracy.answers == 10 == run.valid.tokens
    assert run.depths[0].accuracy == run.valid.accuracy and run.depths[0].loss == run.valid.loss
    assert run.valid.accuracy.guess == {"1": 1 / 3, "2": 1 / 3}
    split = open_data(plan.arm("shared").run)["valid"]
    model = load_model(tmp_path / "out/runs/shared/seed-0/final")
    deeper = unroll(model, 4, unit_steps=True)
    found = evaluate(deeper, split, length=LENGTH, batch_size=4, answers_only=True)
    assert (found.loss, found.accuracy) == (run.depths[1].loss, run.depths[1].accuracy)
    assert found.loss != evaluate(unroll(model, 4), split, length=LENGTH, answers_only=True).loss
    titles = [item.title for item in experiment_page("A", experiment, {}) if isinstance(item, Table)]
    assert "Accuracy" in titles


def test_a_record_is_read_as_it_was_written_and_an_older_one_has_none():
    record = answered("a", 0, 0.75, deeper=0.5)
    content = json.loads(json.dumps(record_to_json(record)))
    assert record_of_json(content, "here") == record
    older = made_up_record("a", 0, 1.0)
    assert "accuracy" not in record_to_json(older)["valid"]
    assert record_of_json(record_to_json(older), "here").valid.accuracy is None
    content["valid"]["accuracy"]["whole"] = "most"
    with pytest.raises(FileError, match="whole is 'most'"):
        record_of_json(content, "here")


def test_the_table_of_accuracy_has_a_row_for_every_depth_and_the_guess():
    records = [answered("a", seed, 0.5 + 0.1 * seed, deeper=0.9) for seed in (0, 1)]
    records += [made_up_record("b", 0, 1.0)]
    found = answers_by_arm(records)
    assert found.keys() == {"a", "a@8"} and found["a"].answers.mean == pytest.approx(0.55)
    table = tables.accuracy(records)
    assert table.heads == ("model", "answers", "tokens", "1 hops", "2 hops")
    assert [row[0] for row in table.rows] == ["a", "a@8", "guess"]
    assert table.rows[0][1].startswith("55.0 +- ") and table.rows[1][1] == "90.0 +- 0.0%"
    brief = tables.accuracy(records, halves=False).rows[0]
    assert brief == ("a", "55.0%", "90.0%", "55.0%", "25.0%"), "as 80 columns hold it"
    assert table.rows[2] == ("guess", "", "", "50.0%", "25.0%")


def test_arms_are_compared_by_the_answers_that_are_wrong():
    records = [answered("a", seed, 0.8 + 0.01 * seed, deeper=0.9 + 0.02 * seed) for seed in (0, 1, 2)]
    records += [answered("b", seed, 0.5 + 0.02 * seed) for seed in (0, 1, 2)]
    arms = {"a": {"model": "shared"}, "b": {"model": "standard"}}
    fields = tiny_fields(DATA, arms=arms, reference="a", depths=[8], seeds=3)
    plan = Plan.of({**fields, "contrasts": [["a", "b"], ["a@8", "a"]]})
    first, second = answer_tests(plan, records)
    assert first.found.difference == pytest.approx(-0.29) and first.family == 2
    assert second.found.difference == pytest.approx(-0.11)
    table = tables.differences(plan, [first, second])
    assert table.title == "Differences in wrong answers" and table.rows[0][2] == "-0.2900"
    assert answer_tests(plan, [made_up_record("a", seed, 1.0) for seed in (0, 1)]) == []


def test_a_learning_rate_is_chosen_by_wrong_answers():
    """The first has the lower share; losses would choose the other."""
    low, high = answered("a", 0, 0.9), answered("a", 1, 0.4)
    low = dataclasses.replace(low, valid=dataclasses.replace(low.valid, loss=9.0))
    sweep = {"learning_rates": [1e-3, 2e-3], "steps": 4}
    plan = Plan.of(tiny_fields("x", sweep=sweep, arms={"a": {"model": "standard"}}, reference="a"))
    found = chosen(plan, [low, high])["a"]
    assert found == Choice.of([(1e-3, 1 - 0.9), (2e-3, 1 - 0.4)]) and found.learning_rate == 1e-3
