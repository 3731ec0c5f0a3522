"""Contests: processes of their own, turns, ratios, bounds; and what is made of them."""

import functools
import importlib
import json
import logging
import os
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

import benchmarks
from benchmarks import drafts, early, step_parts, time_to_loss
from benchmarks.faults import clock_that_jumps_back
from benchmarks.speed import __main__ as command
from benchmarks.speed import costs, figures, growth, lines, ours, show
from benchmarks.speed.__main__ import main
from benchmarks.speed.contest import Competition, ContestError, Entry, Times, compete
from benchmarks.speed.growth import AXES, Growth, shape_at
from benchmarks.speed.lines import PEAK, Claim, Contest, Outcome, contests, find
from qkvflow.extras import pip_line
from qkvflow.models import MODELS, build_model, training_memory
from qkvflow.train import train
from tests.train.support import tiny_run, write_text

TASKS = "tests.benchmarks.tasks"


def sleeping(seconds):
    return Entry(f"{TASKS}:sleeping", (seconds,))


TINY = ours.Shape(hidden=16, heads=2, layers=1, length=16, batch=2)
AT_A_TINY_SIZE = {
    "matrix_product": lambda size: (8,),
    "training_step": lambda name, shape, seeds=1, dtype="float32": (name, TINY, min(seeds, 2), dtype),
    "gradients": lambda name, shape: (name, TINY),
    "generation": lambda name, shape, new: (name, TINY, 3),
    "continuation": lambda parts, shape, offset, capacity: (parts, TINY, min(offset, 64), 128),
    "state_space_scan": lambda route, chunk, *sizes: (route, min(chunk, 16), 1, 32, 2),
    "torch_training_step": lambda shape, compiled, bfloat16: (TINY, False, bfloat16),
    "transformers_generation": lambda shape, new: (TINY, 3),
}


@functools.cache
def facts_of(make, arguments):
    """Do a task once, here."""
    task = Entry(make, arguments).task()
    task.call()
    return task.facts


def compete_here(entries, rounds, advance):
    """A competition at a tiny size, in this process, of which the times say nothing."""
    facts = {}
    for name, entry in entries.items():
        smaller = AT_A_TINY_SIZE.get(entry.make.split(":")[1], lambda shape: (TINY,))
        facts[name] = {"flops": 1.0, **facts_of(entry.make, smaller(*entry.arguments))}
    for _ in range(rounds):
        advance()
    return Competition({name: Times((0.01,) * rounds) for name in entries}, facts, {})


class Here:
    """A contestant that stays in this process."""

    def __init__(self, entry):
        self.facts = compete_here({"": entry}, 0, None).facts[""]

    def close(self):
        pass


@pytest.fixture
def _here(monkeypatch, tmp_path):
    """Contests at a tiny size, in this process and without torch."""
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    for module in (lines, growth, step_parts):
        monkeypatch.setattr(module, "compete", compete_here)
    for module in (drafts, early, ours, step_parts, time_to_loss):
        monkeypatch.setattr(module, "keep_freed_memory", lambda: None)
    for module in (lines, step_parts, time_to_loss):
        monkeypatch.setattr(module, "peers_are_installed", lambda: False)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("_here")
def test_every_contest_is_held_and_keeps_when_and_what_it_measured(monkeypatch, tmp_path, capsys):
    small = build_model("standard", TINY.config(), key=jax.random.key(0))
    plan = training_memory(eqx.filter_eval_shape(lambda: small), 1, 8)
    monkeypatch.setattr(costs, "training_memory", lambda *_: plan)
    monkeypatch.setattr(costs, "Contestant", Here)
    monkeypatch.setattr(costs, "startup", functools.partial(lambda one, runs: one(1), costs.startup))
    for name in ("draw", "draw_growth"):  # after every contest
        monkeypatch.setattr(figures, name, lambda *_: None)
    for module in (costs, command):
        monkeypatch.setattr(module, "MODELS", {"standard": MODELS["standard"]})
    old = {"date": "before", "code": "another"}
    (tmp_path / "bench.json").write_text(json.dumps({"contests": {}, "growth": {}}))
    assert main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    assert pip_line("peers") in capsys.readouterr().out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [*record["contests"]] == [contest.key for contest in contests()]
    assert [*record["growth"]] == [*AXES]
    assert [*record["measured"]] == [*record["contests"], *AXES, "once"]
    record["measured"] = dict.fromkeys(record["measured"], old)
    (tmp_path / "bench.json").write_text(json.dumps(record))
    assert main(["--only", "seeds", "--rounds", "1", "--out", str(tmp_path)]) == 0
    again = json.loads((tmp_path / "bench.json").read_text())["measured"]
    assert again.pop("seeds").keys() == old.keys()
    assert {*map(str, again.values())} == {str(old)}, "each contest has its own"


