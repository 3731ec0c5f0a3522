"""Steps at several depths: drawn by seed and step, compiled once each, counted one by one."""

import dataclasses
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.config import ConfigError, RunConfig
from qkvflow.models import forward_flops, training_flops, unroll
from qkvflow.models.paths import arrays_of
from qkvflow.train import train
from qkvflow.train.depths import depth_at, run_flops
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from qkvflow.train.step import Learner
from tests.support import difference
from tests.train.support import tiny_run, with_architecture


def test_depths_are_drawn_by_seed_and_step_each_as_often():
    run = RunConfig(depths=(2, 3, 4), steps=3000)
    drawn = [depth_at(run, step) for step in range(run.steps)]
    assert drawn == [depth_at(run, step) for step in range(run.steps)]
    counts = np.unique(drawn, return_counts=True)
    assert list(counts[0]) == [2, 3, 4] and (abs(counts[1] - 1000) < 120).all(), counts
    assert drawn != [depth_at(dataclasses.replace(run, seed=1), step) for step in range(run.steps)]
    assert depth_at(RunConfig(), 0) is None


def test_a_step_at_a_depth_is_a_step_of_the_model_at_that_depth(text):
    run = tiny_run(text, model="shared")
    learner = Learner.of(run, run.model_config(11))
    state = jax.jit(learner.start)(jnp.uint32(0))
    ids = np.random.default_rng(0).integers(0, 11, (4, 9)).astype(np.int32)
    at_five = jax.jit(partial(learner.step, depth=5))
    _, report = at_five(state, jnp.uint32(0), ids[:, :-1], ids[:, 1:])
    deeper = with_architecture(run, num_layers=5)
    other = Learner.of(deeper, deeper.model_config(11))
    step = jax.jit(other.step)
    _, expected = step(other.begin(state.parameters), jnp.uint32(0), ids[:, :-1], ids[:, 1:])
    assert abs(float(report.loss) - float(expected.loss)) < 1e-6


def test_every_depth_is_compiled_once_and_operations_are_added_up(text, tmp_path):
    run = tiny_run(text, depths=(1, 2, 4))
    program = Program(run, open_data(run))
    for step in range(run.steps):
        program.step(step)
    assert set(program._steps) == {depth_at(run, step) for step in range(run.steps)}
    model = program.learner.model
    by_hand = sum(
        training_flops(model, run.batch_size, run.length, depth_at(run, step))
        for step in range(run.steps)
    )
    assert run_flops(run, model) == by_hand
    plain = dataclasses.replace(run, depths=())
    assert run_flops(plain, model) == run.steps * training_flops(model, run.batch_size, run.length)


def test_operations_at_a_depth_are_those_of_the_unrolled_model():
    config = tiny_run("x").model_config(11)
    model = qkvflow.models.build_model("shared", config, key=jax.random.key(0))
    assert forward_flops(model, 2, 8, 6) == forward_flops(unroll(model, 6), 2, 8)


def test_a_killed_run_at_several_depths_resumes_to_the_same_bytes(text, tmp_path):
    run = tiny_run(text, depths=(1, 3), steps=6, save_every=3)
    whole = train(run, tmp_path / "whole")
    assert whole.finished
    train(dataclasses.replace(run, keep=9), tmp_path / "other")
    for path in (tmp_path / "other" / "checkpoints").glob("step-00000006"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    shutil.rmtree(tmp_path / "other" / "final")
    assert train(dataclasses.replace(run, keep=9), tmp_path / "other").finished
    ours, theirs = (arrays_of(qkvflow.load(tmp_path / name)) for name in ("whole", "other"))
    assert difference(ours, theirs) == 0.0


@pytest.mark.parametrize("depths", [(0, 2), (2, 2)])
def test_depths_that_cannot_be(depths):
    with pytest.raises(ConfigError, match="expected different ones, at least 1"):
        RunConfig(depths=depths)


def test_an_integrator_without_a_grid_has_no_depths(text):
    run = with_architecture(tiny_run(text, depths=(2,)), integrator="adaptive")
    with pytest.raises(ConfigError, match="fixed-step"):
        Learner.of(run, run.model_config(11))
