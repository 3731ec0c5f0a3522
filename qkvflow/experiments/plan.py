"""What is compared: arms, each a run that differs from a common one, over paired seeds.

    base:                 # a run, as in configs/
      data: wikitext-2
      steps: 3000
    arms:                 # what differs from it; names are free
      standard: {model: standard}
      shared: {model: shared}
      narrow: {model: standard, parameters_of: shared}
      deeper: {start: {arm: other-experiment/standard, depth: 12}}
      adamw: {optimizer: {name: adamw}, learning_rates: [5e-4, 1e-3, 2e-3, 4e-3]}
    seeds: 5              # 0 to 4; or a list, [5, 6, 7]
    sweep: {learning_rates: [1e-3, 2e-3, 4e-3, 8e-3], steps: 300, seed: 1000}   # more: `sweep`
    reference: standard
    margin: 0.01
    contrasts: [[shared, standard], [narrow, shared]]   # what the plan is about; without: all pairs
    judge_best: true      # runs are also judged at their best evaluation
    depths: [2, 4, 8]     # every trained model is also judged with so many layers
    plugins: [mine.py]    # Python files that register what the runs name; docs/extending.md
    like: main            # everything not set here is taken from that plan

Every arm sees the same text in the same order under the same seed, and draws its weights from the same
stream of random numbers. An arm may have another text; it is compared with arms of that text.

A plan is tables: what a report needs is read from them, also where they name a setting that is no
longer there. A run is made of an arm's table when it is to run.
"""

import contextlib
import itertools
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from qkvflow.config import ConfigError, RunConfig, nearest, strict
from qkvflow.config.history import moved_run
from qkvflow.config.run_config import LARGEST_SEED, MOST_SEEDS
from qkvflow.config.strict import (
    LAYERS,
    Config,
    Count,
    Depth,
    Positive,
    from_dict,
    matches,
    shown,
    to_dict,
)
from qkvflow.config.yaml_files import load_named, merged, read_yaml
from qkvflow.experiments.contrasts import Pair, arm_of, contrast_problems, read_contrasts
from qkvflow.experiments.sweep import Sweep, Values, arm_problems, read_sweep
from qkvflow.files import expanded

PLANS = Path(__file__).parent / "plans"
"""Plans that have a name."""
Match = Literal["steps", "parameters", "flops"]
"""What arms can have in common with the reference."""
LONGEST_NAME = 100
"""Characters of an arm's name."""
_READ_ALIKE = ("tokenizer", "bpe_size", "documents", "batch_size", "length")
_COMMON = (*_READ_ALIKE, "answers_only", "eval_tokens", "final_tokens")
"""Fields that no arm may have to itself: all read alike, and are judged alike."""


