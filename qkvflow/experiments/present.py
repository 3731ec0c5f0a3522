"""Figures, table and page of an experiment, from the files in its directory."""

from pathlib import Path

from qkvflow.experiments import figures
from qkvflow.experiments.page import write_both
from qkvflow.experiments.report import experiment_page
from qkvflow.experiments.results import Experiment, Results


def draw_all(experiment: Experiment, directory: Path) -> dict[str, Path]:
    """Draw every figure that the records allow; their png files by name."""
    results, drawn = experiment.results, []
    if results.summary:
        figures.draw_performance(results.summary, directory, experiment.floors)
        figures.draw_efficiency(results.summary, directory)
        figures.draw_speed(results.summary, directory)
        figures.draw_curves(experiment.records, directory, experiment.floors, experiment.plan.reference)
        drawn += ["statistical_performance", "efficiency_with_error", "speed_comparison"]
        drawn += ["learning_curves"]
    if any(experiment.plan.reference in (t["model1"], t["model2"]) for t in results.tests):
        figures.draw_forest(results.tests, experiment.plan.reference, directory)
        drawn += ["forest"]
    if experiment.tuned:
        figures.draw_sweep(experiment.tuned, directory)
        drawn += ["sweep"]
    if experiment.gates:
        arm, runs = next(iter(experiment.gates.items()))
        seed, gates = next(iter(runs.items()))
        figures.draw_gates(gates, f"{arm}, seed {seed}", directory)
        drawn += ["gates"]
    return {name: directory / f"{name}.png" for name in drawn}


def write_table(results: Results, path: Path) -> None:
    """The table of losses as LaTeX."""
    lines = [
        r"\begin{tabular}{lrrrr}",
        r"\hline",
        r"model & parameters & valid loss & bits per byte & ms per step \\",
        r"\hline",
    ]
    for arm, row in results.summary.items():
        half = "" if row["loss_ci95"] is None else rf" $\pm$ {row['loss_ci95']:.4f}"
        name = arm.replace("_", r"\_")
        lines.append(
            rf"{name} & {row['params']:,} & {row['loss_mean']:.4f}{half} & "
            rf"{row['bits_per_byte']:.3f} & {row['speed_median']:.0f} \\"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, r"\hline", r"\end{tabular}", ""]))


def write_report(experiment: Experiment, title: str) -> tuple[Path, Path]:
    """OUT/report.html and OUT/report.md, and the figures that they show."""
    pictures = draw_all(experiment, experiment.out / "figures")
    return write_both(experiment_page(title, experiment, pictures), experiment.out)
