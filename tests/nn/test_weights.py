"""Weights as curves: every family against its formula, one time against many; embeddings of time."""

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.nn import Gated, Generated, Linear, LowRank, Norm, PerLayer, Shared, resolve
from qkvflow.nn.time_embed import Sinusoidal, TimeNetwork, layer_times, time_embedding
from tests.support import WEIGHTS, difference, randomised, small_config

In, Mid, Out = hax.make_axes(embed=5, heads=2, mlp=3)
TIMES = layer_times(7)


def make_layer(key):
    k1, k2 = jax.random.split(key)
    return {
        "map": Linear.init((In,), (Mid, Out), key=k1, bias=True),
        "vector": Linear.init((), (Mid,), key=k2),
        "norm": Norm.init(In, "layer", bias=True, epsilon=1e-5),
    }


def curves(weights, **changes):
    return randomised(fresh_curves(weights, num_layers=4, **changes))


def fresh_curves(weights, make=make_layer, **changes):
    config = small_config(weights=weights, integrator="residual", **changes)
    return config.weights.layer(make, config, key=jax.random.key(0))


def gated(**settings):
    return {"family": "gated", **settings}


EVERY_GATE = [
    (gated(gate=g, start=s), {})
    for g in ("input", "output", "both", "element")
    for s in ("identity", "sigmoid")
]
EVERY_CURVE = (
    [(w, {}) for w in WEIGHTS if w != "gated"]
    + EVERY_GATE
    + [
        (w, {"time_embedding": e})
        for w in ("generated", "gated", "low_rank")
        for e in ("learned_fourier", "layer_vector")
    ]
)


@pytest.mark.parametrize(("weights", "changes"), EVERY_CURVE)
@pytest.mark.parametrize("concrete", [True, False])
def test_a_vector_of_times_gives_each_time_s_value(weights, changes, concrete):
    layer = curves(weights, **changes)
    times = TIMES if concrete else jnp.asarray(TIMES)
    together = resolve(layer, times)
    for i, t in enumerate(times):
        alone = resolve(layer, t)
        one = jax.tree.map(lambda a, i=i: a[i], together)
        assert difference(one, alone) < 1e-6, f"{weights} at t = {t}: {difference(one, alone)}"
    assert together["map"].weight.axis_names == ("layers", "embed", "heads", "mlp")
    assert alone["map"].weight.axis_names == ("embed", "heads", "mlp")
    assert together["norm"].bias.axis_names == ("layers", "embed")


@pytest.mark.parametrize("weights", [w for w in WEIGHTS if w != "shared"])
def test_the_weights_change_with_depth(weights):
    layer = curves(weights)
    first, last = resolve(layer, 0.25)["map"], resolve(layer, 1.0)["map"]
    assert difference(first.weight, last.weight) > 1e-2


def test_shared_does_not_change_with_depth():
    layer = curves("shared")
    assert difference(resolve(layer, 0.25), resolve(layer, 1.0)) == 0.0


def test_generated_is_the_offset_and_a_combination_of_the_basis():
    layer = curves("generated")
    curve = layer["map"]
    assert isinstance(curve, Generated)
    e = curve.network.at(0.3)
    weight = curve.offset.weight.array + sum(e[k] * curve.basis.weight.array[k] for k in range(6))
    bias = sum(e[k] * curve.basis.bias.array[k] for k in range(6))
    assert difference(curve.at(0.3).weight.array, weight) < 1e-6
    assert difference(curve.at(0.3).bias.array, bias) < 1e-6
    norm = layer["norm"]
    scale = 1.0 + jnp.einsum("k,ke->e", norm.network.at(0.3), norm.basis.weight.array)
    assert difference(norm.at(0.3).weight.array, scale) < 1e-6


def test_generated_makes_all_layers_in_one_matrix_product():
    curve = curves("generated")["map"]
    jaxpr = str(jax.make_jaxpr(lambda c: c.at(TIMES).weight.array)(curve))
    assert jaxpr.count("dot_general") == 4, "two for the time network, one for all weights, biases"


