"""Tokenise a corpus once, as a stream, and keep the result."""

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from qkvflow.data.cache import caching
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.dataset import (
    FORMAT,
    SplitInfo,
    TokenDataset,
    open_dataset,
    write_sidecar,
)
from qkvflow.data.errors import DataError
from qkvflow.data.text import pieces
from qkvflow.data.tokenizer import Tokenizer
from qkvflow.progress import progress


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    cache_dir: str | os.PathLike[str],
    *,
    verify: bool = False,
) -> TokenDataset:
    """The tokens of a corpus, from the cache if they are there, else made and kept there.

    The directory's name holds a hash of the corpus digest and the tokenizer, so another text or
    another vocabulary never meets old tokens. A cached dataset that does not match its sidecar
    is named in a warning and made again; `verify` hashes large files too. Text passes in pieces:
    memory does not grow with the corpus. On failure nothing is left behind.

    Raises:
        DataError: the directory cannot be written, the disk is full, or the text has changed
            since the corpus was loaded.

    Example:
        dataset = prepare(load_corpus("embedded"), ByteTokenizer(), "cache")
    """
    directory = dataset_directory(corpus, tokenizer, Path(cache_dir).expanduser())
    if directory.exists():
        try:
            return _reuse(directory, corpus, tokenizer, verify)
        except DataError as error:
            warnings.warn(f"{error} It is being prepared again.", stacklevel=2)
            shutil.rmtree(directory, ignore_errors=True)
    with caching(directory) as temporary:
        _write_dataset(corpus, tokenizer, temporary)
    return open_dataset(directory)


def dataset_directory(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path) -> Path:
    """Where `prepare` keeps this corpus with this tokenizer."""
    key = hashlib.sha256(f"{FORMAT}|{corpus.digest}|{tokenizer.digest}".encode()).hexdigest()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in corpus.name)[-60:]
    return cache_dir / f"{name}-{tokenizer.kind}-{key[:16]}"


def _reuse(directory: Path, corpus: Corpus, tokenizer: Tokenizer, verify: bool) -> TokenDataset:
    dataset = open_dataset(directory, verify=verify)
    if (dataset.digest, dataset.tokenizer.digest) != (corpus.digest, tokenizer.digest):
        raise DataError(f"{directory} holds another corpus or tokenizer than its name says.")
    return dataset


def _write_dataset(corpus: Corpus, tokenizer: Tokenizer, directory: Path) -> None:
    total = sum(corpus[split].bytes for split in SPLITS)
    with progress(f"tokenising {corpus.name}", total) as advance:
        infos = {
            split: _write_split(corpus, split, tokenizer, directory / f"{split}.bin", advance)
            for split in SPLITS
        }
    write_sidecar(directory, corpus.name, corpus.digest, corpus.entropy_rate, tokenizer, infos)


def _write_split(
    corpus: Corpus, split: str, tokenizer: Tokenizer, path: Path, advance: Callable[[int], None]
) -> SplitInfo:
    text_hash, file_hash, tokens = hashlib.sha256(), hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in pieces(corpus.chunks(split)):
            ids, text = tokenizer.encode(piece), piece.encode()
            file.write(ids.data)
            file_hash.update(ids.data)
            text_hash.update(text)
            tokens += len(ids)
            advance(len(text))
    if text_hash.hexdigest() != corpus[split].sha256:
        raise DataError(
            f"The {split} text of {corpus.name} ({corpus.source}) has changed since it was loaded. "
            f"Load the corpus again."
        )
    return SplitInfo(tokens, corpus[split].bytes, corpus[split].characters, file_hash.hexdigest())
