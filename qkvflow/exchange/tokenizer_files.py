"""Tokenizers as transformers reads them: a tokenizer.json of the `tokenizers` package, and its config.

Bytes are a byte-level BPE without merges, whose id of a byte is the byte. Characters are a BPE without
merges, too, over characters; id 0 stands for all that are unknown.
"""

import json
from typing import Any

from qkvflow.data import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def tokenizer_files(tokenizer: Tokenizer, longest: int) -> dict[str, str] | None:
    """The text of every file by its name; None for a kind of tokenizer that has no such form."""
    whole = tokenizer_json(tokenizer)
    if whole is None:
        return None
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.end_of_text is not None:
        config["eos_token"] = tokenizer.decode([tokenizer.end_of_text])
    return {"tokenizer.json": whole, "tokenizer_config.json": json.dumps(config, indent=1) + "\n"}


def tokenizer_json(tokenizer: Tokenizer) -> str | None:
    """The text of a tokenizer.json that gives the same ids; None where there is none."""
    if isinstance(tokenizer, BPETokenizer):
        return tokenizer.json_text
    if isinstance(tokenizer, ByteTokenizer):
        return _bytes()
    return _characters(tokenizer) if isinstance(tokenizer, CharTokenizer) else None


def _bytes() -> str:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    shown = set(pre_tokenizers.ByteLevel.alphabet())
    hidden = (byte for byte in range(256) if chr(byte) not in shown)
    stand_in = {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    backend = Backend(models.BPE({stand_in.get(byte, chr(byte)): byte for byte in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return str(backend.to_str())


def _characters(tokenizer: CharTokenizer) -> str:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    unknown = "<unk>" if UNKNOWN in tokenizer.symbols else UNKNOWN
    vocabulary = {symbol: i for i, symbol in enumerate([unknown, *tokenizer.symbols])}
    backend = Backend(models.BPE(vocabulary, [], unk_token=unknown))
    backend.decoder = decoders.Fuse()
    return str(backend.to_str())
