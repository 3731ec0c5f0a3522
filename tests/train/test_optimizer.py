"""Optimizers and schedules: closed forms, masks, multipliers, any name of optax."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from qkvflow.config import ConfigError, GroupConfig, OptimizerConfig
from qkvflow.models import build_model
from qkvflow.models.paths import arrays_of
from qkvflow.models.storage import read_arrays, write_arrays
from qkvflow.nn import Parameter
from qkvflow.nn.parameters import by_path
from qkvflow.train.optimizer import (
    _takes_a_learning_rate,
    checked_optimizer,
    make_optimizer,
    make_schedule,
    warmup_steps,
)
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
        "wsd": lambda x: min(1.0, 1 - 0.9 * (x - 0.8) / 0.2),
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


def test_a_warm_up_that_is_too_long_for_a_run_takes_half_of_it():
    for steps, warmup in ((20, 10), (100, 40), (1, 0)):
        assert warmup_steps(OptimizerConfig(warmup=40), steps) == warmup
    schedule = make_schedule(OptimizerConfig(learning_rate=1.0, warmup=40), 20)
    assert [float(schedule(step)) for step in (0, 9, 10)] == pytest.approx([0.1, 1.0, 1.0])


REFUSED = ("lbfgs", "sm3", "rprop", "scale_by_rprop", "optimistic_adam")
"""Optimizers of optax that need more than gradients, or a learning rate that is a number."""
OFFERED = [name for name in dir(optax) if _takes_a_learning_rate(name)]


def test_no_private_name_is_offered_or_accepted():
    assert "noisy_sgd" in OFFERED
    assert not [name for name in OFFERED if name.startswith("_")]
    with pytest.raises(ConfigError, match="there is no optimizer '_deprecated_dpsgd'"):
        updates(OptimizerConfig(name="_deprecated_dpsgd", weight_decay=0.0), GRADIENTS, ARRAYS)


@pytest.mark.filterwarnings("ignore:.*optimistic_adam:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_needs_more_than_gradients_is_a_sentence(name):
    run = tiny_run("text.txt", optimizer=OptimizerConfig(name=name, weight_decay=0.0))
    with pytest.raises(ConfigError, match=rf"The optimizer cannot be made:\n  - {name}"):
        Learner.of(run, run.model_config(11))


@pytest.mark.parametrize("name", [name for name in OFFERED if name not in REFUSED])
def test_the_state_of_every_optimizer_comes_back_from_a_file(name, tmp_path):
    """And the next update with it is the same to the bit."""
    options = {"key": 3} if name == "noisy_sgd" else {}
    config = OptimizerConfig(name=name, weight_decay=0.0, warmup=0, options=options)
    arrays = {path: jnp.asarray(array) for path, array in ARRAYS.items()}
    table = {path: Parameter(()) for path in arrays}
    made = make_optimizer(config, make_schedule(config, 10), table)
    optimizer = checked_optimizer(made, arrays, name)
    _, state = optimizer.update(GRADIENTS, optimizer.init(arrays), arrays)
    leaves, structure = by_path(state)
    assert len(leaves) == len(jax.tree.leaves(state)), "every leaf has a name of its own"
    back = read_arrays(tmp_path / "state", write_arrays(tmp_path / "state", leaves))
    assert {path: a.dtype for path, a in back.items()} == {p: a.dtype for p, a in leaves.items()}
    again = jax.tree.unflatten(structure, [back[path] for path in leaves])
    ours, theirs = (optimizer.update(GRADIENTS, each, arrays) for each in (state, again))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
        assert not jnp.issubdtype(one.dtype, jnp.inexact) or np.isfinite(one).all()


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda: jax.random.key(0, impl="rbg"), "odd keeps key<rbg>, which no checkpoint can hold"),
        (lambda: jnp.zeros(2, jnp.float8_e5m2), "odd keeps float8_e5m2, which no checkpoint can hold"),
    ],
)
def test_a_state_that_no_file_holds_is_refused_before_the_first_step(keep, words):
    odd = optax.GradientTransformation(
        lambda params: keep(), lambda updates, state, params: (updates, state)
    )
    with pytest.raises(ConfigError, match=words):
        checked_optimizer(odd, ARRAYS, "odd")


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_a_schedule_is_made_where_types_are_not_promoted(name):
    """As documents make one, to compute what a run decayed."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        make_schedule(OptimizerConfig(schedule=name), 20)


def test_a_run_without_warm_up_starts_at_the_peak():
    schedule = make_schedule(OptimizerConfig(learning_rate=0.5, warmup=0), 10)
    assert float(schedule(0)) == 0.5


