"""Capacity: what the bounds of docs/theory.md are made of; that they hold where they can be tried."""

import dataclasses
import math
import re
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import integrate, stats

import qkvflow
from qkvflow.analysis import ANALYSES, Subject
from qkvflow.analysis.capacity import (
    divergence,
    movements,
    pac_bayes_gap,
    perturbed,
    roughness,
    samples_needed,
    stacks,
    times_of,
)
from qkvflow.cli.main import main
from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.finetune import finetune
from qkvflow.models import build_model, count_parameters
from qkvflow.models.paths import arrays_of
from qkvflow.train.resume import initial_model
from qkvflow.train.step import Learner
from tests.support import WEIGHTS, difference, random_model, small_config
from tests.train.support import tiny_run, tiny_tuning, trained_base, write_text

ROOT = Path(__file__).parents[2]
DEPTHS = (2, 4, 8)


def shapes_of(weights, layers, **changes):
    config = small_config(weights=weights, num_layers=layers, integrator="residual", **changes)
    return eqx.filter_eval_shape(build_model, "standard", config, key=jax.random.key(0))


def total(model):
    found = stacks(model).values()
    return [sum(getattr(s, of) for s in found) for of in ("dimension", "parameters", "entries")]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_dimensions_of_a_model_grow_with_depth_as_the_table_says(weights):
    found = np.array([total(shapes_of(weights, depth)) for depth in DEPTHS])
    dimension, parameters, entries = found.T
    assert (dimension <= np.minimum(parameters, entries)).all()
    assert (np.diff(dimension) >= 0).all()
    np.testing.assert_array_equal(entries, entries[0] * np.array(DEPTHS) / 2)
    if weights == "per_layer":
        assert (dimension == entries).all()
    if weights == "shared":
        assert (dimension == entries[0] / 2).all()
    if weights in ("generated", "gated", "low_rank"):
        assert parameters[0] == parameters[2], "time networks know no depth"
        assert dimension[2] < entries[2] and dimension[0] > entries[0] / 2


def test_dimensions_of_the_named_models_at_the_default_config():
    def of(name):
        shapes = eqx.filter_eval_shape(build_model, name, Gpt2Config(), key=jax.random.key(0))
        return total(shapes)

    standard, shared = of("standard"), of("shared")
    dimension, parameters, _ = of("tong_neuralode")
    assert dimension == standard[0] == standard[2]
    assert 10 < parameters / dimension < 11
    assert 1.01 < of("time_indexed_mlp")[0] / shared[0] < 1.02


def test_dimensions_are_of_all_parameters_of_the_layers():
    for name in ("standard", "tong_neuralode", "time_indexed_ssm"):
        model = random_model(name, small_config())
        counted = sum(array.size for array in arrays_of(model.transformer.blocks).values())
        assert sum(s.parameters for s in stacks(model).values()) == counted


def test_the_times_of_methods_of_higher_order_are_counted_once():
    assert len(times_of(shapes_of("generated", 4))) == 4
    heun = small_config(weights="generated", num_layers=4, integrator="heun")
    assert len(times_of(random_model("standard", heun))) == 5
    adaptive = small_config(weights="generated", num_layers=4, integrator="adaptive")
    assert len(times_of(random_model("standard", adaptive))) == 4


def test_movements_by_their_definition():
    model, initial = (random_model("time_indexed_mlp", small_config(), seed=seed) for seed in (0, 1))
    found, ours, start = movements(model, initial), arrays_of(model), arrays_of(initial)
    both = [(np.asarray(ours[path], float), np.asarray(start[path], float)) for path in ours]
    squares = sum(float(np.sum((a - b) ** 2)) for a, b in both)
    assert found["all"].distance == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert found["all"].parameters == count_parameters(model).total
    groups = [found[name] for name in ("embedding", "base", "time_network", "head")]
    assert sum(g.distance**2 for g in groups) == pytest.approx(squares, rel=1e-12)
    assert sum(g.norm**2 for g in groups) == pytest.approx(found["all"].norm ** 2, rel=1e-12)
    assert movements(model)["base"] == dataclasses.replace(found["base"], distance=None)
    assert movements(model, model)["all"].distance == 0.0
    with pytest.raises(ConfigError, match="expected the start of the same run"):
        movements(model, random_model("standard", small_config()))


