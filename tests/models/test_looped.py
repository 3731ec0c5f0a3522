"""Layers that are visited several times: against a loop written out by hand, at every depth."""

import dataclasses

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.generate import generate
from qkvflow.models import FlowLM, at_depth, build_model, count_parameters, forward_flops, unroll
from qkvflow.models.language_model import token_losses
from qkvflow.models.paths import arrays_of, with_arrays
from qkvflow.nn.context import Context
from qkvflow.nn.families.gated import Gated
from qkvflow.nn.families.looped import Loop, Looped, LoopedFamily
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import is_weight, resolve
from tests.support import difference, random_model, small_config, token_ids

PLANS = ("1 + 2x2 + 1", (0, 1, 2, 1, 2, 3), "2x3", "3 + 1x3", "1x5 + 1", (0, 1, 1, 0, 2, 0))


def looped(plan, **changes):
    """A model with six visits, at random parameters."""
    own = changes.pop("own", ("norms",))
    weights = {"family": "looped", "plan": plan, "own": own, "around": changes.pop("around", None)}
    config = small_config(num_layers=6, weights=weights, **changes)
    return random_model("looped", config), token_ids(config, length=5)


def around(curve, visit, layer):
    """The map of a visit: an entry of a table, scaled by gates or with a low-rank term added."""
    if isinstance(curve, Looped):
        chosen = visit if curve.visits is not None else layer
        return _without_layers(jax.tree.map(lambda array: array[chosen], curve.table))
    base, t = around(curve.base, visit, layer), (visit + 1) / 6
    weight = base.weight.array
    if isinstance(curve, Gated):
        for gate in curve.gates:
            value = hax.named(2 / (1 + jnp.exp(-gate.at(t))), gate.out.Out)
            weight *= hax.broadcast_to(value, base.weight.axes).array
    else:
        down, up = curve.down.weight.array, curve.up.weight.array
        scale = jnp.broadcast_to(curve.network.at(t), down.shape[-1:])
        weight += jnp.tensordot(down @ jnp.diag(scale), up, 1)
    return eqx.tree_at(lambda map_: map_.weight, base, hax.named(weight, base.weight.axes))


def by_hand(model, ids, order):
    """The loss, with every visit written out: weights by the layer, norms by the visit."""
    x = model.embed(ids.array)
    context = Context(embedding=x)
    for visit, layer in enumerate(order):
        curves = jax.tree.leaves(model.transformer.blocks, is_leaf=is_weight)
        maps = [around(curve, visit, layer) for curve in curves]
        block = jax.tree.unflatten(
            jax.tree.structure(model.transformer.blocks, is_leaf=is_weight), maps
        )
        if visit == 0:
            context = block.begun(x, context)
        x = x + block(x, context)[0]
    logits = model.head(x)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), ids.array[..., None], axis=-1)
    return -jnp.mean(chosen)


def _without_layers(map_):
    """A map whose arrays have lost their first axis, with the axes that are left."""

    def named(leaf):
        return hax.named(leaf.array, leaf.axis_names[1:]) if isinstance(leaf, hax.NamedArray) else leaf

    return jax.tree.map(named, map_, is_leaf=lambda leaf: isinstance(leaf, hax.NamedArray))


RELAXED = ({"family": "gated", "gate": "both"}, {"family": "low_rank", "rank": 2})


