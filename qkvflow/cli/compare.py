"""Train every named model for a few steps on a little text and show what differs.

The text is what every Python carries with it, its language reference and its library's sources, read
as bytes. All models see the same batches. A few dozen steps say how the models differ in size, cost
and start, not which is the better one.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from qkvflow.config import Gpt2Config, OptimizerConfig, RunConfig
from qkvflow.data import TokenDataset
from qkvflow.models import MODELS, LanguageModel, count_parameters, forward_flops
from qkvflow.train import evaluate
from qkvflow.train.program import Program
from qkvflow.train.resume import open_data

LOOK = 16_384
"""Tokens of the valid split that are looked at."""


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow compare`."""

    steps: int = 60
    """Training steps of each model."""
    batch_size: int = 8
    """Windows of text in a batch."""
    length: int = 64
    """Bytes in a window."""
    hidden_dim: int = 64
    """Width of every model."""
    num_layers: int = 4
    """Depth of every model."""
    learning_rate: float = 3e-3
    """Peak of the learning rate; the same for every model."""
    seed: int = 0
    """Of weights and batches."""


@dataclass(frozen=True)
class Result:
    """What a short run of one model showed."""

    name: str
    model: LanguageModel
    first_loss: float
    valid_loss: float
    milliseconds: float


def make_runs(options: Options) -> dict[str, RunConfig]:
    """The run of every named model, so that a mistake shows before any work."""
    architecture = Gpt2Config(
        hidden_dim=options.hidden_dim,
        num_layers=options.num_layers,
        ssm_head_size=math.gcd(64, 2 * options.hidden_dim),
    )
    optimizer = OptimizerConfig(
        learning_rate=options.learning_rate, schedule="constant", warmup=0, weight_decay=0.0
    )
    return {
        name: RunConfig(
            model=name,
            tokenizer="byte",
            steps=options.steps,
            batch_size=options.batch_size,
            length=options.length,
            seed=options.seed,
            architecture=preset.fill(architecture),
            optimizer=optimizer,
        )
        for name, preset in MODELS.items()
    }


def train(run: RunConfig, data: TokenDataset, progress: Progress) -> Result:
    """Train one named model for a few steps and look at the valid split."""
    task = progress.add_task(f"{run.model:<17}", total=run.steps, loss="compiling")
    program = Program.of(run, data)
    program.compile()
    losses, times = [], []
    for step in range(run.steps):
        start = time.perf_counter()
        losses.append(float(program.step(step).loss))
        times.append(time.perf_counter() - start)
        progress.update(task, advance=1, loss=f"loss {losses[-1]:.3f}")
    model = program.model(0)
    valid = evaluate(model, data["valid"], length=run.length, batch_size=run.batch_size, tokens=LOOK)
    return Result(run.model, model, losses[0], valid.loss, 1e3 * float(np.median(times)))


def difference_table() -> Table:
    """What the named models are made of."""
    table = Table(title="The named models", title_justify="left", box=box.SIMPLE)
    for heading in ("model", "weights", "parts", "order", "step"):
        table.add_column(heading, no_wrap=True)
    for preset in MODELS.values():
        parts = " + ".join(preset.parts)
        table.add_row(preset.name, preset.weights, parts, preset.order, preset.integrator)
    return table


def result_table(results: list[Result], options: Options) -> Table:
    """What the runs showed; 80 columns hold it."""
    table = Table(
        title=f"After {options.steps} steps of {options.batch_size} x {options.length} bytes",
        title_justify="left",
        caption="time: parameters in time networks; share: of standard's parameters;\n"
        "MFLOP: a token, forward; losses in nats a byte, at the first step and\n"
        "on held-out text. So few steps do not rank the models.",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("model", no_wrap=True)
    for heading in ("params", "time", "share", "MFLOP", "ms/step", "first", "valid"):
        table.add_column(heading, justify="right", no_wrap=True)
    standard = count_parameters(results[0].model).total
    tokens = options.batch_size * options.length
    for result in results:
        parameters = count_parameters(result.model)
        table.add_row(
            result.name,
            f"{parameters.total:,}",
            f"{parameters.time_network:,}",
            f"{parameters.total / standard:.2f}",
            f"{forward_flops(result.model, options.batch_size, options.length) / tokens / 1e6:.2f}",
            f"{result.milliseconds:.1f}",
            f"{result.first_loss:.3f}",
            f"{result.valid_loss:.3f}",
        )
    return table


def run(options: Options) -> None:
    """Print the two tables, with a progress bar for every model between them."""
    console = Console()
    runs = make_runs(options)
    data = open_data(next(iter(runs.values())))
    console.print(difference_table())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        results = [train(run, data, progress) for run in runs.values()]
    console.print(result_table(results, options))
