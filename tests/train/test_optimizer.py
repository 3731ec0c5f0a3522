"""Optimizers and schedules: closed forms, masks, multipliers, any name of optax."""

import math

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

from qkvflow.config import ConfigError, OptimizerConfig
from qkvflow.models import build_model
from qkvflow.models.paths import arrays_of
from qkvflow.nn import Parameter
from qkvflow.train.optimizer import make_optimizer, make_schedule
from qkvflow.train.step import Learner
from tests.support import FLAVOURS, WEIGHTS, small_config
from tests.train.support import tiny_run


def skeleton(name, **changes):
    return eqx.filter_eval_shape(build_model, name, small_config(**changes), key=jax.random.key(0))


def test_the_schedules_follow_their_closed_forms():
    steps, peak, warmup = 100, 0.5, 10
    for name, decay in {
        "cosine": lambda x: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * x)),
        "linear": lambda x: 1 - 0.9 * x,
        "constant": lambda x: 1.0,
    }.items():
        config = OptimizerConfig(learning_rate=peak, warmup=warmup, schedule=name, final=0.1)
        schedule = make_schedule(config, steps)
        for step in range(steps + 1):
            rise, rest = (step + 1) / warmup, (step - warmup) / (steps - warmup)
            expected = peak * (rise if step < warmup else decay(rest))
            assert float(schedule(step)) == pytest.approx(expected, rel=1e-5), (name, step)


def test_warm_up_is_a_tenth_of_the_run_by_default_and_at_most_a_hundred_steps():
    for steps, warmup in ((50, 5), (5000, 100)):
        schedule = make_schedule(OptimizerConfig(learning_rate=1.0), steps)
        assert float(schedule(warmup - 1)) == pytest.approx(1.0)
        assert float(schedule(warmup - 2)) < 1.0


@pytest.mark.parametrize("name", ["lbfgs", "sm3", "rprop"])
def test_an_optimizer_that_needs_more_than_gradients_is_a_sentence(name):
    run = tiny_run("", optimizer=OptimizerConfig(name=name, weight_decay=0.0))
    with pytest.raises(ConfigError, match=rf"The optimizer cannot be made:\n  - {name}"):
        Learner.of(run, run.model_config(11))


def test_a_run_without_warm_up_starts_at_the_peak():
    schedule = make_schedule(OptimizerConfig(learning_rate=0.5, warmup=0), 10)
    assert float(schedule(0)) == 0.5


def test_a_schedule_of_optax_by_its_name():
    config = OptimizerConfig(
        schedule="exponential_decay",
        warmup=0,
        schedule_options={"init_value": 0.2, "transition_steps": 5, "decay_rate": 0.5},
    )
    schedule = make_schedule(config, 10)
    assert float(schedule(10)) == pytest.approx(0.05)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_norms_biases_gates_and_vectors_are_not_decayed_and_all_matrices_are(weights, flavour):
    parts = ("attention", "mlp", "ssm")
    model = skeleton("standard", flavour=flavour, weights=weights, parts=parts)
    decays, arrays = {p: found.decays for p, found in model.parameters().items()}, arrays_of(model)
    assert set(decays) == set(arrays)
    for path, decayed in decays.items():
        exempt = any(word in path for word in ("norm.", "ln_f", "bias", "gates", "network"))
        vector = any(f".{name}." in path for name in ("A", "D", "delta_bias"))
        assert decayed == (not exempt and not vector), path
    assert decays["transformer.wte.weight"]
    assert any("part" in path and decayed for path, decayed in decays.items())


def test_every_array_belongs_to_a_group():
    table = skeleton("time_indexed_ssm").parameters()
    groups = {path: found.group for path, found in table.items()}
    assert set(groups.values()) == {"embedding", "base", "time_network", "head"}
    assert groups["lm_head.weight"] == "head"
    assert groups["transformer.wpe.weight"] == "embedding"
    assert all(("gates" in path) == (group == "time_network") for path, group in groups.items())


def updates(config, gradients, parameters, decays=None, groups=None):
    table = {
        path: Parameter(
            (), group=(groups or {}).get(path, "base"), decays=(decays or {}).get(path, False)
        )
        for path in parameters
    }
    optimizer = make_optimizer(config, make_schedule(config, 100), table)
    return optimizer.update(gradients, optimizer.init(parameters), parameters)[0]


ARRAYS = {"a": np.ones(3, np.float32), "b": np.full(2, 2.0, np.float32)}
GRADIENTS = {"a": np.full(3, 0.1, np.float32), "b": np.full(2, -0.1, np.float32)}


