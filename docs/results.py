"""What lies in results/, read once: all that the documents know of its files."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from qkvflow.config import RunConfig
from qkvflow.config.strict import nearest
from qkvflow.experiments.contrasts import arm_of
from qkvflow.experiments.records import Finished, finished
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import Experiment, read_experiment, read_sweep
from qkvflow.experiments.search import chosen
from qkvflow.experiments.store import Gates, recorded_plan
from qkvflow.experiments.summary import Comparison, Summary
from qkvflow.experiments.tables import side_by_side
from qkvflow.files import read_json
from qkvflow.report.page import Item
from qkvflow.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
THREE_TABLES = ("laptop", "laptop-parameters", "laptop-flops")
"""Equal steps, equal parameters, equal training FLOPs."""
Value = TypeVar("Value")


class UnknownNameError(ValueError):
    """A name that results do not have; its message says which one was probably meant."""


def named(of: Mapping[str, Value], name: str, what: str) -> Value:
    """One value by its name.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in of:
        raise UnknownNameError(f"there is no {what} {name!r}. {nearest(name, of)}")
    return of[name]


@cache
def record(name: str) -> Any:
    """A JSON file directly under results/, or in a directory there."""
    return read_json(RESULTS / name)


@cache
def experiment(name: str) -> Experiment:
    """An experiment by its directory."""
    known = {path.parent.name: path.parent for path in RESULTS.glob("*/plan.yaml")}
    return read_experiment(named(known, name, "experiment"))


def arm(name: str, of: str) -> Summary:
    """What the runs of one arm of an experiment reached."""
    return named(experiment(name).summary, of, f"arm of {name}")


def pair(name: str, first: str, second: str, split: str = "valid") -> Comparison:
    """The test of two arms, or of arms at a depth, on a split, in whichever order it was made."""
    for of in (first, second):
        arm(name, arm_of(of))
    results = experiment(name)
    tests = {"valid": results.tests, "test": results.on_test}
    tests |= {"best": results.at_best, "best test": results.at_best_on_test}
    for test in named(tests, split, "split"):
        if {test.first, test.second} == {first, second}:
            return test
    raise UnknownNameError(f"{name} does not compare {first} with {second} on its {split} split")


def runs(name: str, of: str) -> list[Finished]:
    """The finished runs of an arm."""
    arm(name, of)
    return [run for run in finished(experiment(name).records) if run.arm == of]


def curves(name: str, of: str) -> dict[int, dict[int, float]]:
    """By seed and step, what the runs of an arm saw of the valid split in training."""
    return {run.seed: {point.step: point.loss for point in run.curve} for run in runs(name, of)}


def run_of(name: str, of: str) -> RunConfig:
    """The settings of an arm's runs, with those of their first seed."""
    return RunConfig.from_dict(runs(name, of)[0].run)


@cache
def sweep(name: str, of: str) -> dict[float, float]:
    """The loss of an arm at every learning rate of its sweep at which it ended."""
    choices = chosen(recorded_plan(RESULTS / name), read_sweep(RESULTS / name))
    found = named(choices, of, f"sweep of {name} for an arm")
    return {rate: loss for rate, loss in found.sweep if loss is not None}


def baseline(name: str, order: int) -> float:
    """What n-grams of an order reach on the valid split."""
    return named(experiment(name).baselines, f"{order}-gram", f"baseline of {name}")


def gates(name: str, of: str) -> Sequence[Gates]:
    """The gates of an arm, one set a run."""
    return list(named(experiment(name).gates, of, f"arm with gates in {name}").values())


@cache
def tables(name: str) -> dict[str, Table]:
    """The tables of a report by their titles."""
    return {item.title: item for item in _page(name) if isinstance(item, Table)}


def _page(name: str) -> Sequence[Item]:
    if name == "three-tables":
        return [side_by_side({of: experiment(of).summary for of in THREE_TABLES})]
    return experiment_page(name, experiment(name), {})
