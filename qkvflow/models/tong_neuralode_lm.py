"""The Neural ODE Transformer of Tong et al. (ICLR 2025)."""

from typing import ClassVar, final

from qkvflow.models.language_model import LanguageModel
from qkvflow.models.presets import Preset


@final
class TongNeuralODELM(LanguageModel):
    """Every weight, bias and norm is generated from the layer index; Euler steps of 1 / L.

    Attention and MLP see the same x. Deviations from the paper's code are in docs/models.md.
    """

    preset: ClassVar[Preset] = Preset(
        name="tong_neuralode",
        summary="all weights generated from depth, Euler steps (Tong et al. 2025)",
        weights="generated",
        parts=("attention", "mlp"),
        order="parallel",
        integrator="euler",
    )
