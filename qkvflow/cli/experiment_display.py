"""What the commands that run experiments have in common: a bar for each run, the tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from qkvflow.cli.bars import LONG, Pace, duration, step_bars
from qkvflow.experiments import tables
from qkvflow.experiments.baselines import ngram_baselines
from qkvflow.experiments.jobs import Job
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.records import Choices, Failed, Finished, Record
from qkvflow.experiments.results import Experiment, read_experiment, write_results
from qkvflow.experiments.runner import Watcher, complete, prepare
from qkvflow.experiments.summary import Comparison, Summary, answers_by_arm
from qkvflow.experiments.trial import WARNING
from qkvflow.experiments.workers import sharing_cores, workers
from qkvflow.lock import waiting
from qkvflow.progress import elapsed
from qkvflow.provenance import now
from qkvflow.report.table import Table, to_terminal
from qkvflow.statistics import smallest_p_value
from qkvflow.train import Sink

CHECKING, DRAWING = "checking every run of the plan", "drawing the page"


class Bars(Watcher):
    """A bar for the whole experiment, one for each arm, and a line for each run that ended."""

    def __init__(self, console: Console, processes: int = 1):
        self._bars = step_bars(console)
        self._all = self._bars.add_task("", total=1, shown="", visible=False)
        self._arms: dict[str, TaskID] = {}
        self._began, self._begun = now(), set[Path]()
        self._before: list[bool] = []
        self._noted = set[str]()
        self._processes, self._has_said = processes, False
        self._seconds = list[float]()
        """What runs of this process took."""
        self._stage_jobs = self._stage_done = 0

    def stage(self, title: str, jobs: int) -> None:
        for task in self._arms.values():
            self._bars.remove_task(task)
        self._arms.clear()
        self._stage_jobs, self._stage_done, self._seconds = jobs, 0, []
        self._bars.reset(self._all, total=jobs, description=title, visible=True, shown="", left=None)

    def __enter__(self) -> "Bars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def begin(self, job: Job) -> Sequence[Sink]:
        self._begun.add(job.out)
        if job.arm not in self._arms:
            self._arms[job.arm] = self._bars.add_task("", shown="")
        task = self._arms[job.arm]
        name, steps = f"{job.arm} {job.out.name}", job.run.steps
        self._bars.reset(task, total=steps, description=name, shown="", left=None)
        return [_RunBar(self, self._bars, task, job.run.steps)]

    def tell_left(self, run: Pace) -> None:
        """Show how long all runs of this stage will take, by those that have ended and by this one."""
        each = sum(self._seconds) / len(self._seconds) if self._seconds else run.whole
        if run.left is None or each is None:
            return
        others = each * (self._stage_jobs - self._stage_done - 1) / self._processes
        self._bars.update(self._all, left=run.left + others)
        if not self._has_said and run.left + others > LONG:
            runs = f"{self._stage_jobs - self._stage_done} runs, if all are as fast as the first"
            line = f"{duration(run.left + others).capitalize()} for {runs}."
            self._bars.console.print(line, highlight=False)
        self._has_said = True

    def took(self, seconds: float) -> None:
        """A run of this process has ended."""
        self._seconds.append(seconds)

    def end(self, job: Job, record: Record) -> None:
        self._stage_done += 1
        self._bars.advance(self._all)
        before = isinstance(record, Finished) and record.origin.ended <= self._began
        self._before.append(before and job.out not in self._begun)
        name = f"{job.arm:<20} {job.out.name:<10}"
        if isinstance(record, Failed):
            _print_error(self._bars.console, f"{name} failed: {record.sentence}")
        else:
            source = record.origin.taken_from
            origin = "" if source is None else f"  from {source.split('/')[0]}"
            origin += "  already finished" if self._before[-1] else ""
            line = f"{name} valid {record.valid.loss:.4f}  {record.ms_per_step:.0f} ms/step{origin}"
            self._bars.console.print(line, highlight=False, markup=False)
            self._show_notes(record)

    def _show_notes(self, record: Finished) -> None:
        """What a run noted of itself, if no other run has said it."""
        for note in record.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._bars.console.print(f"{record.arm}: {note}", highlight=False, markup=False)

    def tell(self) -> None:
        """Say how many of the runs were already finished, if any were."""
        before, runs = sum(self._before), len(self._before)
        rest = "nothing was run" if before == runs else f"newly run: {runs - before}"
        said = f"{before} of {runs} runs were already finished; {rest}."
        if not runs:
            said = "The learning rate of every arm was already chosen; nothing was run."
        if before or not runs:
            self._bars.console.print(said, highlight=False)


class _RunBar(Sink):
    def __init__(self, whole: Bars, bars: Progress, task: TaskID, steps: int):
        self._whole, self._bars, self._task, self._pace = whole, bars, task, Pace(steps)

    def write(self, record: dict[str, Any]) -> None:
        if record["kind"] == "start":
            self._bars.update(self._task, completed=record["step"])

    def tick(self, step: int, loss: float) -> None:
        self._pace.tick(step)
        self._bars.update(self._task, completed=step, shown=f"loss {loss:.3f}", left=self._pace.left)
        self._whole.tell_left(self._pace)

    def phase(self, name: str, done: int, total: int | None) -> None:
        self._bars.update(self._task, shown=f"{name} {done / total:.0%}" if total else name)

    def close(self) -> None:
        self._whole.took(self._pace.passed)


def tuned_table(choices: Choices) -> Table:
    """The sweep, as 80 columns hold it."""
    note = "*: chosen. !: chosen at an end of the range; a rate outside may be better."
    table = tables.sweep(choices, note, digits=3)
    return table.only(*table.heads[:-2], title="Valid loss by learning rate", note=note)


def settings_table(choices: Choices) -> list[Table]:
    """What was swept beside the learning rate, as 80 columns hold it; nothing where nothing was."""
    table = tables.swept_settings(choices)
    note = "One setting after the other, each at the best of those before it."
    heads = ("model", "setting", "chosen", "inside")
    return [] if table is None else [table.only(*heads, note=note)]


def loss_table(summary: Mapping[str, Summary]) -> Table:
    """What every model reached, as 80 columns hold it."""
    heads = ("model", "parameters", "valid", "95%", "bits per byte", "perplexity", "seeds")
    note = "Nats per token on the whole valid split; 95%: half-width of Student's interval over seeds."
    return tables.losses(summary, {}).only(*heads, title="Loss on the whole valid split", note=note)


def cost_table(summary: Mapping[str, Summary], reference: str) -> Table:
    """What every model costs, as 80 columns hold it."""
    heads = ("model", "compression", "MFLOP per token", "training FLOP", "memory, MB", "ms per step")
    note = f"Compression: parameters of {reference} over those of the model."
    return tables.costs_of(summary, reference).only(*heads, note=note)


def difference_table(plan: Plan, tests: Sequence[Comparison]) -> Table:
    """Every pair, as 80 columns hold it."""
    note = f"p: paired t-test; Holm: corrected for {tests[0].family} pairs; flips: sign-flip test"
    pairs = max(len(test.seeds) for test in tests)
    if pairs > 1:
        note += f", whose p with {pairs} seeds cannot go below {smallest_p_value(pairs):.4g}"
    if not all(test.paired for test in tests):
        note += ". If n is a sum: too few common seeds, so not paired (Welch's test)"
    heads = ("pair", "n", "difference", "95%", "p", "p (Holm)", "p (flips)")
    note += ". Equivalence, size, power: see the report."
    title = "Differences of valid losses"
    return tables.differences(plan, tests).only(*heads, title=title, note=note)


def show_failures(console: Console, failed: Sequence[Failed], out: Path) -> None:
    """A sentence for each run that failed."""
    for failure in failed:
        where = out / "runs" / failure.arm / f"seed-{failure.seed}.json"
        _print_error(
            console, f"{failure.arm}, seed {failure.seed} failed: {failure.sentence} ({where})"
        )


def _print_error(console: Console, text: str) -> None:
    """As it is: an error may have brackets that are not markup."""
    console.print(text, style="red", highlight=False, markup=False)


def run_experiment(
    plan: Plan,
    out: Path,
    console: Console,
    reuse: Sequence[Path] = (),
    reference: str | None = None,
    processes: int = 1,
) -> Experiment:
    """Run what is missing of a plan, with bars, and write what all runs in its directory say.

    What the experiments in `reuse` have run already is taken from there; `reference` is `prepare`'s.
    With several processes, each takes its share of the cores and one run after the other.
    """
    with sharing_cores(processes) as left:
        with elapsed(CHECKING):
            data = prepare(plan, out, reference, reuse)
        with workers(plan, out, left), Bars(console, 1 + len(left)) as bars:
            complete(plan, out, bars, reuse)
    bars.tell()
    if data is not None and not plan.base.get("answers_only"):  # n-grams are of all tokens
        with elapsed("fitting n-gram baselines"):
            ngram_baselines(data, out)
    # What was read last is written last.
    with elapsed("testing differences"), waiting(out / ".results.claim"):
        experiment = read_experiment(out)
        write_results(experiment)
    return experiment


def show_experiment(experiment: Experiment, console: Console) -> int:
    """Show the tables of an experiment; the exit code, 1 if a run failed."""
    summary, tests, out = experiment.summary, experiment.tests, experiment.out
    shown = [tuned_table(experiment.choices)] if experiment.choices else []
    shown += settings_table(experiment.choices)
    shown += [loss_table(summary), cost_table(summary, experiment.plan.reference)]
    shown += (
        [tables.accuracy(experiment.records, halves=False)]
        if answers_by_arm(experiment.records)
        else []
    )
    shown += [difference_table(experiment.plan, tests)] if tests else []
    for table in shown:
        console.print(to_terminal(table))
    show_failures(console, experiment.failures, out)
    if experiment.plan.trial:
        console.print(WARNING, style="yellow")
    if experiment.plan.test:
        console.print("The test split is evaluated once, at the end of each run: see the report.")
    written = f"Written: {out}/statistics_summary.json, significance_tests.json, seed_*.json"
    console.print(written, markup=False)
    return 1 if experiment.failures else 0
