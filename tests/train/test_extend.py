"""A run that has ended goes on: with the bytes of a run that was asked for so, killed or not."""

import dataclasses

import pytest

from qkvflow.cli.main import main
from qkvflow.config import ConfigError, RunConfig
from qkvflow.files import FileError
from qkvflow.train import Sink, read_metrics, train
from qkvflow.train.depths import depth_at
from qkvflow.train.extend import continued_run
from qkvflow.train.optimizer import make_schedule
from tests.train.support import records, tiny_run, with_optimizer


def files_of(directory):
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
    earlier, first_rates = files_of(out / "final"), rates_of(out)
    longer = continued_run(out, 20)
    assert longer == dataclasses.replace(run, steps=20, continued=(12,))
    with pytest.raises(KilledError):
        train(longer, out, [Kill(16)])
    assert not (out / "final").exists() and files_of(out / "final-12") == earlier
    assert continued_run(out, 20) == longer, "the same command goes on"
    assert train(longer, out).step == 20
    train(longer, tmp_path / "at-once")
    assert files_of(out / "final") == files_of(tmp_path / "at-once" / "final")
    assert rates_of(out) == rates_of(tmp_path / "at-once")
    rates = rates_of(out)
    assert rates[:12] == first_rates
    assert rates[11] < rates[13] > rates[19] == pytest.approx(1e-3, rel=0.3)
    assert [r["step"] for r in read_metrics(out / "metrics.jsonl") if r["kind"] == "final"] == [20]
    notes = [r["text"] for r in records(out, "note")]
    assert any("learning rate was 0.0012" in note and "after 12 steps" in note for note in notes), notes
    assert train(longer, out).there_before
    assert main(["train", "--continue-to", "20", "--out", str(out)]) == 0
    assert "had finished before" in capsys.readouterr().out


def test_where_the_rate_is_constant_nothing_is_lost(text, tmp_path):
    run = with_optimizer(tiny_run(text, steps=8), schedule="constant")
    train(run, tmp_path / "out")
    assert main(["train", "--continue-to", "12", "--out", str(tmp_path / "out")]) == 0
    train(dataclasses.replace(run, steps=12), tmp_path / "long")
    long, short = (files_of(tmp_path / of / "final") for of in ("long", "out"))
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
    assert files_of(out / "final") == files_of(tmp_path / "at-once" / "final")


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
    final = files_of(out / "final")
    for path in sorted((out / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert main([*given, "--out", str(out)]) == 2
    assert "has no checkpoint to go on from, only the trained model" in capsys.readouterr().err
    assert files_of(out / "final") == final
