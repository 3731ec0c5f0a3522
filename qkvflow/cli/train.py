"""Train a model on any text; started again with the same --out, it goes on where it stopped.

    qkvflow train --model time_indexed_mlp --data wikitext-2 --steps 2000 --out runs/first
    qkvflow train --config configs/tiny.yaml --optimizer.learning-rate 1e-3 --out runs/second

    qkvflow train --branch-from runs/long --at 2000 --out runs/short

Without a config file the defaults are those of the recipe `modern`; one that says `recipe: modern` in a
line begins with them, too. Options override either. A branch takes the settings and a checkpoint of
another run and ends sooner, as one of its length would have. OUT/final holds the trained model,
OUT/metrics.jsonl the curve, OUT/checkpoints what is needed to go on. Ctrl-C saves and stops.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
from qkvflow.train.branch import begin_branch, branch_run
from qkvflow.train.metrics import Record

THERE_BEFORE = "The run had finished before; nothing was run."


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow train`."""

    out: Path
    """Directory of the run; it is made."""
    run: Annotated[RunConfig, tyro.conf.arg(name=""), tyro.conf.AvoidSubcommands]
    """Settings of the run."""
    config: Path | None = None
    """YAML file with the defaults of all other options, in place of the recipe's; see configs/."""
    branch_from: Path | None = None
    """Directory of a run with optimizer.schedule wsd that is to end sooner; its settings are taken.
    Without --steps the learning rate begins to fall at once."""
    at: int | None = None
    """Step after which --branch-from is left; that run has to have kept its checkpoint (--keep)."""


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
    """What the options are where they are not given: as the config file has it, or else the recipe."""
    named, _ = split_option(arguments, "--config")
    path = expanded(named[0]) if named else None
    source, _ = split_option(arguments, "--branch-from", "directory")
    at, steps = (_number(arguments, name) for name in ("--at", "--steps"))
    if (at is None) == bool(source) or (named and source):
        raise ConfigError(
            "This run cannot be made:",
            ["--branch-from RUN and --at STEP come together, and without --config."],
        )
    if source and at is not None:
        return Options(tyro.MISSING, branch_run(source[0], at, steps), None, Path(source[0]), at)
    run = RunConfig.from_dict(read_recipe()) if path is None else read_run(path)
    return Options(out=tyro.MISSING, run=run, config=path)


def _number(arguments: list[str], name: str) -> int | None:
    """The whole number after an option; None where there is none, which is refused later."""
    found, _ = split_option(arguments, name, "number")
    return int(found[-1]) if found and found[-1].isdecimal() else None


def step_bars(console: Console) -> Progress:
    """Bars that count steps and show a field `shown` of their tasks, where somebody is watching."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


class Display(Sink):
    """A progress bar on a terminal, and a line for every evaluation."""

    def __init__(self, name: str, steps: int):
        console = Console(stderr=True)
        self._speed = ""
        self._bar = step_bars(console)
        self._task = self._bar.add_task(name, total=steps, shown="compiling")

    def tick(self, step: int, loss: float) -> None:
        self._bar.update(self._task, completed=step, shown=f"loss {loss:.3f}{self._speed}")

    def write(self, record: Record) -> None:
        if record["kind"] == "start":
            self._show_start(record)
        elif record["kind"] == "train" and record["tokens_per_second"]:
            self._speed = f"  {record['tokens_per_second']:,.0f} tokens/s"
        elif record["kind"] == "valid":
            self._bar.console.print(describe(record), highlight=False)
        elif record["kind"] == "note":
            self._bar.console.print(record["text"], style="yellow", highlight=False, markup=False)

    def _show_start(self, record: Record) -> None:
        place = f"on from step {record['step']}" if record["step"] else "from the start"
        size = f"{record['parameters']:,} parameters"
        self._bar.console.print(f"{size} on {record['devices']}, {place}", highlight=False)
        self._bar.update(self._task, completed=record["step"])
        self._bar.start()

    def close(self) -> None:
        self._bar.stop()


def describe(record: Record) -> str:
    """An evaluation as a line."""
    seed = f"seed {record['seed']}  " if "seed" in record else ""
    if record["loss"] is None or record["bits_per_byte"] is None:
        return f"step {record['step']:>6}  {seed}valid loss is not a finite number"
    part = "the whole split" if record["whole"] else f"{record['evaluated_tokens']:,} tokens of it"
    return (
        f"step {record['step']:>6}  {seed}valid {record['loss']:.4f} nats/token  "
        f"{record['bits_per_byte']:.4f} bits/byte  ({part})"
    )


def stopped(outcome: Outcome) -> str:
    """What to say of a run that was asked to stop."""
    return f"Stopped after step {outcome.step}; the same command goes on from there."


def run(options: Options) -> None:
    """Train with a progress bar; say where the results are."""
    if options.branch_from is not None and options.at is not None:
        begin_branch(options.branch_from, options.at, options.run, options.out)
    display = Display(options.run.model, options.run.steps)
    outcome = train(options.run, options.out, [display])
    if not outcome.finished:
        print(stopped(outcome))
        return
    if outcome.there_before:
        print(THERE_BEFORE)
    for record in read_metrics(outcome.out / "metrics.jsonl"):
        if record["kind"] == "final":
            print(describe(record))
    print(f"The model is in {outcome.out / 'final'}, the curve in {outcome.out / 'metrics.jsonl'}.")
