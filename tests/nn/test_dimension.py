"""How many dimensions the stacks of a family have: its formula against the rank of a derivative.

Ranks are taken in float64 at random parameters, of features of time that are random, too: those of the
shipped embeddings are nearly dependent at small sizes, and have a test of their own.
"""

import equinox as eqx
import haliax as hax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from qkvflow.config import Gpt2Config
from qkvflow.nn import Linear, Norm
from qkvflow.nn.time_embed import (
    LayerVector,
    LearnedFourier,
    OneTime,
    Sinusoidal,
    TimeEmbedding,
    layer_times,
)
from qkvflow.nn.weights import Weight, size
from tests.support import small_config

NOISE = 1e-13
"""Singular values below this share of the largest are rounding; the others were 1e-10 at least."""


class Known(TimeEmbedding):
    """Features of double precision, which a table says."""

    table: list

    def at(self, t):
        table = jnp.asarray(self.table, jnp.float64)
        return table if np.ndim(t) else table[0]

    @property
    def features(self):
        return len(self.table[0])


def curve_of(
    weights,
    shape,
    *,
    layers,
    units,
    features,
    kind="linear",
    bias=False,
    embedding=None,
    one_time=False,
):
    """A curve of [n, m] maps at random parameters in double precision, and its times."""
    rows, columns = (hax.Axis(name, length) for name, length in zip(("embed", "mlp"), shape))

    def make(key):
        if kind == "norm":
            return {"it": Norm.init(columns, "layer", bias=bias, epsilon=1e-5)}
        inputs = () if kind == "vector" else (rows,)
        return {"it": Linear.init(inputs, (columns,), key=key, bias=bias)}

    config = small_config(
        weights=weights,
        integrator="residual",
        num_layers=layers,
        time_embed_dim=units,
        sinusoidal_dim=(features - 1) // 2,
    )
    shapes = eqx.filter_eval_shape(config.weights.layer, make, config, key=jax.random.key(0))["it"]
    noise = np.random.default_rng(1)
    table = noise.normal(size=(1 if one_time else layers, features))
    known = Known(np.broadcast_to(table, (layers, features)).tolist())
    known = OneTime(known) if one_time else known
    curve = with_embedding(shapes, embedding or known)
    return jax.tree.map(lambda leaf: drawn(leaf, noise), curve), layer_times(layers)


def drawn(leaf, noise):
    """Random numbers in the place of a shape."""
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.asarray(noise.normal(size=leaf.shape), jnp.float64) if is_shape else leaf


def with_embedding(curve, embedding):
    def is_embedding(node):
        return isinstance(node, TimeEmbedding)

    return jax.tree.map(
        lambda node: embedding if is_embedding(node) else node, curve, is_leaf=is_embedding
    )


