"""Registries: the variants of one kind by name, those of the package and those of a user's files."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from qkvflow import plugins
from qkvflow.config.strict import ConfigError, nearest

_Entry = TypeVar("_Entry")


class UnknownNameError(ConfigError, KeyError):
    """A name that is not registered; a `KeyError`, too, as of any mapping."""

    __str__ = ConfigError.__str__  # that of KeyError puts quotes around it


class Registry(Mapping[str, _Entry], Generic[_Entry]):
    """Variants of one kind by name, in the order in which they came.

    A variant is one file: it puts itself here when it is imported. Those of the package are imported
    from `home` when the first one is asked for, so that reading a name costs nothing.

    Examples:
        >>> shapes = Registry[type]("shape")
        >>> @shapes.register("circle")
        ... class Circle: ...
        >>> list(shapes)
        ['circle']
    """

    def __init__(self, kind: str, home: str | None = None):
        self.kind = kind
        """What a variant is called in sentences, such as "weight family"."""
        self._home = home
        self._entries: dict[str, _Entry] = {}

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        """Put a variant under a name; a decorator.

        Raises:
            ConfigError: the name is taken.
        """

        def put(entry: _Entry) -> _Entry:
            self._load()
            if name in self._entries:
                problem = f"there is a {self.kind} {name!r} already; choose another name."
                raise ConfigError(f"The {self.kind} cannot be registered:", [problem])
            self._accept(name, entry)
            self._entries[name] = entry
            registered_in = sys._getframe(1).f_globals["__name__"]
            plugins.note(registered_in, lambda: self._entries.pop(name))
            return entry

        return put

    def _accept(self, name: str, entry: _Entry) -> None:
        """Told of a new entry before it is here; other kinds of registries check or complete it."""

    def hint(self, name: str, also: Iterable[str] = ()) -> str:
        """What to do about a name that is not here; `also` are further names that would do."""
        known = nearest(str(name), [*self, *also])
        return f"{known} A name from a file of your own needs {plugins.OPTION} FILE."

    def _load(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            importlib.import_module(home)

    def __getitem__(self, name: str) -> _Entry:
        self._load()
        if name not in self._entries:
            problem = f"there is no {self.kind} {name!r}. {self.hint(name)}"
            raise UnknownNameError(f"The {self.kind} is not known:", [problem])
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)
