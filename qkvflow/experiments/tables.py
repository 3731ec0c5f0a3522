"""The tables of an experiment, each built once; a page, a terminal and a paper render them."""

from collections.abc import Mapping, Sequence

from qkvflow.experiments.gates import gate_use
from qkvflow.experiments.loops import Worth
from qkvflow.experiments.plan import Arm, Plan
from qkvflow.experiments.records import (
    AtBest,
    Choice,
    Choices,
    Costs,
    Finished,
    Record,
    by_arm,
    finished,
)
from qkvflow.experiments.store import Gates
from qkvflow.experiments.summary import (
    ANSWERS,
    Comparison,
    Summary,
    answers_by_arm,
    finite,
    pareto_optimal,
    steps_below,
)
from qkvflow.experiments.words import arm_in_words
from qkvflow.report.table import Row, Table
from qkvflow.statistics import ALPHA, Interval, Sample, smallest_p_value, summarise

_Summaries = Mapping[str, Summary]
_OVER_SEEDS = "mean over seeds and half of Student's 95% interval"


def losses(
    summary: _Summaries,
    baselines: Mapping[str, float],
    length: int | None = None,
    answers_only: bool = False,
) -> Table:
    """What every model reached, and what n-grams of the same text reach."""
    best = pareto_optimal(summary)
    tested = any(row.test is not None for row in summary.values())
    begun = any(row.begin is not None for row in summary.values())
    heads: Row = ("model", "parameters", "valid", "95%", "bits per byte", "perplexity", "seeds")
    heads += ("before the first step",) * begun + ("test",) * tested + ("Pareto-optimal",)
    rows = [
        (
            name,
            f"{row.costs.parameters:,}",
            f"{row.loss.mean:.4f}",
            _half(row.loss.half_width),
            f"{row.bits_per_byte:.3f}",
            f"{row.perplexity:.3f}",
            _seeds(row),
            *(("" if row.begin is None else f"{row.begin.mean:.4f}",) * begun),
            *((mean_and_half(row.test),) * tested),
            "yes" if name in best else "",
        )
        for name, row in summary.items()
    ]
    empty = ("",) * (len(heads) - 3)
    rows += [(name, "", f"{loss:.4f}", *empty) for name, loss in baselines.items()]
    note = (
        f"Nats per token {'of answers ' * answers_only}on the whole valid split after the last step, "
        f"{_OVER_SEEDS}. Pareto-optimal: "
        "no other model of the same text with as few parameters or fewer has a loss as low."
    )
    if begun:
        note += (
            " Before the first step, on a part of the split: what another text, and another depth, "
            "cost a trained model."
        )
    if baselines:
        begin = f", models begin anew every {length} tokens" if length else ""
        note += (
            " The n-grams (Witten-Bell, fitted on the train split) are the baselines to beat; they "
            f"read the split from end to end{begin}."
        )
    return Table(heads, tuple(rows), "Loss", note)


def best_evaluation(records: Sequence[Record]) -> Table:
    """What every model reached at its best evaluation and at the last, with what it had learned."""
    runs = {arm: [(r, r.best) for r in of if r.best is not None] for arm, of in by_arm(records).items()}
    runs = {arm: of for arm, of in runs.items() if of}
    tested = any(best.test is not None for of in runs.values() for _, best in of)
    heads = ["model", "best after step", "valid, best", "valid, last"]
    heads += ["test, best", "test, last"] * tested
    heads += ["train, best", "train, last", "gap, best", "gap, last"]
    rows = tuple((arm, *_best_and_last(of, tested)) for arm, of in runs.items())
    return Table(tuple(heads), rows, "Best and last evaluation", _best_note(runs))


_Judged = Sequence[tuple[Finished, AtBest]]


