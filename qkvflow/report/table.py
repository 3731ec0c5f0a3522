"""A table of results, and how it is shown: in a terminal, as Markdown, HTML and LaTeX.

Every table is built once, as text; what differs between outputs is which columns there is room for.
"""

import dataclasses
import html
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

Row = tuple[str, ...]
NARROW = 80
"""Columns of a terminal that every table fits into."""


@dataclass(frozen=True)
class Table:
    """Rows of text below heads; the first column is words, numbers are set to the right."""

    heads: Row
    rows: tuple[Row, ...]
    title: str = ""
    note: str = ""
    """What a reader needs to know to read it."""
    words: frozenset[str] = frozenset()
    """Heads of other columns that are words."""

    def __post_init__(self) -> None:
        uneven = [row for row in self.rows if len(row) != len(self.heads)]
        if uneven:
            raise ValueError(
                f"a row of {len(uneven[0])} cells below {len(self.heads)} heads: {uneven[0]}"
            )

    def only(self, *heads: str, title: str | None = None, note: str | None = None) -> "Table":
        """Some of the columns, in this order; under another title, above another note, where given."""
        places = [self.heads.index(head) for head in heads]
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        title = self.title if title is None else title
        note = self.note if note is None else note
        return dataclasses.replace(self, heads=heads, rows=rows, title=title, note=note)

    def beside(self, other: "Table") -> "Table":
        """The columns of both, row by row of this one; empty where the other has no such row."""
        of = {row[0]: row[1:] for row in other.rows}
        empty = ("",) * (len(other.heads) - 1)
        rows = tuple((*row, *of.get(row[0], empty)) for row in self.rows)
        return dataclasses.replace(
            self, heads=self.heads + other.heads[1:], rows=rows, words=self.words | other.words
        )

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return f"{to_html(self)}<p>{html.escape(self.note)}</p>"

    def is_words(self, place: int) -> bool:
        """Whether a column is set to the left."""
        return place == 0 or self.heads[place] in self.words


def to_markdown(table: Table) -> str:
    """The rows; what is above and below them is the page's."""
    rule = tuple("---" if table.is_words(i) else "---:" for i in range(len(table.heads)))
    lines = [table.heads, rule, *table.rows]
    escaped = ([as_markdown(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def as_markdown(text: str) -> str:
    """Text that Markdown shows as it is: no HTML, no links; names and errors are data."""
    return html.escape(text, quote=False).replace("](", "]\\(")


def of_markdown(shown: str) -> str:
    """The text that `as_markdown` made this of."""
    return html.unescape(shown.replace("]\\(", "]("))


def to_html(table: Table) -> str:
    """The rows, in a frame that scrolls where it is wider than the page."""
    head = _cells("th", table, table.heads)
    rows = "".join(f"<tr>{_cells('td', table, row)}</tr>" for row in table.rows)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="table">{whole}</div>'


def _cells(tag: str, table: Table, row: Row) -> str:
    kinds = [' class="words"' if table.is_words(i) else "" for i in range(len(row))]
    return "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, row))


_LATEX = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def to_latex(table: Table) -> str:
    """A tabular."""
    form = "".join("l" if table.is_words(i) else "r" for i in range(len(table.heads)))
    head, *rows = (rf"{' & '.join(map(_latex, row))} \\" for row in (table.heads, *table.rows))
    lines = [rf"\begin{{tabular}}{{{form}}}", r"\hline", head, r"\hline", *rows, r"\hline"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _latex(cell: str) -> str:
    return "".join(_LATEX.get(c, c) for c in cell).replace("+-", r"$\pm$")


def to_terminal(table: Table) -> RichTable:
    """For a console: numbers are never cut, words are folded where there is no room for them."""
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows)]
    is_wide = sum(widths) + 2 * len(widths) > NARROW
    shown = RichTable(
        title=escape(table.title) or None,
        title_justify="left",
        caption=escape(table.note) or None,
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 0 if is_wide else 1, 0, 0),
        pad_edge=False,
    )
    for i, head in enumerate(table.heads):
        if table.is_words(i):
            shown.add_column(Text(head), overflow="fold")
        else:
            above = head.replace(" ", "\n") if is_wide else head
            shown.add_column(Text(above), justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
