"""The named models, and how to build one."""

from collections.abc import Mapping
from types import MappingProxyType

from jax import Array

from qkvflow.config import ConfigError, Gpt2Config, nearest
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.neuralode_lm import NeuralODELM
from qkvflow.models.neuralode_ssm_lm import NeuralODESSMLM
from qkvflow.models.presets import Preset
from qkvflow.models.standard_lm import StandardLM
from qkvflow.models.tong_neuralode_lm import TongNeuralODELM

FLOW = "flow"
"""The name of a model without a preset: its config makes all the choices."""
_NAMED_CLASSES = (StandardLM, TongNeuralODELM, NeuralODELM, NeuralODESSMLM)
_CLASSES: dict[str, type[LanguageModel]] = {model.preset.name: model for model in _NAMED_CLASSES}
_PRESETS = (
    *(model.preset for model in _NAMED_CLASSES),
    Preset(
        name="hybrid",
        summary="one layer's weights, gated by depth, Euler steps",
        weights="gated",
        parts=("attention", "mlp"),
        order="sequential",
        integrator="euler",
    ),
    Preset(
        name="shared",
        summary="one layer's weights at every depth: the control",
        weights="shared",
        parts=("attention", "mlp"),
        order="sequential",
        integrator="residual",
    ),
)
MODELS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})


def model_class(name: str) -> type[LanguageModel]:
    """The class of a named model; `FlowLM` where it has none of its own."""
    return _CLASSES.get(name, FlowLM)


def build_model(name: str, config: Gpt2Config, *, key: Array) -> LanguageModel:
    """A named model with fresh weights.

    Example:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2)
        >>> model = build_model("shared", config, key=jax.random.key(0))
        >>> print(model.config.weights)
        shared
    """
    if name == FLOW:
        return FlowLM.init(config, key=key)
    if name not in MODELS:
        problem = f"there is no model {name!r}. {nearest(name, MODELS)}"
        raise ConfigError("The model cannot be built:", [problem])
    return model_class(name).init(MODELS[name].fill(config), key=key)
