"""Spectra: against numpy on explicit matrices, and unchanged by what changes nothing in the model."""

import equinox as eqx
import haliax as hax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from qkvflow.analysis import (
    Circuit,
    circuits_of,
    depth_rank,
    eigenvalues,
    numerical_range,
    singular_values,
    trend,
)
from qkvflow.analysis.spectra import depth_ranks
from qkvflow.nn.time_embed import layer_times
from qkvflow.nn.weights import resolve
from tests.support import FLAVOURS, WEIGHTS, random_model, small_config

TIMES = np.array([0.25, 0.7, 1.0])
PARTS = ("attention", "mlp", "ssm")
ALL = ("qk", "ov", "mlp", "ssm")


def model_of(weights="gated", flavour="gpt2", **changes):
    config = small_config(weights=weights, flavour=flavour, parts=PARTS, order="sequential", **changes)
    return random_model("standard", config)


def array(named):
    return np.asarray(named.array, np.float64)


def normalised(norm):
    """What a norm does to x after its division: a matrix on rows."""
    gain = np.diag(array(norm.weight))
    centre = np.eye(len(gain)) - 1 / len(gain) if norm.kind == "layer" else np.eye(len(gain))
    return centre @ gain


def explicit(model, t):
    """The matrices of every circuit at one time, [head, E, E], written out head by head."""
    block = resolve(model.transformer.blocks, float(t))
    layer = {name: (normalised(block.parts[name].norm), block.parts[name].part) for name in PARTS}
    read, attention = layer["attention"]
    qkv, out = array(attention.qkv.weight), array(attention.out.weight)
    found = {"qk": [], "ov": []}
    gains = [1.0, 1.0]
    if attention.query_norm is not None:
        gains = [array(norm.weight) for norm in (attention.query_norm, attention.key_norm)]
    for k in range(out.shape[0]):
        for g in range(out.shape[1]):
            query, key, value = (read @ qkv[:, k, i] for i in (g, -2, -1))
            products = (query * gains[0]) @ (key * gains[1]).T
            found["qk"].append(products / np.sqrt(qkv.shape[-1]))
            found["ov"].append(value @ out[k, g])
    read, mlp = layer["mlp"]
    found["mlp"] = [read @ array(mlp.up.weight)[:, -1] @ array(mlp.down.weight)]
    read, ssm = layer["ssm"]
    inner = len(array(ssm.norm.weight))
    values = array(ssm.xbc.weight)[:, :inner] * array(ssm.conv.weight).sum(axis=0)[:inner]
    found["ssm"] = [read @ values @ np.diag(array(ssm.norm.weight)) @ array(ssm.out.weight)]
    return {name: np.stack(matrices) for name, matrices in found.items()}


def distance(a, b):
    """Between two sets of complex numbers, each matched with one of the other, over the largest."""
    apart = np.abs(a[:, None] - b[None, :])
    return apart[linear_sum_assignment(apart)].max() / np.abs(b).max()


@pytest.fixture(scope="module", params=FLAVOURS)
def circuits(request):
    model = model_of(flavour=request.param)
    return circuits_of(model, TIMES), [explicit(model, t) for t in TIMES]


@pytest.mark.parametrize("name", ALL)
def test_circuits_are_the_explicit_products(circuits, name):
    found, expected = circuits[0][name].matrices, np.stack([at[name] for at in circuits[1]])
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert found.shape == expected.shape
    assert error < 1e-5, f"{error}: weights are float32"


@pytest.mark.parametrize("name", ALL)
def test_spectra_are_numpys_of_the_explicit_matrices(circuits, name):
    circuit = circuits[0][name]
    values, singular = eigenvalues(circuit), singular_values(circuit)
    assert np.all(np.diff(np.abs(values), axis=-1) <= 1e-12)
    for i, head in np.ndindex(values.shape[:2]):
        whole = circuit.matrices[i, head]
        all_values = np.linalg.eigvals(whole)
        largest = all_values[np.argsort(-np.abs(all_values))][: values.shape[-1]]
        error = distance(values[i, head], largest)
        assert error < 1e-7, f"eigenvalues are off by {error}"
        expected = np.linalg.svd(whole, compute_uv=False)[: singular.shape[-1]]
        error = np.abs(singular[i, head] - expected).max() / expected[0]
        assert error < 1e-12, f"singular values are off by {error}"
    assert np.abs(values.imag).max() > 0.01 * np.abs(values).max(), "complex eigenvalues are kept"


@pytest.mark.parametrize("name", ["qk", "mlp"])
def test_the_numerical_range_is_that_of_the_whole_matrix(circuits, name):
    """The support in every direction, without any compression; and the bounds that always hold."""
    circuit = circuits[0][name]
    points = numerical_range(circuit, angles=16)
    for i, head in np.ndindex(points.shape[:2]):
        matrix, mine = circuit.matrices[i, head], points[i, head]
        for k, theta in enumerate(np.arange(16) * np.pi / 8):
            turned = np.exp(1j * theta) * matrix
            support = np.linalg.eigvalsh((turned + turned.conj().T) / 2)[-1]
            reached = (np.exp(1j * theta) * mine[k]).real
            assert abs(reached - support) < 1e-10 * np.abs(matrix).max() * 16, f"{theta}"
            assert np.max((np.exp(1j * theta) * np.linalg.eigvals(matrix)).real) <= support + 1e-9
        radius, norm = np.abs(mine).max(), np.linalg.norm(matrix, 2)
        assert norm / 2 * np.cos(np.pi / 16) - 1e-9 <= radius <= norm + 1e-9


