"""Models as loops: exact with all ranks, the nearest below, and a model like any other."""

import numpy as np
import pytest

from qkvflow.config import ConfigError
from qkvflow.models import count_parameters, into_loop, loop_error, unroll
from qkvflow.models.paths import arrays_of
from tests.support import difference, random_model, small_config, token_ids

PLAN = "1 + 2x2 + 1"


def six_layers(**changes):
    model = random_model("standard", small_config(num_layers=6, flavour="llama", **changes))
    return model, token_ids(model.config)


@pytest.mark.parametrize("plan", [PLAN, (0, 1, 1, 2, 2, 0), "1x6"])
def test_with_as_many_ranks_as_matrices_have_it_is_the_same(plan):
    model, ids = six_layers()
    looped = into_loop(model, plan, 20)
    error = difference(looped(ids).array, model(ids).array)
    assert error < 1e-5, error
    assert loop_error(model, looped) < 1e-6


def test_any_family_and_any_sum_of_steps():
    model = unroll(random_model("tong_neuralode", small_config(flavour="llama")), 6)
    ids = token_ids(model.config)
    error = difference(into_loop(model, PLAN, 16)(ids).array, model(ids).array)
    assert error < 1e-5, error


def test_shared_weights_are_the_mean_and_the_factors_the_nearest_of_their_rank():
    """Against the definition: no pair of factors of this rank leaves less (Eckart and Young)."""
    model, _ = six_layers()
    near = arrays_of(unroll(into_loop(model, PLAN, 3), 6))
    for path in ("mlp.part.down", "attention.part.out"):
        path = f"transformer.blocks.parts.{path}.table.weight"
        whole = np.asarray(arrays_of(model)[path], np.float64).reshape(6, -1, 16)
        mean = whole[[1, 3]].mean(axis=0)
        left = np.asarray(near[path], np.float64).reshape(6, -1, 16)[1] - mean
        u, s, v = np.linalg.svd(whole[1] - mean)
        assert np.abs(left - (u[:, :3] * s[:3]) @ v[:3]).max() < 1e-5
        assert np.linalg.matrix_rank(left, tol=1e-4) == 3


def test_the_error_falls_with_the_rank_and_layers_of_their_own_are_exact():
    model, _ = six_layers()
    loops = [into_loop(model, PLAN, rank) for rank in (1, 4, 8, 16)]
    errors = [loop_error(model, looped) for looped in loops]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-6
    own, near = arrays_of(model), arrays_of(unroll(loops[0], 6))
    for path, array in own.items():
        rows = slice(None) if "norm" in path or "blocks" not in path else [0, 5]
        assert difference(np.asarray(array)[rows], np.asarray(near[path])[rows]) < 1e-6, path
    assert count_parameters(loops[0]).total < count_parameters(model).total


def test_biases_of_shared_layers_are_their_mean():
    model, _ = six_layers(use_bias=True)
    near = arrays_of(unroll(into_loop(model, PLAN, 16), 6))
    path = "transformer.blocks.parts.mlp.part.down.table.bias"
    bias = np.asarray(arrays_of(model)[path])
    assert difference(near[path][1], bias[[1, 3]].mean(axis=0)) < 1e-6
    assert difference(near[path][0], bias[0]) == 0.0


def test_every_visit_can_be_trained():
    """The second factor of a visit of which nothing is left is zero, the first one is not."""
    model, _ = six_layers()
    arrays = arrays_of(into_loop(model, PLAN, 4))
    down = arrays["transformer.blocks.parts.mlp.part.down.down.table.weight"]
    assert np.abs(np.asarray(down)).max(axis=(1, 2)).min() > 0.01


@pytest.mark.parametrize(
    ("plan", "rank", "words"),
    [
        ("1 + 2x3 + 1", 4, "the plan has 8 visits but num_layers is 6"),
        ("1 + 2", 4, "expected FIRST"),
        (PLAN, 0, "rank is 0; expected a number above 0"),
    ],
)
def test_what_is_no_loop_is_a_sentence(plan, rank, words):
    model, _ = six_layers()
    with pytest.raises(ConfigError, match=words):
        into_loop(model, plan, rank)


def test_an_integrator_of_several_stages_is_refused():
    model, _ = six_layers(integrator="heun")
    with pytest.raises(ConfigError, match="heun evaluates weights between layers"):
        into_loop(model, PLAN, 2)
