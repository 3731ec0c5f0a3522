"""From an `OptimizerConfig` to an optax transformation over arrays by path."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from qkvflow.config import ConfigError, OptimizerConfig
from qkvflow.config.registry import Registry
from qkvflow.models.paths import Arrays
from qkvflow.nn.parameters import Table

OPTIMIZERS = Registry[Callable[..., optax.GradientTransformation]]("optimizer")
"""Functions of (config, schedule, table, **options) beside those of optax, which are known by name.

The table says what each array is, by path; `options` are those of the run's optimizer.
"""
SCHEDULES = Registry[Callable[..., optax.Schedule]]("schedule")
"""Functions of (config, steps, **options) to the learning rate after warm-up, beside those of optax."""


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate at each step: a straight rise, then the named decay."""
    warmup = min(100, steps // 10) if config.warmup is None else config.warmup
    decay = _decay(config, max(steps - warmup, 1))
    if warmup == 0:
        return decay
    # The first step moves, too: (step + 1) / warmup of the peak.
    rise = optax.linear_schedule(config.learning_rate / warmup, config.learning_rate, warmup - 1)
    return optax.join_schedules([rise, decay], [warmup])


def _decay(config: OptimizerConfig, steps: int) -> optax.Schedule:
    name, options = config.schedule, config.schedule_options
    if name in SCHEDULES:
        return _call(name, SCHEDULES[name], config, steps, **options)
    of_optax = [known for known in dir(optax) if known.endswith(("_schedule", "_decay"))]
    if name not in of_optax:
        raise _refused(f"there is no schedule {name!r}. {SCHEDULES.hint(name, of_optax)}")
    return _call(name, getattr(optax, name), **options)


@SCHEDULES.register("cosine")
def _cosine(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(config.learning_rate, steps, alpha=config.final)


@SCHEDULES.register("linear")
def _linear(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.linear_schedule(config.learning_rate, config.learning_rate * config.final, steps)


@SCHEDULES.register("constant")
def _constant(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.constant_schedule(config.learning_rate)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, table: Table
) -> optax.GradientTransformation:
    """Clip, then the named optimizer, then the learning rate's multiplier of each group.

    Args:
        table: what the arrays are that are trained, by path.
    """
    make = OPTIMIZERS.get(config.name, _of_optax)
    named = _call(config.name, make, config, schedule, table, **config.options)
    chain = [named, _scale_groups(config, table)]
    if config.clip:
        chain.insert(0, _clip(config.clip))
    return optax.chain(*chain)


def _of_optax(
    config: OptimizerConfig, schedule: optax.Schedule, table: Table, **options: Any
) -> optax.GradientTransformation:
    """Any optimizer of optax that takes a learning rate."""
    if not _takes_a_learning_rate(config.name):
        known = [name for name in dir(optax) if _takes_a_learning_rate(name)]
        raise _refused(f"there is no optimizer {config.name!r}. {OPTIMIZERS.hint(config.name, known)}")
    fixed = {"learning_rate": schedule, **_decay_options(config, table)}
    twice = sorted(fixed.keys() & options.keys())
    if twice:
        raise _refused(f"options names {', '.join(twice)}, which optimizer has a field for; use that.")
    return _call(config.name, getattr(optax, config.name), **fixed, **options)


def _takes_a_learning_rate(name: str) -> bool:
    function = getattr(optax, name, None)
    if not isinstance(function, types.FunctionType | functools.partial):
        return False
    return "learning_rate" in inspect.signature(function).parameters


def _decay_options(config: OptimizerConfig, table: Table) -> dict[str, Any]:
    accepted = inspect.signature(getattr(optax, config.name)).parameters
    if "weight_decay" in accepted and "mask" in accepted:
        mask = {path: parameter.decays for path, parameter in table.items()}
        return {"weight_decay": config.weight_decay, "mask": mask}
    if config.weight_decay:
        raise _refused(f"{config.name} has no weight decay; set optimizer.weight_decay to 0.")
    return {}


def check_optimizer(optimizer: optax.GradientTransformation, arrays: Arrays, name: str) -> None:
    """Try an optimizer on shapes only, and refuse one that needs more than gradients."""
    try:
        state = jax.eval_shape(optimizer.init, arrays)
        jax.eval_shape(optimizer.update, arrays, state, arrays)
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        raise _refused(f"{name} cannot train this model from gradients alone: {reason}") from error


def _refused(problem: str) -> ConfigError:
    return ConfigError("The optimizer cannot be made:", [problem])


def _call(name: str, function: Callable[..., Any], *fixed: Any, **options: Any) -> Any:
    """What a registered function makes of its options, or a sentence about them."""
    try:
        inspect.signature(function).bind(*fixed, **options)
    except TypeError as error:
        takes = list(inspect.signature(function).parameters)[len(fixed) :]
        raise _refused(f"{name}: {error}; its options are {', '.join(takes) or 'none'}.") from error
    try:
        return function(*fixed, **options)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise _refused(f"{name}: {error}") from error


def _clip(largest: float) -> optax.GradientTransformation:
    """Scale gradients whose norm over all arrays is larger down to it.

    As `optax.clip_by_global_norm`, but the factor is made once: XLA would make it again in the loop
    over every array, which takes longer to compile and to run.
    """

    def clip(updates: Arrays, params: Any = None) -> Arrays:
        norm = optax.tree.norm(updates)
        factor = lax.optimization_barrier(jnp.where(norm > largest, largest / norm, 1.0))
        return {path: update * factor for path, update in updates.items()}

    return optax.stateless(clip)


def _scale_groups(config: OptimizerConfig, table: Table) -> optax.GradientTransformation:
    factors = {path: getattr(config, f"{p.group}_multiplier") for path, p in table.items()}

    def scale(updates: Arrays, params: Any = None) -> Arrays:
        return {path: update * factors[path] for path, update in updates.items()}

    if set(factors.values()) <= {1.0}:
        return optax.identity()
    return optax.stateless(scale)