@pytest.mark.parametrize("gate", ["input", "output", "both", "element"])
def test_gated_scales_the_base_weights(gate):
    curve = curves(gated(gate=gate))["map"]
    assert isinstance(curve, Gated)
    shapes = {"input": [(5, 1, 1)], "output": [(1, 2, 3)], "element": [(5, 2, 3)]}
    shapes["both"] = shapes["input"] + shapes["output"]
    expected = curve.base.weight.array
    for network, shape in zip(curve.gates, shapes[gate], strict=True):
        expected *= 2 * jax.nn.sigmoid(network.at(0.3)).reshape(shape)
    assert difference(curve.at(0.3).weight.array, expected) < 1e-6
    assert difference(curve.at(0.3).bias, curve.base.bias) == 0.0


@pytest.mark.parametrize("gate", ["input", "output", "both", "element"])
@pytest.mark.parametrize(("start", "factor"), [("identity", 1.0), ("sigmoid", 0.5)])
def test_gates_start_exactly(gate, start, factor):
    curve = fresh_curves(gated(gate=gate, start=start))["map"]
    factor = factor ** len(curve.gates)
    assert difference(curve.at(TIMES[3]).weight.array, factor * curve.base.weight.array) == 0.0


def test_low_rank_adds_a_matrix_of_that_rank():
    curve = curves("low_rank")["map"]
    assert isinstance(curve, LowRank)
    down, up = curve.down.weight.array, curve.up.weight.array.reshape(2, 6)
    part = (down @ jnp.diag(curve.network.at(0.3)) @ up).reshape(5, 2, 3)
    assert difference(curve.at(0.3).weight.array, curve.base.weight.array + part) < 1e-6
    added = np.asarray(curve.at(0.3).weight.array - curve.base.weight.array).reshape(5, 6)
    assert np.linalg.matrix_rank(added, tol=1e-4) == 2


@pytest.mark.parametrize("weights", WEIGHTS)
def test_low_rank_adapts_any_other_curve_and_starts_as_that_curve(weights):
    base = curves(weights)["map"]
    like = make_layer(jax.random.key(1))["map"]
    adapter = LowRank.init(base, like, 2, small_config(), jax.random.key(2))
    assert difference(adapter.at(TIMES), resolve(base, TIMES)) == 0.0
    trained = eqx.tree_at(lambda a: a.network, adapter, randomised(adapter.network))
    together = trained.at(TIMES).weight.array
    for i, t in enumerate(TIMES):
        assert difference(together[i], trained.at(t).weight.array) < 1e-6


@pytest.mark.parametrize("depth", [1, 2, 3, 6, 93, 99, 105, 250])
def test_a_table_finds_every_layer_on_its_own_grid(depth):
    numbers = hax.arange(hax.Axis("layers", depth))
    part = Linear(numbers, None, (), ())
    curve = PerLayer(part, tuple(map(float, layer_times(depth))))
    for times in (layer_times(depth), jnp.asarray(layer_times(depth))):
        assert curve.at(times).weight.array.tolist() == list(range(depth))
        assert [int(curve.at(t).weight.array) for t in times] == list(range(depth))


def test_a_table_on_its_own_grid_is_not_copied():
    curve = curves("per_layer")["map"]
    assert curve.at(layer_times(4)) is curve.table


def test_a_finer_grid_repeats_entries_and_a_coarser_one_skips_them():
    part = Linear(hax.arange(hax.Axis("layers", 4)), None, (), ())
    curve = PerLayer(part, tuple(map(float, layer_times(4))))
    assert curve.at(layer_times(8)).weight.array.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert curve.at(layer_times(2)).weight.array.tolist() == [1, 3]
    assert int(curve.at(0.0).weight.array) == 0


