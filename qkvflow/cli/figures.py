"""Draw the figures of an experiment as a paper would print them, and its table in LaTeX.

    qkvflow figures --results results/laptop --out publication_figures

png and pdf of: statistical_performance, efficiency_with_error, speed_comparison, learning_curves,
forest, sweep, gates; and results_table.tex.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.experiments.present import draw_all, write_table
from qkvflow.experiments.results import read_experiment


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow figures`."""

    results: Path = Path("statistical_validation_results")
    """Directory of an experiment."""
    out: Path = Path("publication_figures")
    """Where the figures go."""


def run(options: Options) -> None:
    """Draw, and say what there is."""
    experiment = read_experiment(options.results)
    drawn = draw_all(experiment, options.out)
    write_table(experiment.results, options.out / "results_table.tex")
    print(f"Written to {options.out}: {', '.join(drawn)} (png, pdf), results_table.tex")
