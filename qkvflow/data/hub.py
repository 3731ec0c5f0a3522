"""Corpora of the Hugging Face hub, streamed once into text files and read from there."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from qkvflow.data.cache import caching, default_cache_dir
from qkvflow.data.corpora import CORPORA, Reading
from qkvflow.data.corpus import SEPARATOR, SPLITS, Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.files import directory_corpus
from qkvflow.extras import pip_line
from qkvflow.progress import progress


@CORPORA.register("hf")
def hub_corpus(name: str, reading: Reading) -> Corpus:
    """The first `limit` documents of the train split of a dataset: `OWNER/NAME[/CONFIG]`.

    Documents are dealt 90/5/5 by the hash of their text, so equal documents fall into one split.
    They are written to the cache while they stream, and read from there from then on: remove the
    copy to stream again. The dataset's own valid and test splits are not used. A local directory
    that `datasets` can read may stand for the name. `limit=None` takes everything.

        load_corpus("hf:allenai/c4/en", limit=50_000)
    """
    limit, field = reading.limit, reading.field
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; expected at least 1 document, or None for all.")
    key = hashlib.sha256(f"{name}|{limit}|{field}".encode(errors="surrogateescape")).hexdigest()[:12]
    slug = name.strip("/").replace("/", "-")[-60:]
    rows = itertools.islice(stream_documents(*_parse_name(name), "train", field), limit)
    return kept_corpus(f"hf:{name}", f"{slug}-{key}", map(_deal, rows), reading)


def kept_corpus(name: str, folder: str, texts: Iterable[tuple[str, str]], reading: Reading) -> Corpus:
    """The corpus of (split, text) pairs, streamed into the cache unless they are there already."""
    directory = kept_at(folder, reading.cache_dir or default_cache_dir())
    if not directory.is_dir():
        keep_texts(name, directory, texts)
    return directory_corpus(directory, name)


def kept_at(folder: str, cache_dir: Path) -> Path:
    """Where streamed text is kept."""
    return cache_dir / "hub" / folder


def keep_texts(
    name: str, directory: Path, texts: Iterable[tuple[str, str]], total: int | None = None
) -> None:
    """Write (split, text) pairs, `total` of them, to a directory that is there whole or not at all."""
    with caching(directory) as temporary, ExitStack() as stack:
        paths = {split: temporary / f"{split}.txt" for split in SPLITS}
        form: Any = {"encoding": "utf-8", "errors": "replace", "newline": ""}
        files = {s: stack.enter_context(path.open("w", **form)) for s, path in paths.items()}
        advance = stack.enter_context(progress(f"streaming {name}", total))
        for split, text in texts:
            files[split].write(text)
            advance(1)


def _parse_name(name: str) -> tuple[str, str | None]:
    parts = name.split("/")
    if Path(name).is_dir() or len(parts) <= 2:
        return name, None
    if len(parts) == 3:
        return "/".join(parts[:2]), parts[2]
    raise DataError(f"hf:{name} has {len(parts)} parts; expected hf:OWNER/NAME or with /CONFIG.")


def stream_documents(path: str, config: str | None, split: str, field: str = "text") -> Iterator[str]:
    """The texts in a column of a data set, read as they are asked for."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"The dataset {path} needs the `datasets` package, which is not installed. "
            f"Run {pip_line('data')}, or give a directory with the text (QKVFLOW_DATA)."
        ) from error
    name = f"{path}/{config}" if config else path
    try:
        for row in datasets.load_dataset(path, config, split=split, streaming=True):
            if not isinstance(row.get(field), str):
                raise DataError(
                    f"The rows of {name} have no text in {field!r}; they hold "
                    f"{', '.join(sorted(row))}. Name the column with `field`."
                )
            yield row[field]
    except DataError:
        raise
    except Exception as error:  # datasets lets through the errors of half a dozen libraries
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(
            f"The dataset {name} could not be read: {reason}. Check the name and the network, or give "
            f"a directory with the text (QKVFLOW_DATA)."
        ) from error


def _deal(document: str) -> tuple[str, str]:
    """A document with its split; nothing is left of one that is empty."""
    # A few web pages hold NUL characters; the rest of the page is text all the same.
    text = document.replace("\0", "").strip()
    bucket = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:4]) % 20
    return {0: "valid", 1: "test"}.get(bucket, "train"), text + SEPARATOR if text else ""
