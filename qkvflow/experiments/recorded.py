"""The plan of an experiment that was run, read as plain tables.

A finished search may have used a switch that the code no longer has: its plan cannot be run again, but
all that a report needs of it is read here, without making a run of any arm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkvflow.config.history import moved_run
from qkvflow.config.strict import from_dict
from qkvflow.config.yaml_files import read_yaml
from qkvflow.experiments.plan import Sweep, merged
from qkvflow.experiments.records import Json, reading
from qkvflow.files import FileError

SEEDS, MARGIN = 5, 0.01
"""Where a plan does not say."""


@dataclass(frozen=True)
class RecordedArm:
    """One side of a comparison, as its plan named it."""

    name: str
    table: Json
    """The settings that the plan names, in today's layout; all others have their defaults."""
    parameters_of: str | None
    flops_of: str | None


@dataclass(frozen=True)
class RecordedPlan:
    """What was compared."""

    arms: tuple[RecordedArm, ...]
    seeds: tuple[int, ...]
    sweep: Sweep | None
    reference: str
    margin: float
    test: bool
    fields: Json
    """The tables that it was read from."""

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "RecordedPlan":
        """The plan that plain tables describe."""
        fields = dict(fields)
        base = {**(fields.get("base") or {}), "plugins": list(fields.get("plugins") or [])}
        arms = tuple(_arms(base, fields["arms"]))
        seeds = fields.get("seeds", SEEDS)
        sweep = fields.get("sweep")
        return RecordedPlan(
            arms,
            tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
            None if sweep is None else from_dict(Sweep, sweep),
            fields.get("reference") or arms[0].name,
            fields.get("margin", MARGIN),
            fields.get("test", False),
            fields,
        )

    @property
    def names(self) -> list[str]:
        """Of the arms, in their order."""
        return [arm.name for arm in self.arms]

    def arm(self, name: str) -> RecordedArm:
        """The arm of that name."""
        return self.arms[self.names.index(name)]


def _arms(base: Json, arms: Mapping[Any, Json | None]) -> Iterator[RecordedArm]:
    for name, changes in arms.items():
        table = moved_run(merged(base, changes or {}))
        matches = {match: table.pop(match, None) for match in ("parameters_of", "flops_of")}
        yield RecordedArm(str(name), table, **matches)


def recorded_plan(out: Path) -> RecordedPlan:
    """The plan of the experiment in a directory.

    Raises:
        FileError: there is none.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        raise FileError(
            f"{out} is no experiment: it has no plan.yaml. Run qkvflow experiment run first."
        )
    return reading(RecordedPlan.of, read_yaml(path), str(path), "the plan of an experiment")


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
