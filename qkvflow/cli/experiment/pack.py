"""Pack each finished experiment into a handful of files: plan, records, gates, report and figures.

    qkvflow experiment pack results/laptop

Every command reads a packed experiment as before, and arms and seeds can still be added. Files that can
be made again from the records are removed: statistics, records by seed, PDFs. Trained models are kept.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from qkvflow.config import ConfigError
from qkvflow.experiments.pack import pack


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow experiment pack`."""

    results: tyro.conf.Positional[tuple[Path, ...]]
    """Directories of the finished experiments to pack, in place."""


def run(options: Options) -> None:
    """Pack one after the other, and say what was done."""
    if not options.results:
        raise ConfigError("There is nothing to pack:", ["name the directory of an experiment."])
    for results in options.results:
        print(pack(results))
