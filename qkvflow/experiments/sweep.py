"""The sweep of a plan: learning rates, and after them other settings of a run, one after the other.

    sweep:
      learning_rates: [4e-3, 8e-3, 1.6e-2]
      also:
        optimizer.weight_decay: [0.0, 0.1, 1.0]
        architecture.embd_pdrop and architecture.resid_pdrop: [0.0, 0.1, 0.2]

A setting has its dotted name, as in the table of a run; several that get one value are joined by "and".
What is tried in which order is in `search`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from qkvflow.config import ConfigError, RunConfig, nearest
from qkvflow.config.strict import Config, Count, NotNegativeInt, from_dict, matches, shown, strict

Values = Mapping[str, tuple[float, ...]]
"""By the name of a setting, or of several joined by "and", the values to try."""
_AND = " and "
_LARGEST = 1e100
"""What values are below: whole numbers may be larger than any with a point."""
_DECIDED: dict[str, str] = {
    "optimizer.learning_rate": "its values belong in learning_rates",
    "steps": "the plan sets the number of steps",
    **dict.fromkeys(("seed", "seeds"), "the experiment sets the seeds"),
    **dict.fromkeys(("batch_size", "length", "documents"), "it determines which text is read"),
    **dict.fromkeys(("eval_tokens", "final_tokens", "bpe_size"), "it determines how runs are judged"),
    **dict.fromkeys(
        ("architecture.hidden_dim", "architecture.num_layers"), "it would be another model"
    ),
}
"""Settings that no sweep may change, and why."""


@strict
@dataclass(frozen=True)
class Sweep(Config):
    """Learning rates, and other settings, that every arm is tried with before its runs."""

    refusal = "This sweep cannot be made:"

    learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    """Learning rates to try, in increasing order."""
    steps: Count = 300
    """Training steps per run of the sweep."""
    seed: NotNegativeInt = 1000
    """First seed of the sweep; it must not be one of the seeds of the runs."""
    num_seeds: Count = 1
    """Number of seeds, starting at `seed`; learning rates are judged by their mean loss over seeds."""
    widen: NotNegativeInt = 0
    """Maximum number of learning rates to try beyond the range, while the best is at its end."""
    also: Values = field(default_factory=dict)
    """Other settings to sweep at the best learning rate, one after the other, with their values."""

    @property
    def seeds(self) -> range:
        """All seeds of the sweep."""
        return range(self.seed, self.seed + self.num_seeds)

    def problems(self) -> list[str]:
        """Rates that are no range, and settings that cannot be swept."""
        rates = list(self.learning_rates)
        problems = list(_values_problems(self.also))
        if len(rates) < 2 or rates != sorted(set(rates)) or not 0 < rates[0] <= rates[-1] < _LARGEST:
            expected = "at least two increasing numbers, above 0 and finite"
            return [f"learning_rates is {shown(rates)}; expected {expected}.", *problems]
        if len({*map(rate_name, rates)}) < len(rates):
            expected = "rates that differ in their first six digits"
            return [f"learning_rates is {shown(rates)}; expected {expected}.", *problems]
        return problems


def read_sweep(table: Mapping[str, Any]) -> Sweep:
    """The sweep that a plan's table describes, or, of what an arm has to itself, a part of it."""
    also = table.get("also", {})
    if isinstance(also, Mapping):
        lists = {str(name): tuple(of) if isinstance(of, list) else of for name, of in also.items()}
        table = {**table, "also": lists}
    return from_dict(Sweep, table)


def _values_problems(values: Values) -> Iterator[str]:
    """Values that are no range, and settings that belong to the experiment or to two lists."""
    seen: set[str] = set()
    for name, of in values.items():
        if not _are_rising(of):
            yield f"also: {name} is {shown(list(of))}; expected at least two increasing numbers."
        for each in name.split(_AND):
            if each in _DECIDED:
                yield f"also: {each} cannot be swept: {_DECIDED[each]}."
            if each in seen:
                yield f"also: {each} is listed twice."
            seen.add(each)


