"""What was measured, as the documents cite it: read from results/, or computed."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from scipy import stats

from qkvflow.config import Gpt2Config, RunConfig
from qkvflow.experiments.gates import GateUse, gate_use, read_gates
from qkvflow.experiments.results import read_experiment
from qkvflow.files import read_json
from qkvflow.models import build_model, count_parameters
from qkvflow.statistics import (
    holm,
    pooled_t_test,
    summarise,
    welch_test,
)
from qkvflow.train.optimizer import make_schedule
from tests.experiments.support import FIRST_VERSION

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
Sentence = tuple[str, Callable[[], Sequence[Any]]]
"""A template, and a function that gives what goes into it.

Numbers in the template itself are settings, or what others claimed.
"""


def nothing() -> Sequence[Any]:
    """For a sentence whose numbers are all in its template."""
    return ()


def size(model: str, **changes: Any) -> tuple[int, int]:
    """Parameters at the default config, without the table of positions and with it."""
    config = Gpt2Config(**changes)
    shapes = eqx.filter_eval_shape(build_model, model, config, key=jax.random.key(0))
    total = count_parameters(shapes).total
    return total - shapes.transformer.wpe.weight.size, total


def compression(model: str) -> float:
    """The parameters of `standard` over those of a model."""
    return size("standard")[0] / size(model)[0]


def arm(experiment: str, name: str) -> dict[str, Any]:
    """The summary of an arm."""
    return read_json(RESULTS / experiment / "statistics_summary.json")[name]


def ratio(experiment: str, of: str, first: str, second: str) -> float:
    """One field of two arms, one over the other."""
    return arm(experiment, first)[of] / arm(experiment, second)[of]


def pair(experiment: str, first: str, second: str, split: str = "valid") -> dict[str, Any]:
    """The test of two arms on a split, in whichever order it was made."""
    tests = read_json(RESULTS / experiment / "significance_tests.json")
    names = {first, second}
    return next(t for t in tests if {t["model1"], t["model2"]} == names and t["split"] == split)


def above(experiment: str, first: str, second: str, split: str = "valid") -> tuple[float, float, float]:
    """By how much the loss of the first is above that of the second, and the 95% interval of it."""
    test = pair(experiment, first, second, split)
    low, high = test["difference_ci95"]
    if test["model1"] == first:
        return test["difference"], low, high
    return -test["difference"], -high, -low


def unpaired(experiment: str, first: str, second: str) -> tuple[float, float]:
    """Welch's interval of the same."""
    test = pair(experiment, first, second)
    low, high = test["difference_ci95_welch"]
    return (low, high) if test["model1"] == first else (-high, -low)


def between_runs(experiment: str, name: str) -> float:
    """How far apart two runs of an arm lie at most, with a probability of 95%."""
    row = arm(experiment, name)
    return float(stats.t.ppf(0.975, row["num_seeds"] - 1) * row["loss_std"] * np.sqrt(2))


def left_by_decay(path: str) -> float:
    """What weight decay would leave of a weight that has no gradient, over the run of a record."""
    run = RunConfig.from_dict(read_json(RESULTS / path)["run"])
    rates = jax.vmap(make_schedule(run.optimizer, run.steps))(np.arange(run.steps, dtype=np.float32))
    return float(np.prod(1 - run.optimizer.weight_decay * np.asarray(rates, float)))


def in_windows(order: int, length: int) -> float:
    """What n-grams would reach if they, too, began anew every so many characters."""
    shorter = [floor("laptop", of) for of in range(2, order)]
    return (sum(shorter) + (length - len(shorter)) * floor("laptop", order)) / length


def bench(contest: str, name: str, against: str) -> list[float]:
    """A ratio of times."""
    findings = read_json(RESULTS / "bench.json")["contests"][contest]["findings"]
    return [f["ratio"] for f in findings if (f["name"], f["against"]) == (name, against)]


def ahead(experiment: str, first: str, second: str, step: int) -> float:
    """By how much the first was below the second when the runs looked at a part of the valid split."""
    ours, theirs = (_curves(experiment, name) for name in (first, second))
    return float(
        np.mean([c[step] for c in theirs.values()]) - np.mean([c[step] for c in ours.values()])
    )


def shrinks_from(experiment: str, first: str, second: str, span: int) -> int:
    """The step from which on the first's lead is smaller than so many steps before, in every seed."""
    ours, theirs = (_curves(experiment, name) for name in (first, second))
    leads = {
        seed: {step: theirs[seed][step] - ours[seed][step] for step in ours[seed]} for seed in ours
    }
    steps = sorted(step for step in next(iter(leads.values())) if step > span)
    grew = [step for step in steps if any(of[step] >= of[step - span] for of in leads.values())]
    return min(step for step in steps if not grew or step > grew[-1])


