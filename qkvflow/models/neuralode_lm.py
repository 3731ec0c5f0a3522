"""Time-indexed parameter sharing with attention and MLP."""

from typing import ClassVar, final

from qkvflow.models.language_model import LanguageModel
from qkvflow.models.presets import Preset


@final
class NeuralODELM(LanguageModel):
    """One set of attention and MLP weights, gated by a small network of the layer index."""

    preset: ClassVar[Preset] = Preset(
        name="time_indexed_mlp",
        summary="one layer's weights, gated by depth",
        weights="gated",
        parts=("attention", "mlp"),
        order="sequential",
        integrator="residual",
    )
