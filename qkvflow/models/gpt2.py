"""GPT-2 in the layout of Hugging Face, from a directory: config.json and its tensors.

    wte.weight, wpe.weight          [token or position, E]
    h.0.ln_1, h.0.ln_2, ln_f        weight, bias [E]
    h.0.attn.c_attn                 weight [E, 3 E]: queries, keys, values, each head by head
    h.0.attn.c_proj, h.0.mlp.c_fc, h.0.mlp.c_proj    weight [in, out], bias [out]
    lm_head.weight                  [token, E]; often absent, since it is wte

All names may begin with "transformer.". Masks that old files hold (attn.bias, attn.masked_bias) are
left out. `foreign` says which files are read.
"""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.files import FileError, expanded
from qkvflow.models.foreign import check_tensors, field_problems, ratio_of, read_fields, read_tensors
from qkvflow.models.named import StandardLM
from qkvflow.models.paths import Arrays, arrays_of, with_arrays

_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}
_EXPECTED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"), int),
    "n_inner": int | None,
    **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop", "layer_norm_epsilon"), float),
    "tie_word_embeddings": bool,
}
"""Types of the fields that are read."""
_DEFAULTS: dict[str, Any] = {
    "attn_pdrop": 0.1,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
}
_DEFAULTS |= {"n_inner": None, "tie_word_embeddings": True, "activation_function": "gelu_new"}
_MASKS = (".attn.bias", ".attn.masked_bias")
_CURVES = {
    "ln_1": "attention.norm",
    "attn.c_attn": "attention.part.qkv",
    "attn.c_proj": "attention.part.out",
    "ln_2": "mlp.norm",
    "mlp.c_fc": "mlp.part.up",
    "mlp.c_proj": "mlp.part.down",
}
"""Parts of a layer there, and the paths of the curves here."""


def import_gpt2(directory: str | os.PathLike[str]) -> StandardLM:
    """The model in a directory, as `standard`: the same logits up to rounding.

    Raises:
        FileError: a file is missing or broken, of another kind of model, of a GPT-2 with options that
            are not supported, or tensors are missing, unknown or of other shapes.

    Examples:
        model = import_gpt2("models/gpt2")
        model.save("models/gpt2-qkvflow")
    """
    path = expanded(directory)
    config = _config(read_fields(path, "gpt2", "GPT-2"), path)
    tensors = read_tensors(path, "transformer.", _MASKS)
    if config.tie_embeddings:
        tensors.pop("lm_head.weight", None)  # a copy of the token embedding
    too_many = config.num_layers > len(tensors)
    layers = f"n_layer is {config.num_layers} here, and there are {len(tensors)} tensors there"
    check_tensors(tensors, None if too_many else _expected_shapes(config), path, "GPT-2", layers)
    model = eqx.filter_eval_shape(StandardLM.init, config, key=jax.random.key(0))
    arrays = _our_arrays(tensors, config)
    shaped = {name: arrays[name].reshape(leaf.shape) for name, leaf in arrays_of(model).items()}
    return with_arrays(model, jax.tree.map(jnp.asarray, shaped))


def _config(fields: dict[str, Any], path: Path) -> Gpt2Config:
    fields = _DEFAULTS | fields
    choices = {"activation_function": _ACTIVATIONS}
    problems = field_problems(fields, _FIELDS, _EXPECTED, choices)
    if problems:
        raise FileError(f"{path / 'config.json'} cannot be used: {' '.join(problems)}")
    width, inner = fields["n_embd"], fields["n_inner"]
    try:
        return Gpt2Config(
            num_layers=fields["n_layer"],
            hidden_dim=width,
            num_heads=fields["n_head"],
            vocab_size=fields["vocab_size"],
            max_position_embeddings=fields["n_positions"],
            activation_function=_ACTIVATIONS[fields["activation_function"]],  # type: ignore[arg-type]
            attn_pdrop=float(fields["attn_pdrop"]),
            resid_pdrop=float(fields["resid_pdrop"]),
            embd_pdrop=float(fields["embd_pdrop"]),
            mlp_ratio=ratio_of(4 * width if inner is None else inner, width),
            tie_embeddings=fields["tie_word_embeddings"],
            norm_epsilon=float(fields["layer_norm_epsilon"]),
        )
    except ConfigError as error:
        raise FileError(f"{path / 'config.json'} cannot be used: {error}") from error


def _expected_shapes(config: Gpt2Config) -> Arrays:
    E, M = config.hidden_dim, config.Mlp.size
    layer = {"ln_1": (E,), "attn.c_attn": (E, 3 * E), "attn.c_proj": (E, E)}
    layer |= {"ln_2": (E,), "mlp.c_fc": (E, M), "mlp.c_proj": (M, E)}
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, E),
        "wpe.weight": (config.max_position_embeddings, E),
        "ln_f.weight": (E,),
        "ln_f.bias": (E,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, E)
    for i in range(config.num_layers):
        for name, shape in layer.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    return {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}


def _our_arrays(tensors: Arrays, config: Gpt2Config) -> Arrays:
    """Every array by the path it has here; shapes may still be flat."""
    arrays = {f"transformer.{name}": tensors[name] for name in ("wte.weight", "wpe.weight")}
    arrays |= {f"transformer.ln_f.{kind}": tensors[f"ln_f.{kind}"] for kind in ("weight", "bias")}
    if not config.tie_embeddings:
        arrays["lm_head.weight"] = tensors["lm_head.weight"].T
    for there, here in _CURVES.items():
        for kind in ("weight", "bias"):
            layers = [tensors[f"h.{i}.{there}.{kind}"] for i in range(config.num_layers)]
            if there == "attn.c_attn":
                layers = [_by_head(layer, config.num_heads) for layer in layers]
            arrays[f"transformer.blocks.parts.{here}.table.{kind}"] = np.stack(layers)
    return arrays


def _by_head(layer: np.ndarray, heads: int) -> np.ndarray:
    """[..., 3 E] as queries, keys and values, each head by head, to each head's three together."""
    split = layer.reshape(*layer.shape[:-1], 3, heads, -1)
    return np.ascontiguousarray(np.moveaxis(split, -3, -2))
