"""Ctrl-C that ends the process within a second, also while XLA compiles and Python cannot be asked.

The system tells a thread of its own of the signal, by a pipe. Where the main thread has not ended by
then, that thread ends the process, without taking the interpreter apart under a program that is being
compiled. Nothing is lost: files are written whole, and training, once there are steps to lose, takes
the first signal for itself.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

GRACE = 0.3
"""Seconds that the main thread has to end by itself."""
INTERRUPTED = 130
"""The exit code."""
SHOW_CURSOR = "\x1b[?25h"
_taken = 0
"""Signals to come that are somebody else's."""
_leaving = threading.Lock()


def leave(sentence: str) -> NoReturn:
    """End the process at once, with a sentence, without taking the interpreter apart."""
    _leaving.acquire()  # for good: one thread says so
    try:
        sys.stdout.flush()
        shown = SHOW_CURSOR if sys.stderr.isatty() else ""  # a progress bar hides it
        print(f"{shown}{sentence}", file=sys.stderr, flush=True)
    finally:
        os._exit(INTERRUPTED)


def leave_when_interrupted(sentence: str) -> None:
    """From now on, end this process with a sentence soon after a SIGINT that nobody takes."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    sys.unraisablehook = _report
    threading.Thread(target=_watch, args=(told, sentence), daemon=True).start()


def _report(unraisable: Any) -> None:
    """As usual, but silent on an interrupt in the midst of a callback: it is obeyed all the same."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _watch(told: int, sentence: str) -> None:
    global _taken
    while True:
        if os.read(told, 1)[0] != signal.SIGINT:
            continue
        if _taken:
            _taken -= 1
            continue
        time.sleep(GRACE)
        leave(sentence)


@contextmanager
def stop_when_asked() -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM; a second one has its usual effect."""
    global _taken
    stop, usual = threading.Event(), dict[int, Any]()

    def ask(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(number, usual[number])

    if threading.current_thread() is threading.main_thread():  # no other can be told
        _taken = 1
        usual |= {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        _taken = 0
        for each, handler in usual.items():
            signal.signal(each, handler)
