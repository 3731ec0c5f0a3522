"""The compiled side of a run: the state on its devices and the step that changes it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from qkvflow.config import RunConfig
from qkvflow.data import TokenDataset, batch_at
from qkvflow.models import LanguageModel
from qkvflow.models.needs import batch_bytes, bytes_of
from qkvflow.models.paths import Arrays, with_arrays
from qkvflow.train.depths import depth_at
from qkvflow.train.placement import Placement
from qkvflow.train.step import Learner, Report, State, over_seeds

RUNS_ONCE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
"""For a program that runs once: a quarter of the time to compile."""


class Program:
    """Holds the state of one seed, or of several along a leading axis, and the text it learns from."""

    def __init__(self, run: RunConfig, data: TokenDataset):
        """The program of a run; its mistakes show here, before anything is computed."""
        self.learner = Learner.of(run, run.model_config(data.tokenizer.vocab_size))
        model = self.learner.model
        self.placement = Placement.of(run, model.config, model.parameters())
        self._run = run
        self._data = data
        numbers = np.array(run.all_seeds, np.uint32)
        self._numbers = numbers if run.seeds > 1 else numbers[0]
        self.shapes: State = jax.eval_shape(self._start_all, self._numbers)
        self._where = self.placement.of_state(self.shapes)
        self._state: State | None = None
        self._steps: dict[int | None, Any] = {}

    def _start_all(self, numbers: Any) -> State:
        return over_seeds(self.learner.start, self._run.seeds)(numbers)

    @property
    def state(self) -> State:
        """The state after the last step; computed from the seeds if there was none."""
        if self._state is None:
            start = jax.jit(self._start_all, out_shardings=self._where).lower(self._numbers)
            self._state = start.compile(compiler_options=RUNS_ONCE)(self._numbers)
        return self._state

    def begin(self, arrays: Sequence[Arrays]) -> None:
        """Begin with given weights, one set a seed, in place of fresh ones."""
        join = np.stack if self._run.seeds > 1 else lambda one: one[0]
        parameters = {path: join([np.asarray(own[path]) for own in arrays]) for path in arrays[0]}
        begin = jax.jit(over_seeds(self.learner.begin, self._run.seeds))
        self.restore(jax.device_get(begin(parameters)))

    def restore(self, state: State) -> None:
        """Put a state from the host on the devices; its memory stays the caller's."""
        where = self._where or jax.tree.map(lambda _: None, state)
        self._state = jax.tree.map(
            lambda array, place: jax.device_put(array, place, may_alias=False), state, where
        )

    @property
    def state_bytes(self) -> int:
        """Of the state alone: weights and what the optimizer keeps of them."""
        return bytes_of(self.shapes)

    @property
    def batch_bytes(self) -> int:
        """Of a batch, its logits among it, at the least."""
        run, config = self._run, self.learner.model.config
        return run.seeds * batch_bytes(config, run.batch_size, run.length, run.accumulate)

    @property
    def memory_bytes(self) -> int | None:
        """Of the state, a batch and the work of a step, as the compiler plans it, if it says so.

        To know it, the step is compiled, so that the first one takes no longer than the others.
        """
        plans = [self._compiled(depth).memory_analysis() for depth in self._run.depths or (None,)]
        needed = [
            plan.argument_size_in_bytes
            + plan.output_size_in_bytes
            - plan.alias_size_in_bytes  # outputs that take the place of inputs
            + plan.temp_size_in_bytes
            for plan in plans
            if plan is not None
        ]
        return int(max(needed)) if needed else None

    def _compiled(self, depth: int | None) -> Any:
        """The step at a depth, compiled once."""
        if depth not in self._steps:
            where = None if self._where is None else (self._where, None)
            step = over_seeds(partial(self.learner.step, depth=depth), self._run.seeds)
            program = jax.jit(step, donate_argnums=0, out_shardings=where)
            lowered = program.lower(self.state, self._numbers, *self._batch(0))
            self._steps[depth] = lowered.compile()
        return self._steps[depth]

    def step(self, number: int) -> Report:
        """Take a step with the batch of this number; returns at once, before it is computed."""
        compiled = self._compiled(depth_at(self._run, number))
        self._state, report = compiled(self.state, self._numbers, *self._batch(number))
        return report

    def _batch(self, step: int) -> tuple[Any, Any]:
        run = self._run
        pairs = [
            batch_at(
                self._data["train"].ids,
                digest=self._data.digest,
                seed=seed,
                step=step,
                batch_size=run.batch_size,
                length=run.length,
            )
            for seed in run.all_seeds
        ]
        inputs, targets = pairs[0] if run.seeds == 1 else map(np.stack, zip(*pairs))
        return self.placement.batch(inputs), self.placement.batch(targets)

    def model(self, index: int) -> LanguageModel:
        """The model of one of the seeds, as it is now; of its average, where there is one."""
        parameters = self.state.shown
        if self._run.seeds > 1:
            parameters = {path: array[index] for path, array in parameters.items()}
        return with_arrays(self.learner.model, parameters)
