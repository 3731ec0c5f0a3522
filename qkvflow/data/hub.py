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
    key = hashlib.sha256(f"{name}|{limit}|{field}".encode()).hexdigest()[:12]
    slug = name.strip("/").replace("/", "-")[-60:]
    directory = (reading.cache_dir or default_cache_dir()) / "hub" / f"{slug}-{key}"
    if not directory.is_dir():
        path, config = _parse_name(name)
        documents = stream_documents(path, config, "train", field)
        with caching(directory) as temporary:
            _spool(itertools.islice(documents, limit), temporary, name)
    return directory_corpus(directory, f"hf:{name}")


def _parse_name(name: str) -> tuple[str, str | None]:
    parts = name.split("/")
    if Path(name).is_dir() or len(parts) <= 2:
        return name, None
    if len(parts) == 3:
        return "/".join(parts[:2]), parts[2]
    raise DataError(f"hf:{name} has {len(parts)} parts; expected hf:OWNER/NAME or with /CONFIG.")


def stream_documents(path: str, config: str | None, split: str, field: str = "text") -> Iterator[str]:
    """The texts in a column of a data set, which is opened at once and read as it is asked for."""
    return _documents(_stream(path, config, split), field, f"{path}/{config}" if config else path)


def _stream(path: str, config: str | None, split: str) -> Iterable[Any]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"The dataset {path} needs the `datasets` package, which is not installed. "
            f'Run pip install "qkvflow[data]", or give a directory with the text (QKVFLOW_DATA).'
        ) from error
    try:
        rows: Iterable[Any] = datasets.load_dataset(path, config, split=split, streaming=True)
        return rows
    except Exception as error:  # datasets lets through the errors of half a dozen libraries
        raise DataError(_unreachable(path, config, error)) from error


def _documents(rows: Iterable[Any], field: str, name: str) -> Iterator[str]:
    stream = iter(rows)
    while True:
        try:
            row = next(stream)
        except StopIteration:
            return
        except Exception as error:  # the network may fail in the middle of a stream
            raise DataError(_unreachable(name, None, error)) from error
        if not isinstance(row.get(field), str):
            columns = ", ".join(sorted(row))
            raise DataError(
                f"The rows of {name} have no text in {field!r}; they hold {columns}. "
                f"Name the column with `field`."
            )
        yield row[field]


def _unreachable(path: str, config: str | None, error: Exception) -> str:
    what = f"{path}/{config}" if config else path
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return (
        f"The dataset {what} could not be read: {reason}. Check the name and the network, or give "
        f"a directory with the text (QKVFLOW_DATA)."
    )


def _spool(documents: Iterable[str], directory: Path, name: str) -> None:
    with ExitStack() as stack:
        files = {s: stack.enter_context(open_text(directory / f"{s}.txt")) for s in SPLITS}
        advance = stack.enter_context(progress(f"streaming {name}"))
        for document in documents:
            # A few web pages hold NUL characters; the rest of the page is text all the same.
            text = document.replace("\0", "").strip()
            if text:
                files[_split_of(text)].write(text + SEPARATOR)
            advance(1)


def _split_of(text: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:4]) % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


def open_text(path: Path) -> Any:
    """A file to write text to, its newlines unchanged."""
    return path.open("w", encoding="utf-8", errors="replace", newline="")