def numbers(layers):
    part = Linear(hax.arange(hax.Axis("layers", layers)), None, (), ())
    return PerLayer(part, tuple(map(float, layer_times(layers))))


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 6, 8, 13])
def test_a_pass_through_fewer_layers_goes_through_a_nested_subset(layers):
    curve, larger = numbers(layers), {*range(layers)}
    for depth in range(layers, 0, -1):
        kept = curve.at_depth(depth).at(layer_times(depth)).weight.array.tolist()
        assert kept == sorted({*kept}) and len(kept) == depth and {*kept} <= larger
        assert kept[-1] == layers - 1 and (depth == 1 or kept[0] == 0)
        assert max(np.diff(kept), default=0) <= 2 * -(-layers // depth), kept
        larger = {*kept}
    twice = curve.at_depth(2 * layers).at(layer_times(2 * layers)).weight.array.tolist()
    assert twice == [i // 2 for i in range(2 * layers)]


@pytest.mark.parametrize("depth", [2, 4, 6])
def test_a_time_that_is_moved_is_still_that_of_its_layer(depth):
    """A table has nothing between its layers: whatever of half a step times are moved by."""
    moved = (np.arange(1, depth + 1) + np.linspace(-0.45, 0.45, depth)).astype(np.float32) / depth
    curve = numbers(4).at_depth(depth)
    expected = curve.at(layer_times(depth)).weight.array.tolist()
    for times in (moved, jnp.asarray(moved)):
        assert curve.at(times).weight.array.tolist() == expected


def test_resolve_leaves_what_is_no_curve_alone():
    ordinary = make_layer(jax.random.key(0))
    assert difference(resolve(ordinary, 0.5), ordinary) == 0.0
    assert isinstance(resolve({"a": Shared(ordinary["map"])}, 0.5)["a"], Linear)


def test_sinusoidal_is_t_and_sines_and_cosines_of_a_thousand_t():
    t, count = 0.3, 32
    frequency = 10000.0 ** (-np.arange(count) / count)
    angle = 1000.0 * t * frequency
    expected = np.concatenate([[t], np.sin(angle), np.cos(angle)])
    features = np.asarray(Sinusoidal(count).at(t))
    assert features.shape == (65,)
    # float32 angles up to 300 are known to 1e-5.
    assert np.max(np.abs(features - expected)) < 5e-5


def test_the_largest_frequency_is_the_configs():
    embedding = time_embedding(small_config(time_frequency=10.0), key=jax.random.key(0))
    assert embedding.at(0.3)[1] == pytest.approx(np.sin(10.0 * 0.3), abs=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned_fourier", "layer_vector"])
def test_every_embedding_has_the_same_size_and_takes_vectors(kind):
    config = small_config(time_embedding=kind, num_layers=5)
    embedding = randomised(time_embedding(config, key=jax.random.key(0)))
    times = layer_times(5)
    together = embedding.at(times)
    assert together.shape == (5, 7)
    for i, t in enumerate(times):
        assert difference(together[i], embedding.at(t)) < 1e-6


def test_learned_frequencies_are_learned():
    config = small_config(time_embedding="learned_fourier")
    embedding = time_embedding(config, key=jax.random.key(0))
    gradient = jax.grad(lambda e: e.at(0.3).sum())(embedding)
    assert np.all(np.asarray(gradient.frequency.array) != 0)


def test_layer_vectors_are_independent_of_each_other():
    config = small_config(time_embedding="layer_vector", num_layers=4)
    embedding = time_embedding(config, key=jax.random.key(0))
    gradient = jax.grad(lambda e: e.at(0.5).sum())(embedding).table.array
    assert np.array_equal(np.nonzero(np.asarray(gradient).sum(1))[0], [1])


def test_a_zero_network_is_zero_at_every_time():
    network = TimeNetwork.init(small_config(), (), key=jax.random.key(0), zero=True)
    assert np.all(np.asarray(network.at(layer_times(9))) == 0.0)


def test_the_grid_ends_at_one_and_has_as_many_layers_as_asked():
    for depth in range(1, 300):
        times = layer_times(depth)
        assert len(times) == depth
        assert times[-1] == 1.0
        assert times.dtype == np.float32


def test_a_control_is_told_one_half_in_every_layer():
    config = small_config(layer_time="half", num_layers=5)
    embedding = time_embedding(config, key=jax.random.key(0))
    true = time_embedding(small_config(num_layers=5), key=jax.random.key(0))
    told = embedding.at(layer_times(5))
    assert difference(told, true.at(np.full(5, 0.5, np.float32))) == 0.0
    assert difference(told[3], embedding.at(layer_times(5)[3])) == 0.0
