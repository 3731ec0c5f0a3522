"""A progress bar that appears only when somebody is watching and has begun to wait."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

PATIENCE = 2.0
"""Seconds before the bar appears."""


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Yield `advance(amount)`, which draws a bar on a terminal once two seconds have passed.

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


class _Bar:
    """Counts at once, draws late: rich is imported only when there is something to draw."""

    def __init__(self, description: str, total: int | None, stack: ExitStack):
        self._description = description
        self._total = total
        self._stack = stack
        self._begun = time.monotonic()
        self._done = 0
        self._draw: Callable[[int], None] | None = None

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._draw is not None:
            self._draw(self._done)
        elif sys.stderr.isatty() and time.monotonic() - self._begun > PATIENCE:
            self._draw = self._open()

    def _open(self) -> Callable[[int], None]:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        bar = self._stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        task = bar.add_task(escape(self._description), total=self._total, completed=self._done)
        return lambda done: bar.update(task, completed=done)