@pytest.mark.parametrize("rate", [1e-3, 0.2])
@pytest.mark.parametrize(
    ("name", "options", "last"),
    [
        ("exponential_decay", {"transition_steps": 5, "decay_rate": 0.5}, 0.25),
        ("constant_schedule", {}, 1.0),
        ("cosine_decay_schedule", {"decay_steps": 10}, 0.0),
        ("linear_schedule", {"end_value": 0.0, "transition_steps": 10}, 0.0),
        ("cosine_onecycle_schedule", {"transition_steps": 10}, 1 / 25e4),
        ("warmup_constant_schedule", {"init_value": 0.0, "warmup_steps": 4}, 1.0),
    ],
)
def test_a_schedule_of_optax_by_its_name_has_the_peak_of_the_config(name, options, last, rate):
    config = OptimizerConfig(schedule=name, warmup=0, learning_rate=rate, schedule_options=options)
    schedule = make_schedule(config, 10)
    assert max(float(schedule(step)) for step in range(10)) == pytest.approx(rate)
    assert float(schedule(10)) == pytest.approx(rate * last, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"schedule": "constant_schedule", "schedule_options": {"value": 0.2}},
            "schedule_options has value 0.2, and optimizer.learning_rate is 0.0003: both are the peak",
        ),
        (
            {
                "schedule": "exponential_decay",
                "schedule_options": {"transition_steps": 5, "decay_rate": 2.0},
            },
            "the schedule exponential_decay is from 0.0003 to",
        ),
        (
            {"schedule": "linear_onecycle_schedule", "schedule_options": {"transition_steps": 99}},
            "as its largest value optimizer.learning_rate, 0.0003",
        ),
        (
            {
                "schedule": "linear_schedule",
                "schedule_options": {"end_value": -1.0, "transition_steps": 9},
            },
            "expected no less than 0",
        ),
        ({"schedule": "sgdr_schedule"}, "there is no schedule 'sgdr_schedule'"),
        ({"schedule": "scale_by_schedule"}, "there is no schedule 'scale_by_schedule'"),
        ({"final": 1e300}, "the schedule cosine is from nan to nan in 10 steps"),
        ({"schedule": "linear", "final": 2.0}, "the schedule linear is from 0.0003 to"),
        ({"learning_rate": 1e39}, "optimizer.learning_rate, 1e+39"),
    ],
)
def test_a_schedule_with_another_peak_than_the_config_is_refused(fields, words):
    with pytest.raises(ConfigError) as error:
        make_schedule(OptimizerConfig(warmup=0, **fields), 10)
    assert words in str(error.value)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_norms_biases_gates_and_vectors_are_not_decayed_and_all_matrices_are(weights, flavour):
    parts = ("attention", "mlp", "ssm")
    model = skeleton("standard", flavour=flavour, weights=weights, parts=parts)
    decays, arrays = {p: found.decays for p, found in model.parameters().items()}, arrays_of(model)
    assert set(decays) == set(arrays)
    for path, decayed in decays.items():
        exempt = any(word in path for word in ("norm.", "ln_f", "bias", "gates", "network"))
        vector = any(f"{name}." in path for name in (".A", ".D", ".delta_bias", "mix"))
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


def test_a_group_has_a_learning_rate_of_its_own():
    """Also of the decay, as if the group had an optimizer with another learning rate."""
    parts = {"a": "base", "b": "time_network"}
    decays = {"a": True, "b": True}
    groups = {"time_network": GroupConfig(rate=3.0)}
    config = OptimizerConfig(learning_rate=0.1, warmup=0, groups=groups)
    found = updates(config, GRADIENTS, ARRAYS, decays, parts)
    faster = OptimizerConfig(learning_rate=0.3, warmup=0)
    np.testing.assert_allclose(found["b"], updates(faster, GRADIENTS, ARRAYS, decays)["b"], rtol=1e-5)
    slower = OptimizerConfig(learning_rate=0.1, warmup=0)
    np.testing.assert_allclose(found["a"], updates(slower, GRADIENTS, ARRAYS, decays)["a"], rtol=1e-5)


def test_a_group_has_an_optimizer_and_a_decay_of_its_own_and_the_last_counts():
    groups = {
        "*": GroupConfig(optimizer="sgd", rate=2.0, weight_decay=0.0),
        "b": GroupConfig(optimizer="adamw", weight_decay=0.5),
    }
    decays = {"a": True, "b": True}
    found = updates(
        OptimizerConfig(learning_rate=0.1, warmup=0, groups=groups), GRADIENTS, ARRAYS, decays
    )
    np.testing.assert_allclose(found["a"], -0.2 * GRADIENTS["a"], rtol=1e-5)
    alone = OptimizerConfig(learning_rate=0.1, warmup=0, weight_decay=0.5)
    np.testing.assert_allclose(found["b"], updates(alone, GRADIENTS, ARRAYS, decays)["b"], rtol=1e-5)


def test_a_group_without_an_array_is_a_sentence():
    config = OptimizerConfig(groups={"embeddings": GroupConfig(rate=2.0)})
    with pytest.raises(ConfigError, match="'embeddings' matches no array. Name one of "):
        updates(config, GRADIENTS, ARRAYS)


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
