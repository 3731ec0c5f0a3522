"""The benchmarks around Levanter run, at a tiny size."""

import json
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import levanter_100m, levanter_kills, levanter_memory
from qkvflow.models import MODELS

SCRIPTS = (levanter_100m, levanter_kills, levanter_memory)


def run(script, monkeypatch, out, *options):
    """What a benchmark writes, into another file."""
    monkeypatch.setattr(script, "OUT", out)
    monkeypatch.setattr(sys, "argv", [script.__name__, *options])
    script.main()
    return json.loads(out.read_text())


def test_no_script_is_forgotten():
    paths = Path(benchmarks.__file__).parent.glob("levanter_*.py")
    assert {path.stem for path in paths} == {script.__name__.rpartition(".")[2] for script in SCRIPTS}


def test_memory_is_counted_by_model_size_and_devices(monkeypatch, tmp_path):
    monkeypatch.setattr(levanter_memory, "LAYERS", {"125M": 12})
    monkeypatch.setattr(levanter_memory, "MODELS", {"shared": MODELS["shared"]})
    found = run(levanter_memory, monkeypatch, tmp_path / "memory.json", "--table")
    (row,) = found["rows"]
    assert row["model"] == "shared" and not found["cells"]


def test_a_step_of_a_model_is_timed_and_weighed(monkeypatch, tmp_path):
    small = {"flavour": "modern", "hidden_dim": 32, "num_heads": 2, "num_layers": 2}
    monkeypatch.setitem(levanter_100m.CONFIG["model"], "architecture", small)
    monkeypatch.setitem(levanter_100m.CONFIG["trainer"], "num_train_steps", 4)
    monkeypatch.setattr(levanter_100m, "VOCABULARY", 300)
    monkeypatch.setattr(levanter_100m, "SIDE", 256)
    found = run(levanter_100m, monkeypatch, tmp_path / "found.json")
    assert 0 < found["mfu"] < 1 and found["last_loss"] < 7 and found["parameters"] > 10_000


def test_a_kill_changes_no_loss(monkeypatch, tmp_path):
    with pytest.raises(SystemExit) as stop:
        run(levanter_kills, monkeypatch, tmp_path / "kills.json", "--kills", "1")
    found = json.loads((tmp_path / "kills.json").read_text())
    assert stop.value.code == 0, found
    assert len(found["kills"]) == 1 and found["largest_difference"] < 1e-5
