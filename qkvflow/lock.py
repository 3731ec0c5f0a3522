"""One process for one output directory."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qkvflow.files import FileError, file_errors


class HeldError(FileError):
    """Another process is writing there."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the directory's lock, which the system releases when the process ends, however it ends.

    Raises:
        HeldError: another process holds it.
        FileError: the directory cannot be written.
    """
    refusal = f"The output directory {out} cannot be written"
    for place in (out, *out.parents):
        if place.is_file():
            raise FileError(f"{refusal}: {place} is a file. Name another directory with --out.")
    with file_errors(refusal, "Choose another one with --out, or change its permissions."):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("a+b", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "unknown"
            raise HeldError(
                f"Another process ({holder}) is writing to {out}. "
                "Wait for it, or choose another directory."
            ) from error
        with file_errors(refusal, "Free some space on its disk."):
            file.truncate(0)
            file.write(f"{os.getpid()}".encode())
        yield


@contextmanager
def waiting(out: Path) -> Iterator[None]:
    """`locked`, as soon as no other process holds it: for what takes a moment."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(out))
                break
            except HeldError:
                time.sleep(0.1)
        yield
