"""The configuration of a language model: its shape, its weights over depth, its integrator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from qkvflow.config.strict import (
    RATIO,
    SIZES,
    Bound,
    Config,
    ConfigError,
    Depth,
    Positive,
    PositiveInt,
    Probability,
    Ratio,
    Size,
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
_FLAVOURS: dict[str, dict[str, Any]] = {
    "gpt2": {"positions": "learned", "norm_kind": "layer", "use_bias": True},
    "llama": {"activation_function": "silu", "gated_mlp": True},
    "modern": {
        "activation_function": "relu2",
        "embedding_norm": True,
        "qk_norm": True,
        "zero_outputs": True,
        "mix_embedding": True,
        "value_residual": True,
        "logit_cap": 15.0,
    },
}
_PLAIN: dict[str, Any] = {
    "positions": "rotary",
    "norm_kind": "rms",
    "use_bias": False,
    "activation_function": "gelu",
    "gated_mlp": False,
    "embedding_norm": False,
    "qk_norm": False,
    "zero_outputs": False,
    "mix_embedding": False,
    "value_residual": False,
    "logit_cap": "none",
}
"""What a field that is None stands for, by flavour; and where the flavour does not say."""


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

    Examples:
        >>> config = Gpt2Config(hidden_dim=64, num_heads=4, num_layers=2)
        >>> config.HeadSize
        Axis(name='head_size', size=16)
    """

    refusal = "This configuration cannot be used:"

    num_layers: Depth = 6
    """Number of layers, which are the steps of the default grid over depth."""
    hidden_dim: Size = 256
    """Width of the residual stream."""
    num_heads: Size = 4
    """Number of attention heads; it must divide hidden_dim."""
    vocab_size: PositiveInt = 256
    """Number of token ids."""
    max_position_embeddings: PositiveInt = 512
    """Maximum sequence length, in tokens."""
    use_bias: bool | None = None
    """Use biases in linear maps and norms. None: by flavour (gpt2 yes, others no)."""
    activation_function: Literal["gelu", "relu", "relu2", "silu"] | None = None
    """Activation of the MLP; relu2 is relu squared. None: by flavour (gpt2 gelu, llama silu, modern
    relu2)."""
    attn_pdrop: Probability = 0.0
    """Dropout probability on attention weights."""
    resid_pdrop: Probability = 0.0
    """Dropout probability on the output of each part of a layer."""
    embd_pdrop: Probability = 0.0
    """Dropout probability on embeddings."""

    mlp_ratio: Ratio = 4.0
    """Hidden width of the MLP, as a multiple of hidden_dim."""
    flavour: Literal["gpt2", "llama", "modern"] = "gpt2"
    """Defaults for architecture options that are None. gpt2: a transformer of 2019. llama: RMS norms,
    rotary positions, gated MLP, no biases. modern: llama without the gate, plus newer choices."""
    positions: Literal["learned", "rotary"] | None = None
    """Position encoding: a learned table, or rotary. None: by flavour (gpt2 learned, others rotary)."""
    norm_kind: Literal["layer", "rms"] | None = None
    """Norm before each part and the output projection. None: by flavour (gpt2 layer, others rms)."""
    gated_mlp: bool | None = None
    """Use a gated MLP, where a second branch scales the first. None: by flavour (only llama yes)."""
    embedding_norm: bool | None = None
    """Apply a norm to the embeddings. None: by flavour (only modern yes)."""
    qk_norm: bool | None = None
    """Apply an RMS norm to the queries and keys of every head. None: by flavour (only modern yes)."""
    zero_outputs: bool | None = None
    """Initialize the last linear map of every part to zero. None: by flavour (only modern yes)."""
    mix_embedding: bool | Literal["gate"] | None = None
    """Feed every layer a learned mix of its input and the embedding. gate: the embedding's share also
    depends on the token. None: by flavour (only modern yes)."""
    value_residual: bool | None = None
    """Mix attention values with those of the first layer, by learned weights. None: by flavour (only
    modern yes)."""
    logit_cap: Positive | Literal["none"] | None = None
    """Soft cap of logits: cap tanh(logits / cap). None: by flavour (modern 15, others none)."""
    streams: Annotated[int, Bound("1 to 4", 1, 5)] = 1
    """Number of residual streams, 1 to 4 (hyper-connections); every part reads and writes a learned mix
    of the streams."""
    stream_mix: Literal["static", "input", "manifold"] = "static"
    """How several residual streams are mixed. static: by parameters. input: by functions of each token.
    manifold: by functions of each token, kept doubly stochastic."""
    mix_streams: Literal["layers", "ends"] = "layers"
    """Places at which several residual streams are mixed. layers: around every part. ends: only at the
    ends of passes through a loop."""
    num_kv_heads: int | None = None
    """Number of key and value heads (grouped-query attention); it must divide num_heads. None: same as
    num_heads."""
    tie_embeddings: bool = False
    """Use the token embedding as the output projection."""
    norm_epsilon: Positive = 1e-5
    """Epsilon added to the variance in norms."""
    rotary_base: Positive = 10000.0
    """Base of rotary positions: pair k of D channels rotates by position * rotary_base^(-2 k / D)."""

    weights: Family | None = None
    """Weight family, such as shared or {family: gated, gate: both}. None: as in the named model."""
    parts: tuple[Part, ...] | None = None
    """Parts of a layer: attention, mlp, {part: ssm, state_size: 16}. None: as in the named model."""
    order: Order | None = None
    """Order of a layer's parts. sequential: each part reads the output of the previous one. parallel:
    all read the layer's input. None: as in the named model."""
    integrator: Integrator | None = None
    """Integrator over depth: residual, euler, heun, rk4, {method: adaptive, rtol: 1e-4}. None: as in
    the named model."""
    adapter: Adapter | None = None
    """Adapter that is trained in place of the linear maps it wraps, such as {method: lora, rank: 4}."""

    time_embedding: Literal["sinusoidal", "learned_fourier", "layer_vector"] = "sinusoidal"
    """Features of the layer time t that the time networks get as input."""
    layer_time: Literal["true", "half"] = "true"
    """Layer time that the time networks get. true: each layer's own. half: 0.5 for all (a control)."""
    time_embed_dim: Size = 64
    """Hidden width of the time networks; also the number of basis matrices of generated weights."""
    sinusoidal_dim: Size = 32
    """Number of frequencies of the time embedding."""
    time_frequency: Positive = 1000.0
    """Largest frequency of a sinusoidal time embedding; with smaller values, weights change more slowly
    over depth."""

    compute_dtype: Literal["float32", "mixed", "bfloat16"] = "float32"
    """Data type of activations and matrix products; parameters and layer times stay float32. mixed:
    only operands of large products are rounded to bfloat16, if the CPU has instructions for it."""
    remat: Literal["auto", "none", "dots", "full"] = "auto"
    """What the backward pass recomputes to save memory. none: nothing. dots: all but matrix products.
    full: whole layers. auto: none if a few layers fit into memory, otherwise dots."""

    def __post_init__(self) -> None:
        problems = self._read_variants() + problems_of(self)
        if problems:
            raise ConfigError(self.refusal, problems)

    def problems(self) -> list[str]:
        """A sentence for every relation that does not hold between sizes that are in range."""
        if not (
            0 < self.hidden_dim < SIZES and 0 < self.num_heads < SIZES and 0 < self.mlp_ratio < RATIO
        ):
            return []
        return _head_problems(self) + _part_problems(self) + _stream_problems(self)

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

    def choice(self, name: str) -> Any:
        """A field, or where it is None what the flavour has."""
        own = getattr(self, name)
        return _FLAVOURS[self.flavour].get(name, _PLAIN[name]) if own is None else own

    @property
    def bias(self) -> bool:
        """Whether linear maps and norms have biases."""
        return self.choice("use_bias")

    @property
    def stream_dtype(self) -> Literal["float32", "bfloat16"]:
        """Type of the residual stream and of caches."""
        return "bfloat16" if self.compute_dtype == "bfloat16" else "float32"

    @property
    def cap(self) -> float | None:
        """What logits are bent back to; None: they are not."""
        cap = self.choice("logit_cap")
        return None if cap == "none" else cap

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
    elif config.choice("positions") == "rotary" and hidden // heads % 2:
        problems.append(
            f"heads are {hidden // heads} wide; rotary positions rotate pairs of channels, "
            "so choose an even hidden_dim / num_heads."
        )
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        problems.append(
            f"num_kv_heads is {kv_heads}; expected a divisor of num_heads {heads}, "
            "so that every key head serves the same number of query heads."
        )
    return problems


