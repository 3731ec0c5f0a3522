"""Corpora from files: one text file, or a directory of documents."""

from collections.abc import Iterator
from pathlib import Path

from qkvflow.data.corpus import SPLITS, Corpus, FileDocument, make_corpus, split_by_name
from qkvflow.data.errors import DataError
from qkvflow.data.text import cut_near

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".py", ".tokens", ".raw")

_STEMS = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
_LAYOUTS = ("{stem}.txt", "wiki.{stem}.tokens", "wiki.{stem}.raw")


def file_corpus(path: Path) -> Corpus:
    """A text file, cut by position into 90% train, 5% valid and 5% test at line ends."""
    size = path.stat().st_size
    if not size:
        raise DataError(
            f"{path} is empty. Give a file with some text in it; what /proc shows has no size: copy it "
            f"into a file first."
        )
    first = cut_near(path, size * 90 // 100, lowest=0)
    second = cut_near(path, size * 95 // 100, lowest=first + 1)
    edges = (0, first, min(second, size), size)
    splits = {
        split: [FileDocument(split, path, edges[i], edges[i + 1])] for i, split in enumerate(SPLITS)
    }
    return make_corpus(path.name, f"the file {path}", splits, "by position 90/5/5")


def directory_corpus(path: Path, name: str | None = None) -> Corpus:
    """A directory with a file for each split or, without those, of documents dealt 90/5/5."""
    name, source = name or path.resolve().name, f"the directory {path}"
    files = find_split_files(path)
    if files:
        splits = {split: [FileDocument(split, files[split])] for split in SPLITS}
        return make_corpus(name, source, splits, "as given")
    documents = list(_documents(path))
    if len(documents) < 3:
        raise DataError(
            f"{path} holds {len(documents)} text files ({', '.join(TEXT_SUFFIXES)}); at least 3 "
            f"are needed for train, valid and test. Give a single file by its own path, or "
            f"name the files train.txt, valid.txt and test.txt."
        )
    return make_corpus(name, source, split_by_name(documents), "by document 90/5/5")


def find_split_files(directory: Path) -> dict[str, Path] | None:
    """The files for train, valid and test in one of the usual layouts, or None.

    Known are `train.txt`, `wiki.train.tokens` and `wiki.train.raw` with their companions.
    """
    for layout in _LAYOUTS:
        found = {split: _first(directory, layout, _STEMS[split]) for split in SPLITS}
        complete = {split: path for split, path in found.items() if path}
        if len(complete) == len(SPLITS):
            return complete
        if "train" in complete:
            missing = [layout.format(stem=s) for s in SPLITS if s not in complete]
            raise DataError(
                f"{directory} holds {complete['train'].name} but not {' and '.join(missing)}. "
                f"Add what is missing, or give the file alone to have it split 90/5/5."
            )
    return None


def _first(directory: Path, layout: str, stems: tuple[str, ...]) -> Path | None:
    paths = (directory / layout.format(stem=stem) for stem in stems)
    return next((path for path in paths if path.is_file()), None)


def _documents(directory: Path) -> Iterator[FileDocument]:
    for path in sorted(directory.rglob("*")):
        inside = path.relative_to(directory)
        hidden = any(part.startswith(".") for part in inside.parts)
        if path.suffix in TEXT_SUFFIXES and not hidden and path.is_file():
            yield FileDocument(inside.as_posix(), path)
