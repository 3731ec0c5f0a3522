"""The ordinary transformer."""

from typing import ClassVar, final

from qkvflow.models.language_model import LanguageModel
from qkvflow.models.presets import Preset


@final
class StandardLM(LanguageModel):
    """An ordinary pre-norm transformer: every layer has its own weights."""

    preset: ClassVar[Preset] = Preset(
        name="standard",
        summary="own weights in every layer: the ordinary transformer",
        weights="per_layer",
        parts=("attention", "mlp"),
        order="sequential",
        integrator="residual",
    )
