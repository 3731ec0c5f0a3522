"""The model type `qkvflow` of Levanter's registry: any named model, with any architecture.

    model:
      type: qkvflow
      name: time_indexed_mlp
      max_seq_len: 1024
      architecture: {flavour: llama, hidden_dim: 768, num_heads: 12, num_layers: 12}

Levanter has the loss (shifted by one, in float32), the data and the loop; the model is ours, unchanged.
Documents are kept apart by the segment ids that Levanter's attention masks carry, which is its default
where the tokenizer has an end of text; other masks are refused.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import draccus
import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax import Array
from levanter.layers.attention import AttentionMask
from levanter.models.lm_model import LmConfig, LmExample, LmHeadModel

from qkvflow.config import ConfigError, Gpt2Config, nearest
from qkvflow.models import MODELS, LanguageModel, build_model, count_parameters
from qkvflow.models.counting import forward_flops
from qkvflow.models.language_model import final_state
from qkvflow.models.named import FLOW


def read_architecture(fields: Any, path: Any = ()) -> Gpt2Config:
    """The architecture that a table describes, by qkvflow's own rules."""
    if not isinstance(fields, dict):
        problem = f"model.architecture is {fields!r}; expected a table of fields."
        raise ConfigError("This model cannot be made:", [problem])
    return Gpt2Config.from_dict(_with_numbers(fields))


def _with_numbers(value: Any) -> Any:
    """Tables and lists with numbers such as 1e-5, which the YAML of Levanter's configs has as words."""
    if isinstance(value, dict):
        return {name: _with_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    is_number = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+[eE][-+]?\d+", value)
    return float(value) if is_number else value


draccus.decode.register(Gpt2Config, read_architecture)
draccus.encode.register(Gpt2Config, Gpt2Config.to_dict)


@LmConfig.register_subclass("qkvflow")
@dataclass(frozen=True)
class QkvflowConfig(LmConfig["QkvflowLM"]):
    """A qkvflow model in a Levanter config."""

    max_seq_len: int = 1024
    """Maximum sequence length of the model, in tokens."""
    name: str = "standard"
    """Name of the model: standard, tong_neuralode, time_indexed_mlp, ..., or flow."""
    architecture: Gpt2Config = field(default_factory=Gpt2Config)
    """Shape of the model, its weights over depth, its integrator."""

    def __post_init__(self) -> None:
        plain, problems = Gpt2Config(), list[str]()
        for name, of in (("vocab_size", "the tokenizer"), ("max_position_embeddings", "max_seq_len")):
            if getattr(self.architecture, name) != getattr(plain, name):
                problems.append(f"model.architecture.{name} is set by {of}; leave it out.")
        if self.name not in (FLOW, *MODELS):
            known = nearest(self.name, (FLOW, *MODELS))
            problems.append(f"model.name: there is no model {self.name!r}. {known}")
        if problems:
            raise ConfigError("This model cannot be made:", problems)

    @property
    def model_type(self) -> type["QkvflowLM"]:
        """What Levanter makes of it."""
        return QkvflowLM

    @property
    def Embed(self) -> Axis:
        """The residual stream."""
        return self.architecture.Embed

    def complete(self, vocab_size: int) -> Gpt2Config:
        """The architecture, once the tokenizer is known."""
        return replace(
            self.architecture, vocab_size=vocab_size, max_position_embeddings=self.max_seq_len
        )

    def shapes(self, vocab_size: int) -> LanguageModel:
        """The model in shapes only; JAX has to know of no device yet."""
        key = jax.eval_shape(jax.random.key, 0)
        config = self.complete(vocab_size)
        return eqx.filter_eval_shape(lambda key: build_model(self.name, config, key=key), key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float | None:
        """Operations of a forward pass for a token, by qkvflow's own counts.

        What makes weights from curves is done once for a batch; it is not among them.
        """
        model = self.shapes(vocab_size)
        if not model.integrator.has_grid:
            return None
        one, two = (forward_flops(model, batch, context_length) for batch in (1, 2))
        return (two - one) / context_length

    def total_trainable_params(self, vocab_size: int) -> float:
        """All parameters."""
        return float(count_parameters(self.shapes(vocab_size)).total)


class QkvflowLM(LmHeadModel[QkvflowConfig]):
    """A model of qkvflow behind Levanter's interface."""

    model: LanguageModel
    settings: QkvflowConfig = eqx.field(static=True)

    @property
    def config(self) -> QkvflowConfig:
        """What it was made from."""
        return self.settings

    @property
    def Vocab(self) -> Axis:
        """Token ids."""
        return self.model.config.Vocab

    @classmethod
    def init(cls, Vocab: Axis, config: QkvflowConfig, *, key: Array) -> "QkvflowLM":
        """With fresh weights."""
        return cls(build_model(config.name, config.complete(Vocab.size), key=key), config)

    def __call__(
        self, input_ids: NamedArray, attn_mask: Any = None, *, key: Any = None, pos_ids: Any = None
    ) -> NamedArray:
        """Logits with the axes of `input_ids` and "vocab", bent back where the model has a cap."""
        logits, cap = super().__call__(input_ids, attn_mask, key=key), self.model.config.cap
        return logits if cap is None else cap * hax.tanh(logits / cap)

    def activations(
        self, input_ids: NamedArray, attn_mask: Any = None, *, key: Array | None = None
    ) -> NamedArray:
        """What the head reads, with the axes of `input_ids` and "embed"; no mask is the causal one."""
        ids = input_ids.rearrange((..., "position"))
        rows = (-1, ids.array.shape[-1])
        segments = segments_of(attn_mask, ids)
        own = None if segments is None else segments.reshape(rows)
        state = final_state(self.model, ids.array.reshape(rows), None, key, own)
        normed = self.model.transformer.ln_f(state)
        return hax.named(normed.array.reshape(*ids.array.shape, -1), (*ids.axes, self.Embed))

    def get_lm_head(self) -> NamedArray:
        """The output projection (embed, vocab)."""
        return self.model.output_map().weight

    def compute_next_token_loss(self, example: LmExample, **options: Any) -> Any:
        """Levanter's loss, with the cap of the model's logits."""
        return super().compute_next_token_loss(
            example, **{"logit_soft_cap": self.model.config.cap, **options}
        )

    def resize_vocab(self, new_size: int, key: Any = None) -> "QkvflowLM":
        """Refused: a model keeps the vocabulary that it was made for."""
        raise NotImplementedError(
            f"A model of qkvflow keeps its {self.Vocab.size} token ids; {new_size} were asked for. "
            "Train with the tokenizer that it was made for."
        )


def segments_of(mask: Any, ids: NamedArray) -> Array | None:
    """The segment ids of a mask, shaped as the token ids; none where it has none.

    Raises:
        ConfigError: the mask says more than that a position sees itself and what is before it.
    """
    if mask is None:
        return None
    if not isinstance(mask, AttentionMask) or not _is_plain(mask):
        raise ConfigError(
            "This attention mask cannot be used:",
            ["expected a causal one, with segment ids at most: no window, offset or further mask."],
        )
    if mask.segment_ids is None:
        return None
    return mask.segment_ids[0].broadcast_axis(ids.axes).rearrange(ids.axes).array.astype(jnp.int32)


def _is_plain(mask: AttentionMask) -> bool:
    extras = (mask.causal_offset, mask.explicit_mask, mask.sliding_window)
    return mask.is_causal and all(extra is None for extra in extras)