def rank_of(function, tree):
    """The rank of the derivative of all that a function gives, by all arrays of a tree."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    flat, back = jax.flatten_util.ravel_pytree(arrays)

    def values(flat):
        leaves = jax.tree.leaves(function(eqx.combine(back(flat), rest)))
        return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

    found = np.linalg.svd(np.asarray(jax.jit(jax.jacfwd(values))(flat)), compute_uv=False)
    return int(np.sum(found > NOISE * found[0])), (found / found[0]).tolist()


def gate(kind):
    return {"family": "gated", "gate": kind}


def low(rank):
    return {"family": "low_rank", "rank": rank}


LOOP = {"family": "looped", "plan": "1 + 1x3 + 1"}
FAMILIES = {
    "shared": "shared",
    "per_layer": "per_layer",
    "looped": LOOP,
    "generated": "generated",
    **{f"gated by {kind}": gate(kind) for kind in ("input", "output", "both", "element")},
    **{f"rank {rank}": low(rank) for rank in (1, 2, 3)},
    "a loop with gates": LOOP | {"around": "gated"},
    "a loop with rank 2": LOOP | {"around": low(2)},
}
SIZES = {
    "few units": {"shape": (3, 4), "layers": 5, "units": 1, "features": 3},
    "two units": {"shape": (3, 4), "layers": 5, "units": 2, "features": 3},
    "as many units as layers": {"shape": (3, 4), "layers": 5, "units": 5, "features": 3},
}
OTHERS = [
    ("generated", {"bias": True}),
    ("generated", {"bias": True, "units": 4}),
    ("generated", {"kind": "norm", "bias": True}),
    ("generated", {"kind": "vector"}),
    ("generated", {"layers": 8, "features": 3}),
    (gate("output"), {"bias": True}),
    (gate("output"), {"layers": 8}),
    (gate("output"), {"kind": "vector"}),
    (gate("both"), {"layers": 8, "units": 1}),
    (low(2), {"bias": True}),
    (low(2), {"kind": "vector"}),
    (low(3), {"shape": (2, 3), "layers": 8}),
    ("generated", {"one_time": True}),
    (gate("output"), {"one_time": True}),
    (low(2), {"one_time": True}),
    ("generated", {"layers": 2}),
    (low(3), {"layers": 2}),
]


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def check(weights, **settings):
    curve, times = curve_of(weights, **settings)
    rank, values = rank_of(lambda c: c.at(times), curve)
    assert curve.dimension(times) == rank, f"singular values {values}"
    return curve, times, rank


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_formula_is_the_rank_of_the_derivative(name, sizes):
    check(FAMILIES[name], **SIZES[sizes])


@pytest.mark.parametrize(("weights", "changes"), OTHERS)
def test_biases_norms_vectors_depths_and_controls(weights, changes):
    check(weights, **SIZES["two units"] | changes)


def test_what_every_family_has_is_no_more_than_its_parameters_and_the_entries():
    for weights in FAMILIES.values():
        for sizes in SIZES.values():
            curve, times = curve_of(weights, **sizes)
            bound = min(size(eqx.filter(curve, eqx.is_inexact_array)), len(times) * 12)
            assert 12 <= curve.dimension(times) <= bound
            assert Weight.dimension(curve, times) == bound


def test_parameters_of_a_map_as_the_covering_bound_counts_them():
    """The table of docs/theory.md, at n = 3, m = 4, T = 2, F = 3, R = 3, of five layers."""
    expected = {
        "shared": 12,
        "per_layer": 5 * 12,
        "looped": 3 * 12,
        "gated by input": 12 + 3 * (2 + 1) + 2 * (3 + 1),
        "gated by output": 12 + 4 * (2 + 1) + 2 * (3 + 1),
        "gated by element": 12 + 12 * (2 + 1) + 2 * (3 + 1),
        "rank 3": 12 + 3 * (3 + 4) + 3 * (2 + 1) + 2 * (3 + 1),
        "generated": (2 + 1) * 12 + 2 * (2 + 1) + 2 * (3 + 1),
    }
    for name, count in expected.items():
        curve, _ = curve_of(FAMILIES[name], **SIZES["two units"])
        assert size(eqx.filter(curve, eqx.is_inexact_array)) == count, name


def units_of(embedding, units):
    """What an affine map makes of features, as a function of all its arrays and the embedding's."""
    noise = np.random.default_rng(0)
    weight = jnp.asarray(noise.normal(size=(embedding.features, units)))
    bias = jnp.asarray(noise.normal(size=(1, units)))

    def values(tree, features):
        _, weight, bias = tree
        return features @ weight + bias

    return (embedding, weight, bias), values


@pytest.mark.parametrize(("units", "layers"), [(1, 4), (2, 5), (3, 9), (6, 9), (9, 12)])
def test_what_units_are_told_of_learned_vectors(units, layers):
    """`layer_vector`: any matrix whose rank, less the means, is that of the features."""
    axes = hax.make_axes(layers=layers, time_features=3)
    table = hax.named(jnp.asarray(np.random.default_rng(3).normal(size=(layers, 3))), axes)
    embedding = LayerVector(table, tuple(map(float, layer_times(layers))))
    tree, values = units_of(embedding, units)
    rank, found = rank_of(lambda t: values(t, t[0].table.array), tree)
    assert embedding.freedom(units, layers) == rank, found


