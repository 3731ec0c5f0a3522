"""Llama in the layout of Hugging Face, from a directory: config.json and its tensors.

    embed_tokens.weight                                 [token, E]
    layers.0.input_layernorm, post_attention_layernorm, norm    weight [E]
    layers.0.self_attn.q_proj, k_proj, v_proj           weight [heads * D, E], head by head
    layers.0.self_attn.o_proj                           weight [E, heads * D]
    layers.0.mlp.gate_proj, up_proj, down_proj          weight [out, in]
    lm_head.weight                                      [token, E]; absent where it is embed_tokens

Names begin with "model.", but for lm_head. Heads of queries that share one of keys and values follow
each other. Where linear maps have biases (attention_bias, mlp_bias), those that lack them get zeros.
Frequencies of rotary positions that old files hold are left out; scaled ones are refused.
"""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.strict import matches, shown
from qkvflow.files import FileError, expanded
from qkvflow.models.foreign import check_tensors, field_problems, ratio_of, read_fields, read_tensors
from qkvflow.models.named import StandardLM
from qkvflow.models.paths import Arrays, arrays_of, with_arrays

_ACTIVATIONS: dict[str, Any] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
_EXPECTED: dict[str, Any] = {"quantization_config": None}
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_FIELDS: dict[str, Any] = {
    **dict.fromkeys((*_SIZES, "max_position_embeddings"), int),
    **dict.fromkeys(("num_key_value_heads", "head_dim"), int | None),
    **dict.fromkeys(("rms_norm_eps", "attention_dropout", "rope_theta"), float),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), bool),
}
"""Types of the fields that are read."""
_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "rope_theta": 10000.0,
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), False),
}
_ROPE = {"rope_type": "default", "partial_rotary_factor": 1.0, "factor": 1.0}
"""What is known of rotary positions beside their base: the only values that are supported."""
_PREFIX, _FREQUENCIES = "model.", (".rotary_emb.inv_freq",)
_BLOCKS = "transformer.blocks.parts"


def import_llama(directory: str | os.PathLike[str]) -> StandardLM:
    """The model in a directory, as `standard` of the flavour llama: the same logits up to rounding.

    Raises:
        FileError: a file is missing or broken, of another kind of model, of a Llama with options that
            are not supported, or tensors are missing, unknown or of other shapes.

    Examples:
        model = import_llama("models/llama")
        model.save("models/llama-qkvflow")
    """
    path = expanded(directory)
    fields = _DEFAULTS | read_fields(path, "llama", "Llama")
    config = _config(fields, path)
    tensors = read_tensors(path, _PREFIX, _FREQUENCIES)
    if config.tie_embeddings:
        tensors.pop("lm_head.weight", None)  # a copy of the token embedding
    too_many = config.num_layers > len(tensors)
    layers = (
        f"num_hidden_layers is {config.num_layers} here, and there are {len(tensors)} tensors there"
    )
    expected = None if too_many else _expected_shapes(config, fields)
    check_tensors(tensors, expected, path, "Llama", layers)
    model = eqx.filter_eval_shape(StandardLM.init, config, key=jax.random.key(0))
    arrays = _our_arrays(tensors, config)
    shaped = {name: arrays[name].reshape(leaf.shape) for name, leaf in arrays_of(model).items()}
    return with_arrays(model, jax.tree.map(jnp.asarray, shaped))


def _config(fields: dict[str, Any], path: Path) -> Gpt2Config:
    rope = _rope(fields)
    problems = field_problems(fields, _FIELDS, _EXPECTED, {"hidden_act": _ACTIVATIONS})
    problems = problems or _rope_problems(rope) + _head_problems(fields)
    if problems:
        raise FileError(f"{path / 'config.json'} cannot be used: {' '.join(problems)}")
    width = fields["hidden_size"]
    try:
        return Gpt2Config(
            flavour="llama",
            num_layers=fields["num_hidden_layers"],
            hidden_dim=width,
            num_heads=fields["num_attention_heads"],
            num_kv_heads=fields.get("num_key_value_heads"),
            vocab_size=fields["vocab_size"],
            max_position_embeddings=fields["max_position_embeddings"],
            use_bias=fields["attention_bias"] or fields["mlp_bias"],
            activation_function=_ACTIVATIONS[fields["hidden_act"]],
            attn_pdrop=float(fields["attention_dropout"]),
            mlp_ratio=ratio_of(fields["intermediate_size"], width),
            tie_embeddings=fields["tie_word_embeddings"],
            norm_epsilon=float(fields["rms_norm_eps"]),
            rotary_base=float(rope["rope_theta"]),
        )
    except ConfigError as error:
        raise FileError(f"{path / 'config.json'} cannot be used: {error}") from error


