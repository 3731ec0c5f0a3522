"""The files that an experiment leaves behind, and reading them back.

OUT/plan.yaml                    what was compared
OUT/tuned.json                   the sweep over learning rates
OUT/runs/ARM/seed-0.json         the record of every run
OUT/statistics_summary.json      every arm
OUT/significance_tests.json      every pair of arms
OUT/seed_0.json .pkl             the records of a seed
OUT/floors.json                  n-grams of the same text
"""

import dataclasses
import pickle
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from qkvflow.config import RunConfig
from qkvflow.config.yaml_files import read_yaml
from qkvflow.experiments.gates import Gates, read_gates
from qkvflow.experiments.plan import Arm, Plan, with_learning_rate
from qkvflow.experiments.records import Record
from qkvflow.experiments.summary import (
    failures,
    losses_by_arm,
    significance_tests,
    statistics_summary,
)
from qkvflow.files import FileError, read_json, write_bytes, write_json, write_text
from qkvflow.lock import waiting


@dataclass(frozen=True)
class Results:
    """What the runs of an experiment say together."""

    summary: dict[str, dict[str, Any]]
    tests: list[dict[str, Any]]
    """On the valid split."""
    on_test: list[dict[str, Any]]
    """The same on the test split, where it was opened."""
    failures: list[dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """All that lies in the directory of an experiment."""

    out: Path
    plan: Plan
    records: list[Record]
    tuned: dict[str, dict[str, Any]] | None
    floors: dict[str, float]

    @cached_property
    def gates(self) -> dict[str, dict[int, Gates]]:
        """Of every arm that has some, those of its finished runs by seed."""
        found = {
            arm: {seed: gates for seed, gates in read_gates(self.out, arm).items() if seed in losses}
            for arm, losses in losses_by_arm(self.records).items()
        }
        return {arm: runs for arm, runs in found.items() if runs}

    @cached_property
    def results(self) -> Results:
        """The numbers."""
        tests, on_test = (
            significance_tests(self.plan, self.records, split) for split in ("valid", "test")
        )
        return Results(statistics_summary(self.records), tests, on_test, failures(self.records))


def save_plan(plan: Plan, out: Path, reference: str | None = None) -> None:
    """Keep what is compared with what comes of it.

    A directory is of one experiment, to which arms and seeds may be added; its arms together are the
    family that tests are corrected for. It keeps its reference unless another one is named.

    Raises:
        FileError: it is of another experiment.
    """
    path = out / "plan.yaml"
    with waiting(out / ".plan.claim"):
        fields = dict(plan.fields)
        if path.is_file():
            there = Plan.of(read_yaml(path))
            _check_same_experiment(there, plan, out)
            fields["arms"] = {**there.fields["arms"], **fields["arms"]}
            fields["reference"] = reference or there.reference
        write_text(path, yaml.safe_dump(fields, sort_keys=False))


def _check_same_experiment(there: Plan, here: Plan, out: Path) -> None:
    problems = _changed(there, here)
    if problems:
        raise FileError(
            f"{out} is of another experiment: {'; '.join(problems)}. Choose another directory with "
            "--out."
        )


def _changed(there: Plan, here: Plan) -> list[str]:
    """What cannot change once there may be results; the margin must not follow them."""
    problems = [
        f"{name} is {getattr(there, name)} there and {getattr(here, name)} here"
        for name in ("sweep", "margin")
        if getattr(there, name) != getattr(here, name)
    ]
    if not set(there.seeds) <= set(here.seeds):
        problems.append(f"its seeds are {list(there.seeds)}, here are {list(here.seeds)}")
    if there.test and not here.test:
        problems.append("its test split is opened, here it is not")
    known = {arm.name: arm for arm in there.arms}
    problems += [
        f"{arm.name} has other settings there" for arm in here.arms if known.get(arm.name, arm) != arm
    ]
    if not problems and there.fields.get("base") != here.fields.get("base"):
        problems.append("base has other settings there")
    return problems


def read_experiment(out: Path) -> Experiment:
    """What lies in a directory, finished or not.

    Raises:
        FileError: no experiment, or none of its runs has ended.
    """
    if not (out / "plan.yaml").is_file():
        raise FileError(
            f"{out} is no experiment: it has no plan.yaml. Run qkvflow experiment run first."
        )
    plan = Plan.of(read_yaml(out / "plan.yaml"))
    paths = [
        path
        for arm in plan.arms
        for path in sorted((out / "runs" / arm.name).glob("seed-*.json"), key=_natural)
    ]
    if not paths:
        raise FileError(
            f"{out} has no run that has ended. Run qkvflow experiment run --out {out} first."
        )
    tuned, floors = (
        read_json(path) if path.is_file() else None
        for path in (out / "tuned.json", out / "floors.json")
    )
    records = {path: read_json(path) for path in paths}
    _check_records(plan, records)
    _check_settings(records, tuned or {})
    return Experiment(
        out, plan, list(records.values()), tuned, {} if floors is None else floors["valid"]
    )


def _check_settings(records: dict[Path, Record], tuned: dict[str, dict[str, Any]]) -> None:
    """Refuse to take runs for those of one arm that differ in more than their seed."""
    first: dict[str, tuple[Path, RunConfig]] = {}
    for path, record in records.items():
        if record["status"] != "finished":
            continue
        arm, run = record["arm"], RunConfig.from_dict({**record["run"], "seed": 0})
        other, expected = first.setdefault(arm, (path, run))
        if run != expected:
            raise FileError(f"{path} and {other} have different settings. Remove one of them.")
        if arm in tuned and tuned[arm]["learning_rate"] != run.optimizer.learning_rate:
            raise FileError(
                f"{path} was not trained at the learning rate that tuned.json has for {arm}. Remove it."
            )


def _check_records(plan: Plan, records: dict[Path, Record]) -> None:
    """Refuse to put runs side by side that are not of this plan, or not of one text."""
    digests = {r["data_digest"]: path for path, r in records.items() if r["status"] == "finished"}
    if len(digests) > 1:
        first, second, *_ = digests.values()
        raise FileError(f"{first} and {second} are of different texts. Remove one of them.")
    for path, record in records.items():
        run = RunConfig.from_dict(record["run"])
        if (path.parent.name, path.stem) != (record["arm"], f"seed-{run.seed}"):
            raise FileError(
                f"{path} is the record of {record['arm']}, seed {run.seed}: it was copied or renamed. "
                "Remove it."
            )
        arm = plan.arm(record["arm"])
        if run.seed not in plan.seeds or _as_planned(plan, arm, run) != arm.run:
            raise FileError(f"{path} is of a run that {path.parents[2] / 'plan.yaml'} does not plan.")


def _as_planned(plan: Plan, arm: Arm, run: RunConfig) -> RunConfig:
    """A run with what its seed, its sweep and its matches decide put back to what the plan has."""
    steps = run.steps if arm.flops_of is None else arm.run.steps
    run = dataclasses.replace(run, seed=arm.run.seed, steps=steps)
    if plan.sweep is not None:
        run = with_learning_rate(run, arm.run.optimizer.learning_rate)
    if arm.parameters_of is None:
        return run
    width = arm.run.architecture.hidden_dim
    return dataclasses.replace(
        run, architecture=dataclasses.replace(run.architecture, hidden_dim=width)
    )


def _natural(path: Path) -> tuple[int, str]:
    """Seeds in their order: a longer number is a larger one."""
    return len(path.stem), path.stem


def write_results(experiment: Experiment) -> Results:
    """Write summary and tests; also the runs by seed, as JSON and as pickle.

    Pickles are there for programs that expect them. Nothing in this package ever reads one.
    """
    results, out = experiment.results, experiment.out
    write_json(out / "statistics_summary.json", results.summary)
    write_json(out / "significance_tests.json", results.tests + results.on_test)
    for seed in sorted({record["seed"] for record in experiment.records}):
        of_seed = {r["arm"]: r for r in experiment.records if r["seed"] == seed}
        write_json(out / f"seed_{seed}.json", of_seed)
        write_pickle(out / f"seed_{seed}.pkl", of_seed)
    return results


def write_pickle(path: Path, content: Any) -> None:
    """Write plain dictionaries and lists as a pickle."""
    write_bytes(path, pickle.dumps(content))
