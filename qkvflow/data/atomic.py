"""A directory that is there whole or not at all."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkvflow.data.errors import DataError

ABANDONED_AFTER = 24 * 3600.0
"""Seconds after which a build directory that nobody finished (a killed process) is removed."""


@contextmanager
def building(final: Path) -> Iterator[Path]:
    """Yield a new directory beside `final`; rename it to `final` on success, remove it on failure.

    A reader therefore never sees half of the files. If another process finished the same
    directory meanwhile, that one stays and this one is dropped: the content is the same.
    """
    temporary = _make_temporary(final)
    try:
        yield temporary
        _flush(temporary)
        _publish(temporary, final)
    except OSError as error:
        raise DataError(
            f"{final} could not be written: {error.strerror or error}. Nothing was kept. "
            f"Free some space, or choose another cache directory."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def default_cache_dir() -> Path:
    """`$QKVFLOW_CACHE`, or `~/.cache/qkvflow`."""
    return Path(os.environ.get("QKVFLOW_CACHE") or "~/.cache/qkvflow").expanduser()


def _make_temporary(final: Path) -> Path:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        # Not tempfile.mkdtemp: that one makes directories private, and a cache may be shared.
        temporary = final.parent / f".{final.name}.{os.urandom(6).hex()}.part"
        temporary.mkdir()
        return temporary
    except OSError as error:
        raise DataError(
            f"The cache directory {final.parent} cannot be written: {error.strerror or error}. "
            f"Choose another one, or change its permissions."
        ) from error


def _remove_abandoned(final: Path) -> None:
    for part in final.parent.glob(f".{final.name}.*.part"):
        if time.time() - part.stat().st_mtime > ABANDONED_AFTER:
            shutil.rmtree(part, ignore_errors=True)


def _flush(directory: Path) -> None:
    """Ask the disk to have the content before the rename makes it visible."""
    for path in directory.iterdir():
        with path.open("r+b") as file:
            os.fsync(file.fileno())


def _publish(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        if not final.is_dir():
            raise
