"""Runs of one experiment that are runs of another: taken where they are the same, and only there."""

import dataclasses

import pytest

from qkvflow.config import RunConfig
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.pack import pack
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import read_experiment, save_plan
from qkvflow.experiments.reuse import take_over
from qkvflow.experiments.runner import Watcher, complete, prepare
from qkvflow.experiments.store import write_record
from qkvflow.files import FileError, read_json
from qkvflow.lock import locked
from tests.experiments.support import made_up_failure, made_up_record, tiny_fields


class Begun(Watcher):
    """Which runs were begun here."""

    def __init__(self):
        self.runs = []

    def begin(self, job):
        self.runs.append(f"{job.arm}/{job.out.name}")
        return ()


def begun(fields, out, *others):
    """Do all of a plan; what had to be run for it."""
    plan, watcher = Plan.of(fields), Begun()
    save_plan(plan, out)
    complete(plan, out, watcher, others)
    return watcher.runs


def test_the_same_run_is_not_run_twice_whatever_its_arm_is_called(text, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    gated, shared = {"model": "time_indexed_mlp"}, {"model": "shared"}
    common = {"sweep": {"learning_rates": [1e-3, 1e-2], "steps": 4}, "seeds": 1, "test": True}
    fields = tiny_fields(text, **common, arms={"gated": gated}, reference="gated")
    assert len(begun(fields, first)) == 3
    fields = tiny_fields(text, **common, arms={"time": gated, "shared": shared}, reference="time")
    assert begun(fields, second, first) == ["shared/lr-0.001", "shared/lr-0.01", "shared/seed-0"]
    there, here = (read_json(of / "seed-0.json") for of in (first / "runs/gated", second / "runs/time"))
    assert here == {**there, "arm": "time", "taken_from": "first/runs/gated/seed-0"}
    old, new = read_experiment(first).gates["gated"][0], read_experiment(second).gates["time"][0]
    assert new["mlp.up"].tolist() == old["mlp.up"].tolist()
    last = experiment_page("", read_experiment(second), {})[-1]
    assert last.text.endswith(" 1 of the runs are those of first.")


RUN = RunConfig.from_dict({**tiny_fields("x.txt")["base"], "model": "shared", "seed": 3})
HEAVIER = dataclasses.replace(RUN.optimizer, weight_decay=0.2)
DEEPER = dataclasses.replace(RUN.architecture, num_layers=3)


@pytest.fixture(params=["loose", "packed"])
def other(request, tmp_path):
    """An experiment with the record of one run."""
    out = tmp_path / "other"
    record = made_up_record("there", 3, 2.0)
    record = dataclasses.replace(record, run=RUN.to_dict(), data_digest="abc")
    write_record(out, "runs/there/seed-3", record)
    (out / "plan.yaml").write_text("arms: {there: {model: shared}}\nseeds: [3]\n")
    if request.param == "packed":
        pack(out)
        assert not (out / "runs").exists()
    return out


def taken(run, other, **fields):
    """What a job takes from another experiment."""
    job = Job("here", run, other.parent / "new", "runs/here/seed-3", "abc")
    job = dataclasses.replace(job, **fields)
    take_over([job], [other])
    return job.record()


def test_a_record_says_where_it_is_from(other):
    record = taken(RUN, other)
    assert record.arm == "here"
    assert record.origin.taken_from == "other/runs/there/seed-3"


@pytest.mark.parametrize(
    "change", [{"steps": 7}, {"seed": 4}, {"optimizer": HEAVIER}, {"architecture": DEEPER}]
)
def test_a_run_of_other_settings_is_not_taken(other, change):
    assert taken(dataclasses.replace(RUN, **change), other) is None


def test_nor_is_one_on_another_text_or_one_that_did_not_open_the_test_split(other):
    assert taken(RUN, other, digest="abcd") is None
    assert taken(RUN, other, test=True) is None


def test_nor_is_one_that_failed(other):
    write_record(other, "runs/there/seed-3", made_up_failure("there", 3))
    assert taken(RUN, other) is None


def test_what_is_there_already_stays(other):
    failed = made_up_failure("here", 3)
    write_record(other.parent / "new", "runs/here/seed-3", failed)
    assert taken(RUN, other).error == failed.error


def test_what_another_process_works_on_is_left_to_it(other):
    with locked(other.parent / "new" / "runs" / "here" / ".seed-3.claim"):
        assert taken(RUN, other) is None
    assert taken(RUN, other).arm == "here"


def test_a_directory_without_an_experiment(tmp_path):
    with pytest.raises(FileError, match=r"is no experiment: it is not there"):
        prepare(Plan.of(tiny_fields("x.txt")), tmp_path / "out", reuse=[tmp_path / "nowhere"])
