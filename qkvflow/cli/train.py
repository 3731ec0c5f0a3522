"""Train a model on any text, or resume an interrupted run with the same command.

    qkvflow train --model time_indexed_mlp --data wikitext-2 --steps 2000 --out runs/first
    qkvflow train --config configs/tiny.yaml --optimizer.learning-rate 1e-3 --out runs/second

    qkvflow train --branch-from runs/long --at 2000 --out runs/short
    qkvflow train --continue-to 4000 --out runs/first

Without a config file, the defaults are those of the recipe `modern`; a config file can build on them
with the line `recipe: modern`. Command-line options override both. With --branch-from, a run takes the
settings and a checkpoint of a longer run and decays its learning rate sooner; the result is the same as
that of a shorter run from the start.

With --continue-to, a finished run is extended. Its learning rate has decayed by then; it warms up again
to that of a run with the new number of steps, then decays to the end. Unless the schedule is constant,
the loss may end slightly higher than that of a run planned with this number of steps. The model at the
earlier end is kept in OUT/final-STEPS.

OUT/final holds the trained model, OUT/metrics.jsonl the loss curve, OUT/checkpoints what is needed to
resume. Ctrl-C saves and stops.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import TaskID

from qkvflow.cli.bars import LONG, Pace, duration, step_bars
from qkvflow.cli.options import split_option
from qkvflow.config import (
    ConfigError,
    Gpt2Config,
    OptimizerConfig,
    RunConfig,
    read_recipe,
    read_run,
)
from qkvflow.files import expanded
from qkvflow.train import Outcome, Sink, read_metrics, train
from qkvflow.train.branch import begin_branch, branch_run, continued_run
from qkvflow.train.metrics import Record

THERE_BEFORE = "The run was already finished; nothing was run."


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow train`."""

    out: Path
    """Output directory of the run; an unfinished run there is resumed."""
    run: Annotated[RunConfig, tyro.conf.arg(name=""), tyro.conf.AvoidSubcommands]
    """Settings of the run."""
    config: Path | None = None
    """YAML file with defaults for all other options, instead of the recipe `modern`; see configs/."""
    branch_from: Path | None = None
    """Directory of a run to branch from, keeping its settings; needs its optimizer.schedule to be wsd.
    Without --steps, the learning rate starts to decay at the branch point."""
    continue_to: int | None = None
    """New total number of steps of the finished run in --out, which is extended with its settings."""
    at: int | None = None
    """Step to branch at, with --branch-from; that run must have kept the checkpoint (--keep)."""


OFTEN = {
    Options: ("out", "run", "config"),
    RunConfig: (
        *("model", "data", "tokenizer", "steps", "batch_size", "length", "seed", "depths"),
        *("optimizer", "architecture"),
    ),
    OptimizerConfig: ("learning_rate",),
    Gpt2Config: ("num_layers", "hidden_dim", "num_heads", "flavour"),
}
"""Options that `--help` shows."""


def defaults(arguments: list[str]) -> Options:
    """Defaults of the options: those of the config file, or else of the recipe."""
    named, _ = split_option(arguments, "--config")
    path = expanded(named[0]) if named else None
    source, _ = split_option(arguments, "--branch-from", "directory")
    more, _ = split_option(arguments, "--continue-to", "number")
    at, steps = (_number(arguments, name) for name in ("--at", "--steps"))
    if (at is None) == bool(source) or (named and source):
        raise ConfigError(
            "This run cannot be made:",
            ["--branch-from RUN and --at STEP need each other and cannot be combined with --config."],
        )
    if more:
        return _continuing(arguments, more[-1], is_alone=not (named or source or steps is not None))
    if source and at is not None:
        run = branch_run(source[0], at, steps)
        return Options(tyro.MISSING, run, branch_from=Path(source[0]), at=at)
    run = RunConfig.from_dict(read_recipe()) if path is None else read_run(path)
    return Options(out=tyro.MISSING, run=run, config=path)


def _continuing(arguments: list[str], steps: str, *, is_alone: bool) -> Options:
    """The options of a run that goes on, which are those that it had."""
    out, _ = split_option(arguments, "--out", "directory")
    if not out or not is_alone or not steps.isdecimal():
        problem = "--continue-to STEPS needs --out RUN, and no --steps, --config or --branch-from."
        raise ConfigError("This run cannot go on:", [problem])
    return Options(tyro.MISSING, continued_run(out[-1], int(steps)), continue_to=int(steps))