def _best_and_last(runs: _Judged, tested: bool) -> list[str]:
    """The columns of a model: where the best evaluation was, and losses at it and at the last."""
    steps = sorted(best.step for _, best in runs)
    valid = ([best.valid.loss for _, best in runs], [run.valid.loss for run, _ in runs])
    test = ([b.test.loss for _, b in runs if b.test], [r.test.loss for r, _ in runs if r.test])
    learned = ([best.train_loss for _, best in runs], [best.train_loss_at_end for _, best in runs])
    gaps = [[a - b for a, b in zip(*of, strict=True)] for of in zip(valid, learned, strict=True)]
    where = f"{steps[0]:,}" if steps[0] == steps[-1] else f"{steps[0]:,} to {steps[-1]:,}"
    losses = [*valid, *(test if tested else ()), *learned, *gaps]
    return [where, *(mean_and_half(summarise(of)) if of else "" for of in losses)]


def _best_note(runs: Mapping[str, _Judged]) -> str:
    epochs = [best.epochs for of in runs.values() for _, best in of]
    often = f"{min(epochs):.1f}" + f" to {max(epochs):.1f}" * (max(epochs) - min(epochs) >= 0.05)
    return (
        f"Nats per token, {_OVER_SEEDS}; the text of the train split was read {often} times. Best: the "
        "model of the lowest valid loss in training, on a part of the split. Valid and test are the "
        "losses of both models on the whole splits, train those on a part of the train split, without "
        "dropout; gap: valid minus train."
    )


def worth_of_loop(worth: Worth) -> Table:
    """What a visit of a loop is worth, by the models that tell."""
    law = worth.law
    row = (
        f"{len(worth.models)} models",
        f"{law.irreducible:.3f}",
        f"{law.alpha:.3f}",
        f"{law.phi:.2f}",
        f"{worth.phi.low:.2f} to {worth.phi.high:.2f}",
        f"{law.misfit:.2%}",
    )
    note = (
        "loss = E + A (N_once + r^phi N_loop)^-alpha, by least squares of its logarithm over "
        f"{', '.join(worth.models)}: N counts parameters that are visited once and those of the loop, "
        "r its visits. phi = 1: a visit is worth a layer of its own; phi = 0: nothing. The interval is "
        "that of seeds (bootstrap); misfit: by how much the law misses the losses, root mean square."
    )
    return Table(("", "E", "alpha", "phi", "95%", "misfit"), (row,), "The worth of a loop", note)


def over_depth(found: Mapping[str, Mapping[int, Sample]], tokens: int | None = None) -> Table:
    """The loss of every model at every depth that it was judged at, on so many tokens (None: all)."""
    depths = sorted({depth for of in found.values() for depth in of})
    rows = tuple(
        (arm, *(mean_and_half(of.get(depth)) for depth in depths)) for arm, of in found.items()
    )
    where = "the whole valid split" if tokens is None else f"{tokens:,} tokens of the valid split"
    note = f"Nats per token on {where}, with so many layers, {_OVER_SEEDS}."
    return Table(("model", *map(str, depths)), rows, "Loss over depth", note)


def accuracy(records: Sequence[Record], halves: bool = True) -> Table:
    """How many answers every model has right, by how long their questions are; and the best guess.

    Half of the interval stands beside each mean, unless room is scarce.
    """
    found = answers_by_arm(records)
    known = next(run.valid.accuracy for run in finished(records) if run.valid.accuracy is not None)
    counts = list(known.by_count)
    rows = [
        (
            name,
            *(
                _percent(share, halves)
                for share in (of.answers, of.tokens, *(of.by_count[count] for count in counts))
            ),
        )
        for name, of in found.items()
    ]
    rows.append(("guess", "", "", *(f"{known.guess[count]:.1%}" for count in counts)))
    note = (
        f"Share of the answers of the valid split that are right in every token, "
        f"{_OVER_SEEDS if halves else 'mean over seeds'}; "
        f"tokens: share of their tokens. Further columns: answers by {known.counted}. MODEL@LAYERS: "
        "with so many layers. guess: the best that sees the question alone; a perfect solver has 100%."
    )
    heads = ("model", "answers", "tokens", *(f"{count} {known.counted}" for count in counts))
    return Table(heads, tuple(rows), "Accuracy", note)


def _percent(sample: Sample, halves: bool) -> str:
    half = "" if sample.half_width is None or not halves else f" +- {100 * sample.half_width:.1f}"
    return f"{100 * sample.mean:.1f}{half}%"


