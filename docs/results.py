"""What lies in results/, read once: all that the documents know of its files."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from qkvflow.config import RunConfig
from qkvflow.config.strict import from_dict, nearest
from qkvflow.experiments.gates import Gates
from qkvflow.experiments.report import experiment_page, side_by_side
from qkvflow.experiments.results import Experiment, read_experiment
from qkvflow.files import read_json
from qkvflow.finetune.page import study_page
from qkvflow.finetune.study import Study, read_records, summarise
from qkvflow.report.page import Heading, Item, Rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
THREE_TABLES = ("laptop", "laptop-parameters", "laptop-flops")
"""Equal steps, equal parameters, equal training FLOPs."""
Value = TypeVar("Value")


class UnknownNameError(ValueError):
    """A name that results do not have; its message says which one was probably meant."""


def chosen(of: Mapping[str, Value], name: str, what: str) -> Value:
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
    return read_experiment(chosen(known, name, "experiment"))


def arm(name: str, of: str) -> Mapping[str, Any]:
    """The row of one arm of an experiment."""
    return chosen(experiment(name).results.summary, of, f"arm of {name}")


def pair(name: str, first: str, second: str, split: str = "valid") -> Mapping[str, Any]:
    """The test of two arms on a split, in whichever order it was made."""
    for of in (first, second):
        arm(name, of)
    results = experiment(name).results
    tests = {"valid": results.tests, "test": results.on_test}
    for test in chosen(tests, split, "split"):
        if {test["model1"], test["model2"]} == {first, second}:
            return test
    raise UnknownNameError(f"{name} does not compare {first} with {second} on its {split} split")


def curves(name: str, of: str) -> dict[int, dict[int, float]]:
    """By seed and step, what the runs of an arm saw of the valid split in training."""
    arm(name, of)
    return {
        run["seed"]: {step: loss for step, _, loss in run["curve"]}
        for run in experiment(name).records
        if run["arm"] == of
    }


def run_of(name: str, of: str) -> RunConfig:
    """The settings of an arm's runs, with those of their first seed."""
    arm(name, of)
    return RunConfig.from_dict(next(run["run"] for run in experiment(name).records if run["arm"] == of))


@cache
def sweep(name: str, of: str) -> dict[float, float]:
    """The loss of an arm at every learning rate of its sweep at which it ended."""
    paths = (RESULTS / name / "sweep" / of).glob("lr-*.json")
    records = [run for run in map(read_json, paths) if run["status"] == "finished"]
    if not records:
        raise UnknownNameError(f"{name} has no sweep of an arm {of!r}")
    found = {run["run"]["optimizer"]["learning_rate"]: run["valid"]["loss"] for run in records}
    return dict(sorted(found.items()))


def baseline(name: str, order: int) -> float:
    """What n-grams of an order reach on the valid split."""
    return chosen(experiment(name).floors, f"{order}-gram", f"baseline of {name}")


def gates(name: str, of: str) -> Sequence[Gates]:
    """The gates of an arm, one set a run."""
    return list(chosen(experiment(name).gates, of, f"arm with gates in {name}").values())


@cache
def adaptation() -> dict[str, Any]:
    """What the records of results/finetune say together."""
    return summarise(read_records(_study(), RESULTS / "finetune"))


def _study() -> Study:
    return from_dict(Study, record("finetune/study.json"))


@cache
def tables(name: str) -> dict[str, Rows]:
    """The tables of a report by the headings that they stand below."""
    found, heading = {}, ""
    for item in _page(name):
        if isinstance(item, Heading):
            heading = item.text
        elif isinstance(item, Rows):
            found[heading] = item
    return found


def _page(name: str) -> Sequence[Item]:
    if name == "three-tables":
        return side_by_side({of: experiment(of).results for of in THREE_TABLES})
    if name == "finetune":
        summary = adaptation()
        return study_page(_study(), summary, [RESULTS for _ in summary["losses"]])
    return experiment_page(name, experiment(name), {})
