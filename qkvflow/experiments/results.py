"""The files that an experiment leaves behind, and reading them back.

OUT/plan.yaml                    what was compared
OUT/tuned.json                   the sweep over learning rates
OUT/runs/ARM/seed-0.json         the record of every run
OUT/statistics_summary.json      every arm
OUT/significance_tests.json      every pair of arms
OUT/seed_0.json .pkl             the records of a seed
OUT/floors.json                  n-grams of the same text
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qkvflow.config.yaml_files import read_yaml
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record, read_json, write_json
from qkvflow.experiments.summary import failures, significance_tests, statistics_summary
from qkvflow.files import FileError


@dataclass(frozen=True)
class Results:
    """What the runs of an experiment say together."""

    summary: dict[str, dict[str, Any]]
    tests: list[dict[str, Any]]
    """On the valid split."""
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """All that lies in the directory of an experiment."""

    out: Path
    plan: Plan
    records: list[Record]
    tuned: dict[str, dict[str, Any]] | None
    floors: dict[str, float]

    @property
    def results(self) -> Results:
        """The numbers."""
        tests = significance_tests(self.plan, self.records)
        return Results(statistics_summary(self.records), tests, failures(self.records))


def save_plan(plan: Plan, out: Path) -> None:
    """Keep what is compared with what comes of it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.yaml").write_text(yaml.safe_dump(dict(plan.fields), sort_keys=False))


def read_experiment(out: Path) -> Experiment:
    """What lies in a directory, finished or not.

    Raises:
        FileError: no experiment, or none of its runs has ended.
    """
    if not (out / "plan.yaml").is_file():
        raise FileError(f"{out} is no experiment: it has no plan.yaml. Run qkvflow validate first.")
    plan = Plan.of(read_yaml(out / "plan.yaml"))
    paths = [
        path
        for arm in plan.arms
        for path in sorted((out / "runs" / arm.name).glob("seed-*.json"), key=_seed)
    ]
    if not paths:
        raise FileError(f"{out} has no run that has ended. Run qkvflow validate --out {out} first.")
    tuned, floors = out / "tuned.json", out / "floors.json"
    return Experiment(
        out,
        plan,
        [read_json(path) for path in paths],
        read_json(tuned) if tuned.is_file() else None,
        read_json(floors)["valid"] if floors.is_file() else {},
    )


def _seed(path: Path) -> int:
    return int(path.stem.removeprefix("seed-"))


def write_results(experiment: Experiment) -> Results:
    """Write summary and tests; also the runs by seed, as JSON and as pickle.

    Pickles are there for programs that expect them. Nothing in this package ever reads one.
    """
    results, out = experiment.results, experiment.out
    write_json(out / "statistics_summary.json", results.summary)
    on_test = significance_tests(experiment.plan, experiment.records, "test")
    write_json(out / "significance_tests.json", results.tests + on_test)
    for seed in sorted({record["seed"] for record in experiment.records}):
        of_seed = {r["arm"]: r for r in experiment.records if r["seed"] == seed}
        write_json(out / f"seed_{seed}.json", of_seed)
        write_pickle(out / f"seed_{seed}.pkl", of_seed)
    return results


def write_pickle(path: Path, content: Any) -> None:
    """Write plain dictionaries and lists as a pickle."""
    path.write_bytes(pickle.dumps(content))
