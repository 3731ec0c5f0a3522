"""Runs that begin with a trained model: what changes, what does not, and going on."""

import dataclasses
import re
import shutil

import jax
import numpy as np
import pytest

import qkvflow
from qkvflow.config import ConfigError, Gpt2Config, RunConfig, StartConfig, read_run, write_run
from qkvflow.files import FileError
from qkvflow.finetune import finetuning_run
from qkvflow.models import adapter_paths, unroll
from qkvflow.models.paths import arrays_of
from qkvflow.train import train
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data
from qkvflow.train.start import starting_model, trained_paths
from tests.support import difference
from tests.train.support import tiny_tuning, trained_base, write_text
from tests.train.test_loop import StopAt, final_bytes


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return trained_base(tmp_path_factory.mktemp("base"))


def run_of(base, text, **changes):
    return finetuning_run(tiny_tuning(base, text, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "lora"}, ("down", "up")),
        ({"method": "depth_lora", "depth": 3}, ("down", "up", "network")),
        ({"method": "lora", "also": ("transformer.wte.*",)}, ("down", "up", "wte")),
        ({"method": "embeddings", "depth": 3}, ("wte", "wpe", "norm", "ln_f")),
    ],
)
def test_only_what_is_named_changes_and_the_rest_keeps_its_bits(base, text, tmp_path, changes, words):
    run = run_of(base, text, **changes)
    train(run, tmp_path / "out")
    before, after = arrays_of(starting_model(run, 0)), arrays_of(qkvflow.load(tmp_path / "out"))
    trained = trained_paths(qkvflow.load(tmp_path / "out"), run.start)
    assert trained
    assert all(any(word in path for word in words) for path in trained)
    for path, array in after.items():
        same = np.asarray(array).tobytes() == np.asarray(before[path]).tobytes()
        assert same == (path not in trained), path


def test_full_training_changes_every_array_at_another_depth(base, text, tmp_path):
    run = run_of(base, text, depth=3)
    assert run.model == "flow"
    train(run, tmp_path / "out")
    before, after = arrays_of(starting_model(run, 0)), arrays_of(qkvflow.load(tmp_path / "out"))
    assert after.keys() == before.keys()
    unchanged = [path for path in after if difference(after[path], before[path]) == 0.0]
    assert not unchanged


def without_bases(path):
    """A path as it is whether or not there are adapters, or gates, around it."""
    return re.sub(r"(\.base)+\.", ".", path)


@pytest.mark.parametrize("changes", [{}, {"depth": 4}, {"method": "lora"}, {"method": "embeddings"}])
def test_no_steps_change_nothing(base, text, tmp_path, changes):
    run = run_of(base, text, steps=0, **changes)
    assert train(run, tmp_path / "out").finished
    model, own = qkvflow.load(tmp_path / "out"), qkvflow.load(base)
    expected = own if "depth" not in changes else unroll(own, 4)
    after = arrays_of(model)
    adapters = adapter_paths(model)
    kept = {without_bases(p): a for p, a in after.items() if p not in adapters}
    wanted = {without_bases(p): a for p, a in arrays_of(expected).items()}
    assert kept.keys() == wanted.keys()
    assert all(difference(kept[p], wanted[p]) == 0.0 for p in wanted)


def test_fixed_arrays_have_no_optimizer_state_and_are_arguments_of_the_step(base, text):
    run = run_of(base, text, method="lora")
    program = Program(run, open_data(run))
    adapter = adapter_paths(program.learner.model)
    moments = [leaf for leaf in jax.tree.leaves(program.shapes.optimizer) if leaf.ndim]
    sizes = sum(program.shapes.parameters[path].size for path in adapter)
    assert sum(leaf.size for leaf in moments) == 2 * sizes
    seed, ids = np.uint32(0), np.zeros((4, 8), np.int32)
    traced = jax.make_jaxpr(program.learner.step)(program.shapes, seed, ids, ids)
    assert len(traced.jaxpr.invars) == len(jax.tree.leaves(program.shapes)) + 3
    largest = max((np.size(constant) for constant in traced.consts), default=0)
    assert largest < min(program.shapes.parameters[path].size for path in adapter) + 64


def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(base, text, tmp_path):
    run = run_of(base, text, method="lora", depth=3)
    train(run, tmp_path / "whole")
    assert not train(run, tmp_path / "parts", [StopAt(3)]).finished
    assert train(run, tmp_path / "parts").finished
    assert final_bytes(tmp_path / "whole") == final_bytes(tmp_path / "parts")


def test_seeds_of_one_run_are_those_of_runs_alone(base, text, tmp_path):
    run = dataclasses.replace(run_of(base, text, method="lora"), seeds=2)
    train(run, tmp_path / "both")
    train(dataclasses.replace(run, seeds=1, seed=1), tmp_path / "one")
    both, alone = (arrays_of(qkvflow.load(tmp_path / name)) for name in ("both/final/seed-1", "one"))
    assert difference(both, alone) < 1e-4


def test_another_base_is_refused_on_going_on_and_another_place_is_not(base, text, tmp_path):
    run = run_of(base, text, method="lora")
    train(run, tmp_path / "out", [StopAt(3)])
    other = trained_base(tmp_path, seed=1)
    with pytest.raises(
        FileError, match=r"its base is .* \(digest \w+\) there and .* \(digest \w+\) here"
    ):
        train(run_of(other, text, method="lora"), tmp_path / "out")
    shutil.copytree(base, tmp_path / "moved")
    assert train(run_of(tmp_path / "moved", text, method="lora"), tmp_path / "out").finished


def test_a_base_that_was_replaced_is_noticed(base, text, tmp_path):
    run = run_of(base, text)
    other = trained_base(tmp_path, seed=1)
    start = dataclasses.replace(run.start, checkpoint=str(other))
    with pytest.raises(FileError, match="holds another model than this run begins with: the digest"):
        train(dataclasses.replace(run, start=start), tmp_path / "out")
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_run_with_a_start_survives_yaml(base, text, tmp_path):
    run = run_of(base, text, depth=3, method="lora")
    write_run(run, tmp_path / "run.yaml")
    assert read_run(tmp_path / "run.yaml") == run
    assert run.architecture.max_position_embeddings == 8
    assert run.architecture.adapter.name == "lora"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"checkpoint": "a"}, "checkpoint and digest are both needed"),
        ({"checkpoint": "a", "digest": "b", "depth": 0}, "depth is 0"),
        ({"checkpoint": "a", "digest": "b", "train": "some"}, "train is 'some'"),
        ({"chekpoint": "a"}, "Did you mean 'checkpoint'"),
    ],
)
def test_a_start_that_cannot_be(fields, words):
    with pytest.raises(ConfigError, match=words):
        RunConfig.from_dict({"start": fields})


def test_no_steps_and_a_length_that_is_too_long():
    with pytest.raises(ConfigError, match="steps is 0; expected at least 1"):
        RunConfig(steps=0)
    start = StartConfig("a", "b")
    assert RunConfig(steps=0, start=start).steps == 0
    with pytest.raises(
        ConfigError, match="length is 513; the model that it starts from takes at most 512"
    ):
        RunConfig(length=513, start=start, architecture=Gpt2Config())


def test_longer_windows_than_the_base_has_positions(base, tmp_path):
    text = write_text(tmp_path / "other.txt", seed=2)
    with pytest.raises(ConfigError, match="length is 9"):
        run_of(base, text, length=9)
