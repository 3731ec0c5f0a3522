"""Train a model with Levanter on many devices or machines, or resume an interrupted run.

    qkvflow levanter train --config configs/levanter_small.yaml
    qkvflow levanter train --config configs/levanter_small.yaml --trainer.num_train_steps 1000
    qkvflow levanter train --config FILE --model.architecture "{num_layers: 12}"

The config file is one of Levanter's, with model.type: qkvflow. All further options go to Levanter: any
field of the config by its path. docs/scaling.md has the commands for several GPUs, SLURM and TPU pods.
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
    """YAML file with the Levanter config: a path, or a URL in an object store."""


def run(options: Options, further: Sequence[str]) -> None:
    """Read the config as Levanter does, and train."""
    check_installed()
    from qkvflow.levanter.run import read_config, train

    train(read_config(["--config", options.config, *further]))
