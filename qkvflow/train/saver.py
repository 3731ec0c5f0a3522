"""Saving beside training: the state is copied, training goes on, a thread writes the copy."""

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import jax
import numpy as np

from qkvflow.train.checkpoints import CheckpointStore, Progress
from qkvflow.train.step import State


def on_host(state: State) -> State:
    """A copy in the host's memory, which the next step cannot overwrite."""
    return jax.tree.map(lambda array: np.array(array, copy=True), state)


class Saver:
    """Writes one checkpoint at a time. A write that fails is kept as a sentence; training goes on."""

    def __init__(self, store: CheckpointStore):
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._where = ""

    def save(self, state: State, progress: Progress) -> str | None:
        """Copy the state and write it; returns what was wrong with the write before, if anything.

        A write that is still going on is waited for, so that at most one copy is held.
        """
        problem = self.wait()
        self._where = f"the checkpoint after step {progress.step}"
        self._pending = self._thread.submit(self._store.write, on_host(state), progress)
        return problem

    def wait(self) -> str | None:
        """Wait for the write that is going on; returns what was wrong with it, if anything."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        error = pending.exception()
        if error is None:
            return None
        if not isinstance(error, OSError):
            raise error
        return (
            f"{self._where} could not be written: {error.strerror or error}. Those before it are "
            f"whole. Free some space on the disk of {self._store.directory}."
        )

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self._thread.shutdown(wait=True)
