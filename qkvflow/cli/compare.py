"""Train every named model for a few steps on a little text and show what differs.

The text is what every Python carries with it, its language reference and its library's sources, read
as bytes. All models see the same batches under the same seed. A few hundred steps on one seed say how
the models differ in size, cost and start, not which is the better one: that is what
`qkvflow experiment run` is for.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from qkvflow.cli.experiment_display import run_experiment, show_failures
from qkvflow.experiments import tables
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.report import write_report
from qkvflow.experiments.summary import Summary
from qkvflow.files import write_bytes, write_json
from qkvflow.models import MODELS
from qkvflow.report.table import Table, to_terminal

RESULTS = "tong_comparison_results"
"""Where the seed documents have them, in the working directory, unless --out is given."""
OUT = Path("comparison")


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
    out: Path = OUT
    """Directory of runs, results and report; a finished run is not run again. Where it is not given,
    tong_comparison_results.json and .pkl are written to the working directory."""


def make_plan(options: Options) -> Plan:
    """Every named model as an arm, so that a mistake shows before any work."""
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
        "architecture": {"hidden_dim": options.hidden_dim, "num_layers": options.num_layers},
        "optimizer": {"learning_rate": options.learning_rate, "weight_decay": 0.0},
    }
    arms = {name: {"model": name} for name in MODELS}
    return Plan.of({"base": base, "arms": arms, "seeds": options.seeds, "reference": "standard"})


def models_table() -> Table:
    """What the named models are made of."""
    rows = tuple(
        (preset.name, preset.weights, " + ".join(preset.parts), preset.order, preset.integrator)
        for preset in MODELS.values()
    )
    heads = ("model", "weights", "parts", "order", "step")
    return Table(heads, rows, "The named models", words=frozenset(heads))


def result_table(summary: Mapping[str, Summary], baselines: Mapping[str, float], title: str) -> Table:
    """What the runs showed, and what n-grams reach on the same text; 80 columns hold it."""
    losses = tables.losses(summary, baselines)
    costs = tables.costs_of(summary, "standard")
    note = (
        "valid: nats per byte on all held-out text. compression: parameters of standard over those of "
        "the model. MFLOP: forward. So few steps do not rank the models."
    )
    table = losses.only("model", "parameters", "valid", "bits per byte", title=title, note=note)
    costs = costs.only("model", "compression", "MFLOP per token", "memory, MB", "ms per step")
    return table.beside(costs)


def run(options: Options) -> int:
    """Print the two tables, with progress between them; write results and report."""
    console = Console()
    plan = make_plan(options).checked()
    console.print(to_terminal(models_table()))
    experiment = run_experiment(plan, options.out, console)
    title = f"After {options.steps} steps of {options.batch_size} x {options.length} bytes"
    console.print(to_terminal(result_table(experiment.summary, experiment.baselines, title)))
    show_failures(console, experiment.failures, options.out)
    results = (Path() if options.out == OUT else options.out) / RESULTS
    summary = experiment.summary_to_json()
    write_json(results.with_suffix(".json"), summary)
    write_bytes(results.with_suffix(".pkl"), pickle.dumps(summary))
    page, _ = write_report([experiment], "Every named model, a few steps")
    console.print(f"Written: {results}.json, {results}.pkl. The report is {page}", markup=False)
    return 1 if experiment.failures else 0
