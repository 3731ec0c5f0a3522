"""Where a number comes from: the code, the versions, the machine and the time."""

import datetime
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qkvflow import plugins

_PACKAGES = ("qkvflow", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
_PLUGIN = "plugin "
_FOLDERS = ("config", "nn", "models", "data", "train")
"""What decides the numbers of a run."""
_PACKAGE = Path(__file__).parent


def source_files() -> list[Path]:
    """The files that decide the numbers of a run."""
    return [path for folder in _FOLDERS for path in (_PACKAGE / folder).rglob("*.py")]


def digest_of(files: Iterable[Path]) -> str:
    """Of the names and the content of files of this package, or beside it."""
    digest = hashlib.sha256()
    for path in sorted(files):
        name = Path(os.path.relpath(path, _PACKAGE)).as_posix()
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


CODE = digest_of(source_files())
"""The code that this process runs; files may change before it ends."""


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine() -> dict[str, Any]:
    """What the run ran on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        rows = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in rows}
        kind = ", ".join(f"{of} {facts[of]}" for of in ("cpu family", "model") if of in facts)
        model = ", ".join(filter(None, (facts.get("model name", model), kind)))
    return {"processor": model, "cores": _cores(), "system": platform.system()}


def _cores() -> int | None:
    """How many cores this process may use, which is fewer than there are where it is pinned."""
    can_be_pinned = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if can_be_pinned else os.cpu_count()


def plugins_in(recorded: Mapping[str, str]) -> dict[str, str]:
    """The plugins among recorded versions, with their digests."""
    return {
        name.removeprefix(_PLUGIN): sha256
        for name, sha256 in recorded.items()
        if name.startswith(_PLUGIN)
    }


def versions() -> dict[str, str]:
    """Of Python and of all that has a part in the result, a user's plugins among them."""
    return (
        {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"code": CODE}
        | {_PLUGIN + name: sha256 for name, sha256 in plugins.digests().items()}
    )
