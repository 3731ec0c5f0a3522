"""The table of parameters: every array once, with what optimizers, sharding and adapters ask."""

import jax
import pytest

from qkvflow.models import MODELS, adapt
from qkvflow.models.paths import arrays_of
from tests.support import FLAVOURS, random_model, small_config


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
