"""Change one choice of time_indexed_mlp at a time, over paired seeds, and see what it does.

    qkvflow experiment ablate --out ablation_results
    qkvflow experiment ablate --arms shared true_time --steps 3000 --seeds 11 12 13 --out ablation_long

The same as `qkvflow experiment run`, with the plan `ablation`: gates that are told the true time, one
time for all layers, or a vector of their own for each layer; other gates, no gates, euler steps. It
takes hours on two cores, and goes on where it stopped.
"""

from pathlib import Path

from qkvflow.cli.experiment.run import Options as Options
from qkvflow.cli.experiment.run import run as run


def defaults(arguments: list[str]) -> Options:
    """What the options are where they are not given."""
    return Options(plan="ablation", out=Path("ablation_results"))
