"""WikiText in its usual layouts: from a directory of this machine, else from the hub.

`wikitext-2:characters=500000` has the beginning of the train split only, for runs that read a text many
times; what they are judged on stays whole.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from qkvflow.data.cache import default_cache_dir
from qkvflow.data.corpora import CORPORA, Reading
from qkvflow.data.corpus import SPLITS, Corpus, shortened
from qkvflow.data.errors import DataError
from qkvflow.data.files import directory_corpus, find_split_files
from qkvflow.data.hub import keep_texts, kept_at, stream_documents
from qkvflow.files import expanded

DATA_VARIABLE = "QKVFLOW_DATA"
ON_THE_HUB = "Salesforce/wikitext"
LINES = {"wikitext-2": (36_718, 3_760, 4_358), "wikitext-103": (1_801_350, 3_760, 4_358)}
"""Of the splits train, valid and test."""
_HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def wikitext(name: str, options: str, reading: Reading) -> Corpus:
    """Two or a hundred million words of Wikipedia: `wikitext-2`, `wikitext-103`."""
    characters = _characters(name, options)
    whole = _whole(name, reading)
    return whole if characters is None else shortened(whole, characters)


def _characters(name: str, options: str) -> int | None:
    """How much of the train split is read; None: all."""
    if not options:
        return None
    key, _, value = options.partition("=")
    if key != "characters" or not (value.isascii() and value.isdigit() and 0 < len(value) < 16):
        raise DataError(f"{name} has one option, {name}:characters=500000, and {options!r} came.")
    return int(value)


def _whole(name: str, reading: Reading) -> Corpus:
    variable = os.environ.get(DATA_VARIABLE)
    root = reading.data_dir or (expanded(variable) if variable else None)
    for directory in _candidates(root, name) if root else ():
        if find_split_files(directory):
            return directory_corpus(directory, name)
    if given := reading.data_dir:
        raise DataError(
            f"{given} does not hold {name}. Expected train.txt, valid.txt and test.txt, or "
            f"wiki.train.tokens and so on, there or in {given / name}."
        )
    directory = kept_at(name, reading.cache_dir or default_cache_dir())
    try:
        if not directory.is_dir():
            keep_wikitext(name, directory)
        return directory_corpus(directory, name)
    except DataError as error:
        raise DataError(
            f"{name} was not found: ${DATA_VARIABLE} is {variable or 'not set'}, and downloading it "
            f"failed. {error} See qkvflow download {name}."
        ) from error


for _name in ("wikitext-2", "wikitext-103"):
    CORPORA.register(_name)(partial(wikitext, _name))


def _candidates(root: Path, name: str) -> Iterator[Path]:
    yield from (root / name, root / f"{name}-raw", root / f"{name}-v1", root / f"{name}-raw-v1")
    # The directory itself, unless its name says that it is the other WikiText.
    itself = root.resolve().name
    if not itself.startswith("wikitext-") or itself == name or itself.startswith(f"{name}-"):
        yield root


def keep_wikitext(name: str, directory: Path) -> None:
    """Fetch a WikiText from the hub into a directory, whole or not at all.

    Raises:
        DataError: it cannot be had, or lines are missing.
    """
    keep_texts(name, directory, _from_the_hub(name), sum(LINES[name]))


def _from_the_hub(name: str) -> Iterator[tuple[str, str]]:
    """The lines of the original files, each with its split."""
    for split, expected in zip(SPLITS, LINES[name]):
        found = 0
        for row in stream_documents(ON_THE_HUB, f"{name}-v1", _HUB_SPLITS[split]):
            found += 1
            # The hub's copy has "" where the original file has a line with one space.
            yield split, row or " \n"
        if found != expected:
            raise DataError(
                f"{name} came with {found:,} lines in its {split} split; expected {expected:,}. "
                "Nothing was kept. Run the command again."
            )
