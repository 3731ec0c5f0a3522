"""Strict frozen dataclasses: unknown names, wrong types and wrong choices are sentences."""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

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


_ABOVE_0 = Bound("a number above 0", 0, above=True)
_AT_LEAST_0 = Bound("at least 0", 0)
Positive = Annotated[float, _ABOVE_0]
PositiveInt = Annotated[int, _ABOVE_0]
NotNegative = Annotated[float, _AT_LEAST_0]
NotNegativeInt = Annotated[int, _AT_LEAST_0]
Count = Annotated[int, Bound("at least 1", 1)]
Depth = Annotated[int, Bound("a whole number of layers, at least 1", 1)]
Probability = Annotated[float, Bound("a probability, at least 0 and below 1", 0, 1)]


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
        return isinstance(value, tuple) and all(matches(item, args[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            matches(k, args[0]) and matches(v, args[1]) for k, v in value.items()
        )
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
    if origin is dict:
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
                values[name] = from_dict(kind, value)
            except ConfigError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
    try:
        config = cls(**values)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(f"{cls.__name__} cannot be made:", problems)
    return config


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
        f"{field.name} is {getattr(config, field.name)!r}; expected {describe(hints[field.name])}."
        for field in dataclasses.fields(config)
        if not matches(getattr(config, field.name), hints[field.name])
    ]


def bound_problems(config: Any) -> list[str]:
    """One sentence for every number of a dataclass instance that is out of the bound of its field."""
    found = typing.get_type_hints(type(config), include_extras=True)
    bounds = {field.name: _bound(found[field.name]) for field in dataclasses.fields(config)}
    return [
        f"{name} is {value}; expected {bound.words}."
        for name, bound in bounds.items()
        if bound and (value := getattr(config, name)) is not None and not bound.allows(value)
    ]


def _bound(kind: Any) -> Bound | None:
    """The bound in the annotation of a number, which may be optional."""
    inside = (_bound(each) for each in typing.get_args(kind))
    return kind if isinstance(kind, Bound) else next(filter(None, inside), None)


def strict(cls: _Class) -> _Class:
    """Make a dataclass refuse unknown fields with a sentence that names the nearest known one."""
    plain_init = cls.__init__  # type: ignore[misc]
    known = [field.name for field in dataclasses.fields(cls) if field.init]

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            problems = [f"there is no field {name!r}. {nearest(name, known)}" for name in unknown]
            raise ConfigError(f"{cls.__name__} cannot be made:", problems)
        plain_init(self, *args, **kwargs)

    cls.__init__ = init  # type: ignore[misc]
    return cls
