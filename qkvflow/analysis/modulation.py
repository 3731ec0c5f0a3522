"""What modulates the weights over depth, as arrays, and how far from constant it is.

| weights | modulators |
|---|---|
| `gated` | the gates, one a row, a column or a weight |
| `low_rank` | s(t), one a rank |
| `generated` | the coefficients e(t), one a basis matrix |
"""

import numpy as np

from qkvflow.config import ConfigError
from qkvflow.models import LanguageModel
from qkvflow.models.paths import nodes_of
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.weights import Weight


def modulators(model: LanguageModel, times: np.ndarray) -> dict[str, np.ndarray]:
    """The modulators [time, number] of every map that has some, by its name.

    Raises:
        ConfigError: nothing modulates the weights of this model.
    """
    times = np.asarray(times, np.float32)
    found = {
        map_name(path) + name: np.asarray(values)
        for path, curve in nodes_of(model.transformer.blocks, Weight)
        for name, values in curve.modulators(times).items()
    }
    if not found:
        raise ConfigError(
            "There is no modulation to look at:",
            [
                f"the weights of this model are {model.config.weights}: no gate, scale or coefficient "
                "depends on depth. Modulation belongs to gated, low_rank and generated weights."
            ],
        )
    return {name: values.astype(np.float64) for name, values in found.items()}


def spread(values: np.ndarray) -> float:
    """How far modulators [time, number] are from constant: ||m(t) - mean m|| / ||m||, from 0 to 1.

    Example:
        >>> spread(np.ones((4, 3))), spread(np.array([[1.0], [-1.0]]))
        (0.0, 1.0)
    """
    size = float(np.linalg.norm(values))
    return float(np.linalg.norm(values - values.mean(axis=0))) / size if size else 0.0
