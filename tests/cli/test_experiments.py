"""The commands of experiments, from one end to the other, at a tiny size."""

import dataclasses
import importlib
import io
import json
import pickle
import re
import shutil
from contextlib import ExitStack
from pathlib import Path

import jax
import pytest
import yaml
from rich.console import Console

from qkvflow.cli import experiment_display as display
from qkvflow.cli.experiment import run as run_command
from qkvflow.cli.experiment.cost import of_runs
from qkvflow.cli.main import main
from qkvflow.config import RunConfig
from qkvflow.config.yaml_files import merged
from qkvflow.experiments import report, slurm
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.plan import PLANS, Plan
from qkvflow.experiments.records import finished
from qkvflow.experiments.results import read_experiment
from qkvflow.experiments.summary import significance_tests
from qkvflow.experiments.trial import STEPS, TOKENS, WARNING
from qkvflow.lock import locked
from qkvflow.report.table import to_terminal
from tests.experiments.support import (
    check_pdf,
    check_picture,
    made_up_failure,
    made_up_record,
    numbers_of,
    tiny_fields,
)
from tests.support import CHROMIUM, COUNT_PARTS, look_at
from tests.train.support import write_text

RESULTS = Path(__file__).parents[2] / "results"


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


def test_every_plan_is_named_where_one_is_asked_for(capsys):
    for command in ("run", "tune", "ablate", "cost"):
        with pytest.raises(SystemExit):
            main(["experiment", command, "--help"])
        printed = capsys.readouterr().out
        assert not [path.stem for path in PLANS.glob("*.yaml") if path.stem not in printed]
    document = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    assert not [path.stem for path in PLANS.glob("*.yaml") if f"`{path.stem}`" not in document]


