"""From an `OptimizerConfig` to an optax transformation over arrays by path."""

import functools
import inspect
import types
from typing import Any

import optax

from qkvflow.config import ConfigError, OptimizerConfig, nearest
from qkvflow.models.paths import PARTS, Arrays

_DECAY_ARGUMENTS = (("weight_decay", "mask"), ("weight_decay_rate", "weight_decay_mask"))


def make_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """The learning rate at each step: a straight rise, then the named decay."""
    rest = max(steps - config.warmup, 1)
    decay = _decay(config, rest)
    if config.warmup == 0:
        return decay
    # The first step moves, too: (step + 1) / warmup of the peak.
    rise = optax.linear_schedule(
        config.learning_rate / config.warmup, config.learning_rate, config.warmup - 1
    )
    return optax.join_schedules([rise, decay], [config.warmup])


def _decay(config: OptimizerConfig, steps: int) -> optax.Schedule:
    peak = config.learning_rate
    if config.schedule == "cosine":
        return optax.cosine_decay_schedule(peak, steps, alpha=config.final)
    if config.schedule == "linear":
        return optax.linear_schedule(peak, peak * config.final, steps)
    if config.schedule == "constant":
        return optax.constant_schedule(peak)
    known = [name for name in dir(optax) if name.endswith(("_schedule", "_decay"))]
    if config.schedule not in known:
        names = ("cosine", "linear", "constant", *known)
        raise ConfigError(
            "The optimizer cannot be made:",
            [f"there is no schedule {config.schedule!r}. {nearest(config.schedule, names)}"],
        )
    return _call(config.schedule, config.schedule_options)


def make_optimizer(
    config: OptimizerConfig,
    schedule: optax.Schedule,
    *,
    parts: dict[str, str],
    decays: dict[str, bool],
) -> optax.GradientTransformation:
    """Clip, then the named optimizer, then the learning rate's multiplier of each part.

    Args:
        parts: the part of every array, as `qkvflow.models.paths.parts_of` has it.
        decays: whether it is decayed, as `decays_of` has it.
    """
    if not _takes_a_learning_rate(config.name):
        known = [name for name in dir(optax) if _takes_a_learning_rate(name)]
        raise ConfigError(
            "The optimizer cannot be made:",
            [f"there is no optimizer {config.name!r}. {nearest(config.name, known)}"],
        )
    options = {"learning_rate": schedule, **_decay_options(config, decays), **config.options}
    chain = [_call(config.name, options), _scale_parts(config, parts)]
    if config.clip:
        chain.insert(0, optax.clip_by_global_norm(config.clip))
    return optax.chain(*chain)


def _takes_a_learning_rate(name: str) -> bool:
    function = getattr(optax, name, None)
    if not isinstance(function, types.FunctionType | functools.partial):
        return False
    return "learning_rate" in inspect.signature(function).parameters


def _decay_options(config: OptimizerConfig, decays: dict[str, bool]) -> dict[str, Any]:
    accepted = inspect.signature(getattr(optax, config.name)).parameters
    for rate, mask in _DECAY_ARGUMENTS:
        if rate in accepted and mask in accepted:
            return {rate: config.weight_decay, mask: decays}
    if config.weight_decay:
        raise ConfigError(
            "The optimizer cannot be made:",
            [f"{config.name} has no weight decay; set optimizer.weight_decay to 0."],
        )
    return {}


def _call(name: str, options: dict[str, Any]) -> Any:
    """A function of optax with these arguments, or a sentence about them."""
    function = getattr(optax, name)
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters)
        raise ConfigError(
            "The optimizer cannot be made:", [f"{name}: {error}; it takes {known}."]
        ) from error
    return function(**options)


def _scale_parts(config: OptimizerConfig, parts: dict[str, str]) -> optax.GradientTransformation:
    multipliers = {part: getattr(config, f"{part}_multiplier") for part in PARTS}
    factors = {path: multipliers[part] for path, part in parts.items()}

    def scale(updates: Arrays, params: Any = None) -> Arrays:
        return {path: update * factors[path] for path, update in updates.items()}

    if set(multipliers.values()) == {1.0}:
        return optax.identity()
    return optax.stateless(scale)
