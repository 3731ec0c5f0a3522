"""What the commands that run experiments have in common: a bar for each run, the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from qkvflow.experiments.floors import ngram_floors
from qkvflow.experiments.jobs import Job, Tuned
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Record
from qkvflow.experiments.results import Experiment, read_experiment, write_results
from qkvflow.experiments.reuse import check_others
from qkvflow.experiments.runner import Watcher, complete, prepare
from qkvflow.experiments.summary import megabytes
from qkvflow.lock import waiting
from qkvflow.statistics import smallest_p_value
from qkvflow.train import Sink


class Bars(Watcher):
    """A bar for the whole experiment, one for each arm, and a line for each run that ended."""

    def __init__(self, console: Console):
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
        )
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._all = self._bars.add_task("", total=1, loss="", visible=False)
        self._arms: dict[str, TaskID] = {}

    def stage(self, title: str, jobs: int) -> None:
        for task in self._arms.values():
            self._bars.remove_task(task)
        self._arms.clear()
        self._bars.reset(self._all, total=jobs, description=title, visible=True)

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def begin(self, job: Job) -> Sequence[Sink]:
        if job.arm not in self._arms:
            self._arms[job.arm] = self._bars.add_task("", loss="")
        task = self._arms[job.arm]
        self._bars.reset(
            task, total=job.run.steps, description=f"{job.arm} {job.out.name}", loss="compiling"
        )
        return [_RunBar(self._bars, task)]

    def end(self, job: Job, record: Record) -> None:
        self._bars.advance(self._all)
        name = f"{job.arm:<20} {job.out.name:<10}"
        if record["status"] == "failed":
            _print_error(self._bars.console, f"{name} failed: {record['error'].splitlines()[0]}")
        else:
            loss, speed = record["valid"]["loss"], record["ms_per_step"]
            origin = f"  from {record['taken_from'].split('/')[0]}" if "taken_from" in record else ""
            line = f"{name} valid {loss:.4f}  {speed:.0f} ms/step{origin}"
            self._bars.console.print(line, highlight=False, markup=False)


class _RunBar(Sink):
    def __init__(self, bars: Progress, task: Any):
        self._bars, self._task = bars, task

    def write(self, record: dict[str, Any]) -> None:
        if record["kind"] == "start":
            self._bars.update(self._task, completed=record["step"])

    def tick(self, step: int, loss: float) -> None:
        self._bars.update(self._task, completed=step, loss=f"loss {loss:.3f}")


def tuned_table(tuned: Tuned) -> Table:
    """The sweep: a row an arm, a column a learning rate, the choice marked."""
    rates = sorted({rate for entry in tuned.values() for rate, _ in entry["sweep"]})
    table = Table(
        title="Valid loss by learning rate",
        title_justify="left",
        caption="*: chosen. !: chosen, at an end: it may do better outside.",
        caption_justify="left",
        box=box.SIMPLE,
        padding=0,
    )
    table.add_column("arm", overflow="fold")
    for rate in rates:
        table.add_column(_short(rate), justify="right", no_wrap=True)
    for arm, entry in tuned.items():
        losses = dict(map(tuple, entry["sweep"]))
        marks = {entry["learning_rate"]: "*" if entry["inside"] else "!"}
        table.add_row(arm, *(_cell(losses.get(rate), marks.get(rate, " ")) for rate in rates))
    return table


def _short(rate: float) -> str:
    """As in 2.5e-4."""
    digits, exponent = f"{rate:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _cell(loss: float | None, mark: str) -> str:
    return "failed" if loss is None else f"{loss:.3f}{mark}"


def summary_table(summary: dict[str, dict[str, Any]], title: str) -> Table:
    """One row an arm: what it reached and what it costs."""
    table = Table(
        title=title,
        title_justify="left",
        caption="b/B: bits a byte; MFLOP: a token; ms: a step; MB: memory; n: seeds.",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("arm", overflow="fold")
    for heading in ("valid", "+-", "b/B", "params", "MFLOP", "ms", "MB", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm, row in summary.items():
        half = row["loss_ci95"]
        table.add_row(
            arm,
            f"{row['loss_mean']:.4f}",
            "" if half is None else f"{half:.4f}",
            f"{row['bits_per_byte']:.3f}",
            f"{row['params']:,}",
            f"{row['flops_per_token'] / 1e6:.2f}",
            f"{row['speed_median']:.0f}",
            megabytes(row["memory_bytes"]),
            str(row["num_seeds"]),
        )
    return table


def test_table(tests: Sequence[dict[str, Any]]) -> Table:
    """Every pair: difference of valid losses, its interval, p-values."""
    paired = [test for test in tests if test["paired"]]
    caption = f"p: paired t-test; Holm: of {tests[0]['comparisons_in_family']} pairs; flips: of signs"
    if paired:
        pairs = max(len(test["seeds"]) for test in paired)
        caption += f", which with {pairs}\nseeds cannot go below {smallest_p_value(pairs):.4g}"
    if len(paired) < len(tests):
        caption += ".\n~: too few seeds in common, not paired (Welch's test)"
    table = Table(
        title="Differences of valid losses",
        title_justify="left",
        caption=f"{caption}. Equivalence, size, power: see report.",
        caption_justify="left",
        box=box.SIMPLE,
        padding=0,
    )
    for heading in ("first", "second"):
        table.add_column(heading, overflow="fold")
    for heading in ("diff", "95%", "p", "Holm", "flips"):
        table.add_column(heading, justify="right", no_wrap=True)
    for test in tests:
        low, high = test["difference_ci95"]
        table.add_row(
            test["model1"],
            test["model2"],
            f"{'' if test['paired'] else '~'}{test['difference']:+.4f}",
            f"{low:+.3f} {high:+.3f}",
            _p_value(test["p_value"]),
            _p_value(test["p_value_holm"]),
            _p_value(test["p_value_sign_flip"]),
        )
    return table


def _p_value(p: float | None) -> str:
    if p is None:
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def show_failures(console: Console, failed: Sequence[dict[str, Any]], out: Path) -> None:
    """A sentence for each run that failed."""
    for failure in failed:
        first = failure["error"].splitlines()[0]
        where = out / "runs" / failure["arm"] / f"seed-{failure['seed']}.json"
        _print_error(console, f"{failure['arm']}, seed {failure['seed']} failed: {first} ({where})")


def _print_error(console: Console, text: str) -> None:
    """As it is: an error may have brackets that are not markup."""
    console.print(text, style="red", highlight=False, markup=False)


def run_experiment(
    plan: Plan,
    out: Path,
    console: Console,
    reuse: Sequence[Path] = (),
    reference: str | None = None,
) -> Experiment:
    """Run what is missing of a plan, with bars, and write what all runs in its directory say.

    What the experiments in `reuse` have run already is taken from there; `reference` is `prepare`'s.
    """
    check_others(reuse)
    data = prepare(plan, out, reference)
    with Bars(console) as bars:
        complete(plan, out, bars, reuse)
    ngram_floors(data, out)
    with waiting(out / ".results.claim"):  # what was read last is written last
        experiment = read_experiment(out)
        write_results(experiment)
    return experiment


def show_experiment(experiment: Experiment, console: Console) -> int:
    """Show the tables of an experiment; the exit code, 1 if a run failed."""
    results, out = experiment.results, experiment.out
    if experiment.tuned:
        console.print(tuned_table(experiment.tuned))
    console.print(summary_table(results.summary, "Loss on the whole valid split, and costs"))
    if results.tests:
        console.print(test_table(results.tests))
    show_failures(console, results.failures, out)
    if experiment.plan.test:
        console.print("The test split is opened, once a run, when it has ended: see the report.")
    console.print(f"Written: {out}/statistics_summary.json, significance_tests.json, seed_*.json")
    return 1 if results.failures else 0
