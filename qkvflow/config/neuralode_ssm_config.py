"""The configuration of a language model: its shape, its weights over depth, its integrator."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qkvflow.config.strict import (
    Config,
    ConfigError,
    Positive,
    PositiveInt,
    Probability,
    problems_of,
    strict,
)
from qkvflow.config.variants import (
    ADAPTERS,
    FAMILIES,
    INTEGRATORS,
    PARTS,
    Adapter,
    Family,
    Integrator,
    Part,
    Variants,
)

if TYPE_CHECKING:
    from haliax import Axis

Order = Literal["sequential", "parallel"]


@dataclass(frozen=True)
class _AxisOf:
    """An axis that a config has: its name, and its size by the fields."""

    name: str
    size: Callable[["Gpt2Config"], int]

    def __get__(self, config: "Gpt2Config", owner: type) -> "Axis":
        from haliax import Axis  # late, so that reading a config does not import JAX

        return Axis(self.name, self.size(config))


@strict
@dataclass(frozen=True)
class Gpt2Config(Config):
    """Everything that decides what a language model computes.

    The four fields `weights`, `parts`, `order` and `integrator` are what tells the named models
    apart. Left at None they are filled in by the model that is built (see `qkvflow.models.MODELS`).

    Example:
        >>> config = Gpt2Config(hidden_dim=64, num_heads=4, num_layers=2)
        >>> config.HeadSize
        Axis(name='head_size', size=16)
    """

    refusal = "This configuration cannot be used:"

    num_layers: PositiveInt = 6
    """Number of layers: the steps of the default grid over depth."""
    hidden_dim: PositiveInt = 256
    """Width of the residual stream."""
    num_heads: PositiveInt = 4
    """Attention heads; hidden_dim is a multiple of it."""
    vocab_size: PositiveInt = 256
    """Number of token ids."""
    max_position_embeddings: PositiveInt = 512
    """Longest sequence."""
    use_bias: bool | None = None
    """Biases in linear maps and norms. None: as the flavour has it (gpt2 yes, llama no)."""
    activation_function: Literal["gelu", "relu", "silu"] | None = None
    """Activation of the MLP. None: as the flavour has it (gpt2 gelu, llama silu)."""
    attn_pdrop: Probability = 0.0
    """Dropout of attention probabilities."""
    resid_pdrop: Probability = 0.0
    """Dropout of what each part adds to the residual stream."""
    embd_pdrop: Probability = 0.0
    """Dropout of embeddings."""

    mlp_ratio: Positive = 4.0
    """Width of the MLP's hidden layer over hidden_dim."""
    flavour: Literal["gpt2", "llama"] = "gpt2"
    """gpt2: layer norm, learned positions, MLP, biases. llama: RMS norm, rotary, gated MLP, none."""
    num_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention); a divisor of num_heads. None: num_heads."""
    tie_embeddings: bool = False
    """Use the token embedding as the output projection."""
    norm_epsilon: Positive = 1e-5
    """Added to the variance in norms."""
    rotary_base: Positive = 10000.0
    """Pair k of D channels turns by position * rotary_base^(-2 k / D)."""

    weights: Family | None = None
    """A weight family, such as shared or {family: gated, gate: both}. None: the named model's."""
    parts: tuple[Part, ...] | None = None
    """What a layer is made of: attention, mlp, {part: ssm, state_size: 16}. None: the named model's."""
    order: Order | None = None
    """sequential: each part sees what the one before added. parallel: all see the layer's input."""
    integrator: Integrator | None = None
    """How the layers are added up: euler, {method: adaptive, rtol: 1e-4}. None: the named model's."""
    adapter: Adapter | None = None
    """What is put around linear maps and trained in their stead, such as {method: lora, rank: 4}."""

    time_embedding: Literal["sinusoidal", "learned_fourier", "layer_vector"] = "sinusoidal"
    """What the time networks see of the layer index t."""
    layer_time: Literal["true", "half"] = "true"
    """The time that time networks are told of each layer: its own, or one half for all (a control)."""
    time_embed_dim: PositiveInt = 64
    """Hidden width of the time networks; also the number T of basis matrices of `generated`."""
    sinusoidal_dim: PositiveInt = 32
    """Number of frequencies of the time embedding."""
    time_frequency: Positive = 1000.0
    """Largest frequency of a sinusoidal time embedding; the smaller, the slower weights change."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and matrix products. Parameters and time stay float32."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes: nothing, all but matrix products, or whole layers.

    auto: nothing where a few layers fit into memory, all but matrix products otherwise.
    """

    def __post_init__(self) -> None:
        problems = self._read_variants() + problems_of(self)
        if problems:
            raise ConfigError(self.refusal, problems)

    def problems(self) -> list[str]:
        """A sentence for every relation that does not hold between sizes that are in range."""
        sizes = (self.hidden_dim, self.num_heads, self.mlp_ratio)
        if not all(0 < size < math.inf for size in sizes):
            return []
        return _head_problems(self) + _part_problems(self)

    def _read_variants(self) -> list[str]:
        """Put what names and tables of variants stand for in their place; None where there is none."""
        problems = []
        for name, variants in _VARIANTS.items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                several = name == "parts" and isinstance(value, tuple)
                read = tuple(map(variants.read, value)) if several else variants.read(value)
            except ConfigError as error:
                problems += [f"{name}: {problem}" for problem in error.problems]
                read = None
            object.__setattr__(self, name, read)
        return problems

    @property
    def bias(self) -> bool:
        """Whether linear maps and norms have biases."""
        return self.flavour == "gpt2" if self.use_bias is None else self.use_bias

    @property
    def activation(self) -> str:
        """The MLP's activation function."""
        return self.activation_function or {"gpt2": "gelu", "llama": "silu"}[self.flavour]

    @property
    def norm(self) -> Literal["layer", "rms"]:
        """The kind of norm."""
        return "rms" if self.flavour == "llama" else "layer"

    @property
    def knots(self) -> tuple[float, ...]:
        """Where a table of weights over depth has entries, in a config that names an integrator."""
        assert self.integrator is not None
        return tuple(map(float, self.integrator.table_times(self.num_layers)))

    Embed = _AxisOf("embed", lambda config: config.hidden_dim)
    """The residual stream."""
    Heads = _AxisOf("heads", lambda config: config.num_heads)
    """Attention heads."""
    KVHeads = _AxisOf("kv_heads", lambda config: config.num_kv_heads or config.num_heads)
    """Heads of keys and values."""
    Group = _AxisOf("group", lambda config: config.num_heads // config.KVHeads.size)
    """Query heads that share one head of keys and values."""
    HeadSize = _AxisOf("head_size", lambda config: config.hidden_dim // config.num_heads)
    """Width of one head."""
    Mlp = _AxisOf("mlp", lambda config: int(config.hidden_dim * config.mlp_ratio))
    """Hidden layer of the MLP."""
    Vocab = _AxisOf("vocab", lambda config: config.vocab_size)
    """Token ids."""
    Position = _AxisOf("position", lambda config: config.max_position_embeddings)
    """Positions of the longest sequence."""
    Layers = _AxisOf("layers", lambda config: config.num_layers)
    """Layers of the default grid."""


_VARIANTS: dict[str, Variants] = {
    "weights": FAMILIES,
    "parts": PARTS,
    "integrator": INTEGRATORS,
    "adapter": ADAPTERS,
}


def _head_problems(config: Gpt2Config) -> list[str]:
    problems = []
    hidden, heads, kv_heads = config.hidden_dim, config.num_heads, config.num_kv_heads
    if hidden % heads:
        problems.append(
            f"hidden_dim {hidden} is not divisible by num_heads {heads}; every head has the same "
            "width, so choose a hidden_dim that is a multiple of num_heads."
        )
    elif config.flavour == "llama" and hidden // heads % 2:
        problems.append(
            f"heads are {hidden // heads} wide; rotary positions turn pairs of channels, "
            "so choose an even hidden_dim / num_heads."
        )
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        problems.append(
            f"num_kv_heads is {kv_heads}; expected a divisor of num_heads {heads}, "
            "so that every head of keys serves the same number of queries."
        )
    return problems


def _part_problems(config: Gpt2Config) -> list[str]:
    parts = config.parts
    problems = []
    if int(config.hidden_dim * config.mlp_ratio) < 1:
        problems.append(f"mlp_ratio {config.mlp_ratio} leaves the MLP no hidden unit.")
    if parts is not None and (not parts or len({part.name for part in parts}) < len(parts)):
        names = ", ".join(part.name for part in parts) or "empty"
        problems.append(f"parts is {names}; expected at least one part and none twice.")
    return problems + [problem for part in parts or () for problem in part.misfits(config)]