def _are_rising(values: tuple[float, ...]) -> bool:
    """Whether these are at least two finite numbers, rising, that differ in six digits."""
    if len(values) < 2 or not all(matches(value, float) for value in values):
        return False
    rising = all(first < second for first, second in itertools.pairwise(values))
    bounded = values[0] > -_LARGEST and values[-1] < _LARGEST
    return rising and bounded and len({*map(_number, values)}) == len(values)


def rate_name(rate: float) -> str:
    """What the run of a sweep with a learning rate is called."""
    return f"lr-{rate:g}"


def try_name(rate: float, changed: Mapping[str, float]) -> str:
    """What the run of a sweep is called: by its rate, and by the settings that are not its arm's.

    Examples:
        >>> try_name(0.004, {"optimizer.weight_decay": 0.1})
        'lr-0.004-optimizer.weight_decay-0.1'
    """
    names = (f"{name.replace(_AND, '+')}-{_number(value)}" for name, value in changed.items())
    return "-".join([rate_name(rate), *names])


def _number(value: float) -> str:
    return f"{value:g}"


def with_learning_rate(run: RunConfig, rate: float) -> RunConfig:
    """The same run with another peak of the learning rate."""
    optimizer = dataclasses.replace(run.optimizer, learning_rate=rate)
    return dataclasses.replace(run, optimizer=optimizer)


def with_settings(run: RunConfig, settings: Mapping[str, float]) -> RunConfig:
    """The same run with other values of settings, by their dotted names.

    Raises:
        ConfigError: there is no such setting, or it cannot have this value.
    """
    if not settings:
        return run
    table = run.to_dict()
    for name, value in settings.items():
        for each in name.split(_AND):
            holder, last = _place_of(table, each)
            holder[last] = value
    return RunConfig.from_dict(table)


def setting_of(table: Mapping[str, Any], name: str) -> float:
    """What the table of a run has of a setting, or of several that have one value.

    Raises:
        ConfigError: there is no such setting, it is no number, or several differ.
    """
    found = []
    for each in name.split(_AND):
        holder, last = _place_of(table, each)
        found.append(holder[last])
    if not all(matches(value, float) for value in found):
        problem = f"also: {name} is {shown(found[0])}; only numbers can be swept."
        raise ConfigError(Sweep.refusal, [problem])
    if len({*found}) > 1:
        raise ConfigError(Sweep.refusal, [f"also: {name} have different values, {shown(found)}."])
    return found[0]


def _place_of(table: Any, name: str) -> tuple[dict[str, Any], str]:
    """The table that a dotted name leads to, and the last part of the name."""
    *way, last = name.split(".")
    for part in [*way, last]:
        if not isinstance(table, dict) or part not in table:
            known = table if isinstance(table, dict) else ()
            hint = nearest(part, map(str, known))
            raise ConfigError(Sweep.refusal, [f"also: there is no setting {name!r}. {hint}"])
        holder, table = table, table[part]
    return holder, last


def without_settings(table: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The table of a run without the settings that a sweep decides."""
    left = _copy(table)
    for name in values:
        for each in name.split(_AND):
            with suppress(ConfigError):  # it is not named there
                holder, last = _place_of(left, each)
                del holder[last]
    return left


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(of) if isinstance(of, Mapping) else of for name, of in table.items()}


def arm_problems(run: RunConfig, values: Values, has_start: bool) -> list[str]:
    """Why the settings of an arm cannot be swept like this."""
    problems = []
    for name, of in values.items():
        if has_start and "architecture." in name:
            problems.append(
                f"also: {name} is set by the base model; an arm with a start cannot sweep it."
            )
        else:
            problems += _setting_problems(run, name, of)
    return problems


def _setting_problems(run: RunConfig, name: str, values: tuple[float, ...]) -> list[str]:
    try:
        own = setting_of(run.to_dict(), name)
        for value in values:
            with_settings(run, {name: value})
    except ConfigError as error:
        return error.problems
    if own in values:
        return []
    return [f"also: {name} is {own:g} in its runs; include that value."]
