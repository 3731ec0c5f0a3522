"""The Hugging Face hub: corpora, streamed once into text files, and files as they are there."""

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from qkvflow.data.cache import caching, default_cache_dir
from qkvflow.data.corpora import CORPORA, Reading
from qkvflow.data.corpus import SEPARATOR, SPLITS, Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.files import directory_corpus
from qkvflow.extras import pip_line
from qkvflow.progress import progress

HUB = "https://huggingface.co"
PATIENCE = 30.0
"""Seconds without an answer after which the hub counts as not to be reached."""
BLOCK = 2**20


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


def address_of(repository: str, name: str = "") -> str:
    """Where a repository, or a file of it, can be fetched; `$HF_ENDPOINT` stands in for the hub."""
    hub = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    return f"{hub}/{repository}/resolve/main/{name}" if name else f"{hub}/{repository}"


def fetch_files(repository: str, names: Sequence[str], directory: Path) -> None:
    """Write files of a repository into a directory, which the caller removes if this fails.

    Raises:
        DataError: the hub cannot be reached, has no such file, or what came is not whole.
    """
    for name in names:
        url = address_of(repository, name)
        try:
            _fetch(url, directory / name)
        except (OSError, HTTPException) as error:
            raise DataError(f"{url} could not be fetched: {error}.") from error


class _Redirects(HTTPRedirectHandler):
    """Keeps what the hub says of a large file before it leads to where that lies."""

    def __init__(self) -> None:
        self.sha256: str | None = None

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        self.sha256 = headers.get("X-Linked-Etag", "").strip('"') or self.sha256
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetch(url: str, target: Path) -> None:
    redirects, digest, size = _Redirects(), hashlib.sha256(), 0
    request = Request(url, headers={"User-Agent": "qkvflow"})
    with build_opener(redirects).open(request, timeout=PATIENCE) as answer, target.open("wb") as file:
        told = answer.headers.get("Content-Length")
        total = int(told) if told and told.isdecimal() else None
        with progress(f"downloading {target.name}", total) as advance:
            while block := answer.read(BLOCK):
                file.write(block)
                digest.update(block)
                size += len(block)
                advance(len(block))
    if total is not None and size != total:
        raise DataError(f"{url} broke off after {size:,} of {total:,} bytes. Run the command again.")
    if redirects.sha256 is not None and redirects.sha256 != digest.hexdigest():
        raise DataError(
            f"{url} did not come as it is on the hub: its sha256 is {digest.hexdigest()}, expected "
            f"{redirects.sha256}. Run the command again."
        )
