"""Small runs, and small fine-tunings of a trained one."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from qkvflow.config import Gpt2Config, OptimizerConfig, RunConfig
from qkvflow.finetune import FinetuneConfig
from qkvflow.train import train

WORDS = ("weights", "are", "curves", "over", "depth", "and", "a", "layer", "is", "a", "time")


def write_text(path, characters=6000, seed=0):
    """Words in random order, the same for the same seed."""
    words = np.random.default_rng(seed).choice(WORDS, characters // 5)
    path.write_text(" ".join(words)[:characters])
    return path


def tiny_run(data, **changes):
    """A run that compiles fast and has attention, an MLP and gates."""
    architecture = Gpt2Config(
        hidden_dim=8, num_heads=2, num_layers=2, mlp_ratio=1, time_embed_dim=4, sinusoidal_dim=2
    )
    fields = {
        "data": str(data),
        "steps": 12,
        "batch_size": 4,
        "length": 8,
        "eval_every": 4,
        "eval_tokens": 64,
        "save_every": 3,
        "log_every": 1,
        "architecture": architecture,
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup=2),
    }
    return RunConfig(**{**fields, **changes})


def with_optimizer(run, **changes):
    return dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, **changes))


def with_architecture(run, **changes):
    return dataclasses.replace(run, architecture=dataclasses.replace(run.architecture, **changes))


def records(out, kind):
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def in_new_process(code, *arguments, **environment):
    """Run Python code in a process of its own; returns the finished process."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def trained_base(directory, **changes):
    """The directory of a run that has ended; also for fixtures that come before those of a test."""
    text = write_text(directory / "text.txt")
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("QKVFLOW_CACHE", str(directory / "cache"))
        train(tiny_run(text, **changes), directory / "run")
    return directory / "run"


def tiny_tuning(checkpoint, data, **changes):
    """A fine-tuning of a few steps."""
    fields = {
        "checkpoint": str(checkpoint),
        "data": str(data),
        "steps": 6,
        "batch_size": 4,
        "rank": 2,
        "eval_every": 3,
        "eval_tokens": 64,
        "save_every": 2,
        "log_every": 1,
        "optimizer": OptimizerConfig(learning_rate=1e-2, warmup=1),
    }
    return FinetuneConfig(**{**fields, **changes})