def _rope(fields: dict[str, Any]) -> dict[str, Any]:
    """What is said of rotary positions, by version 5 of transformers or by the ones before."""
    found = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(found, dict):
        return {"rope_type": found}
    kind = found.get("rope_type", found.get("type", "default"))
    own = {name: value for name, value in found.items() if name != "type"}
    return {"rope_theta": fields["rope_theta"], **own, "rope_type": kind}


def _rope_problems(rope: dict[str, Any]) -> list[str]:
    problems = [
        f"{name} of rotary positions is {shown(rope[name])}; only {value!r} is supported."
        for name, value in _ROPE.items()
        if name in rope and rope[name] != value
    ]
    if not problems and not matches(rope["rope_theta"], float):
        problems = [f"rope_theta is {shown(rope['rope_theta'])}; expected float."]
    return problems


def _head_problems(fields: dict[str, Any]) -> list[str]:
    own, width, heads = (fields.get(n) for n in ("head_dim", "hidden_size", "num_attention_heads"))
    if own is None or width is None or heads is None or own * heads == width:
        return []
    return [f"head_dim is {own}; expected hidden_size / num_attention_heads, {width} / {heads}."]


def _expected_shapes(config: Gpt2Config, fields: dict[str, Any]) -> Arrays:
    E, M, D = config.hidden_dim, config.Mlp.size, config.HeadSize.size
    keys = config.KVHeads.size * D
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, E)}
    shapes |= {"norm.weight": (E,)}
    if not config.tie_embeddings:
        shapes |= {"lm_head.weight": (config.vocab_size, E)}
    attention = {"q_proj": (E, E), "k_proj": (keys, E), "v_proj": (keys, E), "o_proj": (E, E)}
    mlp = {"gate_proj": (M, E), "up_proj": (M, E), "down_proj": (E, M)}
    for i in range(config.num_layers):
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes |= {f"layers.{i}.{norm}.weight": (E,) for norm in norms}
        for part, maps, bias in (("self_attn", attention, "attention_bias"), ("mlp", mlp, "mlp_bias")):
            for name, shape in maps.items():
                shapes[f"layers.{i}.{part}.{name}.weight"] = shape
                if fields[bias]:
                    shapes[f"layers.{i}.{part}.{name}.bias"] = shape[:1]
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


def _our_arrays(tensors: Arrays, config: Gpt2Config) -> Arrays:
    """Every array by the path it has here; shapes may still be flat."""
    arrays = {"transformer.wte.weight": tensors["embed_tokens.weight"]}
    arrays |= {"transformer.ln_f.weight": tensors["norm.weight"]}
    if not config.tie_embeddings:
        arrays["lm_head.weight"] = tensors["lm_head.weight"].T
    layers = [_layer(tensors, f"layers.{i}.", config) for i in range(config.num_layers)]
    return arrays | {
        f"{_BLOCKS}.{name}": np.stack([layer[name] for layer in layers]) for name in layers[0]
    }


def _layer(tensors: Arrays, at: str, config: Gpt2Config) -> Arrays:
    """The arrays of one layer, by the paths of their tables here."""
    KVHeads, D = config.KVHeads.size, config.HeadSize.size
    maps = {
        "attention.part.qkv": [f"{at}self_attn.{name}_proj" for name in "qkv"],
        "attention.part.out": [f"{at}self_attn.o_proj"],
        "mlp.part.up": [f"{at}mlp.gate_proj", f"{at}mlp.up_proj"],
        "mlp.part.down": [f"{at}mlp.down_proj"],
    }
    found = {
        "attention.norm.table.weight": tensors[f"{at}input_layernorm.weight"],
        "mlp.norm.table.weight": tensors[f"{at}post_attention_layernorm.weight"],
    }
    for here, there in maps.items():
        own = [tensors[f"{name}.weight"].T for name in there]
        biases = [tensors.get(f"{name}.bias", np.zeros_like(w[0])) for name, w in zip(there, own)]
        for kind, arrays in (("weight", own), ("bias", biases)):
            cut = (KVHeads, -1, D) if here == "attention.part.qkv" else (1, -1)
            pieces = [array.reshape(*array.shape[:-1], *cut) for array in arrays]
            found[f"{here}.table.{kind}"] = np.concatenate(pieces, axis=-2)
    return found