@pytest.mark.parametrize("command", ["run", "ablate", "tune"])
def test_nothing_is_begun_where_there_is_nothing_to_reuse(command, plan, tmp_path, capsys):
    arms = ["--arms", "standard", "gated"]
    options = ["--plan", plan, *arms, "--reuse", "nowhere", "--out", "out"]
    assert main(["experiment", command, *options]) == 2
    assert "nowhere is no experiment" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_from_a_sweep_to_a_page(plan, tmp_path, capsys):
    assert main(["experiment", "tune", "--plan", plan, "--out", "out"]) == 0
    assert "lr-0.01" in capsys.readouterr().out
    assert main(["experiment", "tune", "--plan", plan, "--out", "out"]) == 0
    assert "was already chosen; nothing was run." in capsys.readouterr().out
    assert main(["experiment", "run", "--plan", plan, "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "already finished" not in printed
    assert "Differences of valid losses" in printed
    assert "cannot go below 0.5" in " ".join(printed.split())
    summary = json.loads((tmp_path / "out" / "statistics_summary.json").read_text())
    assert {"loss_mean", "loss_std", "loss_ci95", "speed_mean", "params", "all_losses"} <= set(
        summary["gated"]
    )
    assert len(summary["gated"]["all_test_losses"]) == 2
    tests = json.loads((tmp_path / "out" / "significance_tests.json").read_text())
    assert [test["split"] for test in tests] == ["valid", "test"]
    assert "The test split is evaluated once" in printed
    of_seed = json.loads((tmp_path / "out" / "seed_1.json").read_text())
    assert pickle.loads((tmp_path / "out" / "seed_1.pkl").read_bytes()) == of_seed
    assert of_seed["gated"]["valid"]["loss"] == summary["gated"]["all_losses"][1]
    assert (tmp_path / "out" / "report.md").read_text().startswith("# out\n")
    assert main(["experiment", "report", "--results", "out", "--figures", "publication_figures"]) == 0
    figures = tmp_path / "publication_figures"
    for name in ("statistical_performance", "efficiency_with_error", "speed_comparison"):
        check_picture(figures / f"{name}.png")
        check_pdf(figures / f"{name}.pdf")
    assert r"\hline" in (figures / "results_table.tex").read_text()
    assert "once, after its last step" in (tmp_path / "out" / "report.md").read_text()
    if CHROMIUM is not None:
        found = look_at(tmp_path / "out" / "report.html", tmp_path, COUNT_PARTS)
        assert len(found["images"]) == 5 and min(found["images"]) > 500
    capsys.readouterr()
    assert main(["experiment", "cost", "--results", "out", "--loss", "4.0"]) == 0
    assert "seconds" in capsys.readouterr().out
    told = numbers_of((tmp_path / "out" / "report.md").read_text())
    assert main(["experiment", "pack", "out"]) == 0
    assert "8 runs in records.jsonl" in capsys.readouterr().out
    assert main(["experiment", "run", "--plan", plan, "--out", "out"]) == 0
    assert "4 of 4 runs were already finished; nothing was run." in capsys.readouterr().out
    assert numbers_of((tmp_path / "out" / "report.md").read_text()) == told
    assert main(["experiment", "report", "--results", "out", "out"]) == 2
    assert "name one with --out" in capsys.readouterr().err
    assert main(["experiment", "report", "--results", "out", "out", "--out", "both"]) == 0
    assert (tmp_path / "both" / "report.md").read_text().count("## Differences\n") == 2
    assert main(["experiment", "cost", "--plan", plan, "--results", "out"]) == 2
    assert "not both" in capsys.readouterr().err


def test_a_trial_is_short_and_says_everywhere_that_it_is_one(plan, tmp_path, capsys):
    run = ["experiment", "run", "--plan", plan, "--out", "out"]
    assert main([*run, "--quick"]) == 0
    assert WARNING in " ".join(capsys.readouterr().out.split())
    for page in ("report.md", "report.html"):
        text = (tmp_path / "out" / page).read_text()
        assert WARNING in text and "No run was evaluated on the test split." in text
    records = finished(read_experiment(tmp_path / "out").records)
    assert {(each.arm, each.seed) for each in records} == {
        (arm, seed) for arm in ("standard", "gated") for seed in (0, 1)
    }
    assert all(each.run["steps"] == STEPS and each.valid.tokens <= TOKENS for each in records)
    assert not (tmp_path / "out" / "sweep").exists()
    assert main(run) == 2, "an experiment does not go on where a trial was"
    assert "out" in capsys.readouterr().err


def test_a_packed_experiment_is_read_by_all_commands(plan, tmp_path, capsys):
    assert main(["experiment", "run", "--plan", plan, "--seeds", "3", "--out", "out"]) == 0
    before = (tmp_path / "out" / "report.md").read_text()
    capsys.readouterr()
    assert main(["experiment", "pack", "out"]) == 0
    assert "6 runs in records.jsonl" in capsys.readouterr().out  # four of the sweep
    assert not list((tmp_path / "out").rglob("seed-*.json"))
    assert main(["experiment", "report", "--results", "out"]) == 0
    assert (tmp_path / "out" / "report.md").read_text() == before
    assert main(["experiment", "cost", "--results", "out"]) == 0
    assert "gated" in capsys.readouterr().out
    assert main(["experiment", "run", "--plan", plan, "--seeds", "3", "--out", "out"]) == 0
    assert not list((tmp_path / "out").rglob("seed-*.json")), "a packed run was run again"
    assert main(["experiment", "pack", "nothing"]) == 2
    assert "nothing is no experiment" in capsys.readouterr().err
    assert main(["experiment", "pack"]) == 2
    assert "name the directory" in capsys.readouterr().err


def test_the_time_to_a_loss_is_that_of_runs_that_all_reached_it():
    records = [made_up_record("a", seed, loss) for seed, loss in enumerate((2.0, 2.2))]
    assert of_runs(records, 2.8).seconds_to_loss == 6.0
    assert of_runs(records, 2.6).seconds_to_loss == 9.0
    some = of_runs(records, 2.1)
    assert (some.seconds_to_loss, some.runs_that_reached_it) == (None, "1 of 2")


def test_what_was_tuned_for_equal_costs_is_what_run_takes(plan, tmp_path, capsys):
    equal = ["--plan", plan, "--reference", "gated", "--match", "flops", "--out", "out"]
    assert main(["experiment", "tune", *equal]) == 0
    made = (tmp_path / "out" / "tuned.json").read_text()
    assert main(["experiment", "run", *equal]) == 0
    assert (tmp_path / "out" / "tuned.json").read_text() == made
    assert main(["experiment", "tune", "--plan", plan, "--reuse", "nowhere", "--out", "other"]) == 2
    assert "nowhere is no experiment" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_some_arms_are_tuned_and_the_others_are_no_part_of_it(plan, tmp_path):
    assert main(["experiment", "tune", "--plan", plan, "--arms", "gated", "--out", "out"]) == 0
    assert list(json.loads((tmp_path / "out" / "tuned.json").read_text())) == ["gated"]
    assert list(yaml.safe_load((tmp_path / "out" / "plan.yaml").read_text())["arms"]) == ["gated"]


@pytest.fixture
def _logging_of_submitit():
    """Its logger keeps the stream that it finds when it is imported; not one that a test closes."""
    importlib.import_module("submitit")


@pytest.mark.usefixtures("_logging_of_submitit")
def test_workers_are_submitted_by_an_option(plan, tmp_path, capsys, monkeypatch):
    """Without a cluster submitit starts them here."""
    submitted = []

    def keeping(*arguments, **options):
        submitted.extend(slurm.submit(*arguments, **options))
        return submitted

    monkeypatch.setattr(run_command, "submit", keeping)
    submit = ["experiment", "run", "--plan", plan, "--out", "out", "--slurm"]
    assert main([*submit, "1", "--slurm-options", "timeout_min=5"]) == 0
    (worker,) = submitted
    assert f"Submitted: {worker.job_id}." in capsys.readouterr().out
    assert len(finished(worker.result())) == 4
    assert len(read_experiment(tmp_path / "out").records) == 4
    for options, sentence in (
        (["1", "--slurm-options", "partitoin=long"], "submitit says: "),
        (["1", "--slurm-options", "time"], "'time' is not name=value"),
        (["-2"], "slurm is -2; expected 0 to 1,000 workers"),
        (["1000000000"], "slurm is 1000000000; expected 0 to 1,000 workers"),
    ):
        assert main([*submit, *options]) == 2
        assert sentence in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_a_sentence(plan, tmp_path, capsys):
    (tmp_path / "file").write_text("no directory")
    results = Path(__file__).parents[2] / "results" / "compare"
    options = ["--results", str(results), "--figures", "file/figures"]
    assert main(["experiment", "report", *options]) == 2
    written = "file/figures/efficiency_with_error.png"
    assert f"{written} cannot be written: Not a directory." in capsys.readouterr().err


def test_an_ablation_leaves_a_table_and_a_figure(plan, tmp_path, capsys):
    arms = ["--steps", "6", "--seeds", "3", "5"]
    assert (
        main(["experiment", "ablate", "--plan", plan, *arms, "--reference", "gated", "--out", "out"])
        == 0
    )
    assert read_experiment(tmp_path / "out").plan.reference == "gated"
    assert "Differences of valid losses" in capsys.readouterr().out
    records = read_experiment(tmp_path / "out").records
    assert [(r.seed, r.run["steps"]) for r in records] == [(3, 6), (5, 6)] * 2
    check_picture(tmp_path / "out" / "figures" / "forest.png")
    check_pdf(tmp_path / "out" / "figures" / "forest.pdf")
    assert (tmp_path / "out" / "report.md").read_text().startswith("# out\n")


def test_runs_that_were_there_are_counted_apart_from_those_of_now(tmp_path):
    console = Console(file=io.StringIO(), width=100)
    jobs = [Job(arm, RunConfig(), tmp_path, f"runs/{arm}/seed-0") for arm in ("old", "new")]
    with display.Bars(console) as bars:
        bars.begin(jobs[1])
        for job in jobs:
            bars.end(job, made_up_record(job.arm, 0, 2.0))
    bars.tell()
    old, new, told = console.file.getvalue().splitlines()
    assert old.endswith("already finished") and not new.endswith("already finished")
    assert told == "1 of 2 runs were already finished; newly run: 1."


def test_what_runs_noted_is_shown_once():
    console = Console(file=io.StringIO(), width=100)
    with display.Bars(console) as bars:
        for seed in range(3):
            job = Job("a", RunConfig(), Path("out"), f"runs/a/seed-{seed}")
            notes = ("text [lost]",) if seed else ()
            bars.end(job, dataclasses.replace(made_up_record("a", seed, 2.0), notes=notes))
    lines = console.file.getvalue().splitlines()
    assert [line for line in lines if "lost" in line] == ["a: text [lost]"]


def test_a_page_elsewhere_leaves_the_results_as_they_are(tmp_path):
    results = shutil.copytree(RESULTS / "compare", tmp_path / "results")
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    for options in (["results"], ["results", str(RESULTS / "compare")]):
        place = ["--results", *(str(tmp_path / each) for each in options), "--out"]
        assert main(["experiment", "report", *place, str(tmp_path / "page")]) == 0
        pictures = re.findall(r"!\[.*\]\((.*)\)", (tmp_path / "page" / "report.md").read_text())
        assert all(picture.startswith("figures/") for picture in pictures)
        assert all((tmp_path / "page" / picture).is_file() for picture in pictures)
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before


def test_a_page_made_anew_keeps_its_title(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "draw_all", lambda *_: {})
    out = tmp_path / "out"
    shutil.copytree(RESULTS / "compare", out, ignore=shutil.ignore_patterns("figures"))
    kept = (out / "report.md").read_text().splitlines()[0]
    assert main(["experiment", "report", "--results", str(out)]) == 0
    assert (out / "report.md").read_text().splitlines()[0] == kept != "# out"
    title = "Gates [a](b) & <others>"
    for options in (["--title", title], []):
        assert main(["experiment", "report", "--results", str(out), *options]) == 0
        assert report.title_of(out) == title
    (out / "report.md").unlink()
    assert report.title_of(out) == "out"


@pytest.mark.parametrize(("what", "field"), [("parameters", "params"), ("flops", "training_flops")])
def test_arms_are_matched_by_an_option(plan, tmp_path, what, field):
    fields = yaml.safe_load(Path(plan).read_text())
    del fields["sweep"]
    fields["base"] |= {"steps": 60, "eval_every": 60, "save_every": 60}
    fields["base"]["architecture"] |= {"hidden_dim": 32}
    fields["seeds"] = 1
    Path(plan).write_text(yaml.safe_dump(fields))
    equal = ["--reference", "gated", "--match", what]
    assert main(["experiment", "run", "--plan", plan, *equal, "--out", "out"]) == 0
    summary = json.loads((tmp_path / "out" / "statistics_summary.json").read_text())
    assert summary["standard"][field] == pytest.approx(summary["gated"][field], rel=0.1)
    assert main(["experiment", "report", "--results", "out"]) == 0
    named = {"parameters": "parameters of gated", "flops": "training FLOP of gated"}[what]
    assert named in (tmp_path / "out" / "report.md").read_text()


def test_an_arm_that_fails_is_told_and_the_others_are_shown(plan, tmp_path, capsys):
    fields = yaml.safe_load(Path(plan).read_text())
    del fields["sweep"]
    broken = {"learning_rate": 1e30, "clip": 0.0, "warmup": 0}
    fields["arms"]["broken"] = {"model": "standard", "optimizer": broken}
    Path(plan).write_text(yaml.safe_dump(fields))
    assert main(["experiment", "run", "--plan", plan, "--arms", "gated", "broken", "--out", "out"]) == 1
    printed = capsys.readouterr().out
    assert "broken, seed 0 failed: Training stopped" in " ".join(printed.split())
    assert list(json.loads((tmp_path / "out" / "statistics_summary.json").read_text())) == ["gated"]


def test_errors_are_shown_as_they_are_and_every_arm_has_a_bar():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    run = RunConfig(steps=3)
    jobs = [Job(arm, run, Path("out"), f"runs/{arm}/seed-0") for arm in ("first", "second")]
    with display.Bars(console) as bars:
        bars.stage("runs", len(jobs))
        for job in jobs:
            (sink,) = bars.begin(job)
            sink.tick(3, 2.5)
            error = "cannot open [/some/place], f32[batch]\ntrace"
            bars.end(job, dataclasses.replace(made_up_failure(job.arm, 0), error=error))
    shown = console.file.getvalue()
    assert "cannot open [/some/place], f32[batch]" in shown
    last = shown[shown.rindex("runs ") :]
    assert "first seed-0" in last and "second seed-0" in last


def test_costs_are_measured_where_there_are_no_runs(plan, tmp_path, capsys):
    assert (
        main(["experiment", "cost", "--plan", plan, "--timed-steps", "2", "--json", "cost.json"]) == 0
    )
    rows = json.loads((tmp_path / "cost.json").read_text())
    assert rows["gated"]["ms_per_step"] > 0 and rows["gated"]["memory_bytes"] > 0
    assert main(["experiment", "cost", "--plan", plan, "--json", "counted.json"]) == 0
    counted = json.loads((tmp_path / "counted.json").read_text())
    assert counted["gated"]["ms_per_step"] is counted["gated"]["memory_bytes"] is None
    assert counted["gated"]["training_flops"] == rows["gated"]["training_flops"]
    assert main(["experiment", "cost", "--plan", plan, "--loss", "2.0"]) == 2
    assert "name their directory with --results" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["-1", "1000000000"])
def test_timed_steps_have_bounds(plan, capsys, steps):
    assert main(["experiment", "cost", "--plan", plan, "--timed-steps", steps]) == 2
    assert f"timed_steps is {steps}; expected 0 to 10,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": {"hidden_dim": 2**17}}, "The model with its optimizer needs"),
        ({"batch_size": 10**9}, "A batch needs"),
    ],
)
def test_costs_of_what_no_memory_can_hold_are_a_sentence(plan, capsys, change, words):
    fields = yaml.safe_load(Path(plan).read_text())
    fields["base"] = merged(fields["base"], change)
    Path(plan).write_text(yaml.safe_dump(fields))
    assert main(["experiment", "cost", "--plan", plan, "--timed-steps", "1"]) == 3
    assert words in capsys.readouterr().err


