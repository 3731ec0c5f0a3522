"""Files of a repository on the Hugging Face hub, by plain HTTP, each checked when it has come."""

import hashlib
import os
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Any
from urllib.request import HTTPRedirectHandler, Request, build_opener

from qkvflow.data.errors import DataError
from qkvflow.progress import progress

HUB = "https://huggingface.co"
PATIENCE = 30.0
"""Seconds without an answer after which the hub counts as not to be reached."""
BLOCK = 2**20


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
