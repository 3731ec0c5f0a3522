"""How a long computation on a CPU keeps the memory that it has.

XLA asks for the memory of a program's intermediate results before every call and gives it back after
it. For more than a few megabytes the C library passes both on to the operating system, which then has
to supply and clear every page of it again (tests/test_memory.py counts them).
"""

import ctypes
import os
import sys

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
