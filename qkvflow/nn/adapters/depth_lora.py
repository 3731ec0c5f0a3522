"""LoRA that is a function of depth: one pair of factors, scaled by a network of time."""

from dataclasses import dataclass

from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.nn.adapters.lora import Adapted, Lora
from qkvflow.nn.families.low_rank import LowRank
from qkvflow.nn.weights import Weight, value_of


@ADAPTERS.register("depth_lora")
@dataclass(frozen=True)
class DepthLora(Adapter):
    """A low-rank curve over depth; it can be used at depths at which it was not trained."""

    any_depth = True

    def around(self, curve: Weight, config: Gpt2Config, *, key: Array) -> LowRank:
        return LowRank.init(curve, value_of(curve), self.rank, config, key, adapts=True)

    def around_head(self, head: Weight, *, key: Array) -> Adapted:
        return Lora(self.rank, self.alpha).around_head(head, key=key)
