"""The commands of experiments, from one end to the other, at a tiny size."""

import io
import json
from pathlib import Path

import jax
import pytest
import yaml
from rich.console import Console

from qkvflow.cli import experiment_display as display
from qkvflow.cli.main import main
from qkvflow.experiments.results import read_experiment
from tests.experiments.support import tiny_fields
from tests.train.support import write_text


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A plan in a file, in a directory to work in."""
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    fields = tiny_fields(
        write_text(tmp_path / "text.txt"), sweep={"learning_rates": [1e-3, 1e-2], "steps": 4}, test=True
    )
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(fields))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield str(path)


def test_from_a_sweep_to_a_page(plan, tmp_path, capsys):
    assert main(["tune", "--plan", plan, "--out", "out"]) == 0
    assert "lr-0.01" in capsys.readouterr().out
    assert main(["validate", "--plan", plan, "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "Differences of valid losses" in printed
    assert "cannot go below 0.5" in printed
    summary = json.loads((tmp_path / "out" / "statistics_summary.json").read_text())
    assert {"loss_mean", "loss_std", "loss_ci95", "speed_mean", "params", "all_losses"} <= set(
        summary["gated"]
    )
    assert len(summary["gated"]["all_test_losses"]) == 2
    tests = json.loads((tmp_path / "out" / "significance_tests.json").read_text())
    assert [test["split"] for test in tests] == ["valid", "test"]
    assert (tmp_path / "out" / "seed_1.pkl").is_file()
    assert main(["figures", "--results", "out", "--out", "publication_figures"]) == 0
    assert (tmp_path / "publication_figures" / "statistical_performance.pdf").is_file()
    assert (tmp_path / "publication_figures" / "results_table.tex").is_file()
    assert main(["report", "--results", "out"]) == 0
    assert "once, after its last step" in (tmp_path / "out" / "report.md").read_text()
    capsys.readouterr()
    assert main(["flops", "--results", "out", "--loss", "4.0"]) == 0
    assert "s to 4" in capsys.readouterr().out
    assert main(["flops", "--plan", plan, "--results", "out"]) == 2
    assert "not both" in capsys.readouterr().err
    assert main(["ablate", "--plan", plan, "--arms", "gated", "--out", "out2"]) == 0


def test_costs_are_measured_where_there_are_no_runs(plan, tmp_path, capsys):
    assert main(["flops", "--plan", plan, "--steps", "2", "--out", "flops.json"]) == 0
    rows = json.loads((tmp_path / "flops.json").read_text())
    assert rows["gated"]["ms_per_step"] > 0
    assert main(["flops", "--plan", plan, "--loss", "2.0"]) == 2
    assert "name finished runs with --results" in capsys.readouterr().err


def test_mistakes_show_before_any_work(plan, tmp_path, capsys):
    assert main(["validate", "--plan", plan, "--arms", "gatd", "--out", "other"]) == 2
    assert "Did you mean 'gated'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert main(["report", "--results", "nothing"]) == 2
    assert "is no experiment" in capsys.readouterr().err


def test_tables_fit_into_a_terminal_of_80_columns():
    experiment = read_experiment(Path(__file__).parents[2] / "results" / "laptop")
    console = Console(width=80, file=io.StringIO())
    console.print(display.tuned_table(experiment.tuned))
    console.print(display.summary_table(experiment.results.summary, "Losses"))
    console.print(display.test_table(experiment.results.tests))
    printed = console.file.getvalue()
    assert "13,025,664" in printed
    assert "time_indexed_mlp" in printed
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed, printed
