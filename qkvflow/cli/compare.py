"""Train every named model briefly on a small text and compare them.

By default the text is what every Python installation contains, the language reference and the sources
of the standard library, read as bytes. All models see the same batches under the same seed, use the
recipe `modern` with one learning rate, and are compared with n-gram baselines. One short run of each
shows how the models differ in size and cost and that they learn, not which one is better; use `qkvflow
experiment run` for that.
"""

import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from qkvflow.cli.experiment_display import DRAWING, run_experiment, show_failures
from qkvflow.config import ConfigError, read_recipe
from qkvflow.config.yaml_files import merged
from qkvflow.experiments.conclusion import steps_after_compare
from qkvflow.experiments.plan import Plan
from qkvflow.experiments.report import write_report
from qkvflow.experiments.summary import Summary
from qkvflow.files import write_bytes, write_json
from qkvflow.models import MODELS
from qkvflow.progress import elapsed
from qkvflow.report.table import Table, to_terminal

RESULTS = "tong_comparison_results"
"""Where the seed documents have them, in the working directory, unless --out is given."""
OUT = Path("comparison")


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow compare`."""

    steps: int = 900
    """Training steps per model."""
    batch_size: int = 4
    """Windows of text per training step."""
    length: int = 128
    """Bytes per window."""
    hidden_dim: int = 64
    """Width of the residual stream of every model."""
    num_layers: int = 3
    """Number of layers of every model."""
    time_embed_dim: int = 8
    """Width of the time networks, and number of basis matrices of tong_neuralode."""
    learning_rate: float = 1.6e-2
    """Peak learning rate, the same for every model."""
    seeds: int = 1
    """Number of seeds per model; each is a training run of its own."""
    data: str = "embedded"
    """Text to train on: a corpus (embedded, wikitext-2, wikitext-103, markov, hops, addition,
    hf:OWNER/NAME) or a path."""
    processes: int | None = None
    """Models trained at the same time, each on its share of the CPU cores. None: one per core."""
    out: Path | None = None
    """Output directory for runs, results and report; finished runs there are reused. None: comparison/,
    except tong_comparison_results.json and .pkl, which go to the working directory."""


def make_plan(options: Options) -> Plan:
    """Every named model as an arm, trained by the recipe, so that a mistake shows before any work."""
    own: dict[str, Any] = {
        "data": options.data,
        "tokenizer": "byte",
        "steps": options.steps,
        "batch_size": options.batch_size,
        "length": options.length,
        "eval_tokens": 4096,
        "eval_every": max(1, options.steps // 3),
        "save_every": max(1, options.steps),
        "keep": 1,
        "architecture": {
            "hidden_dim": options.hidden_dim,
            "num_layers": options.num_layers,
            "time_embed_dim": options.time_embed_dim,
        },
        "optimizer": {"learning_rate": options.learning_rate},
    }
    arms = {name: {"model": name} for name in MODELS}
    base = merged(read_recipe(), own)
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
    """What the runs showed, and what tables of n-grams reach on the same text; 80 columns hold it."""
    rows = [
        (
            name,
            f"{row.costs.parameters:,}",
            f"{row.loss.mean:.3f}",
            _beaten(row.loss.mean, baselines),
            f"{row.steps * row.speed / 1000:.0f} s",
            "" if row.costs.memory_bytes is None else f"{row.costs.memory_bytes / 1e6:.0f} MB",
        )
        for name, row in summary.items()
    ]
    rows += [(f"table of {name}s", "", f"{loss:.3f}", "", "", "") for name, loss in baselines.items()]
    heads = ("model", "parameters", "nats per byte", "better than", "training", "memory")
    note = (
        "Losses are of all held-out text, which no model has seen. One short run of each does not rank "
        "the models: qkvflow experiment run compares them over several seeds."
    )
    return Table(heads, tuple(rows), title, note)


def _beaten(loss: float, baselines: Mapping[str, float]) -> str:
    """The best of the n-grams that a model is better than."""
    below = {name: of for name, of in baselines.items() if loss < of}
    return f"{min(below, key=below.__getitem__)}s" if below else ""


def title_of(steps: int, batch_size: int, length: int) -> str:
    """What stands above the table of results."""
    return f"Loss on held-out text after {steps} steps of {batch_size} x {length} bytes"


def processes_of(options: Options) -> int:
    """How many processes share the work: as many as are asked for, or one for every core and run.

    Raises:
        ConfigError: it is no number of processes.
    """
    if options.processes is None:
        return min(os.cpu_count() or 1, len(MODELS) * options.seeds)
    if options.processes < 1:
        problem = f"processes is {options.processes}; expected at least 1."
        raise ConfigError("The models cannot be compared:", [problem])
    return options.processes


def program_name() -> str:
    """How this command is called where its directory is not on the path, as after `make compare`."""
    called = Path(sys.argv[0])
    is_off_path = called.name == "qkvflow" and shutil.which("qkvflow") is None
    return shlex.quote(str(called)) if is_off_path else "qkvflow"


def run(options: Options) -> int:
    """Print the two tables, with progress between them; write results and report."""
    console = Console()
    plan, processes = make_plan(options).checked(), processes_of(options)
    out, results = options.out or OUT, (options.out or Path()) / RESULTS
    console.print(to_terminal(models_table()))
    experiment = run_experiment(plan, out, console, processes=processes)
    title = title_of(options.steps, options.batch_size, options.length)
    console.print(to_terminal(result_table(experiment.summary, experiment.baselines, title)))
    show_failures(console, experiment.failures, out)
    summary = experiment.summary_to_json()
    write_json(results.with_suffix(".json"), summary)
    write_bytes(results.with_suffix(".pkl"), pickle.dumps(summary))
    steps = steps_after_compare(experiment, program_name())
    with elapsed(DRAWING):
        page, _ = write_report(
            [experiment], "Every named model, after a minute of training", steps=steps
        )
    console.print(f"Written: {results}.json, {results}.pkl. The report is {page}", markup=False)
    return 1 if experiment.failures else 0
