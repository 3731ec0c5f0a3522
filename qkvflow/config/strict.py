"""Strict frozen dataclasses: unknown names, wrong types and wrong choices are sentences."""

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from qkvflow.files import FileError, read_sealed

_Class = TypeVar("_Class", bound=type)
_Config = TypeVar("_Config")


class ConfigError(ValueError):
    """A configuration that cannot be used; its message lists every problem found."""

    def __init__(self, title: str, problems: list[str]):
        self.problems = problems
        super().__init__(title + "\n" + "\n".join(f"  - {problem}" for problem in problems))


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a finite number has to be; it stands in the annotation of a field, beside its type."""

    words: str
    least: float
    below: float = float("inf")
    above: bool = False
    """Whether the least itself is too little."""

    def allows(self, number: float) -> bool:
        """Whether a number is within; one that is no number is not."""
        return self.least <= number < self.below and not (self.above and number == self.least)


LONGEST_QUOTE = 200
"""Characters of a value that a sentence quotes."""
COUNTS, SIZES, LAYERS, RATIO = 2**31, 2**18, 2**16, 128
"""What counts (they are of 32 bits), sizes of arrays, depths and ratios of sizes are below.

The number of elements of any array of a model, a product of these, then has fewer than 63 bits, and
all shapes of a model can be computed in seconds, whether it fits into a machine or not.
"""
Positive = Annotated[float, Bound("a number above 0", 0, above=True)]
NotNegative = Annotated[float, Bound("at least 0", 0)]
Share = Annotated[float, Bound("a share, 0 to 1", 0, math.nextafter(1, 2))]
Probability = Annotated[float, Bound("a probability, at least 0 and below 1", 0, 1)]
Ratio = Annotated[float, Bound(f"a number above 0, below {RATIO}", 0, RATIO, above=True)]
PositiveInt = Annotated[int, Bound(f"a number above 0, below {COUNTS:,}", 1, COUNTS)]
NotNegativeInt = Annotated[int, Bound(f"at least 0, below {COUNTS:,}", 0, COUNTS)]
Count = Annotated[int, Bound(f"at least 1, below {COUNTS:,}", 1, COUNTS)]
Size = Annotated[int, Bound(f"a number above 0, below {SIZES:,}", 1, SIZES)]
Depth = Annotated[int, Bound(f"a whole number of layers, at least 1, below {LAYERS:,}", 1, LAYERS)]


class Config:
    """What a frozen dataclass of settings has: checks when it is made, plain tables in and out."""

    refusal: ClassVar[str]
    """Beginning of the message where it cannot be used."""

    def __post_init__(self) -> None:
        problems = problems_of(self)
        if problems:
            raise ConfigError(self.refusal, problems)

    def problems(self) -> list[str]:
        """A sentence for all that cannot be, beside what the annotations of the fields say."""
        return []

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; unknown names and wrong types are all reported at once."""
        return from_dict(cls, fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        return to_dict(self)


def problems_of(config: Any) -> list[str]:
    """A sentence for all that is wrong with settings; of wrong types, no more is said."""
    return type_problems(config) or bound_problems(config) + config.problems()


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that says which known name was probably meant, and lists all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}."


def matches(value: Any, kind: Any) -> bool:
    """Whether `value` is of the annotated type `kind`; `bool` is no `int`, an `int` is a `float`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        kinds = args[:1] * len(value) if isinstance(value, tuple) and args[-1] is Ellipsis else args
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(matches, value, kinds))
    if origin in (dict, Mapping):
        return isinstance(value, origin) and all(
            matches(k, args[0]) and matches(v, args[1]) for k, v in value.items()
        )
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def describe(kind: Any) -> str:
    """An annotated type in words."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin is tuple:
        return f"a list, each {describe(args[0])}"
    if origin in (dict, Mapping):
        return f"a table of names, each {describe(args[1])}"
    return "None" if kind is types.NoneType else kind.__name__


