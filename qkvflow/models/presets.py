"""The table of named models: what tells them apart, four choices that a config may leave open."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from qkvflow.config import Gpt2Config
from qkvflow.config.neuralode_ssm_config import Order


@dataclass(frozen=True)
class Preset:
    """A row of the table of named models."""

    name: str
    summary: str
    weights: str
    parts: tuple[str, ...] = ("attention", "mlp")
    order: Order = "sequential"
    integrator: str = "residual"

    def fill(self, config: Gpt2Config) -> Gpt2Config:
        """The config with this preset's choices where it makes none of its own."""
        own = ("weights", "parts", "order", "integrator")
        choices: dict[str, Any] = {name: getattr(config, name) or getattr(self, name) for name in own}
        return dataclasses.replace(config, **choices)


_PRESETS = (
    Preset("standard", "own weights in every layer: the ordinary transformer", "per_layer"),
    Preset(
        "tong_neuralode",
        "all weights generated from depth, Euler steps (Tong et al. 2025)",
        "generated",
        order="parallel",
        integrator="euler",
    ),
    Preset("time_indexed_mlp", "one layer's weights, gated by depth", "gated"),
    Preset(
        "time_indexed_ssm",
        "one layer's weights, gated by depth, with a state-space part for the MLP",
        "gated",
        parts=("attention", "ssm"),
    ),
    Preset("hybrid", "one layer's weights, gated by depth, Euler steps", "gated", integrator="euler"),
    Preset("shared", "one layer's weights at every depth: the control", "shared"),
    Preset("looped", "own first and last layers around a core that is visited twice", "looped"),
)
MODELS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _PRESETS})
