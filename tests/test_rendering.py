"""Documents are what their sources and results say, and no number in them is written by hand."""

import re

import pytest

from docs import quantities, render, tables
from docs.quantities import Interval
from docs.results import ROOT

SOURCES = render.sources()
WITHOUT_SOURCE = sorted({*(ROOT / "docs").glob("*.md"), ROOT / "API.md"} - set(SOURCES))


@pytest.mark.parametrize("document", SOURCES, ids=lambda path: path.name)
def test_rendering_changes_nothing(document):
    found = render.changes(document, SOURCES[document])
    source = SOURCES[document].relative_to(ROOT)
    assert not found, f"{found}\nEdit {source}, not {document.name}, and run make documents."


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda path: path.name)
def test_no_number_is_written_by_hand(source):
    bare = [f"line {line}: {number}" for line, number in render.bare_numbers(source.read_text())]
    assert not bare, f"{source.name}: take these from results, or mark them as given(...): {bare}"


@pytest.mark.parametrize("document", WITHOUT_SOURCE, ids=lambda path: path.name)
def test_documents_without_a_source_have_no_numbers_of_results(document):
    text = re.sub(r"\(about [\d.]+M parameters at hidden 256; [\d.]+M with", "", document.read_text())
    assert not [found for found in render.bare_numbers(text) if "." in found[1]]


def test_a_number_that_has_changed_is_shown(tmp_path):
    source, document = tmp_path / "source.md", tmp_path / "document.md"
    source.write_text('First.\n`shared` ends at {{ loss("laptop", "shared") }}.\n')
    document.write_text("First.\n`shared` ends at 1.2.\n")
    found = render.changes(document, source).splitlines()
    assert [line for line in found[2:] if line[0] in "+-"] == [
        "-`shared` ends at 1.2.",
        "+`shared` ends at 1.389.",
    ]
    document.write_text(render.render(source.read_text(), "source.md"))
    assert render.changes(document, source) == ""


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1 / 3", "0.333"),
        ("1 / 3 : .1%", "33.3%"),
        ("12345", "12,345"),
        ("12345 : d", "12345"),
        ('given("3e-4")', "3e-4"),
        ("span(0.3, 0.1, 0.2)", "0.100 to 0.300"),
        ("span(0.3, -0.1) : +.1f", "-0.1 to +0.3"),
        ("max(span(\n  1, 2))", "2"),
    ],
)
def test_formats(expression, said):
    assert render.render(f"It is {{{{ {expression} }}}}.", "text") == f"It is {said}."


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("los('laptop', 'shared')", "there is no quantity 'los'. Did you mean 'loss'?"),
        ("loss('labtop', 'shared')", "there is no experiment 'labtop'. Did you mean 'laptop'?"),
        ("loss('laptop', 'sharde')", "there is no arm of laptop 'sharde'. Did you mean 'shared'?"),
        ("interval('gap', 'shared', 'true_time')", "gap does not compare shared with true_time"),
        ("swept('laptop', 'shared', 3e-3)", "shared did not end at 0.003, but at 0.00025, 0.0005"),
        ("table('laptop', 'Los')", "there is no table of laptop 'Los'. Did you mean 'Loss'?"),
        ("times('scan', 'a', 'b')", "scan has no time of a over that of b"),
        ("best_rate('laptop', 'shared', 'tong_neuralode')", "different best rates: [0.0005, 0.008]"),
        ("1 +", "SyntaxError"),
        ("1 / 3 : .3q", "ValueError"),
        ("open('README.md')", "there is no quantity 'open'."),
    ],
)
def test_what_cannot_be_rendered_is_a_sentence_with_its_line(expression, problem):
    with pytest.raises(render.DocumentError) as raised:
        render.render(f"One.\nTwo {{{{ {expression} }}}}.", "source.md")
    assert str(raised.value).startswith("source.md, line 2: ")
    assert problem in str(raised.value)


def test_numbers_outside_of_expressions_and_code_are_found():
    text = "In 0.5 of {{ 0.7 }}\n`0.2` (95%, 12%)\n```\n0.1\n```\n[a](b-1.2.md) 12,345 and 3e-4; 2048\n"
    assert list(render.bare_numbers(text)) == [(1, "0.5"), (2, "12%"), (6, "12,345"), (6, "3e-4")]


def test_a_table_against_one_arm_has_the_rows_that_are_asked_for():
    rows = tables.against("laptop", "standard", "shared", "standard").splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["`shared`", "`standard`"]
    assert rows[0].endswith("| 1.389 | +0.052 (+0.046 to +0.058) |")
    assert rows[1].endswith("| 1.338 |  |")
    assert len(tables.against("laptop", "standard").splitlines()) == 6


def test_a_difference_turns_with_its_arms():
    ends = quantities.interval("laptop", "shared", "standard")
    assert ends.low < quantities.difference("laptop", "shared", "standard") < ends.high
    assert quantities.interval("laptop", "standard", "shared") == Interval(-ends.high, -ends.low)
    assert quantities.difference("laptop", "standard", "shared") == pytest.approx(
        quantities.loss("laptop", "standard") - quantities.loss("laptop", "shared")
    )
