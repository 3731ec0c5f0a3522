"""Pages: a list of headings, paragraphs, tables and figures, written as HTML and as Markdown.

Both are written from the same list, so that they cannot differ. A page in HTML is one file that asks
for no other: it has its figures, its contents, and tables that a click on a head sorts.
"""

import base64
import html
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from qkvflow.files import write_text
from qkvflow.report import table as tables
from qkvflow.report.table import Table

_FRAME = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
"""What stands around the body of every page."""
LEAST_HEADINGS = 3
"""Headings from which on a page has contents."""


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
class Step:
    """Something to do next."""

    command: str
    what: str
    """What it is good for."""


@dataclass(frozen=True)
class Conclusion:
    """What a page says before all else; it stands below its title."""

    found: str
    """What was found, in a sentence."""
    limits: str
    """What that does not show."""
    facts: tuple[tuple[str, str], ...] = ()
    """What else is asked at once: a word or two, and the answer."""
    steps: tuple[Step, ...] = ()
    """What to do next."""


@dataclass(frozen=True)
class Picture:
    """A figure that lies in a file, and what it shows; a notebook shows it, too."""

    path: Path
    caption: str
    in_text: bool = True
    """Whether it is named in Markdown, too, beside which it then has to lie."""

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Verbatim:
    """Text as it is, line by line."""

    text: str


@dataclass(frozen=True)
class Fragment:
    """HTML that no other item can say, such as coloured tokens; Markdown leaves it out."""

    html: str


Item = Heading | Paragraph | Table | Picture | Conclusion | Verbatim | Fragment
"""A table with a title stands below a heading, and above its note."""


def to_markdown(page: Sequence[Item], directory: Path) -> str:
    """The page as Markdown; figures are named relative to its directory."""
    parts = [text for item in spread(page) if (text := _as_markdown(item, directory))]
    return "\n\n".join(parts) + "\n"


def _as_markdown(item: Item, directory: Path) -> str:
    if isinstance(item, Heading):
        return f"{'#' * item.level} {tables.as_markdown(item.text)}"
    if isinstance(item, Paragraph):
        return tables.as_markdown(item.text)
    if isinstance(item, Conclusion):
        said = tables.as_markdown(f"{item.found} {item.limits}".strip())
        lines = [f"{head}: {text}" for head, text in item.facts]
        lines += [f"{step.what}: {step.command}" for step in item.steps]
        listed = "\n".join(f"- {tables.as_markdown(line)}" for line in lines)
        return f"{said}\n\n{listed}".strip()
    if isinstance(item, Verbatim):
        return "\n".join(f"    {line}" for line in item.text.splitlines())
    if isinstance(item, Picture):
        place = Path(os.path.relpath(item.path, directory)).as_posix()
        return f"![{tables.as_markdown(item.caption)}]({place})" if item.in_text else ""
    return "" if isinstance(item, Fragment) else tables.to_markdown(item)


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


def to_html(page: Sequence[Item], style: str = "") -> str:
    """The page as one HTML file that needs no other: figures are in it.

    `style` has rules that only this page needs.
    """
    items = spread(page)
    title = next((item.text for item in items if isinstance(item, Heading)), "qkvflow")
    places = _places(items)
    parts = [_as_html(item, places.get(i, "")) for i, item in enumerate(items)]
    first = next((i for i, item in enumerate(items) if not isinstance(item, Heading)), 0)
    first += bool(items) and isinstance(items[first], Conclusion)
    parts.insert(first, _contents(items, places))
    return _FRAME.substitute(title=html.escape(title), body="\n".join(parts), style=style)


def _places(items: Sequence[Item]) -> dict[int, str]:
    """What every heading is linked by: its words, and a number from the second of its kind on."""
    found, seen = dict[int, str](), Counter[str]()
    for i, item in enumerate(items):
        if isinstance(item, Heading):
            plain = "".join(c if c.isalnum() else "-" for c in item.text.lower())
            seen[plain] += 1
            found[i] = plain if seen[plain] == 1 else f"{plain}-{seen[plain]}"
    return found


def _contents(items: Sequence[Item], places: dict[int, str]) -> str:
    """Links to all headings but the first."""
    headings = [(places[i], item) for i, item in enumerate(items) if isinstance(item, Heading)][1:]
    if len(headings) < LEAST_HEADINGS:
        return ""
    links = (
        f'<a class="level-{heading.level}" href="#{place}">{html.escape(heading.text)}</a>'
        for place, heading in headings
    )
    return f'<nav aria-label="Contents">{" ".join(links)}</nav>'


def _as_html(item: Item, place: str) -> str:
    """One item as HTML; a heading is linked by its place."""
    if isinstance(item, Heading):
        return f'<h{item.level} id="{place}">{html.escape(item.text)}</h{item.level}>'
    if isinstance(item, Paragraph):
        return f"<p>{html.escape(item.text)}</p>"
    if isinstance(item, Conclusion):
        return _conclusion(item)
    if isinstance(item, Verbatim):
        return f"<pre>{html.escape(item.text)}</pre>"
    if isinstance(item, Fragment):
        return item.html
    if isinstance(item, Picture):
        data = base64.b64encode(item.path.read_bytes()).decode()
        caption = html.escape(item.caption)
        return (
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return tables.to_html(item)


def _conclusion(item: Conclusion) -> str:
    said = f"<p><strong>{html.escape(item.found)}</strong> {html.escape(item.limits)}</p>"
    facts = "".join(
        f"<dt>{html.escape(head)}</dt><dd>{html.escape(text)}</dd>" for head, text in item.facts
    )
    steps = "".join(
        f"<li>{html.escape(step.what)}: <code>{html.escape(step.command)}</code></li>"
        for step in item.steps
    )
    said += f"<dl>{facts}</dl>" if facts else ""
    said += f"<p>Try next:</p><ul>{steps}</ul>" if steps else ""
    return f'<section class="conclusion">{said}</section>'
