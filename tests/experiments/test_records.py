"""Records of both schemas: what is written is read, what is older is understood."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.config import ConfigError, RunConfig
from qkvflow.experiments.baselines import read_baselines
from qkvflow.experiments.records import (
    SCHEMA,
    Choice,
    Costs,
    Evaluation,
    Failed,
    Finished,
    Origin,
    Point,
    choices_of_json,
    choices_to_json,
    record_of_json,
    record_to_json,
)
from qkvflow.experiments.results import unlike
from qkvflow.experiments.store import gates_like, read_record, recorded_plan
from qkvflow.files import FileError
from tests.experiments.support import ORIGIN, made_up_failure, made_up_record

RESULTS = Path(__file__).parents[2] / "results"
EVALUATED = {"bits_per_byte": 1.0, "standard_error": None, "whole": True, "tokens": 3}
CHANGED = [{"learning_rate": "1e-3"}, {"inside": 1}, {"sweep": [[1e-3]]}, {"sweep": [["a", 1.0]]}]
numbers = st.floats(-1e99, 1e99)
counts = st.integers(0, 2**53)
texts = st.text(max_size=20)
evaluations = st.builds(Evaluation, numbers, numbers, st.none() | numbers, st.booleans(), counts)
origins = st.builds(
    Origin,
    st.dictionaries(texts, texts, max_size=3),
    st.fixed_dictionaries({"processor": texts, "cores": st.none() | counts, "system": texts}),
    texts,
    texts,
    st.none() | texts,
)
runs = st.integers(0, 9).map(lambda seed: RunConfig(seed=seed).to_dict())
records = st.builds(
    Finished,
    texts,
    counts,
    runs,
    origins,
    texts,
    evaluations,
    st.none() | evaluations,
    st.builds(Costs, counts.map(lambda count: count + 1), counts, numbers, numbers, st.none() | counts),
    numbers,
    numbers,
    st.lists(st.builds(Point, counts, numbers, numbers), max_size=4).map(tuple),
    st.lists(texts, max_size=2).map(tuple),
) | st.builds(Failed, texts, counts, runs, origins, texts.filter(str.strip))


def without(name):
    """The settings of a run but one."""
    return {field: value for field, value in RunConfig().to_dict().items() if field != name}


@settings(max_examples=60, deadline=None)
@given(records)
def test_what_is_written_is_read(record):
    text = json.dumps(record_to_json(record), allow_nan=False)
    assert json.loads(text)["schema"] == SCHEMA
    assert record_of_json(json.loads(text), "here") == record


def test_a_record_of_the_first_schema_says_what_it_says_packed():
    """Its run lacks fields that came later, which have what the run did."""
    path = Path(__file__).with_name("first_schema.json")
    content = json.loads(path.read_text())
    assert "schema" not in content and "gate_shift" not in content["run"]["architecture"]
    record = record_of_json(content, str(path))
    assert record == read_record(RESULTS / "laptop", "runs/shared/seed-0")
    assert record.valid.loss == content["valid"]["loss"]
    assert record.costs.parameters == content["parameters"]
    assert record.run.keys() == RunConfig().to_dict().keys()


def test_choices_that_are_written_are_read():
    choices = {
        "a": Choice.of([(4e-3, None), (1e-3, 3.0), (2e-3, 2.0)]),
        "b": Choice.of([(1e-3, None)]),
    }
    assert choices["a"] == Choice(2e-3, True, ((1e-3, 3.0), (2e-3, 2.0), (4e-3, None)))
    assert choices["b"].learning_rate is None
    assert choices_of_json(json.loads(json.dumps(choices_to_json(choices))), "here") == choices


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": 3}, "here has schema 3; this version reads up to 2"),
        ({"schema": "two"}, "here has schema 'two'"),
        ({"valid": None}, "here is not the record of a run"),
        ({"valid": {"loss": 1.0}}, "here is not the record of a run: it has no 'bits_per_byte'"),
        ({"curve": [[1, 2]]}, "here is not the record of a run"),
        ({"curve": [[0, 0.0, "low"]]}, "curve has .*; expected step, seconds and loss"),
        ({"valid": {"loss": "low", **EVALUATED}}, "loss is 'low'; expected float"),
        ({"test": []}, r"test is \[\]; expected Evaluation or None"),
        ({"run": {}}, "here is not the record of a run: it has no 'optimizer'"),
        ({"run": []}, "here is not the record of a run: it has no 'optimizer'"),
        ({"run": {**without("steps"), "steps": None}}, "run.steps is None; expected int"),
        ({"run": without("batch_size")}, "here is not the record of a run: it has no 'batch_size'"),
        ({"run": without("tokenizer")}, "here is not the record of a run: it has no 'tokenizer'"),
        ({"status": "failed", "error": ""}, "it failed, and its error is empty"),
        ({"status": "failed", "error": "\n"}, "it failed, and its error is empty"),
        ({"machine": {}}, "here is not the record of a run: it has no 'processor'"),
        ({"machine": {**ORIGIN.machine, "cores": "2"}}, "machine.cores is '2'; expected int or None"),
        ({"seconds": 1e300}, r"it has the number 1e\+300; expected numbers below 1e\+100"),
        ({"curve": [[0, 0.0, -1e300]]}, "expected numbers below"),
        ({"status": "lost"}, "its status is 'lost'"),
        ({"seed": "0"}, "seed is '0'; expected int"),
        ({"parameters": None}, "parameters is None; expected int"),
        ({"parameters": 0}, "parameters is 0; expected at least 1"),
        ({"versions": []}, r"versions is \[\]; expected a table of names"),
    ],
)
def test_what_is_no_record_is_said(change, sentence):
    content = {**record_to_json(whole()), **change}
    with pytest.raises(FileError, match=sentence):
        record_of_json(content, "here")


@pytest.mark.parametrize("content", [[], None, 3, "record"])
def test_what_is_no_table_is_no_record(content):
    with pytest.raises(FileError, match="here is not the record of a run: it is .*; expected a table"):
        record_of_json(content, "here")


@pytest.mark.parametrize("content", [{}, {"run": {}}])
def test_what_is_no_record_at_all(content):
    with pytest.raises(FileError, match="here is not the record of a run"):
        record_of_json(content, "here")


@pytest.mark.parametrize(
    "content",
    [[], None, 3, {"a": []}, {"a": {}}]
    + [{"a": {"learning_rate": 1e-3, "inside": True, "sweep": [], **changed}} for changed in CHANGED],
)
def test_what_are_no_choices(content):
    with pytest.raises(FileError, match="here is not a table of learning rates"):
        choices_of_json(content, "here")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{}",
        b'{"place": 3, "content": {}}',
        b'{"place": "a"}',
        b"[" * 3000,
        b'{"place": "\xff"}',
    ],
    ids=lambda line: line[:12].decode(errors="replace"),
)
def test_a_line_of_a_packed_file_that_is_none(tmp_path, line):
    (tmp_path / "records.jsonl").write_bytes(b'{"place": "a", "content": 1}\n' + line)
    with pytest.raises(FileError, match=r"records.jsonl, line 2, is damaged: .*Restore the file"):
        read_record(tmp_path, "a")


@pytest.mark.parametrize("content", [[], None, {"data_digest": "x", "valid": []}])
def test_what_are_no_baselines(tmp_path, content):
    (tmp_path / "ngram_baselines.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="is not a table of n-grams"):
        read_baselines(tmp_path)


def test_what_are_no_gates(tmp_path):
    (tmp_path / "gates.safetensors").write_bytes(b"none")
    with pytest.raises(FileError, match=r"gates.safetensors holds no gates: .*Restore the file"):
        gates_like(tmp_path, "runs/*/seed-*")


def whole():
    """A record whose run has all settings."""
    return dataclasses.replace(made_up_record("a", 0, 2.0), run=RunConfig().to_dict())


def test_a_failure_has_a_sentence_and_where_it_came_from():
    assert made_up_failure("a", 0).sentence == "no such thing"


def test_a_plan_with_a_switch_that_is_gone_is_read(tmp_path):
    (tmp_path / "plan.yaml").write_text(
        "base: {steps: 5, architecture: {hidden_dim: 8}}\n"
        "arms: {old: {architecture: {gone: true}}, 2: {parameters_of: old}}\nseeds: [3, 4]\n"
    )
    plan = recorded_plan(tmp_path)
    assert plan.names == ["old", "2"]
    assert plan.seeds == (3, 4)
    assert plan.reference == "old"
    assert (plan.sweep, plan.margin, plan.test) == (None, 0.01, False)
    assert plan.arm("old").table["architecture"] == {"hidden_dim": 8, "gone": True}
    assert plan.arm("2").parameters_of == "old"
    with pytest.raises(ConfigError, match="old: .*gone"):
        plan.checked()
    with pytest.raises(FileError, match="is no experiment"):
        recorded_plan(tmp_path / "nowhere")
    (tmp_path / "plan.yaml").write_text("base: {}\n")
    with pytest.raises(FileError, match="is not the plan of an experiment:(.|\n)*arms is missing"):
        recorded_plan(tmp_path)


def test_settings_are_compared_where_both_name_them():
    planned = {"steps": 5, "architecture": {"hidden_dim": 8, "gone": 1}, "optimizer": {"warmup": 2}}
    run = {"steps": 6, "architecture": {"hidden_dim": 8}, "optimizer": {"warmup": 3}, "seed": 0}
    assert unlike(planned, run) == ["steps", "optimizer.warmup"]