def test_roughness_is_zero_where_weights_are_shared_and_right_where_they_are_not():
    assert max(roughness(random_model("shared", small_config(num_layers=3))).values()) == 0.0
    model = random_model("standard", small_config(num_layers=3))
    up = np.asarray(model.transformer.blocks.parts["mlp"].part.up.table.weight.array, float)
    rows = up.reshape(3, -1)
    steps = [np.linalg.norm(rows[i + 1] - rows[i]) for i in range(2)]
    expected = 3 * max(steps) / np.mean([np.linalg.norm(row) for row in rows])
    assert roughness(model)["mlp.up"] == pytest.approx(expected, rel=1e-6)


def test_the_divergence_is_that_of_normal_distributions():
    first, second = stats.norm(0.3, 0.5), stats.norm(1.1, 0.5)
    found, _ = integrate.quad(
        lambda x: first.pdf(x) * (first.logpdf(x) - second.logpdf(x)), -6, 6, epsabs=1e-12
    )
    assert divergence(0.8, 0.5) == pytest.approx(found, rel=1e-9)


def test_the_pac_bayes_bound_holds_where_it_can_be_tried():
    """One threshold, drawn around the mean of its sample: errors of labels x > 0 are known exactly."""
    rng, sigma, samples, broken = np.random.default_rng(0), 0.2, 60, 0
    draws = rng.normal(size=400) * sigma
    for _ in range(200):
        x = rng.uniform(-1, 1, samples)
        centre = x.mean()
        thresholds = centre + draws
        training = np.mean((x[None] > thresholds[:, None]) != (x[None] > 0))
        true = np.mean(np.clip(np.abs(thresholds), 0, 1) / 2)
        broken += true > training + pac_bayes_gap(divergence(abs(centre), sigma), samples)
    assert broken <= 0.05 * 200


def test_where_a_bound_begins_to_say_something():
    for kl in (0.0, 100.0, 1e9):
        least = samples_needed(kl)
        assert pac_bayes_gap(kl, least) < 1 <= pac_bayes_gap(kl, max(1, least - 1)) or least == 1


def test_perturbed_weights_are_as_far_as_the_deviation_says():
    model = random_model("shared", small_config())
    moved = movements(perturbed(model, 0.1, seed=1), model)["all"]
    assert moved.distance == pytest.approx(0.1 * math.sqrt(moved.parameters), rel=0.05)
    assert difference(perturbed(model, 0.1, seed=1), perturbed(model, 0.1, seed=1)) == 0.0
    assert difference(perturbed(model, 0.1, seed=1), perturbed(model, 0.1, seed=2)) > 0.1


def last_state(x, stack, step):
    """Layers x + step tanh(x W)."""
    for weight in stack:
        x = x + step * np.tanh(x @ weight)
    return x


def amplification(slopes, step):
    """By how much layers x + step f_l(x), with these Lipschitz constants, drive two states apart."""
    return float(np.exp(np.sum(np.log1p(step * np.asarray(slopes)))))


@pytest.mark.parametrize("layers", [2, 16, 128])
@pytest.mark.parametrize("is_unit_step", [False, True])
def test_the_lipschitz_bound_of_residual_layers_holds(layers, is_unit_step):
    """|x_L - x'_L| <= prod (1 + h |W_l|) h sum_l |x_l| |W_l - W'_l|: docs/theory.md."""
    rng, step = np.random.default_rng(layers), 1.0 if is_unit_step else 1 / layers
    stack = rng.normal(size=(layers, 4, 4)) * 0.5
    other = stack + 1e-2 * rng.normal(size=stack.shape)
    x = rng.normal(size=4)
    norms = [max(np.linalg.norm(a, 2), np.linalg.norm(b, 2)) for a, b in zip(stack, other)]
    reached = np.linalg.norm(x) + step * layers * 2.0  # tanh of four entries is 2 long at most
    changes = sum(np.linalg.norm(a - b, 2) for a, b in zip(stack, other))
    bound = amplification(np.array(norms), step) * step * reached * changes
    moved = np.linalg.norm(last_state(x, stack, step) - last_state(x, other, step))
    assert moved <= bound, f"{moved} above {bound}"


