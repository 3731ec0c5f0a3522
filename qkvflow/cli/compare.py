"""Train every named model for a few steps on a little text and show what differs.

The text is what every Python carries with it, its language reference and its library's sources, read
as bytes. All models see the same batches under the same seed. A few hundred steps on one seed say how
the models differ in size, cost and start, not which is the better one: that is what
`qkvflow experiment run` is for.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from qkvflow.cli.experiment_display import run_experiment, show_failures
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.present import write_report
from qkvflow.experiments.results import Results, write_pickle
from qkvflow.experiments.summary import megabytes
from qkvflow.files import write_json
from qkvflow.models import MODELS

RESULTS = "tong_comparison_results"


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow compare`."""

    steps: int = 150
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
    seeds: int = 1
    """Number of seeds; every model is trained with each."""
    data: str = "embedded"
    """A corpus (embedded, wikitext-2, wikitext-103, markov, hf:OWNER/NAME) or a path to text."""
    out: Path = Path("comparison")
    """Directory of runs, results and report; a finished run is not run again."""


def make_plan(options: Options) -> Plan:
    """Every named model as an arm, so that a mistake shows before any work."""
    architecture: dict[str, Any] = {
        "hidden_dim": options.hidden_dim,
        "num_layers": options.num_layers,
    }
    base: dict[str, Any] = {
        "data": options.data,
        "tokenizer": "byte",
        "steps": options.steps,
        "batch_size": options.batch_size,
        "length": options.length,
        "eval_tokens": 16_384,
        "eval_every": max(1, options.steps // 5),
        "save_every": max(1, options.steps),
        "keep": 1,
        "architecture": architecture,
        "optimizer": {"learning_rate": options.learning_rate, "weight_decay": 0.0},
    }
    arms = {name: {"model": name} for name in MODELS}
    return Plan.of({"base": base, "arms": arms, "seeds": options.seeds, "reference": "standard"})


def difference_table() -> Table:
    """What the named models are made of."""
    table = Table(title="The named models", title_justify="left", box=box.SIMPLE)
    for heading in ("model", "weights", "parts", "order", "step"):
        table.add_column(heading, no_wrap=True)
    for preset in MODELS.values():
        parts = " + ".join(preset.parts)
        table.add_row(preset.name, preset.weights, parts, preset.order, preset.integrator)
    return table


def result_table(results: Results, floors: dict[str, float], title: str) -> Table:
    """What the runs showed, and what n-grams reach on the same text; 80 columns hold it."""
    table = Table(
        title=title,
        title_justify="left",
        caption="valid: nats a byte on all held-out text; b/B: bits a byte; ppl: perplexity;\n"
        "x: standard's parameters over these; MFLOP: a token, forward; MB: memory.\n"
        "So few steps do not rank the models.",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("model", no_wrap=True)
    for heading in ("valid", "b/B", "ppl", "params", "x", "MFLOP", "ms/step", "MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    standard = results.summary.get("standard", {}).get("params")
    for arm, row in results.summary.items():
        table.add_row(
            arm,
            f"{row['loss_mean']:.3f}",
            f"{row['bits_per_byte']:.2f}",
            f"{row['perplexity']:.1f}",
            f"{row['params']:,}",
            f"{standard / row['params']:.2f}" if standard else "",
            f"{row['flops_per_token'] / 1e6:.2f}",
            f"{row['speed_median']:.0f}",
            megabytes(row["memory_bytes"]),
        )
    for name, loss in floors.items():
        table.add_row(name, f"{loss:.3f}", f"{loss / math.log(2):.2f}", f"{math.exp(loss):.1f}")
    return table


def run(options: Options) -> int:
    """Print the two tables, with progress between them; write results and report."""
    console = Console()
    plan = make_plan(options)
    console.print(difference_table())
    experiment = run_experiment(plan, options.out, console)
    results = experiment.results
    title = f"After {options.steps} steps of {options.batch_size} x {options.length} bytes"
    console.print(result_table(results, experiment.floors, title))
    show_failures(console, results.failures, options.out)
    write_json(Path(f"{RESULTS}.json"), results.summary)
    write_pickle(Path(f"{RESULTS}.pkl"), results.summary)
    page, _ = write_report([experiment], "Every named model, a few steps")
    console.print(f"Written: {RESULTS}.json, {RESULTS}.pkl. The report is {page}")
    return 1 if results.failures else 0
