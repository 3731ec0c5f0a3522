"""An arm in words: what its model is, and what the plan changed about it."""

from collections.abc import Iterator, Mapping
from typing import Any

from qkvflow.config import RunConfig
from qkvflow.experiments.plan import Arm
from qkvflow.models import MODELS

_SHORT = {
    "hidden_dim": "width {}",
    "num_layers": "{} layers",
    "steps": "{} steps",
    "depths": "trained at {} layers",
    "name": "optimizer {}",
}
"""Settings that have words of their own."""
_TOLD_ELSEWHERE = ("model", "parameters_of", "flops_of", "start", "learning_rates", "also")


def arm_in_words(arm: Arm) -> str:
    """What an arm is.

    Examples:
        >>> from qkvflow.experiments.plan import read_plan
        >>> arm_in_words(read_plan("seeds").arm("time_indexed_mlp"))
        "one layer's weights, gated by depth"
    """
    words = [] if arm.start is None else [_start(arm)]
    if arm.start is None:
        words.append(model_in_words(arm.table.get("model", RunConfig.model)))
    changes = {name: value for name, value in arm.changes.items() if name not in _TOLD_ELSEWHERE}
    return "; ".join([*words, *_changes(changes)])


def model_in_words(name: str) -> str:
    """What a named model is; of another one, its name."""
    return MODELS[name].summary if name in MODELS else name


def _start(arm: Arm) -> str:
    start = arm.start
    assert start is not None
    depth = "" if start.depth is None else f" at {start.depth} layers"
    trained = {"all": "all of it", "adapter": "an adapter"}.get(start.train, start.train)
    return f"goes on from {start.arm}{depth}, training {trained.replace('_', ' ')}"


def _changes(table: Mapping[str, Any]) -> Iterator[str]:
    """Every setting of a table, without the names of the tables that it lies in."""
    for name, value in table.items():
        if name == "architecture" or name == "optimizer":
            yield from _changes(value)
        elif name == "depths" and not value:
            yield "trained at its own depth"
        else:
            yield _SHORT.get(name, f"{name.replace('_', ' ')} {{}}").format(_value(value))


def _value(value: Any) -> str:
    """A value as one would say it: of a table of a choice, the choice and then its settings."""
    if isinstance(value, Mapping):
        return ", ".join(_value_of(name, of) for name, of in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "left open"}[value]
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value
    )


def _value_of(name: str, value: Any) -> str:
    said = _value(value)
    return said if name in ("family", "part", "method") else f"{name.replace('_', ' ')} {said}"
