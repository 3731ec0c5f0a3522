"""`CORPORA`, the texts that have a name, and `load_corpus`, the one door to every text."""

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from qkvflow.config import nearest
from qkvflow.config.registry import Registry
from qkvflow.data.corpus import Corpus
from qkvflow.data.errors import DataError
from qkvflow.data.files import directory_corpus, file_corpus
from qkvflow.files import expanded

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """How a corpus is found and read; each corpus takes what it needs of it."""

    data_dir: Path | None = None
    """Directory of texts on this machine; None: `$QKVFLOW_DATA`."""
    cache_dir: Path | None = None
    """Directory for streamed text; None: `$QKVFLOW_CACHE`, or `~/.cache/qkvflow`."""
    limit: int | None = 10_000
    """Documents that are streamed of a data set; None: all."""
    field: str = "text"
    """Column of a data set that holds the text."""


CORPORA = Registry[Callable[[str, Reading], Corpus]]("corpus")
"""Functions from what stands behind the colon of `NAME:...`, and how to read, to a corpus."""


def load_corpus(
    name_or_path: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    limit: int | None = 10_000,
    field: str = "text",
) -> Corpus:
    """Find a corpus, read it once, check it and digest it.

    | name | text |
    |---|---|
    | `embedded` | the language reference and standard library of the running Python |
    | `markov[:order=2,symbols=8,...]` | a generated language of known entropy rate |
    | `hops[:hops=3,test_hops=6,...]` | generated texts, and what p hops of induction answer |
    | `addition[:operands=3,...]` | generated sums, their digits from the last to the first |
    | `wikitext-2`, `wikitext-103` | from `data_dir` or `$QKVFLOW_DATA`, else from the hub |
    | `wikitext-2:characters=500000` | the same, of the train split the first characters only |
    | `hf:OWNER/NAME[/CONFIG]` | the first `limit` documents of a dataset, column `field` |
    | a file | cut 90/5/5 by position |
    | a directory | its train, valid and test files, else documents dealt 90/5/5 |

    A name stands before a path: `./embedded` is a file of that name. Streamed text is kept in
    `cache_dir`.

    Raises:
        DataError: nothing is there, it is empty, binary, not UTF-8, or of a single symbol.
        FileError: the path is empty, or begins with the name of no user.

    Examples:
        >>> load_corpus("markov:characters=1000").name
        'markov'
    """
    spec = os.fspath(name_or_path)
    name, _, rest = spec.partition(":")
    if name in CORPORA:
        return CORPORA[name](rest, Reading(_directory(data_dir), _directory(cache_dir), limit, field))
    return _load_path(expanded(spec))


def refuse_options(name: str, options: str) -> None:
    """For corpora of which there is one only."""
    if options:
        raise DataError(f"{name} takes no options, but got {options!r}; leave out the colon.")


def read_options(name: str, options: str, kind: Callable[..., T]) -> T:
    """What `option=value,...` makes of a dataclass with defaults; one that it lacks is refused."""
    known: dict[str, Any] = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in known:
            raise DataError(f"{name} has no option {key!r}. {nearest(key, known)}")
        try:
            values[key] = known[key](value)
        except ValueError as error:
            wanted = known[key].__name__
            raise DataError(f"{name}: {key}={value!r} is not a {wanted}.") from error
    return kind(**values)


def _directory(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else expanded(path)


def _load_path(path: Path) -> Corpus:
    if path.is_file():
        return file_corpus(path)
    if path.is_dir():
        return directory_corpus(path)
    if path.exists():
        raise DataError(f"{path} is neither a file nor a directory; give a text file.")
    raise DataError(
        f"There is no corpus and no file named {str(path)!r}. {CORPORA.hint(str(path))} Also any path "
        "to text."
    )
