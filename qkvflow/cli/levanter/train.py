"""Train a model with Levanter, on many devices and machines; started again, it goes on.

    qkvflow levanter train --config configs/levanter_small.yaml
    qkvflow levanter train --config configs/levanter_small.yaml --trainer.num_train_steps 1000
    qkvflow levanter train --config FILE --model.architecture "{num_layers: 12}"

The config is Levanter's own, with model.type: qkvflow, and so are all further options: any field of the
config by its path. docs/scaling.md has the commands for several GPUs, SLURM and TPU pods.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from qkvflow.cli.levanter.needed import check_installed

HANDS_ON = "Levanter's train_lm"
"""What gets the options that are not below."""


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow levanter train`."""

    config: str
    """YAML file of Levanter's config, or its address in an object store."""


def run(options: Options, further: Sequence[str]) -> None:
    """Read the config as Levanter does, and train."""
    check_installed()
    from qkvflow.levanter.run import read_config, train

    train(read_config(["--config", options.config, *further]))
