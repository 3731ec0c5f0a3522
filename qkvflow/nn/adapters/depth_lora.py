"""LoRA that is a function of depth: one pair of factors, scaled by a network of time."""

from dataclasses import dataclass

from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import ADAPTERS, Adapter
from qkvflow.nn.adapters.lora import Adapted, Lora, adapter_problems
from qkvflow.nn.families.low_rank import LowRank
from qkvflow.nn.weights import Weight, value_of


@ADAPTERS.register("depth_lora")
@dataclass(frozen=True)
class DepthLora(Adapter):
    """A low-rank curve over depth; it can be used at depths at which it was not trained."""

    rank: int = 8
    """Rank of the factors."""
    alpha: float = 16.0
    """Around the output projection, which has no depth, the factors count alpha / rank times."""
    maps: tuple[str, ...] = ("*.*",)
    """Linear maps that it goes around: attention.qkv, mlp.*, lm_head. *.* stands for all of a layer."""

    any_depth = True

    def problems(self) -> list[str]:
        return adapter_problems(self)

    def around(self, curve: Weight, config: Gpt2Config, *, key: Array) -> LowRank:
        return LowRank.init(curve, value_of(curve), self.rank, config, key)

    def around_head(self, head: Weight, *, key: Array) -> Adapted:
        return Lora(self.rank, self.alpha).around_head(head, key=key)
