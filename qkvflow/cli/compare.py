"""Train every named model for a few steps on a little text and show what differs.

The text is what every Python carries with it, its language reference and its library's sources, read
as bytes. All models see the same batches. A few dozen steps say how the models differ in size, cost
and start, not which is the better one.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from haliax import NamedArray
from jax import Array
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from qkvflow.config import ConfigError, Gpt2Config
from qkvflow.data import Corpus, load_corpus
from qkvflow.models import (
    MODELS,
    LanguageModel,
    build_model,
    count_parameters,
    forward_flops,
)


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow compare`."""

    steps: int = 60
    """Training steps of each model."""
    batch: int = 8
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


def read_bytes(corpus: Corpus, split: str) -> np.ndarray:
    """A split of a corpus as bytes."""
    return np.frombuffer("".join(corpus.chunks(split)).encode(), np.uint8).astype(np.int32)


def windows(text: np.ndarray, options: Options, step: int) -> tuple[NamedArray, NamedArray]:
    """Random windows of a text and the same one byte later; a function of seed and step."""
    random = np.random.default_rng((options.seed, step))
    starts = random.integers(0, len(text) - options.length - 1, options.batch)
    rows = jnp.asarray(text[starts[:, None] + np.arange(options.length + 1)])
    axes = ("batch", "position")
    return hax.named(rows[:, :-1], axes), hax.named(rows[:, 1:], axes)


def configs(options: Options) -> dict[str, Gpt2Config]:
    """The complete configuration of every named model, so that a mistake shows before any work."""
    counts = {"steps": options.steps, "batch": options.batch, "length": options.length}
    problems = [f"{k} is {v}; expected at least 1." for k, v in counts.items() if v < 1]
    if problems:
        raise ConfigError("This comparison cannot be made:", problems)
    config = Gpt2Config(
        hidden_dim=options.hidden_dim,
        num_layers=options.num_layers,
        max_position_embeddings=options.length,
        ssm_head_size=math.gcd(64, 2 * options.hidden_dim),
    )
    return {name: preset.fill(config) for name, preset in MODELS.items()}


def train(
    name: str,
    config: Gpt2Config,
    options: Options,
    texts: tuple[np.ndarray, np.ndarray],
    progress: Progress,
) -> Result:
    """Train one named model on the first text; the second is for validation."""
    train_text, valid_text = texts
    task = progress.add_task(f"{name:<17}", total=options.steps, loss="compiling")
    model = build_model(name, config, key=jax.random.key(options.seed))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(options.learning_rate))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    losses, times = [], []
    for i in range(options.steps):
        start = time.perf_counter()
        model, state, loss = _step(model, state, optimizer, *windows(train_text, options, i))
        losses.append(float(loss))
        times.append(time.perf_counter() - start)
        progress.update(task, advance=1, loss=f"loss {losses[-1]:.3f}")
    valid = [model.compute_loss(*windows(valid_text, options, i)) for i in range(20)]
    # The first step compiles, so it does not count.
    return Result(
        name, model, losses[0], float(np.mean(valid)), 1e3 * float(np.median(times[1:] or times))
    )


@eqx.filter_jit
def _step(
    model: LanguageModel,
    state: Any,
    optimizer: optax.GradientTransformation,
    inputs: NamedArray,
    targets: NamedArray,
) -> tuple[LanguageModel, Any, Array]:
    loss, gradients = eqx.filter_value_and_grad(lambda m: m.compute_loss(inputs, targets))(model)
    updates, state = optimizer.update(gradients, state)
    return eqx.apply_updates(model, updates), state, loss


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
        title=f"After {options.steps} steps of {options.batch} x {options.length} bytes",
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
    tokens = options.batch * options.length
    for result in results:
        parameters = count_parameters(result.model)
        table.add_row(
            result.name,
            f"{parameters.total:,}",
            f"{parameters.time_network:,}",
            f"{parameters.total / standard:.2f}",
            f"{forward_flops(result.model, options.batch, options.length) / tokens / 1e6:.2f}",
            f"{result.milliseconds:.1f}",
            f"{result.first_loss:.3f}",
            f"{result.valid_loss:.3f}",
        )
    return table


def run(options: Options) -> None:
    """Print the two tables, with a progress bar for every model between them."""
    console = Console()
    chosen, corpus = configs(options), load_corpus("embedded")
    texts = read_bytes(corpus, "train"), read_bytes(corpus, "valid")
    console.print(difference_table())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        results = [train(name, config, options, texts, progress) for name, config in chosen.items()]
    console.print(result_table(results, options))
