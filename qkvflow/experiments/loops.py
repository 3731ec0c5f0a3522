"""The worth of a loop in an experiment: what the law of `qkvflow.scaling` says of its models."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qkvflow.experiments.matching import abstract_model
from qkvflow.experiments.recording import run_of
from qkvflow.experiments.records import Finished, Record, by_arm
from qkvflow.models.paths import nodes_of
from qkvflow.nn.families.looped import Looped, LoopedFamily
from qkvflow.nn.families.per_layer import PerLayerFamily
from qkvflow.nn.families.shared import SharedFamily
from qkvflow.nn.linear import size_of
from qkvflow.nn.parameters import parameters_inside
from qkvflow.scaling import LEAST_MODELS, LoopLaw, fit_loop_law, phi_interval
from qkvflow.statistics import Interval


class Loop(NamedTuple):
    """The weights of a model that are visited again and again."""

    parameters: int
    visits: int


NO_LOOP = Loop(0, 1)
_MAY_DIFFER = ("seed", "model", "hidden_dim", "num_heads", "num_layers", "weights")


class Worth(NamedTuple):
    """The law that is nearest to the losses of models, and the interval of its exponent."""

    law: LoopLaw
    phi: Interval
    models: tuple[str, ...]


def loop_worth(records: Sequence[Record]) -> Worth | None:
    """What a visit of a loop is worth, by the models of an experiment that have layers or loops.

    None where they are not trained alike, are too few, or of too few sizes, to tell; seeds, two of
    each model at least, are what the interval is of.
    """
    found = {
        arm: (loop, runs)
        for arm, runs in by_arm(records).items()
        if len(runs) > 1 and (loop := loop_of(runs[0])) is not None
    }
    alike = {_training(runs[0]) for _, runs in found.values()}
    if len(alike) != 1 or not _can_tell(found):
        return None
    loops = [loop for loop, _ in found.values()]
    totals = [runs[0].costs.parameters for _, runs in found.values()]
    once = [total - loop.parameters for total, loop in zip(totals, loops)]
    sizes = (once, [loop.parameters for loop in loops], [loop.visits for loop in loops])
    losses = [[run.valid.loss for run in runs] for _, runs in found.values()]
    law = fit_loop_law(*sizes, [sum(own) / len(own) for own in losses])
    return Worth(law, phi_interval(*sizes, losses), tuple(found))


def loop_of(record: Finished) -> Loop | None:
    """The loop of a run's model; None where its weights are no table of layers, or change by visit."""
    run = run_of(record)
    if run is None:
        return None
    model = abstract_model(run.model, run.architecture)
    family = model.config.weights
    if isinstance(family, PerLayerFamily):
        return NO_LOOP
    if isinstance(family, SharedFamily):
        return Loop(_size(model.transformer.blocks), model.plan().visits)
    if not isinstance(family, LoopedFamily) or family.around is not None:
        return None
    curves = [curve for _, curve in nodes_of(model.transformer.blocks, Looped)]
    shared = [curve for curve in curves if curve.visits is None]
    visits = {curve.order.count(entry) for curve in shared for entry in curve.order} - {1}
    if len(visits) > 1:
        return None
    return Loop(sum(map(_inside, shared)), visits.pop()) if visits else NO_LOOP


def _size(module: Any) -> int:
    """Parameters of a module."""
    return sum(size_of(of.axes) for of in parameters_inside(module).values())


def _inside(curve: Looped) -> int:
    """Parameters of the entries that are visited more than once."""
    entries = max(curve.order) + 1
    again = sum(curve.order.count(entry) > 1 for entry in range(entries))
    return _size(curve) // entries * again


def _training(record: Finished) -> str:
    """What has to be alike: the law knows sizes and loops, and has no term for the amount of text."""
    run = {**record.run, "architecture": dict(record.run["architecture"])}
    for name in _MAY_DIFFER:
        run.pop(name, None)
        run["architecture"].pop(name, None)
    run["optimizer"] = {**run["optimizer"], "learning_rate": None}
    return json.dumps(run, sort_keys=True)


def _can_tell(found: Mapping[str, tuple[Loop, Sequence[Finished]]]) -> bool:
    sizes = {(loop, runs[0].costs.parameters) for loop, runs in found.values()}
    enough = len(sizes) >= LEAST_MODELS and len({total for _, total in sizes}) >= 3
    return enough and any(loop.visits > 1 for loop, _ in found.values())
