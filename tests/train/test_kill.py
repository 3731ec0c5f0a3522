"""A run that is killed again and again ends with the same bytes as one that is not."""

import json
from pathlib import Path

from benchmarks.kill import run_and_kill

ROOT = Path(__file__).parent.parent.parent


def test_twenty_kills_do_not_change_a_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = run_and_kill(tmp_path, kills=20)
    assert result["identical"], result
    assert None not in result["caught"], result
    assert result["caught"].count("saving") >= 3, result
    assert "stepping" in result["caught"]
    assert result["last_kill_at"] < result["steps"]


def test_two_hundred_kills_were_survived():
    """As benchmarks/kill.py found."""
    result = json.loads((ROOT / "results" / "kill.json").read_text())
    assert result["identical"]
    assert result["kills"] - result["ended_before_the_kill"] >= 200
    assert result["saving"] >= 30