def test_the_numerical_range_of_a_normal_matrix_is_the_hull_of_its_eigenvalues():
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 2)))[0]
    positive = Circuit((q * [1.0, 3.0])[None, None], q.T[None, None])
    points = numerical_range(positive)
    assert np.abs(points.imag).max() < 1e-12
    assert points.real.max() == pytest.approx(3.0)
    assert points.real.min() == pytest.approx(0.0, abs=1e-12), "zero belongs to it"


def replaced(model, where, change):
    """The model with one of its arrays changed by a function of numpy arrays in double precision."""
    node = where(model.transformer.blocks)
    changed = hax.named(np.asarray(change(array(node)), np.float32), node.axes)
    return eqx.tree_at(lambda m: where(m.transformer.blocks), model, changed)


def assert_same_spectra(one, other, names, tolerance=2e-5):
    before, after = circuits_of(one, TIMES, names), circuits_of(other, TIMES, names)
    for name in names:
        first, second = (singular_values(c[name]) for c in (before, after))
        error = np.abs(first - second).max() / first.max()
        assert error < tolerance, f"{name}: singular values differ by {error}"
        first, second = (eigenvalues(c[name]) for c in (before, after))
        error = max(distance(first[i], second[i]) for i in np.ndindex(first.shape[:2]))
        assert error < tolerance, f"{name}: eigenvalues differ by {error}"


def test_a_change_of_basis_in_the_heads_changes_no_spectrum():
    """Q and K turn against each other, V and the output map, too; weights are float32."""
    model = model_of("shared")
    turn = np.random.default_rng(0).normal(size=(4, 4)) + 2 * np.eye(4)
    back = np.linalg.inv(turn)

    def in_heads(qkv):
        parts = [qkv[:, :, :-2] @ turn, qkv[:, :, -2:-1] @ back.T, qkv[:, :, -1:] @ turn]
        return np.concatenate(parts, axis=2)

    other = replaced(model, lambda b: b.parts["attention"].part.qkv.value.weight, in_heads)
    other = replaced(
        other,
        lambda b: b.parts["attention"].part.out.value.weight,
        lambda out: np.einsum("de,kgef->kgdf", back, out),
    )
    assert_same_spectra(model, other, ("qk", "ov"))


def test_what_stands_between_norm_and_matrix_changes_no_spectrum():
    """Gain up and matrix down; and whatever a layer norm's matrix does to the mean, which is zero."""
    model = model_of("shared")
    rng = np.random.default_rng(0)
    scale, shift = rng.uniform(0.5, 2.0, 16), rng.normal(size=(1, 1, 32))
    other = replaced(model, lambda b: b.parts["mlp"].norm.value.weight, lambda gain: gain * scale)
    gain = array(other.transformer.blocks.parts["mlp"].norm.value.weight)
    other = replaced(
        other,
        lambda b: b.parts["mlp"].part.up.value.weight,
        lambda up: up / scale[:, None, None] + shift / gain[:, None, None],
    )
    assert_same_spectra(model, other, ("mlp",))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_only_constant_weights_have_constant_spectra(weights):
    model = model_of(weights, num_layers=3)
    for name, circuit in circuits_of(model, layer_times(3)).items():
        values = eigenvalues(circuit)
        constant = bool(np.all(values == values[:1]))
        assert constant == (weights == "shared"), name
    ranks = depth_ranks(model, layer_times(3))
    for name, rank in ranks.items():
        assert (rank.spread < 1e-12) == (weights == "shared"), f"{name}: {rank.spread}"
        assert (rank.basis == 1) or weights != "shared"
        assert rank.basis <= 3
        assert 1.0 - 1e-12 <= rank.participation <= 3.0 + 1e-12


@pytest.mark.parametrize(("weights", "most"), [("low_rank", 3), ("generated", 7)])
def test_the_depth_rank_is_at_most_that_of_the_family(weights, most):
    """Rank 2 adds two basis matrices to W, T = 6 basis matrices stand beside F_0."""
    ranks = depth_ranks(model_of(weights), layer_times(16))
    values = ranks["mlp.up"].singular_values
    assert values[most - 1] > 1e-4 * values[0]
    assert np.all(values[most:] < 1e-6 * values[0]), f"{values}: weights are float32"


def test_the_depth_rank_of_known_weights():
    equal = depth_rank(np.eye(4).reshape(4, 2, 2))
    assert (equal.basis, round(equal.participation, 9)) == (4, 4.0)
    one = depth_rank(np.ones((4, 2, 2)))
    assert (one.basis, one.spread) == (1, 0.0)
    assert one.participation == pytest.approx(1.0)
    assert depth_rank(np.zeros((2, 3))).basis == 0


def test_trends():
    times = layer_times(5).astype(np.float64)
    grows = trend(times, np.exp(times))
    assert grows.spearman == 1.0
    assert grows.p_value == 2 / 120, "up or down, of 120 orders"
    assert trend(layer_times(9), np.arange(9.0)).p_value < 1e-6
    assert grows.slope > 0
    assert trend(times, -times + 2).spearman == -1.0
    assert trend(times, -times + 2).slope == pytest.approx(-1.0)
    constant = trend(times, np.full(5, 3.0) * (1 + 1e-12 * times))
    assert (constant.slope, constant.spearman) == (0.0, None)
    assert trend(times[:1], np.ones(1)).mean == 1.0
    assert trend(times[:2], np.array([1.0, 2.0])).spearman is None


def test_a_circuit_of_a_part_that_is_not_there_is_a_sentence():
    model = random_model("standard", small_config(parts=("mlp", "ssm")))
    assert list(circuits_of(model, TIMES)) == ["mlp", "ssm"]
    words = "qk belongs to attention, and this model is made of mlp and ssm; it has mlp, ssm"
    with pytest.raises(ValueError, match=words):
        circuits_of(model, TIMES, ("qk",))
