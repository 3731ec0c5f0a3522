"""Reading text: strict UTF-8, in blocks, with the place of every fault."""

import codecs
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qkvflow.data.errors import DataError

BLOCK_BYTES = 1 << 20
PIECE_CHARACTERS = 1 << 16

# How far back from its nominal place a cut looks for a boundary.
_LINE_SEARCH = 1 << 16
_WORD_SEARCH = 1 << 12
_WORD_END = re.compile(r"\S(?=[ \n])")


def read_text(path: Path, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Yield the text of bytes [start, stop) of a file, block by block.

    Newlines come through unchanged. A NUL byte or invalid UTF-8 raises `DataError` with the
    offset of the byte in the file.
    """
    with _reading(path), path.open("rb") as file:
        at, stop = start, path.stat().st_size if stop is None else stop
        while at < stop:
            file.seek(at)
            block = file.read(min(BLOCK_BYTES, stop - at))
            if not block:  # the file has become shorter
                return
            final = at + len(block) == stop or len(block) < BLOCK_BYTES
            text, used = _decode(path, block, at, final)
            yield text
            at += used  # a character across the end of the block is read again


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Make what the system refuses a sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}. Check that it is still there "
            f"and that you may read it."
        ) from error


def _decode(path: Path, block: bytes, offset: int, final: bool) -> tuple[str, int]:
    """The text of a block at this offset, and how many bytes it takes of it."""
    if (nul := block.find(b"\0")) >= 0:
        raise DataError(
            f"{path} is binary data: there is a NUL byte at offset {offset + nul}. Expected text in "
            f"UTF-8; if it is UTF-16, convert it first (iconv -f UTF-16 -t UTF-8)."
        )
    try:
        return codecs.utf_8_decode(block, "strict", final)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not valid UTF-8: byte 0x{block[error.start]:02x} at offset "
            f"{offset + error.start} ({error.reason}). Convert the file to UTF-8 first."
        ) from error


def cut_near(path: Path, nominal: int, lowest: int) -> int:
    """The end of the last line before byte `nominal`, but not below byte `lowest`.

    A text without a line end nearby (one long line, as in text8) is cut between two characters.
    """
    nominal = max(nominal, lowest)
    begin = max(lowest, nominal - _LINE_SEARCH)
    with _reading(path), path.open("rb") as file:
        file.seek(begin)
        window = file.read(nominal - begin + 4)
    newline = window.rfind(b"\n", 0, nominal - begin)
    if newline >= 0:
        return begin + newline + 1
    at = nominal - begin
    # 10xxxxxx continues a character in UTF-8, so the cut moves to where the next one begins.
    while at < len(window) and window[at] & 0xC0 == 0x80:
        at += 1
    return begin + at


def pieces(chunks: Iterable[str], size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a stream of text into pieces of at most `size` characters, each ending with a word.

    A cut falls between a word and the space or newline behind it. No token of a byte-level BPE
    spans that place, so the tokens of the pieces are the tokens of the whole text, and they do
    not depend on how the stream was blocked. Where 4096 characters hold no such place the cut
    is at `size`.

        >>> list(pieces(["one two", " three"], size=8))
        ['one two', ' three']
    """
    rest = ""
    for chunk in chunks:
        rest += chunk
        begin = 0
        while len(rest) - begin > size:
            end = _last_word_end(rest, begin, begin + size)
            yield rest[begin:end]
            begin = end
        rest = rest[begin:]
    if rest:
        yield rest


def _last_word_end(text: str, begin: int, end: int) -> int:
    # One character behind `end` is needed to see whether a word ends there.
    matches = _WORD_END.finditer(text, max(begin, end - _WORD_SEARCH), end + 1)
    return max((match.end() for match in matches), default=end)
