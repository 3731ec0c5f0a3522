"""Parameter counts against the figures that define the models."""

import equinox as eqx
import jax
import pytest

from qkvflow.config import Gpt2Config
from qkvflow.models import MODELS, build_model, count_parameters

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
@pytest.mark.parametrize("flavour", ["gpt2", "llama"])
def test_the_parts_add_up_to_the_idiom_of_the_documentation(name, flavour):
    model = shapes_of(name, flavour=flavour)
    leaves = jax.tree_util.tree_leaves(eqx.filter(model, lambda x: hasattr(x, "size")))
    parts = count_parameters(model)
    assert parts.total == sum(leaf.size for leaf in leaves)
    assert parts.head == 256 * 256
    assert parts.embedding == 256 * 256 + (512 * 256 if flavour == "gpt2" else 0)
    timeless = name in ("standard", "shared")
    assert (parts.time_network == 0) == timeless
