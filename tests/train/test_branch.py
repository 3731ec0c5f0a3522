"""Branches end with the bytes of runs of their length, as do runs that go on; averages of weights."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import qkvflow
from qkvflow.cli.main import main
from qkvflow.config import ConfigError, RunConfig, write_run
from qkvflow.files import FileError
from qkvflow.models.paths import arrays_of
from qkvflow.train import Sink, read_metrics, train
from qkvflow.train.branch import begin_branch, branch_run, continued_run
from qkvflow.train.depths import depth_at
from qkvflow.train.optimizer import make_schedule
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
    return bytes_in(out / "final")


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
    with pytest.raises(ConfigError, match="of step 18 differs between runs of 20 and"):
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
        assert "--branch-from RUN and --at STEP need each other" in capsys.readouterr().err


def test_a_run_without_a_stable_phase_has_no_branches(text, tmp_path):
    for changes in ({"schedule": "cosine"}, {"schedule_options": {"decay": 1.0}}):
        write_run(long_run(text, **changes), tmp_path / "run.yaml")
        with pytest.raises(ConfigError, match="no stable phase to branch from"):
            branch_run(tmp_path, 6)
        with pytest.raises(ConfigError, match="differs between runs of 20 and 15 steps"):
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


def bytes_in(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def rates_of(out):
    return [record["learning_rate"] for record in records(out, "train")]


class KilledError(Exception):
    """What ends a run in the middle."""


class Kill(Sink):
    """Ends a run after a step, as a killed process does: nothing more is written."""

    def __init__(self, after):
        self.after = after

    def write(self, record):
        return

    def tick(self, step, loss):
        if step == self.after:
            raise KilledError


def test_a_finished_run_goes_on_as_one_that_was_asked_for_so(text, tmp_path, capsys):
    run, out = tiny_run(text), tmp_path / "out"
    train(run, out)
    earlier, first_rates = bytes_in(out / "final"), rates_of(out)
    longer = continued_run(out, 20)
    assert longer == dataclasses.replace(run, steps=20, continued=(12,))
    with pytest.raises(KilledError):
        train(longer, out, [Kill(16)])
    assert not (out / "final").exists() and bytes_in(out / "final-12") == earlier
    assert continued_run(out, 20) == longer, "the same command goes on"
    assert train(longer, out).step == 20
    train(longer, tmp_path / "at-once")
    assert bytes_in(out / "final") == bytes_in(tmp_path / "at-once" / "final")
    assert rates_of(out) == rates_of(tmp_path / "at-once")
    rates = rates_of(out)
    assert rates[:12] == first_rates
    assert rates[11] < rates[13] > rates[19] == pytest.approx(1e-3, rel=0.3)
    assert [r["step"] for r in read_metrics(out / "metrics.jsonl") if r["kind"] == "final"] == [20]
    notes = [r["text"] for r in records(out, "note")]
    assert any("learning rate was 0.0012" in note and "after 12 steps" in note for note in notes), notes
    assert train(longer, out).there_before
    assert main(["train", "--continue-to", "20", "--out", str(out)]) == 0
    assert "was already finished" in capsys.readouterr().out


def test_where_the_rate_is_constant_nothing_is_lost(text, tmp_path):
    run = with_optimizer(tiny_run(text, steps=8), schedule="constant")
    train(run, tmp_path / "out")
    assert main(["train", "--continue-to", "12", "--out", str(tmp_path / "out")]) == 0
    train(dataclasses.replace(run, steps=12), tmp_path / "long")
    long, short = (bytes_in(tmp_path / of / "final") for of in ("long", "out"))
    assert long == short
    assert rates_of(tmp_path / "out") == rates_of(tmp_path / "long")
    assert not [r for r in records(tmp_path / "out", "note") if "learning rate" in r["text"]]


def test_a_run_may_go_on_twice_and_before_its_end(text, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KilledError):
        train(tiny_run(text, steps=6), out, [Kill(4)])
    with pytest.raises(KilledError):
        train(continued_run(out, 9), out, [Kill(8)])
    longest = continued_run(out, 12)
    assert longest.continued == (6, 9)
    train(longest, out)
    train(longest, tmp_path / "at-once")
    assert bytes_in(out / "final") == bytes_in(tmp_path / "at-once" / "final")


def test_the_rate_rises_from_the_old_end_within_a_warmup():
    optimizer = tiny_run("text.txt").optimizer  # warm-up 2, cosine to a tenth
    short, long = make_schedule(optimizer, 20), make_schedule(optimizer, 50)
    found = [float(make_schedule(optimizer, 50, (20,))(step)) for step in range(50)]
    assert found[:20] == [float(short(step)) for step in range(20)]
    assert found[22:] == pytest.approx([float(long(step)) for step in range(22, 50)], rel=1e-6)
    assert found[19] < found[20] < found[21] < found[22]


def test_depths_that_were_drawn_stay_drawn():
    run = RunConfig(steps=40, depths=(2, 4, 8), deepen_at=0.5)
    longer = dataclasses.replace(run, steps=100, continued=(40,))
    assert [depth_at(run, step) for step in range(40)] == [depth_at(longer, s) for s in range(40)]
    assert {depth_at(longer, step) for step in range(40, 100)} == {2, 4, 8}


def test_what_cannot_go_on_is_a_sentence(text, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(FileError, match="is not there: name the directory of a run"):
        continued_run(out, 20)
    train(tiny_run(text, steps=6), out)
    with pytest.raises(ConfigError, match="continue_to is 6 and this run has 6 steps; expected more"):
        continued_run(out, 6)
    given = ["train", "--continue-to", "9"]
    for wrong in (["--out", str(out), "--steps", "9"], ["--out", str(out), "--config", "x.yaml"], []):
        assert main([*given, *wrong]) == 2
        assert "--continue-to STEPS needs --out RUN, and no --steps" in capsys.readouterr().err
    assert main(["train", "--continue-to", "-9", "--out", str(out)]) == 2
    assert "--continue-to STEPS needs" in capsys.readouterr().err
    assert main([*given, "--out", str(out), "--batch-size", "2"]) == 2
    assert "batch_size is 4 there and 2 here" in capsys.readouterr().err
    final = bytes_in(out / "final")
    for path in sorted((out / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert main([*given, "--out", str(out)]) == 2
    assert "has no checkpoint to go on from, only the trained model" in capsys.readouterr().err
    assert bytes_in(out / "final") == final
