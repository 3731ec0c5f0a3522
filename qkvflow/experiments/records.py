"""What is kept of a run when it has ended, typed; as JSON it names the version of its schema.

Schema 1 says nothing of a schema, and its runs are of the first layout. Schema 2 says which layout of
`config.history` its run has. Reading brings a run to the layout of today, as a plain table: a switch
that is no longer there can still be read, reported and packed; only running needs a `RunConfig`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from qkvflow.config import history
from qkvflow.config.strict import (
    Bound,
    Positive,
    bound_problems,
    describe,
    matches,
    shown,
    to_dict,
    type_problems,
)
from qkvflow.data import Accuracy
from qkvflow.files import FileError

SCHEMA = 2
"""Of the records that are written now; older ones are read."""
_REPORTED: dict[str, Any] = {
    "run.optimizer.learning_rate": float,
    "run.architecture.hidden_dim": int,
    **dict.fromkeys(("run.data", "run.tokenizer", "machine.processor", "machine.system"), str),
    **dict.fromkeys(("run.steps", "run.batch_size", "run.length"), int),
    "machine.cores": int | None,
}
"""What a report needs of the tables of a record, with its types."""
LARGEST = 1e100
"""What measured numbers are below, so that sums of their squares are finite."""
T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """The loss on a split, in nats per token."""

    loss: float
    bits_per_byte: float
    standard_error: float | None
    """None: of a single window there is none."""
    whole: bool
    """Whether all of the split was read."""
    tokens: int | None
    accuracy: Accuracy | None = None
    """Of a text of questions; None of another text, and of records that are older."""

    @property
    def judged_by(self) -> float:
        """What a learning rate is chosen by: the share of wrong answers, or the loss where none are."""
        return self.loss if self.accuracy is None else 1 - self.accuracy.whole


@dataclass(frozen=True)
class Costs:
    """What a run costs; all but the memory follows from shapes."""

    parameters: Annotated[int, Bound("at least 1", 1)]
    time_network_parameters: int
    flops_per_token: float
    training_flops: float
    memory_bytes: int | None = None
    """Of a step, as the compiler plans it; None where it does not say."""


@dataclass(frozen=True)
class Origin:
    """Where and when a run was made."""

    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    began: str
    ended: str
    taken_from: str | None = None
    """Experiment and place of the record that this one is a copy of."""


@dataclass(frozen=True)
class AtDepth:
    """A trained model with another number of layers, on as much of the valid split as the plan says."""

    depth: int
    loss: float
    bits_per_byte: float
    flops_per_token: float
    accuracy: Accuracy | None = None
    """As of an evaluation."""


@dataclass(frozen=True)
class AtBest:
    """The model of the best evaluation of a run in training, and what it and the last one learned."""

    step: int
    """After which it was evaluated; the last, where no checkpoint of an evaluation was kept."""
    valid: Evaluation
    """On the same tokens as the trained model."""
    test: Evaluation | None
    train_loss: float
    """On as many tokens of the train split as evaluations in training read, without dropout."""
    train_loss_at_end: float
    """Of the trained model, on the same tokens."""
    epochs: Positive
    """How many times the run read the train split."""
    batches: tuple[tuple[int, float], ...] = ()
    """At every evaluation the mean loss of the logged batches since the one before, as in training."""


class Point(NamedTuple):
    """One evaluation during training, on a fixed part of the valid split."""

    step: int
    seconds: float
    loss: float


@dataclass(frozen=True)
class Ended:
    """A run that has ended, well or not."""

    arm: str
    seed: int
    run: Json
    """All its settings, in today's layout."""
    origin: Origin

    @property
    def learning_rate(self) -> float:
        """The peak that it was trained with, or was to be."""
        return self.run["optimizer"]["learning_rate"]


@dataclass(frozen=True)
class Finished(Ended):
    """A run that has taken all its steps."""

    data_digest: str
    valid: Evaluation
    test: Evaluation | None
    costs: Costs
    seconds: float
    ms_per_step: float
    curve: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    depths: tuple[AtDepth, ...] = ()
    """At the depths that the plan names."""
    best: AtBest | None = None
    """At its best evaluation, where the plan asks for it."""


@dataclass(frozen=True)
class Failed(Ended):
    """A run that ended with an error."""

    error: str
    """Its first line is the sentence, the rest is where it came from."""

    @property
    def sentence(self) -> str:
        """What went wrong, on one line."""
        return self.error.splitlines()[0]


Record = Finished | Failed


def finished(records: Iterable[Record]) -> list[Finished]:
    """Those that have taken all their steps."""
    return [record for record in records if isinstance(record, Finished)]


