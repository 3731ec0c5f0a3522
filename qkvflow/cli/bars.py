"""What a person sees while a command works: bars, the time that is left, how long it will take."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from qkvflow.progress import clock

MEASURED = 5
"""Steps after which it is said how long the others will take."""
LONG = 20.0
"""Seconds from which on it is worth saying."""


def step_bars(console: Console) -> Progress:
    """Bars that count steps and show a field `shown` of their tasks, where somebody is watching.

    A field `left` of a task, in seconds, stands in place of what the bar reckons itself.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        CountColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TimeColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


class CountColumn(MofNCompleteColumn):
    """How many of how many; nothing of what cannot be counted."""

    def render(self, task: Task) -> Text:
        """One cell."""
        return Text("") if task.total is None else super().render(task)


class TimeColumn(ProgressColumn):
    """The time that is left; of what cannot be counted, the time that has passed."""

    def render(self, task: Task) -> Text:
        """One cell."""
        if task.total is None:
            return Text(clock(task.elapsed or 0.0))
        left = task.fields.get("left", task.time_remaining)
        return Text("" if left is None else f"{clock(left)} left")


def duration(seconds: float) -> str:
    """A time in words, as roughly as it is known.

    Examples:
        >>> [duration(seconds) for seconds in (4, 50, 200, 5000, 20000)]
        ['about 10 seconds', 'about 50 seconds', 'about 3 minutes', 'about 83 minutes', 'about 6 hours']
    """
    if seconds < 100:
        return f"about {max(10, 10 * round(seconds / 10))} seconds"
    if seconds < 100 * 60:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


class Pace:
    """How long a run takes, as its first steps show; the first of them may have waited for others."""

    def __init__(self, steps: int):
        self._steps = steps
        self._begun = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def tick(self, step: int) -> None:
        """A step has ended."""
        self._last = step, time.monotonic()
        self._first = self._first or self._last

    @property
    def per_step(self) -> float | None:
        """Seconds of a step; None until enough have been measured."""
        if self._first is None or self._last is None:
            return None
        (first, begin), (last, end) = self._first, self._last
        return (end - begin) / (last - first) if last - first >= MEASURED else None

    @property
    def left(self) -> float | None:
        """Seconds that the steps which are left will take."""
        if self.per_step is None or self._last is None:
            return None
        return self.per_step * (self._steps - self._last[0])

    @property
    def whole(self) -> float | None:
        """Seconds of the run from its beginning to its end, compiling among them."""
        return None if self.left is None else self.passed + self.left

    @property
    def passed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun
