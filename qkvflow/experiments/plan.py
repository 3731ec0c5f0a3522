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
    plugins: [mine.py]    # Python files that register what the runs name; docs/extending.md

Every arm sees the same text in the same order under the same seed, and draws its weights from the same
stream of random numbers.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkvflow.config import ConfigError, RunConfig, nearest, strict
from qkvflow.config.history import moved_run
from qkvflow.config.strict import from_dict, matches, to_dict, type_problems
from qkvflow.config.yaml_files import load_named, read_yaml

PLANS = Path(__file__).parent / "plans"
"""Plans that have a name."""
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
    """Learning rates to try, rising."""
    steps: int = 300
    """Training steps of each run of the sweep."""
    seed: int = 1000
    """Seed of the sweep; none of the seeds of the runs."""

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
    """Name of the arm; also of its directory."""
    run: RunConfig
    """Run of the arm, but for its seed."""
    parameters_of: str | None = None
    """Arm whose number of parameters this one is narrowed or widened to."""
    flops_of: str | None = None
    """Arm whose training cost this one's number of steps is chosen to equal."""
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Table of what differs from the base, as it was written."""

    @property
    def matches(self) -> dict[str, str]:
        """The arms that this one is matched to, by what they then have in common."""
        found = {"parameters_of": self.parameters_of, "flops_of": self.flops_of}
        return {what: other for what, other in found.items() if other is not None}


@strict
@dataclass(frozen=True)
class Plan:
    """An experiment: arms, seeds, how each arm's learning rate is found, what is tested."""

    base: dict[str, object]
    """Table of the run that all arms have in common."""
    arms: tuple[Arm, ...]
    """Arms that are compared."""
    seeds: tuple[int, ...]
    """Seeds that every arm is run with."""
    sweep: Sweep | None = None
    """How the learning rate of every arm is found; None: as its run has it."""
    reference: str = ""
    """Arm that the others are compared with first."""
    margin: float = 0.01
    """Difference in nats that counts as none; set before any run."""
    test: bool = False
    """Whether the test split is opened, once, when a run has ended."""
    plugins: tuple[str, ...] = ()
    """Python files that register what the runs name."""

    def __post_init__(self) -> None:
        problems = type_problems(self) or _relations(self)
        if problems:
            raise ConfigError("This experiment cannot be made:", problems)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Plan":
        """The plan that plain tables describe; all problems are reported at once."""
        problems: list[str] = []
        base, tables = fields.get("base", {}), fields.get("arms")
        plugins = fields.get("plugins", [])
        arms = _read_arms(base, tables, plugins, problems)
        read = {
            "base": base,
            "plugins": tuple(plugins) if isinstance(plugins, list) else plugins,
            "arms": arms,
            "seeds": _read_seeds(fields.get("seeds", 5), problems),
            "sweep": _read_sweep(fields.get("sweep"), problems),
            "reference": fields.get("reference", arms[0].name if arms else ""),
        }
        plan = None
        with _collected(problems):
            plan = Plan(**{**fields, **read})
        if plan is None or problems:
            raise ConfigError("This experiment cannot be made:", problems)
        return plan

    @property
    def fields(self) -> dict[str, Any]:
        """The plain tables that `Plan.of` makes this plan of."""
        return {**to_dict(self), "arms": {arm.name: dict(arm.changes) for arm in self.arms}}

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
        return Plan.of({**self.fields, "base": {**self.base, "steps": steps}})

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
            arm.name: dict(arm.changes)
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
            problems += [
                f"{arm.name} is matched to {other}; name that, too."
                for other in arm.matches.values()
                if other not in names
            ]
        if problems:
            raise ConfigError("These arms cannot be chosen:", problems)
        reference = self.reference if self.reference in names else names[0]
        tables = {arm.name: arm.changes for arm in arms}
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
    load_named(content)
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


@contextlib.contextmanager
def _collected(problems: list[str], name: str = "") -> Iterator[None]:
    """Put the problems of a configuration into a list, under a name."""
    try:
        yield
    except ConfigError as error:
        problems += [f"{name}: {problem}" if name else problem for problem in error.problems]


