"""The numbers of today are those that were written down before the house was rebuilt."""

import json
import shutil
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.config import read_run
from qkvflow.experiments.results import read_experiment
from qkvflow.finetune import load_adapter
from qkvflow.models.paths import arrays_of
from qkvflow.train import train
from tests.unchanged.numbers import CASES, NUMBERS, machine, numbers_of

FROZEN = json.loads(NUMBERS.read_text())
STATISTICS, ADAPTATION = FROZEN["statistics"], FROZEN["adaptation"]
FORMAT_1 = NUMBERS.with_name("format1")
FINAL = ("config.json", "model.safetensors", "tokenizer.json")
"""What a trained model is made of; the last checkpoint has the same bytes."""
ROOT = NUMBERS.parents[2]


@pytest.mark.parametrize("case", CASES)
def test_a_model_computes_what_it_did(case):
    """To the bit on the machine that wrote it down, to rounding on others."""
    before, now = FROZEN["cases"][case], numbers_of(case)
    if FROZEN["machine"] == machine():
        assert now == before
    else:
        exact = set(before) - {"losses", "logits", "logits_sha256"}
        assert {name: now[name] for name in exact} == {name: before[name] for name in exact}
        np.testing.assert_allclose(now["logits"], before["logits"], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(now["losses"], before["losses"], rtol=1e-3)


@pytest.mark.parametrize("name", STATISTICS)
def test_an_experiment_says_what_it_did(name):
    results = read_experiment(ROOT / "results" / name)
    assert results.summary_to_json() == STATISTICS[name]["summary"]
    tests = results.tests + results.on_test + results.exploratory
    assert [test.to_json() for test in tests] == STATISTICS[name]["tests"]


def test_the_adaptation_says_what_it_did():
    """What was a study of its own, in a format of its own, is an experiment with contrasts."""
    results = read_experiment(ROOT / "results" / "finetune")
    for direction, arms in ADAPTATION["losses"].items():
        for name, depths in arms.items():
            for depth, before in depths.items():
                row = results.summary[adapted(*name.split("-"), depth, direction)]
                assert (row.loss.mean, row.loss.half_width) == (before["mean"], before["ci95"])
                assert list(row.loss.values) == before["losses"]
                begin = None if row.begin is None else list(row.begin.values)
                assert begin == (before["before"] if row.begin else None)
    assert len(results.tests) == len(ADAPTATION["differences"]) == 24
    for test, before in zip(results.tests, ADAPTATION["differences"]):
        where = before["method"], before["depth"], before["direction"]
        pair = [adapted(before[model], *where) for model in ("first", "second")]
        assert [test.first, test.second] == pair
        assert test.found.difference == before["difference"]
        assert [test.found.interval.low, test.found.interval.high] == before["ci95"]
        assert (test.found.test.p_value, test.p_holm) == (before["p_value"], before["p_value_holm"])


def adapted(model, method, depth, direction):
    """What an arm of the adaptation is called."""
    return f"{model}.{method}.{depth}.{direction.split('-to-')[1]}"


def test_models_checkpoints_and_adapters_of_the_first_format_are_read(tmp_path, monkeypatch):
    """A run that was begun then is finished now, with the same bytes."""
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    shutil.copytree(FORMAT_1, tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    Path("run/final").mkdir()
    for name in FINAL:
        shutil.copy(f"run/checkpoints/step-00000004/{name}", "run/final")
    model = qkvflow.load("run")
    adapted = load_adapter(model, "adapted/adapter")
    ids = hax.named(jnp.array([[1, 2, 3]]), ("batch", "position"))
    assert np.isfinite(model(ids).array).all() and np.isfinite(adapted(ids).array).all()
    shutil.rmtree("run/final")
    run = read_run(FORMAT_1 / "run" / "run.yaml")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # for optax
        assert train(run, "run").finished
    again = arrays_of(qkvflow.load("run"))
    assert {path: np.array_equal(array, again[path]) for path, array in arrays_of(model).items()} == (
        dict.fromkeys(again, True)
    )
