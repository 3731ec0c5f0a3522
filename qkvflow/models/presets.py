"""What tells the named models apart: four choices that a config may leave open."""

import dataclasses
from dataclasses import dataclass

from qkvflow.config import Gpt2Config
from qkvflow.config.neuralode_ssm_config import Integrator, Order, Part, Weights


@dataclass(frozen=True)
class Preset:
    """A row of the table of named models."""

    name: str
    summary: str
    weights: Weights
    parts: tuple[Part, ...]
    order: Order
    integrator: Integrator

    def fill(self, config: Gpt2Config) -> Gpt2Config:
        """The config with this preset's choices where it makes none of its own."""
        return dataclasses.replace(
            config,
            weights=config.weights or self.weights,
            parts=config.parts or self.parts,
            order=config.order or self.order,
            integrator=config.integrator or self.integrator,
        )
