"""Import a GPT-2 or Llama model from Hugging Face files.

    qkvflow import --gpt2 models/gpt2 --out models/imported
    qkvflow import --llama models/llama --out models/imported-llama

All other commands read OUT like a model trained with qkvflow; `qkvflow export` converts it further.
"""

from dataclasses import dataclass
from pathlib import Path

from qkvflow.cli.saving import save
from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer, read_tokenizer_files
from qkvflow.models import import_gpt2, import_llama


@dataclass(frozen=True)
class Options:
    """Options of `qkvflow import`."""

    out: Path
    """Output directory; it must not exist."""
    gpt2: Path | None = None
    """Directory of a GPT-2 model: config.json, model.safetensors and, optionally, tokenizer.json."""
    llama: Path | None = None
    """Directory of a Llama model: config.json, one or several safetensors files and, optionally,
    tokenizer.json."""


def run(options: Options) -> None:
    """Read the model and its tokenizer, save both."""
    sources = {import_gpt2: options.gpt2, import_llama: options.llama}
    named = [(read, path) for read, path in sources.items() if path is not None]
    if len(named) != 1:
        problem = f"expected one directory, with --gpt2 or --llama; got {len(named)}."
        raise ConfigError("Nothing can be imported like this:", [problem])
    read, directory = named[0]
    model, tokenizer = read(directory), _tokenizer(directory)
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        problem = f"it has {tokenizer.vocab_size} ids, more than the model's {model.config.vocab_size}."
        raise ConfigError("The tokenizer does not fit the model:", [problem])
    save(model, tokenizer, options.out)


def _tokenizer(directory: Path) -> Tokenizer | None:
    is_there = any((directory / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    return read_tokenizer_files(directory) if is_there else None
