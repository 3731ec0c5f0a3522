"""Import a model of another library: GPT-2 from the layout of Hugging Face.

    qkvflow import --gpt2 models/gpt2 --out models/imported

All other commands read OUT, as they read a model that was trained here; `qkvflow export` writes models
in other forms.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.cli.saving import save
from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer, read_tokenizer_files
from qkvflow.models import import_gpt2


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow import`."""

    gpt2: Path
    """Directory with config.json and model.safetensors of a GPT-2; also tokenizer.json, if there."""
    out: Path
    """Directory to write; it must not be there."""


def run(options: Options) -> None:
    """Read the model and its tokenizer, save both."""
    model = import_gpt2(options.gpt2)
    tokenizer = _tokenizer(options.gpt2)
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        problem = f"it has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}."
        raise ConfigError("The tokenizer is of another model:", [problem])
    save(model, tokenizer, options.out)


def _tokenizer(directory: Path) -> Tokenizer | None:
    is_there = any((directory / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    return read_tokenizer_files(directory) if is_there else None
