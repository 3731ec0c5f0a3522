"""Pages: what stands on top, contents, tables that sort, dark and narrow screens; all in one file."""

import re

import pytest

from qkvflow.report.page import (
    Conclusion,
    Fragment,
    Heading,
    Paragraph,
    Picture,
    Step,
    Verbatim,
    to_html,
    to_markdown,
)
from qkvflow.report.table import Table
from tests.support import look_at, needs_chromium

ROWS = (("b", "1,200", "1.5 +- 0.1"), ("a", "90", "-2.5"), ("", "10", ""), ("c", "", "1e-3"))
TABLE = Table(("name", "size", "change"), ROWS, "Sizes", "A note.")
SAID = Conclusion(
    "A is <best>.", "Not shown: why.", (("cost", "3 & 4"),), (Step("qkvflow train --out x", "More"),)
)
PAGE = [Heading("A page", 1), SAID, TABLE, Heading("Words"), Paragraph("p"), Heading("Words")]


def test_the_conclusion_stands_on_top_of_both_forms(tmp_path):
    html, text = to_html(PAGE), to_markdown(PAGE, tmp_path)
    assert html.index("<h1") < html.index("A is &lt;best&gt;.") < html.index("<nav") < html.index("<h2")
    for words in ("Not shown: why.", "3 &amp; 4", "<code>qkvflow train --out x</code>"):
        assert words in html
    assert text.splitlines()[2] == "A is &lt;best&gt;. Not shown: why."
    assert "- cost: 3 &amp; 4\n- More: qkvflow train --out x\n" in text


def test_contents_link_to_every_heading():
    html = to_html(PAGE)
    links = re.findall(r'<a class="level-2" href="#([^"]+)">([^<]+)</a>', html)
    assert [words for _, words in links] == ["Sizes", "Words", "Words"]
    assert len({place for place, _ in links}) == 3
    assert all(f'<h2 id="{place}">{words}</h2>' in html for place, words in links)
    assert "<nav" not in to_html(PAGE[:3]), "a short page needs none"


def test_text_that_stands_as_it_is(tmp_path):
    page = [Heading("A page", 1), Verbatim("a <b>\n```\n  c"), Fragment("<b>bold</b>")]
    assert "<pre>a &lt;b&gt;\n```\n  c</pre>" in to_html(page) and "<b>bold</b>" in to_html(page)
    assert to_markdown(page, tmp_path) == "# A page\n\n    a <b>\n    ```\n      c\n"


def test_a_notebook_shows_tables_and_pictures(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    assert Picture(tmp_path / "a.png", "")._repr_png_() == b"png"
    assert TABLE._repr_html_().endswith("</table></div><p>A note.</p>")


SORT = """
    const [name, size, change] = document.querySelectorAll(".table th");
    const column = i => [...document.querySelectorAll(".table tbody tr")].map(
        row => row.cells[i].textContent);
    const found = {};
    size.click(); found.rising = column(1);
    size.click(); found.falling = column(1);
    change.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"})); found.changes = column(2);
    name.click(); found.names = column(0);
    found.marked = document.querySelectorAll("[aria-sort]").length;
    found.dark = [...document.styleSheets[0].cssRules].some(
        rule => rule.conditionText === "(prefers-color-scheme: dark)");
    return found;"""


@needs_chromium
def test_tables_sort_by_numbers_and_words_with_what_is_empty_last(tmp_path):
    (tmp_path / "page.html").write_text(to_html(PAGE))
    found = look_at(tmp_path / "page.html", tmp_path, SORT)
    assert found["rising"] == ["10", "90", "1,200", ""]
    assert found["falling"] == ["1,200", "90", "10", ""]
    assert found["changes"] == ["-2.5", "1e-3", "1.5 +- 0.1", ""]
    assert found["names"] == ["a", "b", "c", ""]
    assert (found["marked"], found["dark"]) == (1, True)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(tmp_path, width):
    """Tables and figures scroll by themselves."""
    wide = Table(tuple("abcdefgh"), (("1234567890" * 3,) * 8,), "Wide")
    page = [*PAGE, wide, Paragraph("x" * 300), Verbatim("y" * 300)]
    body = f'<body style="width: {width}px">'
    (tmp_path / "page.html").write_text(to_html(page).replace("<body>", body))
    script = """
        const body = document.body.getBoundingClientRect();
        const parts = [...document.body.children].map(part => part.getBoundingClientRect());
        return {out: parts.filter(part => part.right > body.right + 1).length};"""
    assert look_at(tmp_path / "page.html", tmp_path, script) == {"out": 0}
