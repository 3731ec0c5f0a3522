"""What import and export have in common: a model in a directory of its own, and a sentence on it."""

import json
from pathlib import Path

from qkvflow.data import Tokenizer
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.models.storage import save_model


def save(model: LanguageModel, tokenizer: Tokenizer | None, out: Path) -> None:
    """Write a model with its tokenizer, if it has one, and say what is there."""
    text = None if tokenizer is None else json.dumps(tokenizer.to_dict())
    save_model(model, out, text)
    layers, size = model.config.num_layers, count_parameters(model).total
    print(f"{out} holds a model of {layers} layers and {size:,} parameters.")
    if tokenizer is None:
        print("It has no tokenizer, since none was there: evaluate, generate and finetune need one.")
