"""Tasks for contestants of the tests."""

import os
import time

from benchmarks.speed.contest import Task


def sleeping(seconds):
    return Task(lambda: time.sleep(seconds), {"process": os.getpid()})


def failing():
    raise RuntimeError("there is no such machine")


def dying():
    return Task(lambda: os._exit(1))
