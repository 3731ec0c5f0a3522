"""The report of an experiment: one page in the order in which a reader asks, and its figures."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkvflow.experiments import figures, tables
from qkvflow.experiments.conclusion import conclude
from qkvflow.experiments.loops import loop_worth
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Failed, Finished, Record, finished
from qkvflow.experiments.results import Experiment
from qkvflow.experiments.summary import (
    Comparison,
    Summary,
    answer_tests,
    answers_by_arm,
    losses_over_depth,
)
from qkvflow.files import file_errors, write_text
from qkvflow.report.figures import looks
from qkvflow.report.page import Heading, Item, Paragraph, Picture, Step, write_both
from qkvflow.report.table import of_markdown, to_latex

LEAST_RATIO = 1.1
"""Of the largest model's size to the smallest one's, from which on losses are drawn over sizes."""
MOST_PAIRS = 60
"""Exploratory pairs that a page has room for."""
MOST_NOTES = 10
"""Sentences that runs noted of themselves which a page has room for."""
IN_TEXT = ("efficiency_with_error", "learning_curves", "train_and_valid", "depth_curves", "forest")
"""Figures that report.md shows, and that are kept with it; the others say what a table says."""


def experiment_page(
    title: str, experiment: Experiment, pictures: Mapping[str, Path], steps: Sequence[Step] = ()
) -> list[Item]:
    """All of an experiment, in the order in which a reader asks; `steps` are what to do next."""
    plan, records, baselines = experiment.plan, experiment.records, experiment.baselines
    page: list[Item] = [Heading(title, 1), conclude(experiment, steps)]
    page += _pictures(pictures, "efficiency_with_error")
    page.append(Paragraph(_what(plan, records)))
    of_answers = bool(records[0].run.get("answers_only"))
    page.append(tables.losses(experiment.summary, baselines, records[0].run["length"], of_answers))
    if answers_by_arm(records):
        page.append(tables.accuracy(records))
    page += _pictures(pictures, "learning_curves")
    if any(run.best is not None for run in finished(records)):
        page += [tables.best_evaluation(records), *_pictures(pictures, "train_and_valid")]
    over_depth = losses_over_depth(records)
    if over_depth:
        page += [tables.over_depth(over_depth, plan.depth_tokens), *_pictures(pictures, "depth_curves")]
    if baselines and experiment.summary:
        page.append(tables.passed(records, baselines))
    if experiment.tests:
        page.append(tables.differences(plan, experiment.tests))
    page += _pictures(pictures, "forest")
    if experiment.on_test:
        page.append(tables.differences(plan, experiment.on_test))
    for tests in (experiment.at_best, experiment.at_best_on_test):
        page += [tables.differences(plan, tests)] if tests else []
    if of_answer := answer_tests(plan, records):
        page.append(tables.differences(plan, of_answer))
    page += _exploratory(plan, experiment.exploratory)
    if worth := loop_worth(records):
        page.append(tables.worth_of_loop(worth))
    page.append(tables.settings(plan, experiment.summary))
    page += [tables.costs_of(experiment.summary, plan.reference), *_machines(finished(records))]
    if experiment.gates:
        page += [tables.gates(experiment.gates), *_pictures(pictures, "gates")]
    if experiment.choices:
        how = _how_swept(plan, bool(answers_by_arm(records)))
        page += [tables.sweep(experiment.choices, how), *_pictures(pictures, "sweep")]
        others = tables.swept_settings(experiment.choices)
        page += [others] if others is not None else []
    return page + _origin(records, experiment.failures)


def _how_swept(plan: Plan, of_answers: bool) -> str:
    what, how = "Share of wrong answers" if of_answers else "Valid loss", ""
    if plan.sweep is not None:
        seeds = plan.sweep.num_seeds
        by = "one seed that is" if seeds == 1 else f"{seeds} seeds that are"
        how = (
            f" after {plan.sweep.steps:,} steps, on a fixed part of the valid split, by {by} used for "
            "nothing else"
        )
    return (
        f"{what} at each peak learning rate{how}. The models are trained with the best (*). Where it "
        "lies at an end of the range (!), they might do better outside."
    )


def _exploratory(plan: Plan, tests: Sequence[Comparison]) -> list[Item]:
    """Pairs that the plan is not about; of very many, those with the reference."""
    shown = [test for test in tests if plan.reference in (test.first, test.second)]
    shown = list(tests) if len(tests) <= MOST_PAIRS else shown
    if not shown:
        return []
    table = tables.differences(plan, shown)
    if len(shown) < len(tests):
        left = f" These are the pairs with {plan.reference}, of {len(tests)} in all."
        table = dataclasses.replace(table, note=table.note + left)
    return [table]


def _what(plan: Plan, records: Sequence[Record]) -> str:
    run, done = records[0].run, finished(records)
    seeds = "seed" if len(plan.seeds) == 1 else "seeds"
    opened = sum(record.test is not None for record in done)
    who = "Every run" if opened == len(done) else f"{opened} of {len(done)} runs"
    also = " (and so was the model of its best evaluation)" if plan.judge_best else ""
    test = (
        f"{who} was evaluated on the test split once, after its last step{also}; nothing was chosen by "
        "it."
        if opened
        else "No run was evaluated on the test split."
    )
    swept = "learning rates and other settings" if _has_settings(plan) else "learning rates"
    chosen = f"; {swept} were chosen on a part of the valid split" if plan.sweep else ""
    chosen = (", and at its best evaluation" if plan.judge_best else "") + chosen
    steps = sorted({record.run["steps"] for record in records})
    range_of_steps = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    texts = " or ".join(dict.fromkeys(record.run["data"] for record in records))
    return (
        f"{len(plan.arms)} models, {len(plan.seeds)} paired {seeds}: the same text in the same order "
        f"and the same stream of random numbers for every model. {range_of_steps} steps of "
        f"{run['batch_size']} x {run['length']} tokens of {texts} ({run['tokenizer']}); a run is "
        f"judged by its last step{chosen}. {test}"
    )


def _has_settings(plan: Plan) -> bool:
    """Whether more than learning rates is swept."""
    return any(plan.swept(arm) for arm in plan.arms)


def _origin(records: Sequence[Record], failures: Sequence[Failed]) -> list[Item]:
    page: list[Item] = [Heading("Where this comes from")]
    for failure in failures:
        page.append(Paragraph(f"Failed: {failure.arm}, seed {failure.seed}: {failure.sentence}"))
    done = finished(records)
    page += _notes(done)
    if done:
        machines = "; ".join(dict.fromkeys(_machine(record.origin.machine) for record in done))
        versions = "; ".join(dict.fromkeys(_versions(record.origin.versions) for record in done))
        digests = ", ".join(dict.fromkeys(record.data_digest[:12] for record in done))
        page.append(
            Paragraph(
                f"{len(done)} runs, from {min(r.origin.began for r in done)} to "
                f"{max(r.origin.ended for r in done)}, "
                f"{_duration(sum(r.seconds for r in done))} of training "
                f"steps on {machines}. Text: digest {digests}. {versions}."
                f"{_taken_over(done)}"
            )
        )
    return page


def _notes(done: Sequence[Finished]) -> list[Item]:
    """What runs noted of themselves, each sentence once; the most frequent, and how many more."""
    found = Counter(note for record in done for note in dict.fromkeys(record.notes))
    page: list[Item] = [
        Paragraph(f"Noted by {count} of {len(done)} runs: {note}")
        for note, count in found.most_common(MOST_NOTES)
    ]
    left = len(found) - len(page)
    return page + ([Paragraph(f"{left} more notes are in the records.")] if left else [])


def _machines(done: Sequence[Finished]) -> list[Item]:
    """A sentence where times are of several machines."""
    models: dict[str, list[str]] = {}
    for record in done:
        models.setdefault(_machine(record.origin.machine), []).append(record.arm)
    if len(models) < 2:
        return []
    each = "; ".join(f"{', '.join(dict.fromkeys(of))} on {name}" for name, of in models.items())
    sentence = f"Milliseconds per step are of several machines: {each}. Compare them within one only."
    return [Paragraph(sentence)]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _taken_over(done: Sequence[Finished]) -> str:
    others = [source.split("/")[0] for r in done if (source := r.origin.taken_from) is not None]
    names = ", ".join(dict.fromkeys(others))
    return f" {len(others)} of the runs are those of {names}." if others else ""


def _machine(machine: Mapping[str, Any]) -> str:
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    return f"{machine['processor']} ({cores}, {machine['system']})"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _pictures(pictures: Mapping[str, Path], *names: str) -> list[Item]:
    captions = {
        "efficiency_with_error": "Valid loss of every model over its parameters; dotted: tables of "
        "n-grams of the same text.",
        "learning_curves": "Valid loss in training, on a part of the split; below, to the reference "
        "(if steps are equal).",
        "train_and_valid": "Loss on the valid split (line with marks) and of training batches, with "
        "dropout where there is any (dashed), over the passes through the text; between them the gap.",
        "depth_curves": "Valid loss of every model over the number of layers that it is run with.",
        "forest": "Differences to the reference, or the contrasts of the plan; grey: the margin within "
        "which they count as none.",
        "gates": "Gates of the best model that has some, one run, sorted by their change over depth.",
        "sweep": "The sweep over learning rates.",
    }
    return [
        Picture(pictures[name], captions[name], name in IN_TEXT) for name in names if name in pictures
    ]


def draw_all(experiment: Experiment, directory: Path) -> dict[str, Path]:
    """Draw every figure of the page that the records allow; their png files by name."""
    summary, plan, drawn = experiment.summary, experiment.plan, []
    baselines, of = experiment.baselines, looks(plan.names)
    if 0 < len(summary) <= figures.MOST and _sizes_differ(summary):
        figures.draw_efficiency(summary, directory, baselines, of)
        drawn += ["efficiency_with_error"]
    if 0 < len(summary) <= figures.MOST_LINES:
        figures.draw_curves(experiment.records, directory, baselines, plan.reference, of)
        drawn += ["learning_curves"]
    read_again = {run.arm for run in finished(experiment.records) if run.best is not None}
    if 0 < len(read_again) <= figures.MOST_LINES:
        figures.draw_train_and_valid(experiment.records, directory, of)
        drawn += ["train_and_valid"]
    over_depth = losses_over_depth(experiment.records)
    if 0 < len(over_depth) <= figures.MOST_LINES:
        figures.draw_over_depth(over_depth, directory, of)
        drawn += ["depth_curves"]
    reference = plan.reference if plan.contrasts is None else None
    if any(reference in (None, test.first, test.second) for test in experiment.tests):
        figures.draw_forest(experiment.tests, reference, directory, of)
        drawn += ["forest"]
    if 0 < len(experiment.choices) <= figures.MOST_LINES:
        figures.draw_sweep(experiment.choices, directory, of)
        drawn += ["sweep"]
    if experiment.gates:
        arm = min(experiment.gates, key=lambda name: summary[name].loss.mean)
        seed, gates = next(iter(experiment.gates[arm].items()))
        figures.draw_gates(gates, f"{arm}, seed {seed}", directory)
        drawn += ["gates"]
    return {name: directory / f"{name}.png" for name in drawn}


def _sizes_differ(summary: Mapping[str, Summary]) -> bool:
    """Whether a loss over parameters is to be seen, and not one heap of points."""
    sizes = [row.costs.parameters for row in summary.values()]
    return len(sizes) == 1 or max(sizes) > LEAST_RATIO * min(sizes)


def draw_for_print(experiment: Experiment, directory: Path) -> list[str]:
    """All figures of the page, and those that a table of the page says as well; their names."""
    drawn, of = list(draw_all(experiment, directory)), looks(experiment.plan.names)
    if experiment.summary:
        if "efficiency_with_error" not in drawn and len(experiment.summary) <= figures.MOST:
            figures.draw_efficiency(experiment.summary, directory, experiment.baselines, of)
            drawn += ["efficiency_with_error"]
        figures.draw_performance(experiment.summary, directory, experiment.baselines, of)
        figures.draw_speed(experiment.summary, directory, of)
        drawn += ["statistical_performance", "speed_comparison"]
    return drawn


def write_table(summary: Mapping[str, Summary], path: Path) -> None:
    """The tables of losses and of costs as LaTeX."""
    reached = tables.losses(summary, {})
    heads = ("model", "MFLOP per token", "memory, MB", "ms per step")
    costs = tables.costs_of(summary, "").only(*heads)
    write_text(path, to_latex(reached.beside(costs)))


def write_report(
    experiments: Sequence[Experiment],
    title: str,
    out: Path | None = None,
    steps: Sequence[Step] = (),
) -> tuple[Path, Path]:
    """OUT/report.html and OUT/report.md, and the figures that they show, in OUT/figures.

    One experiment is a page in its own directory, unless another is named, with `steps` as what to do
    next; several share a page.
    """
    out = out or experiments[0].out
    if len(experiments) == 1:
        drawn = draw_all(experiments[0], out / "figures")
        return write_both(experiment_page(title, experiments[0], drawn, steps), out)
    places = [out / "figures" / f"{i}-{of.out.resolve().name}" for i, of in enumerate(experiments, 1)]
    of_each = list(map(draw_all, experiments, places))
    return write_both(page_of_several(title, experiments, of_each), out)


def page_of_several(
    title: str, experiments: Sequence[Experiment], pictures: Sequence[Mapping[str, Path]]
) -> list[Item]:
    """A table of their losses, then one after the other, each under its directory's name."""
    losses = {name_of(experiment.out): experiment.summary for experiment in experiments}
    page: list[Item] = [Heading(title, 1), tables.side_by_side(losses)]
    for experiment, drawn in zip(experiments, pictures, strict=True):
        page += experiment_page(name_of(experiment.out), experiment, drawn)
    return page


def title_of(directory: Path) -> str:
    """The title of the page in a directory, so that a page made anew keeps it; else its name."""
    page = directory / "report.md"
    if not page.is_file():
        return name_of(directory)
    with file_errors(f"{page} cannot be read", "Remove it; it is made anew."):
        first = page.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return of_markdown(first.removeprefix("# ")) if first.startswith("# ") else name_of(directory)


def name_of(directory: Path) -> str:
    """What an experiment is called: by its directory."""
    return directory.resolve().name.replace("_", " ")