@strict
@dataclass(frozen=True)
class ArmStart(Config):
    """Trained models that the runs of an arm start from: each seed from the model of the same seed."""

    refusal = "This start cannot be made:"

    arm: str
    """Base models as DIR/ARM: an arm of the experiment in DIR, next to this one or an absolute path."""
    depth: Depth | None = None
    """Number of layers at which the base's weights are sampled; None: keep its depth and curves."""
    train: Literal["all", "adapter", "embeddings_and_norms"] = "all"
    """Arrays to train; all others stay unchanged."""
    also: tuple[str, ...] = ()
    """Additional arrays to train, by path pattern: transformer.wte.*, lm_head.*."""

    def problems(self) -> list[str]:
        """A name that is not that of an arm elsewhere."""
        if all(self.arm.rpartition("/")[::2]):
            return []
        return [f"arm is {self.arm!r}; expected DIR/ARM, an arm of another experiment."]

    def place(self, out: Path, seed: int) -> Path:
        """The run of a seed that an experiment in `out` starts from."""
        directory, _, arm = self.arm.rpartition("/")
        return out.parent / directory / "runs" / arm / f"seed-{seed}"


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    """Name of the arm, and of its directory."""
    table: dict[str, Any]
    """Settings given by the plan, in the current layout; all others have their defaults."""
    parameters_of: str | None = None
    """Arm whose number of parameters is matched, by changing the width."""
    flops_of: str | None = None
    """Arm whose total training operations are matched, by changing the number of steps."""
    start: ArmStart | None = None
    """Trained models that the runs start from; None: random initial weights."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates of the sweep for this arm only; empty: those of the plan."""
    also: Values | None = None
    """Other settings of the sweep for this arm only; None: those of the plan."""
    changes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Table of differences from the base, as written in the plan."""

    @cached_property
    def run(self) -> RunConfig:
        """Run of the arm, but for its seed, and for its start.

        Raises:
            ConfigError: it has a setting that cannot be, or that is no longer there.
        """
        return RunConfig.from_dict(self.table)

    @property
    def matches(self) -> dict[str, str]:
        """The arms that this one is matched to, by what they then have in common."""
        found = {"parameters_of": self.parameters_of, "flops_of": self.flops_of}
        return {what: other for what, other in found.items() if other is not None}

    @property
    def text(self) -> str:
        """What it reads."""
        return self.table.get("data", RunConfig.data)

    @property
    def problems(self) -> list[str]:
        """Why no run can be made of it."""
        problems: list[str] = []
        with _collected(problems, self.name):
            _ = self.run  # made here, and kept
        return problems


@strict
@dataclass(frozen=True)
class Plan(Config):
    """An experiment: arms, seeds, how each arm's learning rate is found, what is tested."""

    refusal = "This experiment cannot be made:"

    base: dict[str, object]
    """Table of settings that all arms share."""
    arms: tuple[Arm, ...]
    """Arms to compare."""
    seeds: tuple[int, ...]
    """Seeds that every arm is trained with."""
    sweep: Sweep | None = None
    """Learning-rate sweep for every arm; None: no tuning."""
    reference: str = ""
    """Arm that all others are compared with."""
    margin: Positive = 0.01
    """Equivalence margin in nats per token, fixed before any run."""
    test: bool = False
    """Whether to evaluate on the test split, once, at the end of each run."""
    contrasts: tuple[Pair, ...] | None = None
    """Pairs of arms to test, with p-values corrected over these pairs; None: all pairs. ARM@DEPTH is an
    arm at one of the plan's depths."""
    plugins: tuple[str, ...] = ()
    """Python files that register variants named in the runs."""
    depths: tuple[Depth, ...] = ()
    """Numbers of layers at which every trained model is evaluated, besides its own depth."""
    depth_tokens: Count | None = None
    """Tokens of the valid split used for evaluation at the plan's depths; None: all."""
    judge_best: bool = False
    """Whether to also judge runs by the model at their best evaluation on the valid split; useful if
    training repeats the text, because the last model is then not the best."""
    unit_steps: bool = False
    """Whether to use step size 1 at the plan's depths: more layers then add steps, not finer steps."""
    trial: bool = False
    """Whether this is a trial that only checks that everything works (`trial_of`)."""

    def problems(self) -> list[str]:
        """What does not fit together."""
        arms = {arm.name: arm for arm in self.arms}
        problems = []
        if arms and self.reference not in arms:
            problems.append(f"reference is {self.reference!r}. {nearest(self.reference, arms)}")
        for seed in {*self.seeds} & {*(self.sweep.seeds if self.sweep else ())}:
            problems.append(f"sweep: seed {seed} is one of the runs' seeds; choose another.")
        for arm in self.arms:
            problems += [f"{arm.name}: {problem}" for problem in _matching_problems(arm, arms)]
            if self.sweep is None and (arm.learning_rates or arm.also is not None):
                own = "learning_rates" if arm.learning_rates else "also"
                problems.append(f"{arm.name}: {own} needs a sweep, but the plan has none.")
        texts = {arm.name: arm.text for arm in self.arms}
        return problems + contrast_problems(self.contrasts or (), texts, self.depths)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> "Plan":
        """The plan that plain tables describe; what its arms set is looked at by `checked`."""
        problems: list[str] = []
        base, plugins = fields.get("base", {}), fields.get("plugins", [])
        arms = _read_arms(base, fields.get("arms"), plugins, problems)
        read = {
            "base": base,
            "plugins": tuple(plugins) if isinstance(plugins, list) else plugins,
            "arms": arms,
            "seeds": _read_seeds(fields.get("seeds", 5), problems),
            "sweep": _read_sweep(fields.get("sweep"), problems),
            "contrasts": read_contrasts(fields.get("contrasts"), problems),
            "depths": _read_depths(fields.get("depths", []), problems),
            "reference": fields.get("reference", arms[0].name if arms else ""),
        }
        with _collected(problems):
            plan = Plan(**{**{str(name): value for name, value in fields.items()}, **read})
        if problems:
            problems += [problem for arm in arms for problem in arm.problems]
            raise ConfigError("This experiment cannot be made:", problems)
        return plan

    def checked(self) -> "Plan":
        """This plan, if a run can be made of every arm.

        Raises:
            ConfigError: with the problems of all arms.
        """
        problems = [problem for arm in self.arms for problem in arm.problems]
        if not problems:
            problems = [problem for arm in self.arms for problem in self._sweep_problems(arm)]
        if problems:
            raise ConfigError("This experiment cannot be made:", problems)
        return self

    def _sweep_problems(self, arm: Arm) -> list[str]:
        found = arm_problems(arm.run, self.swept(arm), arm.start is not None)
        return [f"{arm.name}: {problem}" for problem in found]

    def swept(self, arm: Arm) -> Values:
        """The settings of an arm that are swept after its learning rate."""
        if self.sweep is None:
            return {}
        return self.sweep.also if arm.also is None else arm.also

    @property
    def fields(self) -> dict[str, Any]:
        """The plain tables that `Plan.of` makes this plan of."""
        fields = to_dict(self)
        if self.contrasts is None:  # none at all: all pairs are compared
            del fields["contrasts"]
        for name in ("depths", "depth_tokens", "unit_steps", "judge_best", "trial"):
            if not getattr(self, name):
                del fields[name]
        if self.sweep is not None and not self.sweep.also:
            del fields["sweep"]["also"]
        return {**fields, "arms": {arm.name: dict(arm.changes) for arm in self.arms}}

    @property
    def names(self) -> list[str]:
        """Of the arms, in their order."""
        return [arm.name for arm in self.arms]

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of arms that read one text, the reference first."""
        arms = sorted(self.arms, key=lambda arm: arm.name != self.reference)
        pairs = itertools.combinations(arms, 2)
        return [(first.name, second.name) for first, second in pairs if first.text == second.text]

    def contrasts_between(self, arms: Collection[str]) -> list[Pair]:
        """The contrasts of which both arms are among these."""
        return [pair for pair in self.contrasts or () if all(arm_of(name) in arms for name in pair)]

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
        return Plan.of({**self.fields, "base": {**self.base, "steps": steps}}).checked()

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
        return self._of_tables(tables)

    def with_arms(self, names: Sequence[str]) -> "Plan":
        """The same plan with some of its arms; the first is the reference where that is left out."""
        known = self.names
        problems = [f"there is no arm {n!r}. {nearest(n, known)}" for n in names if n not in known]
        if not names:
            problems.append(f"name at least one of {', '.join(known)}.")
        arms = tuple(arm for arm in self.arms if arm.name in names)
        problems += [
            f"{arm.name} is matched to {other}; include {other}, too."
            for arm in arms
            for other in arm.matches.values()
            if other not in names
        ]
        if problems:
            raise ConfigError("These arms cannot be chosen:", problems)
        return self._of_tables({arm.name: arm.changes for arm in arms}, names[0])

    def _of_tables(self, tables: Mapping[str, Any], first: str = "") -> "Plan":
        """The same plan with these arms, and with the contrasts between them."""
        fields = {**self.fields, "arms": tables}
        if self.reference not in tables:
            fields["reference"] = first
        if self.contrasts is not None:
            fields["contrasts"] = [list(pair) for pair in self.contrasts_between(tables)]
        return Plan.of(fields)


def read_plan(name: str) -> Plan:
    """The plan of a name, or that of a YAML file.

    Examples:
        >>> [arm.name for arm in read_plan("seeds").arms]
        ['standard', 'tong_neuralode', 'time_indexed_mlp', 'time_indexed_ssm']
    """
    content = _tables_of(name)
    if "like" in content:
        other = _tables_of(str(content.pop("like")))
        if "like" in other:
            problem = f"like: that plan itself is like {other['like']!r}; name that one."
            raise ConfigError(f"{name} cannot be used:", [problem])
        content = merged(other, content)
    load_named(content)
    try:
        return Plan.of(content).checked()
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be used:", error.problems) from error


def _tables_of(name: str) -> dict[str, Any]:
    """What stands in the file of a plan."""
    path = expanded(name)
    known = {file.stem: file for file in PLANS.glob("*.yaml")}
    if name not in known and not path.suffix and not path.exists():
        problem = f"{name!r}. {nearest(name, known)} Or name a YAML file."
        raise ConfigError("There is no such plan:", [problem])
    return dict(read_yaml(known.get(name, path)))


@contextlib.contextmanager
def _collected(problems: list[str], name: str = "") -> Iterator[None]:
    """Put the problems of a configuration into a list, under a name."""
    try:
        yield
    except ConfigError as error:
        problems += [f"{name}: {problem}" if name else problem for problem in error.problems]


def _matching_problems(arm: Arm, arms: Mapping[str, Arm]) -> Iterator[str]:
    if arm.start is not None and arm.parameters_of is not None:
        yield "parameters_of cannot be combined with start: the base model sets the width."
    for what, other in arm.matches.items():
        if other not in arms or other == arm.name:
            yield f"{what} is {other!r}. {nearest(str(other), arms)}"
        elif arms[other].parameters_of or (what == "flops_of" and arms[other].flops_of):
            yield f"{what} is {other!r}, which is itself matched to another arm; name that one."
        elif arms[other].start is not None:
            yield f"{what} is {other!r}, which has a start; name an arm without one."


def _read_arms(base: Any, tables: Any, plugins: Any, problems: list[str]) -> tuple[Arm, ...]:
    if not isinstance(base, Mapping):
        problems.append(f"base is {base!r}; expected the fields of a run.")
        return ()
    if not isinstance(tables, Mapping) or not tables:
        problems.append(
            "arms is missing; expected a table of names, each with its differences from base."
        )
        return ()
    if "final_tokens" in base:
        problems.append("base: leave final_tokens out; arms are judged on the whole valid split.")
    problems += [
        f"{name}: plugins belong to the experiment; put them next to base."
        for name, table in {"base": base, **tables}.items()
        if isinstance(table, Mapping) and "plugins" in table
    ]
    problems += _name_problems([str(name) for name in tables])
    arms = []
    for name, changes in tables.items():
        with _collected(problems, str(name)):  # YAML reads a name like 1 as a number
            arms.append(_read_arm(str(name), {**base, "plugins": plugins}, changes))
    return tuple(arms)


def _name_problems(names: Sequence[str]) -> Iterator[str]:
    """A sentence for every arm whose directory would be that of another one, on some file systems."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if names.count(name) > 1:
            yield f"arms: {name!r} is given twice; give each arm a name of its own."
        elif other != name:
            yield f"arms: {other!r} and {name!r} would share a directory if case is ignored."


