"""What is compared: arms, each a run that differs from a common one, over paired seeds.

    base:                 # a run, as in configs/
      data: wikitext-2
      steps: 3000
    arms:                 # what differs from it; names are free
      standard: {model: standard}
      shared: {model: shared}
      narrow: {model: standard, parameters_of: shared}
    seeds: 5              # 0 to 4; or a list, [5, 6, 7]
    sweep: {learning_rates: [1e-3, 2e-3, 4e-3, 8e-3], steps: 300, seed: 1000}
    reference: standard
    margin: 0.01

Every arm sees the same text in the same order under the same seed, and draws its weights from the same
stream of random numbers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkvflow.config import ConfigError, RunConfig, nearest, strict
from qkvflow.config.strict import from_dict, type_problems
from qkvflow.config.yaml_files import read_yaml

PLANS = Path(__file__).parent / "plans"
"""Plans that have a name."""
_MATCHES = ("parameters_of", "flops_of")
Match = Literal["steps", "parameters", "flops"]
"""What arms can have in common with the reference."""
_COMMON = (
    "data",
    "tokenizer",
    "bpe_size",
    "documents",
    "batch_size",
    "length",
    "eval_tokens",
    "final_tokens",
)
"""Fields that no arm may have to itself: all read the same text, and are judged on the same."""


@strict
@dataclass(frozen=True)
class Sweep:
    """Learning rates that every arm is tried with before its runs, on a seed of its own."""

    learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    steps: int = 300
    seed: int = 1000
    """Not one of those of the runs."""

    def __post_init__(self) -> None:
        problems = type_problems(self)
        if not problems:
            rates = self.learning_rates
            if len(rates) < 2 or list(rates) != sorted(set(rates)) or rates[0] <= 0:
                problems.append(
                    f"learning_rates is {list(rates)}; expected at least two, rising, above 0."
                )
            if self.steps < 1:
                problems.append(f"steps is {self.steps}; expected at least 1.")
            if self.seed < 0:
                problems.append(f"seed is {self.seed}; expected at least 0.")
        if problems:
            raise ConfigError("This sweep cannot be made:", problems)


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    run: RunConfig
    parameters_of: str | None = None
    """Arm whose number of parameters this one is narrowed or widened to."""
    flops_of: str | None = None
    """Arm whose training cost this one's number of steps is chosen to equal."""


@dataclass(frozen=True)
class Plan:
    """An experiment: arms, seeds, how each arm's learning rate is found, what is tested."""

    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    sweep: Sweep | None = None
    reference: str = ""
    """Arm that the others are compared with first."""
    margin: float = 0.01
    """Difference in nats that counts as none; set before any run."""
    test: bool = False
    """Whether the test split is opened, once, when a run has ended."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The tables that it was read from."""

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Plan":
        """The plan that plain tables describe; all problems are reported at once."""
        arms = fields.get("arms")
        if isinstance(arms, Mapping):  # YAML reads a name like 1 as a number
            fields = {**fields, "arms": {str(name): changes for name, changes in arms.items()}}
        return _Reader(fields).plan()

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        arms = {arm.name: arm for arm in self.arms}
        if name not in arms:
            raise ConfigError("There is no such arm:", [f"{name!r}. {nearest(name, arms)}"])
        return arms[name]

    def with_reference(self, reference: str) -> "Plan":
        """The same plan with another arm as the reference."""
        return Plan.of({**self.fields, "reference": reference})

    def with_steps(self, steps: int) -> "Plan":
        """The same plan with runs of another length."""
        base = merged(self.fields.get("base", {}), {"steps": steps})
        return Plan.of({**self.fields, "base": base})

    def with_seeds(self, seeds: Sequence[int]) -> "Plan":
        """The same plan over other seeds, named by their numbers."""
        return Plan.of({**self.fields, "seeds": list(seeds)})

    def matched(self, what: Match) -> "Plan":
        """The same plan with all arms matched to the reference: in steps, as it is, or in a cost.

        Arms that are there for a match of this kind are left out: they would be copies.
        """
        if what == "steps":
            return self
        match = f"{what}_of"
        tables = {
            arm.name: dict(self.fields["arms"][arm.name] or {})
            | ({} if arm.name == self.reference else {match: self.reference})
            for arm in self.arms
            if getattr(arm, match) is None or arm.name == self.reference
        }
        return Plan.of({**self.fields, "arms": tables})

    def with_arms(self, names: Sequence[str]) -> "Plan":
        """The same plan with some of its arms; the first is the reference where that is left out."""
        known = [arm.name for arm in self.arms]
        problems = [f"there is no arm {n!r}. {nearest(n, known)}" for n in names if n not in known]
        if not names:
            problems.append(f"name at least one of {', '.join(known)}.")
        arms = tuple(arm for arm in self.arms if arm.name in names)
        for arm in arms:
            for other in (arm.parameters_of, arm.flops_of):
                if other is not None and other not in names:
                    problems.append(f"{arm.name} is matched to {other}; name that, too.")
        if problems:
            raise ConfigError("These arms cannot be chosen:", problems)
        reference = self.reference if self.reference in names else names[0]
        tables = {arm.name: self.fields["arms"][arm.name] for arm in arms}
        return Plan.of({**self.fields, "arms": tables, "reference": reference})


