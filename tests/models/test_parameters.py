"""Parameters: counts against the figures that define the models, and the table of all arrays."""

import equinox as eqx
import jax
import pytest

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.config.strict import COUNTS, LAYERS, SIZES
from qkvflow.models import MODELS, adapt, build_model, count_parameters, into_basis, needs, unroll
from qkvflow.models.paths import arrays_of
from tests.support import FLAVOURS, random_model, small_config

SEED_SHAPE = {
    "hidden_dim": 256,
    "num_heads": 4,
    "num_layers": 6,
    "vocab_size": 256,
    "time_embed_dim": 64,
    "sinusoidal_dim": 32,
}


def shapes_of(name, **changes):
    """The model as shapes only: nothing is computed."""
    config = Gpt2Config(**{**SEED_SHAPE, **changes})
    return eqx.filter_eval_shape(build_model, name, config, key=jax.random.key(0))


def without_positions(model):
    return count_parameters(model).total - model.transformer.wpe.weight.size


def test_tong_neuralode_has_exactly_the_parameters_of_the_paper_s_code():
    assert without_positions(shapes_of("tong_neuralode")) == 51_512_960


def test_standard_has_a_real_transformer_s_parameters():
    width, layers, vocab = 256, 6, 256
    block = 12 * width**2 + (3 + 1 + 4 + 1) * width + 4 * width
    assert without_positions(shapes_of("standard")) == (layers * block + 2 * vocab * width + 2 * width)


def test_time_indexed_mlp_has_at_most_a_quarter_of_standard_s():
    standard = count_parameters(shapes_of("standard")).total
    gated = count_parameters(shapes_of("time_indexed_mlp")).total
    assert gated <= 0.25 * standard, f"{gated} of {standard}: {gated / standard}"


def test_time_indexed_mlp_at_ratio_one_is_what_the_seed_documents_call_0_7_million():
    model = shapes_of("time_indexed_mlp", mlp_ratio=1)
    for total in (count_parameters(model).total, without_positions(model)):
        assert 600_000 <= total <= 800_000, total


@pytest.mark.parametrize("name", ["time_indexed_mlp", "time_indexed_ssm", "shared", "hybrid"])
def test_shared_weights_do_not_grow_with_depth(name):
    assert count_parameters(shapes_of(name)) == count_parameters(shapes_of(name, num_layers=48))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_parts_add_up_to_the_idiom_of_the_documentation(name, flavour):
    model = shapes_of(name, flavour=flavour)
    leaves = jax.tree_util.tree_leaves(eqx.filter(model, lambda x: hasattr(x, "size")))
    parts = count_parameters(model)
    assert parts.total == sum(leaf.size for leaf in leaves)
    assert parts.head == 256 * 256
    assert parts.embedding == 256 * 256 + (512 * 256 if flavour == "gpt2" else 0)
    timeless = name in ("standard", "shared", "looped")
    assert (parts.time_network == 0) == timeless


LARGEST = {
    "hidden_dim": SIZES - 2,
    "num_heads": 2,
    "num_layers": LAYERS - 1,
    "vocab_size": COUNTS - 1,
    "max_position_embeddings": COUNTS - 1,
    "mlp_ratio": 127.0,
    "time_embed_dim": SIZES - 1,
    "sinusoidal_dim": SIZES - 1,
    "time_embedding": "layer_vector",
    "adapter": {"method": "lora", "rank": SIZES - 1},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_largest_model_that_can_be_said_is_counted_and_refused_where_it_is_to_be_made(name):
    assert count_parameters(shapes_of(name, **LARGEST)).total > 10**15
    with pytest.raises(ConfigError, match=r"The model needs [\d,.]+ GB of memory, and there are"):
        build_model(name, Gpt2Config(**LARGEST), key=jax.random.key(0))


def test_what_makes_a_model_larger_is_refused_where_it_does_not_fit(monkeypatch):
    model = build_model("shared", Gpt2Config(hidden_dim=64, num_layers=2), key=jax.random.key(0))
    monkeypatch.setattr(needs, "memory_limit", lambda: 10**8)
    with pytest.raises(ConfigError, match="A model of 60000 layers needs"):
        unroll(model, 60_000)
    with pytest.raises(ConfigError, match="expected a whole number of layers, at least 1, below"):
        unroll(model, 10**9)
    with pytest.raises(ConfigError, match="adapters of rank 250000 needs .* a smaller rank"):
        adapt(model, "lora", rank=250_000, key=jax.random.key(0))
    with pytest.raises(ConfigError, match="A model of 50000 basis matrices needs"):
        into_basis(model, 50_000)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_array_stands_in_the_table_once_and_in_order(name, flavour):
    model = random_model(name, small_config(flavour=flavour))
    table, arrays = model.parameters(), arrays_of(model)
    assert list(table) == list(arrays)
    for path, parameter in table.items():
        assert tuple(axis.size for axis in parameter.axes) == arrays[path].shape, path
        sides = (*parameter.batch, *parameter.inputs, *parameter.outputs)
        assert sorted(sides) == sorted(axis.name for axis in parameter.axes), path


def test_tables_and_bases_are_batches_of_matrices():
    table = random_model("standard", small_config()).parameters()
    qkv = table["transformer.blocks.parts.attention.part.qkv.table.weight"]
    assert (qkv.kind, qkv.batch) == ("matrix", ("layers", "qkv"))
    assert (qkv.inputs, qkv.outputs) == (("embed",), ("kv_heads", "head_size"))
    table = random_model("tong_neuralode", small_config(flavour="llama")).parameters()
    up = table["transformer.blocks.parts.mlp.part.up.basis.weight"]
    assert (up.batch, up.inputs, up.outputs) == (("basis", "branch"), ("embed",), ("mlp",))
    norm = table["transformer.blocks.parts.mlp.norm.basis.weight"]
    assert (norm.kind, norm.decays, norm.batch) == ("norm", False, ("basis",))


def test_time_networks_are_a_group_of_their_own_wherever_they_are():
    model = random_model("time_indexed_ssm", small_config())
    adapted = adapt(model, "depth_lora", key=jax.random.key(0))
    for path, parameter in adapted.parameters().items():
        network = ".gates." in path or ".network." in path
        assert (parameter.group == "time_network") == network, path
        assert not (network and parameter.decays), path


def test_what_adapters_add_is_told_from_the_base():
    model = random_model("standard", small_config())
    for method in ("lora", "depth_lora"):
        adapted = adapt(model, method, maps=("*.*", "lm_head"), key=jax.random.key(0)).parameters()
        own = {path.replace(".base.", ".") for path, found in adapted.items() if not found.adapter}
        plain = {path.replace("lm_head.", "lm_head.value.") for path in model.parameters()}
        assert own == plain
