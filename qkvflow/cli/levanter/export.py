"""Convert a model to a checkpoint that a Levanter run can start from.

    qkvflow levanter export --checkpoint models/small --config configs/levanter_small.yaml
        --out starts/small

The config is that of the Levanter run that will start from it; it must describe the same model.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.cli.levanter.needed import check_installed
from qkvflow.train import load_model


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow levanter export`."""

    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported or imported model."""
    config: Path
    """YAML file of the Levanter run that will start from the checkpoint."""
    out: Path
    """Output directory; it must not exist."""


def run(options: Options) -> None:
    """Load the model, compare it with the config, write it, and say how to start."""
    check_installed()
    from qkvflow.levanter.checkpoints import write_start
    from qkvflow.levanter.run import read_config

    config = read_config(["--config", str(options.config)])
    write_start(load_model(options.checkpoint), config, options.out)
    print(f"A run can start from {options.out}:")
    start = f"--trainer.initialize_from {options.out} --trainer.allow_partial_checkpoint true"
    print(f"  qkvflow levanter train --config {options.config} {start}")
