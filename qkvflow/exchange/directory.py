"""A model as a directory that transformers reads, written without it.

config.json, model.safetensors          a GPT2LMHeadModel or a LlamaForCausalLM
generation_config.json                  the likeliest token, up to the longest sequence
tokenizer.json, tokenizer_config.json   of bytes, characters and BPE
README.md                               the model card
"""

import json
import os
from typing import Any

from safetensors.numpy import save_file

from qkvflow.config import ConfigError
from qkvflow.data import Tokenizer
from qkvflow.exchange.tokenizer_files import tokenizer_files
from qkvflow.models import LanguageModel
from qkvflow.models.storage import CARD, new_model_directory
from qkvflow.models.transformers_form import transformers_form


def write_transformers(
    model: LanguageModel,
    path: str | os.PathLike[str],
    tokenizer: Tokenizer | None = None,
    card: str | None = None,
) -> str:
    """Write a model, its tokenizer and its card to a new directory; returns the name of its class.

    Raises:
        ConfigError: the model is of neither class, or the tokenizer has more ids than the model.
        FileError: the directory is there already, or cannot be written.

    Examples:
        write_transformers(qkvflow.load("runs/first"), "models/first-hf", read_tokenizer("runs/first"))
    """
    size = model.config.vocab_size
    if tokenizer is not None and tokenizer.vocab_size > size:
        problem = f"it has {tokenizer.vocab_size} ids, the model {size}."
        raise ConfigError("The tokenizer does not fit the model:", [problem])
    form, longest = transformers_form(model), model.config.max_position_embeddings
    end = None if tokenizer is None else {"eos_token_id": tokenizer.end_of_text}
    files = (tokenizer and tokenizer_files(tokenizer, longest)) or {}
    files["config.json"] = _json(form.config | (end or {}))
    files["generation_config.json"] = _json({"max_length": longest, "do_sample": False, **(end or {})})
    if card is not None:
        files[CARD] = card
    with new_model_directory(path) as directory:
        save_file(form.tensors, directory / "model.safetensors", {"format": "pt"})
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    return str(form.config["architectures"][0])


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
