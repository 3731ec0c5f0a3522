"""Fine-tune a trained model on another text, at its own depth or another.

    qkvflow finetune --checkpoint runs/first --data wikitext-2 --method lora --out runs/adapted
    qkvflow finetune --checkpoint runs/first --depth 12 --method full --steps 1000 --out runs/at-12

The tokenizer is that of the base model. OUT/final holds the whole model, which all other commands read;
OUT/adapter holds only the trained arrays, if not all were trained. The same command resumes an
interrupted run.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from qkvflow.cli.train import THERE_BEFORE, Display, stopped
from qkvflow.config import OptimizerConfig
from qkvflow.finetune import FinetuneConfig, Finetuned, finetune


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow finetune`."""

    out: Path
    """Output directory of the run; an unfinished run there is resumed."""
    config: Annotated[FinetuneConfig, tyro.conf.arg(name="")]
    """Settings of the fine-tuning."""


OFTEN = {
    FinetuneConfig: (
        *("checkpoint", "depth", "method", "rank", "data", "length"),
        *("steps", "batch_size", "seed", "optimizer"),
    ),
    OptimizerConfig: ("learning_rate",),
}
"""Options that `--help` shows."""


def run(options: Options) -> None:
    """Fine-tune with a progress bar; say what changed and where it is."""
    config = options.config
    with closing(Display(config.method, config.steps)) as display:
        found = finetune(config, options.out, [display])
    print(summary(found, options.out) if found.outcome.finished else stopped(found.outcome))


def summary(found: Finetuned, out: Path) -> str:
    """What changed and where it is."""
    lines = [THERE_BEFORE] if found.outcome.there_before else []
    lines += [
        f"Valid loss {found.before:.4f} before, {found.after:.4f} after, nats/token (whole split).",
        f"Trained {found.trained:,} of {found.parameters:,} parameters.",
        f"The model is in {out / 'final'}, the loss curve in {out / 'metrics.jsonl'}.",
    ]
    if found.adapter is not None:
        size = f"{found.adapter_bytes / 1e3:,.0f} kB"
        lines.append(f"The adapter is in {found.adapter}, {size}: see qkvflow export --adapter.")
    return "\n".join(lines)
