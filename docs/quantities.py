"""What a document can say: every function here is a name in the expressions of docs/source.

Losses are in nats per token on the whole valid split, after the last step, means over seeds.
Differences are of the first arm minus the second, seed by seed.
"""

import dataclasses
import itertools
from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from scipy import stats

from docs import results
from docs.results import UnknownNameError, arm, pair
from qkvflow import statistics
from qkvflow.config import Gpt2Config
from qkvflow.experiments.gates import gate_use
from qkvflow.experiments.summary import losses_over_depth
from qkvflow.experiments.tables import short_rate
from qkvflow.models import build_model, count_parameters
from qkvflow.statistics import holm, summarise, welch_test
from qkvflow.train.optimizer import make_schedule

FIRST_MODELS = ("standard", "tong_neuralode", "time_indexed_mlp", "time_indexed_ssm")
"""Those that the first version has, too."""


class Interval(NamedTuple):
    """Two ends; both are written in the format of the interval."""

    low: float
    high: float

    def __format__(self, form: str) -> str:
        return f"{self.low:{form}} to {self.high:{form}}"


def given(text: str) -> str:
    """A number that nobody measured here: a setting, a bound, somebody's claim."""
    return text


def span(*numbers: float) -> Interval:
    """From the least to the largest."""
    return Interval(min(numbers), max(numbers))


# An arm of an experiment


def loss(experiment: str, name: str) -> float:
    """The loss of an arm."""
    return arm(experiment, name).loss.mean


def loss_at(experiment: str, name: str, depth: int) -> float:
    """The loss of an arm with another number of layers."""
    found = losses_over_depth(results.experiment(experiment).records)
    return found[name][depth].mean


def lowest_loss(experiment: str, name: str) -> float:
    """The loss of an arm's best run."""
    return min(arm(experiment, name).loss.values)


def deviation(experiment: str, name: str) -> float:
    """The standard deviation of an arm's losses over seeds."""
    found = arm(experiment, name).loss.deviation
    if found is None:
        raise UnknownNameError(f"{name} has one run in {experiment}, and no deviation")
    return found


def apart(experiment: str, name: str) -> float:
    """How far apart two runs of an arm lie at most, with a probability of 95%."""
    seeds = arm(experiment, name).seeds
    return float(stats.t.ppf(0.975, len(seeds) - 1) * deviation(experiment, name) * np.sqrt(2))


def parameters(experiment: str, name: str) -> int:
    """All that an arm trains."""
    return arm(experiment, name).costs.parameters


def time_parameters(experiment: str, name: str) -> int:
    """Those of an arm's time networks."""
    return arm(experiment, name).costs.time_network_parameters


def operations(experiment: str, name: str) -> float:
    """Floating-point operations of the whole training of an arm."""
    return arm(experiment, name).costs.training_flops


def seeds(experiment: str, name: str) -> int:
    """How many runs of an arm have finished."""
    return len(arm(experiment, name).seeds)


def width(experiment: str, name: str) -> int:
    """Of the residual stream."""
    return arm(experiment, name).hidden_dim


def steps(experiment: str, name: str) -> int:
    """Of training."""
    return arm(experiment, name).steps


def characters(experiment: str, name: str) -> int:
    """What a run of an arm reads."""
    run = results.run_of(experiment, name)
    return run.steps * run.batch_size * run.length


def learning_rate(experiment: str, name: str) -> float:
    """The peak, as the arm's sweep chose it."""
    return arm(experiment, name).learning_rate


def milliseconds(experiment: str, name: str) -> float:
    """The median time of a step in runs that did not take turns."""
    return arm(experiment, name).speed


def kept_by_decay(experiment: str, name: str, steps: int | None = None) -> float:
    """The share that weight decay would keep of a weight without a gradient, over a run of an arm."""
    run = results.run_of(experiment, name)
    run = dataclasses.replace(run, steps=steps or run.steps)
    rates = jax.vmap(make_schedule(run.optimizer, run.steps))(np.arange(run.steps, dtype=np.float32))
    return float(np.prod(1 - run.optimizer.weight_decay * np.asarray(rates, float)))


# Two arms


def difference(experiment: str, first: str, second: str, split: str = "valid") -> float:
    """By how much the loss of the first is above that of the second."""
    test = pair(experiment, first, second, split)
    return test.found.difference if test.first == first else -test.found.difference


def interval(experiment: str, first: str, second: str, split: str = "valid") -> Interval:
    """The 95% interval of the difference."""
    test = pair(experiment, first, second, split)
    return _turned(test.found.interval, test.first == first)


def unpaired_interval(experiment: str, first: str, second: str, split: str = "valid") -> Interval:
    """Welch's interval of the difference."""
    test = pair(experiment, first, second, split)
    return _turned(test.found.welch_interval, test.first == first)


def _turned(ends: statistics.Interval, is_in_order: bool) -> Interval:
    return Interval(ends.low, ends.high) if is_in_order else Interval(-ends.high, -ends.low)


def p_value(experiment: str, first: str, second: str, split: str = "valid") -> float:
    """Of the paired t-test, corrected for all pairs of the experiment."""
    return pair(experiment, first, second, split).p_holm


