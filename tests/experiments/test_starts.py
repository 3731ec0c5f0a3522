"""Arms that start from the runs of another experiment."""

import json
import shutil

import pytest

from qkvflow.config import ConfigError
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Failed
from qkvflow.experiments.results import read_experiment
from qkvflow.experiments.runner import complete, prepare
from qkvflow.train import load_model
from tests.experiments.support import Counter, run_all, tiny_fields
from tests.train.support import write_text

LORA = {"architecture": {"adapter": {"method": "lora", "rank": 1}}}
ADAPTED = {"arm": "bases/standard", "depth": 3, "train": "adapter"}


@pytest.fixture
def bases(text, tmp_path):
    """A finished experiment to start from."""
    run_all(Plan.of(tiny_fields(text, arms={"standard": {"model": "standard"}})), tmp_path / "bases")
    return tmp_path / "bases"


def adaptation(text, **changes):
    """A plan of two ways to go on, and fresh weights, on another text than that of the bases."""
    arms = {
        "full": {"start": {"arm": "bases/standard", "depth": 3}},
        "lora": {"start": ADAPTED, **LORA},
        "fresh": {"model": "standard", "architecture": {"num_layers": 3}},
    }
    fields = {"arms": arms, "reference": "fresh", "contrasts": [["full", "fresh"], ["lora", "fresh"]]}
    return Plan.of(tiny_fields(text, **{**fields, **changes}))


def test_runs_start_from_the_run_of_their_seed(bases, tmp_path):
    plan = adaptation(write_text(tmp_path / "other.txt", seed=5))
    out = tmp_path / "out"
    assert prepare(plan, out) is not None
    assert len(run_all(plan, out)) == 6
    digests = set()
    for seed in (0, 1):
        record = json.loads((out / f"runs/lora/seed-{seed}.json").read_text())
        start = record["run"]["start"]
        assert start["checkpoint"] == str(bases / f"runs/standard/seed-{seed}/final")
        assert (start["depth"], start["train"]) == (3, "adapter")
        assert record["run"]["architecture"]["adapter"]["rank"] == 1
        digests.add(start["digest"])
    assert len(digests) == 2
    assert load_model(out / "runs/full/seed-0/final").config.num_layers == 3
    results = read_experiment(out)
    assert [(test.first, test.second) for test in results.tests] == [
        ("full", "fresh"),
        ("lora", "fresh"),
    ]
    assert results.tests[0].family == 2
    assert [(test.first, test.second) for test in results.exploratory] == [("full", "lora")]
    assert results.summary["fresh"].begin is None
    assert results.summary["full"].begin.values == results.summary["lora"].begin.values


def test_a_finished_run_needs_its_base_no_more_nor_where_it_was(bases, text, tmp_path):
    plan = adaptation(text)
    run_all(plan, tmp_path / "out")
    for name in ("bases", "out"):
        shutil.copytree(tmp_path / name, tmp_path / "elsewhere" / name)
    shutil.rmtree(bases)
    counter = Counter()
    for out in (tmp_path / "out", tmp_path / "elsewhere" / "out"):
        prepare(plan, out)
        assert not [record for record in complete(plan, out, counter) if isinstance(record, Failed)]
    assert counter.begun == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arms": {"a": {"start": {"arm": "none/standard"}}}}, "a: start: .*none is no experiment"),
        ({"arms": {"a": {"start": {"arm": "bases/standart"}}}}, "no arm 'standart'. Did you mean"),
        ({"arms": {"a": {"start": ADAPTED, **LORA}}, "seeds": 3}, "seed-2 has no trained model"),
        (
            {"arms": {"a": {"start": ADAPTED}}},
            "a: train is 'adapter', and architecture.adapter is None",
        ),
        (
            {
                "arms": {"a": {"start": ADAPTED, **LORA}},
                "sweep": {"learning_rates": [1e-3, 1e-2], "steps": 2, "seed": 9},
            },
            "seed-9 has no trained model",
        ),
    ],
)
def test_a_base_that_is_not_there_is_said_before_any_work(bases, text, tmp_path, changes, sentence):
    plan = adaptation(text, **{"reference": "a", "contrasts": None, **changes})
    with pytest.raises(ConfigError, match=sentence):
        prepare(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_all_problems_are_in_one_message(text, tmp_path):
    arms = {
        "a": {"start": {"arm": "none/x"}},
        "b": {"model": "standard", "flops_of": "c"},
        "c": {"model": "no such model"},
    }
    with pytest.raises(ConfigError, match="(?s)a: start: .*c: "):
        prepare(Plan.of(tiny_fields(text, arms=arms, reference="a")), tmp_path / "out")


def test_arms_of_different_texts_are_not_compared(text, tmp_path):
    other = str(write_text(tmp_path / "other.txt", seed=5))
    arms = {
        "a": {"model": "standard"},
        "b": {"model": "shared"},
        "c": {"model": "shared", "data": other},
    }
    plan = Plan.of(tiny_fields(text, arms=arms, reference="a"))
    assert plan.pairs == [("a", "b")]
    assert prepare(plan, tmp_path / "out") is None, "there is no one text"
    run_all(plan, tmp_path / "out")
    experiment = read_experiment(tmp_path / "out")
    assert [(test.first, test.second, test.family) for test in experiment.tests] == [("a", "b", 1)]