def _read_arm(name: str, base: Mapping[str, Any], changes: Any) -> Arm:
    plain = name.replace("_", "").replace("-", "").replace(".", "")
    if not plain.isalnum() or len(name) > LONGEST_NAME:
        rule = f"use up to {LONGEST_NAME} letters, digits, _ - ."
        raise ConfigError(name, [f"this name cannot be used for a directory; {rule}"])
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(name, [f"{changes!r} is not a table; expected the differences from base."])
    different = dict(changes or {})
    problems = [
        f"{common} is the same for all arms; put it into base."
        for common in _COMMON
        if common in different
    ]
    if {"seed", "seeds"} & {*base, *different}:
        problems.append("seed and seeds are set by the experiment; leave them out.")
    given = {what: different.pop(what, None) for what in ("parameters_of", "flops_of")}
    of: dict[str, Any] = {w: None if other is None else str(other) for w, other in given.items()}
    start, begun = None, different.pop("start", None)
    if not isinstance(begun, Mapping | None):
        problems.append(f"start is {shown(begun)}; expected a table of arm, depth, train and also.")
    elif begun is not None:
        with _collected(problems, "start"):
            start = from_dict(ArmStart, begun)
    swept: dict[str, Any] = {}
    with _collected(problems):
        swept = _read_swept(different)
    if problems:
        raise ConfigError(name, problems)
    table = moved_run(merged(base, different))
    return Arm(name, table, **of, start=start, **swept, changes=dict(changes or {}))


