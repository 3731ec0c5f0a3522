"""What a person sees while a command works: names, times that are left, and how long it will take."""

import io
import re
from pathlib import Path

import jax
import pytest
from rich.console import Console

from qkvflow.cli import bars
from qkvflow.cli import experiment_display as experiments
from qkvflow.cli import train as command
from qkvflow.cli.bars import Pace, step_bars
from qkvflow.config import RunConfig
from qkvflow.experiments.jobs import Job
from qkvflow.progress import clock
from qkvflow.train import Sink, train
from tests.train.support import tiny_run, write_text


class Clock:
    """A clock that goes on when it is told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def seconds(monkeypatch):
    found = Clock()
    monkeypatch.setattr(bars.time, "monotonic", found)
    return found


def take(sink, seconds, steps, each):
    for step in steps:
        seconds.now += each
        sink.tick(step, 2.0) if isinstance(sink, Sink) else sink.tick(step)


def test_times_are_written_as_people_read_them():
    assert [clock(value) for value in (0, 61.2, 3599.9, 36_000)] == [
        "0:00",
        "1:01",
        "1:00:00",
        "10:00:00",
    ]


def test_a_pace_is_known_after_a_few_steps_and_counts_what_came_before_them(seconds):
    pace = Pace(1000)
    seconds.now += 30  # compiling
    take(pace, seconds, range(1, 6), 2.0)
    assert pace.per_step is pace.left is pace.whole is None
    take(pace, seconds, range(6, 11), 2.0)
    assert pace.per_step == pytest.approx(2.0)
    assert pace.left == pytest.approx(2.0 * 990)
    assert pace.whole == pytest.approx(30 + 2.0 * 1000)


def terminal(monkeypatch, module):
    """A console that a module draws on, as on a terminal, and what it shows."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    return console


def test_a_run_says_once_how_long_it_will_take(seconds, monkeypatch):
    console = terminal(monkeypatch, command)
    display = command.Display("standard", 1000)
    take(display, seconds, range(1, 20), 0.5)
    display.close()
    said = re.findall(r"About .*", console.file.getvalue())
    assert said == ["About 8 minutes for 994 steps of 500 ms, plus evaluations."]


def test_of_a_run_that_is_short_nothing_is_said(seconds, monkeypatch):
    console = terminal(monkeypatch, command)
    take(command.Display("standard", 20), seconds, range(1, 20), 0.5)
    assert "About" not in console.file.getvalue()


def test_every_phase_of_a_run_has_a_name(tmp_path, monkeypatch):
    found = []

    class Phases(Sink):
        def write(self, record):
            if record["kind"] != "note":
                found.append(record["kind"])

        def phase(self, name, done, total):
            found.append((name, done, total))

    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    run = tiny_run(write_text(tmp_path / "text.txt"), steps=1, eval_tokens=64, log_every=5)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        train(run, tmp_path / "out", [Phases()])
    names = [entry if isinstance(entry, str) else entry[0] for entry in found]
    assert [*dict.fromkeys(names)] == [
        *("building the model", "start", "compiling a step", "compiled", "evaluation", "valid"),
        *("train", "final evaluation", "final", "writing the model"),
    ]
    done = [entry for entry in found if entry[0] == "final evaluation"]
    assert done[0][1:] == (0, 35) and done[-1][1:] == (35, 35) and len(done) == 1 + 9


def test_a_phase_has_a_bar_and_goes_when_steps_go_on(monkeypatch):
    console = terminal(monkeypatch, command)
    display = command.Display("standard", 10)
    display.phase("final evaluation", 0, 40)
    display.phase("final evaluation", 30, 40)
    display._bar.refresh()
    assert "final evaluation" in console.file.getvalue() and "30/40" in console.file.getvalue()
    console.file.truncate(0)
    display.tick(1, 2.0)
    display._bar.refresh()
    display.close()
    assert "1/10" in console.file.getvalue() and "evaluation" not in console.file.getvalue()


def test_what_cannot_be_counted_shows_the_time_that_has_passed():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    shown = step_bars(console)
    shown.add_task("compiling a step", total=None, shown="")
    with shown:
        shown.refresh()
    assert "0:00" in console.file.getvalue() and "left" not in console.file.getvalue()


def test_an_experiment_says_how_long_all_of_its_runs_will_take(seconds):
    """Four runs by two processes: one is under way, and the others take as long as it did."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    run = RunConfig(steps=100)
    job = Job("standard", run, Path("out"), "runs/standard/seed-0")
    with experiments.Bars(console, processes=2) as shown:
        shown.stage("runs", 4)
        (sink,) = shown.begin(job)
        seconds.now += 40
        sink.phase("compiling a step", 0, None)
        shown._bars.refresh()
        take(sink, seconds, range(1, 11), 6.0)
        shown._bars.refresh()
    text = console.file.getvalue()
    # 40 s and 100 steps of 6 s for each of three others, by two processes; 90 steps more of this one.
    assert re.findall(r"About .* runs.*", text) == [
        "About 25 minutes for 4 runs, if all are as fast as the first."
    ]
    assert "compiling a step" in text and f"{clock(90 * 6 + 3 * 640 / 2)} left" in text
