"""From an `OptimizerConfig` to an optax transformation over arrays by path."""

import functools
import inspect
import types
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from qkvflow.config import ConfigError, OptimizerConfig, nearest
from qkvflow.models.paths import Arrays
from qkvflow.nn.parameters import Table


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
    peak = config.learning_rate
    if config.schedule in ("cosine", "linear", "constant") and config.schedule_options:
        raise _refused(f"{config.schedule} has no schedule_options; use final, warmup, learning_rate.")
    if config.schedule == "cosine":
        return optax.cosine_decay_schedule(peak, steps, alpha=config.final)
    if config.schedule == "linear":
        return optax.linear_schedule(peak, peak * config.final, steps)
    if config.schedule == "constant":
        return optax.constant_schedule(peak)
    known = [name for name in dir(optax) if name.endswith(("_schedule", "_decay"))]
    if config.schedule not in known:
        names = ("cosine", "linear", "constant", *known)
        raise _refused(f"there is no schedule {config.schedule!r}. {nearest(config.schedule, names)}")
    return _call(config.schedule, config.schedule_options)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, table: Table
) -> optax.GradientTransformation:
    """Clip, then the named optimizer, then the learning rate's multiplier of each group.

    Args:
        table: what the arrays are that are trained, by path.
    """
    decays = {path: parameter.decays for path, parameter in table.items()}
    if not _takes_a_learning_rate(config.name):
        known = [name for name in dir(optax) if _takes_a_learning_rate(name)]
        raise _refused(f"there is no optimizer {config.name!r}. {nearest(config.name, known)}")
    options = {"learning_rate": schedule, **_decay_options(config, decays)}
    twice = sorted(options.keys() & config.options.keys())
    if twice:
        raise _refused(f"options names {', '.join(twice)}, which optimizer has a field for; use that.")
    options |= config.options
    chain = [_call(config.name, options), _scale_groups(config, table)]
    if config.clip:
        chain.insert(0, _clip(config.clip))
    return optax.chain(*chain)


def _takes_a_learning_rate(name: str) -> bool:
    function = getattr(optax, name, None)
    if not isinstance(function, types.FunctionType | functools.partial):
        return False
    return "learning_rate" in inspect.signature(function).parameters


def _decay_options(config: OptimizerConfig, decays: dict[str, bool]) -> dict[str, Any]:
    accepted = inspect.signature(getattr(optax, config.name)).parameters
    if "weight_decay" in accepted and "mask" in accepted:
        return {"weight_decay": config.weight_decay, "mask": decays}
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


def _call(name: str, options: dict[str, Any]) -> Any:
    """A function of optax with these arguments, or a sentence about them."""
    function = getattr(optax, name)
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters)
        raise _refused(f"{name}: {error}; it takes {known}.") from error
    try:
        return function(**options)
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
