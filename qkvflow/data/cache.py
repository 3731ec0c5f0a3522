"""Where prepared data is kept, and how a directory of it comes to be."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkvflow.data.errors import DataError
from qkvflow.files import building, expanded


def default_cache_dir() -> Path:
    """`$QKVFLOW_CACHE`, or `~/.cache/qkvflow`."""
    return expanded(os.environ.get("QKVFLOW_CACHE") or "~/.cache/qkvflow")


@contextmanager
def caching(final: Path) -> Iterator[Path]:
    """Like `building`; a directory that cannot be written is a `DataError`."""
    try:
        with building(final) as temporary:
            yield temporary
    except OSError as error:
        raise DataError(
            f"The cache directory {final.parent} could not be written: {error.strerror or error}. "
            f"Nothing was kept. Free some space, change its permissions, or choose another one."
        ) from error
