"""The gates of a trained model over depth, as arrays, and how they are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from qkvflow.experiments.store import loose_gates
from qkvflow.models import LanguageModel
from qkvflow.models.paths import is_scaled, modulators_of


def save_gates(model: LanguageModel, out: Path, place: str) -> None:
    """Keep the gates of the run at a place of an experiment, if its model has some."""
    if model.integrator.has_grid:
        times = np.asarray(model.plan().times[:, -1])
        gates = modulators_of(model.transformer.blocks, times, is_scaled)
        if gates:
            save_file({name: np.asarray(gate) for name, gate in gates.items()}, loose_gates(out, place))


@dataclass(frozen=True)
class GateUse:
    """What became of the gates of one map, all of which started at 1 (or at 1/2).

    What scales a gate in all layers alike says nothing: the weights behind it can take it back.
    """

    over_depth: float
    """Root mean square of their deviation from their mean over depth, over their mean size."""
    closed: float
    """Share whose size is below a tenth of the same gate's largest over depth."""
    saturated: float
    """Share above 1.9; but for linear ones, a gate stays below 2."""


def gate_use(runs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, GateUse]:
    """By map, the gates of all layers and all runs taken together.

    Examples:
        >>> gate_use([{"up": np.array([[1.0, 2.0], [1.0, 0.0]])}])
        {'up': GateUse(over_depth=0.7071067811865476, closed=0.25, saturated=0.25)}
    """
    stacked = {name: np.stack([run[name] for run in runs]).astype(float) for name in runs[0]}
    return {
        name: GateUse(
            over_depth=float(np.sqrt(gates.var(axis=1).mean()) / np.abs(gates).mean()),
            closed=float((np.abs(gates) < 0.1 * np.abs(gates).max(axis=1, keepdims=True)).mean()),
            saturated=float((gates > 1.9).mean()),
        )
        for name, gates in stacked.items()
    }
