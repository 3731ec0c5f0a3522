"""A tokenizer by name, by path, or from the data it was saved as."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvflow.data.bpe import BPETokenizer
from qkvflow.data.corpus import Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import TOKENIZERS, Tokenizer


def tokenizer_from_dict(data: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` described.

    >>> tokenizer_from_dict({"kind": "byte"}).vocab_size
    256
    """
    kind = str(data.get("kind"))
    if kind not in TOKENIZERS:
        raise DataError(
            f"A tokenizer of kind {kind!r} is not known: was it saved by a newer version? "
            f"{TOKENIZERS.hint(kind)}"
        )
    return TOKENIZERS[kind].from_dict(data)


def make_tokenizer(spec: str, corpus: Corpus, vocab_size: int = 8192) -> Tokenizer:
    """A tokenizer by name, fitted on the train split, or from a path.

    `byte`, `char`, `bpe` (trained to `vocab_size`), a `tokenizer.json`, or a directory that
    holds one or GPT-2's `vocab.json` and `merges.txt`.
    """
    if spec in TOKENIZERS:
        return TOKENIZERS[spec].fit(corpus.chunks("train"), vocab_size)
    return read_tokenizer_files(Path(spec).expanduser())


def read_tokenizer_files(path: Path) -> BPETokenizer:
    """The tokenizer of a tokenizer.json, or of a directory that holds one or GPT-2's files."""
    if path.is_file():
        return BPETokenizer.from_file(path)
    if (path / "tokenizer.json").is_file():
        return BPETokenizer.from_file(path / "tokenizer.json")
    if (path / "vocab.json").is_file():
        return BPETokenizer.from_gpt2(path / "vocab.json", path / "merges.txt")
    raise DataError(
        f"There is no tokenizer {str(path)!r}. Expected one of {', '.join(TOKENIZERS)}, a "
        f"tokenizer.json, or a directory with one or with vocab.json and merges.txt."
    )
