"""What import and export have in common: a model in a directory of its own, and a sentence on it."""

import json
from pathlib import Path

from qkvflow.data import Tokenizer
from qkvflow.exchange import write_transformers
from qkvflow.models import LanguageModel, count_parameters
from qkvflow.models.storage import save_model


def save(model: LanguageModel, tokenizer: Tokenizer | None, out: Path, card: str | None = None) -> None:
    """Write a model with its tokenizer, if it has one, and say what is there."""
    text = None if tokenizer is None else json.dumps(tokenizer.to_dict())
    save_model(model, out, text, card)
    layers, size = model.config.num_layers, count_parameters(model).total
    print(f"{out} holds a model with {layers} layers and {size:,} parameters.")
    if tokenizer is None:
        print("It has no tokenizer, because none was found: evaluate, generate and finetune need one.")


def save_for_transformers(
    model: LanguageModel, tokenizer: Tokenizer | None, out: Path, card: str
) -> None:
    """Write a model as transformers reads it, and say what is there."""
    kind = write_transformers(model, out, tokenizer, card)
    layers, size = model.config.num_layers, count_parameters(model).total
    print(f"{out} holds a {kind} for transformers, with {layers} layers and {size:,} parameters.")
    if tokenizer is None:
        print("It has no tokenizer, because none was found.")
    elif not (out / "tokenizer.json").is_file():
        print(f"It has no tokenizer: a {tokenizer.kind} tokenizer cannot be written as tokenizer.json.")
