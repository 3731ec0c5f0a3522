"""What a report of an experiment says: all of it on one page, in the order in which a reader asks."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvflow.experiments.figures import frontier
from qkvflow.experiments.gates import Gates, gate_use
from qkvflow.experiments.plan import Arm, Plan
from qkvflow.experiments.records import Record
from qkvflow.experiments.results import Experiment, Results
from qkvflow.experiments.summary import megabytes, steps_below
from qkvflow.report.page import Heading, Item, Paragraph, Picture, Rows
from qkvflow.statistics import ALPHA, smallest_p_value


def experiment_page(title: str, experiment: Experiment, pictures: Mapping[str, Path]) -> list[Item]:
    """All of an experiment, in the order in which a reader asks."""
    plan, records, floors = experiment.plan, experiment.records, experiment.floors
    results = experiment.results
    page: list[Item] = [Heading(title, 1), Paragraph(_what(plan, records))]
    page += _losses(plan, results, floors, pictures)
    page += _passed(records, floors)
    page += _tests(plan, results.tests, "valid") + _pictures(pictures, "forest")
    page += _tests(plan, results.on_test, "test")
    page += _arms(plan, results)
    page += _costs(plan, results, pictures)
    page += _gates(experiment.gates, pictures)
    if experiment.tuned:
        page += _sweep(experiment.tuned, pictures)
    page += _origin(records, results)
    return page


def side_by_side(experiments: Mapping[str, Results]) -> list[Item]:
    """The losses of several experiments, arm by arm."""
    arms = dict.fromkeys(arm for results in experiments.values() for arm in results.summary)
    rows = tuple(
        (arm, *(_mean_and_half(of.summary.get(arm, {}), "loss") for of in experiments.values()))
        for arm in arms
    )
    note = (
        "Nats a token on the whole valid split after the last step, mean over seeds and half of "
        "Student's 95% interval. An arm may have another width, or other steps, in each: see its "
        "row below Arms."
    )
    return [Heading("Side by side"), Rows(("arm", *experiments), rows), Paragraph(note)]


def _what(plan: Plan, records: Sequence[Record]) -> str:
    run = plan.arms[0].run
    seeds = "seed" if len(plan.seeds) == 1 else "seeds"
    finished = [record for record in records if record["status"] == "finished"]
    opened = sum(record["test"] is not None for record in finished)
    who = "Every run" if opened == len(finished) else f"{opened} of {len(finished)} runs"
    test = (
        f"{who} looked at the test split once, after its last step; nothing was chosen by it."
        if opened
        else "No run looked at the test split."
    )
    chosen = "; learning rates were chosen on a part of the valid split" if plan.sweep else ""
    steps = sorted({record["run"]["steps"] for record in records})
    range_of_steps = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    return (
        f"{len(plan.arms)} arms, {len(plan.seeds)} paired {seeds}: the same text in the same order and "
        f"the same stream of random numbers for every arm. {range_of_steps} steps of "
        f"{run.batch_size} x {run.length} tokens of {run.data} ({run.tokenizer}); a run is judged by "
        f"its last step{chosen}. {test}"
    )


def _losses(
    plan: Plan, results: Results, floors: Mapping[str, float], pictures: Mapping[str, Path]
) -> list[Item]:
    best = frontier(results.summary)
    tested = any("test_loss_mean" in row for row in results.summary.values())
    head = ("arm", "parameters", "valid", "95%", "bits/byte", "perplexity", "seeds")
    rows = [
        (
            f"{arm}{' (on the frontier)' if arm in best else ''}",
            f"{row['params']:,}",
            f"{row['loss_mean']:.4f}",
            _half(row["loss_ci95"]),
            f"{row['bits_per_byte']:.3f}",
            f"{row['perplexity']:.3f}",
            _seeds(row),
            *([_mean_and_half(row, "test_loss")] if tested else []),
        )
        for arm, row in results.summary.items()
    ]
    rows += [
        (name, "", f"{loss:.4f}", "", "", "", "", *([""] if tested else []))
        for name, loss in floors.items()
    ]
    page: list[Item] = [Heading("Loss"), Rows(head + (("test",) if tested else ()), tuple(rows))]
    page.append(
        Paragraph(
            "Nats a token on the whole valid split after the last step, mean over seeds and half of "
            "Student's 95% interval. On the frontier: no other arm with as few parameters or fewer has "
            "a loss as low. The n-grams (Witten-Bell, fitted on the train split) are the floor to "
            "beat; they read the split from end to end, models begin anew every "
            f"{plan.arms[0].run.length} tokens."
        )
    )
    return page + _pictures(
        pictures, "statistical_performance", "efficiency_with_error", "learning_curves"
    )


def _passed(records: Sequence[Record], floors: Mapping[str, float]) -> list[Item]:
    table = steps_below(records, floors)
    if not floors or not table:
        return []
    rows = tuple(
        (arm, *("not passed" if step is None else f"{step:,}" for step in steps.values()))
        for arm, steps in table.items()
    )
    note = (
        "The step of the first look at which the loss was below that of the n-gram; the median over "
        "seeds, if all of them passed it. Looks are at a fixed part of the valid split, n-grams are "
        "measured on all of it."
    )
    return [Heading("Floors passed"), Rows(("arm", *floors), rows), Paragraph(note)]


def _seeds(row: Mapping[str, Any]) -> str:
    done, failed = row["num_seeds"], row["failed_seeds"]
    return f"{done} of {done + failed}" if failed else f"{done}"


def _half(half: float | None) -> str:
    return "" if half is None else f"+- {half:.4f}"


def _mean_and_half(row: Mapping[str, Any], name: str) -> str:
    if f"{name}_mean" not in row:
        return ""
    return f"{row[f'{name}_mean']:.4f} {_half(row[f'{name}_ci95'])}".strip()


def _tests(plan: Plan, tests: Sequence[Mapping[str, Any]], split: str) -> list[Item]:
    if not tests:
        return []
    family = tests[0]["comparisons_in_family"]
    of_pairs = ("pair", "n", "difference", "95%", "unpaired", "p", "Holm", "flips")
    head = (*of_pairs, "g", "better", "equal", "seen")
    rows = [
        (
            f"{test['model1']} - {test['model2']}",
            _compared_seeds(test),
            f"{test['difference']:+.4f}",
            _range(test["difference_ci95"]),
            _range(test["difference_ci95_welch"]),
            f"{test['p_value']:.2g}",
            f"{test['p_value_holm']:.2g}{_star(test['p_value_holm'])}",
            _number(test["p_value_sign_flip"], ".2g"),
            _number(test["hedges_g"], "+.2f"),
            f"{test['probability_of_improvement']:.2f}",
            f"{test['p_value_equivalence_holm']:.2g}{_star(test['p_value_equivalence_holm'])}",
            _number(test["detectable_difference"], ".4f"),
        )
        for test in tests
    ]
    table = Rows(head, tuple(rows))
    if split == "test":
        note = "The same on the test split, which had no part in the choice of learning rates."
        return [Heading("Differences on the test split"), table, Paragraph(note)]
    note = (
        "Differences of valid losses over the n seeds that both arms have; below zero, the first is "
        "better. Intervals are over seeds, at the learning rates that were chosen, and each alone; "
        "95%: of the differences seed by seed; unpaired: Welch's, as if the seeds had nothing in "
        f"common. p: paired t-test, two-sided; Holm: corrected for all {family} pairs of arms (*: at "
        "most 0.05). flips: a test that supposes only that differences lie symmetrically about zero "
        f"where arms are equal{_least_by_flips(tests)}. g: Hedges' g, in standard deviations of an "
        "arm's runs, not of differences. better: share of all pairs of a run of the first with a run "
        "of the second in which the first has the lower loss. equal: p of two one-sided tests against "
        f"the hypothesis that they differ by {plan.margin:g} nats or more, a margin that was set "
        "beforehand; corrected like the others (*: equal within it). seen: the true difference that n "
        "seeds, whose differences scatter as these do, would call significant with a probability of "
        f"80% at the level 0.05 / {family}."
    )
    note += _not_paired(tests) + _not_compared(plan, tests)
    return [Heading("Differences"), table, Paragraph(note)]


def _least_by_flips(tests: Sequence[Mapping[str, Any]]) -> str:
    pairs = max(len(test["seeds"]) for test in tests)
    least = f"; with {pairs} seeds it cannot go below p = {smallest_p_value(pairs):.4g}"
    return least if pairs > 1 else ""


def _compared_seeds(test: Mapping[str, Any]) -> str:
    """How many, or of each arm how many where they have too few in common."""
    return str(len(test["seeds"])) if test["paired"] else " + ".join(map(str, test["num_seeds"]))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _range(ends: Sequence[float]) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"


def _star(p_value: float) -> str:
    return " *" if p_value <= ALPHA else ""


def _not_paired(tests: Sequence[Mapping[str, Any]]) -> str:
    note = " Where n is a sum, the arms have fewer than two seeds in common: 95% and p are Welch's."
    return "" if all(test["paired"] for test in tests) else note


def _not_compared(plan: Plan, tests: Sequence[Mapping[str, Any]]) -> str:
    compared = {frozenset((test["model1"], test["model2"])) for test in tests}
    names = [arm.name for arm in plan.arms]
    left = [pair for pair in itertools.combinations(names, 2) if frozenset(pair) not in compared]
    pairs = ", ".join(" - ".join(pair) for pair in left)
    return f" Not compared, since fewer than two seeds of both finished: {pairs}." if left else ""


def _arms(plan: Plan, results: Results) -> list[Item]:
    rows = tuple(
        (
            name,
            f"{row['hidden_dim']}",
            f"{row['steps']:,}",
            f"{row['learning_rate']:g}",
            _equal_to(plan.arm(name)),
        )
        for name, row in results.summary.items()
    )
    return [Heading("Arms"), Rows(("arm", "width", "steps", "learning rate", "made equal to"), rows)]


def _equal_to(arm: Arm) -> str:
    matches = {"parameters": arm.parameters_of, "training FLOP": arm.flops_of}
    return ", ".join(f"{what} of {other}" for what, other in matches.items() if other is not None)


def _costs(plan: Plan, results: Results, pictures: Mapping[str, Path]) -> list[Item]:
    base = results.summary.get(plan.reference)
    head = ("arm", "parameters", "of them time", "compression", "MFLOP a token")
    costs = ("training FLOP", "memory, MB", "ms a step")
    rows = tuple(
        (
            arm,
            f"{row['params']:,}",
            f"{row['time_network_params']:,}",
            "" if base is None else f"{base['params'] / row['params']:.2f}",
            f"{row['flops_per_token'] / 1e6:.3f}",
            f"{row['training_flops']:.3g}",
            megabytes(row["memory_bytes"]),
            f"{row['speed_median']:.0f}",
        )
        for arm, row in results.summary.items()
    )
    note = (
        f"Compression: parameters of {plan.reference} over those of the arm. Operations are counted, "
        "forward, and for all of training. Memory is that of parameters, optimizer, gradients and the "
        "work of a step as the compiler plans it. Milliseconds are the median of the runs, which did "
        "not take turns: the machine may have been slower for some arms than for others, and small "
        "differences say nothing."
    )
    page: list[Item] = [Heading("Costs"), Rows(head + costs, rows), Paragraph(note)]
    return page + _pictures(pictures, "speed_comparison")


def _gates(gates: Mapping[str, Mapping[int, Gates]], pictures: Mapping[str, Path]) -> list[Item]:
    if not gates:
        return []
    rows = tuple(
        (
            arm,
            name,
            f"{use.over_depth:.2f}",
            f"{use.closed:.0%}",
            f"{use.saturated:.0%}",
        )
        for arm, runs in gates.items()
        for name, use in gate_use(list(runs.values())).items()
    )
    note = (
        "What became of the gates of all layers and seeds, which start at 1 and stay between 0 and 2, "
        "or as gate_start says. over depth: their deviation from their mean over depth, relative to "
        "their mean size. closed: of the gates of all layers the share below a tenth of the same "
        "gate's largest size over depth; what scales a gate in all layers alike, the weights behind it "
        "can take back. saturated: the share above 1.9."
    )
    head = ("arm", "map", "over depth", "closed", "saturated")
    return [Heading("Gates"), Rows(head, rows), Paragraph(note), *_pictures(pictures, "gates")]


def _sweep(tuned: Mapping[str, Mapping[str, Any]], pictures: Mapping[str, Path]) -> list[Item]:
    rates = [f"{rate:g}" for rate, _ in next(iter(tuned.values()))["sweep"]]  # of all arms
    rows = tuple(
        (
            arm,
            *("failed" if loss is None else f"{loss:.4f}" for _, loss in entry["sweep"]),
            "none" if entry["learning_rate"] is None else f"{entry['learning_rate']:g}",
            "" if entry["learning_rate"] is None else "yes" if entry["inside"] else "no, at an end",
        )
        for arm, entry in tuned.items()
    )
    note = (
        "Valid loss after a few steps at each peak learning rate, on a fixed part of the split and one "
        "seed that is not used again; the best is what the arm is trained with. Where it lies at an "
        "end of the range, the arm might do better outside."
    )
    page: list[Item] = [
        Heading("Learning rates"),
        Rows(("arm", *rates, "chosen", "inside"), rows),
        Paragraph(note),
    ]
    return page + _pictures(pictures, "sweep")


def _origin(records: Sequence[Record], results: Results) -> list[Item]:
    page: list[Item] = [Heading("Where this comes from")]
    for failure in results.failures:
        first = failure["error"].splitlines()[0]
        page.append(Paragraph(f"Failed: {failure['arm']}, seed {failure['seed']}: {first}"))
    finished = [record for record in records if record["status"] == "finished"]
    if finished:
        machines = "; ".join(dict.fromkeys(_machine(record["machine"]) for record in finished))
        versions = "; ".join(dict.fromkeys(_versions(record["versions"]) for record in finished))
        page.append(
            Paragraph(
                f"{len(finished)} runs, from {min(r['began'] for r in finished)} to "
                f"{max(r['ended'] for r in finished)}, "
                f"{_duration(sum(r['seconds'] for r in finished))} of training "
                f"steps on {machines}. Text: digest {finished[0]['data_digest'][:12]}. {versions}."
                f"{_taken_over(finished)}"
            )
        )
    return page


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _taken_over(finished: Sequence[Record]) -> str:
    others = [r["taken_from"].split("/")[0] for r in finished if "taken_from" in r]
    names = ", ".join(dict.fromkeys(others))
    return f" {len(others)} of the runs are those of {names}." if others else ""


def _machine(machine: Mapping[str, Any]) -> str:
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    return f"{machine['processor']} ({cores}, {machine['system']})"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _pictures(pictures: Mapping[str, Path], *names: str) -> list[Item]:
    captions = {
        "statistical_performance": "Valid loss of every arm.",
        "efficiency_with_error": "Valid loss over parameters.",
        "learning_curves": "Valid loss in training, on a part of the split; below, to the reference "
        "(if steps are equal).",
        "forest": "Differences to the reference; grey: the margin within which they count as none.",
        "speed_comparison": "Milliseconds a step.",
        "gates": "Gates of the best arm that has some, one run, sorted by their change over depth.",
        "sweep": "The sweep over learning rates.",
    }
    return [Picture(pictures[name], captions[name]) for name in names if name in pictures]