def from_dict(cls: type[_Config], fields: Mapping[str, Any]) -> _Config:
    """The inverse of `to_dict`: mappings become nested configs, lists become tuples.

    The problems of all nested configs are reported together, each under the name of its field.
    """
    hints, values, problems = typing.get_type_hints(cls), dict[str, Any](), list[str]()
    for name, value in fields.items():
        kind = _nested(hints.get(name), value)
        if kind is None:
            values[str(name)] = tuple(value) if isinstance(value, list) else value
        elif not isinstance(value, Mapping):
            problems.append(f"{name} is {value!r}; expected a table of fields.")
        else:
            try:
                several = typing.get_origin(hints[name]) is dict
                values[name] = _read_each(kind, value) if several else from_dict(kind, value)
            except ConfigError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
    try:
        config = cls(**values)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(f"{cls.__name__} cannot be made:", problems)
    return config


def _read_each(kind: type[_Config], tables: Mapping[str, Any]) -> dict[str, _Config]:
    """Configs by name."""
    found, problems = {}, []
    for name, table in tables.items():
        try:
            if not isinstance(table, Mapping):
                raise ConfigError(name, [f"{table!r}; expected a table of fields."])
            found[name] = from_dict(kind, table)
        except ConfigError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError("These tables cannot be used:", problems)
    return found


def _nested(kind: Any, value: Any) -> type | None:
    """The config that a field holds; none where it holds a plain value, or nothing though it may."""
    for each in typing.get_args(kind) or (kind,):
        is_config = dataclasses.is_dataclass(each) and not hasattr(each, "to_table")
        if is_config and not (value is None and each is not kind):
            return typing.cast(type, each)
    return None


def to_dict(config: Any) -> dict[str, Any]:
    """All fields of a config as plain JSON values."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    """A value as JSON has it; a variant says itself how it is written."""
    if hasattr(value, "to_table"):
        return _plain(value.to_table())
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def type_problems(config: Any) -> list[str]:
    """One sentence for every field of a dataclass instance whose value is not of its type."""
    hints = typing.get_type_hints(type(config))
    return [
        f"{field.name} is {shown(getattr(config, field.name))}; expected {describe(hints[field.name])}."
        for field in dataclasses.fields(config)
        if not matches(getattr(config, field.name), hints[field.name])
    ]


def shown(value: Any) -> str:
    """A value as a sentence quotes it, cut short; of a number that Python does not write, its size."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else "too long"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}..."


def bound_problems(config: Any) -> list[str]:
    """One sentence for every number of a dataclass instance that is out of the bound of its field."""
    found = typing.get_type_hints(type(config), include_extras=True)
    bounds = {field.name: _bound(found[field.name]) for field in dataclasses.fields(config)}
    return [
        f"{name} is {shown(value)}; expected {bound.words}."
        for name, bound in bounds.items()
        if bound and isinstance(value := getattr(config, name), int | float) and not bound.allows(value)
    ]


def _bound(kind: Any) -> Bound | None:
    """The bound in the annotation of a number, which may be optional."""
    inside = (_bound(each) for each in typing.get_args(kind))
    return kind if isinstance(kind, Bound) else next(filter(None, inside), None)


def _is_needed(field: dataclasses.Field) -> bool:
    nothing = dataclasses.MISSING
    return field.init and field.default is nothing and field.default_factory is nothing


def strict(cls: _Class) -> _Class:
    """Make a dataclass refuse missing fields, and unknown ones by a sentence that names the nearest."""
    plain_init = cls.__init__  # type: ignore[misc]
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    by_place = [field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only]
    needed = {field.name for field in dataclasses.fields(cls) if _is_needed(field)}

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in known]
        problems = [f"there is no field {name!r}. {nearest(name, known)}" for name in unknown]
        missing = needed.difference(by_place[: len(args)], kwargs)
        problems += [f"{name} is missing." for name in sorted(missing)]
        if problems:
            raise ConfigError(f"{cls.__name__} cannot be made:", problems)
        plain_init(self, *args, **kwargs)

    cls.__init__ = init  # type: ignore[misc]
    return cls


def read_typed(path: Path, kind: str, form: int, types: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a sealed file, if it holds what it has to.

    Args:
        types: of what it has to hold, by name, as annotations.

    Raises:
        FileError: it cannot be read, or lacks something, or has it of another type.
    """
    content = read_sealed(path, kind, form)
    for name, of in types.items():
        if name not in content:
            raise FileError(f"{path} has no {name}: it is not whole.")
        if not matches(content[name], of):
            value = shown(content[name])
            raise FileError(f"{path} cannot be used: {name} is {value}; expected {describe(of)}.")
    return content
