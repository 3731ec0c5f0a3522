"""Tokenised splits on disk: made once, as a stream; flat memory-mapped ids and a sidecar for them.

Layout of a directory: `train.bin`, `valid.bin`, `test.bin` (little-endian ids, nothing else) and
`dataset.json` (digests, counts, dtype, tokenizer).
"""

import hashlib
import math
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qkvflow.config.strict import matches, read_typed
from qkvflow.data.answers import Answers, Questions, find_answers
from qkvflow.data.cache import caching
from qkvflow.data.corpus import SPLITS, Corpus, of_split
from qkvflow.data.errors import DataError
from qkvflow.data.text import pieces
from qkvflow.data.tokenizer import Ids, Tokenizer, tokenizer_from_dict
from qkvflow.files import FileError, expanded, file_sha256, write_sealed
from qkvflow.progress import progress

FORMAT = 3
SIDECAR = "dataset.json"
CHEAP_TO_HASH = 64 << 20
"""Files up to this many bytes are hashed whenever they are opened (a tenth of a second)."""
_TYPES: dict[str, Any] = {"corpus": str, "digest": str, "dtype": Literal["<u2", "<u4"]}
_TYPES |= {
    "entropy_rate": float | None,
    "splits": dict[str, dict[str, Any]],
    "tokenizer": dict[str, Any],
}
_LEAST = {"tokens": 0, "bytes": 1, "lost_bytes": 0}
"""Counts of a split, and what they are at the least."""
_REMEDY = "Remove the directory and prepare the corpus again."


@dataclass(frozen=True)
class TokenSplit:
    """The ids of a split, memory-mapped and read-only, and the size of its text."""

    ids: Ids
    bytes: int
    """Of the text in UTF-8, which makes bits per byte computable for every tokenizer."""
    lost: int = 0
    """Bytes of the text that the ids do not give back."""
    answers: Answers | None = None
    """Where its answers are, if it is a text of questions."""

    def bits_per_byte(self, nats_per_token: float) -> float:
        """nats/token * tokens/byte / ln 2: the one loss that tokenizers can be compared by.

        A byte that the tokenizer loses counts 8 bits, what it takes to write it down beside the
        tokens: leaving out text never makes the number look good.

        >>> round(TokenSplit(np.zeros(10), bytes=10).bits_per_byte(math.log(256)), 6)
        8.0
        >>> TokenSplit(np.zeros(10), bytes=20, lost=10).bits_per_byte(0.0)
        4.0
        """
        bits = nats_per_token * len(self.ids) / math.log(2)
        return (bits + 8 * self.lost) / self.bytes

    @property
    def coverage(self) -> float:
        """Share of the text's bytes that the ids give back."""
        return 1 - self.lost / self.bytes


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
        return of_split(self.splits, split)


def prepare(corpus: Corpus, tokenizer: Tokenizer, cache_dir: str | os.PathLike[str]) -> TokenDataset:
    """The tokens of a corpus, from the cache if they are there, else made and kept there.

    The directory's name holds a hash of the corpus digest and the tokenizer, so another text or
    another vocabulary never meets old tokens. A cached dataset that does not match its sidecar
    is named in a warning and made again. Text passes in pieces: memory does not grow with the
    corpus. On failure nothing is left behind.

    Raises:
        DataError: the directory cannot be written, the disk is full, or the text has changed
            since the corpus was loaded.

    Examples:
        dataset = prepare(load_corpus("embedded"), ByteTokenizer(), "cache")
    """
    key = hashlib.sha256(f"{FORMAT}|{corpus.digest}|{tokenizer.digest}".encode()).hexdigest()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in corpus.name)[-60:]
    directory = expanded(cache_dir) / f"{name}-{tokenizer.kind}-{key[:16]}"
    if directory.exists():
        try:
            return _reuse(directory, corpus, tokenizer)
        except DataError as error:
            warnings.warn(f"{error} It is being prepared again.", stacklevel=2)
            shutil.rmtree(directory, ignore_errors=True)
    with caching(directory) as temporary:
        _write_dataset(corpus, tokenizer, temporary)
    return open_dataset(directory)


def _reuse(directory: Path, corpus: Corpus, tokenizer: Tokenizer) -> TokenDataset:
    dataset = open_dataset(directory)
    if (dataset.digest, dataset.tokenizer.digest) != (corpus.digest, tokenizer.digest):
        raise DataError(f"{directory} holds another corpus or tokenizer than its name says.")
    return dataset


def _write_dataset(corpus: Corpus, tokenizer: Tokenizer, directory: Path) -> None:
    total = sum(corpus[split].bytes for split in SPLITS)
    with progress(f"tokenising {corpus.name}", total) as advance:
        splits = {split: _write_split(corpus, split, tokenizer, directory, advance) for split in SPLITS}
    content = {
        "corpus": corpus.name.encode(errors="backslashreplace").decode(),  # a file's may be no UTF-8
        "digest": corpus.digest,
        "entropy_rate": corpus.entropy_rate,
        "questions": corpus.questions and asdict(corpus.questions),
        "dtype": tokenizer.dtype.str,
        "splits": splits,
        "tokenizer": tokenizer.to_dict(),
    }
    write_sealed(directory / SIDECAR, "dataset", FORMAT, content)


