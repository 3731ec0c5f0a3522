"""A step: accumulation, what is not applied, several seeds, shared programs, bfloat16, dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qkvflow.models import MODELS
from qkvflow.train import program as programs
from qkvflow.train.program import NOT_COMPILED, Program
from qkvflow.train.resume import open_data
from qkvflow.train.step import LIMIT, Learner, over_seeds
from tests.support import difference
from tests.train.support import tiny_run, with_architecture, with_optimizer

VOCAB = 11


def learner_of(run):
    return Learner.of(run, run.model_config(VOCAB))


def batch(seed=0, rows=4, length=8):
    ids = np.random.default_rng(seed).integers(0, VOCAB, (rows, length + 1)).astype(np.int32)
    return ids[:, :-1], ids[:, 1:]


def started(learner, seed=0):
    return jax.jit(learner.start)(np.uint32(seed))


def test_accumulated_gradients_are_those_of_the_whole_batch():
    run = with_optimizer(tiny_run("text.txt"), name="sgd", weight_decay=0.0, clip=0.0)
    whole, parts = learner_of(run), learner_of(dataclasses.replace(run, accumulate=4))
    state = started(whole)
    one, first = jax.jit(whole.step)(state, np.uint32(0), *batch())
    other, second = jax.jit(parts.step)(state, np.uint32(0), *batch())
    assert abs(float(first.loss - second.loss)) < 1e-6
    assert difference(one.parameters, other.parameters) < 1e-7
    assert difference(one.parameters, state.parameters) > 1e-4


def test_a_step_that_is_not_finite_is_not_applied_and_three_in_a_row_end_it():
    """A batch with an id that does not exist has a loss that is not a number."""
    learner = learner_of(tiny_run("text.txt"))
    step, seed = jax.jit(learner.step), np.uint32(0)
    good = batch()
    bad = np.full_like(good[0], VOCAB + 3), good[1]
    begin = started(learner)
    after, report = step(begin, seed, *bad)
    assert not np.isfinite(report.loss)
    assert difference(after.parameters, begin.parameters) == 0.0
    assert difference(after.optimizer, begin.optimizer) == 0.0
    assert (int(after.step), int(after.skipped), int(after.failures)) == (1, 1, 1)
    after, _ = step(after, seed, *bad)
    recovered, report = step(after, seed, *good)
    assert int(report.failures) == 0
    assert difference(recovered.parameters, begin.parameters) > 0.0
    assert float(report.learning_rate) == pytest.approx(float(learner.schedule(0)))
    for _ in range(LIMIT):
        recovered, report = step(recovered, seed, *bad)
    assert int(report.failures) == LIMIT
    frozen, _ = step(recovered, seed, *good)
    assert difference(frozen.parameters, recovered.parameters) == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"eps": 0.0}},  # 0 / 0 for characters that are not in the batch
        {"name": "sgd", "weight_decay": 0.0, "learning_rate": 3e38},
        {"name": "rmsprop", "weight_decay": 0.0, "options": {"eps": -1.0}},
    ],
)
def test_an_update_that_is_not_finite_is_not_applied_though_loss_and_gradient_are(changes):
    learner = learner_of(with_optimizer(tiny_run("text.txt"), warmup=0, **changes))
    begin = started(learner)
    ids = [np.zeros_like(part) for part in batch()]
    after, report = jax.jit(learner.step)(begin, np.uint32(0), *ids)
    assert np.isfinite([report.loss, report.gradient_norm]).all()
    assert difference(after.parameters, begin.parameters) == 0.0
    assert difference(after.optimizer, begin.optimizer) == 0.0
    assert int(report.failures) == 1


def test_a_state_of_the_optimizer_that_is_not_finite_is_not_kept():
    """Though the parameters are: a step over an infinite moment is zero."""
    learner = learner_of(tiny_run("text.txt"))
    begin = started(learner)

    def update(updates, state, params):
        updates, state = learner.optimizer.update(updates, state, params)
        return updates, jax.tree.map(lambda x: x / 0 if x.ndim else x, state)

    odd = dataclasses.replace(
        learner, optimizer=optax.GradientTransformation(learner.optimizer.init, update)
    )
    after, report = jax.jit(odd.step)(begin, np.uint32(0), *batch())
    assert int(report.failures) == 1
    assert difference(after.optimizer, begin.optimizer) == 0.0


@pytest.mark.parametrize("parts", [("attention", "mlp"), ("ssm",)])
def test_several_seeds_at_once_are_the_runs_one_by_one(parts):
    """With plain gradient steps: adamw turns the rounding of gradients that are zero into steps."""
    run = with_optimizer(tiny_run("text.txt", seeds=3), name="sgd", weight_decay=0.0)
    run = with_architecture(run, parts=parts, resid_pdrop=0.1)
    learner = learner_of(run)
    seeds = np.array(run.all_seeds, np.uint32)
    batches = [batch(seed) for seed in run.all_seeds]
    stacked = [np.stack(ids) for ids in zip(*batches)]
    step = jax.jit(over_seeds(learner.step, run.seeds))
    states = jax.jit(over_seeds(learner.start, run.seeds))(seeds)
    for _ in range(3):
        states, reports = step(states, seeds, *stacked)
    alone = jax.jit(learner.step)
    losses = []
    for i, seed in enumerate(seeds):
        state = started(learner, seed)
        for _ in range(3):
            state, report = alone(state, seed, *batches[i])
        losses.append(float(report.loss))
        own = {path: array[i] for path, array in states.parameters.items()}
        assert difference(own, state.parameters) < 1e-6
        assert abs(float(reports.loss[i] - report.loss)) < 1e-6
    assert len(set(losses)) == 3


@pytest.mark.parametrize(("flavour", "optimizer"), [("gpt2", "adamw"), ("modern", "muon")])
def test_several_seeds_have_the_losses_of_the_runs_one_by_one(flavour, optimizer):
    """Within 1e-4 after ten steps; parameters whose gradient is zero may take another way."""
    run = with_architecture(tiny_run("text.txt", seeds=2), flavour=flavour)
    learner, seeds = learner_of(with_optimizer(run, name=optimizer)), np.array([0, 1], np.uint32)
    both = jax.jit(over_seeds(learner.step, 2))
    states = jax.jit(over_seeds(learner.start, 2))(seeds)
    alone, single = jax.jit(learner.step), [started(learner, seed) for seed in seeds]
    for step in range(10):
        batches = [batch(10 * seed + step) for seed in (0, 1)]
        states, reports = both(states, seeds, *[np.stack(ids) for ids in zip(*batches)])
        for i in (0, 1):
            single[i], report = alone(single[i], seeds[i], *batches[i])
            assert abs(float(reports.loss[i] - report.loss)) < 1e-4, step


def test_a_second_seed_is_neither_traced_nor_compiled_again(text):
    run = tiny_run(text)
    data = open_data(run)
    first, second = (Program(dataclasses.replace(run, seed=seed), data) for seed in (3, 4))
    assert first.learner is second.learner
    a, b = first.step(0), second.step(0)
    assert float(a.loss) != float(b.loss)
    assert first._steps[None].runtime_executable() is second._steps[None].runtime_executable()
    changed = dataclasses.replace(run, steps=13), with_optimizer(run, learning_rate=1e-3)
    for other in (*changed, with_architecture(run, hidden_dim=16)):
        assert Program(other, data).learner is not first.learner


def test_what_is_not_compiled_does_not_change_the_programs(text):
    """Traced for each of two runs that differ in all of it."""
    run = tiny_run(text)
    config = run.model_config(11)
    other = dataclasses.replace(run, **NOT_COMPILED)
    far = dataclasses.replace(
        run, seed=5, documents=2, log_every=3, final_tokens=64, trackers=("tensorboard",)
    )
    assert not [name for name in NOT_COMPILED if getattr(other, name) == getattr(far, name)]
    lowered = []
    for each in (far, other):
        own = programs._Programs(programs._Kind.of(each, config))
        ids = jax.ShapeDtypeStruct((run.batch_size, run.length), "int32")
        number = jax.ShapeDtypeStruct((), "uint32")
        lowered.append(own.start.lower(number).as_text())
        lowered.append(own.step(None).lower(own.shapes, number, ids, ids).as_text())
    assert lowered[:2] == lowered[2:]
    assert programs._Kind.of(run, config) == programs._Kind.of(other, config)


def test_dropout_is_another_one_at_every_step_and_the_same_for_the_same_seed():
    learner = learner_of(with_architecture(tiny_run("text.txt"), resid_pdrop=0.5))
    step, state = jax.jit(learner.step), started(learner)
    later = state._replace(step=state.step + 1)
    losses = [float(step(s, np.uint32(0), *batch())[1].loss) for s in (state, state, later)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_in_bfloat16_with_parameters_in_float32(name):
    run = tiny_run(
        "text.txt", model=name, optimizer=dataclasses.replace(tiny_run("text.txt").optimizer, warmup=0)
    )
    learner = learner_of(with_architecture(run, compute_dtype="bfloat16"))
    step, state = jax.jit(learner.step), started(learner)
    losses = []
    for _ in range(10):
        state, report = step(state, np.uint32(0), *batch())
        losses.append(float(report.loss))
    assert all(array.dtype == jnp.float32 for array in state.parameters.values())
    assert losses[-1] < losses[0] - 0.1, losses
