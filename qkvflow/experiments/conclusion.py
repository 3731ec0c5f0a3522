"""What an experiment found, in one sentence, what that does not show, and what it costs."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkvflow.experiments.plan import Plan
from qkvflow.experiments.results import Experiment
from qkvflow.experiments.summary import (
    Comparison,
    Summary,
    answer_tests,
    answers_by_arm,
    pareto_optimal,
)
from qkvflow.experiments.trial import WARNING
from qkvflow.experiments.words import arm_in_words
from qkvflow.report.page import Conclusion, Step

_Summaries = Mapping[str, Summary]
MOST_NAMES = 4
"""Models that a sentence names; of more it says how many."""


@dataclass(frozen=True)
class Judged:
    """By what models are told apart: the lower, the better."""

    by: str
    unit: str
    is_below: str
    """What a model does whose mean is below another's."""
    means: Mapping[str, float]
    tests: Sequence[Comparison]

    @staticmethod
    def of(experiment: Experiment) -> "Judged":
        """By the answers that are wrong where every model was asked, else by losses."""
        summary, right = experiment.summary, answers_by_arm(experiment.records)
        if summary and all(arm in right for arm in summary):
            wrong = {arm: 1 - right[arm].answers.mean for arm in summary}
            tests = answer_tests(experiment.plan, experiment.records)
            return Judged("share of wrong answers", "", "has fewer wrong answers than", wrong, tests)
        losses = {arm: row.loss.mean for arm, row in summary.items()}
        return Judged("loss", " nats per token", "is below", losses, experiment.tests)

    @property
    def is_by_loss(self) -> bool:
        """Whether losses decide."""
        return self.by == "loss"


def conclude(experiment: Experiment, steps: Sequence[Step] = ()) -> Conclusion:
    """What the page of an experiment says first; `steps` are what to do next."""
    plan, summary = experiment.plan, experiment.summary
    if plan.trial or not summary:
        return Conclusion(WARNING if plan.trial else "No run of any model has finished.", "")
    one_text = len({row.text for row in summary.values()}) == 1
    facts = _facts(experiment) if one_text else ()
    judged = Judged.of(experiment)
    if plan.contrasts is not None and judged.tests:
        return Conclusion(_of_contrasts(judged), _limits(plan, summary), facts, tuple(steps))
    if not one_text:
        found = "These models read different texts, on which losses cannot be compared."
        return Conclusion(found, "See the table for each of them.", (), tuple(steps))
    found = _of_best(best_of(experiment), judged)
    return Conclusion(found, _limits(plan, summary), facts, tuple(steps))


def best_of(experiment: Experiment) -> str:
    """The arm with the lowest mean, among those of which no run failed where there are such."""
    summary, means = experiment.summary, Judged.of(experiment).means
    whole = [arm for arm, row in summary.items() if not row.failed_seeds] or list(summary)
    return min(whole, key=means.__getitem__)


def _of_best(best: str, judged: Judged) -> str:
    """Who is lowest, from whom it does not differ significantly, and by how much it leads."""
    said = f"{best} has the lowest {judged.by}, {judged.means[best]:.4f}{judged.unit}"
    with_best = {_other(test, best): test for test in judged.tests if best in (test.first, test.second)}
    equal = [other for other, test in with_best.items() if not test.significant]
    beaten = [other for other, test in with_best.items() if test.significant]
    if equal:
        missed = _missed([with_best[other] for other in equal])
        said += f", with no significant difference from {_names(equal)}{missed}"
    if beaten:
        second = min(beaten, key=judged.means.__getitem__)
        others = "every other model" if len(beaten) == len(judged.means) - 1 else _names(beaten)
        lead = _lead(with_best[second], best)
        said += f"; it is significantly below {others}, "
        said += f"by {lead}" if len(beaten) == 1 else f"{lead} below the next, {second}"
    return f"{said}."


def _missed(tests: Sequence[Comparison]) -> str:
    """How large a difference these tests could have missed, if that is known."""
    largest = max(test.found.detectable or 0.0 for test in tests)
    return f" (a true one of up to {largest:.3f} could have been missed)" if largest else ""


def _other(test: Comparison, arm: str) -> str:
    return test.second if test.first == arm else test.first


def _lead(test: Comparison, better: str) -> str:
    """By how much the better arm of a test is below the other one."""
    sign = 1.0 if test.second == better else -1.0
    ends = sorted(sign * end for end in (test.found.interval.low, test.found.interval.high))
    seeds = len(test.seeds) or min(test.runs)
    return f"{sign * test.found.difference:.4f} (95%: {ends[0]:.4f} to {ends[1]:.4f}, {seeds} seeds)"


