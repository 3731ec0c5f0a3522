"""Text that every CPython carries: the language reference and the standard library's sources."""

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from qkvflow.data.corpora import CORPORA, Reading, refuse_options
from qkvflow.data.corpus import Corpus, TextDocument, make_corpus, rank, split_by_name

SIZE_CAP = 4_000_000
"""Characters after which no further document is taken."""

# Tables, generated code, tests and another program; what is left reads like prose and programs.
_EXCLUDED = {"encodings", "idlelib", "lib2to3", "pydoc_data", "turtledemo", "test", "tests"}
_ASCII = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--"}
    | {"\u2026": "...", "\u00a0": " ", "\t": "    "}
)
_UNPRINTABLE = re.compile(r"[^\n -~]")
_LONG = 60


@CORPORA.register("embedded")
def embedded_corpus(options: str, reading: Reading) -> Corpus:
    """About 4 MB of English and Python, with no download: the default corpus.

    Documents are the topics of `pydoc_data` and the modules of the standard library, dealt into
    train, valid and test by the hash of their names. Cleaning makes them printable ASCII, and a
    paragraph of more than 60 characters stays only where it first occurs: the topics quote
    one another, and licences repeat, so that the splits would share text otherwise.

    The text is the same in every run of one Python and differs between Python versions; the
    digest says which one it was.
    """
    refuse_options("embedded", options)
    documents = _clean(_raw_documents())
    version = ".".join(map(str, sys.version_info[:3]))
    source = f"pydoc_data and the standard library of Python {version}"
    return make_corpus("embedded", source, split_by_name(documents), "by document 90/5/5")


def _raw_documents() -> Iterator[tuple[str, str]]:
    yield from _topics()
    root = Path(sysconfig.get_path("stdlib"))
    # Only what belongs to CPython itself: no site-packages, no build configuration.
    known = [path for path in root.iterdir() if path.stem in sys.stdlib_module_names]
    paths = {
        f"lib/{path.relative_to(root).as_posix()}": path for top in known for path in _sources(top)
    }
    for name in sorted(paths, key=rank):
        if not _EXCLUDED.intersection(name.split("/")):
            yield name, paths[name].read_text(encoding="utf-8", errors="replace")


def _sources(top: Path) -> Iterable[Path]:
    return top.rglob("*.py") if top.is_dir() else [top] if top.suffix == ".py" else []


def _topics() -> Iterator[tuple[str, str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # Some distributions ship without it; the sources remain.
        return
    # The longest first: they quote the shorter ones, and the first occurrence stays.
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        yield f"topics/{name}", topics[name]


def _clean(documents: Iterable[tuple[str, str]]) -> Iterator[TextDocument]:
    seen: set[str] = set()
    total = 0
    for name, text in documents:
        if paragraphs := [part for part in _paragraphs(text) if _is_new(part, seen)]:
            document = TextDocument(name, "\n\n".join(paragraphs) + "\n")
            total += len(document.text)
            if total > SIZE_CAP:
                return
            yield document


def _paragraphs(text: str) -> Iterator[str]:
    text = _UNPRINTABLE.sub("", text.replace("\r\n", "\n").translate(_ASCII))
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return (part.strip("\n") for part in re.split(r"\n{2,}", lines) if part.strip())


def _is_new(paragraph: str, seen: set[str]) -> bool:
    # Indentation does not make a quoted paragraph another one.
    key = " ".join(paragraph.split())
    new = len(key) <= _LONG or key not in seen
    seen.add(key)
    return new