def test_with_steps_of_one_over_the_depth_the_constant_is_bounded():
    slopes = np.random.default_rng(0).uniform(0.5, 1.5, 256)
    small = [amplification(slopes[:depth], 1 / depth) for depth in (4, 16, 64, 256)]
    large = [amplification(slopes[:depth], 1.0) for depth in (4, 16, 64, 256)]
    for depth, found in zip((4, 16, 64, 256), small):
        assert found <= np.exp(slopes[:depth].mean())
    assert max(small) < 4 and large[-1] > 1e60


def test_a_cover_by_its_definition():
    """Of one parameter it counts at least the intervals of length 2 eps / Lip that cover [-R, R]."""
    for epsilon in (0.01, 0.3):
        needed = math.ceil(2 * 1.5 * 2.0 / (2 * epsilon))
        assert math.log1p(2 * 1.5 * 2.0 / epsilon) >= math.log(needed)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_base(tmp_path_factory.mktemp("capacity"))


def begun(run, config, seed):
    """The arrays that training begins with."""
    with jax.numpy_dtype_promotion("standard"):
        return jax.jit(Learner.of(run, config).start)(np.uint32(seed)).parameters


def test_the_start_of_a_run_is_known_from_its_checkpoint(run):
    model, initial = qkvflow.load(run), initial_model(run)
    assert difference(arrays_of(initial), begun(tiny_run("text.txt"), model.config, 0)) == 0.0
    moved = movements(model, initial)["all"]
    assert 0.1 < moved.distance < moved.norm
    model.save(run.parent / "exported")
    assert initial_model(run.parent / "exported") is None


def test_every_seed_has_its_own_start(tmp_path):
    directory = trained_base(tmp_path, seeds=2, seed=3, steps=3)
    for seed in (3, 4):
        start = initial_model(directory / "final" / f"seed-{seed}")
        assert difference(arrays_of(start), begun(tiny_run("a"), start.config, seed)) < 1e-6


def test_the_start_of_a_tuned_model_is_its_base(run, tmp_path):
    data = write_text(tmp_path / "other.txt")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        finetune(tiny_tuning(run, data, method="full", steps=2), tmp_path / "tuned")
    assert difference(initial_model(tmp_path / "tuned"), qkvflow.load(run)) == 0.0


def test_the_example_of_the_page_runs(run):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(), re.DOTALL)
    names = {}
    exec(code.replace("runs/first", str(run)), names)
    distance = movements(qkvflow.load(run), initial_model(run))["all"].distance
    assert names["gap"] == pac_bayes_gap(distance**2 / 2e-4, 10_000)


def test_the_command_prints_the_distance(run, tmp_path, capsys):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        out = ["--out", str(tmp_path), "--text", "a time"]
        assert main(["analyze", "capacity", "--checkpoint", str(run), *out]) == 0
    printed = capsys.readouterr().out
    distance = movements(qkvflow.load(run), initial_model(run))["all"].distance
    assert f"{distance:.4g}" in printed and "dimension of the layers' weights" in printed
    assert (tmp_path / "capacity.json").is_file()


def test_the_study_says_what_the_functions_say(run):
    model, initial = qkvflow.load(run), initial_model(run)
    subject = Subject(model, np.ones(1), np.zeros(2, np.int32), ("a", "b"), 0, initial=initial)
    study = ANALYSES["capacity"]().study(subject)
    distance = movements(model, initial)["all"].distance
    assert study.numbers["divergence"]["0.01"] == divergence(distance, 0.01)
    lines = dict(ANALYSES["capacity"]().main_numbers(study))
    assert lines["distance from the start, all"] == f"{distance:.4g}"
    assert "says something from" in lines["KL at sigma = 0.01"]
    assert f"{distance:.4g}" in ANALYSES["capacity"]().found(study)
    unknown = ANALYSES["capacity"]().study(dataclasses.replace(subject, initial=None))
    assert unknown.numbers["divergence"] == {}
    assert not [name for name in dict(ANALYSES["capacity"]().main_numbers(unknown)) if "dist" in name]
