"""The compiled side of a run: the state on its devices and the step that changes it.

Runs of one process that differ in nothing that is compiled, such as those of several seeds, share what
was traced and compiled for the first of them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np

from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.data import TokenDataset, batch_at
from qkvflow.data.batches import Batch
from qkvflow.models import LanguageModel
from qkvflow.models.needs import batch_bytes, bytes_of, shortage
from qkvflow.models.paths import Arrays, with_arrays
from qkvflow.nn.time_embed import layer_times
from qkvflow.train.depths import depth_at, times_at
from qkvflow.train.evaluation import answer_mask
from qkvflow.train.placement import Placement
from qkvflow.train.step import Learner, Report, State, over_seeds

RUNS_ONCE: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
"""For a program that runs once: a quarter of the time to compile."""
NOT_COMPILED: dict[str, Any] = {
    **{"data": "-", "documents": None, "tokenizer": "-", "bpe_size": 1, "least_coverage": 0.0},
    **{"seed": 0, "eval_every": 1, "eval_tokens": None, "final_tokens": None, "save_every": 1},
    **{"keep": 1, "log_every": 1, "trackers": ()},
}
"""What runs may differ in that share their programs: any value will do, as long as it is the same."""
KINDS_KEPT = 16
"""Kinds of runs, of those that came last, whose programs are kept."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step and what to try."""


@dataclass(frozen=True)
class _Kind:
    """All of a run that decides its programs; two are equal where these are."""

    text: str
    run: RunConfig = field(compare=False)
    config: Gpt2Config = field(compare=False)

    @staticmethod
    def of(run: RunConfig, config: Gpt2Config) -> "_Kind":
        start = run.start and replace(run.start, checkpoint="-", digest="-")
        plain = replace(run, start=start, **NOT_COMPILED).to_dict()
        double = jax.config.read("jax_enable_x64")
        return _Kind(json.dumps([plain, config.to_dict(), double]), run, config)


class _Programs:
    """What all runs of a kind share; JAX keeps what it traced and compiled for each function."""

    def __init__(self, kind: _Kind):
        run, self._seeds = kind.run, kind.run.seeds
        self.learner = Learner.of(run, kind.config)
        self.placement = Placement.of(run, kind.config, self.learner.model.parameters())
        numbers = jax.ShapeDtypeStruct((run.seeds,) if run.seeds > 1 else (), np.uint32)
        start = over_seeds(self.learner.start, run.seeds)
        self.shapes: State = jax.eval_shape(start, numbers)
        self.where = self.placement.of_state(self.shapes)
        self.start = jax.jit(start, out_shardings=self.where)
        self.begin = jax.jit(over_seeds(self.learner.begin, run.seeds))
        self.step: Callable[[int | None], Any] = cache(self._step)

    def _step(self, depth: int | None) -> Any:
        where = None if self.where is None else (self.where, None)
        step = over_seeds(partial(self.learner.step, depth=depth), self._seeds)
        return jax.jit(step, donate_argnums=0, out_shardings=where)


_programs = lru_cache(KINDS_KEPT)(_Programs)