def read_plan(name: str) -> Plan:
    """The plan of a name, or that of a YAML file.

    Example:
        >>> [arm.name for arm in read_plan("seeds").arms]
        ['standard', 'tong_neuralode', 'time_indexed_mlp', 'time_indexed_ssm']
    """
    path = Path(name)
    known = {file.stem: file for file in PLANS.glob("*.yaml")}
    if name not in known and not path.suffix:
        raise ConfigError("There is no such plan:", [f"{name!r}. {nearest(name, known)}"])
    content = read_yaml(known.get(name, path))
    try:
        return Plan.of(content)
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be used:", error.problems) from error


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables, with the changes put in."""
    result = dict(base)
    for name, value in changes.items():
        inner = result.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            value = merged(inner, value)
        result[name] = value
    return result


@dataclass
class _Reader:
    fields: Mapping[str, Any]
    problems: list[str] = field(default_factory=list)

    def plan(self) -> Plan:
        known = ("base", "arms", "seeds", "sweep", "reference", "margin", "test")
        self.problems += [
            f"there is no field {name!r}. {nearest(str(name), known)}"
            for name in self.fields
            if name not in known
        ]
        arms = tuple(self._arms())
        seeds = self._seeds()
        sweep = self._sweep(seeds)
        reference = self.fields.get("reference", arms[0].name if arms else "")
        names = [arm.name for arm in arms]
        if arms and reference not in names:
            self.problems.append(f"reference is {reference!r}. {nearest(str(reference), names)}")
        margin, test = self.fields.get("margin", 0.01), self.fields.get("test", False)
        if not isinstance(margin, int | float) or isinstance(margin, bool) or margin <= 0:
            self.problems.append(f"margin is {margin!r}; expected nats above 0.")
        if not isinstance(test, bool):
            self.problems.append(f"test is {test!r}; expected true or false.")
        if self.problems:
            raise ConfigError("This experiment cannot be made:", self.problems)
        return Plan(arms, seeds, sweep, str(reference), float(margin), test, self.fields)

    def _arms(self) -> list[Arm]:
        base, tables = self.fields.get("base", {}), self.fields.get("arms")
        if not isinstance(base, Mapping):
            self.problems.append(f"base is {base!r}; expected the fields of a run.")
            return []
        if not isinstance(tables, Mapping) or not tables:
            self.problems.append("arms is missing; expected a table of names, each with what differs.")
            return []
        if "final_tokens" in base:
            self.problems.append(
                "base: leave final_tokens out; arms are judged on all of the valid split."
            )
        made = [self._arm(name, base, changes) for name, changes in tables.items()]
        arms = {arm.name: arm for arm in made if arm is not None}
        names = list(tables)
        for arm in arms.values():
            for what in _MATCHES:
                other = getattr(arm, what)
                if other is not None and (other not in names or other == arm.name):
                    self.problems.append(
                        f"{arm.name}: {what} is {other!r}. {nearest(str(other), names)}"
                    )
                elif other in arms and _changes(arms[other], what):
                    self.problems.append(
                        f"{arm.name}: {what} is {other!r}, which is itself matched to another arm; "
                        "name that one."
                    )
        return list(arms.values())

    def _arm(self, name: str, base: Mapping[str, Any], changes: Any) -> Arm | None:
        if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
            self.problems.append(f"the arm {name!r} cannot be a directory; use letters, digits, _ - .")
            return None
        if changes is not None and not isinstance(changes, Mapping):
            self.problems.append(f"{name} is {changes!r}; expected what differs from base.")
            return None
        changes = dict(changes or {})
        self.problems += [
            f"{name}: {common} is the same for all arms; put it into base."
            for common in _COMMON
            if common in changes
        ]
        matches = {what: changes.pop(what, None) for what in _MATCHES}
        try:
            run = RunConfig.from_dict(merged(base, changes))
        except ConfigError as error:
            self.problems += [f"{name}: {problem}" for problem in error.problems]
            return None
        if run.seeds != 1 or run.seed != 0:
            self.problems.append(f"{name}: seed and seeds are those of the experiment; leave them out.")
        return Arm(name, run, **matches)

    def _seeds(self) -> tuple[int, ...]:
        given = self.fields.get("seeds", 5)
        if _is_whole(given) and given >= 1:
            return tuple(range(given))
        if isinstance(given, list) and _are_seeds(given):
            return tuple(given)
        self.problems.append(f"seeds is {given!r}; expected how many, or a list of different ones.")
        return ()

    def _sweep(self, seeds: tuple[int, ...]) -> Sweep | None:
        table = self.fields.get("sweep")
        if table is None:
            return None
        if not isinstance(table, Mapping):
            self.problems.append(f"sweep is {table!r}; expected learning_rates, steps and seed.")
            return None
        try:
            sweep = from_dict(Sweep, table)
        except ConfigError as error:
            self.problems += [f"sweep: {problem}" for problem in error.problems]
            return None
        if sweep.seed in seeds:
            self.problems.append(f"sweep: seed {sweep.seed} is one of the runs' seeds; take another.")
        return sweep


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_seeds(given: list[Any]) -> bool:
    are_whole = all(_is_whole(seed) and seed >= 0 for seed in given)
    return bool(given) and are_whole and len(set(given)) == len(given)


def _changes(arm: Arm, what: str) -> bool:
    """Whether what others are matched to in this arm is decided by a match of its own."""
    return arm.parameters_of is not None or (what == "flops_of" and arm.flops_of is not None)


def with_learning_rate(run: RunConfig, rate: float) -> RunConfig:
    """The same run with another peak of the learning rate."""
    optimizer = dataclasses.replace(run.optimizer, learning_rate=rate)
    return dataclasses.replace(run, optimizer=optimizer)
