"""How much memory there is, and how a long computation on a CPU keeps what it has.

XLA asks for the memory of a program's intermediate results before every call and gives it back after
it. For more than a few megabytes the C library passes both on to the operating system, which then has
to supply and clear every page of it again (tests/test_memory.py counts them).
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

SETTINGS = {"ARENA_MAX": (-8, 1), "MMAP_MAX_": (-4, 0), "TRIM_THRESHOLD_": (-1, -1)}
"""Of glibc's mallopt: one heap for all threads, nothing outside of it, nothing given back."""


def keep_freed_memory() -> bool:
    """Let this process reuse memory instead of returning it; returns whether it will.

    For all that the process does from now on, so it is for programs, not for libraries. It must come
    before JAX starts its threads, which is when the first array is made. The process then holds as
    much memory as it ever needed at once, and compiling takes longer, since compiler threads wait for
    each other at the one heap. Where glibc's variables MALLOC_... choose otherwise, they count.
    """
    if any(f"MALLOC_{name}" in os.environ for name in SETTINGS) or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    done = [mallopt(option, value) for option, value in SETTINGS.values()]
    return all(done)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process can have: the machine's, or fewer in a container; None if unknown.

    A process that asks for more is killed by the system without a word.
    """
    if not sys.platform.startswith("linux"):
        return None
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_limits_of_groups(root)])


def _limits_of_groups(root: Path) -> Iterator[int]:
    """What control groups, this process's and those above it, allow; of either version."""
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inner = Path(path.lstrip("/"))
        for group in (inner, *inner.parents):
            file = top / group / name
            limit = file.read_text().strip() if file.is_file() else ""
            if limit.isdigit():  # else there is none
                yield int(limit)
