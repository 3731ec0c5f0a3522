"""The gates of a trained model over depth, as arrays."""

from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from qkvflow.models import LanguageModel
from qkvflow.models.paths import nodes_of
from qkvflow.nn.weights import Gated


def gates_of(model: LanguageModel) -> dict[str, np.ndarray]:
    """The gates [layer, ...] of every gated map of a fixed-step model, by the map's name."""
    times = model.steps().times[:, -1]
    found = {}
    for path, curve in nodes_of(model.transformer.blocks, Gated):
        for i, gate in enumerate(jax.device_get(curve.before_loop(times))):
            name = path.removeprefix("parts.").replace(".part.", ".")
            suffix = f" ({i + 1})" if len(curve.gates) > 1 else ""
            found[name + suffix] = np.asarray(gate).reshape(len(times), -1)
    return found


def save_gates(model: LanguageModel, path: Path) -> None:
    """Write the gates of a model that has some."""
    if model.config.integrator == "adaptive":
        return
    gates = gates_of(model)
    if gates:
        save_file(gates, path)


def read_gates(path: Path) -> dict[str, np.ndarray]:
    """The gates in a file."""
    return load_file(path)
