"""A run that is killed again and again ends with the same bytes as one that is not."""

from pathlib import Path

import pytest

from benchmarks.kill import run_and_kill

RECIPE = "--architecture.flavour modern --optimizer.name muon --optimizer.ema 0.9"
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.usefixtures("all_cores")
@pytest.mark.parametrize(
    ("kills", "seeds", "fields"), [(4, 1, RECIPE), pytest.param(4, 2, "", marks=pytest.mark.slow)]
)
def test_kills_do_not_change_a_bit(tmp_path, monkeypatch, kills, seeds, fields):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Where the machine is busy the run must not end before it can be caught.
    result = run_and_kill(tmp_path, kills, seeds, steps_a_kill=60, fields=fields)
    assert result["identical"], result
    for moment, how in result["caught"]:
        assert how is not None or moment == "at_the_end", result
    assert ("while_saving", "saving") in result["caught"], result