def side_by_side(experiments: Mapping[str, _Summaries]) -> Table:
    """The losses of several experiments, model by model."""
    names = dict.fromkeys(name for summary in experiments.values() for name in summary)
    found = experiments.values()
    rows = tuple(
        (name, *(mean_and_half(of[name].loss) if name in of else "" for of in found)) for name in names
    )
    note = (
        f"Nats per token on the whole valid split after the last step, {_OVER_SEEDS}. A model may have "
        "another width, or other steps, in each: see its row below Settings."
    )
    return Table(("model", *experiments), rows, "Side by side", note)


def passed(records: Sequence[Record], baselines: Mapping[str, float]) -> Table:
    """When every model went below every n-gram."""
    rows = tuple(
        (name, *("not passed" if step is None else f"{step:,}" for step in steps.values()))
        for name, steps in steps_below(records, baselines).items()
    )
    note = (
        "The step of the first evaluation at which the loss was below that of the n-gram; the median "
        "over seeds, if all of them passed it. Evaluations in training are on a fixed part of the "
        "valid split, n-grams are measured on all of it."
    )
    return Table(("model", *baselines), rows, "Baselines passed", note)


def _seeds(row: Summary) -> str:
    done, failed = len(row.seeds), row.failed_seeds
    return f"{done} of {done + failed}" if failed else f"{done}"


def _half(half: float | None) -> str:
    return "" if half is None else f"+- {half:.4f}"


def mean_and_half(sample: Sample | None) -> str:
    """A mean and half of its interval; nothing where there are no runs."""
    return "" if sample is None else f"{sample.mean:.4f} {_half(sample.half_width)}".strip()


_ELSEWHERE = {
    "test": (
        "Differences on the test split",
        "The same on the test split, which had no part in the choice of learning rates.",
    ),
    "best": (
        "Differences at the best evaluation",
        "The same for the models of the best evaluation in training, which were chosen and are judged "
        "on the valid split.",
    ),
    "best test": (
        "Differences at the best evaluation, on the test split",
        "The same for these models on the test split, which had no part in the choice of the step.",
    ),
}
"""Titles and notes of differences that are not those at the end on the valid split."""


def differences(plan: Plan, tests: Sequence[Comparison]) -> Table:
    """Every pair: the difference of losses, its intervals, and what may be said of it."""
    heads: Row = ("pair", "n", "difference", "95%", "95% unpaired", "p", "p (Holm)", "p (flips)")
    heads += ("Hedges' g", "P(better)", "p (equal)", "detectable")
    rows = tuple(
        (
            f"{test.first} - {test.second}",
            str(len(test.seeds)) if test.paired else " + ".join(map(str, test.runs)),
            f"{test.found.difference:+.4f}",
            _range(test.found.interval),
            _range(test.found.welch_interval),
            f"{test.found.test.p_value:.2g}",
            f"{test.p_holm:.2g}{_star(test.p_holm)}",
            "" if (flips := test.found.sign_flip) is None else f"{flips.p_value:.2g}",
            number(finite(test.found.hedges_g), "+.2f"),
            f"{test.found.improvement:.2f}",
            f"{test.p_equivalence_holm:.2g}{_star(test.p_equivalence_holm)}",
            number(test.found.detectable, ".4f"),
        )
        for test in tests
    )
    if tests[0].exploratory:
        note = (
            "Pairs that the plan is not about: every p-value is that of its pair alone, not corrected, "
            "and shows where to look, no more."
        )
        return Table(heads, rows, "Exploratory differences", note)
    if tests[0].split in _ELSEWHERE:
        return Table(heads, rows, *_ELSEWHERE[tests[0].split])
    if tests[0].split == ANSWERS:
        note = (
            "The same in the share of answers of the valid split that are wrong, the margin "
            f"{plan.margin:g} being such a share."
        )
        return Table(heads, rows, "Differences in wrong answers", note)
    return Table(heads, rows, "Differences", _how_to_read(plan, tests))


