"""A small base and small fine-tunings of it."""

import jax
import pytest

from qkvflow.config import OptimizerConfig
from qkvflow.finetune import FinetuneConfig
from qkvflow.train import train
from tests.train.support import tiny_run, write_text


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