def by_arm(records: Iterable[Record]) -> dict[str, list[Finished]]:
    """The finished runs of every arm that has some."""
    found: dict[str, list[Finished]] = {}
    for record in finished(records):
        found.setdefault(record.arm, []).append(record)
    return found


def record_to_json(record: Record) -> Json:
    """A record of schema 2, as plain values; origin and costs have no tables of their own."""
    table = to_dict(record)
    flat = {"schema": SCHEMA, "layout": history.VERSION, "arm": table.pop("arm")}
    flat |= {"seed": table.pop("seed")}
    flat |= {"status": "failed" if isinstance(record, Failed) else "finished"}
    for name, value in table.items():
        flat |= value if name in ("origin", "costs") else {name: value}
    most: Json = {"taken_from": None, "depths": [], "best": None}
    flat = {name: value for name, value in flat.items() if name not in most or value != most[name]}
    best = flat.get("best") or {}
    seen = [flat.get("valid"), flat.get("test"), best.get("valid"), best.get("test")]
    for part in [*seen, *flat.get("depths", ())]:
        if part and part["accuracy"] is None:
            del part["accuracy"]
    return flat


def record_of_json(content: Any, where: str) -> Record:
    """The record that plain values of schema 1 or 2 describe; `where` they are from is for errors.

    Raises:
        FileError: they are of no such record, or of a newer schema.
    """
    return reading(_record, content, where, "the record of a run")


def reading(make: Callable[[Any], T], content: Any, where: str, what: str) -> T:
    """What a plain table describes, or a sentence about what it lacks."""
    if not isinstance(content, Mapping):
        raise FileError(f"{where} is not {what}: it is {shown(content)}; expected a table.")
    try:
        return make(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FileError):
            raise FileError(f"{where} {error}") from error
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{where} is not {what}: {reason}.") from error


def _record(content: Json) -> Record:
    schema = content.get("schema", 1)
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise FileError(
            f"has schema {schema!r}; this version reads up to {SCHEMA}. Install a newer one."
        )
    layout = content["layout"] if schema > 1 else 1
    run, origin = history.current_run(content["run"], layout), _part(Origin, content)
    _check_reported({"run": run, "machine": origin.machine})
    if content["status"] not in ("finished", "failed"):
        raise ValueError(f"its status is {shown(content['status'])}")
    if content["status"] == "failed":
        failed = _part(Failed, {**content, "run": run, "origin": origin})
        if not failed.error.strip():
            raise ValueError("it failed, and its error is empty")
        return failed
    _check_measured([value for name, value in content.items() if name != "run"])
    read = {
        "run": run,
        "origin": origin,
        "valid": _judged(Evaluation, content["valid"]),
        "test": content["test"] and _judged(Evaluation, content["test"]),
        "costs": _part(Costs, content),
        "curve": tuple(map(_point, content["curve"])),
        "notes": tuple(content["notes"]),
        "depths": tuple(_judged(AtDepth, each) for each in content.get("depths", ())),
        "best": None if content.get("best") is None else _at_best(content["best"]),
    }
    return _part(Finished, {**content, **read})


def _at_best(content: Json) -> AtBest:
    read = {
        "valid": _judged(Evaluation, content["valid"]),
        "test": content["test"] and _judged(Evaluation, content["test"]),
        "batches": tuple(map(tuple, content["batches"])),
    }
    return _part(AtBest, {**content, **read})


def _judged(kind: type[T], content: Json) -> T:
    """A part that may have an accuracy."""
    known = content.get("accuracy")
    return _part(kind, {**content, "accuracy": known and _part(Accuracy, known)})


