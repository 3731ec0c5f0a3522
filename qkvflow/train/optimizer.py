"""From an `OptimizerConfig` to an optax transformation over arrays by path."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from qkvflow.config import ConfigError, GroupConfig, OptimizerConfig
from qkvflow.config.registry import Registry
from qkvflow.models.paths import Arrays
from qkvflow.models.storage import can_be_written
from qkvflow.nn.parameters import Parameter, Table

OPTIMIZERS = Registry[Callable[..., optax.GradientTransformation]](
    "optimizer", home="qkvflow.train.muon"
)
"""Functions of (config, schedule, table, **options) beside those of optax, which are known by name.

The table says what each array is, by path; `options` are those of the run's optimizer.
"""
SCHEDULES = Registry[Callable[..., optax.Schedule]]("schedule")
"""Functions of (config, steps, **options) to the learning rate after warm-up, beside those of optax."""
_PEAKS = ("peak_value", "init_value", "value")
"""What a schedule of optax may call its peak; the first that it has."""
WSD_DECAY = 0.2
"""Share of the steps after warm-up in which the learning rate of `wsd` falls, by default."""
_LOOKED_AT = 1_000_000
"""Steps at which a schedule is evaluated before it is used."""


def make_schedule(config: OptimizerConfig, steps: int, continued: Sequence[int] = ()) -> optax.Schedule:
    """The learning rate at each step: a straight rise, then the named decay.

    Args:
        continued: steps after which the run had ended and went on. Up to each, rates are those of a run
            so long; from there they rise in a straight line to those of the longer one.
    """
    first, *later = *continued, steps
    schedule = _schedule(config, first)
    for end, longer in pairwise((first, *later)):
        rise = min(warmup_steps(config, longer), (longer - end) // 2)
        schedule = _going_on(schedule, end, _schedule(config, longer), rise)
    return schedule


def _going_on(before: optax.Schedule, end: int, after: optax.Schedule, rise: int) -> optax.Schedule:
    """One schedule up to a step, from there another one, which it reaches after some steps."""
    last = before(end - 1)

    def rate(step: Any) -> Any:
        share = jnp.clip((step - end + 1) / (rise + 1), 0.0, 1.0)
        return jnp.where(step < end, before(step), last + share * (after(step) - last))

    return rate


def _schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Of a run that goes through without an end in between."""
    warmup = warmup_steps(config, steps)
    decay = _decay(config, max(steps - warmup, 1))
    if warmup == 0:
        return decay
    # The first step moves, too: (step + 1) / warmup of the peak.
    rise = optax.linear_schedule(config.learning_rate / warmup, config.learning_rate, warmup - 1)
    return optax.join_schedules([rise, decay], [warmup])


