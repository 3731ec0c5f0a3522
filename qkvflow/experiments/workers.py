"""Several processes of one machine that share an experiment, each on cores of its own.

A small model gains little from a second core, and neither does compiling, so that two models at once,
each on one core, end sooner than one after the other on both. Who runs what is the runner's.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import jax

from qkvflow import plugins
from qkvflow.compiled import keep_compiled
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.runner import complete
from qkvflow.interrupt import INTERRUPTED
from qkvflow.memory import keep_freed_memory

Cores = frozenset[int]
"""Numbers of cores that a process may use."""


@contextmanager
def sharing_cores(processes: int) -> Iterator[list[Cores]]:
    """Keep this process to its share of the cores; gives the shares that are left for others.

    It has to come before JAX starts, which counts cores for its threads. Where nothing can be pinned,
    or JAX finds an accelerator, which one process takes for itself, none is left.
    """
    if processes == 1 or not hasattr(os, "sched_setaffinity"):
        yield []
        return
    cores = os.sched_getaffinity(0)
    own, *others = cut(sorted(cores), processes)
    os.sched_setaffinity(0, own)
    keep_compiled()  # with those of as many cores: a program is made for their number
    try:
        yield others if jax.default_backend() == "cpu" else []
    finally:
        os.sched_setaffinity(0, cores)


def cut(cores: Sequence[int], processes: int) -> list[Cores]:
    """Shares of the cores that differ by one core at most; as many as processes, or as cores.

    Examples:
        >>> cut([0, 1, 2], 2)
        [frozenset({0, 2}), frozenset({1})]
    """
    shares = min(processes, len(cores))
    return [frozenset(cores[i::shares]) for i in range(shares)]


@contextmanager
def workers(plan: Plan, out: Path, shares: Sequence[Cores]) -> Iterator[None]:
    """Processes that work on an experiment while this one does, each on its share of the cores."""
    started = [_start(plan, out, share) for share in shares]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def _start(plan: Plan, out: Path, share: Cores) -> Any:
    context = multiprocessing.get_context("spawn")
    work = (plugins.files(), dict(plan.fields), out, share)
    process = context.Process(target=_work, args=work, daemon=True)
    process.start()
    return process


def _work(files: Sequence[Path], fields: dict[str, Any], out: Path, share: Cores) -> None:
    """What a process does: the plan comes as plain tables, which may need plugins to be understood."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.sched_setaffinity(0, share)
    keep_freed_memory()
    keep_compiled()
    plugins.load_installed()
    plugins.load_plugins(files)
    try:
        complete(Plan.of(fields).checked(), out)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # the process that was asked says so


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however it did."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(INTERRUPTED)
