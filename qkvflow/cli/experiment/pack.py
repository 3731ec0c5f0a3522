"""Make a handful of files of an experiment that has been run.

    qkvflow experiment pack results/laptop results/ablation

DIR/records.jsonl then holds the records of all runs, DIR/gates.safetensors their gates; what can be
made of these again is removed. All other commands read an experiment packed or not.
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
    """Directories of experiments."""


def run(options: Options) -> None:
    """Pack one after the other, and say what was done."""
    if not options.results:
        raise ConfigError("There is nothing to pack:", ["name the directory of an experiment."])
    for results in options.results:
        print(pack(results))
