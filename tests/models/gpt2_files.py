"""A GPT-2 directory in the layout of Hugging Face, with random weights."""

import json

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 19,
    "n_positions": 12,
    "n_embd": 16,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-4,
}


def random_tensors(config, seed=0):
    """All tensors of a model, without a prefix."""
    E, inner = config["n_embd"], config["n_inner"] or 4 * config["n_embd"]
    shapes = {"wte": (config["vocab_size"], E), "wpe": (config["n_positions"], E), "ln_f": (E,)}
    for i in range(config["n_layer"]):
        shapes |= {f"h.{i}.ln_1": (E,), f"h.{i}.ln_2": (E,)}
        shapes |= {f"h.{i}.attn.c_attn": (E, 3 * E), f"h.{i}.attn.c_proj": (E, E)}
        shapes |= {f"h.{i}.mlp.c_fc": (E, inner), f"h.{i}.mlp.c_proj": (inner, E)}
    noise = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = noise.normal(size=shape).astype(np.float32) * 0.3
        if name not in ("wte", "wpe"):
            tensors[f"{name}.bias"] = noise.normal(size=shape[-1]).astype(np.float32) * 0.3
    return tensors


def write_gpt2(directory, *, prefix="", tensors=None, **changes):
    """Write a model; returns its tensors without the prefix."""
    config = {**CONFIG, **changes}
    tensors = random_tensors(config) if tensors is None else tensors
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    prefixed = {prefix + name: array for name, array in tensors.items()}
    save_file(prefixed, directory / "model.safetensors")
    return tensors
