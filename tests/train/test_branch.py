"""A branch of a long run ends with the bytes of a run of its own length; averages of weights."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.config import ConfigError, write_run
from qkvflow.files import FileError
from qkvflow.models.paths import arrays_of
from qkvflow.train import train
from qkvflow.train.branch import begin_branch, branch_run
from qkvflow.train.step import Learner
from tests.train.support import records, tiny_run, with_optimizer, write_text

SHOWN = ("step", "loss", "learning_rate", "bits_per_byte")


def long_run(text, **changes):
    """Stable up to step 16 of 20."""
    options = {"schedule": "wsd", "final": 0.0, "warmup": None, "ema": 0.9, **changes}
    return with_optimizer(tiny_run(text, steps=20, keep=100), **options)


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """The directory of a long run, which no test changes."""
    place = tmp_path_factory.mktemp("branch")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        train(long_run(write_text(place / "text.txt")), place / "long")
    return place / "long"


def files_of(out):
    return {path.name: path.read_bytes() for path in sorted((out / "final").iterdir())}


def curve(out, kind):
    return [{name: r.get(name) for name in SHOWN} for r in records(out, kind)]


def test_a_branch_ends_with_the_bytes_of_a_run_of_its_length(long, tmp_path):
    assert main(["train", *f"--branch-from {long} --at 9 --out {tmp_path / 'short'}".split()]) == 0
    run = branch_run(long, 9)
    assert (run.steps, run.optimizer.warmup) == (11, 2)
    train(run, tmp_path / "whole")
    assert files_of(tmp_path / "short") == files_of(tmp_path / "whole")
    assert files_of(tmp_path / "short") != files_of(long)
    for kind in ("train", "valid", "final"):
        assert curve(tmp_path / "short", kind) == curve(tmp_path / "whole", kind)
    rates = [r["learning_rate"] for r in records(tmp_path / "short", "train")]
    assert rates[1:9] == [rates[1]] * 8
    assert rates[9:] == pytest.approx([rates[1], rates[1] / 2])
    # Started again it says so; begun again, nothing is copied over what is there.
    assert train(run, tmp_path / "short").there_before
    begin_branch(long, 9, run, tmp_path / "short")
    assert files_of(tmp_path / "short") == files_of(tmp_path / "whole")


def test_a_branch_may_stay_stable_for_longer(long):
    assert branch_run(long, 6, 15).steps == 15
    assert branch_run(long, 16).steps == 20


def test_what_cannot_be_branched_is_a_sentence(long, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="expected a step from 1 to 20"):
        branch_run(long, 25)
    with pytest.raises(ConfigError, match="of step 18 is another one in a run of 20 steps than in one"):
        branch_run(long, 19)
    with pytest.raises(FileError, match="no checkpoint of step 7; it has 3, 4, 6, .* with --keep"):
        begin_branch(long, 7, branch_run(long, 7), out)
    run = branch_run(long, 9)
    with pytest.raises(FileError, match="batch_size is 4 there and 2 here"):
        begin_branch(long, 9, dataclasses.replace(run, batch_size=2), out)
    with pytest.raises(FileError, match="is not there: name a run"):
        branch_run(tmp_path / "none", 9)
    shutil.copytree(long, tmp_path / "damaged")
    model = tmp_path / "damaged" / "checkpoints" / "step-00000009" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(FileError, match="model.safetensors"):
        begin_branch(tmp_path / "damaged", 9, run, out)
    assert not (out / "checkpoints").exists()
    for options in ("--at 9", f"--branch-from {long}", f"--branch-from {long} --at 9 --config a.yaml"):
        assert main(["train", *options.split(), "--out", str(out)]) == 2
        assert "--branch-from RUN and --at STEP come together" in capsys.readouterr().err


def test_a_run_without_a_stable_phase_has_no_branches(text, tmp_path):
    for changes in ({"schedule": "cosine"}, {"schedule_options": {"decay": 1.0}}):
        write_run(long_run(text, **changes), tmp_path / "run.yaml")
        with pytest.raises(ConfigError, match="no stable phase to branch from"):
            branch_run(tmp_path, 6)
        with pytest.raises(ConfigError, match="is another one in a run of 20 steps than in one of 15"):
            branch_run(tmp_path, 6, 15)


def test_the_average_is_the_weighted_mean_of_all_steps_and_is_what_is_evaluated(text, tmp_path):
    """Of every step the weights are kept, once without and once with an average of them."""
    ema, steps = 0.8, 6
    run = with_optimizer(tiny_run(text, steps=steps, save_every=1, keep=100), ema=ema)
    train(with_optimizer(run, ema=0.0), tmp_path / "plain")
    train(run, tmp_path / "averaged")
    kept = [tmp_path / "plain" / "checkpoints" / f"step-{i + 1:08d}" for i in range(steps)]
    weights = [arrays_of(qkvflow.load(path)) for path in kept]
    shares = ema ** np.arange(steps - 1, -1, -1.0)
    found = arrays_of(qkvflow.load(tmp_path / "averaged"))
    for name, array in found.items():
        each = np.stack([np.asarray(own[name], np.float64) for own in weights])
        expected = np.tensordot(shares / shares.sum(), each, axes=1)
        assert np.abs(np.asarray(array) - expected).max() < 1e-6, name
    losses = [[r["loss"] for r in records(tmp_path / of, "final")] for of in ("plain", "averaged")]
    assert losses[0] != losses[1]
    plain, averaged = (
        [r["loss"] for r in records(tmp_path / of, "train")] for of in ("plain", "averaged")
    )
    assert plain == averaged, "the average changes nothing of what is learned"


def test_the_average_does_not_move_in_a_step_that_is_not_applied(text):
    run = with_optimizer(tiny_run(text), ema=0.9)
    learner = Learner.of(run, run.model_config(11))
    ids = np.zeros((4, 8), np.int32)
    step, begin = jax.jit(learner.step), jax.jit(learner.start)(np.uint32(0))
    before, _ = step(begin, np.uint32(0), ids, ids)
    after, report = step(before, np.uint32(0), np.full_like(ids, 99), ids)
    assert int(report.skipped) == 1
    for path, array in before.average.items():
        assert (np.asarray(after.average[path]) == np.asarray(array)).all()