def _stream_problems(config: Gpt2Config) -> list[str]:
    """A sentence where several streams do not go with the rest."""
    method = config.integrator
    if config.streams == 1 or method is None:
        return []
    if not method.has_grid:
        return [
            f"streams is {config.streams}, but the integrator {method} chooses its steps by the error "
            "of a single stream; use one with fixed steps (residual, euler, heun, rk4), or 1 stream."
        ]
    if config.mix_streams == "layers":
        return []
    problems = []
    if method.name not in ("residual", "euler"):
        problems.append(
            f"mix_streams is 'ends', but {method} has stages inside layers; use residual or euler."
        )
    if config.weights is not None and "ends" not in config.weights.words(config):
        problems.append(
            f"mix_streams is 'ends', but weights {config.weights} has no loop; use looped with a plan "
            "like 1 + 2x2 + 1, or list ends among the parts of layers."
        )
    return problems


def _part_problems(config: Gpt2Config) -> list[str]:
    parts = config.parts
    problems = []
    if int(config.hidden_dim * config.mlp_ratio) < 1:
        problems.append(f"mlp_ratio {config.mlp_ratio} leaves the MLP without hidden units.")
    if parts is not None and (not parts or len({part.name for part in parts}) < len(parts)):
        names = ", ".join(part.name for part in parts) or "empty"
        problems.append(f"parts is {names}; expected at least one part, and each only once.")
    problems += [problem for part in parts or () for problem in part.misfits(config)]
    return problems if config.weights is None else problems + config.weights.misfits(config)
