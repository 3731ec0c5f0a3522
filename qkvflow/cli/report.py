"""Write one page with all of an experiment: losses, tests, costs, sweeps, figures.

    qkvflow report --results results/laptop

RESULTS/report.html needs no other file and no network; RESULTS/report.md says the same.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.experiments.present import write_report
from qkvflow.experiments.results import read_experiment


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow report`."""

    results: Path = Path("statistical_validation_results")
    """Directory of an experiment."""
    title: str | None = None
    """Heading of the page; None takes the directory's name."""


def run(options: Options) -> None:
    """Write the page in both formats."""
    title = options.title or options.results.resolve().name.replace("_", " ")
    page, text = write_report(read_experiment(options.results), title)
    print(f"Written: {page} and {text}")
