"""Adapters: around every family, zero at the start, a product of factors after it."""

import jax
import numpy as np
import pytest

from qkvflow.config import ConfigError
from qkvflow.models import build_model
from qkvflow.models.adapters import adapt, adapter_paths
from qkvflow.models.paths import arrays_of
from qkvflow.nn import Adapted, LowRank, PerLayer, resolve
from qkvflow.nn.adapters.placing import adaptable_maps
from qkvflow.nn.dynamic import without_layer_axis
from qkvflow.nn.time_embed import layer_times
from tests.support import WEIGHTS, difference, random_model, randomised, small_config

TIMES = layer_times(5)
METHODS = ("lora", "depth_lora")


def adapted(weights, method, **changes):
    """A model at random parameters, and the same with adapters at random parameters."""
    config = small_config(weights=weights, num_layers=3, **changes)
    model = random_model("standard", config)
    return model, randomised(adapt(model, method, rank=2, key=jax.random.key(1)), seed=7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_fresh_adapters_change_no_weight_at_any_depth(weights, method):
    model = random_model("standard", small_config(weights=weights, num_layers=3))
    fresh = adapt(model, method, rank=2, key=jax.random.key(1))
    before, after = (resolve(m.transformer.blocks, TIMES) for m in (model, fresh))
    assert difference(before, after) == 0.0


@pytest.mark.parametrize("weights", WEIGHTS)
def test_lora_adds_the_product_of_the_factors_of_each_layer(weights):
    _, model = adapted(weights, "lora")
    curve = model.transformer.blocks.parts["mlp"].part.down
    assert isinstance(curve, Adapted)
    for i, t in enumerate(layer_times(3)):
        base = np.asarray(curve.base.at(t).weight.array, np.float64)
        down = np.asarray(curve.down.table.weight.array[i], np.float64)
        up = np.asarray(curve.up.table.weight.array[i], np.float64)
        error = difference(curve.at(t).weight.array, base + 8.0 * down @ up)
        assert error < 1e-5, f"layer {i}: {error}"
        assert difference(curve.at(t).bias, curve.base.at(t).bias) == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_loop_over_depth_sees_the_curve_s_values(weights, method):
    """`before_loop` and `inside_loop` against `at`, for a vector of times."""
    _, model = adapted(weights, method)
    for name in ("up", "down"):
        curve = getattr(model.transformer.blocks.parts["mlp"].part, name)
        early = curve.before_loop(TIMES)
        for i, t in enumerate(TIMES):
            sliced = without_layer_axis(jax.tree.map(lambda leaf, i=i: leaf[i], early))
            one = curve.inside_loop(sliced)
            error = difference(one.weight.array, curve.at(t).weight.array)
            assert error < 1e-6, f"{name} at {t}: {error}"


@pytest.mark.parametrize("method", METHODS)
def test_nothing_as_large_as_all_layers_is_made_before_the_loop(method):
    _, model = adapted("shared", method)
    curve = model.transformer.blocks.parts["mlp"].part.up
    made = jax.tree.leaves(curve.before_loop(layer_times(3)))
    largest = curve.at(1.0).weight.array.size
    assert sum(array.size for array in made) < 3 * largest


def test_lora_with_stages_between_layers_has_a_pair_for_each_time():
    _, model = adapted("gated", "lora", integrator="rk4")
    curve = model.transformer.blocks.parts["attention"].part.qkv
    assert curve.down.table.weight.axes[0].size == 7
    assert isinstance(curve.down, PerLayer)


def test_depth_lora_has_no_array_that_knows_the_number_of_layers():
    shapes = [
        {path: a.shape for path, a in arrays_of(model).items() if path in adapter_paths(model)}
        for depth in (2, 9)
        for model in [
            adapt(
                random_model("standard", small_config(num_layers=depth)),
                "depth_lora",
                key=jax.random.key(0),
            )
        ]
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("maps", "found"),
    [
        (("*.*",), {"attention.qkv", "attention.out", "ssm.z", "ssm.xbc", "ssm.delta"}),
        (("attention.qkv",), {"attention.qkv"}),
        (("ssm.x*", "lm_head"), {"ssm.xbc", "lm_head"}),
    ],
)
def test_maps_are_chosen_by_pattern_and_vectors_and_norms_are_none(maps, found):
    model = random_model("time_indexed_ssm", small_config())
    paths = adapter_paths(adapt(model, "lora", maps=maps, key=jax.random.key(0)))
    prefix = "transformer.blocks.parts."
    names = {p.removeprefix(prefix).replace(".part.", ".") for p in paths}
    names = {name.rsplit(".", 3)[0] for name in names}
    assert found <= names
    assert not names & {"ssm.A", "ssm.D", "ssm.delta_bias", "ssm.norm", "attention.norm"}
    if maps != ("*.*",):
        assert names == found


def test_a_pattern_that_matches_nothing_lists_the_names():
    model = random_model("standard", small_config(tie_embeddings=True))
    with pytest.raises(ConfigError) as error:
        adapt(model, "lora", maps=("mlp.*", "attn.*", "lm_head"), key=jax.random.key(0))
    for words in ("'attn.*' matches no", "'lm_head' matches no", "attention.qkv", "mlp.down"):
        assert words in str(error.value)
    assert "'mlp.*'" not in str(error.value)
    untied = random_model("standard", small_config())
    assert adaptable_maps(untied.transformer.blocks, untied.lm_head)[-1] == "lm_head"


def test_a_model_is_adapted_once():
    _, once = adapted("shared", "lora")
    with pytest.raises(ConfigError, match="merge"):
        adapt(once, "lora", key=jax.random.key(0))


@pytest.mark.parametrize("method", METHODS)
def test_a_config_builds_what_adapting_does(method):
    """Same arrays, same shapes: that is how files are read back."""
    config = small_config(adapter={"method": method, "rank": 3, "maps": ("mlp.*", "lm_head")})
    built = build_model("standard", config, key=jax.random.key(0))
    plain = random_model("standard", small_config())
    made = adapt(plain, method, rank=3, maps=("mlp.*", "lm_head"), key=jax.random.key(0))
    assert built.config.adapter == made.config.adapter
    shapes = [{path: a.shape for path, a in arrays_of(model).items()} for model in (built, made)]
    assert shapes[0] == shapes[1]
    kind = Adapted if method == "lora" else LowRank
    assert isinstance(built.transformer.blocks.parts["mlp"].part.up, kind)


def test_adapters_do_not_touch_the_start_of_the_other_weights():
    plain = arrays_of(build_model("standard", small_config(), key=jax.random.key(3)))
    config = small_config(adapter="lora")
    model = build_model("standard", config, key=jax.random.key(3))
    own = {path.replace(".base.", "."): a for path, a in arrays_of(model).items()}
    assert max(difference(own[path], array) for path, array in plain.items()) == 0.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("setting", [{"rank": 0}, {"alpha": 0.0}, {"maps": ()}, {"ranks": 2}])
def test_adapters_that_cannot_be(method, setting):
    (name,) = setting
    with pytest.raises(ConfigError, match=f"adapter: {method}.*{name}"):
        small_config(adapter={"method": method, **setting})
