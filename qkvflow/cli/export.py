"""Export a model: at another depth, with an adapter merged in, or as a few basis matrices.

    qkvflow export --checkpoint runs/first --out models/first
    qkvflow export --checkpoint runs/first --depth 12 --out models/first-at-12
    qkvflow export --checkpoint runs/first --adapter runs/adapted/adapter --out models/adapted
    qkvflow export --checkpoint models/imported --basis 6 --out models/in-six
    qkvflow export --checkpoint models/imported --loop "2 + 4x2 + 2" --rank 8 --out models/looped
    qkvflow export --checkpoint runs/first --format transformers --out models/first-hf

At another depth, the result is an ordinary model whose layers sample the same weight curves. With
--basis T, the weights of all layers become linear combinations of T matrices, the best approximation by
singular values over depth; with T equal to the number of layers it is exact. With --loop PLAN, layers
share weights as the plan says: their mean, plus a correction of rank --rank for every visit.

`qkvflow.load`, evaluate and generate read the directory: model.safetensors, config.json, tokenizer.json
and a model card, README.md. With --format transformers it holds a GPT2LMHeadModel or LlamaForCausalLM
instead, if the model at this depth can be written as one; docs/exchange.md says when.
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
    """Number of layers at which the weights are sampled; None: keep the model's depth and weights."""
    unit_steps: bool = False
    """Use step size 1 at every depth, instead of keeping the sum of all steps the same."""
    adapter: Path | None = None
    """Directory of an adapter trained on this model, to merge into it."""
    basis: int | None = None
    """Number of basis matrices for the weights of all layers; None: weights stay unchanged."""
    loop: str | None = None
    """Layer plan FIRST + CORExLOOPS + LAST: the core's layers share weights over all loops; the visits
    must add up to the number of layers. None: weights stay unchanged."""
    rank: int = 8
    """Rank of the weight correction for each visit of a shared layer, with --loop."""
    format: Literal["qkvflow", "transformers"] = "qkvflow"
    """Output format. qkvflow: for all qkvflow commands. transformers: a GPT2LMHeadModel or
    LlamaForCausalLM."""


def run(options: Options) -> None:
    """Load, change the form where asked, save."""
    if options.basis is not None and options.loop is not None:
        problem = "--basis and --loop exclude each other; use one of them."
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
