"""The classes of named models, and how to build one by its name."""

from typing import ClassVar, final

from jax import Array

from qkvflow.config import ConfigError, Gpt2Config, nearest
from qkvflow.models.language_model import FlowLM, LanguageModel
from qkvflow.models.presets import MODELS, Preset

FLOW = "flow"
"""The name of a model without a preset: its config makes all the choices."""


@final
class StandardLM(LanguageModel):
    """An ordinary pre-norm transformer: every layer has its own weights."""

    preset: ClassVar[Preset] = MODELS["standard"]


@final
class TongNeuralODELM(LanguageModel):
    """Every weight, bias and norm is generated from the layer index; Euler steps of 1 / L.

    Attention and MLP see the same x. Deviations from the paper's code are in docs/models.md.
    """

    preset: ClassVar[Preset] = MODELS["tong_neuralode"]


@final
class NeuralODELM(LanguageModel):
    """One set of attention and MLP weights, gated by a small network of the layer index."""

    preset: ClassVar[Preset] = MODELS["time_indexed_mlp"]


@final
class NeuralODESSMLM(LanguageModel):
    """One set of attention and state-space weights, gated by a small network of the layer index."""

    preset: ClassVar[Preset] = MODELS["time_indexed_ssm"]


_CLASSES: dict[str, type[LanguageModel]] = {
    model.preset.name: model for model in (StandardLM, TongNeuralODELM, NeuralODELM, NeuralODESSMLM)
}


def model_class(name: str) -> type[LanguageModel]:
    """The class of a named model; `FlowLM` where it has none of its own."""
    return _CLASSES.get(name, FlowLM)


def build_model(name: str, config: Gpt2Config, *, key: Array) -> LanguageModel:
    """A named model with fresh weights.

    Examples:
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