def test_mistakes_show_before_any_work(plan, tmp_path, capsys):
    assert main(["experiment", "run", "--plan", plan, "--arms", "gatd", "--out", "other"]) == 2
    assert "Did you mean 'gated'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert main(["experiment", "report", "--results", "nothing"]) == 2
    assert "is no experiment" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["laptop", "seeds"])
def test_tables_fit_into_a_terminal_of_80_columns(name):
    """Seven and eight learning rates."""
    experiment = read_experiment(RESULTS / name)
    printed = tables(experiment)
    for arm, row in experiment.summary.items():
        assert arm in printed
        assert f"{row.costs.parameters:,}" in printed
        assert f"{min(loss for _, loss in experiment.choices[arm].sweep if loss):.3f}*" in printed
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed, printed


def test_long_names_of_arms_are_folded_and_no_number_is_lost():
    experiment = read_experiment(RESULTS / "laptop")
    longer = {arm: f"{arm}_at_a_quarter_of_the_rate" for arm in experiment.summary}
    fields = experiment.plan.fields
    arms = {longer[arm]: {**table, "parameters_of": None} for arm, table in fields["arms"].items()}
    fields = {**fields, "arms": arms, "reference": longer["standard"]}
    records = [dataclasses.replace(r, arm=longer[r.arm]) for r in experiment.records]
    choices = {longer[arm]: choice for arm, choice in experiment.choices.items()}
    plan = Plan.of(fields)
    renamed = dataclasses.replace(experiment, plan=plan, records=records, choices=choices)
    printed = tables(renamed)
    assert all(f"{test.found.difference:+.4f}" in printed for test in renamed.tests)
    assert all(f"{row.costs.parameters:,}" in printed for row in renamed.summary.values())
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed, printed


