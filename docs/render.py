"""Documents are rendered: `make documents` writes README.md and docs/*.md from docs/source/*.md.

A source has its numbers as Python expressions over docs/quantities.py in double braces, with a format
behind a colon that has spaces around it; without one, a float has three digits after the point, an
integer its thousands apart.

    `shared` ends {{ difference("laptop", "shared", "standard") }} above `standard`
    ({{ interval("laptop", "shared", "standard") : +.4f }}).

What stands in no expression and is no code must not be a number of a result; `given("3e-4")` marks one
that nobody measured here: a setting, a bound, somebody's claim.
"""

import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs import quantities, tables
from docs.results import ROOT, UnknownNameError
from qkvflow.config.strict import nearest
from qkvflow.files import write_text
from qkvflow.statistics import smallest_p_value

SOURCES = ROOT / "docs" / "source"
EXPRESSION = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+|\d{1,3}(?:,\d{3})+|\b(?!(?:80|95|99)%)\d+%|\b\d+e-?\d+")
"""With a point, thousands or an exponent, or in percent, but for levels of confidence."""
NAMES: dict[str, Any] = {
    name: value
    for module in (quantities, tables)
    for name, value in vars(module).items()
    if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
}
NAMES |= {"FIRST_MODELS": quantities.FIRST_MODELS, "smallest_p_value": smallest_p_value}
NAMES |= {"min": min, "max": max, "sum": sum}


class DocumentError(ValueError):
    """A source that cannot be rendered; the message says which one, in which line, and why."""


def sources() -> dict[Path, Path]:
    """Every source, by the document that it is rendered to: names in capitals are at the root."""
    found = sorted(SOURCES.glob("*.md"))
    return {(ROOT if path.stem.isupper() else ROOT / "docs") / path.name: path for path in found}


def render(text: str, name: str) -> str:
    """The text of a source with its expressions replaced by what they say.

    Raises:
        DocumentError: an expression cannot be read, or asks for what is not there.
    """

    def said(match: re.Match[str]) -> str:
        try:
            return _said(match[1])
        except (ArithmeticError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
            line = text.count("\n", 0, match.start()) + 1
            raise DocumentError(f"{name}, line {line}: {match[0]}: {_problem(error)}") from error

    return EXPRESSION.sub(said, text)


def _problem(error: Exception) -> str:
    """What is wrong with an expression, as a sentence."""
    if isinstance(error, NameError):
        return f"there is no quantity {error.name!r}. {nearest(str(error.name), NAMES)}"
    return str(error) if isinstance(error, UnknownNameError) else f"{type(error).__name__}: {error}"


def _said(expression: str) -> str:
    """What an expression gives, as text."""
    source, colon, form = expression.rpartition(" : ")
    value = eval((source if colon else form).strip(), {**NAMES, "__builtins__": {}})
    if isinstance(value, str):
        return value
    return format(value, form.strip() if colon else "," if isinstance(value, int) else ".3f")


def bare_numbers(text: str) -> Iterator[tuple[int, str]]:
    """Numbers of a source that are in no expression and in no code, with their lines."""
    for hidden in (EXPRESSION, CODE):
        text = hidden.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in NUMBER.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]


def changes(document: Path, source: Path) -> str:
    """What rendering would change in a document, line by line; nothing if it is up to date."""
    there = document.read_text() if document.is_file() else ""
    here = render(source.read_text(), source.name)
    lines = (there.splitlines(), here.splitlines(), f"{document.name} as it is", "as it is rendered")
    return "\n".join(difflib.unified_diff(*lines, n=0, lineterm=""))


def main() -> None:
    """Write every document that has a source; none if one of them cannot be rendered."""
    try:
        rendered = {path: render(of.read_text(), of.name) for path, of in sources().items()}
    except DocumentError as error:
        sys.exit(str(error))
    for document, text in rendered.items():
        write_text(document, text)


if __name__ == "__main__":
    main()