class Alone(time_to_loss.Racer):
    """A learner that stays in this process."""

    def __init__(self, kind, steps, rate=None):
        self.steps, self.curve = steps, []
        learner = time_to_loss.KINDS[kind](steps, rate)
        self.facts = {"rate": learner.rate, "steps": steps}
        self._made = time_to_loss.turns(learner, steps)

    def turn(self):
        self.curve.append(next(self._made))

    def close(self):
        pass


SCRIPTS = {
    "attention": {"SHAPES": ((1, 2, 8, 4),), "RUNS": 1},
    "checkpoints": {"RUNS": 1, "SHAPE": TINY.config()},
    "depth_basis": {
        "LAYERS": 2,
        "TOKENS": 64,
        "STEPS": 2,
        "HEADS": 1,
        "DATA": "text.txt",
        "TRAINED": ("shared",),
    },
    "drafts": {"DEPTHS": (1,), "TOKENS": (2,), "TEMPERATURES": (0.8,), "ROUNDS": 1},
    "early": {"BOUNDS": (0.5,), "ROUNDS": 1},
    "faults": {"FAULTS": (clock_that_jumps_back,)},
    "kill": {"run_and_kill": lambda *_: {"caught": [("any_time", None), ("any_time", "saving")]}},
    "learning": {"MODELS": ("standard",), "DATA": "text.txt", "ORDER": 2},
    "magnitude_over_depth": {},
    "step_parts": {"SHAPES": {"small": TINY}, "ROUNDS": 1},
    "time_to_loss": {"Racer": Alone, "DATA": "text.txt", "SHAPE": TINY, "STEPS": 3, "TURN": 2},
    "unroll": {"DEPTHS": range(1, 2), "TRAINED_DEPTH": 2, "FAMILIES": ("low_rank",)},
}
SMALL_RUN = """
--steps 2 --batch-size 2 --length 8 --eval-tokens 64 --optimizer.warmup 1 --architecture.hidden-dim 8
--architecture.num-layers 1
"""


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_runs_at_a_tiny_size(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path / "text.txt")
    module = importlib.import_module(f"benchmarks.{name}")
    for constant, value in SCRIPTS[name].items():
        monkeypatch.setattr(module, constant, value)
    if name == "learning":
        monkeypatch.setattr(module, "OPTIONS", SMALL_RUN)
    if name == "magnitude_over_depth":
        run = tiny_run(text, steps=2)
        train(run, tmp_path / "runs" / "gated" / "seed-0")
        record = {"arm": "gated", "run": run.to_dict()}
        (tmp_path / "runs" / "gated" / "seed-0.json").write_text(json.dumps(record))
    if name in ("drafts", "early"):
        train(tiny_run(text, steps=2), tmp_path / "run")
    given = {"kill": ([],), "faults": (["--kills", "1"],), "time_to_loss": ([],)}
    given["drafts"] = given["early"] = (["--checkpoint", str(tmp_path / "run")],)
    arguments = given.get(name, ())
    module.main(*arguments, tmp_path)
    logging.disable(logging.NOTSET)
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found and (name != "faults" or found["clock_that_jumps_back"] == {"identical": True})
    assert capsys.readouterr().out


FALLS = {1e-3: 0.1, 2e-3: 0.3, 4e-3: 0.2}
"""Nats a turn, by learning rate."""


class Known(Alone):
    """A learner whose loss falls by so much in a turn of 10 steps and 1 second."""

    def __init__(self, kind, steps, rate=None):
        self.steps, self.curve, self.rate = steps, [], rate
        self.facts = {"rate": rate, "steps": steps}

    def turn(self):
        turns = len(self.curve) + 1
        self.curve.append((10 * turns, float(turns), 2.5 - FALLS[self.rate] * turns))