def p_equal(
    experiment: str, first: str, second: str, split: str = "valid", corrected: bool = True
) -> float:
    """Of the test of equality within the margin, corrected for all pairs or of this one alone."""
    test = pair(experiment, first, second, split)
    if corrected or test.found.equivalence is None:
        return test.p_equivalence_holm
    return test.found.equivalence.p_value


def missed(experiment: str, first: str, second: str) -> float:
    """The difference that so many seeds could have missed."""
    found = pair(experiment, first, second).found.detectable
    if found is None:
        raise UnknownNameError(f"{first} and {second} of {experiment} have no pairs of seeds")
    return found


def pairs(experiment: str) -> int:
    """How many pairs of arms the tests of an experiment are corrected for."""
    return results.experiment(experiment).tests[0].family


def margin(experiment: str) -> float:
    """What counts as no difference, set before any run."""
    return results.experiment(experiment).plan.margin


# Learning curves and sweeps


def lead(experiment: str, first: str, second: str, step: int) -> float:
    """By how much the first is below the second at a step, on a part of the valid split."""
    ours, theirs = (results.curves(experiment, name).values() for name in (first, second))
    return float(np.mean([curve[step] for curve in theirs]) - np.mean([curve[step] for curve in ours]))


def lead_of_sweep(experiment: str, first: str, second: str) -> float:
    """By how much the first is below the second in the runs of the sweep, each at its best rate."""
    ours, theirs = (min(found.values()) for found in _sweeps(experiment, (first, second)))
    return theirs - ours


def swept(experiment: str, name: str, rate: float) -> float:
    """The loss of an arm's sweep at a learning rate."""
    found = results.sweep(experiment, name)
    if rate not in found:
        raise UnknownNameError(f"{name} did not end at {rate:g}, but at {', '.join(map(str, found))}")
    return found[rate]


def best_rate(experiment: str, *names: str) -> str:
    """The learning rate that is best for all of these arms, as 4e-3."""
    rates = {min(found, key=found.__getitem__) for found in _sweeps(experiment, names)}
    if len(rates) > 1:
        raise ValueError(f"these arms have different best rates: {sorted(rates)}")
    return short_rate(rates.pop())


def cost_of_second_best(experiment: str, *names: str) -> Interval:
    """How much worse than the best learning rate the second best is, over arms."""
    ordered = [sorted(found.values()) for found in _sweeps(experiment, names)]
    return span(*(second - best for best, second, *_ in ordered))


def rates_within(nats: float, name: str, *experiments: str) -> int:
    """How many learning rates of an arm end so near its best one; the same in all experiments."""
    sweeps = [results.sweep(of, name).values() for of in experiments]
    counts = {sum(loss <= min(losses) + nats for loss in losses) for losses in sweeps}
    if len(counts) > 1:
        raise ValueError(f"these experiments differ: {sorted(counts)} rates")
    return counts.pop()


def _sweeps(experiment: str, names: tuple[str, ...]) -> list[dict[float, float]]:
    return [results.sweep(experiment, name) for name in names]


# n-grams and gates


def baseline(experiment: str, order: int) -> float:
    """What n-grams of an order reach."""
    return results.baseline(experiment, order)


def baseline_in_windows(experiment: str, order: int, length: int) -> float:
    """What n-grams would reach if they, too, began anew every so many characters."""
    shorter = [baseline(experiment, of) for of in range(2, order)]
    return (sum(shorter) + (length - len(shorter)) * baseline(experiment, order)) / length


def closed_gates(experiment: str, name: str, of: str) -> float:
    """The share of the gates of a map that are closed in some layer."""
    return results.named(gate_use(results.gates(experiment, name)), of, "map with gates").closed


def gates_over_depth(experiment: str, name: str) -> Interval:
    """How much gates change over depth, relative to their size, from the least map to the largest."""
    return span(*(use.over_depth for use in gate_use(results.gates(experiment, name)).values()))


def number_of_gates(experiment: str, name: str) -> int:
    """All gates of a model, in all layers."""
    return sum(gates.size for gates in results.gates(experiment, name)[0].values())


# Sizes, and the first version


@cache
def size(model: str) -> int:
    """Parameters of a named model at the default config, without the table of positions."""
    shapes = eqx.filter_eval_shape(build_model, model, Gpt2Config(), key=jax.random.key(0))
    return count_parameters(shapes).total - shapes.transformer.wpe.weight.size


def first_version(model: str) -> str:
    """Mean and half of the 95% interval of the losses that the first version's documents give."""
    summary = summarise(results.record("first_version.json")[model])
    return f"{summary.mean:.3f} ± {summary.half_width:.3f}"


def first_version_p(first: str, second: str) -> float:
    """p of the test that the first version made of these losses."""
    losses = results.record("first_version.json")
    return float(stats.ttest_ind(losses[first], losses[second]).pvalue)


def first_version_welch(first: str, second: str) -> float:
    """p of Welch's test of these losses, corrected for all six pairs."""
    losses = results.record("first_version.json")
    found = {
        (a, b): welch_test(losses[a], losses[b]).p_value for a, b in itertools.combinations(losses, 2)
    }
    return holm(found)[first, second][0]
