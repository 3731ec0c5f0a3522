"""Plugins: Python files of a user that register variants, used by every command without a fork.

    qkvflow train --plugin my_idea.py --data my_corpus --out runs/first

A plugin is code, and only the user names it: with `--plugin`, with `plugins:` in the YAML file of a run
or a plan that is given to a command, by installing a package with an entry point in the group
`qkvflow.plugins`, or by calling `load_plugins`. Checkpoints, exported models and records of experiments
hold the names and digests of the plugins that they were made with; these are compared and shown, and
never executed. Paths are relative to the directory in which the command is started, as all paths of a
run are. A plugin is one file; several files are a package with an entry point.
"""

import hashlib
import importlib.metadata
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from qkvflow.files import FileError, expanded, file_errors

GROUP = "qkvflow.plugins"
"""Group of entry points of installed packages."""
OPTION = "--plugin"
LARGEST = 1_000_000
"""Bytes of a file."""


@dataclass(frozen=True)
class _Plugin:
    path: Path
    sha256: str


_loaded: dict[str, _Plugin] = {}
"""By the name of the file, or of the entry point."""
_executing: list[list[Callable[[], object]]] = []
"""For each of those that are being executed: what takes back what it has registered, one call each."""


def digests() -> dict[str, str]:
    """The sha256 of every plugin of this process, by its name: part of all that the process writes."""
    return {name: plugin.sha256 for name, plugin in sorted(_loaded.items())}


def files() -> list[Path]:
    """The files that were named, for another process to load."""
    return [plugin.path for name, plugin in _loaded.items() if name == plugin.path.name]


def note(registered_in: str, undo: Callable[[], object]) -> None:
    """Told by registries: a module has registered a variant, and how to take it back."""
    if _executing and not registered_in.startswith("qkvflow."):
        _executing[-1].append(undo)


def load_plugins(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Execute files that register variants, each once in a process.

    Raises:
        FileError: one is missing, is no Python, fails, registers nothing, or is another file than the
            one of that name which is loaded already.

    Examples:
        load_plugins(["my_idea.py"])
    """
    for path in paths:
        _load_file(expanded(path).absolute())


def load_installed() -> None:
    """Import what installed packages name in the group of entry points."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name in _loaded:
            continue
        with _attributed(f"The installed plugin {entry.name} ({entry.value})", Path(entry.module)):
            entry.load()
        path = Path(sys.modules[entry.module].__file__ or "")
        _loaded[entry.name] = _Plugin(path, _digest_of_package(path))


def check_loaded(what: str, names: Iterable[str]) -> None:
    """Refuse what names plugins that are not loaded: runs and records are tables, and execute nothing.

    Args:
        what: begins the sentence, such as the path of a checkpoint.
    """
    missing = [name for name in names if Path(name).name not in _loaded]
    if missing:
        options = " ".join(f"{OPTION} {name}" for name in missing)
        needed = ", ".join(missing)
        raise FileError(f"{what} needs {needed}, which is not loaded: name the file with {options}.")


def check_same(what: str, recorded: Mapping[str, str]) -> None:
    """Refuse to go on with something that was begun with other plugins.

    Args:
        what: begins the sentence, such as the path of a checkpoint.
        recorded: its plugins, as `digests` gave them when it was written.
    """
    check_loaded(what, recorded)
    if changes := _changes(recorded):
        raise FileError(
            f"{what} was begun with another plugin: {changes}. Restore the file, or begin again in "
            "another directory."
        )


@contextmanager
def needed_by(what: str, recorded: Mapping[str, str]) -> Iterator[None]:
    """Read something that plugins had a part in: say which one is missing if it cannot be read.

    One that is not needed, such as that of the optimizer for generating text, may be left out. One that
    has changed is a warning: it may only have grown.
    """
    if changes := _changes(recorded):
        warnings.warn(f"{what} was made with another plugin: {changes}.", stacklevel=4)
    try:
        yield
    except ValueError as error:
        try:
            check_loaded(what, recorded)
        except FileError as missing:
            raise FileError(f"{missing} Without it: {error}") from error
        raise


def _changes(recorded: Mapping[str, str]) -> str:
    return "; ".join(
        f"the sha256 of {name} was {sha256[:12]} and is {_loaded[name].sha256[:12]}"
        for name, sha256 in recorded.items()
        if name in _loaded and _loaded[name].sha256 != sha256
    )


def _load_file(path: Path) -> None:
    with file_errors(f"The plugin {path} cannot be read"), path.open("rb") as file:
        source = file.read(LARGEST + 1)
    if len(source) > LARGEST:
        raise FileError(f"The plugin {path} has more than {LARGEST:,} bytes; name a Python file.")
    sha256, there = hashlib.sha256(source).hexdigest(), _loaded.get(path.name)
    if there is None:
        _execute(path, source)
        _loaded[path.name] = _Plugin(path, sha256)
    elif there.sha256 != sha256:
        raise FileError(
            f"The plugin {path} differs from {there.path}, which is loaded under the same name: "
            "rename one of them or, if the file was changed, start a new process."
        )


def _execute(path: Path, source: bytes) -> None:
    """Run a file as a module of its own, from the bytes that the digest is of."""
    module = types.ModuleType(f"qkvflow_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the types of their fields
    try:
        code = compile(source, str(path), "exec")
        with _attributed(f"The plugin {path}", path) as registered:
            exec(code, module.__dict__)
        if not registered:
            raise FileError(
                f"The plugin {path} registers nothing. Expected a line such as "
                '@CORPORA.register("my_corpus") above a function; docs/extending.md has examples.'
            )
    except (SyntaxError, ValueError) as error:
        del sys.modules[module.__name__]
        if isinstance(error, FileError):
            raise
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
        raise FileError(f"The plugin {path} is not valid Python: {line}.") from error


@contextmanager
def _attributed(what: str, path: Path) -> Iterator[list[Callable[[], object]]]:
    """Whatever goes wrong inside is a sentence with the line of the user's file, and is taken back."""
    registered: list[Callable[[], object]] = []
    _executing.append(registered)
    try:
        yield registered
    except (Exception, SystemExit) as error:
        for undo in registered:
            undo()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f"line {lines[-1]}: " if lines else ""
        problem = f"{where}{type(error).__name__}: {error}"
        raise FileError(f"{what} cannot be used: {problem}") from error
    finally:
        _executing.pop()


def _digest_of_package(path: Path) -> str:
    """Of all Python files of a package, or of a single module."""
    folder = path.parent
    paths = sorted(folder.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = hashlib.sha256()
    for each in paths:
        digest.update(
            f"{each.relative_to(folder).as_posix()}\n".encode(errors="surrogateescape")
            + each.read_bytes()
        )
    return digest.hexdigest()
