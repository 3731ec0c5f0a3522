"""The gates of a trained model over depth, as arrays."""

from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from qkvflow.models import LanguageModel
from qkvflow.models.paths import nodes_of
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.weights import Gated


def gates_of(model: LanguageModel, times: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The gates [time, ...] of every gated map, by the map's name; by default one a layer."""
    times = np.asarray(model.steps().times[:, -1]) if times is None else times
    found = {}
    for path, curve in nodes_of(model.transformer.blocks, Gated):
        for i, gate in enumerate(jax.device_get(curve.before_loop(times))):
            suffix = f" ({i + 1})" if len(curve.gates) > 1 else ""
            found[map_name(path) + suffix] = np.asarray(gate).reshape(len(times), -1)
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
