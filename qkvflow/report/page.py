"""Pages: a list of headings, paragraphs, tables and figures, written as HTML and as Markdown.

Both are written from the same list, so that they cannot differ.
"""

import base64
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from qkvflow.files import write_text
from qkvflow.report import table as tables
from qkvflow.report.table import Table

_FRAME = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
"""What stands around the body of every page."""


@dataclass(frozen=True)
class Heading:
    """A heading, of level 1 for the page and 2 within it."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure that lies in a file, and what it shows."""

    path: Path
    caption: str
    in_text: bool = True
    """Whether it is named in Markdown, too, beside which it then has to lie."""


Item = Heading | Paragraph | Table | Picture
"""A table with a title stands below a heading, and above its note."""


def to_markdown(page: Sequence[Item], directory: Path) -> str:
    """The page as Markdown; figures are named relative to its directory."""
    parts = []
    for item in spread(page):
        if isinstance(item, Heading):
            parts.append(f"{'#' * item.level} {tables.as_markdown(item.text)}")
        elif isinstance(item, Paragraph):
            parts.append(tables.as_markdown(item.text))
        elif isinstance(item, Picture):
            if not item.in_text:
                continue
            place = Path(os.path.relpath(item.path, directory)).as_posix()
            parts.append(f"![{tables.as_markdown(item.caption)}]({place})")
        else:
            parts.append(tables.to_markdown(item))
    return "\n\n".join(parts) + "\n"


def spread(page: Sequence[Item]) -> list[Item]:
    """Every table with its title as a heading before it and its note as a paragraph after it."""
    items: list[Item] = []
    for item in page:
        if isinstance(item, Table):
            items += [Heading(item.title)] if item.title else []
            items += [item, *([Paragraph(item.note)] if item.note else [])]
        else:
            items.append(item)
    return items


def write_both(page: Sequence[Item], out: Path) -> tuple[Path, Path]:
    """OUT/report.html and OUT/report.md."""
    whole, text = out / "report.html", out / "report.md"
    write_text(whole, to_html(page))
    write_text(text, to_markdown(page, out))
    return whole, text


def to_html(page: Sequence[Item]) -> str:
    """The page as one HTML file that needs no other: figures are in it."""
    title = next((item.text for item in page if isinstance(item, Heading)), "qkvflow")
    body = "\n".join(element(item) for item in spread(page))
    return frame(title, body)


def frame(title: str, body: str, style: str = "") -> str:
    """A whole page around its body, with rules of style that only this page needs."""
    return _FRAME.substitute(title=html.escape(title), body=body, style=style)


def element(item: Item) -> str:
    """One item as HTML."""
    if isinstance(item, Heading):
        return f"<h{item.level}>{html.escape(item.text)}</h{item.level}>"
    if isinstance(item, Paragraph):
        return f"<p>{html.escape(item.text)}</p>"
    if isinstance(item, Picture):
        data = base64.b64encode(item.path.read_bytes()).decode()
        caption = html.escape(item.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return tables.to_html(item)
