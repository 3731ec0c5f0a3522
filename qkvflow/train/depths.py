"""The depth of every training step: a pure function of (seed, step), whenever a run is resumed."""

from collections import Counter

import numpy as np

from qkvflow.config import RunConfig
from qkvflow.models import LanguageModel, training_flops

_DEPTHS = 0x64657074  # sets these draws apart from those of the batches
_TIMES = 0x74696D65


def depth_at(run: RunConfig, step: int) -> int | None:
    """Layers that a step of a run goes through; None: as many as the model has.

    Examples:
        >>> run = RunConfig(depths=(2, 4, 8))
        >>> [depth_at(run, step) for step in range(6)]
        [4, 4, 2, 8, 4, 2]
    """
    if not run.depths:
        return None
    first = run.continued[0] if run.continued else run.steps  # what was drawn stays drawn
    if step < run.deepen_at * first:
        return min(run.depths)
    weights = np.array(run.depth_weights)
    chances = weights / weights.sum() if run.depth_weights else None
    return int(np.random.default_rng((_DEPTHS, run.seed, step)).choice(run.depths, p=chances))


def times_at(run: RunConfig, step: int) -> np.ndarray | None:
    """The ends of the layers of a step, each moved by chance; None: they are where they always are.

    A layer's end moves by at most `depth_jitter` halves of the distance to the next one; the last
    stays at 1, so that the sum of steps does.
    """
    depth = depth_at(run, step)
    if not run.depth_jitter or depth is None:
        return None
    draw = np.random.default_rng((_TIMES, run.seed, step))
    moved = np.arange(1, depth + 1) + run.depth_jitter * draw.uniform(-0.5, 0.5, depth)
    moved[-1] = depth
    return (moved / depth).astype(np.float32)


def run_flops(run: RunConfig, model: LanguageModel) -> int:
    """Operations of all training steps of a run, each at its depth, and with what teaches it."""
    steps = Counter(depth_at(run, step) for step in range(run.steps))
    return sum(count * step_flops(run, model, depth) for depth, count in steps.items())


def step_flops(run: RunConfig, model: LanguageModel, depth: int | None) -> int:
    """Operations of a training step at a depth; the deepest grid learns, too, where it teaches."""
    depths = {depth, max(run.depths)} if run.taught and run.depths else {depth}
    return sum(training_flops(model, run.batch_size, run.length, each) for each in depths)