def _part(kind: type[T], content: Json) -> T:
    """The fields of a dataclass, out of a table that has others, too; what has a default may lack."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    given = [f.name for f in fields if f.name in content or f.default is dataclasses.MISSING]
    return checked(kind(**{name: content[name] for name in given}))


def checked(part: T) -> T:
    """A dataclass, if its fields are of their types and within their bounds."""
    if problems := type_problems(part) or bound_problems(part):
        raise ValueError(" ".join(problems).removesuffix("."))
    return part


def _check_reported(tables: Json) -> None:
    """Refuse tables without what a report is made of."""
    for path, kind in _REPORTED.items():
        value: Any = tables
        for name in path.split("."):
            value = value[name]
        if not matches(value, kind):
            raise ValueError(f"{path} is {shown(value)}; expected {describe(kind)}")


def _check_measured(value: Any) -> None:
    """Refuse numbers, in whatever lists and tables, that no run has."""
    inside = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list):
        for each in inside:
            _check_measured(each)
    elif isinstance(value, int | float) and not abs(value) < LARGEST:
        raise ValueError(f"it has the number {shown(value)}; expected numbers below {LARGEST:g}")


def _point(values: Any) -> Point:
    point = Point(*values)
    if not matches(tuple(point), tuple[int, float, float]):
        raise ValueError(f"curve has {shown(values)}; expected step, seconds and loss")
    return point


Tried = tuple[tuple[float, float | None], ...]
"""Values of a setting, rising, each with its valid loss; None where the run failed."""
CHOICE_SCHEMA = 2
"""Of choices with other settings than the learning rate; those without say nothing of a schema."""


@dataclass(frozen=True)
class Swept:
    """The value of a setting, and the sweep that it was chosen by, at the best rate."""

    name: str
    value: float
    inside: bool
    """Whether it lies inside of the range that was tried; 0 at its start does: there is none below."""
    sweep: Tried

    @staticmethod
    def of(name: str, sweep: Iterable[tuple[float, float | None]]) -> "Swept":
        """The best of a sweep, of which at least one run did not fail."""
        ordered = tuple(sorted(sweep))
        best = min((loss, value) for value, loss in ordered if loss is not None)[1]
        least = ordered[0][0] < best or ordered[0][0] == 0
        return Swept(name, best, least and best < ordered[-1][0], ordered)


@dataclass(frozen=True)
class Choice:
    """The learning rate of an arm, and the sweep that it was chosen by."""

    learning_rate: float | None
    """None: every run of the sweep failed."""
    inside: bool
    """Whether it lies inside of the range that was tried, not at an end."""
    sweep: Tried
    """Learning rates, with the settings that were chosen."""
    first: Tried = ()
    """Learning rates at the arm's own settings, where others were swept after them."""
    settings: tuple[Swept, ...] = ()
    """Other settings, in the order in which they were swept."""

    @staticmethod
    def of(sweep: Iterable[tuple[float, float | None]]) -> "Choice":
        """The best of a sweep."""
        ordered = tuple(sorted(sweep))
        known = [(loss, rate) for rate, loss in ordered if loss is not None]
        best = min(known)[1] if known else None
        return Choice(best, best is not None and ordered[0][0] < best < ordered[-1][0], ordered)

    @property
    def beyond(self) -> float | None:
        """The next learning rate at the end where the best lies, as far from it as its neighbour is."""
        if self.inside or self.learning_rate is None or len(self.sweep) < 2:
            return None
        at_start = self.learning_rate == self.sweep[0][0]
        neighbour = self.sweep[1 if at_start else -2][0]
        return float(f"{self.learning_rate**2 / neighbour:.6g}")

    @property
    def values(self) -> dict[str, float]:
        """The settings that were chosen, by name."""
        return {each.name: each.value for each in self.settings}


Choices = Mapping[str, Choice]
"""By arm."""


def choices_to_json(choices: Choices) -> Json:
    """Choices by arm, as plain values."""
    return {arm: _choice_to_json(choice) for arm, choice in choices.items()}


def _choice_to_json(choice: Choice) -> Json:
    fields = dataclasses.asdict(choice)
    if choice.settings:
        return {"schema": CHOICE_SCHEMA, **fields}
    return {name: fields[name] for name in ("learning_rate", "inside", "sweep")}


def choices_of_json(content: Any, where: str) -> dict[str, Choice]:
    """The choices that plain values describe; `where` they are from is for errors."""
    return reading(_choices, content, where, "a table of learning rates")


def _choices(content: Json) -> dict[str, Choice]:
    return {arm: _choice(entry) for arm, entry in content.items()}


def _choice(entry: Json) -> Choice:
    schema = entry.get("schema", 1)
    if not isinstance(schema, int) or not 1 <= schema <= CHOICE_SCHEMA:
        raise FileError(
            f"has a choice of schema {schema!r}; this version reads up to {CHOICE_SCHEMA}. Install a "
            "newer one."
        )
    settings = tuple(_swept(each) for each in entry.get("settings", ()))
    first, sweep = _tried(entry.get("first", ())), _tried(entry["sweep"])
    return checked(Choice(entry["learning_rate"], entry["inside"], sweep, first, settings))


def _swept(entry: Json) -> Swept:
    return checked(Swept(entry["name"], entry["value"], entry["inside"], _tried(entry["sweep"])))


def _tried(pairs: Any) -> Any:
    """Pairs as tuples; whether they are of values and losses is checked with what they belong to."""
    return tuple(map(tuple, pairs))


@dataclass(frozen=True)
class NGramBaselines:
    """The loss of n-grams on the valid split, by name, and the text that they are of."""

    data_digest: str
    valid: Mapping[str, float]
