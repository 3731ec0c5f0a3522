"""Contests: processes of their own, turns, ratios, bounds; and what is made of them."""

import json
import os

import numpy as np
import pytest

from benchmarks.speed import figures, show
from benchmarks.speed.__main__ import main
from benchmarks.speed.contest import Competition, ContestError, Entry, Times, compete
from benchmarks.speed.growth import AXES, Growth, shape_at
from benchmarks.speed.lines import PEAK, Claim, Contest, Outcome, contests, find

TASKS = "tests.benchmarks.tasks"


def sleeping(seconds):
    return Entry(f"{TASKS}:sleeping", (seconds,))


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
