"""Convert a Levanter checkpoint to a model for qkvflow.

    qkvflow levanter import --run runs/levanter/checkpoints/small --config configs/levanter_small.yaml
        --out models/small

All other commands read OUT like a model trained with qkvflow.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.cli.levanter.needed import check_installed
from qkvflow.cli.saving import save


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow levanter import`."""

    run: Path
    """Directory of a checkpoint, or of the checkpoints of a run, of which the newest complete one is
    read."""
    config: Path
    """YAML file that the run was started with; the checkpoint itself does not describe the model."""
    out: Path
    """Output directory; it must not exist."""


def run(options: Options) -> None:
    """Read the checkpoint and the tokenizer, save both."""
    check_installed()
    from qkvflow.levanter.checkpoints import read_run, tokenizer_of
    from qkvflow.levanter.run import read_config

    config = read_config(["--config", str(options.config)])
    save(read_run(options.run, config), tokenizer_of(config), options.out)