def _number(arguments: list[str], name: str) -> int | None:
    """The whole number after an option; None where there is none, which is refused later."""
    found, _ = split_option(arguments, name, "number")
    return int(found[-1]) if found and found[-1].isdecimal() else None


class Display(Sink):
    """A progress bar on a terminal, beside it what takes time; and a line for every evaluation."""

    def __init__(self, name: str, steps: int):
        console = Console(stderr=True)
        self._speed, self._steps, self._pace = "", steps, Pace(steps)
        self._has_said = False
        self._bar = step_bars(console)
        self._task = self._bar.add_task(name, total=steps, shown="")
        self._phase: TaskID | None = None

    def tick(self, step: int, loss: float) -> None:
        self._pace.tick(step)
        self._end_phase()
        self._bar.update(self._task, completed=step, shown=f"loss {loss:.3f}{self._speed}")
        left, per_step = self._pace.left, self._pace.per_step
        if self._has_said or left is None or per_step is None:
            return
        self._has_said = True
        if left > LONG:
            words = duration(left).capitalize()
            steps = f"{self._steps - step:,} steps of {1e3 * per_step:,.0f} ms"
            self._bar.console.print(f"{words} for {steps}, plus evaluations.", highlight=False)

    def phase(self, name: str, done: int, total: int | None) -> None:
        self._bar.start()
        if not done:
            self._end_phase()
        if self._phase is None:
            self._phase = self._bar.add_task(name, total=total, shown="")
        self._bar.update(self._phase, completed=done)

    def _end_phase(self) -> None:
        if self._phase is not None:
            self._bar.remove_task(self._phase)
            self._phase = None

    def write(self, record: Record) -> None:
        self._end_phase()
        if record["kind"] == "start":
            self._show_start(record)
        elif record["kind"] == "train" and record["tokens_per_second"]:
            self._speed = f"  {record['tokens_per_second']:,.0f} tokens/s"
        elif record["kind"] == "valid":
            self._bar.console.print(describe(record), highlight=False)
        elif record["kind"] == "note":
            self._bar.console.print(record["text"], style="yellow", highlight=False, markup=False)

    def _show_start(self, record: Record) -> None:
        place = f"resuming at step {record['step']}" if record["step"] else "from the start"
        size = f"{record['parameters']:,} parameters"
        self._bar.console.print(f"{size} on {record['devices']}, {place}", highlight=False)
        self._bar.update(self._task, completed=record["step"])
        self._bar.start()

    def close(self) -> None:
        self._end_phase()
        self._bar.stop()


def describe(record: Record) -> str:
    """An evaluation as a line."""
    seed = f"seed {record['seed']}  " if "seed" in record else ""
    if record["loss"] is None or record["bits_per_byte"] is None:
        return f"step {record['step']:>6}  {seed}valid loss is not a finite number"
    part = "the whole split" if record["whole"] else f"{record['evaluated_tokens']:,} tokens"
    return (
        f"step {record['step']:>6}  {seed}valid {record['loss']:.4f} nats/token  "
        f"{record['bits_per_byte']:.4f} bits/byte  ({part})"
    )


def stopped(outcome: Outcome) -> str:
    """What to say of a run that was asked to stop."""
    return f"Stopped after step {outcome.step}; run the same command again to resume."


def run(options: Options) -> None:
    """Train with a progress bar; say where the results are."""
    if options.branch_from is not None and options.at is not None:
        begin_branch(options.branch_from, options.at, options.run, options.out)
    with closing(Display(options.run.model, options.run.steps)) as display:
        outcome = train(options.run, options.out, [display])
    if not outcome.finished:
        print(stopped(outcome))
        return
    if outcome.there_before:
        print(THERE_BEFORE)
    for record in read_metrics(outcome.out / "metrics.jsonl"):
        if record["kind"] == "final":
            print(describe(record))
    final, curve = outcome.out / "final", outcome.out / "metrics.jsonl"
    print(f"The model is in {final}, the loss curve in {curve}.")