def _write_split(
    corpus: Corpus, split: str, tokenizer: Tokenizer, directory: Path, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write the token file of a split; what the sidecar says of it."""
    text_hash, tokens, lost, path = hashlib.sha256(), 0, 0, directory / f"{split}.bin"
    with path.open("wb") as file:
        for piece in pieces(corpus.chunks(split)):
            ids, text = tokenizer.encode(piece), piece.encode()
            file.write(ids.data)
            text_hash.update(text)
            tokens += len(ids)
            lost += tokenizer.lost_bytes(piece, ids)
            advance(len(text))
    known = corpus[split]
    if text_hash.hexdigest() != known.sha256:
        raise DataError(
            f"The {split} text of {corpus.name} ({corpus.source}) has changed since it was loaded. "
            f"Load the corpus again."
        )
    counts = {"tokens": tokens, "bytes": known.bytes, "characters": known.characters}
    return {**counts, "lost_bytes": lost, "sha256": file_sha256(path)}


def coverage_note(data: TokenDataset, least: float, splits: Sequence[str] = SPLITS) -> str | None:
    """A sentence about the text that a tokenizer loses; None where it gives back every byte.

    Args:
        least: the share of each split that it has to give back.

    Raises:
        DataError: it gives back less.
    """
    lossy = {split: data[split] for split in splits if data[split].lost}
    if not lossy:
        return None
    losses = ", ".join(
        f"{part.lost:,} of {part.bytes:,} bytes of {split} ({part.lost / part.bytes:.2%})"
        for split, part in lossy.items()
    )
    what = f"The tokenizer {data.tokenizer.kind} loses text of {data.corpus}: {losses}"
    worst = min(part.coverage for part in lossy.values())
    if worst < least:
        allowed = math.floor(worst * 1000) / 1000
        raise DataError(
            f"{what}; expected at most {1 - least:.2%}. Use a tokenizer that loses nothing, such as "
            f"byte, or a model with one; or allow it with least_coverage: {allowed} "
            f"(--least-coverage {allowed})."
        )
    return f"{what}. In bits per byte each of these bytes counts 8 bits."


def open_dataset(directory: str | os.PathLike[str]) -> TokenDataset:
    """Map the token files of a directory after checking them against the sidecar.

    Sizes are always checked, hashes for files up to 64 MB.

    Raises:
        DataError: a file is missing, truncated, changed, or of another format.
    """
    path = Path(directory)
    sidecar = _read_sidecar(path)
    dtype, known = np.dtype(sidecar["dtype"]), sidecar["splits"]
    tokenizer = tokenizer_from_dict(sidecar["tokenizer"])
    splits = {s: _open_split(path / f"{s}.bin", dtype, known[s]) for s in SPLITS}
    if asked := sidecar.get("questions"):  # those prepared before there were any say nothing
        questions = Questions(**asked)
        splits = {s: _with_answers(split, tokenizer, questions) for s, split in splits.items()}
    return TokenDataset(
        directory=path,
        corpus=sidecar["corpus"],
        digest=sidecar["digest"],
        entropy_rate=sidecar["entropy_rate"],
        tokenizer=tokenizer,
        splits=splits,
    )


def _read_sidecar(directory: Path) -> dict[str, Any]:
    if not (directory / SIDECAR).exists():
        raise DataError(
            f"{directory} holds no prepared dataset: {SIDECAR} is missing. Prepare one first."
        )
    try:
        sidecar = read_typed(directory / SIDECAR, "dataset", FORMAT, _TYPES)
    except FileError as error:
        raise DataError(f"{error} {_REMEDY}") from error
    if sidecar["format"] < FORMAT:
        raise DataError(f"{directory} was prepared by an earlier version of qkvflow. {_REMEDY}")
    for split in SPLITS:
        counts = sidecar["splits"].get(split, {})
        if not all(matches(counts.get(name), int) and counts[name] >= n for name, n in _LEAST.items()):
            raise DataError(f"{directory / SIDECAR} does not say how large {split} is. {_REMEDY}")
    return sidecar


def _open_split(path: Path, dtype: np.dtype[Any], known: Mapping[str, Any]) -> TokenSplit:
    expected = known["tokens"] * dtype.itemsize
    size = path.stat().st_size if path.is_file() else None
    if size != expected:
        state = "is missing" if size is None else f"has {size} bytes"
        raise DataError(f"{path} {state}; its sidecar says {expected} bytes. {_REMEDY}")
    if expected <= CHEAP_TO_HASH and file_sha256(path) != known.get("sha256"):
        raise DataError(f"{path} was changed after it was written: its sha256 differs. {_REMEDY}")
    ids = np.memmap(path, dtype=dtype, mode="r") if expected else np.zeros(0, dtype)  # of all text lost
    return TokenSplit(ids, known["bytes"], known["lost_bytes"])


def _with_answers(split: TokenSplit, tokenizer: Tokenizer, questions: Questions) -> TokenSplit:
    """The same split with its answers, which only tokens of one character each can tell."""
    if len(split.ids) != split.bytes:
        return split
    return replace(split, answers=find_answers(split.ids, tokenizer, questions))
