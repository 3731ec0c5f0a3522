"""Files that are there whole or not at all, and that vouch for their content."""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which a build directory that nobody finished (a killed process) is removed."""
DEEPEST = 100
"""Tables and lists within each other in JSON."""


class FileError(ValueError):
    """A file that is missing, cut short, changed or of another format."""


@contextmanager
def file_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Make what the system refuses a sentence: what cannot be done, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{what}: {error.strerror or error}.{remedy and ' '}{remedy}") from error


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with ~ and ~NAME replaced by the directory of that user.

    Raises:
        FileError: it is empty, holds a NUL byte, or there is no such user.
    """
    if not os.fspath(path) or "\0" in os.fspath(path):
        what = "holds a NUL byte" if os.fspath(path) else "is empty"
        raise FileError(f"A path {what}; name a file or a directory.")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise FileError(
            f"{path} cannot be found: {error} Name the directory itself, or write ./~ for one whose "
            "name begins with ~."
        ) from error


def state_of(path: Path, lacking: str) -> str:
    """What is wrong with a path that should be a directory which holds something."""
    if path.is_dir():
        return lacking
    return "is a file, not a directory" if path.is_file() else "is not there"


def first_of(paths: Iterable[Path]) -> str:
    """A hint at the first of several paths, " Name PATH."; nothing where there is none."""
    return next((f" Name {path}." for path in paths), "")


@contextmanager
def building(final: Path) -> Iterator[Path]:
    """Yield a new directory beside `final`; rename it to `final` on success, remove it on failure.

    A reader therefore never sees half of the files. If another process finished the same
    directory meanwhile, that one stays and this one is dropped: the content is the same.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(final.parent, older_than=ABANDONED_AFTER)
    # Not tempfile.mkdtemp: that one makes directories private, and a cache may be shared.
    temporary = final.parent / f".{final.name}.{os.urandom(6).hex()}.part"
    temporary.mkdir()
    try:
        yield temporary
        for path in temporary.rglob("*"):
            _flush(path)
        _flush(temporary)
        _publish(temporary, final)
        _flush(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(directory: Path, *, older_than: float = 0.0) -> None:
    """Remove what was being written into a directory when a process was killed."""
    for part in directory.glob(".*.part"):
        try:
            if time.time() - part.lstat().st_mtime < older_than:
                continue
        except FileNotFoundError:  # another process has finished it meanwhile
            continue
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Ask the disk to have a file or a directory's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _publish(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def point_link(link: Path, target: str) -> None:
    """Make a link to a name beside it, or point it elsewhere; at no moment is it missing."""
    temporary = link.with_name(f".{link.name}.{os.urandom(6).hex()}.part")
    temporary.symlink_to(target)
    temporary.replace(link)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    # Not the process's number: processes on several machines may share a directory.
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.part")
    with file_errors(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_bytes(path: Path, sha256: str) -> bytes:
    """The content of a file, if it is the one that has this digest."""
    with file_errors(f"{path} cannot be read"):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise FileError(f"{path} was changed or cut short after it was written: its sha256 differs.")
    return content


def check_digests(directory: Path, files: Mapping[str, str]) -> None:
    """Refuse a directory in which a file is missing, or has another digest than it was written with."""
    for name, sha256 in files.items():
        if not (directory / name).is_file():
            raise FileError(f"{directory / name} is missing.")
        if file_sha256(directory / name) != sha256:
            raise FileError(
                f"{directory / name} was changed or cut short after it was written: its sha256 differs."
            )


def set_aside(path: Path) -> None:
    """Rename what is damaged to bad-NAME, so that it is not in the way and nothing is lost."""
    free = path.with_name(f"bad-{path.name}")
    path.rename(free.with_name(f"{free.name}-{os.urandom(3).hex()}") if free.exists() else free)


def write_text(path: Path, text: str) -> None:
    """Write a text that is there whole or not at all; it may name files whose names are no UTF-8."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that is there whole or not at all; numbers have to be finite."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds: finite numbers, no name twice, no more than `DEEPEST` tables deep.

    Raises:
        ValueError: it is no such text.
    """
    try:
        content = json.loads(
            text,
            object_pairs_hook=_table,
            parse_int=_whole_number,
            parse_float=_number,
            parse_constant=_number,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_nesting(content)
    return content


_TOO_DEEP = f"it nests tables or lists more than {DEEPEST} deep"


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is given twice in a table")
    return table


def _number(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is not a finite number")
    return number


def _whole_number(digits: str) -> int:
    _number(digits)
    return int(digits)


def _check_nesting(content: Any) -> None:
    """Refuse what is nested so deeply that other functions would give up, and text that is none."""
    level = [content]
    for _ in range(DEEPEST + 1):
        for item in level:
            if isinstance(item, str):
                # Half of a character is no text; names of files may be no UTF-8.
                item.encode(errors="surrogateescape")
        level = [inner for item in level for inner in _inside(item)]
    if level:
        raise ValueError(_TOO_DEEP)


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return chain(item.keys(), item.values())
    return item if isinstance(item, list) else ()


def read_json(path: Path) -> Any:
    """Read a JSON file, or say why it cannot be read."""
    with file_errors(f"{path} cannot be read"):
        content = path.read_bytes()
    try:
        return parse_json(content)
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}. Remove it and run again.") from error


def write_sealed(path: Path, kind: str, form: int, content: dict[str, Any]) -> None:
    """Write JSON that says what it is, in which format, and holds the sha256 of all that."""
    content = {"kind": kind, "format": form, **content}
    text = json.dumps(content | {"sha256": _seal(content)}, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_sealed(path: Path, kind: str, form: int) -> dict[str, Any]:
    """The content that `write_sealed` wrote, if it is of this kind and format and nobody changed it.

    Raises:
        FileError: it is missing, no JSON, of another kind or format, or changed.
    """
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing.") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise FileError(f"{path} does not describe a {kind}: another program wrote it.")
    found = content.get("format")
    if isinstance(found, int) and found > form:
        raise FileError(f"{path} has format {found}, expected {form}: a newer qkvflow wrote it.")
    if not isinstance(found, int) or found < 1:
        raise FileError(f"{path} has format {found!r}, expected 1 to {form}.")
    if content.pop("sha256", None) != _seal(content):
        raise FileError(f"{path} was changed after it was written: its sha256 differs.")
    return dict(content)


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
