"""WikiText in its usual layouts: from a directory of this machine, else from the hub."""

import os
from collections.abc import Iterator
from pathlib import Path

from qkvflow.data.cache import caching, default_cache_dir
from qkvflow.data.corpora import CORPORA, Reading, refuse_options
from qkvflow.data.corpus import SPLITS, Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.files import directory_corpus, find_split_files
from qkvflow.data.hub import open_text, stream_documents
from qkvflow.progress import progress

DATA_VARIABLE = "QKVFLOW_DATA"
_ON_THE_HUB = "Salesforce/wikitext"
_HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


@CORPORA.register("wikitext-2")
def wikitext_2(options: str, reading: Reading) -> Corpus:
    """Two million words of Wikipedia."""
    return _wikitext("wikitext-2", options, reading)


@CORPORA.register("wikitext-103")
def wikitext_103(options: str, reading: Reading) -> Corpus:
    """A hundred million words of Wikipedia."""
    return _wikitext("wikitext-103", options, reading)


def _wikitext(name: str, options: str, reading: Reading) -> Corpus:
    refuse_options(name, options)
    root = reading.data_dir or _environment_directory()
    for directory in _candidates(root, name) if root else ():
        if find_split_files(directory):
            return directory_corpus(directory, name)
    if given := reading.data_dir:
        raise DataError(
            f"{given} does not hold {name}. Expected train.txt, valid.txt and test.txt, or "
            f"wiki.train.tokens and so on, there or in {given / name}."
        )
    try:
        return _download(name, reading.cache_dir)
    except DataError as error:
        raise DataError(
            f"{name} was not found: ${DATA_VARIABLE} is "
            f"{os.environ.get(DATA_VARIABLE) or 'not set'}, and downloading it failed. {error}"
        ) from error


def _environment_directory() -> Path | None:
    value = os.environ.get(DATA_VARIABLE)
    return Path(value).expanduser() if value else None


def _candidates(root: Path, name: str) -> Iterator[Path]:
    yield from (root / name, root / f"{name}-raw", root / f"{name}-v1", root / f"{name}-raw-v1")
    # The directory itself, unless its name says that it is the other WikiText.
    itself = root.resolve().name
    if not itself.startswith("wikitext-") or itself == name or itself.startswith(f"{name}-"):
        yield root


def _download(name: str, cache_dir: Path | None) -> Corpus:
    """The original files, restored from the hub's copy."""
    directory = (cache_dir or default_cache_dir()) / "hub" / name
    if not directory.is_dir():
        rows = {s: stream_documents(_ON_THE_HUB, f"{name}-v1", _HUB_SPLITS[s]) for s in SPLITS}
        with caching(directory) as temporary:
            for split in SPLITS:
                with (
                    open_text(temporary / f"{split}.txt") as file,
                    progress(f"streaming {split}") as advance,
                ):
                    for row in rows[split]:
                        # The hub's copy has "" where the original file has a line with one space.
                        file.write(row or " \n")
                        advance(1)
    return directory_corpus(directory, name)
