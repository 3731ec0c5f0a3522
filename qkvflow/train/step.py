"""One step of training: gradients of a batch, and the optimizer's answer to them.

A step is not applied where its loss, its gradient, or what the optimizer makes of them (parameters and
its own state) is not finite: both stay as they were, and training goes on with the next batch. After
`LIMIT` such steps in a row nothing is applied any more, until the loop has noticed and stops.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.models import LanguageModel, at_depth, build_model
from qkvflow.models.language_model import (
    final_state,
    final_state_and_action,
    losses_of,
    token_losses,
)
from qkvflow.models.paths import Arrays, arrays_of, with_arrays
from qkvflow.train.optimizer import checked_optimizer, make_optimizer, make_schedule
from qkvflow.train.start import trained_paths

LIMIT = 3
_DROPOUT = 0x64726F70  # sets the keys of dropout apart from those of the weights


class State(NamedTuple):
    """All that changes in training. With several seeds every array has a leading axis of seeds."""

    parameters: Arrays
    average: Arrays
    """The mean of what was trained, over the last steps; empty where none is asked for."""
    optimizer: Any
    step: Array
    """Steps taken."""
    skipped: Array
    """Of them, not applied."""
    failures: Array
    """Of them, in a row, up to now."""

    @property
    def shown(self) -> Arrays:
        """The arrays that are evaluated and written as the model: the average, where there is one."""
        return self.parameters | self.average


class Report(NamedTuple):
    """What a step showed."""

    loss: Array
    gradient_norm: Array
    learning_rate: Array
    skipped: Array
    failures: Array


@dataclass(frozen=True)
class Learner:
    """A model of shapes only and what it takes to train one like it."""

    name: str
    model: LanguageModel
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    accumulate: int
    ema: float
    trained: tuple[str, ...]
    """Paths of the arrays that change. The others have no gradient, no optimizer state."""
    taught: float = 0.0
    """What the deepest grid's distribution counts in the loss of a shallower one."""
    deepest: int = 0
    """Layers of the grid that teaches."""
    answers_only: bool = False
    """Whether targets below 0 count nothing in the loss."""
    speed_penalty: float = 0.0
    """What the action of a forward pass counts in the loss."""

    @staticmethod
    def of(run: RunConfig, config: Gpt2Config) -> "Learner":
        """The learner of a run; its mistakes show here, before anything is computed."""
        model = eqx.filter_eval_shape(build_model, run.model, config, key=jax.random.key(0))
        for depth in run.depths:  # refuses an integrator that chooses its depth itself
            at_depth(model, depth).plan()
        if run.speed_penalty:  # refuses an integrator that does not say it
            ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
            eqx.filter_eval_shape(final_state_and_action, model, ids, None, None)
        trained = trained_paths(model, run.start)
        arrays, _ = split(arrays_of(model), trained)
        schedule = make_schedule(run.optimizer, run.steps, run.continued)
        table, _ = split(model.parameters(), trained)
        made = make_optimizer(run.optimizer, schedule, table)
        optimizer = checked_optimizer(made, arrays, run.optimizer.name)
        return Learner(
            run.model,
            model,
            optimizer,
            schedule,
            run.accumulate,
            run.optimizer.ema,
            trained,
            run.taught,
            max(run.depths, default=0),
            run.answers_only,
            run.speed_penalty,
        )

    def start(self, seed: Array) -> State:
        """The state before the first step, with fresh weights."""
        model = build_model(self.name, self.model.config, key=jax.random.key(seed))
        return self.begin(arrays_of(model))

    def begin(self, parameters: Arrays) -> State:
        """The state before the first step, with these weights."""
        zero = jnp.zeros((), jnp.int32)
        trained, _ = split(parameters, self.trained)
        average = dict(trained) if self.ema else {}
        return State(parameters, average, self.optimizer.init(trained), zero, zero, zero)

    def step(
        self,
        state: State,
        seed: Array,
        inputs: Array,
        targets: Array,
        times: Array | None = None,
        *,
        depth: int | None = None,
    ) -> tuple[State, Report]:
        """Learn from ids [batch, position] and the ids that follow them, at a depth.

        `times` are those of its layers, where they are moved.
        """
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _DROPOUT), state.step)
        trained, fixed = split(state.parameters, self.trained)
        loss, gradients = self.gradients(trained, fixed, key, inputs, targets, times, depth)
        norm = optax.tree.norm(gradients)
        updates, optimizer = self.optimizer.update(gradients, state.optimizer, trained)
        parameters = optax.apply_updates(trained, updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm) & _is_finite((parameters, optimizer))
        failures = jnp.where(finite, 0, state.failures + 1).astype(jnp.int32)
        applied = lax.optimization_barrier(finite & (state.failures < LIMIT))
        average = self._averaged(parameters, state)
        parameters, average, optimizer = jax.tree.map(
            lambda new, old: jnp.where(applied, new, old),
            (parameters, average, optimizer),
            (trained, state.average, state.optimizer),
        )
        skipped = state.skipped + jnp.where(applied, 0, 1).astype(jnp.int32)
        rate = jnp.asarray(self.schedule(state.step - state.skipped), jnp.float32)
        report = Report(loss, norm, rate, skipped, failures)
        parameters |= fixed
        return State(parameters, average, optimizer, state.step + 1, skipped, failures), report

    def _averaged(self, parameters: Arrays, state: State) -> Arrays:
        """The average with one more step in it.

        After n steps it is the sum of ema^(n - i) theta_i over that of ema^(n - i), i = 1 ... n:
        what the parameters were before the first step has no part in it.
        """
        if not self.ema:
            return {}
        count = (state.step - state.skipped + 1).astype(jnp.float32)
        share = (self.ema - 1.0) / jnp.expm1(count * math.log(self.ema))
        return optax.incremental_update(parameters, state.average, share)

    def gradients(
        self,
        parameters: Arrays,
        fixed: Arrays,
        key: Array,
        inputs: Array,
        targets: Array,
        times: Array | None = None,
        depth: int | None = None,
    ) -> tuple[Array, Arrays]:
        """Mean loss and its gradient, the batch in `accumulate` microbatches one after the other."""
        config = self.model.config
        drops = config.attn_pdrop or config.resid_pdrop or config.embd_pdrop

        def loss(parameters: Arrays, key: Array, inputs: Array, targets: Array) -> Array:
            model, own = with_arrays(self.model, parameters | fixed), key if drops else None
            if self.taught and depth is not None:
                return taught_loss(
                    *(model, inputs, targets, times, own),
                    depth=depth,
                    deepest=self.deepest,
                    share=self.taught,
                )
            model = model if depth is None else at_depth(model, depth)
            average = mean_of_known if self.answers_only else _mean
            if self.speed_penalty:
                end, action = final_state_and_action(model, inputs, times, own)
                losses = losses_of(model.head(end), targets)
                return average(losses, targets) + self.speed_penalty * action
            return average(token_losses(model, inputs, targets, times, own), targets)

        differentiate = jax.value_and_grad(loss)
        if self.accumulate == 1:
            return differentiate(parameters, key, inputs, targets)
        batches = [ids.reshape(self.accumulate, -1, ids.shape[-1]) for ids in (inputs, targets)]
        keys = jax.random.split(key, self.accumulate)

        def add(total: Any, batch: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, differentiate(parameters, *batch)), None

        zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, parameters)
        total, _ = lax.scan(add, zero, (keys, *batches))
        return jax.tree.map(lambda x: x / self.accumulate, total)