def _how_to_read(plan: Plan, tests: Sequence[Comparison]) -> str:
    family = tests[0].family
    of = f"all {family} pairs" if plan.contrasts is None else f"the {family} contrasts of the plan"
    return (
        "Differences of valid losses over the n seeds that both have; below zero, the first is better. "
        "Intervals are over seeds, at the learning rates that were chosen, and each alone; 95%: of the "
        "differences seed by seed; 95% unpaired: Welch's, as if the seeds had nothing in common. p: "
        f"paired t-test, two-sided; p (Holm): corrected for {of} (*: at most 0.05). "
        "p (flips): a test that supposes only that differences lie symmetrically about zero where "
        f"models are equal{_least_by_flips(tests)}. Hedges' g: in standard deviations of a model's "
        "runs, not of differences. P(better): share of all pairs of a run of the first with a run of "
        "the second in which the first has the lower loss. p (equal): of two one-sided tests against "
        f"the hypothesis that they differ by {plan.margin:g} nats or more, a margin that was set "
        "beforehand; corrected like the others (*: equal within it). detectable: the true difference "
        "that n seeds, whose differences scatter as these do, would call significant with a "
        f"probability of 80% at the level 0.05 / {family}."
        f"{_not_paired(tests)}{_not_compared(plan, tests)}"
    )


def _least_by_flips(tests: Sequence[Comparison]) -> str:
    pairs = max(len(test.seeds) for test in tests)
    return f"; with {pairs} seeds it cannot go below p = {smallest_p_value(pairs):.4g}" * (pairs > 1)


def number(value: float | None, form: str) -> str:
    """A number for a table; nothing where it is not known."""
    return "" if value is None else format(value, form)


def _range(ends: Interval) -> str:
    return f"{ends.low:+.4f} to {ends.high:+.4f}"


def _star(p_value: float) -> str:
    return " *" if p_value <= ALPHA else ""


def _not_paired(tests: Sequence[Comparison]) -> str:
    note = " Where n is a sum, they have fewer than two seeds in common: 95% and p are Welch's."
    return "" if all(test.paired for test in tests) else note


def _not_compared(plan: Plan, tests: Sequence[Comparison]) -> str:
    compared = {frozenset((test.first, test.second)) for test in tests}
    pairs = plan.pairs if plan.contrasts is None else plan.contrasts
    left = ", ".join(" - ".join(pair) for pair in pairs if frozenset(pair) not in compared)
    return f" Not compared, since fewer than two seeds of both finished: {left}." if left else ""


def settings(plan: Plan, summary: _Summaries) -> Table:
    """What models are, and in what they differ that was chosen for them."""
    rows = tuple(
        (
            name,
            arm_in_words(plan.arm(name)),
            f"{row.hidden_dim}",
            f"{row.steps:,}",
            f"{row.learning_rate:g}",
            _equal_to(plan.arm(name)),
        )
        for name, row in summary.items()
    )
    heads = ("model", "what it is", "width", "steps", "learning rate", "made equal to")
    return Table(heads, rows, "Settings", words=frozenset({"what it is", "made equal to"}))


def _equal_to(arm: Arm) -> str:
    words = {"parameters_of": "parameters of", "flops_of": "training FLOP of"}
    return ", ".join(f"{words[what]} {other}" for what, other in arm.matches.items())


def costs(rows: Mapping[str, tuple[Costs, float | None]], reference: str) -> Table:
    """What every model costs: counted costs, and milliseconds per step."""
    base = rows.get(reference)
    heads: Row = ("model", "parameters", "time networks", "compression", "MFLOP per token")
    heads += ("training FLOP", "memory, MB", "ms per step")
    table = tuple(
        (
            name,
            f"{of.parameters:,}",
            f"{of.time_network_parameters:,}",
            "" if base is None else f"{base[0].parameters / of.parameters:.2f}",
            f"{of.flops_per_token / 1e6:.3f}",
            f"{of.training_flops:.3g}",
            "" if of.memory_bytes is None else f"{of.memory_bytes / 1e6:.0f}",
            number(speed, ".0f"),
        )
        for name, (of, speed) in rows.items()
    )
    note = (
        f"Compression: parameters of {reference} over those of the model. Operations are counted, "
        "forward, and for all of training. Memory is that of parameters, optimizer, gradients and the "
        "work of a step as the compiler plans it. Milliseconds per step are the median of the runs, "
        "which did not take turns: the machine may have been slower for some than for others, and "
        "small differences say nothing."
    )
    return Table(heads, table, "Costs", note)


