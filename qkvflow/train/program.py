"""The compiled side of a run: the state on its devices and the step that changes it."""

from typing import Any

import jax
import numpy as np

from qkvflow.config import RunConfig
from qkvflow.models import LanguageModel
from qkvflow.models.paths import with_arrays
from qkvflow.train.placement import Placement
from qkvflow.train.step import Learner, Report, State, over_seeds

RUNS_ONCE = {"xla_backend_optimization_level": 0}
"""For a program that runs once: a quarter of the time to compile."""


class Program:
    """Holds the state of one seed, or of several along a leading axis."""

    def __init__(self, learner: Learner, run: RunConfig, placement: Placement):
        self.learner = learner
        self.placement = placement
        self._seeds = run.seeds
        numbers = np.array(run.all_seeds, np.uint32)
        self._numbers = numbers if run.seeds > 1 else numbers[0]
        self.shapes: State = jax.eval_shape(self._start_all, self._numbers)
        self._where = placement.of_state(self.shapes)
        self._state: State | None = None
        self._step: Any = None

    def _start_all(self, numbers: Any) -> State:
        return over_seeds(self.learner.start, self._seeds)(numbers)

    @property
    def state(self) -> State:
        """The state after the last step; computed from the seeds if there was none."""
        if self._state is None:
            start = jax.jit(self._start_all, out_shardings=self._where).lower(self._numbers)
            self._state = start.compile(compiler_options=RUNS_ONCE)(self._numbers)
        return self._state

    def restore(self, state: State) -> None:
        """Put a state from the host on the devices; its memory stays the caller's."""
        where = self._where or jax.tree.map(lambda _: None, state)
        self._state = jax.tree.map(
            lambda array, place: jax.device_put(array, place, may_alias=False), state, where
        )

    def compile(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Compile the step for batches of this shape; then the first step takes no longer."""
        where = None if self._where is None else (self._where, None)
        step = jax.jit(
            over_seeds(self.learner.step, self._seeds), donate_argnums=0, out_shardings=where
        )
        placed = self.placement.batch(inputs), self.placement.batch(targets)
        self._step = step.lower(self.state, self._numbers, *placed).compile()

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> Report:
        """Take one step; returns at once, the report is there when it is looked at."""
        placed = self.placement.batch(inputs), self.placement.batch(targets)
        self._state, report = self._step(self.state, self._numbers, *placed)
        return report

    def model(self, index: int) -> LanguageModel:
        """The model of one of the seeds, as it is now."""
        parameters = self.state.parameters
        if self._seeds > 1:
            parameters = {path: array[index] for path, array in parameters.items()}
        return with_arrays(self.learner.model, parameters)
