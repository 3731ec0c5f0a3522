"""Times that can be compared: a process for each contestant, turns that alternate, medians.

A contestant in a process of its own cannot disturb another: the threads of one library go on looking
for work for milliseconds after it is done, and would take a core from the next one.
"""

import importlib
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.provenance import digest_of, now, source_files

TURN = 0.3
"""Seconds that a turn takes at least."""
REST = 0.02
"""Seconds between turns, in which threads go to sleep."""
PATIENCE = 10.0
"""Seconds that a process has to end by itself."""


def measured() -> dict[str, str]:
    """The date, and the digest of the code that is measured now: the library and the contestants."""
    here = Path(__file__).parent
    generate = here.parents[1] / "qkvflow" / "generate"
    files = [*source_files(), *generate.glob("*.py"), *here.glob("*.py")]
    return {"date": now(), "code": digest_of(files)}


@dataclass(frozen=True)
class Task:
    """What a contestant does in a call, and what is known about it."""

    call: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A contestant before it starts: "module:function" that makes its task, and arguments."""

    make: str
    arguments: tuple[Any, ...] = ()
    optional: bool = False
    """Whether the others compete without it where it cannot start."""

    def task(self) -> Task:
        """The task; its module is imported only here, in the contestant's process."""
        module, function = self.make.split(":")
        return getattr(importlib.import_module(module), function)(*self.arguments)


class ContestError(Exception):
    """A contestant did not start, or died."""


class Contestant:
    """A task in a process of its own, done when its turn comes."""

    def __init__(self, entry: Entry):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, entry), daemon=True)
        self._process.start()
        theirs.close()
        self.facts: dict[str, Any] = self._answer()
        once = self.seconds(1)
        self._calls = max(1, round(TURN / once))

    def turn(self) -> float:
        """Seconds of a call, the mean over a turn."""
        time.sleep(REST)
        return self.seconds(self._calls)

    def seconds(self, calls: int) -> float:
        """Seconds of a call, the mean over so many."""
        self._pipe.send(calls)
        return self._answer() / calls

    def close(self) -> None:
        """End the process: let it finish by itself, but not for long."""
        self._pipe.close()
        self._process.join(PATIENCE)
        self._process.terminate()
        self._process.join()

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError as error:
            raise ContestError("the process ended without an answer") from error
        if isinstance(answer, str):
            raise ContestError(answer)
        return answer


def _serve(pipe: Connection, entry: Entry) -> None:
    """The life of a contestant: make the task, warm up, and do it as often as asked."""
    try:
        task = entry.task()
        task.call()
        task.call()
        pipe.send(task.facts)
        while True:
            calls = pipe.recv()
            begin = time.perf_counter()
            for _ in range(calls):
                task.call()
            pipe.send(time.perf_counter() - begin)
    except EOFError:
        return
    except Exception:
        pipe.send(traceback.format_exc(limit=-3))


@contextmanager
def contestants(
    entries: Mapping[str, Entry],
) -> Iterator[tuple[dict[str, Contestant], dict[str, str]]]:
    """Contestants by name, ended at the end, and why those that are optional did not start."""
    started: dict[str, Contestant] = {}
    absent: dict[str, str] = {}
    try:
        for name, entry in entries.items():
            try:
                started[name] = Contestant(entry)
            except ContestError as error:
                if not entry.optional:
                    raise
                absent[name] = str(error)
        yield started, absent
    finally:
        for contestant in started.values():
            contestant.close()


@dataclass(frozen=True)
class Times:
    """Seconds of a call in every round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return float(np.median(self.rounds))

    def ratio_to(self, other: "Times") -> tuple[float, float, float]:
        """Median and quartiles of the ratios of each round, in which the two take their turns."""
        ratios = np.divide(self.rounds, other.rounds)
        middle, low, high = np.percentile(ratios, (50, 25, 75)).tolist()
        return middle, low, high


@dataclass(frozen=True)
class Competition:
    """Times of the contestants, the facts about them, and who was absent for what reason."""

    times: dict[str, Times]
    facts: dict[str, dict[str, Any]]
    absent: dict[str, str]


def compete(entries: Mapping[str, Entry], rounds: int, advance: Callable[[], None]) -> Competition:
    """Let contestants take turns: what disturbs the machine for a while disturbs all of them.

    `advance` is called once a round.
    """
    with contestants(entries) as (started, absent):
        seconds: dict[str, list[float]] = {name: [] for name in started}
        for _ in range(rounds):
            for name, contestant in started.items():
                seconds[name].append(contestant.turn())
            advance()
        facts = {name: contestant.facts for name, contestant in started.items()}
    times = {name: Times(tuple(values)) for name, values in seconds.items()}
    return Competition(times, facts, absent)
