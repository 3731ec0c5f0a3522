"""Change one design choice of time_indexed_mlp at a time, over paired seeds, and measure the effect.

    qkvflow experiment ablate --out ablation_results
    qkvflow experiment ablate --arms shared true_time --steps 3000 --seeds 11 12 13 --out ablation_long

This is `qkvflow experiment run` with the plan `ablation`: gates that depend on the true layer time, on
one time for all layers, or on a learned vector per layer; other gates, no gates, Euler steps. It takes
hours on two CPU cores; the same command resumes an interrupted experiment.
"""

from pathlib import Path

from qkvflow.cli.experiment.run import Options as Options
from qkvflow.cli.experiment.run import run as run


def defaults(arguments: list[str]) -> Options:
    """Defaults of the options."""
    return Options(plan="ablation", out=Path("ablation_results"))
