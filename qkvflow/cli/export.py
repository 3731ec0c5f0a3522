"""Write a trained model, at its own depth or another, to a directory of its own.

    qkvflow export --checkpoint runs/first --out models/first
    qkvflow export --checkpoint runs/first --depth 12 --out models/first-at-12
    qkvflow export --checkpoint runs/first --adapter runs/adapted/adapter --out models/adapted

At another depth it is an ordinary model whose layers sample the same curves. `qkvflow.load`, evaluate
and generate read the directory: model.safetensors, config.json and tokenizer.json.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from qkvflow.finetune import load_adapter
from qkvflow.models import count_parameters, unroll
from qkvflow.models.storage import save_model
from qkvflow.train import load_model, read_tokenizer


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow export`."""

    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported model."""
    out: Path
    """Directory to write; it must not be there."""
    depth: int | None = None
    """Layers at which the weights are sampled; None is the model's own depth, and its own weights."""
    adapter: Path | None = None
    """Directory of an adapter that was trained on this model."""


def run(options: Options) -> None:
    """Load, change the depth where asked, save."""
    model, tokenizer = load_model(options.checkpoint), read_tokenizer(options.checkpoint)
    if options.adapter is not None:
        model = load_adapter(model, options.adapter, depth=options.depth)
    elif options.depth is not None:
        model = unroll(model, options.depth)
    save_model(model, options.out, tokenizer=json.dumps(tokenizer.to_dict()))
    layers, size = model.config.num_layers, count_parameters(model).total
    print(f"{options.out} holds a model of {layers} layers and {size:,} parameters.")
