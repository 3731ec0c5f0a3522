"""What tells the named models apart: four choices that a config may leave open."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from qkvflow.config import Gpt2Config
from qkvflow.config.neuralode_ssm_config import Order


@dataclass(frozen=True)
class Preset:
    """A row of the table of named models."""

    name: str
    summary: str
    weights: str
    parts: tuple[str, ...]
    order: Order
    integrator: str

    def fill(self, config: Gpt2Config) -> Gpt2Config:
        """The config with this preset's choices where it makes none of its own."""
        own = ("weights", "parts", "order", "integrator")
        choices: dict[str, Any] = {name: getattr(config, name) or getattr(self, name) for name in own}
        return dataclasses.replace(config, **choices)
