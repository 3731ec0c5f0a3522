"""What a corpus is: three splits of documents, checked and digested before anything uses them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkvflow.data.answers import Questions
from qkvflow.data.errors import DataError
from qkvflow.data.text import read_text
from qkvflow.progress import progress

SPLITS = ("train", "valid", "test")
SEPARATOR = "\n\n"
"""Stands between two documents of a split."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class TextDocument:
    """A document that is held in memory."""

    name: str
    text: str

    def chunks(self) -> Iterator[str]:
        """The text, in one piece."""
        yield self.text


@dataclass(frozen=True)
class FileDocument:
    """Bytes [start, stop) of a UTF-8 file, read when asked for."""

    name: str
    path: Path
    start: int = 0
    stop: int | None = None

    def chunks(self) -> Iterator[str]:
        """The text, in pieces that fit in memory."""
        return read_text(self.path, self.start, self.stop)


Document = TextDocument | FileDocument
"""A named text that can be read any number of times."""


@dataclass(frozen=True)
class SplitText:
    """The documents of one split with what the check found in them."""

    documents: tuple[Document, ...]
    bytes: int
    characters: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A checked text in three splits. Made by `load_corpus` or `make_corpus`.

    corpus = load_corpus("embedded")
    for chunk in corpus.chunks("valid"): ...
    """

    name: str
    source: str
    """Where the text is from, in words."""
    splits: Mapping[str, SplitText]
    digest: str
    """sha256 of the text of all splits and of the rule that split it."""
    entropy_rate: float | None = None
    """Nats per symbol, where it is known exactly (`markov`): no honest loss lies below it."""
    questions: Questions | None = None
    """What it asks, where its answers are known (`hops`, `addition`)."""

    def chunks(self, split: str) -> Iterator[str]:
        """The text of a split, block by block, documents joined by a blank line."""
        return join_documents(self[split].documents)

    def __getitem__(self, split: str) -> SplitText:
        return of_split(self.splits, split)


def of_split(splits: Mapping[str, Item], split: str) -> Item:
    """What belongs to a split, or a sentence that names the splits there are."""
    if split not in splits:
        raise DataError(f"There is no split {split!r}; expected one of {', '.join(SPLITS)}.")
    return splits[split]


def make_corpus(
    name: str,
    source: str,
    splits: Mapping[str, Iterable[Document]],
    rule: str,
    entropy_rate: float | None = None,
    questions: Questions | None = None,
) -> Corpus:
    """Read every split once: check it, count it, and put the digest over it.

    The digest covers the text and `rule`, a sentence that says how the text was split. It does
    not cover the name, so the same files have the same digest in another place.
    """
    with progress(f"reading {name}") as advance:
        checked = {
            split: _check_split(name, split, tuple(splits.get(split, ())), advance) for split in SPLITS
        }
    content = {"rule": rule, **{split: text.sha256 for split, text in checked.items()}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Corpus(name, source, checked, digest, entropy_rate, questions)


def shortened(corpus: Corpus, characters: int) -> Corpus:
    """The same corpus with the first characters of its train split only.

    Raises:
        DataError: it has fewer, or that is none.
    """
    there = corpus["train"].characters
    if not 0 < characters <= there:
        raise DataError(
            f"{corpus.name} has {there:,} characters in its train split, and {characters:,} were asked "
            "for; ask for fewer, and for at least one."
        )
    text = "".join(_first(corpus.chunks("train"), characters))
    splits = {split: corpus[split].documents for split in SPLITS} | {
        "train": (TextDocument("train", text),)
    }
    rule = f"of the train split the first {characters} characters"
    return make_corpus(corpus.name, corpus.source, splits, rule, corpus.entropy_rate)


def _first(chunks: Iterable[str], characters: int) -> Iterator[str]:
    for chunk in chunks:
        yield chunk[:characters]
        characters -= len(chunk)
        if characters <= 0:
            return


def join_documents(documents: Iterable[Document]) -> Iterator[str]:
    """The text of documents in order, with a blank line between two of them."""
    for index, document in enumerate(documents):
        if index:
            yield SEPARATOR
        yield from document.chunks()


def split_by_name(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Deal documents into splits 90/5/5 by the hash of their names.

    They are ranked by sha256(name): the first twentieth is valid, the next test, each at least
    one, and the rest is train. Neither the order of listing nor the machine plays a part.
    """
    ranked = sorted(documents, key=lambda document: rank(document.name))
    few = -(-len(ranked) // 20)
    return {"train": ranked[2 * few :], "valid": ranked[:few], "test": ranked[few : 2 * few]}


def rank(name: str) -> bytes:
    """A key that puts names in an order that looks random and is the same everywhere."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


def _check_split(
    name: str, split: str, documents: Sequence[Document], advance: Callable[[int], None]
) -> SplitText:
    digest, size, characters, symbols = hashlib.sha256(), 0, 0, set[str]()
    for chunk in join_documents(documents):
        data = chunk.encode()
        digest.update(data)
        size += len(data)
        characters += len(chunk)
        if len(symbols) < 2:
            symbols.update(chunk)
        advance(len(data))
    if not characters and split == "train":
        raise DataError(f"The corpus {name} is empty. Give a file or directory with some text in it.")
    if not characters:
        raise DataError(
            f"The {split} split of {name} is empty. Give a longer text, or a directory with the files "
            f"train.txt, valid.txt and test.txt."
        )
    if split == "train" and len(symbols) == 1:
        raise DataError(
            f"The train split of {name} holds the single symbol {symbols.pop()!r}, "
            f"{characters} times. There is nothing to learn from it; give a text with at least two."
        )
    return SplitText(tuple(documents), size, characters, digest.hexdigest())
