"""What lies in the directory of an experiment, read back and checked.

OUT/plan.yaml                    what was compared
OUT/records.jsonl                all that was recorded, once packed; before that, see `store`
OUT/statistics_summary.json      every arm
OUT/significance_tests.json      every pair of arms
OUT/seed_0.json .pkl             the records of a seed
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from qkvflow.config import ConfigError
from qkvflow.config.strict import to_dict
from qkvflow.config.yaml_files import yaml_text
from qkvflow.experiments import store
from qkvflow.experiments.baselines import read_baselines
from qkvflow.experiments.contrasts import Pair
from qkvflow.experiments.plan import Arm, Plan
from qkvflow.experiments.records import (
    Choice,
    Choices,
    Failed,
    Finished,
    Json,
    Record,
    choices_of_json,
    finished,
    record_of_json,
    record_to_json,
)
from qkvflow.experiments.store import Gates
from qkvflow.experiments.summary import (
    Comparison,
    Summary,
    exploratory_tests,
    significance_tests,
    statistics_summary,
)
from qkvflow.experiments.sweep import setting_of, without_settings
from qkvflow.files import FileError, write_bytes, write_json, write_text
from qkvflow.lock import waiting


@dataclass(frozen=True)
class Experiment:
    """All that lies in the directory of an experiment."""

    out: Path
    plan: Plan
    records: list[Record]
    choices: Choices = field(default_factory=dict)
    """Learning rates by arm, where they were swept."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """What n-grams reach on the valid split, by name."""

    @cached_property
    def gates(self) -> dict[str, dict[int, Gates]]:
        """Of every arm that has some, those of its finished runs by seed."""
        kept, found = store.gates_like(self.out, store.RUNS), dict[str, dict[int, Gates]]()
        for run in finished(self.records):
            if (place := f"runs/{run.arm}/seed-{run.seed}") in kept:
                found.setdefault(run.arm, {})[run.seed] = kept[place]
        return found

    @cached_property
    def summary(self) -> dict[str, Summary]:
        """Every arm that has a finished run."""
        return statistics_summary(self.records)

    @cached_property
    def tests(self) -> list[Comparison]:
        """The pairs that the plan is about, on the valid split."""
        return significance_tests(self.plan, self.records)

    @cached_property
    def on_test(self) -> list[Comparison]:
        """The same on the test split, where it was opened."""
        return significance_tests(self.plan, self.records, "test")

    @cached_property
    def at_best(self) -> list[Comparison]:
        """The same at the best evaluation in training, on the valid split, where runs were judged."""
        return significance_tests(self.plan, self.records, "best")

    @cached_property
    def at_best_on_test(self) -> list[Comparison]:
        """The same models on the test split."""
        return significance_tests(self.plan, self.records, "best test")

    @cached_property
    def exploratory(self) -> list[Comparison]:
        """Other pairs than the contrasts of the plan, on the valid split; not corrected."""
        return exploratory_tests(self.plan, self.records)

    @property
    def failures(self) -> list[Failed]:
        """The runs that ended with an error."""
        return [record for record in self.records if isinstance(record, Failed)]

    def summary_to_json(self) -> dict[str, Json]:
        """What OUT/statistics_summary.json has."""
        return {arm: row.to_json() for arm, row in self.summary.items()}


def save_plan(plan: Plan, out: Path, reference: str | None = None) -> None:
    """Keep what is compared with what comes of it.

    A directory is of one experiment, to which arms, seeds and depths may be added; its arms together
    are the family that tests are corrected for. It keeps its reference unless another one is named.

    Raises:
        FileError: it is of another experiment.
        ConfigError: an arm cannot lie beside those that are there.
    """
    path = out / "plan.yaml"
    with waiting(out / ".plan.claim"):
        fields = dict(plan.fields)
        if path.is_file():
            there = store.recorded_plan(out)
            if changed := "; ".join(_changed(there, plan)):
                raise FileError(
                    f"{out} holds another experiment: {changed}. Choose another directory with --out."
                )
            fields["arms"] = {**there.fields["arms"], **fields["arms"]}
            fields["reference"] = reference or there.reference
            if there.depths:
                fields["depths"] = sorted({*there.depths, *plan.depths})
            if there.contrasts is not None:
                pairs = dict.fromkeys((*there.contrasts, *(plan.contrasts or ())))
                fields["contrasts"] = [list(pair) for pair in pairs]
        Plan.of(fields)  # refuses arms that cannot lie beside those that are there
        write_text(path, yaml_text(fields))


def _changed(there: Plan, here: Plan) -> list[str]:
    """What cannot change once there may be results; the margin must not follow them."""
    how_at_depths = ("depth_tokens", "unit_steps") if there.depths else ()
    problems = [
        f"{name} is {getattr(there, name)} there and {getattr(here, name)} here"
        for name in ("sweep", "margin", *how_at_depths)
        if getattr(there, name) != getattr(here, name)
    ]
    if not set(there.seeds) <= set(here.seeds):
        problems.append(f"its seeds are {list(there.seeds)}, here are {list(here.seeds)}")
    if _common_contrasts(there, here) != _common_contrasts(here, there):
        problems.append("its contrasts differ")
    if there.test and not here.test:
        problems.append("its test split is opened, here it is not")
    if there.judge_best and not here.judge_best:
        problems.append("its runs are judged at their best evaluation, here they are not")
    problems += [
        f"{arm.name} has other settings there"
        for arm in here.arms
        if arm.name in there.names and not _is_same(there.arm(arm.name), arm)
    ]
    if not problems and there.base != here.base:
        problems.append("base has other settings there")
    return problems


def _common_contrasts(of: Plan, other: Plan) -> set[Pair] | None:
    """Those of a plan between arms that another one has, too; arms may be added with theirs."""
    if of.contrasts is None:
        return None
    return {*of.contrasts_between(other.names)}


def _is_same(there: Arm, here: Arm) -> bool:
    ours, theirs = ((arm.parameters_of, arm.flops_of, arm.start, arm.also) for arm in (here, there))
    try:
        return ours == theirs and there.run == here.run
    except ConfigError:  # it has a switch that is no longer there, which nothing here can have
        return False


def read_experiment(out: Path) -> Experiment:
    """What lies in a directory, finished or not, packed or not.

    Raises:
        FileError: no experiment, or none of its runs has ended.
    """
    plan = store.recorded_plan(out)
    order = {name: i for i, name in enumerate(plan.names)}
    places = [place for place in store.places_like(out, store.RUNS) if place.split("/")[1] in order]
    if not places:
        raise FileError(f"{out} has no run that has ended. Run qkvflow experiment run first.")
    places.sort(key=lambda place: order[place.split("/")[1]])
    records = _read(out, places)
    choices = read_choices(out)
    _check_records(plan, records, choices, out)
    baselines = read_baselines(out)
    return Experiment(
        out,
        plan,
        [record for _, record in records.values()],
        choices,
        {} if baselines is None else baselines.valid,
    )


_Read = dict[str, tuple[str, Record]]
"""By place: where it was read, and the record."""


def _read(out: Path, places: list[str]) -> _Read:
    entries = {place: entry for place in places if (entry := store.read_place(out, place)) is not None}
    return {
        place: (entry.where, record_of_json(entry.content, entry.where))
        for place, entry in entries.items()
    }


def read_sweep(out: Path) -> list[Record]:
    """The records of the runs that the learning rates of an experiment were chosen by."""
    return [record for _, record in _read(out, store.places_like(out, store.SWEEP)).values()]


def read_choices(out: Path) -> dict[str, Choice]:
    """The learning rates of an experiment by arm, as far as they are chosen."""
    entry = store.read_place(out, "tuned")
    return {} if entry is None else choices_of_json(entry.content, entry.where)


def _check_records(plan: Plan, records: _Read, choices: Choices, out: Path) -> None:
    """Refuse runs side by side that are not of one text, or not of this plan, or not of one arm."""
    done = [(where, record) for where, record in records.values() if isinstance(record, Finished)]
    _check_alike(((w, r.run["data"], r.data_digest) for w, r in done), "are of different texts")
    for place, (where, record) in records.items():
        if place != f"runs/{record.arm}/seed-{record.seed}":
            raise FileError(
                f"{where} is the record of {record.arm}, seed {record.seed}: it was copied or renamed. "
                "Remove it."
            )
        others = unlike(_planned(plan, plan.arm(record.arm)), record.run)
        if record.seed not in plan.seeds or others:
            what = f" ({', '.join(others)})" if others else ""
            raise FileError(f"{where} is of a run that {out / 'plan.yaml'} does not plan{what}.")
    _check_alike(((w, r.arm, _without_seed(r.run)) for w, r in done), "have different settings")
    for where, record in done:
        choice = choices.get(record.arm)
        if choice is not None and choice.learning_rate != record.learning_rate:
            raise FileError(
                f"{where} was not trained at the learning rate that was chosen for {record.arm}. "
                "Remove it."
            )
        for name, value in choice.values.items() if choice is not None else ():
            if setting_of(record.run, name) != value:
                raise FileError(
                    f"{where} was not trained with the {name} that was chosen for {record.arm}. Remove "
                    "it."
                )


def _check_alike(found: Iterable[tuple[str, str, Any]], problem: str) -> None:
    """Refuse what was read at two places, under one name, and is not the same."""
    first: dict[str, tuple[str, Any]] = {}
    for where, name, value in found:
        other, expected = first.setdefault(name, (where, value))
        if value != expected:
            raise FileError(f"{other} and {where} {problem}. Remove one of them.")


def _without_seed(run: Json) -> Json:
    """All that the runs of an arm have in common; each begins with the base of its seed, if any."""
    start = run.get("start")
    return {**run, "seed": 0, "start": start and {**start, "checkpoint": "", "digest": ""}}


def _planned(plan: Plan, arm: Arm) -> Json:
    """What the plan says of an arm, without what its seed, its sweep, matches and start decide."""
    table = without_settings(arm.table, plan.swept(arm))
    if arm.start is not None:
        adapter = table.get("architecture", {}).get("adapter")
        table |= {"architecture": {"adapter": adapter}, "start": to_dict(arm.start)}
        del table["start"]["arm"]  # a run names the checkpoint
        table.pop("model", None)
    decided = {
        "": ["seed", *(["steps"] if arm.flops_of else [])],
        "optimizer": ["learning_rate"] if plan.sweep else [],
        "architecture": ["hidden_dim"] if arm.parameters_of else [],
    }
    for where, names in decided.items():
        of = table.get(where, {}) if where else table
        for name in names:
            of.pop(name, None)
    return table


def unlike(planned: Json, run: Json, path: str = "") -> list[str]:
    """The settings that a plan names and of which a run has another value, as dotted names.

    What has another shape, such as a family by its name alone, is not compared.
    """
    found = []
    for name, wanted in planned.items():
        here, has = f"{path}{name}", run.get(name, wanted)
        if isinstance(wanted, Mapping) and isinstance(has, Mapping):
            found += unlike(dict(wanted), dict(has), f"{here}.")
        elif not isinstance(wanted, Mapping) and not isinstance(has, Mapping) and has != wanted:
            found.append(here)
    return found


def write_results(experiment: Experiment) -> None:
    """Write summary and tests; also the runs by seed, as JSON and as pickle.

    Pickles are there for programs that expect them. Nothing in this package ever reads one.
    """
    out, tests = experiment.out, experiment.tests + experiment.on_test
    tests = tests + experiment.at_best + experiment.at_best_on_test + experiment.exploratory
    write_json(out / "statistics_summary.json", experiment.summary_to_json())
    write_json(out / "significance_tests.json", [test.to_json() for test in tests])
    for seed in sorted({record.seed for record in experiment.records}):
        of_seed = {r.arm: record_to_json(r) for r in experiment.records if r.seed == seed}
        write_json(out / f"seed_{seed}.json", of_seed)
        write_bytes(out / f"seed_{seed}.pkl", pickle.dumps(of_seed))