@pytest.mark.parametrize(("units", "layers"), [(1, 4), (2, 7), (3, 12)])
def test_what_units_are_told_of_learned_frequencies(units, layers):
    frequency = hax.named(jnp.asarray([0.7, 1.9]), (hax.Axis("time_frequency", 2),))
    embedding = LearnedFourier(frequency)
    tree, values = units_of(embedding, units)
    time = jnp.arange(1.0, layers + 1)[:, None] / layers

    def of(tree):
        angle = 2 * np.pi * time * tree[0].frequency.array[None]
        return values(tree, jnp.concatenate([time, jnp.sin(angle), jnp.cos(angle)], axis=1))

    rank, found = rank_of(of, tree)
    assert embedding.freedom(units, layers) == rank, found


@pytest.mark.parametrize("layers", [4, 12, 24])
def test_sinusoidal_features_are_independent(layers):
    """The default ones: their rank, with 1, is the number of times or of features.

    The lowest frequencies turn little in one unit of time: at 48 layers double precision sees a rank
    of about 44.
    """
    config = Gpt2Config()
    features = Sinusoidal(config.sinusoidal_dim, config.time_frequency).features
    k = np.arange(config.sinusoidal_dim) / config.sinusoidal_dim
    time = np.arange(1, layers + 1)[:, None] / layers
    angle = time * config.time_frequency * 10000.0**-k
    table = np.concatenate([np.ones_like(time), time, np.sin(angle), np.cos(angle)], axis=1)
    assert table.shape[1] == features + 1
    values = np.linalg.svd(table, compute_uv=False)
    assert len(values) == min(layers, features + 1) and values[-1] > NOISE * values[0], values


@pytest.mark.parametrize("units", [3, 4, 6])
def test_with_a_matrix_a_layer_less_one_every_stack_is_generated(units):
    """T + 1 >= L: offset and basis are solved for any stack, at any coefficients of full rank."""
    sizes = {"shape": (3, 4), "layers": 4, "units": units, "features": 9}
    curve, times = curve_of("generated", **sizes)
    stack = np.random.default_rng(5).normal(size=(4, 12))
    coefficients = np.asarray(curve.network.at(times))
    assert np.linalg.matrix_rank(np.diff(coefficients, axis=0)) == 3
    found, *_ = np.linalg.lstsq(np.concatenate([np.ones((4, 1)), coefficients], axis=1), stack)
    arrays = jnp.asarray(found).reshape(-1, 3, 4)
    for where, array in ((lambda c: c.offset, arrays[0]), (lambda c: c.basis, arrays[1:])):
        curve = eqx.tree_at(lambda c, w=where: w(c).weight.array, curve, array)
    error = np.abs(np.asarray(curve.at(times).weight.array).reshape(4, 12) - stack).max()
    assert error < 1e-10, error


def test_with_fewer_matrices_stacks_have_their_rank():
    """Less its mean over depth, a stack of T + 1 < L matrices has rank T."""
    curve, times = curve_of("generated", shape=(3, 4), layers=5, units=2, features=9)
    stack = np.asarray(curve.at(times).weight.array).reshape(5, 12)
    values = np.linalg.svd(stack - stack.mean(axis=0), compute_uv=False)
    assert np.sum(values > NOISE * values[0]) == 2, values


def test_gates_have_all_dimensions_before_they_have_all_stacks():
    """With many units element-wise gates reach an open set of stacks, whose signs are those of one."""
    sizes = {"shape": (3, 4), "layers": 4, "units": 5, "features": 9}
    curve, times = curve_of(gate("element"), **sizes)
    assert curve.dimension(times) == 4 * 12
    signs = np.sign(np.asarray(curve.at(times).weight.array))
    assert (signs == signs[:1]).all()
