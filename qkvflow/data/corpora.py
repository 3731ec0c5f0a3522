"""`load_corpus`: one door to every corpus."""

import os
from pathlib import Path

from qkvflow.config import nearest
from qkvflow.data.corpus import Corpus
from qkvflow.data.embedded import embedded_corpus
from qkvflow.data.errors import DataError
from qkvflow.data.files import DATA_VARIABLE, directory_corpus, file_corpus, wikitext_corpus
from qkvflow.data.hub import download_wikitext, hub_corpus
from qkvflow.data.markov import markov_corpus

WIKITEXTS = ("wikitext-2", "wikitext-103")
CORPUS_NAMES = ("embedded", "markov", *WIKITEXTS)


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
    | `wikitext-2`, `wikitext-103` | from `data_dir` or `$QKVFLOW_DATA`, else from the hub |
    | `hf:OWNER/NAME[/CONFIG]` | the first `limit` documents of a dataset, column `field` |
    | a file | cut 90/5/5 by position |
    | a directory | its train, valid and test files, else documents dealt 90/5/5 |

    A name stands before a path: `./embedded` is a file of that name. Streamed text is kept in
    `cache_dir`.

    Raises:
        DataError: nothing is there, it is empty, binary, not UTF-8, or of a single symbol.

    Example:
        >>> load_corpus("markov:characters=1000").name
        'markov'
    """
    spec = os.fspath(name_or_path)
    kind, _, rest = spec.partition(":")
    data, cache = _directory(data_dir), _directory(cache_dir)
    if spec == "embedded":
        return embedded_corpus()
    if kind == "markov":
        return markov_corpus(rest)
    if kind == "hf":
        return hub_corpus(rest, limit=limit, field=field, cache_dir=cache)
    if spec in WIKITEXTS:
        return _load_wikitext(spec, data, cache)
    return _load_path(Path(spec).expanduser())


def _directory(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def _load_wikitext(name: str, data_dir: Path | None, cache_dir: Path | None) -> Corpus:
    found = wikitext_corpus(name, data_dir)
    if found:
        return found
    if data_dir:
        raise DataError(
            f"{data_dir} does not hold {name}. Expected train.txt, valid.txt and test.txt, or "
            f"wiki.train.tokens and so on, there or in {data_dir / name}."
        )
    try:
        return download_wikitext(name, cache_dir)
    except DataError as error:
        raise DataError(
            f"{name} was not found: ${DATA_VARIABLE} is "
            f"{os.environ.get(DATA_VARIABLE) or 'not set'}, and downloading it failed. {error}"
        ) from error


def _load_path(path: Path) -> Corpus:
    if path.is_file():
        return file_corpus(path)
    if path.is_dir():
        return directory_corpus(path)
    if path.exists():
        raise DataError(f"{path} is neither a file nor a directory; give a text file.")
    raise DataError(
        f"There is no corpus and no file named {str(path)!r}. {nearest(str(path), CORPUS_NAMES)} "
        f"Also hf:OWNER/NAME, and any path to text."
    )
