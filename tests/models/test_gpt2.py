"""Importing GPT-2: the same logits as the formulas, as transformers, and sentences about the rest."""

import json
import math

import haliax as hax
import numpy as np
import pytest

from qkvflow.files import FileError
from qkvflow.models import StandardLM, import_gpt2, into_basis
from tests.models.gpt2_files import CONFIG, random_tensors, write_gpt2
from tests.support import difference

IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]], np.int32)


def logits_of(model, ids=IDS):
    return np.asarray(model(hax.named(ids, ("batch", "position"))).array)


def reference(tensors, ids, config):
    """GPT-2 written out in numpy, in double precision."""
    t = {name: array.astype(np.float64) for name, array in tensors.items()}
    heads = config["n_head"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        return x * t[f"{name}.weight"] + t[f"{name}.bias"]

    def affine(x, name):
        return x @ t[f"{name}.weight"] + t[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def attention(x, name):
        batch, length, width = x.shape
        q, k, v = (
            a.reshape(batch, length, heads, -1).swapaxes(1, 2)
            for a in np.split(affine(x, f"{name}.c_attn"), 3, axis=-1)
        )
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(width // heads)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return affine(mixed.swapaxes(1, 2).reshape(batch, length, width), f"{name}.c_proj")

    x = t["wte.weight"][ids] + t["wpe.weight"][: ids.shape[1]]
    for i in range(config["n_layer"]):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        hidden = gelu(affine(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + affine(hidden, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ t.get("lm_head.weight", t["wte.weight"]).T


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("changes", [{}, {"n_inner": 24}, {"n_inner": 35, "n_embd": 28}])
def test_logits_are_those_of_the_formulas(tmp_path, prefix, changes):
    tensors = write_gpt2(tmp_path, prefix=prefix, **changes)
    model = import_gpt2(tmp_path)
    assert isinstance(model, StandardLM)
    assert model.lm_head is None
    expected = reference(tensors, IDS, {**CONFIG, **changes})
    error = difference(logits_of(model), expected)
    assert error < 1e-4, error


def test_an_output_projection_of_its_own(tmp_path):
    tensors = random_tensors(CONFIG)
    tensors["lm_head.weight"] = np.random.default_rng(9).normal(size=(19, 16)).astype(np.float32)
    write_gpt2(tmp_path, tensors=tensors, tie_word_embeddings=False)
    model = import_gpt2(tmp_path)
    assert difference(logits_of(model), reference(tensors, IDS, CONFIG)) < 1e-4


def test_masks_and_a_copy_of_the_tied_head_are_left_out(tmp_path):
    tensors = random_tensors(CONFIG)
    extra = {"lm_head.weight": tensors["wte.weight"].copy()}
    extra |= {f"h.{i}.attn.bias": np.ones((1, 1, 12, 12), np.float32) for i in range(3)}
    extra |= {f"h.{i}.attn.masked_bias": np.array(-1e4, np.float32) for i in range(3)}
    write_gpt2(tmp_path, tensors=tensors | extra)
    error = difference(logits_of(import_gpt2(tmp_path)), reference(tensors, IDS, CONFIG))
    assert error < 1e-4, error


def test_in_a_basis_with_as_many_matrices_as_layers_it_is_the_same(tmp_path):
    write_gpt2(tmp_path)
    model = import_gpt2(tmp_path)
    expected = logits_of(model)
    assert difference(logits_of(into_basis(model, 3)), expected) < 1e-4
    assert difference(logits_of(into_basis(model, 1)), expected) > 1e-2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "a model of type 'llama'; expected 'gpt2'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is True"),
        ({"activation_function": "gelu"}, "activation_function is 'gelu'; expected one of gelu_new"),
        ({"n_layer": 4}, r"h.3.attn.c_attn.bias is absent there and \(48,\) here"),
        ({"n_layer": 2}, r"h.2.attn.c_attn.bias is \(48,\) there and absent here"),
        ({"n_positions": 13}, r"wpe.weight is \(12, 16\) there and \(13, 16\) here"),
        ({"n_head": 5}, "not divisible by num_heads 5"),
        ({"n_embd": None}, "n_embd is missing"),
        ({"tie_word_embeddings": False}, "lm_head.weight is absent there"),
        ({"n_embd": 0}, "n_embd is 0; expected 1 to"),
        ({"n_embd": -16}, "n_embd is -16; expected 1 to"),
        ({"n_embd": "16"}, "n_embd is '16'; expected int"),
        ({"n_embd": [16]}, r"n_embd is \[16\]; expected int"),
        ({"n_embd": 10**300, "n_inner": 10**308}, "n_inner is 1000.*expected 1 to"),
        ({"n_head": True}, "n_head is True; expected int"),
        ({"n_layer": 3.0}, "n_layer is 3.0; expected int"),
        ({"n_layer": 10**6}, "num_layers is 1000000; expected a whole number of layers"),
        ({"n_layer": 60_000}, "n_layer is 60000 here, and there are 40 tensors there"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; expected 1 to"),
        ({"n_inner": "64"}, "n_inner is '64'; expected int or None"),
        ({"n_inner": 0}, "n_inner is 0; expected 1 to"),
        ({"attn_pdrop": None}, "attn_pdrop is missing"),
        ({"resid_pdrop": "0.1"}, "resid_pdrop is '0.1'; expected float"),
        ({"embd_pdrop": 1}, "embd_pdrop is 1.0; expected a probability"),
        ({"layer_norm_epsilon": 0}, "norm_epsilon is 0.0; expected a number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; expected bool"),
        ({"activation_function": ["relu"]}, "activation_function is .*; expected one of"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(tmp_path, changes, words):
    write_gpt2(tmp_path, tensors=random_tensors(CONFIG), **changes)
    with pytest.raises(FileError, match=words):
        import_gpt2(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a * np.nan, "not finite, in h.1.ln_1.weight: no model can be made of them"),
        (lambda a: a.astype(np.float64) * 1e300, "not finite, in h.1.ln_1.weight"),
        (lambda a: a.astype(np.int32), "h.1.ln_1.weight is of int32; expected floats"),
        (lambda a: a.astype(bool), "h.1.ln_1.weight is of bool; expected floats"),
    ],
    ids=["nan", "too large", "int", "bool"],
)
def test_tensors_that_are_no_weights_are_named(tmp_path, change, words):
    tensors = random_tensors(CONFIG)
    tensors["h.1.ln_1.weight"] = change(tensors["h.1.ln_1.weight"])
    write_gpt2(tmp_path, tensors=tensors)
    with pytest.raises(FileError, match=words):
        import_gpt2(tmp_path)


def test_files_that_are_missing_or_broken_are_a_sentence(tmp_path):
    with pytest.raises(FileError, match="is not there: expected a directory with config.json"):
        import_gpt2(tmp_path / "none")
    with pytest.raises(FileError, match="holds no config.json"):
        import_gpt2(tmp_path)
    write_gpt2(tmp_path)
    with pytest.raises(FileError, match=f"is a file, not a directory: .* Name {tmp_path}."):
        import_gpt2(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 9)
    with pytest.raises(FileError, match="model.safetensors cannot be read"):
        import_gpt2(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileError, match="pytorch_model.bin: load that elsewhere"):
        import_gpt2(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileError, match="config.json cannot be read"):
        import_gpt2(tmp_path)


def test_a_directory_says_which_shapes_it_expected(tmp_path):
    tensors = random_tensors(CONFIG)
    tensors["h.1.mlp.c_fc.weight"] = tensors["h.1.mlp.c_fc.weight"].T.copy()
    write_gpt2(tmp_path, tensors=tensors)
    with pytest.raises(FileError, match=r"h.1.mlp.c_fc.weight is \(64, 16\) there and \(16, 64\) here"):
        import_gpt2(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["n_embd"] == 16


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "n_inner": 1000}])
def test_logits_are_those_of_transformers_on_the_real_architecture(tmp_path, changes):
    """GPT-2 small: 12 layers of width 768, 1024 positions, 50257 tokens, all weights random."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config(**changes)).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():  # biases and norms are not at their start
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter), alpha=1.0)
            assert torch.isfinite(parameter).all(), name
    theirs.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 50257, (1, 64)).astype(np.int32)
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids, dtype=torch.long)).logits.numpy()
    error = difference(logits_of(import_gpt2(tmp_path), ids), expected)
    assert error < 1e-4, f"{error}, of logits up to {np.abs(expected).max()}"
