"""Write a report on one or several experiments: losses, tests, costs, sweeps, figures.

    qkvflow experiment report --results results/laptop
    qkvflow experiment report --results results/laptop results/laptop-flops --out two-on-a-page
    qkvflow experiment report --results results/laptop --figures publication_figures

RESULTS/report.html is self-contained and needs no network; RESULTS/report.md has the same content.
--figures also writes the figures for print, and the table of results in LaTeX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkvflow.cli.experiment.shared import OUT
from qkvflow.cli.experiment_display import DRAWING
from qkvflow.config import ConfigError
from qkvflow.experiments.report import draw_for_print, name_of, title_of, write_report, write_table
from qkvflow.experiments.results import Experiment, read_experiment
from qkvflow.progress import elapsed


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow experiment report`."""

    results: tuple[Path, ...] = (OUT,)
    """Directories of the experiments to report on."""
    title: str | None = None
    """Title of the report; None: that of the existing report, or the name of the directory."""
    out: Path | None = None
    """Output directory of the report; None: the directory of the experiment, if there is only one."""
    figures: Path | None = None
    """Directory for figures as PNG and PDF and for results_table.tex, such as publication_figures.
    None: figures are only in the report."""


def run(options: Options) -> None:
    """Write the page in both formats, and the figures of a paper where they are wanted."""
    if problems := _problems(options):
        raise ConfigError("The report cannot be written:", problems)
    experiments = [read_experiment(results) for results in options.results]
    if options.figures is not None:
        _draw(experiments, options.figures)
    title = options.title or title_of(options.out or options.results[0])
    with elapsed(DRAWING):
        page, text = write_report(experiments, title, options.out)
    print(f"Written: {page} and {text}")


def _problems(options: Options) -> list[str]:
    if not options.results or (options.results == (OUT,) and not OUT.is_dir()):
        return ["name the directory of an experiment with --results."]
    if len(options.results) > 1 and options.out is None:
        return ["several experiments need a directory for their common report: name one with --out."]
    names = [name_of(results) for results in options.results]
    if options.figures is not None and len(set(names)) < len(names):
        return ["experiments with the same name would overwrite each other's figures; name only one."]
    return []


def _draw(experiments: Sequence[Experiment], directory: Path) -> None:
    """Figures and table; each experiment in a directory of its own where there are several."""
    for experiment in experiments:
        place = directory if len(experiments) == 1 else directory / experiment.out.resolve().name
        drawn = draw_for_print(experiment, place)
        write_table(experiment.summary, place / "results_table.tex")
        print(f"Written to {place}: {', '.join(drawn)} (png, pdf), results_table.tex")
