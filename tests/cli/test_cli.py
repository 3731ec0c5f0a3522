"""The command line: help that teaches, mistakes that are sentences, and the main job."""

import json
import re
import shutil
from pathlib import Path

import jax
import pytest

from qkvflow import __version__
from qkvflow.cli.compare import _beaten, program_name
from qkvflow.cli.main import COMMANDS, GROUPS, main
from qkvflow.models import MODELS


def test_help_lists_every_command(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_commands(group, capsys):
    for arguments in ([group], [group, "--help"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(f"  {name} " in printed for name in GROUPS[group])
    assert max(map(len, printed.splitlines())) <= 80


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_an_unknown_command_is_a_sentence(capsys):
    assert main(["compair"]) == 2
    assert "There is no command 'compair'. Did you mean 'compare'?" in capsys.readouterr().err
    assert main(["experiment", "rum"]) == 2
    assert "There is no experiment command 'rum'. Did you mean 'run'?" in capsys.readouterr().err


def test_help_of_a_command_explains_its_options(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "--learning-rate" in printed
    assert "Training steps per model." in printed


def test_a_configuration_that_cannot_be_is_a_sentence_and_no_traceback(capsys):
    assert main(["compare", "--hidden-dim", "30", "--steps", "1"]) == 2
    assert "hidden_dim 30 is not divisible by num_heads 4" in capsys.readouterr().err
    assert main(["compare", "--steps", "0", "--batch-size", "-1"]) == 2
    printed = capsys.readouterr()
    assert "steps is 0" in printed.err
    assert "batch_size is -1" in printed.err
    assert "standard" not in printed.out, "work has started"


def test_a_number_of_processes_that_cannot_be_is_a_sentence(capsys):
    assert main(["compare", "--processes", "0"]) == 2
    printed = capsys.readouterr()
    assert "processes is 0; expected at least 1." in printed.err
    assert "standard" not in printed.out, "work has started"


def test_the_best_of_the_n_grams_that_a_model_beats_is_named():
    baselines = {"1-gram": 3.1, "2-gram": 2.4, "3-gram": 1.8, "4-gram": 1.5, "5-gram": 1.9}
    found = {loss: _beaten(loss, baselines) for loss in (3.2, 2.0, 1.6, 1.5, 1.4)}
    assert found == {3.2: "", 2.0: "2-grams", 1.6: "3-grams", 1.5: "3-grams", 1.4: "4-grams"}


def test_what_to_try_next_is_said_as_the_shell_knows_the_command(monkeypatch):
    """`make compare` calls it by its path."""
    monkeypatch.setattr("sys.argv", [".venv/bin/qkvflow", "compare"])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert program_name() == ".venv/bin/qkvflow"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/qkvflow")
    assert program_name() == "qkvflow"


def test_a_directory_that_cannot_be_made_is_a_sentence_and_no_traceback(tmp_path, capsys):
    (tmp_path / "file").write_text("no directory")
    results = Path(__file__).parents[2] / "results" / "long"
    out = str(tmp_path / "file" / "page")
    assert main(["experiment", "report", "--results", str(results), "--out", out]) == 2
    assert "cannot be written: Not a directory." in capsys.readouterr().err


def test_compare_trains_every_model_and_shows_what_differs(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("QKVFLOW_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A weight is a curve over depth.\n" * 800)
    small = "--data text.txt --steps 24 --hidden-dim 16 --num-layers 2 --length 32 --processes 1"
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # optax needs it
        assert main(["compare", *small.split()]) == 0
    printed = capsys.readouterr().out
    for name in MODELS:
        (row,) = re.findall(rf"^ ?{name} +[\d,]+ +\d.*$", printed, re.MULTILINE)
        assert len(row) <= 80 and "…" not in row
        valid = float(row.split()[2])
        assert valid < 5.0, f"{name} learned nothing: {valid}"
        assert re.search(r" \d+ s +\d+ MB *$", row), row
    assert "table of 6-grams" in printed
    page = (tmp_path / "comparison" / "report.html").read_text()
    assert page.index('<section class="conclusion">') < page.index("<figure>") < page.index("<table>")
    conclusion = page[page.index("<section") : page.index("</section>")]
    results = json.loads((tmp_path / "tong_comparison_results.json").read_text())
    best = min(MODELS, key=lambda name: results[name]["loss_mean"])
    assert f"<strong>{best} has the lowest loss, " in conclusion, "which model is best here"
    assert " parameters, " in conclusion and " ms per step" in conclusion, "at what cost"
    assert f"--run comparison/runs/{best}/seed-0" in conclusion, "and what to try next"
    assert "does not rank the models" in conclusion
    assert results["standard"]["params"]
    (tmp_path / "tong_comparison_results.pkl").unlink()
    for out in ("comparison", "other"):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main(["compare", *small.split(), "--out", out]) == 0
        assert f"{len(MODELS)} of {len(MODELS)} runs were already finished" in capsys.readouterr().out
        assert not (tmp_path / "tong_comparison_results.pkl").exists(), "all of it goes to --out"
        assert (tmp_path / out / "tong_comparison_results.pkl").is_file()
        shutil.move(out, "other")