@pytest.mark.parametrize(
    ("flavour", "around"),
    [("gpt2", None), ("modern", None), ("gpt2", RELAXED[0]), ("gpt2", RELAXED[1])],
)
def test_a_looped_model_is_the_loop_written_out_values_and_gradients(flavour, around):
    model, ids = looped("1 + 2x2 + 1", flavour=flavour, around=around)
    arrays = arrays_of(model)
    ours = jax.jit(
        jax.value_and_grad(
            lambda a: jnp.mean(token_losses(with_arrays(model, a), ids.array, ids.array))
        )
    )
    hand = jax.jit(
        jax.value_and_grad(lambda a: by_hand(with_arrays(model, a), ids, (0, 1, 2, 1, 2, 3)))
    )
    (value, gradient), (expected, expected_gradient) = ours(arrays), hand(arrays)
    assert abs(float(value) - float(expected)) < 1e-5
    for path, found in gradient.items():
        scale = max(1.0, float(jnp.max(jnp.abs(expected_gradient[path]))))
        error = difference(found, expected_gradient[path]) / scale
        assert error < 2e-5, f"{path}: {error}"


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_unrolls_to_itself_and_generates_as_without_caches(plan):
    """One cache for two visits of a layer would show here."""
    model, ids = looped(plan)
    ordinary = unroll(model, 6)
    assert difference(model(ids).array, ordinary(ids).array) < 1e-5
    cached = generate(model, ids, 6, temperature=0.0).array
    seen = ids.array
    for _ in range(6):
        logits = ordinary(token_array(seen)).array[:, -1]
        seen = jnp.concatenate([seen, jnp.argmax(logits, axis=-1)[:, None]], axis=1)
    assert np.array_equal(cached[:, -6:], seen[:, -6:])


def token_array(ids):
    return hax.named(ids, ("batch", "position"))


def test_only_distinct_layers_have_weights_and_every_visit_its_norms():
    model, _ = looped("1 + 2x2 + 1")
    own, _ = looped("1 + 2x2 + 1", own=("norms", "attention"))
    plain, _ = looped((0, 1, 2, 3, 4, 5))
    table = {path: found.axes[0].size for path, found in model.parameters().items() if "table" in path}
    assert {size for path, size in table.items() if "norm" in path} == {6}
    assert {size for path, size in table.items() if "norm" not in path} == {4}
    of_own = own.parameters()
    assert all(of_own[path].axes[0].size == 6 for path in of_own if "attention.part" in path)
    counts = [count_parameters(each).total for each in (model, own, plain)]
    assert counts == sorted(counts) and len({*counts}) == 3


@pytest.mark.parametrize("depth", [1, 2, 4, 7, 8, 12])
def test_more_loops_and_fewer(depth):
    """At another depth first and last layers stay, and the core is visited more or less often."""
    model, ids = looped("1 + 2x2 + 1")
    view = at_depth(model, depth)
    order = Loop(1, 2, 1).order(depth)
    curves = jax.tree.leaves(view.transformer.blocks, is_leaf=is_weight)
    of_layers = [curve for curve in curves if curve.visits is None]
    assert of_layers and {curve.order for curve in of_layers} == {order}
    assert order[-1] == 3 and len(order) == depth
    assert abs(float(np.sum(view.plan().sizes)) - 6.0) < 1e-5, "the sum of steps"
    assert difference(view(ids).array, unroll(model, depth)(ids).array) < 1e-5


def test_a_visit_at_another_depth_is_like_one_of_the_same_layer():
    loop = Loop(1, 2, 1)
    assert loop.visits_of(6, 6) == (0, 1, 2, 3, 4, 5)
    for depth in (2, 4, 8, 10):
        order, known = loop.order(depth), loop.order(6)
        assert [known[visit] for visit in loop.visits_of(depth, 6)] == [*order]
    assert loop.visits_of(8, 6) == (0, 1, 2, 1, 2, 3, 4, 5)


def test_a_plan_that_is_a_list_has_one_depth():
    model, _ = looped((0, 1, 2, 1, 2, 3))
    with pytest.raises(ConfigError, match=r"its plan is a list of 6 visits; write it as 1 \+ 2x2 \+ 1"):
        unroll(model, 8)


def test_an_adapter_goes_around_a_looped_curve_at_every_depth():
    model, ids = looped("1 + 2x2 + 1", adapter={"method": "depth_lora", "rank": 2})
    assert isinstance(model.transformer.blocks.parts["mlp"].part.up.base, Looped)
    deeper = at_depth(model, 8)
    assert deeper.transformer.blocks.parts["mlp"].part.up.base.order == Loop(1, 2, 1).order(8)
    assert difference(deeper(ids).array, unroll(model, 8)(ids).array) < 1e-5


