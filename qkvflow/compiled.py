"""Compiled programs, kept from one start of a command to the next.

Compiling a step takes longer than the first hundred of them. What is kept was made for one machine and
one version of the compiler, so that each has a directory of its own; nothing waits for a lock.
"""

import hashlib
import json
import os
import warnings
from pathlib import Path

import jax
import jaxlib

from qkvflow.data import default_cache_dir
from qkvflow.nn.products import CPU_INFO, cpu_flags
from qkvflow.provenance import machine

LARGEST = 2**30
"""Bytes of a directory beyond which the oldest programs go, until half of that is left."""
SHORTEST = 0.2
"""Seconds: what compiles faster is not kept."""


def keep_compiled() -> None:
    """Keep programs of this process in the cache, unless their place has been chosen already."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    directory = directory_of_programs()
    make_room(directory)
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Another process may be writing what this one reads, which then compiles it itself.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")


def directory_of_programs() -> Path:
    """Where programs of this machine and this version are kept."""
    what = [machine(), sorted(cpu_flags(CPU_INFO)), os.environ.get("XLA_FLAGS", "")]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]
    return default_cache_dir() / "compiled" / f"jaxlib-{jaxlib.__version__}-{digest}"


def make_room(directory: Path, largest: int = LARGEST) -> None:
    """Remove the oldest programs of a directory that has grown too large; another process may, too."""
    files = []
    for path in directory.glob("*"):
        try:
            files.append((path.stat().st_mtime, path.stat().st_size, path))
        except FileNotFoundError:
            continue
    left = sum(size for _, size, _ in files)
    if left <= largest:
        return
    for _, size, path in sorted(files):
        if left <= largest // 2:
            return
        path.unlink(missing_ok=True)
        left -= size