class Program:
    """Holds the state of one seed, or of several along a leading axis, and the text it learns from."""

    def __init__(self, run: RunConfig, data: TokenDataset):
        """The program of a run; its mistakes show here, before anything is computed."""
        self._programs = _programs(_Kind.of(run, run.model_config(data.tokenizer.vocab_size)))
        self.learner, self.placement = self._programs.learner, self._programs.placement
        self.shapes = self._programs.shapes
        self._run = run
        self._data = data
        self._wanted = answer_mask(data["train"]) if run.answers_only else None
        numbers = np.array(run.all_seeds, np.uint32)
        self._numbers = numbers if run.seeds > 1 else numbers[0]
        self._state: State | None = None
        self._steps: dict[int | None, Any] = {}

    @property
    def state(self) -> State:
        """The state after the last step; computed from the seeds if there was none."""
        if self._state is None:
            start = self._programs.start.lower(self._numbers)
            self._state = start.compile(compiler_options=RUNS_ONCE)(self._numbers)
        return self._state

    def begin(self, arrays: Sequence[Arrays]) -> None:
        """Begin with given weights, one set a seed, in place of fresh ones."""
        join = np.stack if self._run.seeds > 1 else lambda one: one[0]
        parameters = {path: join([np.asarray(own[path]) for own in arrays]) for path in arrays[0]}
        self.restore(jax.device_get(self._programs.begin(parameters)))

    def restore(self, state: State) -> None:
        """Put a state from the host on the devices; its memory stays the caller's."""
        where = self._programs.where or jax.tree.map(lambda _: None, state)
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

    def check_fits(self) -> None:
        """Refuse a state or a batch that does not fit into memory, before any of it is made.

        Raises:
            TrainingError: with what to choose instead.
        """
        _check_memory(self.state_bytes, "The model with its optimizer", "a smaller model")
        _check_memory(self.batch_bytes, "A batch", "a smaller batch_size or length, or fewer seeds")

    def checked_memory_bytes(self) -> int | None:
        """`memory_bytes`, if the step fits into memory, and the checkpoints that are written meanwhile.

        A checkpoint is a copy of the state, and of that the content of a file.

        Raises:
            TrainingError: with what to choose instead.
        """
        needed = self.memory_bytes
        instead = (
            "a smaller batch_size, a larger accumulate, architecture.remat full or a smaller model"
        )
        _check_memory(needed, "A step", instead)
        if needed is not None:
            most = needed + 2 * self.state_bytes
            _check_memory(most, "A step while a checkpoint is written", instead)
        return needed

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
            program = self._programs.step(depth)
            moved = layer_times(depth) if depth is not None and self._run.depth_jitter else None
            times = self._times(moved)
            lowered = program.lower(self.state, self._numbers, *self._batch(0), *times)
            self._steps[depth] = lowered.compile()
        return self._steps[depth]

    def step(self, number: int) -> Report:
        """Take a step with the batch of this number; returns at once, before it is computed."""
        compiled = self._compiled(depth_at(self._run, number))
        given = *self._batch(number), *self._times(times_at(self._run, number))
        self._state, report = compiled(self.state, self._numbers, *given)
        return report

    def _times(self, times: np.ndarray | None) -> tuple[Any, ...]:
        """Those of the layers of a step, for every seed, where they are moved."""
        if times is None:
            return ()
        seeds = self._run.seeds
        return (times if seeds == 1 else np.broadcast_to(times, (seeds, *times.shape)),)

    def _batch(self, step: int) -> tuple[Any, Any]:
        run = self._run
        pairs = [self._pair(step, seed) for seed in run.all_seeds]
        inputs, targets = pairs[0] if run.seeds == 1 else map(np.stack, zip(*pairs))
        return self.placement.batch(inputs), self.placement.batch(targets)

    def _pair(self, step: int, seed: int) -> Batch:
        """Inputs and targets of one seed; targets that count nothing are -1."""
        run, split = self._run, self._data["train"]

        def batch(of: np.ndarray) -> Batch:
            sizes = {"batch_size": run.batch_size, "length": run.length}
            return batch_at(of, digest=self._data.digest, seed=seed, step=step, **sizes)

        inputs, targets = batch(split.ids)
        if self._wanted is not None:
            targets = np.where(batch(self._wanted)[1], targets, -1).astype(np.int32)
        return inputs, targets

    def model(self, index: int) -> LanguageModel:
        """The model of one of the seeds, as it is now; of its average, where there is one."""
        parameters = self.state.shown
        if self._run.seeds > 1:
            parameters = {path: array[index] for path, array in parameters.items()}
        return with_arrays(self.learner.model, parameters)


def _check_memory(needed: int | None, what: str, instead: str) -> None:
    problem = shortage(needed, what, instead)
    if problem is not None:
        raise TrainingError(problem)