def _relations(plan: Plan) -> list[str]:
    """What does not fit together in a plan."""
    arms = {arm.name: arm for arm in plan.arms}
    problems = []
    if arms and plan.reference not in arms:
        problems.append(f"reference is {plan.reference!r}. {nearest(plan.reference, arms)}")
    if not plan.margin > 0:
        problems.append(f"margin is {plan.margin}; expected nats above 0.")
    if plan.sweep is not None and plan.sweep.seed in plan.seeds:
        problems.append(f"sweep: seed {plan.sweep.seed} is one of the runs' seeds; take another.")
    for arm in plan.arms:
        for what, other in arm.matches.items():
            if other not in arms or other == arm.name:
                problems.append(f"{arm.name}: {what} is {other!r}. {nearest(str(other), arms)}")
            elif arms[other].parameters_of or (what == "flops_of" and arms[other].flops_of):
                problems.append(
                    f"{arm.name}: {what} is {other!r}, which is itself matched to another arm; "
                    "name that one."
                )
    return problems


def _read_arms(base: Any, tables: Any, plugins: Any, problems: list[str]) -> tuple[Arm, ...]:
    if not isinstance(base, Mapping):
        problems.append(f"base is {base!r}; expected the fields of a run.")
        return ()
    if not isinstance(tables, Mapping) or not tables:
        problems.append("arms is missing; expected a table of names, each with what differs.")
        return ()
    if "final_tokens" in base:
        problems.append("base: leave final_tokens out; arms are judged on all of the valid split.")
    problems += [
        f"{name}: plugins are those of the experiment; put them beside base."
        for name, table in {"base": base, **tables}.items()
        if isinstance(table, Mapping) and "plugins" in table
    ]
    arms = []
    for name, changes in tables.items():
        with _collected(problems, str(name)):  # YAML reads a name like 1 as a number
            arms.append(_read_arm(str(name), {**base, "plugins": plugins}, changes))
    return tuple(arms)


def _read_arm(name: str, base: Mapping[str, Any], changes: Any) -> Arm:
    if not name.replace("_", "").replace("-", "").replace(".", "").isalnum():
        raise ConfigError(name, ["this name cannot be a directory; use letters, digits, _ - ."])
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(name, [f"{changes!r} is no table; expected what differs from base."])
    different = dict(changes or {})
    of = {what: different.pop(what, None) for what in ("parameters_of", "flops_of")}
    problems = [
        f"{common} is the same for all arms; put it into base."
        for common in _COMMON
        if common in different
    ]
    if {"seed", "seeds"} & {*base, *different}:
        problems.append("seed and seeds are those of the experiment; leave them out.")
    run = None
    with _collected(problems):
        run = RunConfig.from_dict(moved_run(merged(base, different)))
    if run is None or problems:
        raise ConfigError(name, problems)
    return Arm(name, run, **of, changes=dict(changes or {}))


def _read_seeds(given: Any, problems: list[str]) -> tuple[int, ...]:
    """How many seeds, or a list of them."""
    if matches(given, int) and given >= 1:
        return tuple(range(given))
    seeds = tuple(given) if isinstance(given, list) else ()
    if not seeds or not all(matches(s, int) and s >= 0 for s in seeds) or len({*seeds}) < len(seeds):
        problems.append(f"seeds is {given!r}; expected how many, or a list of different ones.")
        return ()
    return seeds


def _read_sweep(table: Any, problems: list[str]) -> Sweep | None:
    if table is not None and not isinstance(table, Mapping):
        problems.append(f"sweep is {table!r}; expected learning_rates, steps and seed.")
    with _collected(problems, "sweep"):
        return from_dict(Sweep, table) if isinstance(table, Mapping) else None
    return None


def with_learning_rate(run: RunConfig, rate: float) -> RunConfig:
    """The same run with another peak of the learning rate."""
    optimizer = dataclasses.replace(run.optimizer, learning_rate=rate)
    return dataclasses.replace(run, optimizer=optimizer)