def _curves(experiment: str, name: str) -> dict[int, dict[int, float]]:
    """By seed and step, what the runs of an arm saw of the valid split."""
    records = read_experiment(RESULTS / experiment).records
    return {
        record["seed"]: {step: loss for step, _, loss in record["curve"]}
        for record in records
        if record["arm"] == name
    }


def swept(experiment: str, name: str, rate: float) -> float:
    """The loss of an arm's sweep at a learning rate."""
    sweep = read_json(RESULTS / experiment / "tuned.json")[name]["sweep"]
    return next(loss for at, loss in sweep if at == rate)


def rates_near_the_best(experiments: Sequence[str], name: str, within: float) -> int:
    """How many learning rates of an arm end so near its best one, in the sweep of each experiment."""
    (count,) = {
        sum(loss <= min(losses) + within for loss in losses)
        for losses in ([loss for loss, _ in _sweep(of, name)] for of in experiments)
    }
    return count


def best_and_second(experiment: str, name: str) -> float:
    """How much worse the second best learning rate of an arm's sweep is than the best one."""
    (best, _), (second, _), *_ = sorted(_sweep(experiment, name))
    return second - best


def moved_rates(arms: Sequence[str]) -> tuple[float, float]:
    """The best learning rate of all of these arms after 300 steps, and after 600."""
    (before,) = {min(_sweep("laptop-300", name))[1] for name in arms}
    (after,) = {min(_sweep("laptop", name))[1] for name in arms}
    return before, after


def _sweep(experiment: str, name: str) -> list[tuple[float, float]]:
    records = map(read_json, (RESULTS / experiment / "sweep" / name).glob("lr-*.json"))
    finished = [record for record in records if record["status"] == "finished"]
    return [(r["valid"]["loss"], r["run"]["optimizer"]["learning_rate"]) for r in finished]


def gates(experiment: str, name: str) -> dict[str, GateUse]:
    """What became of the gates of an arm, by map, over all its runs."""
    return gate_use(list(read_gates(RESULTS / experiment, name).values()))


def least_and_most(numbers: Iterable[float]) -> tuple[float, float]:
    """The ends of a range."""
    ordered = sorted(numbers)
    return ordered[0], ordered[-1]


def floor(experiment: str, order: int) -> float:
    """What n-grams of an order reach on the valid split."""
    return read_json(RESULTS / experiment / "floors.json")["valid"][f"{order}-gram"]


def below(experiment: str, first: str, second: str) -> tuple[float, float, float, float]:
    """By how much the first is below the second: nats, their interval, percent of the second's loss."""
    difference, low, high = above(experiment, second, first)
    return difference, low, high, 100 * difference / arm(experiment, second)["loss_mean"]


def slopes(model: str, circuit: str) -> list[str]:
    """How a circuit grows with depth: in the pretrained models, on both texts, and in the laptop's."""
    small, laptop = (
        read_json(RESULTS / place / "magnitude_over_depth.json")
        for place in ("finetune/pretrain", "laptop")
    )
    found = [small.get(f"{text} {model}") for text in ("embedded", "wikitext-2")] + [laptop[model]]
    ends = [circuits and circuits[circuit]["end"] for circuits in found]
    return [f"{end['mean']:+.2f} +- {end['ci95']:.2f} " if end else "" for end in ends]


def gains_of_pretraining() -> tuple[float, float]:
    """The least and the largest gain of an adapted model over one from scratch, at 6 layers or more."""
    gains = [
        arms[f"{name.rsplit('-', 1)[0]}-scratch"][depth]["mean"] - row["mean"]
        for arms in read_json(RESULTS / "finetune" / "summary.json")["losses"].values()
        for name, rows in arms.items()
        for depth, row in rows.items()
        if int(depth) >= 6 and not name.endswith("-scratch")
    ]
    return min(gains), max(gains)


def first_version(model: str) -> tuple[float, float]:
    """Mean and half of the 95% interval of the losses that the first version's documents give."""
    summary = summarise(FIRST_VERSION[model])
    return summary.mean, summary.t.half_width


def first_version_p(first: str, second: str) -> tuple[float, float]:
    """p of the test that they made, and Welch's corrected for all six pairs."""
    pairs = {
        pair: [FIRST_VERSION[name] for name in pair]
        for pair in itertools.combinations(FIRST_VERSION, 2)
    }
    welch = holm({pair: welch_test(*losses).p_value for pair, losses in pairs.items()})
    return pooled_t_test(*pairs[first, second]).p_value, welch[first, second][0]
