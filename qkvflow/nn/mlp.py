"""The feed-forward part of a layer, plain or gated."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array

from qkvflow.config import Gpt2Config
from qkvflow.config.variants import PARTS, Part
from qkvflow.nn.context import PLAIN, Context
from qkvflow.nn.linear import Linear

ACTIVATION = 10
"""Operations of an activation function for each element."""
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "silu": jax.nn.silu,
}


class MLP(eqx.Module):
    """down(act(up x)), or with a gate down(act(gate x) * up x)."""

    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)

    def empty_cache(self, batch: int, length: int, dtype: object, back: int = 0) -> None:
        """Positions do not see each other: there is nothing to remember."""

    def operations(self, length: int) -> int:
        """Operations per token beside those of its linear maps: the activation."""
        return ACTIVATION * self.down.In[0].size

    def __call__(self, x: NamedArray, context: Context = PLAIN) -> tuple[NamedArray, None]:
        """Map (batch, position, embed) to the same axes."""
        branches = self.up(x, rounded=context.rounded)
        *leading, _, Mlp = branches.axes
        hidden = ACTIVATIONS[self.activation](branches.array[..., 0, :])
        if branches.array.shape[-2] == 2:
            hidden *= branches.array[..., 1, :]
        return self.down(hax.named(hidden, (*leading, Mlp)), rounded=context.rounded), None


@PARTS.register("mlp")
@dataclass(frozen=True)
class MlpPart(Part):
    """The feed-forward part; its width and activation are fields of the model's config."""

    def build(self, config: Gpt2Config, *, key: Array, out_gain: float) -> MLP:
        """With a gate `up` has two branches, the gate and the value."""
        k_up, k_down = jax.random.split(key)
        Embed, Mlp, bias = config.Embed, config.Mlp, config.bias
        Branch = Axis("branch", 2 if config.choice("gated_mlp") else 1)
        return MLP(
            up=Linear.init((Embed,), (Branch, Mlp), key=k_up, bias=bias),
            down=Linear.init((Mlp,), (Embed,), key=k_down, bias=bias, gain=out_gain),
            activation=config.choice("activation_function"),
        )
