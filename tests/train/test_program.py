"""Runs that differ in nothing that is compiled share their programs, and only those."""

import dataclasses

import jax

from qkvflow.train import program as programs
from qkvflow.train.program import NOT_COMPILED, Program
from qkvflow.train.resume import open_data
from tests.train.support import tiny_run, with_architecture, with_optimizer


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
