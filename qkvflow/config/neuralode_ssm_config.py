"""The configuration of a language model: its shape, its weights over depth, its integrator."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from qkvflow.config.strict import ConfigError, from_dict, strict, to_dict, type_problems

if TYPE_CHECKING:
    from haliax import Axis

Weights = Literal["per_layer", "shared", "generated", "gated", "low_rank"]
Part = Literal["attention", "mlp", "ssm"]
Order = Literal["sequential", "parallel"]
Integrator = Literal["residual", "euler", "heun", "rk4", "adaptive"]


def _axis(name: str, size: int) -> "Axis":
    from haliax import Axis  # late, so that reading a config does not import JAX

    return Axis(name, size)


@strict
@dataclass(frozen=True)
class Gpt2Config:
    """Everything that decides what a language model computes.

    The four fields `weights`, `parts`, `order` and `integrator` are what tells the named models
    apart. Left at None they are filled in by the model that is built (see `qkvflow.models.MODELS`).

    Example:
        >>> config = Gpt2Config(hidden_dim=64, num_heads=4, num_layers=2)
        >>> config.HeadSize
        Axis(name='head_size', size=16)
    """

    num_layers: int = 6
    """Number of layers: the steps of the default grid over depth."""
    hidden_dim: int = 256
    """Width of the residual stream."""
    num_heads: int = 4
    """Attention heads; hidden_dim is a multiple of it."""
    vocab_size: int = 256
    """Number of token ids."""
    max_position_embeddings: int = 512
    """Longest sequence."""
    use_bias: bool | None = None
    """Biases in linear maps and norms. None: as the flavour has it (gpt2 yes, llama no)."""
    activation_function: Literal["gelu", "relu", "silu"] | None = None
    """Of the MLP. None: as the flavour has it (gpt2 gelu, llama silu)."""
    attn_pdrop: float = 0.0
    """Dropout of attention probabilities."""
    resid_pdrop: float = 0.0
    """Dropout of what each part adds to the residual stream."""
    embd_pdrop: float = 0.0
    """Dropout of embeddings."""

    mlp_ratio: float = 4.0
    """Width of the MLP's hidden layer over hidden_dim."""
    flavour: Literal["gpt2", "llama"] = "gpt2"
    """gpt2: layer norm, learned positions, MLP, biases. llama: RMS norm, rotary, gated MLP, none."""
    num_kv_heads: int | None = None
    """Heads of keys and values (grouped-query attention); a divisor of num_heads. None: num_heads."""
    tie_embeddings: bool = False
    """Use the token embedding as the output projection."""
    norm_epsilon: float = 1e-5
    """Added to the variance in norms."""
    rotary_base: float = 10000.0
    """Pair k of D channels turns by position * rotary_base^(-2 k / D)."""

    weights: Weights | None = None
    """How weights depend on depth. None: as the named model has it."""
    parts: tuple[Part, ...] | None = None
    """What a layer is made of. None: as the named model has it."""
    order: Order | None = None
    """sequential: each part sees what the one before added. parallel: all see the layer's input."""
    integrator: Integrator | None = None
    """How the layers are added up. None: as the named model has it."""

    time_embedding: Literal["sinusoidal", "learned_fourier", "layer_vector"] = "sinusoidal"
    """What the time networks see of the layer index t."""
    layer_time: Literal["true", "zero", "half", "shuffled", "random"] = "true"
    """The time that time networks are told of each layer; all but true are controls.

    zero, half: the same in every layer. shuffled: that of another layer. random: drawn for each layer.
    """
    time_embed_dim: int = 64
    """Hidden width of the time networks; also the number T of basis matrices of `generated`."""
    sinusoidal_dim: int = 32
    """Number of frequencies of the time embedding."""
    time_frequency: float = 1000.0
    """Largest of them, if sinusoidal; the smaller, the slower weights change over depth."""
    gate: Literal["input", "output", "both", "element"] = "output"
    """What one gate of `gated` scales: rows, columns, rows and columns, or single weights."""
    gate_start: Literal["identity", "sigmoid", "random", "linear"] = "identity"
    """identity: gates are 2 sigmoid(g) and start at 1. sigmoid: sigmoid(g), starting at 1/2.

    random: 2 sigmoid(g), starting around 1, each layer with others. linear: 1 + g, starting at 1.
    """
    gate_shift: bool = False
    """Whether biases of `gated` depend on depth, too: b + s(t), with a network s that starts at 0."""
    gated_parts: tuple[Part, ...] | None = None
    """Parts of a layer of `gated` whose weights have gates; the others are shared. None: all."""
    low_rank: int = 8
    """Rank of the depth-dependent part of `low_rank`."""

    adapter: Literal["lora", "depth_lora"] | None = None
    """What is added to linear maps and trained in their stead; see `qkvflow.finetune`.

    lora: a pair of factors for every layer. depth_lora: one pair, scaled by a function of depth.
    """
    adapter_rank: int = 8
    """Rank of the adapters."""
    adapter_alpha: float = 16.0
    """The product of the factors of `lora` counts adapter_alpha / adapter_rank times."""
    adapter_maps: tuple[str, ...] = ("*.*",)
    """Linear maps with an adapter: attention.qkv, mlp.*, lm_head. *.* stands for all of a layer."""

    ssm_state_size: int = 64
    """Size N of the state of each state-space channel."""
    ssm_expand: int = 2
    """Inner width of the state-space block over hidden_dim."""
    ssm_head_size: int = 64
    """Channels that share one decay rate and one step size delta."""
    ssm_conv_width: int = 4
    """Width of the short causal convolution."""
    ssm_chunk_size: int = 128
    """Positions that the chunked scan handles in one matrix product."""
    ssm_delta_min: float = 1e-3
    """Smallest step size delta at the start."""
    ssm_delta_max: float = 1e-1
    """Largest step size delta at the start."""

    adaptive_rtol: float = 1e-3
    """Relative tolerance of the adaptive integrator."""
    adaptive_atol: float = 1e-4
    """Absolute tolerance of the adaptive integrator."""
    adaptive_max_steps: int = 256
    """The adaptive integrator gives up after this many steps."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and matrix products. Parameters and time stay float32."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes: nothing, all but matrix products, or whole layers.

    auto: nothing where a few layers fit into memory, all but matrix products otherwise.
    """

    def __post_init__(self) -> None:
        problems = type_problems(self) or _shape_problems(self)
        if problems:
            raise ConfigError("This configuration cannot be used:", problems)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Gpt2Config":
        """The inverse of `to_dict`; lists become tuples, unknown names are refused."""
        return from_dict(cls, fields)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        return to_dict(self)

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
    def Embed(self) -> "Axis":
        """The residual stream."""
        return _axis("embed", self.hidden_dim)

    @property
    def Heads(self) -> "Axis":
        """Attention heads."""
        return _axis("heads", self.num_heads)

    @property
    def KVHeads(self) -> "Axis":
        """Heads of keys and values."""
        return _axis("kv_heads", self.num_kv_heads or self.num_heads)

    @property
    def Group(self) -> "Axis":
        """Query heads that share one head of keys and values."""
        return _axis("group", self.num_heads // self.KVHeads.size)

    @property
    def HeadSize(self) -> "Axis":
        """Width of one head."""
        return _axis("head_size", self.hidden_dim // self.num_heads)

    @property
    def Mlp(self) -> "Axis":
        """Hidden layer of the MLP."""
        return _axis("mlp", int(self.hidden_dim * self.mlp_ratio))

    @property
    def Vocab(self) -> "Axis":
        """Token ids."""
        return _axis("vocab", self.vocab_size)

    @property
    def Position(self) -> "Axis":
        """Positions of the longest sequence."""
        return _axis("position", self.max_position_embeddings)

    @property
    def Layers(self) -> "Axis":
        """Layers of the default grid."""
        return _axis("layers", self.num_layers)

    @property
    def SsmHeads(self) -> "Axis":
        """Heads of the state-space block."""
        return _axis("ssm_heads", self.hidden_dim * self.ssm_expand // self.ssm_head_size)

    @property
    def State(self) -> "Axis":
        """State of one state-space channel."""
        return _axis("state", self.ssm_state_size)


_POSITIVE = (
    "num_layers",
    "hidden_dim",
    "num_heads",
    "vocab_size",
    "max_position_embeddings",
    "mlp_ratio",
    "norm_epsilon",
    "rotary_base",
    "time_embed_dim",
    "sinusoidal_dim",
    "time_frequency",
    "low_rank",
    "adapter_rank",
    "adapter_alpha",
    "ssm_state_size",
    "ssm_expand",
    "ssm_head_size",
    "ssm_conv_width",
    "ssm_chunk_size",
    "ssm_delta_min",
    "adaptive_rtol",
    "adaptive_atol",
    "adaptive_max_steps",
)
_PROBABILITIES = ("attn_pdrop", "resid_pdrop", "embd_pdrop")


def _shape_problems(config: Gpt2Config) -> list[str]:
    """One sentence for every value out of range and every relation that does not hold."""
    out_of_range = [name for name in _POSITIVE if not 0 < getattr(config, name) < math.inf]
    problems = [
        f"{name} is {getattr(config, name)}; expected a number above 0." for name in out_of_range
    ]
    problems += [
        f"{name} is {getattr(config, name)}; expected a probability, at least 0 and below 1."
        for name in _PROBABILITIES
        if not 0 <= getattr(config, name) < 1
    ]
    if not {"hidden_dim", "num_heads"} & set(out_of_range):
        problems += _head_problems(config)
    if not {"hidden_dim", "mlp_ratio", "ssm_expand", "ssm_head_size"} & set(out_of_range):
        problems += _part_problems(config)
    return problems


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
    if config.ssm_delta_max < config.ssm_delta_min:
        problems.append(
            f"ssm_delta_max {config.ssm_delta_max} is below ssm_delta_min {config.ssm_delta_min}."
        )
    if parts is not None and (not parts or len(set(parts)) < len(parts)):
        problems.append(f"parts is {parts}; expected at least one part and none twice.")
    missing = sorted(set(config.gated_parts or ()) - set(parts or config.gated_parts or ()))
    if missing or config.gated_parts == ():
        gated = ", ".join(config.gated_parts or ()) or "empty"
        problems.append(f"gated_parts is {gated}; expected some of the layer's parts.")
    if config.gate_shift and not config.bias:
        problems.append("gate_shift is set where there are no biases; set use_bias, too.")
    if config.adapter is not None and not config.adapter_maps:
        problems.append("adapter_maps is empty; expected at least one name of a linear map.")
    inner = config.hidden_dim * config.ssm_expand
    if parts is not None and "ssm" in parts and inner % config.ssm_head_size:
        problems.append(
            f"the state-space block is hidden_dim * ssm_expand = {inner} wide, which is not "
            f"divisible by ssm_head_size {config.ssm_head_size}; choose another ssm_head_size."
        )
    return problems