def test_decay_acts_only_where_the_mask_says():
    config = OptimizerConfig(learning_rate=0.1, warmup=0, weight_decay=0.5)
    plain = updates(config, GRADIENTS, ARRAYS)
    decayed = updates(config, GRADIENTS, ARRAYS, decays={"a": True, "b": False})
    np.testing.assert_allclose(decayed["a"] - plain["a"], -0.1 * 0.5 * ARRAYS["a"], rtol=1e-5)
    np.testing.assert_array_equal(decayed["b"], plain["b"])


def test_a_multiplier_is_a_learning_rate_of_its_own():
    """Also of the decay, as if the part had an optimizer with another learning rate."""
    parts = {"a": "base", "b": "time_network"}
    decays = {"a": True, "b": True}
    config = OptimizerConfig(learning_rate=0.1, warmup=0, time_network_multiplier=3.0)
    found = updates(config, GRADIENTS, ARRAYS, decays, parts)
    faster = OptimizerConfig(learning_rate=0.3, warmup=0)
    np.testing.assert_allclose(found["b"], updates(faster, GRADIENTS, ARRAYS, decays)["b"], rtol=1e-5)
    slower = OptimizerConfig(learning_rate=0.1, warmup=0)
    np.testing.assert_allclose(found["a"], updates(slower, GRADIENTS, ARRAYS, decays)["a"], rtol=1e-5)


def test_clipping_bounds_the_norm_of_all_gradients_together():
    config = OptimizerConfig(name="sgd", learning_rate=1.0, warmup=0, weight_decay=0, clip=0.01)
    assert float(optax.tree.norm(updates(config, GRADIENTS, ARRAYS))) == pytest.approx(0.01, rel=1e-5)
    for clip in (0.01, 0.2, 10.0):
        config = OptimizerConfig(name="sgd", learning_rate=1.0, warmup=0, weight_decay=0, clip=clip)
        of_optax = optax.clip_by_global_norm(clip)
        expected, _ = of_optax.update(GRADIENTS, of_optax.init(ARRAYS))
        for path, found in updates(config, GRADIENTS, ARRAYS).items():
            np.testing.assert_allclose(found, -expected[path], rtol=1e-6)
    free = OptimizerConfig(name="sgd", learning_rate=1.0, warmup=0, weight_decay=0, clip=0)
    np.testing.assert_allclose(updates(free, GRADIENTS, ARRAYS)["a"], -GRADIENTS["a"], rtol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "lion", "nadamw", "adan"])
def test_decay_is_decoupled_and_times_the_learning_rate(name):
    config = OptimizerConfig(name=name, learning_rate=0.1, warmup=0, weight_decay=0.5)
    zero = {path: np.zeros_like(array) for path, array in ARRAYS.items()}
    found = updates(config, zero, ARRAYS, decays={"a": True, "b": False})
    np.testing.assert_allclose(found["a"], -0.1 * 0.5 * ARRAYS["a"], rtol=1e-5)
    np.testing.assert_array_equal(found["b"], 0.0)


def test_options_reach_the_optimizer():
    momentum = OptimizerConfig(
        name="sgd", learning_rate=1.0, warmup=0, weight_decay=0, options={"momentum": 0.5}
    )
    optimizer = make_optimizer(momentum, make_schedule(momentum, 10), {"a": Parameter((), decays=True)})
    state, gradient = optimizer.init({"a": ARRAYS["a"]}), {"a": GRADIENTS["a"]}
    _, state = optimizer.update(gradient, state, gradient)
    second, _ = optimizer.update(gradient, state, gradient)
    expected = -1.5 * GRADIENTS["a"] * float(make_schedule(momentum, 10)(1))
    np.testing.assert_allclose(second["a"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "adamm"}, "no optimizer 'adamm'. Did you mean 'adam"),
        ({"name": "apply_updates"}, "no optimizer 'apply_updates'"),
        ({"schedule": "cosin"}, "no schedule 'cosin'. Did you mean 'cosine'?"),
        ({"name": "sgd"}, "sgd has no weight decay; set optimizer.weight_decay to 0"),
        ({"name": "adafactor"}, "adafactor has no weight decay"),
        ({"options": {"learning_rate": 5}}, "options names learning_rate, which optimizer has a field"),
        ({"options": {"weight_decay": 5}}, "options names weight_decay"),
        (
            {"schedule_options": {"alpha": 1}},
            "cosine: got an unexpected keyword argument 'alpha'; its options are none.",
        ),
        ({"options": {"beta2": 0.9}}, "unexpected keyword argument 'beta2'"),
        ({"schedule": "exponential_decay"}, "missing a required argument"),
    ],
)
def test_names_and_arguments_that_do_not_exist(fields, words):
    with pytest.raises(ConfigError) as error:
        updates(OptimizerConfig(**fields), GRADIENTS, ARRAYS)
    assert words in str(error.value)
