"""One table, four ways to show it."""

import io

import pytest
from rich.console import Console

from qkvflow.report.page import Heading, Paragraph, Picture, to_html, to_markdown
from qkvflow.report.table import Table, as_markdown, of_markdown, to_latex, to_terminal
from qkvflow.report.table import to_html as rows_to_html
from qkvflow.report.table import to_markdown as rows_to_markdown

TABLE = Table(
    ("model", "valid loss", "made of"),
    (("time_indexed & <co>", "1.39 +- 0.01", "a | b"), ("shared", "2%", "")),
    "Losses",
    "Lower is better.",
    frozenset({"made of"}),
)


def test_markdown():
    assert rows_to_markdown(TABLE).splitlines() == [
        "| model | valid loss | made of |",
        "| --- | ---: | --- |",
        r"| time_indexed &amp; &lt;co&gt; | 1.39 +- 0.01 | a \| b |",
        "| shared | 2% |  |",
    ]


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "[x](javascript:alert(1))", "a & b"])
def test_markdown_has_no_html_and_no_links_of_data(text, tmp_path):
    page = [Heading(text, 1), Paragraph(text), Table((text,), ((text,),), text, text)]
    shown = to_markdown([*page, Picture(tmp_path / "a.png", text)], tmp_path)
    assert shown.count("](") == 1 and "<" not in shown and "& " not in shown
    assert of_markdown(as_markdown(text)) == text


def test_html():
    found = rows_to_html(TABLE)
    assert found.count("<tr>") == 3
    assert '<td class="words">time_indexed &amp; &lt;co&gt;</td><td>1.39 +- 0.01</td>' in found


def test_latex():
    assert to_latex(TABLE).splitlines() == [
        r"\begin{tabular}{lrl}",
        r"\hline",
        r"model & valid loss & made of \\",
        r"\hline",
        r"time\_indexed \& <co> & 1.39 $\pm$ 0.01 & a | b \\",
        r"shared & 2\% &  \\",
        r"\hline",
        r"\end{tabular}",
    ]
    assert r"\textbackslash{}" in to_latex(Table(("x",), (("\\",),)))


def printed(table, width=80):
    console = Console(width=width, file=io.StringIO())
    console.print(to_terminal(table))
    return console.file.getvalue()


def test_terminal():
    brackets = Table(("[red]head",), (("[peers] :smile:",),), "[bold]title", "[dim]note")
    for words in ("[red]head", "[peers] :smile:", "[bold]title", "[dim]note"):
        assert words in printed(brackets)
    shown = printed(TABLE)
    for words in ("Losses", "Lower is better.", "time_indexed & <co>", "1.39 +- 0.01"):
        assert words in shown


def test_in_a_narrow_terminal_words_are_folded_and_no_number_is_cut():
    heads = ("model", *(f"some long head {i}" for i in range(8)))
    numbers = tuple(f"{i}.23456" for i in range(8))
    shown = printed(Table(heads, (("a_model_with_a_rather_long_name", *numbers),)))
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert all(number in shown for number in numbers)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_columns_are_chosen_and_put_side_by_side():
    chosen = TABLE.only("valid loss", "model", note="Short.")
    assert chosen.rows[1] == ("2%", "shared")
    assert (chosen.note, chosen.title) == ("Short.", "Losses")
    costs = Table(("model", "ms"), (("shared", "7"),))
    both = TABLE.only("model", "valid loss").beside(costs)
    assert both.heads == ("model", "valid loss", "ms")
    assert [row[-1] for row in both.rows] == ["", "7"]


def test_a_row_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells below 2 heads"):
        Table(("a", "b"), (("x",),))


def test_on_a_page_a_title_is_a_heading_and_a_note_a_paragraph(tmp_path):
    text = to_markdown([Heading("Page", 1), TABLE, Paragraph("End.")], tmp_path)
    parts = text.split("\n\n")
    assert parts[:2] == ["# Page", "## Losses"]
    assert parts[3:] == ["Lower is better.", "End.\n"]
    html = to_html([TABLE])
    assert html.index('<h2 id="losses">Losses</h2>') < html.index("<table>") < html.index("<p>Lower")
