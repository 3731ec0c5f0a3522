"""Pretrain, change the depth, adapt to another text: the experiment of the ICLR paper, both directions.

    qkvflow adaptation --out results/finetune

Models are pretrained on one corpus, sampled at several depths and adapted to the other, full and with
LoRA, against the same models from scratch. Killed and started again, it goes on; started twice, the two
share the work. OUT/report.html shows what came out, OUT/summary.json has the numbers.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.console import Console

from qkvflow.cli.experiment_display import Bars
from qkvflow.data import default_cache_dir
from qkvflow.finetune.figures import draw_study
from qkvflow.finetune.page import losses_table, study_page
from qkvflow.finetune.study import Study, run_study
from qkvflow.report.page import write_both
from qkvflow.report.table import to_terminal


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow adaptation`."""

    out: Path = Path("results/finetune")
    """Directory of the experiment; started again, it goes on where it stopped."""
    study: Annotated[Study, tyro.conf.arg(name="")] = field(default_factory=Study)
    """Settings of the experiment."""


def run(options: Options) -> None:
    """Run what is missing, draw, show the tables."""
    console = Console()
    # Seeds and directions share their programs: what one run has compiled, the next one finds.
    jax.config.update("jax_compilation_cache_dir", str(default_cache_dir() / "compiled"))
    with Bars(console) as bars:
        summary = run_study(options.study, options.out, bars)
    for direction, arms in summary["losses"].items():
        console.print(to_terminal(losses_table(f"Valid loss, {direction}", arms)))
    drawn = draw_study(summary, options.out / "figures")
    page, _ = write_both(study_page(options.study, summary, drawn), options.out)
    console.print(f"Written: {options.out / 'summary.json'}, {page}")
