"""A progress bar that appears only when somebody is watching and has begun to wait.

Somebody watches a terminal, or a notebook.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

PATIENCE = 2.0
"""Seconds before the bar appears."""
OFTEN = 0.2
"""Seconds between two drawings in a notebook."""
LENGTH = 30
"""Characters of a bar in a notebook."""
Draw = Callable[[int, str], None]
"""Draws how much is done, and a few words."""


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield `advance(amount)`, which draws a bar where somebody watches once two seconds have passed.

    `total` is None where the amount of work is not known beforehand.

        with progress("tokenising", total=len(text)) as advance:
            advance(1024)
    """
    with ExitStack() as stack:
        yield _Bar(description, total, stack).advance


@contextmanager
def elapsed(description: str) -> Iterator[None]:
    """Show on a terminal what is under way and for how long, where nothing can be counted."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(description, total=None)
        yield


def is_watched() -> bool:
    """Whether there is somebody to draw for."""
    return in_notebook() or sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether this is a cell of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def drawing(description: str, total: int | None, stack: ExitStack) -> Draw:
    """A bar, drawn now and until the stack is closed; for `is_watched`."""
    if in_notebook():
        return _NotebookBar(description, total, stack).draw
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task(description, total=total, shown="")
    return lambda done, shown: bar.update(task, completed=done, shown=shown)


class _Bar:
    """Counts at once, draws late: rich is imported only when there is something to draw."""

    def __init__(self, description: str, total: int | None, stack: ExitStack):
        self._description = description
        self._total = total
        self._stack = stack
        self._begun = time.monotonic()
        self._done = 0
        self._draw: Draw | None = None

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._draw is not None:
            self._draw(self._done, "")
        elif is_watched() and time.monotonic() - self._begun > PATIENCE:
            self._draw = drawing(self._description, self._total, self._stack)
            self._draw(self._done, "")


class _NotebookBar:
    """A line of text below the cell, written anew: it needs nothing but IPython."""

    def __init__(self, description: str, total: int | None, stack: ExitStack):
        from IPython.display import display

        self._description, self._total = description, total
        self._begun, self._drawn = time.monotonic(), -OFTEN
        self._last = 0, ""
        self._handle = display({"text/plain": description}, raw=True, display_id=True)
        stack.callback(self._write)

    def draw(self, done: int, shown: str) -> None:
        self._last = done, shown
        if time.monotonic() - self._drawn >= OFTEN:
            self._write()

    def _write(self) -> None:
        self._drawn = time.monotonic()
        line = notebook_line(self._description, self._total, *self._last, self._drawn - self._begun)
        self._handle.update({"text/plain": line}, raw=True)


def clock(seconds: float) -> str:
    """A time as 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def notebook_line(description: str, total: int | None, done: int, shown: str, seconds: float) -> str:
    """A bar as a line of text.

    Examples:
        >>> notebook_line("shared", 4, 1, "loss 2.300", 5.0)
        'shared ███████▌                       1/4  loss 2.300  0:15 left'
        >>> notebook_line("shared", 4, 3, "", 179.7)
        'shared ██████████████████████▌        3/4  1:00 left'
    """
    if not total:
        return f"{description} {done:,}  {shown}  {seconds:.0f} s".replace("    ", "  ")
    filled = int(2 * LENGTH * min(done / total, 1.0))
    bar = ("█" * (filled // 2) + "▌" * (filled % 2)).ljust(LENGTH)
    left = seconds * (total - done) / done if done else 0.0
    rest = f"{clock(left)} left" if 0 < done < total else f"{seconds:.0f} s"
    return "  ".join(part for part in (f"{description} {bar} {done:,}/{total:,}", shown, rest) if part)
