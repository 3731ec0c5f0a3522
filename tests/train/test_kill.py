"""A run that is killed again and again ends with the same bytes as one that is not."""

from pathlib import Path

import pytest

from benchmarks.kill import run_and_kill

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize(("kills", "seeds"), [(6, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_kills_do_not_change_a_bit(tmp_path, monkeypatch, kills, seeds):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Where the machine is busy the run must not end before it can be caught.
    result = run_and_kill(tmp_path, kills, seeds, steps_a_kill=60)
    assert result["identical"], result
    for moment, how in result["caught"]:
        assert how is not None or moment == "at_the_end", result
    assert ("while_saving", "saving") in result["caught"], result
