"""Make a handful of files of finished experiments: plan, records, gates, report and its figures.

    qkvflow experiment pack results/laptop

Every command reads a packed experiment as it did before; arms and seeds can still be added. What a
command makes of the records again is removed: statistics, runs by seed, pdf. Trained models stay.
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
    """Directories of finished experiments to pack."""


def run(options: Options) -> None:
    """Pack one after the other, and say what was done."""
    if not options.results:
        raise ConfigError("There is nothing to pack:", ["name the directory of an experiment."])
    for results in options.results:
        print(pack(results))
