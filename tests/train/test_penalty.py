"""A penalty on how fast the residual stream moves over depth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.analysis.flow import flow_of, start, states
from qkvflow.config import ConfigError
from qkvflow.models import at_depth
from qkvflow.models.language_model import final_state, final_state_and_action, losses_of, token_losses
from qkvflow.models.paths import with_arrays
from qkvflow.train import train
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from qkvflow.train.step import Learner
from tests.support import difference, random_model, randomised, small_config, token_ids
from tests.train.support import tiny_run, write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("penalty") / "text.txt")


@pytest.mark.parametrize(
    ("name", "integrator", "depth"),
    [
        ("time_indexed_mlp", "euler", 3),
        ("tong_neuralode", "heun", 2),
        ("shared", "rk4", 2),
        ("standard", "residual", 3),
        ("shared", "residual", 10),
    ],
)
def test_the_action_is_the_sum_of_squared_speeds_times_steps(name, integrator, depth):
    """Beside the states of the analysis, a text at a time; ten layers are not written out."""
    model = random_model(name, small_config(num_layers=depth, integrator=integrator), scale=0.2)
    ids = token_ids(model.config, batch=2).array
    end, action = final_state_and_action(model, ids, None, None)
    expected = []
    for row in np.asarray(ids):
        seen = np.asarray(states(flow_of(model), start(model, row)), np.float64)
        sizes = np.asarray(model.plan().sizes, np.float64)[:, None, None]
        expected.append((((seen[1:] - seen[:-1]) / sizes) ** 2 * sizes).mean(axis=(1, 2)).sum())
    assert float(action) == pytest.approx(np.mean(expected), rel=1e-5)
    assert np.array_equal(end.array, final_state(model, ids, None, None).array)


def test_it_is_added_to_the_loss_and_has_a_gradient(text):
    penalised = tiny_run(text, model="shared", depths=(2, 4), speed_penalty=0.3)
    plain = dataclasses.replace(penalised, speed_penalty=0.0)
    learner, free = (Learner.of(run, run.model_config(11)) for run in (penalised, plain))
    arrays = randomised(jax.jit(learner.start)(jnp.uint32(0)).parameters)
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 9)), jnp.int32)
    told = (arrays, {}, jax.random.key(0), ids[:, :-1], ids[:, 1:], None, 4)

    def action(arrays):
        model = at_depth(with_arrays(learner.model, arrays), 4)
        return final_state_and_action(model, ids[:, :-1], None, None)[1]

    of_action = jax.value_and_grad(action)(arrays)
    ours, without = learner.gradients(*told), free.gradients(*told)
    expected = jax.tree.map(lambda loss, action: loss + 0.3 * action, without, of_action)
    assert of_action[0] > 0.01
    assert float(ours[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    assert difference(ours[1], expected[1]) < 1e-5


def test_training_with_it_ends_with_a_slower_stream(text, tmp_path):
    run = tiny_run(text, model="time_indexed_mlp", steps=60)
    ids = jnp.asarray(open_data(run)["valid"].ids[:64], jnp.int32).reshape(-1, run.length)
    found = []
    for penalty in (0.0, 1.0):
        made = train(dataclasses.replace(run, speed_penalty=penalty), tmp_path / f"run-{penalty:g}")
        found.append(float(final_state_and_action(made.model, ids, None, None)[1]))
    assert found[1] < 0.7 * found[0], found


def test_answers_alone_count_in_the_loss_beside_it():
    run = tiny_run(
        "addition:operands=2,test_operands=3,digits=2,problems=200",
        model="shared",
        length=26,
        answers_only=True,
        speed_penalty=0.5,
    )
    report = Program(run, open_data(run)).step(0)
    fresh = Program(run, open_data(run))
    (inputs, targets), model = fresh._batch(0), fresh.model(0)
    end, action = final_state_and_action(model, inputs, None, None)
    losses = losses_of(model.head(end), targets)
    expected = jnp.mean(losses[targets >= 0]) + 0.5 * action
    assert report.loss == pytest.approx(float(expected), rel=1e-5)
    assert jnp.isnan(token_losses(model, inputs, targets)).any(), "other targets have no loss"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"speed_penalty": -1.0}, "speed_penalty is -1.0; expected"),
        (
            {"speed_penalty": 1.0, "depths": (1, 2), "taught": 0.5},
            "speed_penalty cannot be combined with taught, which is 0.5",
        ),
    ],
)
def test_a_penalty_that_cannot_be_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        tiny_run("x", **changes)


def test_an_integrator_without_a_grid_has_no_penalty(text):
    run = tiny_run(text, speed_penalty=0.1)
    config = dataclasses.replace(run.model_config(11), integrator="adaptive")
    with pytest.raises(ConfigError, match="'adaptive' cannot be trained with a speed_penalty"):
        Learner.of(run, config)
