"""Importing Llama: the logits of transformers, an export that comes back, sentences about the rest."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from qkvflow.files import FileError
from qkvflow.models import StandardLM, import_gpt2, import_llama
from qkvflow.models.paths import arrays_of
from tests.models.gpt2_files import cut_in_two, write_llama
from tests.support import difference, random_model, small_config, token_ids


def check_same(found, model):
    arrays, expected = arrays_of(found), arrays_of(model)
    assert arrays.keys() == expected.keys()
    assert not [path for path in arrays if not np.array_equal(arrays[path], expected[path])]


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_embeddings": True}, {"num_kv_heads": 1}, {"use_bias": True}, {"rotary_base": 5e5}],
    ids=str,
)
@pytest.mark.parametrize("files", [1, 2])
def test_an_export_comes_back_to_the_last_bit(tmp_path, changes, files):
    model, _ = write_llama(
        tmp_path, random_model("standard", small_config(flavour="llama", num_layers=3, **changes))
    )
    if files == 2:
        cut_in_two(tmp_path)
    found = import_llama(tmp_path)
    assert isinstance(found, StandardLM)
    check_same(found, model)
    ids = token_ids(model.config)
    assert np.array_equal(found(ids).array, model(ids).array)


def test_an_export_of_gpt2_comes_back_to_the_last_bit(tmp_path):
    model = random_model("standard", small_config(num_kv_heads=None, activation_function="relu2"))
    write_llama(tmp_path, model)
    check_same(import_gpt2(tmp_path), model)


def test_rope_parameters_stand_in_one_of_three_places(tmp_path):
    places = {
        "new": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "rope_theta": 1.0},
        "old": {"rope_parameters": None, "rope_theta": 77.0, "rope_scaling": None},
        "older": {"rope_parameters": None, "rope_theta": 77.0, "rope_scaling": {"type": "default"}},
    }
    for name, changes in places.items():
        write_llama(tmp_path / name, **changes)
        assert import_llama(tmp_path / name).config.rotary_base == 77.0, name


def test_half_precision_and_frequencies_of_old_files(tmp_path):
    import ml_dtypes

    model, tensors = write_llama(tmp_path)
    for kind in (ml_dtypes.bfloat16, np.float16):
        short = {name: tensor.astype(kind) for name, tensor in tensors.items()}
        short["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
        save_file(short, tmp_path / "model.safetensors")
        found = import_llama(tmp_path)
        name = "transformer.wte.weight"
        assert np.array_equal(
            arrays_of(found)[name], np.asarray(arrays_of(model)[name]).astype(kind).astype(np.float32)
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, "a model of type 'gpt2'; expected 'llama'"),
        ({"model_type": "mistral"}, "a model of type 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected one of silu"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size is 0; expected 1 to"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'; expected int"),
        ({"num_hidden_layers": 4}, r"layers.3.input_layernorm.weight is absent there and \(16,\) here"),
        ({"num_hidden_layers": 60_000}, "num_hidden_layers is 60000 here, and there are 30 tensors"),
        ({"intermediate_size": 33}, r"down_proj.weight is \(16, 32\) there and \(16, 33\) here"),
        ({"num_key_value_heads": 4}, r"k_proj.weight is \(8, 16\) there and \(16, 16\) here"),
        ({"num_key_value_heads": 3}, "num_kv_heads is 3; expected a divisor"),
        ({"head_dim": 8}, "head_dim is 8; expected hidden_size / num_attention_heads, 16 / 4"),
        ({"attention_bias": True}, r"k_proj.bias is absent there"),
        ({"mlp_bias": 1}, "mlp_bias is 1; expected bool"),
        ({"rms_norm_eps": 0}, "norm_epsilon is 0.0; expected a number above 0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is .*; only None is supported"),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
            "rope_type of rotary .*llama3",
        ),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_theta is 'big'; expected float"),
        ({"rope_parameters": ["a"]}, "rope_type of rotary positions"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_imported_is_a_sentence(tmp_path, changes, words):
    write_llama(tmp_path, **changes)
    with pytest.raises(FileError, match=words):
        import_llama(tmp_path)


def test_tensors_that_are_missing_or_misshaped_are_named(tmp_path):
    _, tensors = write_llama(tmp_path)
    name = "model.layers.1.mlp.gate_proj.weight"
    for change, words in (
        (lambda a: a.T.copy(), r"gate_proj.weight is \(16, 32\) there and \(32, 16\) here"),
        (lambda a: a * np.nan, f"not finite, in {name.removeprefix('model.')}"),
        (lambda a: a.astype(np.int32), "gate_proj.weight is of int32; expected floats"),
    ):
        save_file(tensors | {name: change(tensors[name])}, tmp_path / "model.safetensors")
        with pytest.raises(FileError, match=words):
            import_llama(tmp_path)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FileError, match=r"gate_proj.weight is absent there and \(32, 16\) here"):
        import_llama(tmp_path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model.norm.weight": "model-00003.safetensors"}, "model-00003.safetensors is missing, which"),
        ({"model.norm.weight": "../other.safetensors"}, "names '../other.safetensors'; expected"),
        ({"model.norm.weight": "pytorch_model.bin"}, "names 'pytorch_model.bin'; expected safetensors"),
        ({"model.norm.weight": 3}, "has no weight_map from tensors to files"),
        ({"model.more.weight": "model-00001-of-00002.safetensors"}, None),
    ],
    ids=str,
)
def test_an_index_that_names_other_files(tmp_path, more, words):
    write_llama(tmp_path)
    cut_in_two(tmp_path, **more)
    if words is None:  # a tensor that no file has, and the model does not need
        import_llama(tmp_path)
        return
    with pytest.raises(FileError, match=words):
        import_llama(tmp_path)


def test_pickles_are_not_read(tmp_path):
    write_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model-00001-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(FileError, match="It has pytorch_model-00001-of-00002.bin.*: load that"):
        import_llama(tmp_path)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 2},
        {"attention_bias": True, "num_key_value_heads": 1},
        {"mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "rms_norm_eps": 1e-5},
    ],
    ids=str,
)
def test_logits_are_those_of_transformers(tmp_path, changes):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 501, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 4}
    config = LlamaConfig(**sizes, num_attention_heads=4, max_position_embeddings=128, **changes)
    theirs = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases and norms are not at their start
            parameter.add_(0.05 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path, max_shard_size="300KB")
    assert (tmp_path / "model.safetensors.index.json").is_file(), "expected several files"
    model = import_llama(tmp_path)
    ids = token_ids(model.config, length=100)
    with torch.inference_mode():
        expected = theirs(torch.tensor(np.asarray(ids.array), dtype=torch.long)).logits.numpy()
    error = difference(model(ids).array, expected)
    assert error < 1e-4, f"{error}, of logits up to {np.abs(expected).max()}"