def _read_swept(different: dict[str, Any]) -> dict[str, Any]:
    """The learning rates and other settings that an arm alone is swept over, taken out of its table."""
    own = {name: different.pop(name, None) for name in ("learning_rates", "also")}
    given = {name: value for name, value in own.items() if value is not None}
    sweep = read_sweep(given)
    return {name: getattr(sweep, name) for name in given}


def _read_seeds(given: Any, problems: list[str]) -> tuple[int, ...]:
    """How many seeds, or a list of them."""
    if matches(given, int) and 1 <= given <= MOST_SEEDS:
        return tuple(range(given))
    seeds = tuple(given) if isinstance(given, list) else ()
    are_seeds = all(matches(seed, int) and 0 <= seed <= LARGEST_SEED for seed in seeds)
    if not are_seeds or not len({*seeds}) == len(seeds) <= MOST_SEEDS or not seeds:
        problems.append(
            f"seeds is {shown(given)}; expected a number of seeds, up to {MOST_SEEDS:,}, or a list of "
            f"distinct seeds from 0 to {LARGEST_SEED}."
        )
        return ()
    return seeds


def _read_sweep(table: Any, problems: list[str]) -> Sweep | None:
    if table is not None and not isinstance(table, Mapping):
        problems.append(f"sweep is {table!r}; expected learning_rates, steps and seed.")
    with _collected(problems, "sweep"):
        return read_sweep(table) if isinstance(table, Mapping) else None
    return None


def _read_depths(given: Any, problems: list[str]) -> tuple[int, ...]:
    depths = tuple(given) if isinstance(given, list) else ()
    are_depths = all(matches(depth, int) and 1 <= depth < LAYERS for depth in depths)
    if not isinstance(given, list) or not are_depths or len({*depths}) < len(depths):
        problems.append(f"depths is {shown(given)}; expected distinct numbers of layers, [2, 4, 8].")
        return ()
    return depths
