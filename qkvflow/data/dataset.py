"""Tokenised splits on disk: flat memory-mapped ids and a sidecar that vouches for them.

Layout of a directory: `train.bin`, `valid.bin`, `test.bin` (little-endian ids, nothing else) and
`dataset.json` (digests, counts, dtype, tokenizer).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkvflow.data.corpus import SPLITS
from qkvflow.data.errors import DataError
from qkvflow.data.tokenizer import Ids, Tokenizer
from qkvflow.data.tokenizer_registry import tokenizer_from_dict
from qkvflow.files import FileError, file_sha256, read_sealed, write_sealed

FORMAT = 1
SIDECAR = "dataset.json"
CHEAP_TO_HASH = 64 << 20
"""Files up to this many bytes are hashed whenever they are opened (a tenth of a second)."""


@dataclass(frozen=True)
class SplitInfo:
    """What the sidecar knows about the token file of a split."""

    tokens: int
    bytes: int
    """Of the text in UTF-8, which makes bits per byte computable for every tokenizer."""
    characters: int
    sha256: str
    """Of the token file."""


@dataclass(frozen=True)
class TokenSplit:
    """The ids of a split, memory-mapped and read-only, and their counts."""

    ids: Ids
    info: SplitInfo

    def bits_per_byte(self, nats_per_token: float) -> float:
        """Bits per byte of text at a mean loss of `nats_per_token` on this split."""
        return bits_per_byte(nats_per_token, self.info.tokens, self.info.bytes)


@dataclass(frozen=True)
class TokenDataset:
    """A tokenised corpus. Made by `prepare` or `open_dataset`.

    dataset = prepare(corpus, tokenizer, "cache")
    inputs, targets = batch_at(dataset["train"].ids, digest=dataset.digest, ...)
    """

    directory: Path
    corpus: str
    """Name of the corpus."""
    digest: str
    """Digest of the corpus: it changes when the text or its split does."""
    entropy_rate: float | None
    tokenizer: Tokenizer
    splits: Mapping[str, TokenSplit]

    def __getitem__(self, split: str) -> TokenSplit:
        if split not in self.splits:
            raise DataError(f"There is no split {split!r}; expected one of {', '.join(SPLITS)}.")
        return self.splits[split]


def bits_per_byte(nats_per_token: float, tokens: int, bytes: int) -> float:
    """nats/token * tokens/byte / ln 2: the one loss that tokenizers can be compared by.

    >>> round(bits_per_byte(math.log(256), tokens=10, bytes=10), 6)
    8.0
    """
    return nats_per_token * tokens / bytes / math.log(2)


def open_dataset(directory: str | os.PathLike[str], *, verify: bool = False) -> TokenDataset:
    """Map the token files of a directory after checking them against the sidecar.

    Sizes are always checked, hashes for files up to 64 MB, or for all with `verify`.

    Raises:
        DataError: a file is missing, truncated, changed, or of another format.
    """
    path = Path(directory)
    sidecar = _read_sidecar(path)
    infos = {split: SplitInfo(**sidecar["splits"][split]) for split in SPLITS}
    dtype = np.dtype(sidecar["dtype"])
    return TokenDataset(
        directory=path,
        corpus=sidecar["corpus"],
        digest=sidecar["digest"],
        entropy_rate=sidecar["entropy_rate"],
        tokenizer=tokenizer_from_dict(sidecar["tokenizer"]),
        splits={s: _open_split(path / f"{s}.bin", infos[s], dtype, verify) for s in SPLITS},
    )


def write_sidecar(
    directory: Path,
    corpus: str,
    digest: str,
    entropy_rate: float | None,
    tokenizer: Tokenizer,
    infos: Mapping[str, SplitInfo],
) -> None:
    """Write `dataset.json` beside the token files."""
    content = {
        "corpus": corpus,
        "digest": digest,
        "entropy_rate": entropy_rate,
        "dtype": tokenizer.dtype.str,
        "splits": {split: asdict(info) for split, info in infos.items()},
        "tokenizer": tokenizer.to_dict(),
    }
    write_sealed(directory / SIDECAR, "dataset", FORMAT, content)


_REMEDY = "Remove the directory and prepare the corpus again."


def _read_sidecar(directory: Path) -> dict[str, Any]:
    if not (directory / SIDECAR).exists():
        raise DataError(
            f"{directory} holds no prepared dataset: {SIDECAR} is not there. Prepare one first."
        )
    try:
        return read_sealed(directory / SIDECAR, "dataset", FORMAT)
    except FileError as error:
        raise DataError(f"{error} {_REMEDY}") from error


def _open_split(path: Path, info: SplitInfo, dtype: np.dtype[Any], verify: bool) -> TokenSplit:
    expected = info.tokens * dtype.itemsize
    size = path.stat().st_size if path.is_file() else None
    if size != expected:
        state = "is missing" if size is None else f"has {size} bytes"
        raise DataError(f"{path} {state}; its sidecar says {expected} bytes. {_REMEDY}")
    if (verify or size <= CHEAP_TO_HASH) and file_sha256(path) != info.sha256:
        raise DataError(f"{path} was changed after it was written: its sha256 differs. {_REMEDY}")
    return TokenSplit(np.memmap(path, dtype=dtype, mode="r"), info)
