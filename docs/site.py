"""The site: every page that README.md leads to. `make docs` builds it into build/site.

A page may link to whatever the repository holds. So the site is made of a copy: from README.md every
link is followed, and what it leads to is put below build/pages, at its place in the repository, where
all links go on working; of a notebook, a page with its cells and what they showed. The pages below
reference/ that zensical.toml names are made here: each shows the docstrings of one package. Then
zensical builds, and every link of what it built is followed again.

Nothing of qkvflow is imported, so that an environment without JAX builds the site.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "zensical.toml"
FRONT = "README.md"
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")
PAGES = (".md", ".ipynb")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class SiteError(ValueError):
    """Why there is no site; the message has every problem."""


def text_of(page: Path) -> str:
    """A page as Markdown."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        return "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"]) + "\n"
    return text


def _cell(cell: Any) -> str:
    """A cell of a notebook, and below it what it showed."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: Any) -> str:
    """A picture, or else HTML, or else text."""
    shown = output.get("data", {})
    if "image/png" in shown:
        return f"![What the cell above draws](data:image/png;base64,{shown['image/png'].strip()})"
    if "text/html" in shown:  # a blank line would end it
        return re.sub(r"\n\s*\n", "\n", "".join(shown["text/html"]))
    text = "".join(shown.get("text/plain", output.get("text", "")))
    return f"```text\n{text.rstrip()}\n```"


def links_of(page: Path) -> Iterator[Path]:
    """What a page of the repository links to there.

    Raises:
        SiteError: it is a directory, or is not there.
    """
    for link in LINK.findall(CODE.sub("", text_of(page))):
        target = (page.parent / link).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            raise SiteError(
                f"{page.relative_to(ROOT)} links to {link}, which is no file of the repository."
            )
        yield target


def reachable(front: Path = ROOT / FRONT) -> set[Path]:
    """All files to which links lead, from page to page."""
    found, left = {front}, [front]
    while left:
        fresh = set(links_of(left.pop())) - found
        found |= fresh
        left += [path for path in fresh if path.suffix in PAGES]
    return found


def named_pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, from its top to its end."""
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named_pages(each)


def settings() -> Any:
    """What zensical.toml says of the project."""
    return tomllib.loads(SETTINGS.read_text())["project"]


def stage(pages: Path) -> None:
    """Copy what is reachable and write the pages of the reference; the front page is the index."""
    rmtree(pages, ignore_errors=True)
    project = settings()
    for path in sorted(reachable() | {ROOT / name for name in project["extra_css"]}):
        place = pages / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in PAGES:
            place.with_suffix(".md").write_text(text_of(path).replace(".ipynb)", ".md)"))
        else:
            copyfile(path, place)
    (pages / FRONT).rename(pages / "index.md")
    for name in named_pages(project["nav"]):
        if name.startswith("reference/"):
            (pages / "reference").mkdir(exist_ok=True)
            (pages / name).write_text(reference(Path(name).stem))


def reference(module: str) -> str:
    """The page of a module: its docstring, then whatever it re-exports, or else all of it."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    exported = [
        f"{module}.{name.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.asname == name.name
    ]
    members = ", members: false" if exported else ""
    whole = f"::: {module}\n    options: {{show_root_heading: false{members}}}\n"
    parts = [f"# {module}\n", whole, *(f"::: {name}\n" for name in exported)]
    return "\n".join(parts)


class _Page(HTMLParser):
    """Of a page of the site: the names that a link may end with, where it leads, what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])

    def has(self, name: str) -> bool:
        """Whether a link may end with this name."""
        return unquote(name) in self.names


def problems(site: Path) -> list[str]:
    """Links of a site that lead nowhere, and whatever it would load from elsewhere."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {url}" for url in page.loads if urlsplit(url).netloc]
        for link in (*page.links, *page.loads):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name} links to {link}, which is not there")
            elif parts.fragment and target in pages and not pages[target].has(parts.fragment):
                found.append(f"{name} links to {link}, a page without that place")
    return found


def main() -> None:
    """Stage, build, check."""
    project = settings()
    pages, site = ROOT / project["docs_dir"], ROOT / project["site_dir"]
    try:
        stage(pages)
        rmtree(site, ignore_errors=True)
        built = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT
        )
        if built.returncode:
            raise SiteError("zensical could not build the site, or had warnings.")
        if found := problems(site):
            raise SiteError("\n".join(found))
    except SiteError as error:
        sys.exit(str(error))
    print(f"The site is {(site / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
