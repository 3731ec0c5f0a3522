"""Directories of GPT-2 and Llama in the layout of Hugging Face, with random weights."""

import json

import numpy as np
from safetensors.numpy import load_file, save_file

from qkvflow.models.transformers_form import transformers_form
from tests.support import random_model, small_config

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


def write_llama(directory, model=None, **changes):
    """Write a model, a Llama if none is given; returns it and its tensors."""
    model = model or random_model("standard", small_config(flavour="llama", num_layers=3))
    form = transformers_form(model)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(form.config | changes))
    save_file(form.tensors, directory / "model.safetensors", {"format": "pt"})
    return model, form.tensors


def cut_in_two(directory, **more):
    """Put the tensors of a directory into two files, with an index."""
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    index = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in {*index.values()}:
        save_file({name: tensors[name] for name in names if index[name] == file}, directory / file)
    (directory / "model.safetensors").unlink()
    content = {"metadata": {}, "weight_map": index | more}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))
