"""Time-indexed parameter sharing with attention and a selective state-space part."""

from typing import ClassVar, final

from qkvflow.models.language_model import LanguageModel
from qkvflow.models.presets import Preset


@final
class NeuralODESSMLM(LanguageModel):
    """One set of attention and state-space weights, gated by a small network of the layer index."""

    preset: ClassVar[Preset] = Preset(
        name="time_indexed_ssm",
        summary="one layer's weights, gated by depth, with a state-space part for the MLP",
        weights="gated",
        parts=("attention", "ssm"),
        order="sequential",
        integrator="residual",
    )
