"""What is paid once: starting, compiling, memory."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import numpy as np

from benchmarks.speed.contest import Contestant, Entry
from benchmarks.speed.ours import Shape
from qkvflow.compiled import SHORTEST
from qkvflow.models import MODELS, build_model, training_memory

HEAVY = ("matplotlib", "diffrax", "orbax", "tokenizers", "jax")


def startup(runs: int) -> dict[str, Any]:
    """Seconds until `qkvflow --help` has answered; the slow libraries that `import qkvflow` loads."""
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "qkvflow", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    code = f"import sys, qkvflow; print(*[m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {"help_seconds": float(np.median(seconds)), "imports": loaded.stdout.split()}


def compile_seconds(name: str, layers: int) -> tuple[float, float]:
    """Of a training step as `qkvflow train` compiles it, width 256, 8 x 128 tokens.

    At the first start of a run, and at the second, which finds what the first one kept.
    """
    shape = Shape(256, 4, layers, 128, 8)
    entry = Entry("benchmarks.speed.ours:training_step", (name, shape))
    with _empty_cache_of_programs():
        return _compile_seconds(entry), _compile_seconds(entry)


def _compile_seconds(entry: Entry) -> float:
    contestant = Contestant(entry)
    contestant.close()
    return contestant.facts["compile_seconds"]


@contextmanager
def _empty_cache_of_programs() -> Iterator[None]:
    """Contestants that begin in here keep what they compile for one another."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": directory,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(SHORTEST),
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def memory(name: str, layers: int, remat: str) -> dict[str, float]:
    """Megabytes of parameters and of the work of a step, width 256, 8 x 128 tokens, as XLA plans them.

    `streams` is the work in residual streams: batch * length * width numbers.
    """
    shape = Shape(256, 4, layers, 128, 8)
    config = shape.config(remat=remat, max_position_embeddings=shape.length)
    model = eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))
    plan = training_memory(model, shape.batch, shape.length)
    stream = 4 * shape.batch * shape.length * shape.hidden
    return {
        "parameters_mb": plan.parameters / 1e6,
        "working_mb": plan.working / 1e6,
        "streams": plan.working / stream,
    }


def memory_table(depths: tuple[int, ...]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Memory by model, rematerialisation and depth."""
    return {
        name: {
            remat: {str(depth): memory(name, depth, remat) for depth in depths}
            for remat in ("auto", "full")
        }
        for name in MODELS
    }
