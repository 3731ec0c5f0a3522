"""Steps at several depths: drawn by seed and step, compiled once each, counted one by one."""

import dataclasses
import shutil
from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qkvflow
from qkvflow.config import ConfigError, RunConfig
from qkvflow.models import at_depth, forward_flops, training_flops, unroll
from qkvflow.models.language_model import token_losses
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.train import train
from qkvflow.train.depths import depth_at, run_flops, times_at
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from qkvflow.train.step import Learner
from tests.support import difference, random_model, randomised, small_config
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
    total = float(run.architecture.num_layers)
    deeper = with_architecture(run, num_layers=5, integrator={"method": "residual", "total": total})
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


def test_depths_are_drawn_by_their_weights_and_late():
    run = RunConfig(depths=(2, 4, 8), depth_weights=(0.0, 3.0, 1.0), steps=2000, deepen_at=0.5)
    drawn = [depth_at(run, step) for step in range(run.steps)]
    assert {*drawn[:1000]} == {2}, "before that, the smallest"
    late = np.unique(drawn[1000:], return_counts=True)
    assert list(late[0]) == [4, 8] and abs(late[1][0] - 750) < 60, late


def test_times_are_moved_by_seed_and_step_and_the_steps_add_up():
    run = RunConfig(depths=(2, 4), depth_jitter=0.9, steps=50)
    for step in range(run.steps):
        times = times_at(run, step)
        assert len(times) == depth_at(run, step) and times[-1] == 1.0
        assert (np.diff(times, prepend=0.0) > 0).all()
        assert np.array_equal(times, times_at(run, step))
    assert not np.array_equal(times_at(run, 0)[:1], times_at(dataclasses.replace(run, seed=1), 0)[:1])
    assert times_at(dataclasses.replace(run, depth_jitter=0.0), 0) is None


def test_a_step_with_moved_times_is_one_on_that_grid(text):
    run = tiny_run(text, model="time_indexed_mlp", depths=(3,), depth_jitter=0.5)
    program = Program(run, open_data(run))
    report = program.step(0)
    fresh = Program(run, open_data(run))
    ids, targets = fresh._batch(0)
    expected = jnp.mean(token_losses(at_depth(fresh.model(0), 3), ids, targets, times_at(run, 0)))
    assert abs(float(report.loss) - float(expected)) < 1e-5
    program.step(1)
    assert set(program._steps) == {3}, "other times are no other program"


def test_the_deepest_grid_teaches_and_learns(text):
    """The loss by hand, and its gradient: none of it flows back through what is taught."""
    run = tiny_run(text, model="shared", depths=(1, 4), taught=0.3)
    learner = Learner.of(run, run.model_config(11))
    arrays = jax.jit(learner.start)(jnp.uint32(0)).parameters
    arrays = randomised(arrays)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 9)), jnp.int32)
    inputs, targets = ids[:, :-1], ids[:, 1:]

    def log_probabilities(arrays, depth):
        model = unroll_of(learner, arrays, depth)
        return jax.nn.log_softmax(model(hax.named(inputs, ("batch", "position"))).array)

    def by_hand(arrays, teacher):
        deep, shallow = log_probabilities(arrays, 4), log_probabilities(arrays, 1)
        of_targets = [
            -jnp.take_along_axis(each, targets[..., None], axis=-1)[..., 0] for each in (deep, shallow)
        ]
        taught = -jnp.sum(jnp.exp(teacher) * shallow, axis=-1)
        return jnp.mean(of_targets[0] + 0.7 * of_targets[1] + 0.3 * taught) / 2

    teacher = log_probabilities(arrays, 4)
    expected = jax.value_and_grad(by_hand)(arrays, teacher)
    ours = learner.gradients(arrays, {}, jax.random.key(0), inputs, targets, None, 1)
    assert abs(float(ours[0]) - float(expected[0])) < 1e-5
    assert difference(ours[1], expected[1]) < 1e-4
    alone = learner.gradients(arrays, {}, jax.random.key(0), inputs, targets, None, 4)[0]
    own = -jnp.mean(jnp.take_along_axis(teacher, targets[..., None], axis=-1))
    assert abs(float(alone) - float(own)) < 1e-5, "the deepest is taught by nobody"


def unroll_of(learner, arrays, depth):
    """The learner's model with these arrays at a depth."""
    return at_depth(with_arrays(learner.model, arrays), depth)


def test_what_teaches_is_counted():
    run = tiny_run("x", depths=(1, 4), taught=0.3)
    config = run.model_config(11)
    model = qkvflow.models.build_model("shared", config, key=jax.random.key(0))
    shallow, deep = (training_flops(model, run.batch_size, run.length, depth) for depth in (1, 4))
    steps = [depth_at(run, step) for step in range(run.steps)]
    assert run_flops(run, model) == sum(deep if depth == 4 else deep + shallow for depth in steps)


def test_the_sum_of_steps_is_the_same_at_every_depth():
    config = small_config(num_layers=4)
    residual = random_model("shared", config)
    for depth in (1, 2, 3, 4, 6, 16):
        sizes = np.asarray(at_depth(residual, depth).plan().sizes)
        assert abs(sizes.sum() - 4) < 1e-5 and np.ptp(sizes) < 1e-6
        unit = at_depth(residual, depth, unit_steps=True)
        assert (np.asarray(unit.plan().sizes) == 1).all()
        euler = at_depth(random_model("hybrid", config), depth)
        assert abs(np.asarray(euler.plan().sizes).sum() - 1) < 1e-6
    twice = unroll(unroll(residual, 8), 2)
    assert np.asarray(twice.plan().sizes).tolist() == [2.0, 2.0], "a model knows its sum"


@pytest.mark.parametrize("depths", [(0, 2), (2, 2)])
def test_depths_that_cannot_be(depths):
    with pytest.raises(ConfigError, match="expected distinct numbers, at least 1"):
        RunConfig(depths=depths)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"taught": 0.5}, "taught is 0.5 but depths is empty; set depths as well"),
        ({"depth_jitter": 0.5}, "depth_jitter is 0.5 but depths is empty"),
        (
            {"depths": (2, 4), "depth_weights": (1.0,)},
            "expected one number, at least 0, for each of depths",
        ),
        ({"depths": (2, 4), "depth_weights": (0.0, 0.0)}, "for each of depths, and not all 0"),
    ],
)
def test_settings_of_depths_that_cannot_be(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(**fields)


def test_an_integrator_without_a_grid_has_no_depths(text):
    run = with_architecture(tiny_run(text, depths=(2,)), integrator="adaptive")
    with pytest.raises(ConfigError, match="fixed-step"):
        Learner.of(run, run.model_config(11))
