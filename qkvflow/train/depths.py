"""The depth of every training step: a pure function of (seed, step), whenever a run is resumed."""

from collections import Counter

import numpy as np

from qkvflow.config import RunConfig
from qkvflow.models import LanguageModel, training_flops

_DEPTHS = 0x64657074  # sets these draws apart from those of the batches


def depth_at(run: RunConfig, step: int) -> int | None:
    """Layers that a step of a run goes through; None: as many as the model has.

    Example:
        >>> run = RunConfig(depths=(2, 4, 8))
        >>> [depth_at(run, step) for step in range(6)]
        [4, 4, 2, 8, 4, 2]
    """
    if not run.depths:
        return None
    return int(np.random.default_rng((_DEPTHS, run.seed, step)).choice(run.depths))


def run_flops(run: RunConfig, model: LanguageModel) -> int:
    """Operations of all training steps of a run, each at its depth."""
    steps = Counter(depth_at(run, step) for step in range(run.steps))
    return sum(
        count * training_flops(model, run.batch_size, run.length, depth)
        for depth, count in steps.items()
    )
