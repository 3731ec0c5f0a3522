"""Figures, table and page of an experiment, from the files in its directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from qkvflow.experiments import figures, tables
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import Experiment, Results
from qkvflow.files import write_text
from qkvflow.report.page import Heading, Item, write_both
from qkvflow.report.table import to_latex


def draw_all(experiment: Experiment, directory: Path) -> dict[str, Path]:
    """Draw every figure that the records allow; their png files by name."""
    results, plan, drawn = experiment.results, experiment.plan, []
    if results.summary:
        figures.draw_performance(results.summary, directory, experiment.baselines)
        figures.draw_speed(results.summary, directory)
        drawn += ["statistical_performance", "speed_comparison"]
    if 0 < len(results.summary) <= figures.MOST:
        figures.draw_efficiency(results.summary, directory)
        figures.draw_curves(experiment.records, directory, experiment.baselines, plan.reference)
        drawn += ["efficiency_with_error", "learning_curves"]
    reference = plan.reference if plan.contrasts is None else None
    if any(reference in (None, test.first, test.second) for test in results.tests):
        figures.draw_forest(results.tests, reference, directory)
        drawn += ["forest"]
    if experiment.choices:
        figures.draw_sweep(experiment.choices, directory)
        drawn += ["sweep"]
    if experiment.gates:
        arm = min(experiment.gates, key=lambda name: results.summary[name].loss.mean)
        seed, gates = next(iter(experiment.gates[arm].items()))
        figures.draw_gates(gates, f"{arm}, seed {seed}", directory)
        drawn += ["gates"]
    return {name: directory / f"{name}.png" for name in drawn}


def write_table(results: Results, path: Path) -> None:
    """The tables of losses and of costs as LaTeX."""
    reached = tables.losses(results.summary, {})
    costs = tables.costs_of(results.summary, "").only(
        "model", "MFLOP per token", "memory, MB", "ms per step"
    )
    write_text(path, to_latex(reached.beside(costs)))


def write_report(
    experiments: Sequence[Experiment], title: str, out: Path | None = None
) -> tuple[Path, Path]:
    """OUT/report.html and OUT/report.md, and the figures that they show.

    One experiment is a page in its own directory; several share a page.
    """
    drawn = [draw_all(experiment, experiment.out / "figures") for experiment in experiments]
    out = out or experiments[0].out
    if len(experiments) == 1:
        return write_both(experiment_page(title, experiments[0], drawn[0]), out)
    return write_both(page_of_several(title, experiments, drawn), out)


def page_of_several(
    title: str, experiments: Sequence[Experiment], pictures: Sequence[Mapping[str, Path]]
) -> list[Item]:
    """A table of their losses, then one after the other, each under its directory's name."""
    losses = {name_of(experiment.out): experiment.results for experiment in experiments}
    page: list[Item] = [Heading(title, 1), tables.side_by_side(losses)]
    for experiment, drawn in zip(experiments, pictures, strict=True):
        page += experiment_page(name_of(experiment.out), experiment, drawn)
    return page


def name_of(directory: Path) -> str:
    """What an experiment is called: by its directory."""
    return directory.resolve().name.replace("_", " ")