def mean_of_known(losses: Array, targets: Array) -> Array:
    """The mean of losses over targets that are tokens; 0 where none of them is."""
    known = targets >= 0
    # Before the sum and not after it: what is no number has no gradient that is one.
    return jnp.sum(jnp.where(known, losses, 0.0)) / jnp.maximum(jnp.sum(known), 1)


def _mean(losses: Array, targets: Array) -> Array:
    return jnp.mean(losses)


def taught_loss(
    model: LanguageModel,
    inputs: Array,
    targets: Array,
    times: Array | None,
    key: Array | None,
    *,
    depth: int,
    deepest: int,
    share: float,
) -> Array:
    """The mean of the losses of the deepest grid, and of a shallower one that it teaches.

    Of the shallower one's loss a share is the cross-entropy of the deepest one's distribution, which
    is taken as it is: nothing flows back through it.
    """

    def logits(layers: int, t: Array | None) -> Array:
        view = at_depth(model, layers)
        return view.head(final_state(view, inputs, t, key))

    if depth == deepest:
        return jnp.mean(losses_of(logits(depth, times), targets))
    deep, shallow = logits(deepest, None), logits(depth, times)
    taught = -jnp.sum(jax.nn.softmax(lax.stop_gradient(deep)) * jax.nn.log_softmax(shallow), axis=-1)
    learned = (1.0 - share) * losses_of(shallow, targets) + share * taught
    return jnp.mean(losses_of(deep, targets) + learned) / 2


def _is_finite(tree: Any) -> Array:
    """Whether the norm over all arrays is; of each of them alone it would take longer to compile."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm([leaf.astype(jnp.float32) for leaf in leaves]))


def split(arrays: Arrays, trained: tuple[str, ...]) -> tuple[Arrays, Arrays]:
    """The arrays that change and those that do not, or what is known of them by path."""
    own = {path: arrays[path] for path in trained}
    return own, {path: array for path, array in arrays.items() if path not in own}


def over_seeds(function: Callable[..., Any], seeds: int) -> Callable[..., Any]:
    """The function for one seed, or for several at once along a leading axis of all arguments."""
    return jax.vmap(function) if seeds > 1 else function