def warmup_steps(config: OptimizerConfig, steps: int) -> int:
    """Steps over which the learning rate rises; what is too many for a run is cut to half of it."""
    return min(100, steps // 10) if config.warmup is None else min(config.warmup, steps // 2)


def _decay(config: OptimizerConfig, steps: int) -> optax.Schedule:
    name, options = config.schedule, config.schedule_options
    if name in SCHEDULES:
        decay = _call(name, SCHEDULES[name], config, steps, **options)
    else:
        decay = _schedule_of_optax(config)
    _call(name, _check_peak, config, decay, steps)
    return decay


def _schedule_of_optax(config: OptimizerConfig) -> optax.Schedule:
    """Any schedule of optax that has a peak, which is the learning rate of the config."""
    name, options, rate = config.schedule, config.schedule_options, config.learning_rate
    of_optax = [known for known in dir(optax) if _peak_argument(known)]
    if name not in of_optax:
        raise _refused(f"there is no schedule {name!r}. {SCHEDULES.hint(name, of_optax)}")
    peak = _peak_argument(name)
    if options.get(peak, rate) != rate:
        raise _refused(
            f"schedule_options has {peak} {options[peak]!r}, and optimizer.learning_rate is {rate!r}: "
            "both are the peak. Leave the first out."
        )
    return _call(name, getattr(optax, name), **{**options, peak: rate})


def _peak_argument(name: str) -> str:
    """What a schedule of optax calls its peak; empty where the name is no schedule that has one."""
    if name.startswith("_") or not name.endswith(("_schedule", "_decay")):
        return ""
    accepted = inspect.signature(getattr(optax, name)).parameters
    return next((peak for peak in _PEAKS if peak in accepted), "")


def _check_peak(config: OptimizerConfig, decay: optax.Schedule, steps: int) -> None:
    """Refuse a schedule that does not reach the learning rate of the config, or goes beyond it."""
    at = np.arange(0, steps, max(1, steps // _LOOKED_AT), dtype=np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        rates = np.asarray(jax.jit(jax.vmap(decay))(at))
    low, high, peak = float(rates.min()), float(rates.max()), config.learning_rate
    if not (low >= 0 and abs(high - peak) <= 1e-4 * peak):
        raise _refused(
            f"the schedule {config.schedule} is from {low:g} to {high:g} in {steps} steps; expected "
            f"no less than 0, and as its largest value optimizer.learning_rate, {peak:g}. Change "
            "optimizer.final, optimizer.schedule_options or steps."
        )


@SCHEDULES.register("cosine")
def _cosine(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(config.learning_rate, steps, alpha=config.final)


@SCHEDULES.register("linear")
def _linear(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.linear_schedule(config.learning_rate, config.learning_rate * config.final, steps)


@SCHEDULES.register("wsd")
def _wsd(config: OptimizerConfig, steps: int, decay: float = WSD_DECAY) -> optax.Schedule:
    """Stable at the peak, then a straight line down over the last steps, a share `decay` of all."""
    if not 0 < decay <= 1:
        raise _refused(f"schedule_options has decay {decay!r}; expected a share above 0, at most 1.")
    falling = max(1, round(decay * steps))
    peak = config.learning_rate
    fall = optax.linear_schedule(peak, peak * config.final, falling)
    return optax.join_schedules([optax.constant_schedule(peak), fall], [steps - falling])


@SCHEDULES.register("constant")
def _constant(config: OptimizerConfig, steps: int) -> optax.Schedule:
    return optax.constant_schedule(config.learning_rate)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, table: Table
) -> optax.GradientTransformation:
    """Clip, then the optimizer of every array, with its learning rate and its decay.

    Args:
        table: what the arrays are that are trained, by path.
    """
    _check_groups(config.groups, table)
    labels = {path: _group_of(config, path, found) for path, found in table.items()}
    made = {}
    for label in dict.fromkeys(labels.values()):
        own = {path: found for path, found in table.items() if labels[path] == label}
        made[str(label)] = _make(config, label, schedule, own)
    names = {path: str(label) for path, label in labels.items()}
    whole = next(iter(made.values())) if len(made) == 1 else by_label(made, names)
    return optax.chain(_clip(config.clip), whole) if config.clip else optax.chain(whole)


class _Group(NamedTuple):
    """What arrays have in common that are trained alike."""

    optimizer: str
    rate: float
    weight_decay: float

    def __str__(self) -> str:
        return f"{self.optimizer} rate {self.rate:g} decay {self.weight_decay:g}"


def _group_of(config: OptimizerConfig, path: str, parameter: Parameter) -> _Group:
    """How an array is trained: as the last group says that it is in, or else as the run does."""
    own = [group for name, group in config.groups.items() if _is_in(name, path, parameter)]
    group = own[-1] if own else GroupConfig()
    decay = config.weight_decay if group.weight_decay is None else group.weight_decay
    return _Group(group.optimizer or config.name, group.rate, decay)


def _is_in(name: str, path: str, parameter: Parameter) -> bool:
    return name in (parameter.group, parameter.kind) or fnmatchcase(path, name)


def _check_groups(groups: Mapping[str, GroupConfig], table: Table) -> None:
    """Refuse a group without an array."""
    for name in groups:
        if not any(_is_in(name, path, found) for path, found in table.items()):
            kinds = sorted({word for found in table.values() for word in (found.group, found.kind)})
            raise _refused(
                f"groups: {name!r} matches no array. Name one of {', '.join(kinds)}, or a pattern over "
                f"paths such as {next(iter(table))}."
            )


def _make(
    config: OptimizerConfig, group: _Group, schedule: optax.Schedule, table: Table
) -> optax.GradientTransformation:
    """The optimizer of a group of arrays."""
    own = replace(config, name=group.optimizer, weight_decay=group.weight_decay)
    options = config.options if group.optimizer == config.name else {}
    rate = schedule if group.rate == 1.0 else lambda step: group.rate * schedule(step)
    return _call(own.name, OPTIMIZERS.get(own.name, _of_optax), own, rate, table, **options)


def by_label(
    made: Mapping[str, optax.GradientTransformation], labels: Mapping[str, str]
) -> optax.GradientTransformation:
    """Several transformations, each of the arrays that have its label, by path."""

    def own(arrays: Arrays, label: str) -> Arrays:
        return {path: array for path, array in arrays.items() if labels[path] == label}

    def init(parameters: Arrays) -> dict[str, Any]:
        return {label: each.init(own(parameters, label)) for label, each in made.items()}

    def update(updates: Arrays, state: Any, parameters: Any = None) -> tuple[Arrays, Any]:
        changed: Arrays = {}
        after = {}
        for label, each in made.items():
            mine = None if parameters is None else own(parameters, label)
            done, after[label] = each.update(own(updates, label), state[label], mine)
            changed |= done
        return {path: changed[path] for path in updates}, after

    return optax.GradientTransformation(init, update)


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
    function = None if name.startswith("_") else getattr(optax, name, None)
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


def checked_optimizer(
    optimizer: optax.GradientTransformation, arrays: Arrays, name: str
) -> optax.GradientTransformation:
    """An optimizer, tried on shapes only, whose state can be written to a checkpoint.

    Raises:
        ConfigError: it needs more than gradients, or its state cannot be written.
    """
    try:
        state = jax.eval_shape(optimizer.init, arrays)
        jax.eval_shape(optimizer.update, arrays, state, arrays)
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        raise _refused(f"{name} cannot train this model from gradients alone: {reason}") from error
    if any(map(_is_key, jax.tree.leaves(state))):
        optimizer = _with_plain_keys(optimizer, state)
    types = {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(optimizer.init, arrays))}
    odd = sorted(str(dtype) for dtype in types if not can_be_written(dtype))
    if odd:
        raise _refused(f"{name} keeps {', '.join(odd)}, which no checkpoint can hold; change options.")
    return optimizer


def _is_key(leaf: Any) -> bool:
    """Whether it is a random key of the usual kind."""
    return leaf.dtype == jax.eval_shape(jax.random.key, 0).dtype


def _with_plain_keys(
    optimizer: optax.GradientTransformation, like: Any
) -> optax.GradientTransformation:
    """The same optimizer, with the numbers of a random key where its state has the key."""

    def plain(state: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)

    def keyed(leaf: Any, known: Any) -> Any:
        return jax.random.wrap_key_data(leaf) if _is_key(known) else leaf

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = optimizer.update(updates, jax.tree.map(keyed, state, like), params)
        return updates, plain(state)

    return optax.GradientTransformation(lambda params: plain(optimizer.init(params)), update)


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
