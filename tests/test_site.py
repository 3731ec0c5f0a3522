"""The site: what is put together for it, what its check finds, and that it builds."""

import json
import subprocess
from pathlib import Path

import pytest

from docs import site

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-docs" / "bin" / "python"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pages = tmp_path_factory.mktemp("pages") / "pages"
    site.stage(pages)
    return pages


def test_every_page_of_the_navigation_is_there_and_every_document_is_in_it(pages):
    named = list(site.named_pages(site.settings()["nav"]))
    assert len(named) == len(set(named))
    assert not [name for name in named if not (pages / name).is_file()]
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert documents <= set(named)


def test_the_report_of_every_experiment_can_be_reached(pages):
    reports = {path.relative_to(ROOT) for path in (ROOT / "results").glob("*/report.md")}
    missing = [path for path in reports if not (pages / path).is_file()]
    assert not missing, f"no page links to {missing}"


def test_a_page_of_the_reference_has_what_its_package_exports(pages):
    text = (pages / "reference" / "qkvflow.models.md").read_text()
    assert "::: qkvflow.models.build_model\n" in text
    assert text.startswith("# qkvflow.models\n\n::: qkvflow.models\n    options: {")
    assert "members: false" in text
    assert "members: false" not in (pages / "reference" / "qkvflow.statistics.md").read_text()


def test_a_notebook_becomes_a_page_with_what_its_cells_showed(tmp_path):
    def code(source, **output):
        return {"cell_type": "code", "source": [source], "outputs": [output]}

    cells = [
        {"cell_type": "markdown", "source": ["# Curves\n", "See [ideas](../ideas.md)."]},
        code("print(1)", output_type="stream", text=["1\n"]),
        code(
            "draw()",
            output_type="display_data",
            data={"image/png": "QUJD\n", "text/plain": ["<Figure>"]},
        ),
    ]
    table = {"text/html": ["<table>\n", "\n", "</table>"], "text/plain": ["<Table>"]}
    cells.append(code("table", output_type="execute_result", data=table))
    (tmp_path / "curves.ipynb").write_text(json.dumps({"cells": cells}))
    assert site.text_of(tmp_path / "curves.ipynb") == (
        "# Curves\nSee [ideas](../ideas.md).\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "```python\ndraw()\n```\n\n![What the cell above draws](data:image/png;base64,QUJD)\n\n"
        "```python\ntable\n```\n\n<table>\n</table>\n"
    )


@pytest.mark.parametrize("link", ["missing.md", "results", "../../elsewhere.md"])
def test_a_link_to_no_file_of_the_repository_is_a_sentence(tmp_path, monkeypatch, link):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "page.md").write_text(f"[fine](page.md#place) `[code](x.md)` [no]({link}#place)\n")
    with pytest.raises(site.SiteError, match=f"page.md links to {link}, which is no file"):
        site.reachable(tmp_path / "page.md")


def test_the_check_finds_what_leads_nowhere_and_what_is_loaded_from_elsewhere(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="there">A</h1><a href="b.html#here">fine</a><a href="#there">fine</a>'
        '<a href="https://example.org">fine</a><a href="b.html#nowhere">no</a><a href="c.html">no</a>'
        '<script src="https://example.org/x.js"></script><img src="missing.png">'
    )
    (tmp_path / "b.html").write_text(
        '<p id="here"></p><a href="./a.html#there">fine</a><a href="/">no</a>'
    )
    assert site.problems(tmp_path) == [
        "a.html loads https://example.org/x.js",
        "a.html links to b.html#nowhere, a page without that place",
        "a.html links to c.html, which is not there",
        "a.html links to missing.png, which is not there",
        "b.html links to /, which is not there",
    ]


@pytest.mark.skipif(not PYTHON.exists(), reason="make docs creates the environment of the site")
def test_the_site_builds_without_a_warning():
    built = subprocess.run([PYTHON, "-m", "docs.site"], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stdout.endswith("The site is build/site/index.html\n")
