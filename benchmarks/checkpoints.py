"""Our checkpoints against orbax's: time that training waits, time until written, time to read.

Run with `python benchmarks/checkpoints.py`; prints a table and writes results/checkpoints.json. It is
why `qkvflow.train.checkpoints` writes safetensors: training waits a fraction of the time, all of it is
hashed, and a checkpoint is a model that `qkvflow.load` reads. Until it is on the disk, hashed and
flushed, takes longer than orbax does, but beside training.
"""

import json
import logging
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.data import ByteTokenizer
from qkvflow.train.checkpoints import CheckpointStore, Progress, newest_good
from qkvflow.train.step import Learner

RESULTS = Path(__file__).parent.parent / "results"
RUNS = 7
SHAPE = Gpt2Config()


def ours(directory, learner, run, state):
    """Seconds that training waits, until the checkpoint is there, and to read it back."""
    store = CheckpointStore(directory, run, learner.model, ByteTokenizer(), "digest")
    begin = time.perf_counter()
    store.save(state, Progress(1, 0.0, None))
    waited = time.perf_counter() - begin
    problem = store.wait()
    written = time.perf_counter() - begin
    store.close()
    assert problem is None, problem
    begin = time.perf_counter()
    path, record, _ = newest_good(store.directory)
    _, back = store.read(path, record, state)
    return (waited, written, time.perf_counter() - begin), back


def orbax(directory, state):
    """The same of orbax's asynchronous checkpointer."""
    tree = state._asdict()
    with ocp.StandardCheckpointer() as checkpointer:
        begin = time.perf_counter()
        checkpointer.save(directory / "orbax", tree)
        waited = time.perf_counter() - begin
        checkpointer.wait_until_finished()
        written = time.perf_counter() - begin
        begin = time.perf_counter()
        back = checkpointer.restore(directory / "orbax", tree)
        jax.block_until_ready(back)
    return (waited, written, time.perf_counter() - begin), back


def main(out=RESULTS):
    """Alternate the two on the state of a model with 15 million numbers."""
    logging.disable(logging.WARNING)
    run = RunConfig(model="standard", architecture=SHAPE)
    learner = Learner.of(run, run.model_config(256))
    state = jax.block_until_ready(jax.jit(learner.start)(np.uint32(0)))
    times = {"ours": [], "orbax": []}
    for i in range(RUNS + 1):
        directory = Path(tempfile.mkdtemp())
        own, back = ours(directory, learner, run, state)
        other, _ = orbax(directory, state)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(a, b)
        if i:  # the first of each warms up
            times["ours"].append(own)
            times["orbax"].append(other)
        shutil.rmtree(directory)
    median = {
        name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()
    }
    ratios = {
        what: median["ours"][i] / median["orbax"][i]
        for i, what in enumerate(("waits", "writes", "reads"))
    }
    for what, ratio in ratios.items():
        print(f"{what}: ours / orbax = {ratio:.2f}")
    record = {
        "runs": RUNS,
        "megabytes": _megabytes(state),
        "ours_over_orbax": ratios,
        "seconds": median,
    }
    (out / "checkpoints.json").write_text(json.dumps(record, indent=2) + "\n")


def _megabytes(state):
    return round(sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6, 1)


if __name__ == "__main__":
    main()
