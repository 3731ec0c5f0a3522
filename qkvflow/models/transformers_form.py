"""A model as one of the classes of transformers: its config and its tensors, by their names there.

Both classes add attention to the stream and then an MLP, each behind its norm:

    GPT2LMHeadModel     a table of positions, layer norms, an MLP with one branch
    LlamaForCausalLM    rotary positions, RMS norms, a gated MLP, grouped queries

So does any model here whose parts are attention and then mlp, in sequence, with steps of 1, whatever
makes its weights: they are sampled at its layers. A step h other than 1 cannot be folded into the
output maps: the MLP sees x + a(x) here, and would see x + h a(x) there. What GPT-2 does not have is
written out: missing biases as zeros, keys and values of grouped queries once for each of their queries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.models.depth import merge
from qkvflow.models.language_model import LanguageModel
from qkvflow.models.paths import Arrays, nodes_of
from qkvflow.nn.dynamic import map_name
from qkvflow.nn.families.per_layer import PerLayer

_GPT2, _LLAMA = ("learned", "layer", False), ("rotary", "rms", True)
"""Positions, norms, and whether the MLP is gated."""
_EXTRAS = {
    "embedding_norm": "a norm of the embeddings",
    "qk_norm": "norms of queries and keys",
    "mix_embedding": "shares of the embedding in every layer",
    "value_residual": "shares of the first layer's values",
}
_ACTIVATIONS = {"gelu": "gelu_pytorch_tanh", "relu": "relu", "relu2": "relu2", "silu": "silu"}


@dataclass(frozen=True)
class TransformersForm:
    """What config.json and model.safetensors hold."""

    config: dict[str, Any]
    tensors: Arrays


@dataclass(frozen=True)
class _Maps:
    """A linear map or norm of all layers, weight [L, in, out] or [L, E] and bias [L, out]."""

    weight: np.ndarray
    bias: np.ndarray | None

    def bias_or_zeros(self) -> np.ndarray:
        return np.zeros_like(self.weight[..., 0, :]) if self.bias is None else self.bias


def transformers_form(model: LanguageModel) -> TransformersForm:
    """The same function as a GPT2LMHeadModel or a LlamaForCausalLM.

    Raises:
        ConfigError: it is neither; every reason is named.

    Examples:
        >>> import jax
        >>> from qkvflow.config import Gpt2Config
        >>> from qkvflow.models import build_model
        >>> config = Gpt2Config(hidden_dim=32, num_heads=2, num_layers=2, flavour="llama")
        >>> model = build_model("time_indexed_mlp", config, key=jax.random.key(0))
        >>> transformers_form(model).config["architectures"]
        ['LlamaForCausalLM']
    """
    problems = form_problems(model)
    if problems:
        raise ConfigError("The model is neither a GPT-2 nor a Llama of transformers:", problems)
    unrolled = merge(model)
    is_gpt2 = _kind(model.config) == _GPT2
    config = _gpt2_config(model.config) if is_gpt2 else _llama_config(model.config)
    tensors = _gpt2_tensors(unrolled) if is_gpt2 else _llama_tensors(unrolled)
    whole = {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}
    return TransformersForm(_common_config(model.config) | config, whole)


def form_problems(model: LanguageModel) -> list[str]:
    """A sentence for everything in a model that neither class has."""
    config, plan = model.config, model.plan()
    names = [part.name for part in config.parts or ()]
    problems = []
    if names != ["attention", "mlp"]:
        problems.append(f"its parts are {', '.join(names)}; expected attention, mlp, in this order.")
    if config.order == "parallel":
        problems.append("its order is parallel: attention and MLP see the same x; expected sequential.")
    if plan.stages > 1:
        problems.append(f"{model.integrator} evaluates a layer {plan.stages} times; expected residual.")
    elif not np.all(np.asarray(plan.sizes) == 1.0):
        problems.append(_about_steps(model))
    problems += [
        f"it has {what} ({name}), which neither has."
        for name, what in _EXTRAS.items()
        if config.choice(name)
    ]
    if config.cap is not None:
        problems.append(f"its logits are capped at {config.cap:g} (logit_cap), which neither does.")
    return problems + _kind_problems(config)


def _about_steps(model: LanguageModel) -> str:
    step = float(np.asarray(model.plan().sizes)[0])
    remedy = ""
    if model.integrator.unit_step:
        remedy = " With --unit-steps they are 1 at every depth, which is another function."
    return (
        f"its {model.config.num_layers} layers have steps of {step:g}; expected steps of 1, since the "
        f"MLP sees x + a(x) here and would see x + {step:g} a(x) there.{remedy}"
    )


def _kind(config: Gpt2Config) -> tuple[str, str, bool]:
    return tuple(config.choice(name) for name in ("positions", "norm_kind", "gated_mlp"))


def _kind_problems(config: Gpt2Config) -> list[str]:
    kind = _kind(config)
    if kind in (_GPT2, _LLAMA):
        return []
    own, gpt2, llama = (f"({p}, {n}, {'' if g else 'not '}gated)" for p, n, g in (kind, _GPT2, _LLAMA))
    return [f"positions, norms and MLP are {own}; expected {gpt2} of GPT-2 or {llama} of Llama."]


def _common_config(config: Gpt2Config) -> dict[str, Any]:
    """What both classes are told alike; no token has a meaning of its own."""
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    common = {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_embeddings}
    return {**common, **tokens, "torch_dtype": "float32", "use_cache": True}


def _gpt2_config(config: Gpt2Config) -> dict[str, Any]:
    activation = config.choice("activation_function")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_positions": config.max_position_embeddings,
        "n_embd": config.hidden_dim,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.Mlp.size,
        "activation_function": "gelu_new" if activation == "gelu" else _ACTIVATIONS[activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "attn_pdrop": config.attn_pdrop,
        "resid_pdrop": config.resid_pdrop,
        "embd_pdrop": config.embd_pdrop,
    }


def _llama_config(config: Gpt2Config) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.Mlp.size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.KVHeads.size,
        "head_dim": config.HeadSize.size,
        "hidden_act": _ACTIVATIONS[config.choice("activation_function")],
        "rms_norm_eps": config.norm_epsilon,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "attention_dropout": config.attn_pdrop,
        "rope_theta": config.rotary_base,  # before version 5
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
    }


def _maps(model: LanguageModel) -> dict[str, _Maps]:
    """The maps and norms of all layers by name; queries, keys, values and branches apart."""
    found: dict[str, _Maps] = {}
    for path, curve in nodes_of(model.transformer.blocks, PerLayer):
        weight, bias = np.asarray(curve.table.weight.array), curve.table.bias
        found[map_name(path)] = _Maps(weight, None if bias is None else np.asarray(bias.array))
    qkv, up = found.pop("attention.qkv"), found.pop("mlp.up")
    found |= {"query": _each(qkv, lambda a: a[..., :-2, :], 2)}
    found |= {"key": _each(qkv, lambda a: a[..., -2:-1, :], 2)}
    found |= {"value": _each(qkv, lambda a: a[..., -1:, :], 2)}
    found |= {"gate": _each(up, lambda a: a[..., 0, :], 0)}
    found |= {"up": _each(up, lambda a: a[..., -1, :], 0)}
    out = found["attention.out"]
    layers, *_, Embed = out.weight.shape
    return found | {"attention.out": _Maps(out.weight.reshape(layers, -1, Embed), out.bias)}


def _each(maps: _Maps, part: Any, flat: int) -> _Maps:
    """A part of the weights and of the biases, its last axes made one with the one before them."""

    def taken(array: np.ndarray) -> np.ndarray:
        chosen = part(array)
        return chosen.reshape(*chosen.shape[: chosen.ndim - 1 - flat], -1)

    return _Maps(taken(maps.weight), None if maps.bias is None else taken(maps.bias))


def _repeated(maps: _Maps, config: Gpt2Config) -> _Maps:
    """Keys or values [..., kv heads * D], once for each query of their group."""
    D, group = config.HeadSize.size, config.Group.size

    def repeat(array: np.ndarray) -> np.ndarray:
        heads = array.reshape(*array.shape[:-1], -1, D)
        return np.repeat(heads, group, axis=-2).reshape(*array.shape[:-1], -1)

    return _Maps(repeat(maps.weight), None if maps.bias is None else repeat(maps.bias))


def _gpt2_tensors(model: LanguageModel) -> Arrays:
    maps, transformer = _maps(model), model.transformer
    assert transformer.wpe is not None
    three = [maps["query"], *(_repeated(maps[name], model.config) for name in ("key", "value"))]
    maps["qkv"] = _Maps(
        np.concatenate([each.weight for each in three], axis=-1),
        np.concatenate([each.bias_or_zeros() for each in three], axis=-1),
    )
    names = {"ln_1": "attention.norm", "attn.c_attn": "qkv", "attn.c_proj": "attention.out"}
    names |= {"ln_2": "mlp.norm", "mlp.c_fc": "up", "mlp.c_proj": "mlp.down"}
    norm, bias = transformer.ln_f.weight.array, transformer.ln_f.bias
    tensors: Arrays = {
        "transformer.wte.weight": transformer.wte.weight.array,
        "transformer.wpe.weight": transformer.wpe.weight.array,
        "transformer.ln_f.weight": norm,
        "transformer.ln_f.bias": np.zeros_like(norm) if bias is None else bias.array,
    }
    for there, here in names.items():
        own = maps[here]
        is_norm = own.weight.ndim == 2
        biases = np.zeros_like(own.weight) if is_norm and own.bias is None else own.bias_or_zeros()
        for i in range(model.config.num_layers):
            tensors[f"transformer.h.{i}.{there}.weight"] = own.weight[i]
            tensors[f"transformer.h.{i}.{there}.bias"] = biases[i]
    return tensors | _head(model)


def _llama_tensors(model: LanguageModel) -> Arrays:
    maps, transformer = _maps(model), model.transformer
    names = {"input_layernorm": "attention.norm", "post_attention_layernorm": "mlp.norm"}
    names |= {f"self_attn.{name[0]}_proj": name for name in ("query", "key", "value")}
    names |= {"self_attn.o_proj": "attention.out", "mlp.gate_proj": "gate"}
    names |= {"mlp.up_proj": "up", "mlp.down_proj": "mlp.down"}
    tensors: Arrays = {
        "model.embed_tokens.weight": transformer.wte.weight.array,
        "model.norm.weight": transformer.ln_f.weight.array,
    }
    for there, here in names.items():
        own = maps[here]
        for i in range(model.config.num_layers):
            tensors[f"model.layers.{i}.{there}.weight"] = own.weight[i].T
            if own.bias is not None:
                tensors[f"model.layers.{i}.{there}.bias"] = own.bias[i]
    return tensors | _head(model)


def _head(model: LanguageModel) -> Arrays:
    """The output projection, if it is not the token embedding."""
    if model.lm_head is None:
        return {}
    return {"lm_head.weight": np.asarray(model.output_map().weight.array).T}
