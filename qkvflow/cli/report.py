"""Write one page with all of an experiment, or of several: losses, tests, costs, sweeps, figures.

    qkvflow report --results results/laptop
    qkvflow report --results results/laptop results/laptop-parameters results/laptop-flops --out three

RESULTS/report.html needs no other file and no network; RESULTS/report.md says the same.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.config import ConfigError
from qkvflow.experiments.present import name_of, write_report
from qkvflow.experiments.results import read_experiment


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow report`."""

    results: tuple[Path, ...] = (Path("statistical_validation_results"),)
    """Directories of experiments."""
    title: str | None = None
    """Heading of the page; None takes the directory's name."""
    out: Path | None = None
    """Where the page goes; None: beside the results, if they are of one experiment."""


def run(options: Options) -> None:
    """Write the page in both formats."""
    if not options.results:
        raise ConfigError("There is nothing to report:", ["name an experiment with --results."])
    if len(options.results) > 1 and options.out is None:
        raise ConfigError("Several experiments make one page:", ["say where it goes with --out."])
    experiments = [read_experiment(out) for out in options.results]
    title = options.title or name_of(options.out or options.results[0])
    page, text = write_report(experiments, title, options.out)
    print(f"Written: {page} and {text}")
