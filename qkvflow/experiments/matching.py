"""Arms made equal in what they cost: in parameters by their width, in operations by their steps."""

import dataclasses
import functools
import math

import equinox as eqx
import jax

from qkvflow.config import ConfigError, Gpt2Config, RunConfig
from qkvflow.config.variants import PARTS
from qkvflow.experiments.plan import Arm, Plan
from qkvflow.models import MODELS, LanguageModel, build_model, count_parameters
from qkvflow.train.depths import run_flops

WIDEST = 8192
CLOSE = 0.005
"""Relative difference of operations that counts as none."""


def shapes_of(run: RunConfig, vocab_size: int) -> LanguageModel:
    """The model of a run without its numbers."""
    return abstract_model(run.model, run.model_config(vocab_size))


@functools.cache
def abstract_model(model: str, config: Gpt2Config) -> LanguageModel:
    """A named model without its numbers."""
    return eqx.filter_eval_shape(build_model, model, config, key=jax.random.key(0))


def matched_run(plan: Plan, arm: Arm, vocab_size: int, run: RunConfig | None = None) -> RunConfig:
    """The run of an arm, as wide and as long as the arms that it is matched to ask for.

    Args:
        run: that of the arm with its start, where it has one.
    """
    run = run or arm.run
    if arm.parameters_of is not None:
        other = plan.arm(arm.parameters_of).run
        run = with_parameters(run, count_parameters(shapes_of(other, vocab_size)).total, vocab_size)
    if arm.flops_of is not None:
        other = plan.arm(arm.flops_of).run
        run = dataclasses.replace(run, steps=steps_of_equal_cost(run, other, vocab_size))
    return run


def with_parameters(run: RunConfig, wanted: int, vocab_size: int) -> RunConfig:
    """The same run at the width whose number of parameters is nearest to the one that is wanted."""
    step = _width_step(run)

    def at(multiple: int) -> RunConfig:
        architecture = dataclasses.replace(run.architecture, hidden_dim=multiple * step)
        return dataclasses.replace(run, architecture=architecture)

    def count(multiple: int) -> int:
        return count_parameters(shapes_of(at(multiple), vocab_size)).total

    low, high = 1, WIDEST // step
    if not count(low) <= wanted <= count(high):
        raise ConfigError(
            "An arm cannot be matched:",
            [
                f"no width of {run.model} up to {WIDEST} has {wanted:,} parameters; match it to "
                "another arm, or leave parameters_of out."
            ],
        )
    while high - low > 1:  # the number grows with the width, nearly as a power of it
        few, many = count(low), count(high)
        guess = round(low * (high / low) ** (math.log(wanted / few) / math.log(many / few)))
        middle = min(max(guess, low + 1), high - 1)
        low, high = (middle, high) if count(middle) <= wanted else (low, middle)
    return at(min((low, high), key=lambda multiple: abs(count(multiple) - wanted)))


def _width_step(run: RunConfig) -> int:
    """Widths that all parts of a layer can have; heads divide them, with or without attention."""
    config = run.architecture
    preset = MODELS.get(run.model)
    parts = config.parts or tuple(map(PARTS.read, preset.parts if preset else ()))
    attention = PARTS.read("attention")
    return math.lcm(*(part.width_multiple(config) for part in (attention, *parts)))


def steps_of_equal_cost(run: RunConfig, other: RunConfig, vocab_size: int) -> int:
    """Steps of one run that take as many operations as all steps of another.

    Where its own steps do so within `CLOSE`, it keeps them: it is then the same run as in a comparison
    at equal steps.
    """
    ours, theirs = (run_flops(r, shapes_of(r, vocab_size)) for r in (run, other))
    wanted = run.steps * theirs / ours
    return run.steps if abs(wanted / run.steps - 1) < CLOSE else max(1, round(wanted))
