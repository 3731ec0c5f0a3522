"""Text to ids and back: the common interface, bytes and characters."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qkvflow.config.registry import Registry
from qkvflow.config.strict import shown
from qkvflow.data.errors import DataError

Ids = npt.NDArray[Any]
"""A one-dimensional array of token ids, of an unsigned or signed integer type."""


@dataclass(frozen=True)
class Tokenizer(ABC):
    """Maps text to ids in [0, vocab_size) and back, and is saved as plain JSON: its fields."""

    kind: ClassVar[str]
    """The name that it is registered by."""

    @classmethod
    @abstractmethod
    def fit(cls, chunks: Iterable[str], vocab_size: int) -> "Tokenizer":
        """The tokenizer of a text: give it the train split, never more.

        Args:
            vocab_size: how many ids there are to be, where that can be chosen.
        """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """How many ids there are."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """The ids of a text, as uint16, or uint32 where the vocabulary needs it."""

    @abstractmethod
    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of ids; what is no text comes out as U+FFFD."""

    def lost_bytes(self, text: str, ids: Ids) -> int:
        """Bytes of a text, in UTF-8, that its ids do not give back: unknown, dropped or changed.

        Characters are counted by kind, wherever they stand in the text that comes back.
        """
        # After a token, since some tokenizers leave out a space at the beginning of all text.
        before, after = ids[-1:], np.concatenate([ids[-1:], ids])
        given = self.decode(after)[len(self.decode(before)) :]
        lost = Counter() if given == text else Counter(text) - Counter(given)
        return sum(count * _size(character) for character, count in lost.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, its kind among it, that `tokenizer_from_dict` turns into an equal tokenizer."""
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Tokenizer":
        """The inverse of `to_dict`."""
        return cls(**{name: value for name, value in data.items() if name != "kind"})

    @property
    def end_of_text(self) -> int | None:
        """The id of the token that ends a text; None where there is none."""
        return None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint16 and uint32 that holds every id."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")

    @property
    def digest(self) -> str:
        """sha256 of the tokenizer's data."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


TOKENIZERS = Registry[type[Tokenizer]]("tokenizer")


def tokenizer_from_dict(data: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `to_dict` described.

    Raises:
        DataError: it is of an unknown kind, or lacks something, or has it of another type.

    >>> tokenizer_from_dict({"kind": "byte"}).vocab_size
    256
    """
    if not isinstance(data, Mapping):
        raise DataError(f"A saved tokenizer is {shown(data)}; expected a table with its kind.")
    kind = str(data.get("kind"))
    if kind not in TOKENIZERS:
        raise DataError(
            f"A tokenizer of kind {kind!r} is not known: was it saved by a newer version? "
            f"{TOKENIZERS.hint(kind)}"
        )
    try:
        return TOKENIZERS[kind].from_dict(data)
    except (KeyError, TypeError) as error:
        lacks = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"A saved tokenizer of kind {kind!r} cannot be used: {lacks}.") from error


def check_ids(ids: npt.ArrayLike, vocab_size: int) -> Ids:
    """The ids as an array, or a `DataError` if one of them is outside of the vocabulary."""
    array = np.asarray(ids, dtype=np.int64)
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
        raise DataError(
            f"Ids from {array.min()} to {array.max()} came to be decoded; expected 0 to "
            f"{vocab_size - 1}. Were they made by another tokenizer?"
        )
    return array


@TOKENIZERS.register("byte")
@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8: no vocabulary to fit, nothing unknown.

    >>> ByteTokenizer().encode("né").tolist()
    [110, 195, 169]
    """

    kind: ClassVar[str] = "byte"

    @classmethod
    def fit(cls, chunks: Iterable[str], vocab_size: int = 256) -> "ByteTokenizer":
        return cls()

    @property
    def vocab_size(self) -> int:
        return 256

    def encode(self, text: str) -> Ids:
        # A lone surrogate, as a broken command line may hold, is no character: "?" replaces it.
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(self.dtype)

    def decode(self, ids: npt.ArrayLike) -> str:
        return check_ids(ids, 256).astype(np.uint8).tobytes().decode("utf-8", "replace")


@TOKENIZERS.register("char")
@dataclass(frozen=True)
class CharTokenizer(Tokenizer):
    """The characters of the train split in order of code point, and id 0 for all others.

    >>> CharTokenizer.fit(["abba"]).encode("abc").tolist()
    [1, 2, 0]
    """

    kind: ClassVar[str] = "char"
    symbols: str

    def __post_init__(self) -> None:
        is_text = isinstance(self.symbols, str) and bool(self.symbols)
        if not is_text or sorted(set(self.symbols)) != list(self.symbols):
            raise DataError("A character vocabulary must be distinct characters in sorted order.")

    @classmethod
    def fit(cls, chunks: Iterable[str], vocab_size: int | None = None) -> "CharTokenizer":
        return cls("".join(sorted(set(chain.from_iterable(chunks)))))

    @property
    def vocab_size(self) -> int:
        return 1 + len(self.symbols)

    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        # Every code point above the table's last is unknown, as the table's last entry is.
        ids: Ids = self._table[np.minimum(points, len(self._table) - 1)]
        return ids

    def decode(self, ids: npt.ArrayLike) -> str:
        symbols = "\N{REPLACEMENT CHARACTER}" + self.symbols
        return "".join([symbols[i] for i in check_ids(ids, self.vocab_size).tolist()])

    def lost_bytes(self, text: str, ids: Ids) -> int:
        return sum(_size(chr(point)) for point in _code_points(text)[ids == 0])

    @cached_property
    def _table(self) -> Ids:
        """Code point to id; the entry past the last symbol is 0."""
        points = _code_points(self.symbols)
        table = np.zeros(int(points[-1]) + 2, self.dtype)
        table[points] = np.arange(1, self.vocab_size)
        return table


def _size(character: str) -> int:
    return len(character.encode("utf-8", "surrogatepass"))


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