def costs_of(summary: _Summaries, reference: str) -> Table:
    """What finished runs cost."""
    return costs({name: (row.costs, row.speed) for name, row in summary.items()}, reference)


def gates(found: Mapping[str, Mapping[int, Gates]]) -> Table:
    """What became of the gates of every map."""
    rows = tuple(
        (name, of, f"{use.over_depth:.2f}", f"{use.closed:.0%}", f"{use.saturated:.0%}")
        for name, runs in found.items()
        for of, use in gate_use(list(runs.values())).items()
    )
    note = (
        "What became of the gates of all layers and seeds, which start at 1 and stay between 0 and 2, "
        "where the model does not say otherwise. over depth: their deviation from their mean over "
        "depth, relative to their mean size. closed: of the gates of all layers the share below a "
        "tenth of the same gate's largest size over depth; what scales a gate in all layers alike, the "
        "weights behind it can take back. saturated: the share above 1.9."
    )
    heads = ("model", "map", "over depth", "closed", "saturated")
    return Table(heads, rows, "Gates", note, frozenset({"map"}))


def sweep(choices: Choices, note: str, digits: int = 4) -> Table:
    """What every model reached at every learning rate, the choice marked."""
    rates = sorted({rate for choice in choices.values() for rate, _ in choice.sweep})
    rows = tuple(
        (
            name,
            *(_swept(choice, rate, digits) for rate in rates),
            "none" if choice.learning_rate is None else f"{choice.learning_rate:g}",
            "" if choice.learning_rate is None else _inside(choice.inside),
        )
        for name, choice in choices.items()
    )
    heads = ("model", *map(short_rate, rates), "chosen", "inside")
    return Table(heads, rows, "Learning rates", note)


def swept_settings(choices: Choices) -> Table | None:
    """What was swept beside the learning rate, in the order in which it was; None where nothing was."""
    rows = []
    for name, choice in choices.items():
        first = Choice.of(choice.first)
        if choice.settings:
            chosen = "" if first.learning_rate is None else short_rate(first.learning_rate)
            rates = [(short_rate(rate), loss) for rate, loss in choice.first]
            inside = _inside(first.inside)
            rows.append((name, "learning rate", _tried(rates), chosen, inside))
        for of in choice.settings:
            tried = _tried([(f"{value:g}", loss) for value, loss in of.sweep])
            rows.append((name, of.name, tried, f"{of.value:g}", _inside(of.inside)))
    note = (
        "Valid loss, as in the sweep over learning rates, of one setting after the other, each with "
        "the best values of those before it. Where they changed, the rates beside the best one were "
        "tried again; those are the learning rates above. Inside: the best value lies between two that "
        "were tried, or is 0, below which there is none. What depends on two settings at once may be "
        "missed."
    )
    heads = ("model", "setting", "valid loss at its values", "chosen", "inside")
    words = frozenset({"setting", "valid loss at its values"})
    return Table(heads, tuple(rows), "Other settings", note, words) if rows else None


def _tried(losses: Sequence[tuple[str, float | None]]) -> str:
    """Values with their losses, on one line."""
    return ", ".join(f"{v}: {'failed' if loss is None else f'{loss:.4f}'}" for v, loss in losses)


def _inside(inside: bool) -> str:
    return "yes" if inside else "no, at an end"


def _swept(choice: Choice, rate: float, digits: int) -> str:
    found = dict(choice.sweep)
    if rate not in found:
        return ""
    loss = found[rate]
    mark = ("*" if choice.inside else "!") if rate == choice.learning_rate else ""
    return "failed" if loss is None else f"{loss:.{digits}f}{mark}"


def short_rate(rate: float) -> str:
    """A learning rate in few characters.

    Examples:
        >>> short_rate(0.00025)
        '2.5e-4'
    """
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"