def test_what_goes_around_a_visit_changes_nothing_at_the_start_and_is_no_adapter():
    config = small_config(num_layers=6, weights={"family": "looped", "plan": "1 + 2x2 + 1"})
    plain = build_model("looped", config, key=jax.random.key(0))
    for family in RELAXED:
        weights = {"family": "looped", "plan": "1 + 2x2 + 1", "around": family}
        relaxed = dataclasses.replace(config, weights=weights)
        model = build_model("looped", relaxed, key=jax.random.key(0))
        ids = token_ids(config, length=5)
        assert difference(model(ids).array, plain(ids).array) < 1e-6
        table = model.parameters()
        assert not any(found.adapter for found in table.values())
        assert any(found.group == "time_network" for found in table.values())
        assert Gpt2Config.from_dict(model.config.to_dict()) == model.config
        assert difference(at_depth(model, 8)(ids).array, unroll(model, 8)(ids).array) < 1e-5


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"plan": "1 + 2"}, r"plan is '1 \+ 2'; expected FIRST \+ CORExLOOPS \+ LAST"),
        ({"plan": "1 + 2x0 + 1"}, "expected FIRST"),
        ({"plan": "0x4"}, "expected FIRST"),
        ({"plan": [0, 2, 1, 3, 5]}, "a list that visits every layer, numbered from 0"),
        ({"plan": []}, "a list that visits every layer, numbered from 0"),
        ({"plan": [0, -1]}, "a list that visits every layer, numbered from 0"),
        ({"plan": "1 + 2x2 + 1"}, "the plan has 6 visits but num_layers is 5; set num_layers to 6"),
        ({"around": "shared"}, "around is shared, .* expected one of gated, low_rank"),
        ({"around": {"family": "gated", "gate": "some"}}, "gated: gate is 'some'; expected one of"),
        ({"own": ["head"]}, "own lists 'head'; expected some of norms, attention, mlp"),
    ],
)
def test_a_plan_that_cannot_be_is_a_sentence(weights, sentence):
    with pytest.raises(ConfigError, match=sentence):
        small_config(weights={"family": "looped", **weights}, num_layers=5, parts=("attention", "mlp"))


STATE_SPACE = {"parts": ("ssm", "mlp")}
SOME_PARTS = [
    ({"family": "looped", "plan": "1 + 2x2 + 1", "layers": ["ssm mlp", "ssm", "ssm mlp", "mlp"]}, 6),
    (
        {
            "family": "looped",
            "plan": [0, 0, 0, 1, 1],
            "layers": ["ssm", "mlp ssm"],
            "own": ["norms", "mlp"],
        },
        5,
    ),
    ({"family": "looped", "plan": "1x3 + 1", "layers": ["ssm", "mlp"], "around": "gated"}, 4),
    ({"family": "per_layer", "layers": ["ssm", "mlp", "ssm mlp"]}, 3),
]
"""Families whose layers have some parts only, and their visits."""


def some_parts(weights, visits, **changes):
    config = small_config(num_layers=visits, weights=weights, **STATE_SPACE, **changes)
    return random_model("looped", config)


def passed_by_hand(model, ids):
    """The logits, with every visit written out: only the parts that its layer has."""
    x, family = model.embed(ids.array), model.config.weights
    visits = model.config.num_layers
    order = range(visits) if family.name == "per_layer" else family._order(visits)[1]
    for t, layer in zip(layer_times(visits), order):
        block = resolve(model.transformer.blocks, t)
        for name in ("ssm", "mlp"):
            if name in family.layers[layer].split():
                x = x + block.parts[name](x)[0]
    return model.head(x)


