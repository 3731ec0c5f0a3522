"""Language models whose weights are functions of depth."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkvflow.models import LanguageModel

__version__ = "0.2.0"


def load(path: str | os.PathLike[str]) -> "LanguageModel":
    """A ready model from a directory: a saved model, a checkpoint, or a training run."""
    from qkvflow.train import load_model  # late: `import qkvflow` imports no JAX

    return load_model(path)