def test_a_peer_gets_the_rate_that_is_there_first_and_a_try_ends_when_it_is_too_late(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(time_to_loss, "Racer", Known)
    monkeypatch.setattr(time_to_loss, "RATES", tuple(FALLS))
    monkeypatch.setattr(time_to_loss, "LENGTHS", (60, 200))
    path = tmp_path / "time_to_loss.json"
    tries = time_to_loss.sweep(path)
    assert [of["needed"] for of in tries] == [None, 40, None, None, None, None]
    assert time_to_loss.best_of(tries) == (40, 60, 2e-3)
    monkeypatch.setattr(time_to_loss, "Racer", None)  # what is kept is not tried again
    assert time_to_loss.sweep(path) == tries
    monkeypatch.setattr(time_to_loss, "GOAL", 1.0)
    assert time_to_loss.kept_tries(path) == []


@pytest.mark.usefixtures("_here")
def test_the_sweep_of_the_peer_is_had_without_the_race(monkeypatch, tmp_path):
    monkeypatch.setattr(time_to_loss, "peers_are_installed", lambda: True)
    monkeypatch.setattr(time_to_loss, "Racer", Known)
    monkeypatch.setattr(time_to_loss, "RATES", tuple(FALLS))
    monkeypatch.setattr(time_to_loss, "race", None)
    time_to_loss.main(["--sweep"], tmp_path)
    assert time_to_loss.kept_tries(tmp_path / "time_to_loss.json")


def test_of_learners_that_take_turns_the_time_to_the_goal_is_compared(monkeypatch):
    fast, slow = Known("qkvflow", 200, 2e-3), Known("torch", 200, 1e-3)
    records = time_to_loss.race({"qkvflow": fast, "torch": slow})
    assert (records["qkvflow"]["seconds"], records["torch"]["seconds"]) == (4.0, 10.0)
    found = time_to_loss.finding(records)
    assert found["ratio"] == pytest.approx(0.4) and not found["holds"]
    late = time_to_loss.race(
        {"qkvflow": Known("qkvflow", 30, 2e-3), "torch": Known("torch", 200, 1e-3)}
    )
    assert late["qkvflow"]["seconds"] is None
    assert time_to_loss.finding(late)["holds"] is False


def test_a_learner_that_cannot_be_made_in_its_process_is_an_error_here():
    with pytest.raises(ContestError, match="no such kind"):
        time_to_loss.Racer("no such kind", 1)


@pytest.mark.peers
def test_the_peer_learns_from_the_same_batches_and_is_evaluated_on_the_same_tokens(
    tmp_path, monkeypatch
):
    pytest.importorskip("torch")
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    text = write_text(tmp_path / "text.txt")
    for name, value in {"DATA": str(text), "SHAPE": TINY, "TURN": 20}.items():
        monkeypatch.setattr(time_to_loss, name, value)
    first, last = time_to_loss.turns(time_to_loss.Torch(40, 1e-2), 40)
    assert (first[0], last[0]) == (20, 40)
    assert last[2] < first[2] < 5.0


def test_no_script_is_forgotten():
    paths = Path(benchmarks.__file__).parent.glob("*.py")
    found = {path.stem for path in paths if "__main__" in path.read_text()}
    with_levanter = {name for name in found if name.startswith("levanter_")}  # tests/levanter
    assert found - with_levanter == {*SCRIPTS}


@pytest.mark.peers
@pytest.mark.parametrize("contest", contests(), ids=lambda contest: contest.key)
def test_peers_take_part(contest):
    pytest.importorskip("torch")
    theirs = {name: e for name, e in contest.entries.items() if e.make.startswith(lines.PEERS)}
    compete_here(theirs, 1, lambda: None)


@pytest.mark.peers
@pytest.mark.parametrize("part", step_parts.PEERS)
def test_parts_of_peers_are_made(part):
    pytest.importorskip("torch")
    part(TINY).call()


def test_contestants_take_turns_in_processes_of_their_own():
    rounds = []
    found = compete({"slow": sleeping(0.03), "fast": sleeping(0.01)}, 3, lambda: rounds.append(1))
    assert len(rounds) == len(found.times["slow"].rounds) == 3
    assert len({os.getpid(), *(facts["process"] for facts in found.facts.values())}) == 3
    ratio, low, high = found.times["slow"].ratio_to(found.times["fast"])
    assert low <= ratio <= high and 2 < ratio < 5


def test_an_optional_contestant_that_fails_is_absent_and_another_is_an_error():
    failing = Entry(f"{TASKS}:failing", optional=True)
    found = compete({"here": sleeping(0.001), "gone": failing}, 1, lambda: None)
    assert list(found.times) == ["here"] and "no such machine" in found.absent["gone"]
    with pytest.raises(ContestError, match="no such machine"):
        compete({"gone": Entry(f"{TASKS}:failing")}, 1, lambda: None)
    with pytest.raises(ContestError, match="without an answer"):
        compete({"dead": Entry(f"{TASKS}:dying")}, 1, lambda: None)


def competition():
    times = {
        "ours": Times((2.0, 2.0, 4.0)),
        "peer": Times((3.0, 2.5, 5.0)),
        "faster peer": Times((2.0, 2.5, 2.5)),
        PEAK: Times((1.0, 1.0, 1.0)),
    }
    facts = {name: {"flops": 10.0} for name in times}
    return Competition(times, facts, {})


def test_a_ratio_is_the_median_of_the_rounds_to_the_fastest_peer_with_their_quartiles():
    finding = find(Claim("ours", ("peer", "faster peer", "absent"), 1.0), competition())
    assert finding.against == "faster peer"
    assert finding.ratio == pytest.approx(1.0)
    assert finding.quartiles == pytest.approx(tuple(np.percentile([1.0, 0.8, 1.6], (25, 75))))
    assert finding.share_of_peak == pytest.approx(0.5)
    assert finding.holds and finding.milliseconds == 2000
    assert find(Claim("ours", ("peer",), 0.5), competition()).holds is False
    assert find(Claim("ours", ("peer",)), competition()).holds is None
    four = find(Claim("ours", ("peer",), work=4.0), competition())
    assert four.ratio == pytest.approx(0.8 / 4)


def test_the_exponent_of_a_power_law_is_found():
    values = (128, 256, 512, 1024)
    growth = Growth("length", "standard", values, tuple(0.5 + 1e-9 * n**3 for n in values))
    assert 0.3 < growth.exponent < 3
    exact = Growth("length", "standard", values, tuple(3.0 * n**1.5 for n in values))
    assert exact.exponent == pytest.approx(1.5)


def test_an_axis_changes_itself_and_long_texts_come_one_at_a_time():
    for axis, values in AXES.items():
        for value in values:
            assert getattr(shape_at(axis, value), axis) == value
    assert shape_at("length", 4096).batch == 1 and shape_at("batch", 64).batch == 64


def test_every_claim_is_about_contestants_that_take_part():
    held = contests()
    assert len({contest.key for contest in held}) == len(held)
    for contest in held:
        for claim in contest.claims:
            assert claim.name in contest.entries
            assert set(claim.against) <= contest.entries.keys()


def test_records_are_json_and_tables_and_figures_show_them(tmp_path):
    claims = (Claim("ours", ("peer",), 1.0), Claim("ours", ("faster peer",)))
    found = competition()
    contest = Contest("a", "A contest", {}, claims)
    outcome = Outcome(contest, found, tuple(find(claim, found) for claim in claims))
    record = json.loads(json.dumps(show.contest_record(outcome)))
    assert record["findings"][0]["ratio"] == pytest.approx(0.8) and record["findings"][0]["holds"]
    assert len(show.contest_table(record).rows) == 2
    growth = Growth("batch", "standard", (1, 2, 4), (0.1, 0.2, 0.4))
    grown = {axis: {"standard": show.growth_record(growth)} for axis in AXES}
    assert len(show.growth_table(grown).rows) == len(AXES)
    figures.draw({"contests": {"a": record}}, tmp_path / "bench.png")
    figures.draw_growth(grown, tmp_path / "growth.png")
    figures.draw_growth({"batch": grown["batch"]}, tmp_path / "one.png")
    for name in ("bench.png", "growth.png", "one.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_command_measures_what_is_asked_and_keeps_what_was_measured(tmp_path, capsys):
    before = {"contests": {}, "growth": {}, "once": {"help_seconds": 1.0}}
    (tmp_path / "bench.json").write_text(json.dumps(before))
    assert main(["--only", "flat", "--rounds", "1", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["once"] == before["once"] and list(record["contests"]) == ["flat"]
    finding = record["contests"]["flat"]["findings"][0]
    assert finding["name"] == "last 64 tokens" and finding["at_most"] == 1.05
    assert "last 64 tokens" in capsys.readouterr().out
    assert (tmp_path / "bench.png").is_file()


def test_a_file_that_is_no_json_is_named_and_left_alone(tmp_path, capsys):
    (tmp_path / "bench.json").write_text("{")
    assert main(["--only", "flat", "--rounds", "1", "--out", str(tmp_path)]) == 2
    assert "is not JSON" in capsys.readouterr().err
    assert (tmp_path / "bench.json").read_text() == "{"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--only", "step-smal"], "step-small"), (["--rounds", "0"], "at least 1")],
)
def test_what_cannot_be_measured_is_said_before_anything_is_done(arguments, words, tmp_path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "new")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
