"""Write a model in another form: at another depth, with an adapter, or as a few basis matrices.

    qkvflow export --checkpoint runs/first --out models/first
    qkvflow export --checkpoint runs/first --depth 12 --out models/first-at-12
    qkvflow export --checkpoint runs/first --adapter runs/adapted/adapter --out models/adapted
    qkvflow export --checkpoint models/imported --basis 6 --out models/in-six
    qkvflow export --checkpoint models/imported --loop "2 + 4x2 + 2" --rank 8 --out models/looped
    qkvflow export --checkpoint runs/first --format transformers --out models/first-hf

At another depth it is an ordinary model whose layers sample the same curves. With --basis T the weights
of all layers become combinations of T matrices, the best there are (by singular values over depth);
with as many as layers, the model is the same. With --loop PLAN layers share weights as the plan says:
their mean, and a part of rank --rank for every visit.

`qkvflow.load`, evaluate and generate read the directory: model.safetensors, config.json and
tokenizer.json. With --format transformers it is a GPT2LMHeadModel or a LlamaForCausalLM instead, where
the model is one at this depth; docs/exchange.md says when it is. A model card, README.md, lies beside.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from qkvflow.cli.saving import save, save_for_transformers
from qkvflow.config import ConfigError
from qkvflow.exchange import model_card
from qkvflow.finetune import load_adapter
from qkvflow.models import LanguageModel, depth_spectra, into_basis, into_loop, loop_error, unroll
from qkvflow.progress import elapsed
from qkvflow.train import load_model
from qkvflow.train.run_files import find_tokenizer


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow export`."""

    checkpoint: Path
    """Directory of a run, of a checkpoint, or of an exported or imported model."""
    out: Path
    """Output directory; it must not exist."""
    depth: int | None = None
    """Number of layers at which the weights are sampled; None: the model's own depth and weights."""
    unit_steps: bool = False
    """Integrate with step size 1 at every depth, instead of keeping the sum of all steps the same."""
    adapter: Path | None = None
    """Directory of an adapter that was trained on this model."""
    basis: int | None = None
    """Number of basis matrices in which every weight is expressed; None: weights stay as they are."""
    loop: str | None = None
    """Layer plan FIRST + CORExLOOPS + LAST with a visit per layer, in which the core's layers share
    their weights; None: weights stay as they are."""
    rank: int = 8
    """Rank of the correction that each visit of a shared layer has, with --loop."""
    format: Literal["qkvflow", "transformers"] = "qkvflow"
    """Output format. qkvflow: for all commands here. transformers: a GPT2LMHeadModel or
    LlamaForCausalLM."""


def run(options: Options) -> None:
    """Load, change the form where asked, save."""
    if options.basis is not None and options.loop is not None:
        problem = "basis and loop are two forms of the weights; name one."
        raise ConfigError("The model cannot be exported like this:", [problem])
    source = model = load_model(options.checkpoint)
    depth = options.depth or model.config.num_layers
    with elapsed(f"sampling the weights at {depth} layers"):
        if options.adapter is not None:
            model = load_adapter(model, options.adapter, depth=options.depth)
        elif options.depth is not None:
            model = unroll(model, options.depth, unit_steps=options.unit_steps)
    if options.basis is not None:
        whole, model = model, into_basis(model, options.basis)
        print(f"Relative error of the weights: {relative_error(whole, options.basis):.2e}.")
    if options.loop is not None:
        whole, model = model, into_loop(model, options.loop, options.rank)
        print(f"Relative error of the weights: {loop_error(whole, model):.2e}.")
    tokenizer, name = find_tokenizer(options.checkpoint), options.out.resolve().name
    card = model_card(model, source, options.checkpoint, name, options.format)
    write = save if options.format == "qkvflow" else save_for_transformers
    write(model, tokenizer, options.out, card)


def relative_error(model: LanguageModel, basis: int) -> float:
    """What the weights of all layers lose, over their size, both as root of the sum of squares."""
    spectra = list(depth_spectra(model).values())
    left = sum(float(np.sum(np.square(values[basis:]))) for values in spectra)
    return (left / sum(float(np.sum(np.square(values))) for values in spectra)) ** 0.5