@pytest.mark.parametrize(("weights", "visits"), SOME_PARTS)
def test_layers_may_have_some_parts_only(weights, visits):
    model = some_parts(weights, visits)
    ids = token_ids(model.config, length=5)
    found, expected = model(ids).array, passed_by_hand(model, ids)
    assert difference(found, expected) < 1e-5 * max(1, float(jnp.abs(expected).max()))
    unrolled = unroll(model, visits)
    assert difference(unrolled(ids).array, found) < 1e-5 * max(1, float(jnp.abs(expected).max()))
    if not isinstance(model.config.weights, LoopedFamily) or isinstance(weights["plan"], str):
        deeper = unroll(model, 2 * visits)(ids).array
        assert difference(at_depth(model, 2 * visits)(ids).array, deeper) < 1e-4
    greedy = generate(model, ids, 5, temperature=0.0)
    again = np.asarray(model(greedy).array).argmax(-1)[:, 4:-1]
    assert np.array_equal(again, np.asarray(greedy.array)[:, 5:])
    built = eqx.filter_eval_shape(FlowLM.init, unrolled.config, key=jax.random.key(0))
    shapes = [leaf.shape for leaf in jax.tree.leaves(built) if hasattr(leaf, "shape")]
    assert shapes == [leaf.shape for leaf in jax.tree.leaves(unrolled)]


def test_gradients_go_to_the_parts_that_are_there():
    model = some_parts(*SOME_PARTS[0])
    ids, arrays = token_ids(model.config, length=5), arrays_of(model)

    def total(logits):
        return jnp.mean(jnp.sin(logits))

    ours = jax.jit(jax.grad(lambda a: total(with_arrays(model, a)(ids).array)))(arrays)
    hand = jax.jit(jax.grad(lambda a: total(passed_by_hand(with_arrays(model, a), ids))))(arrays)
    assert max(difference(ours[path], hand[path]) for path in arrays) < 1e-5
    assert all(float(jnp.abs(found).max()) > 0 for found in ours.values())


def test_a_part_costs_where_it_is_only():
    """Parameters, and operations, of a looped state-space part with one MLP in every loop."""
    layers = ["ssm mlp", "ssm", "ssm mlp", "ssm mlp"]
    whole, part = (
        some_parts({"family": "looped", "plan": "1 + 2x2 + 1", "layers": words}, 6)
        for words in (None, layers)
    )
    table = part.parameters()
    sizes = {path: found.axes[0].size for path, found in table.items() if "mlp" in path}
    assert {size for path, size in sizes.items() if "norm" in path} == {4}, "visits with an MLP"
    assert {size for path, size in sizes.items() if "norm" not in path} == {3}, "layers with an MLP"
    mlp = forward_flops(whole, 1, 8) - forward_flops(part, 1, 8)
    once = 8 * (2 * 2 * 16 * 32 + 10 * 32 + 8 * 16)
    assert mlp == 2 * once, "two of six visits have none"
    assert whole.transformer.blocks.there == {}


def test_every_visit_may_have_its_own_attention_and_share_an_mlp():
    """Values and gradients against the loop written out by hand."""
    model, ids = looped("1 + 2x2 + 1", own=("norms", "attention"))
    table = model.parameters()
    assert {f.axes[0].size for path, f in table.items() if "mlp.part" in path} == {4}
    arrays = arrays_of(model)
    ours = jax.jit(
        jax.grad(lambda a: jnp.mean(token_losses(with_arrays(model, a), ids.array, ids.array)))
    )(arrays)
    hand = jax.jit(jax.grad(lambda a: by_hand(with_arrays(model, a), ids, (0, 1, 2, 1, 2, 3))))(arrays)
    assert max(difference(ours[path], hand[path]) for path in arrays) < 1e-4


@pytest.mark.parametrize(
    ("layers", "changes", "sentence"),
    [
        (["ssm", "mlp"], {}, "layers has 2 entries; expected one for each of 4 layers"),
        (["ssm", "mlp", "ssm", ""], {}, "expected for each layer some of ssm, mlp, and each of them"),
        (
            ["ssm", "ssm", "ssm", "ssm"],
            {},
            "expected for each layer some of ssm, mlp, and each of them",
        ),
        (["ssm", "map", "ssm", "mlp"], {}, "expected for each layer some of ssm, mlp"),
        (["ssm", "mlp"] * 2, {"integrator": "heun"}, "heun evaluates weights between layers"),
    ],
)
def test_layers_that_cannot_be_are_sentences(layers, changes, sentence):
    weights = {"family": "looped", "plan": "1 + 2x2 + 1", "layers": layers}
    with pytest.raises(ConfigError, match=sentence):
        small_config(weights=weights, num_layers=6, **STATE_SPACE, **changes)
