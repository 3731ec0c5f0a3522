"""Import GPT-2 from the layout of Hugging Face, or turn a model into a few basis matrices over depth.

    qkvflow convert --gpt2 models/gpt2 --out models/imported
    qkvflow convert --gpt2 models/gpt2 --basis 6 --out models/in-six
    qkvflow convert --checkpoint runs/first --basis 3 --out models/in-three

With --basis T the weights of all layers become combinations of T matrices, the best there are (by
singular values over depth); with as many as layers, the model is the same. `qkvflow.load` reads OUT.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer, read_tokenizer_files
from qkvflow.models import count_parameters, depth_spectra, import_gpt2, into_basis
from qkvflow.models.language_model import LanguageModel
from qkvflow.models.storage import save_model
from qkvflow.train import load_model, read_tokenizer


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow convert`."""

    out: Path
    """Directory to write; it must not be there."""
    gpt2: Path | None = None
    """Directory with config.json and model.safetensors of a GPT-2; also tokenizer.json, if there."""
    checkpoint: Path | None = None
    """Directory of a run, of a checkpoint, or of an exported model."""
    basis: int | None = None
    """Basis matrices that every weight is a combination of; None keeps the weights as they are."""


def run(options: Options) -> None:
    """Load, decompose where asked, save."""
    model, tokenizer = _load(options)
    if options.basis is not None:
        print(f"Relative error of the weights: {relative_error(model, options.basis):.2e}.")
        model = into_basis(model, options.basis)
    texts = {} if tokenizer is None else {"tokenizer": json.dumps(tokenizer.to_dict())}
    save_model(model, options.out, **texts)
    layers, size = model.config.num_layers, count_parameters(model).total
    print(f"{options.out} holds a model of {layers} layers and {size:,} parameters.")
    if tokenizer is None:
        print("It has no tokenizer, since none was there: evaluate, generate and finetune need one.")


def _load(options: Options) -> tuple[LanguageModel, Tokenizer | None]:
    if (options.gpt2 is None) == (options.checkpoint is None):
        raise ConfigError("There is nothing to convert:", ["give either --gpt2 or --checkpoint."])
    if options.checkpoint is not None:
        return load_model(options.checkpoint), read_tokenizer(options.checkpoint)
    assert options.gpt2 is not None
    model = import_gpt2(options.gpt2)
    names = ("tokenizer.json", "vocab.json")
    if not any((options.gpt2 / name).is_file() for name in names):
        return model, None
    tokenizer = read_tokenizer_files(options.gpt2)
    if tokenizer.vocab_size > model.config.vocab_size:
        problem = f"it has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}."
        raise ConfigError("The tokenizer is of another model:", [problem])
    return model, tokenizer


def relative_error(model: LanguageModel, basis: int) -> float:
    """What the weights of all layers lose, over their size, both as root of the sum of squares."""
    spectra = list(depth_spectra(model).values())
    left = sum(float(np.sum(np.square(values[basis:]))) for values in spectra)
    return (left / sum(float(np.sum(np.square(values))) for values in spectra)) ** 0.5
