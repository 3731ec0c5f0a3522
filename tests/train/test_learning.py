"""Models learn: they beat n-gram tables, and reach the entropy of a known language, never less."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.learning import ngram_losses
from qkvflow.data import load_corpus
from qkvflow.train import read_metrics, train
from tests.train.support import tiny_run, with_architecture

ROOT = Path(__file__).parent.parent.parent


def trained(out, *options):
    """The records of a run of the command line, compiled as for a user."""
    command = [sys.executable, "-W", "ignore", "-m", "qkvflow", "train", "--out", str(out), *options]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return read_metrics(out / "metrics.jsonl")


def of_kind(records, kind):
    return [record for record in records if record["kind"] == kind]


def assert_no_leak(records, entropy_rate):
    for record in (*of_kind(records, "valid"), *of_kind(records, "final")):
        assert record["loss"] > entropy_rate - 3 * record["standard_error"], record


def test_a_transformer_comes_within_three_percent_of_the_entropy_rate_and_not_below(tmp_path):
    data = "markov:characters=200000"
    options = """
    --model standard --steps 800 --eval-every 200 --length 256 --batch-size 4 --eval-tokens None
    --architecture.flavour llama --architecture.hidden-dim 48 --architecture.num-layers 2
    --optimizer.learning-rate 1e-2 --optimizer.warmup 20 --optimizer.final 0.05
    """
    records = trained(tmp_path / "out", "--data", data, *options.split())
    entropy_rate = load_corpus(data).entropy_rate
    assert_no_leak(records, entropy_rate)
    (final,) = of_kind(records, "final")
    assert final["loss"] < 1.03 * entropy_rate, final["loss"] / entropy_rate


@pytest.mark.parametrize("model", ["tong_neuralode", "time_indexed_mlp", "time_indexed_ssm"])
def test_no_model_evaluates_below_the_entropy_rate(tmp_path, model):
    """A language so predictable that a small model is close to its entropy within a hundred steps."""
    data = "markov:order=1,symbols=4,sharpness=6,characters=20000"
    run = tiny_run(data, model=model, steps=120, length=32, eval_every=40, eval_tokens=None)
    run = with_architecture(run, hidden_dim=16)
    train(run, tmp_path / "out")
    records, entropy_rate = (
        read_metrics(tmp_path / "out" / "metrics.jsonl"),
        load_corpus(data).entropy_rate,
    )
    assert_no_leak(records, entropy_rate)
    assert of_kind(records, "final")[0]["loss"] < entropy_rate + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("model", ["standard", "time_indexed_mlp", "time_indexed_ssm"])
def test_a_model_beats_the_bigram_of_the_embedded_corpus_within_forty_seconds(tmp_path, model):
    """Of training; results/learning.json has them together."""
    records = trained(tmp_path / model, "--config", "configs/tiny.yaml", "--model", model)
    (final,) = of_kind(records, "final")
    assert final["whole"]
    bigram = ngram_losses("embedded", 2)[-1]
    assert final["loss"] < bigram, f"{model}: {final['loss']} against {bigram}"
    assert final["seconds"] < 40