def _names(arms: Sequence[str]) -> str:
    if len(arms) > MOST_NAMES:
        return f"{len(arms)} models"
    return " and ".join([", ".join(arms[:-1]), arms[-1]] if len(arms) > 1 else arms)


def _of_contrasts(judged: Judged) -> str:
    """How many of the pairs that a plan is about differ, and which one most."""
    tests = judged.tests
    different = [test for test in tests if test.significant]
    if len(tests) == 1 and not different:
        pair = f"{tests[0].first} and {tests[0].second}"
        return f"There is no significant difference between {pair}{_missed(tests)}."
    if not different:
        return f"None of the {len(tests)} planned differences is significant{_missed(tests)}."
    most = max(different, key=lambda test: abs(test.found.difference))
    better = most.first if most.found.difference < 0 else most.second
    count = f"{len(different)} of the {len(tests)} planned differences are significant"
    other, lead = _other(most, better), _lead(most, better)
    return f"{count}; in the largest, {better} {judged.is_below} {other} by {lead}."


def _limits(plan: Plan, summary: _Summaries) -> str:
    """What the experiment does not show, however its numbers look."""
    lengths = sorted({row.steps for row in summary.values()})
    steps = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    if max(len(row.seeds) for row in summary.values()) < 2:
        return (
            f"One run of {steps} steps of each does not rank the models: with another seed, or more "
            "steps, the order may be another."
        )
    least = min(len(row.seeds) for row in summary.values())
    texts = len({row.text for row in summary.values()})
    where = "one text" if texts == 1 else f"{texts} texts"
    return (
        f"At least {least} seeds per model, runs of {steps} steps, {where}: what is best in longer "
        "runs, at other sizes or on other text is not shown."
    )


def _facts(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """What the best model is, costs and beats, and which one is nearly as good and smaller."""
    summary, baselines = experiment.summary, experiment.baselines
    best = best_of(experiment)
    facts = [
        ("what it is", f"{arm_in_words(experiment.plan.arm(best))}."),
        ("its cost", _cost(summary[best])),
    ]
    if Judged.of(experiment).is_by_loss:
        facts.append(("smaller", _smaller(best, summary)))
        facts.append(("n-grams", beaten_in_words(summary[best].loss.mean, baselines)))
    return tuple((head, text) for head, text in facts if text)


def _cost(row: Summary) -> str:
    memory = row.costs.memory_bytes
    parts = [f"{row.costs.parameters:,} parameters", f"{row.costs.training_flops:.2g} training FLOP"]
    parts += [f"{row.speed:.0f} ms per step"] + ([] if memory is None else [f"{memory / 1e6:.0f} MB"])
    return ", ".join(parts) + "."


def _smaller(best: str, summary: _Summaries) -> str:
    """The Pareto-optimal models below the best one, with what they lose and save."""
    own = summary[best]
    rows = [(arm, summary[arm]) for arm in reversed(pareto_optimal(summary)) if arm != best]
    said = "; ".join(
        f"with {row.costs.parameters / own.costs.parameters:.0%} of the parameters {arm} is "
        f"{row.loss.mean - own.loss.mean:.4f} worse"
        for arm, row in rows
        if row.text == own.text and row.costs.parameters < own.costs.parameters
    )
    return f"{said[0].upper()}{said[1:]}." if said else ""


def beaten_in_words(loss: float, baselines: Mapping[str, float]) -> str:
    """The best table of n-grams that a loss is below, and the next one that it is not."""
    below = {name: of for name, of in baselines.items() if loss < of}
    above = {name: of for name, of in baselines.items() if loss >= of}
    said = []
    if below:
        name = min(below, key=below.__getitem__)
        said.append(f"better than a table of {name}s ({below[name]:.3f})")
    if above:
        name = max(above, key=above.__getitem__)
        said.append(f"not better than one of {name}s ({above[name]:.3f})")
    return f"{', '.join(said).capitalize()}." if said else ""


def steps_after_compare(experiment: Experiment, program: str = "qkvflow") -> tuple[Step, ...]:
    """What to do after `qkvflow compare`: see the best model, let it write, ask again in earnest.

    `program` is how the reader's shell calls the command.
    """
    if not experiment.summary:
        return ()
    best = best_of(experiment)
    seed = experiment.summary[best].seeds[0]
    run = shlex.quote(str(experiment.out / "runs" / best / f"seed-{seed}"))
    return (
        Step(f"{program} report --run {run}", f"A page on the run of {best}"),
        Step(f'{program} generate --checkpoint {run} --prompt "def "', "Let it write"),
        Step(f"{program} compare --seeds 3 --out three-seeds", "Does the order hold over seeds"),
        Step(
            f"{program} experiment run --plan laptop --out results/mine",
            "A comparison that counts: learning rates swept, five paired seeds, statistics; hours",
        ),
    )