def test_pairs_that_are_not_paired_are_marked():
    plan = Plan.of(tiny_fields("x.txt", seeds=4))
    seeds = {"standard": (0, 1, 2), "gated": (2, 3)}
    records = [made_up_record(arm, seed, 2.0 + 0.01 * seed) for arm in seeds for seed in seeds[arm]]
    console = Console(width=80, file=io.StringIO())
    console.print(to_terminal(display.difference_table(plan, significance_tests(plan, records))))
    printed = console.file.getvalue()
    assert "3 + 2" in printed and "-0.0150" in printed
    assert "not paired (Welch's test)" in " ".join(printed.split())
    assert "seeds cannot go below" not in printed


def test_what_was_read_last_is_written_last(plan, tmp_path, monkeypatch):
    """Another process that is writing the statistics is waited for."""
    out, console, held = tmp_path / "out", Console(file=io.StringIO()), ExitStack()
    fields = yaml.safe_load(Path(plan).read_text())
    small = Plan.of({**fields, "arms": {"standard": {"model": "standard"}}, "seeds": 1, "sweep": None})
    held.enter_context(locked(out / ".results.claim"))
    waited = []

    def let_go(seconds):
        waited.append(not (out / "statistics_summary.json").exists())
        held.close()

    monkeypatch.setattr("qkvflow.lock.time.sleep", let_go)
    display.run_experiment(small, out, console)
    assert waited == [True]
    assert (out / "statistics_summary.json").exists()


def tables(experiment):
    """What a command prints of an experiment."""
    console = Console(width=80, file=io.StringIO())
    display.show_experiment(experiment, console)
    return console.file.getvalue()
